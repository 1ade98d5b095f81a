# SPDX-License-Identifier: Apache-2.0
"""A commit of the lake inside of a client's own transaction: what DDL and writes have in common.

Order, for each table, whose row in table_version is locked:

    1  the row is written, so that its xmin is the xid of the subtransaction, if there is one:
       whether a savepoint was rolled back is known by its own xid only
    2  the xid is made durable: PostgreSQL hands it out again after a crash otherwise
    3  Delta commits that name it, with ``metadata``                            heads ahead
    4  the table's version; after all tables the commit record                  nothing
    5  the client's COMMIT                                                      everything
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from penstock.change.relation import LakeTable
from penstock.control.address import ControlAddress
from penstock.control.commits import commit_metadata, commit_record, flush_wal
from penstock.control.connect import connect
from penstock.control.guard import NODE_AND_XID, Call, Guard
from penstock.frontdoor.actions import Backend, Row

_ROW_XID = "SELECT xmin::pg_catalog.text FROM penstock.table_version WHERE relid = $1::oid"
_XACT_STATUS = "SELECT pg_catalog.pg_xact_status($1::pg_catalog.xid8)"


async def call(backend: Backend, wanted: Call) -> list[Row]:
    """Run one of the guard's calls in the client's session."""
    return await backend.query(wanted.sql, wanted.parameters)


class SessionCommit:
    """One commit; ``purpose`` is that of its Delta commits and its record."""

    def __init__(
        self,
        backend: Backend,
        guard: Guard,
        control: ControlAddress,
        purpose: str,
        node_and_xid: Row,
    ) -> None:
        self._backend = backend
        self._guard = guard
        self._control = control
        self._purpose = purpose
        node, xid = node_and_xid
        self._node, self._xid = node or "", xid or ""

    @classmethod
    async def begin(
        cls, backend: Backend, guard: Guard, control: ControlAddress, purpose: str
    ) -> SessionCommit:
        """In the session's open transaction."""
        (found,) = await call(backend, NODE_AND_XID)
        return cls(backend, guard, control, purpose, found)

    async def metadata(self, table: LakeTable, sole_writer: str | None) -> str:
        """The userMetadata of the Delta commits in a table; steps 1 and 2 are done."""
        # It moves nothing, but the row's xmin is now this subtransaction's xid.
        await self.moved(table, table.version, sole_writer)
        ((row_xid,),) = await self._backend.query(_ROW_XID, [str(table.relid)])
        if await call(self._backend, self._guard.make_xid_durable()) != [("t",)]:
            await asyncio.to_thread(self._flush)
        xid = full_xid(int(row_xid or 0), int(self._xid or 0))
        return commit_metadata(self._node, xid, self._purpose)

    async def moved(self, table: LakeTable, version: int | None, sole_writer: str | None) -> None:
        """Move a table to a version."""
        await call(self._backend, self._guard.set_table_version(table.relid, version, sole_writer))

    async def record(self, moved: list[dict[str, Any]]) -> None:
        """Leave the commit record."""
        record = commit_record(self._node, self._xid, self._purpose, None, moved)
        await call(self._backend, self._guard.emit_commit(record))

    def _flush(self) -> None:
        with connect(self._control, application_name="penstock flush") as conn:
            flush_wal(conn)


def full_xid(short: int, current: int) -> str:
    """The 64-bit form of a subtransaction's 32-bit xid; ``current`` is its transaction's."""
    full = current & ~0xFFFFFFFF | short
    return str(full if full >= current else full + 2**32)


def status_from(backend: Backend) -> Callable[[str], str | None]:
    """pg_xact_status for the thread that settles, asked in the client's session.

    The table is locked, so what is in progress and ahead can only be this transaction's own
    earlier attempt, which was undone: as good as aborted.
    """
    loop = asyncio.get_running_loop()

    def status(xid: str) -> str | None:
        asked = asyncio.run_coroutine_threadsafe(_first(backend, xid), loop)
        found = asked.result()
        return "aborted" if found == "in progress" else found

    return status


async def _first(backend: Backend, xid: str) -> str | None:
    rows: Iterable[Row] = await backend.query(_XACT_STATUS, [xid])
    ((status,),) = rows
    return status
