# SPDX-License-Identifier: Apache-2.0
"""The lake follows definitions: what a relayed DDL statement changed, Delta changes with it.

In:   the client's own session, after a statement that changes definitions was relayed.
Out:  Delta tables with the new columns, and the versions that make them true, in the client's
      transaction; an error undoes the statement.

    the statement changed                in the lake
    ---------------------                -----------
    columns of a table with a Delta      drop, rename, add, widen (lake/ddl.py), or 0A000
      table
    columns of a table without one       nothing: it is made with its columns at the first write
    a table's name or schema             nothing: folders have no names
    a table: dropped                     its folder is removed, once the transaction committed and
                                           no subscriber will be sent what happened before it
    constraints: new ones                its rows are looked at (lake/promises.py, checks.py)
    a publication: its row filters       nothing; 0A000 when they are not exact (publications.py)
    anything else                        nothing

Order, and what is durable:

    1  PostgreSQL's DDL holds ACCESS EXCLUSIVE on the table; its row in table_version is locked
    2  the head is settled, Delta commits follow                                heads ahead
    3  table_version, table_column and the commit record, in the transaction    nothing
    4  the client's COMMIT                                                      everything

After an abort, or a rollback to a savepoint, heads are ahead of table_version and the next writer
restores them (../session_commit.py).  The commit record has no version ranges: rows were rewritten
perhaps, but PostgreSQL publishes no row changes for DDL either.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

from penstock.change.relation import LakeTable
from penstock.control.address import ControlAddress
from penstock.control.commits import moved_table
from penstock.control.connect import connect
from penstock.control.guard import HIDE_PARAMETERS, Guard
from penstock.control.retention import oldest_position
from penstock.errors import TableStateError
from penstock.failpoints import Failpoint, reach
from penstock.frontdoor.actions import Backend, Row
from penstock.frontdoor.definitions.checks import check_rows
from penstock.frontdoor.definitions.publications import check_row_filters
from penstock.frontdoor.reading.catalog import CatalogReader
from penstock.frontdoor.reading.query import SparkQueries
from penstock.frontdoor.session_commit import SessionCommit, call, status_from
from penstock.frontdoor.writing.foreign_keys import not_yet
from penstock.frontdoor.writing.violations import missing_violation
from penstock.frontdoor.writing.write_targets import read_locked
from penstock.lake.columns import Definition, definition_from_json
from penstock.lake.ddl import follow_columns
from penstock.lake.dropped import remove_dropped
from penstock.lake.promises import Promise, check_promises, row_without_partner
from penstock.lake.references import comparable
from penstock.lake.session import Spark

log = logging.getLogger(__name__)

Ended = Callable[[bool], Awaitable[None]]

_ALTERED = "SELECT * FROM penstock.altered_tables()"
_DROPPED = """
SELECT FROM penstock.dropped_table
WHERE xid = pg_catalog.pg_current_xact_id_if_assigned() LIMIT 1"""
_PROMISES = """
SELECT relid, kind, name, pg_catalog.to_json(columns) FROM penstock.new_promises()"""
_REFERENCES = "SELECT penstock.new_references()"


@dataclass(frozen=True)
class _Altered:
    """A table whose columns are not those that its Delta table has."""

    relid: int
    schema: str
    name: str
    definition: Definition


class Reconciler:
    """Follows definitions; one serves all sessions of a node."""

    def __init__(
        self, spark: Spark, guard: Guard, control: ControlAddress, lake_root: Path
    ) -> None:
        self._spark = spark
        self._guard = guard
        self._control = control
        self._lake_root = lake_root
        self._catalog = CatalogReader()
        # What a session's transactions have looked at: later writes keep it.  OIDs are not used
        # again soon, and what is added later has another one.
        self._kept: WeakKeyDictionary[Backend, set[int]] = WeakKeyDictionary()
        self._queries = SparkQueries(spark.session, lake_root)

    async def reconcile(self, backend: Backend) -> Ended | None:
        """Follow what the session's transaction has changed; call it after each statement.

        What it returns is to be called when the transaction has ended, with True when it
        committed.  FeatureNotSupportedError (0A000) for what Delta cannot follow, and 23502 for a
        new NOT NULL column of a table with rows; both before the lake was touched.  23502, 23503,
        23505, 23514 or 0A000 when rows in the lake do not keep what a new constraint promises.
        0A000 for a row filter of a publication that the lake cannot evaluate exactly.
        """
        altered = [
            _Altered(int(relid or 0), schema or "", name or "", definition)
            for relid, schema, name, rewrite, columns, recorded in await backend.query(_ALTERED)
            for definition in [definition_from_json(rewrite or "0", columns or "", recorded or "")]
        ]
        changed = {table.relid: table for table in altered if table.definition.differs}
        if changed:
            await self._follow(backend, changed)
        await self._check_promises(backend, {table.relid: table for table in altered})
        await self._check_references(backend)
        await check_row_filters(backend, self._catalog)
        return self._sweep if await backend.query(_DROPPED) else None

    async def _follow(self, backend: Backend, changed: dict[int, _Altered]) -> None:
        locked = await self._locked(backend, changed)
        commit = await SessionCommit.begin(backend, self._guard, self._control, "ddl")
        moved = []
        reach(Failpoint.DDL_RELAYED)
        for row in locked:
            table = self._lake_table(row, changed)
            metadata = await commit.metadata(table, table.sole_writer)
            version = await asyncio.to_thread(
                follow_columns,
                self._spark.own_session(),
                table,
                changed[table.relid].definition,
                status_from(backend),
                metadata,
            )
            if version is not None:
                await commit.moved(table, version, table.sole_writer)
                moved.append(moved_table(table, version, [], "ddl"))
            await call(backend, self._guard.set_table_columns(table.relid))
        if moved:
            await commit.record(moved)

    async def _check_promises(self, backend: Backend, altered: dict[int, _Altered]) -> None:
        promises: dict[int, list[Promise]] = {}
        for relid, kind, name, columns in await backend.query(_PROMISES):
            promise = Promise(kind or "", name or "", tuple(json.loads(columns or "[]")))
            promises.setdefault(int(relid or 0), []).append(promise)
        if not promises:
            return
        for row in await self._locked(backend, promises):
            table = self._lake_table(row, altered)
            promised = promises[table.relid]
            others = [each for each in promised if each.kind != "check"]
            await asyncio.to_thread(check_promises, self._spark.own_session(), table, others)
            for promise in promised:
                if promise.kind == "check":
                    await check_rows(backend, self._queries, table, promise.name)

    async def _check_references(self, backend: Backend) -> None:
        """23503 for rows of the lake that a new foreign key does not allow."""
        found = await backend.query(_REFERENCES)
        if not found or found[0][0] is None:
            return
        added = read_locked(json.loads(found[0][0]), self._lake_root)
        await self._locked(backend, (each.table.relid for each in added.targets))
        ((now,),) = await backend.query(_REFERENCES)  # with the versions that stay
        added = read_locked(json.loads(now or "{}"), self._lake_root)
        tables = {each.table.relid: each for each in added.targets}
        kept = self._kept.setdefault(backend, set())
        for key in added.references:
            if key.oid in kept:
                continue
            child = tables[key.child.relid]
            parents = [tables[relid].table for relid in key.parent.leaves]
            pairs = zip(
                child.columns(key.child.columns),
                tables[key.parent.leaves[0]].columns(key.parent.columns) if parents else (),
                strict=False,
            )
            if not key.kept or not all(comparable(*pair) for pair in pairs):
                raise not_yet(key, "columns whose equality is not that of their text")
            missing = await asyncio.to_thread(
                row_without_partner, self._spark.own_session(), child.table, parents, key
            )
            if missing is not None:
                raise await missing_violation(backend, key, child, missing)
            kept.add(key.oid)

    async def _locked(self, backend: Backend, relids: Iterable[int]) -> Sequence[Row]:
        """Tables as they stay until the transaction ends; 40001 if its snapshot has others."""
        await call(backend, HIDE_PARAMETERS)
        return await call(backend, self._guard.lock_tables(relids))

    def _lake_table(self, row: Row, changed: dict[int, _Altered]) -> LakeTable:
        relid, location, version, sole_writer = row
        table = changed[int(relid or 0)]
        if version is None:
            raise TableStateError(f'table "{table.schema}.{table.name}" has lost its version')
        return LakeTable(
            relid=table.relid,
            schema=table.schema,
            name=table.name,
            kind="r",
            identity="d",
            columns=table.definition.lake_columns,
            key=(),
            location=str(self._lake_root / (location or "")),
            version=int(version),
            sole_writer=sole_writer,
        )

    async def _sweep(self, committed: bool) -> None:
        if committed:
            await asyncio.to_thread(self._sweep_in_thread)

    def _sweep_in_thread(self) -> None:
        with connect(self._control, application_name="penstock drop") as conn:
            if oldest_position(conn) is None:  # else maintenance does, once no slot needs it
                remove_dropped(conn, self._lake_root)
