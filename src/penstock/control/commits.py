# SPDX-License-Identifier: Apache-2.0
"""One commit of the lake: a transaction in the control database that moves table versions.

In:   Delta versions that were written while this transaction held their tables.
Out:  rows of ``penstock.table_version``, subscription states, an origin's position, and the commit
      record; all of it at COMMIT, or nothing.

    with begin_commit(conn, "apply", lake_root) as commit:
        tables = commit.lock([orders])             # relation lock, then row lock, by oid
        ... write Delta, with commit.metadata as userMetadata ...
        commit.moved(tables[orders], 8, [(8, 8)], "merge")
        commit.set_origin("pg_16400", end_lsn, commit_time)
    # commit record written last, then COMMIT

The commit record is a transactional message of prefix ``penstock`` in the WAL:

    {"v": 1, "node": "...", "xid": "...", "purpose": "apply", "origin": "pg_16400",
     "tables": [{"relid": 16410, "location": "<uuid>", "version": 8, "ranges": [[8, 8]],
                 "kind": "merge"}]}

``ranges`` are the Delta versions, first to last, that belong to this commit: a version that was
restored away is in none.  Where a partitioned table was emptied, each of its partitions has its OID
in ``truncated``: the TRUNCATE in the ranges was that one's.  A transaction that moved no table has
no record.

The position of a subscription is a row of ``penstock.origin_position``, written in the same
transaction.  The replication origin itself follows in a transaction of its own: PostgreSQL moves
an origin when a transaction with a position *aborts*, too, so a ROLLBACK, a lost connection or a
terminated backend between ``pg_replication_origin_xact_setup`` and COMMIT would skip a batch for
ever.  This way the origin is never ahead of the data; what moves it ahead is
pg_replication_origin_advance.

The xid that a Delta commit names must be durable before: PostgreSQL hands out xids in memory, and
after a crash hands out again those that no flushed WAL record carries.  The Delta commit of a
crashed transaction would seem to belong to the next owner of its xid, who commits.

The relation is locked before the row: DDL holds ACCESS EXCLUSIVE on the relation when it asks for
the row, so the other order would be a deadlock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.errors import InvalidSchemaName, UndefinedTable
from psycopg.pq import TransactionStatus

from penstock.change.relation import LakeTable
from penstock.control.catalog import lake_tables, not_a_lake_table
from penstock.control.connect import ControlConnection
from penstock.control.table_state import BEFORE, TableState
from penstock.errors import ConnectionLostError, WrongStateError
from penstock.lsn import format_lsn

RECORD_PREFIX = "penstock"
RECORD_FORMAT = 1
XID_PREFIX = "penstock.xid"
"""Prefix of the messages that carry an xid into the WAL; they say nothing else."""

Range = tuple[int, int]

_LOCK_ATTEMPTS = 10
"""A rename between looking a name up and locking it costs one more attempt; ten in a row do not
happen."""


class CommitOutcomeUnknownError(ConnectionLostError):
    """The connection ended between COMMIT and its answer; ``xact_status(xid)`` settles it."""

    def __init__(self, xid: str) -> None:
        super().__init__(
            f"the answer to COMMIT of transaction {xid} was lost",
            hint="Whether it committed is known once the control database can be reached again.",
        )
        self.xid = xid


@dataclass
class _Moved:
    """A table's part of the commit record."""

    table: LakeTable
    version: int
    ranges: list[Range]
    kind: str
    truncated: tuple[int, ...]


@dataclass(frozen=True)
class _Position:
    """Where an origin is after this commit."""

    origin: str
    lsn: str
    time: datetime


def commit_record(
    node: str, xid: str, purpose: str, origin: str | None, tables: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The commit record; ``tables`` are made by ``moved_table``."""
    return {
        "v": RECORD_FORMAT,
        "node": node,
        "xid": xid,
        "purpose": purpose,
        "origin": origin,
        "tables": list(tables),
    }


def moved_table(
    table: LakeTable,
    version: int,
    ranges: Iterable[Range],
    kind: str,
    truncated: Iterable[int] = (),
) -> dict[str, Any]:
    """One table of a commit record; ``ranges`` are inclusive.

    ``truncated``: OIDs of the partitioned tables that were emptied, and this partition with them.
    """
    entry: dict[str, Any] = {
        "relid": table.relid,
        "location": Path(table.location).name,
        "version": version,
        "ranges": [list(part) for part in ranges],
        "kind": kind,
    }
    roots = sorted(truncated)
    return entry | {"truncated": roots} if roots else entry


def commit_metadata(node: str, xid: str, purpose: str) -> str:
    """What every Delta commit of ours carries as userMetadata."""
    return json.dumps({"penstock": node, "xid": xid, "purpose": purpose})


@dataclass
class Commit:
    """An open commit; ``begin_commit`` makes it."""

    conn: ControlConnection
    purpose: str
    lake_root: Path
    node: str
    xid: str
    _locked: dict[int, LakeTable] = field(default_factory=dict)
    _moved: dict[int, _Moved] = field(default_factory=dict)
    _position: _Position | None = None
    _xid_is_durable: bool = False

    @property
    def metadata(self) -> str:
        """The userMetadata of this commit's Delta commits."""
        return commit_metadata(self.node, self.xid, self.purpose)

    def lock(self, relids: Iterable[int]) -> dict[int, LakeTable]:
        """Lock tables for writing and read them as they are now.

        WrongStateError (42P01) when one is not (or no longer) a table of the lake.
        """
        wanted = sorted(set(relids))
        self._lock_relations(wanted)
        self.conn.execute(
            "SELECT FROM penstock.table_version WHERE relid = ANY(%s::oid[])"
            " ORDER BY relid FOR NO KEY UPDATE",
            [wanted],
        )
        tables = lake_tables(self.conn, wanted, self.lake_root)
        for relid in wanted:
            if relid not in tables:
                raise not_a_lake_table(relid)
        self._locked.update(tables)
        if not self._xid_is_durable:
            _make_xid_durable(self.conn)
            self._xid_is_durable = True
        return tables

    def moved(
        self,
        table: LakeTable,
        version: int,
        ranges: Sequence[Range],
        kind: str,
        sole_writer: str | None = None,
        truncated: Iterable[int] = (),
    ) -> None:
        """The table is now at a Delta version; ``ranges`` (inclusive) are this commit's own.

        Several moves of one table add up.  ``sole_writer`` is what table_version keeps from now on,
        ``truncated`` as in ``moved_table``.
        """
        if table.relid not in self._locked:
            raise WrongStateError(f'table "{table.schema}.{table.name}" is not locked')
        self.conn.execute(
            "UPDATE penstock.table_version SET version = %s, sole_writer = %s"
            " WHERE relid = %s::oid",
            [version, sole_writer, table.relid],
        )
        earlier = self._moved.get(table.relid)
        own = [*earlier.ranges, *ranges] if earlier else list(ranges)
        roots = {*truncated, *(earlier.truncated if earlier else ())}
        self._moved[table.relid] = _Moved(table, version, own, kind, tuple(roots))

    def set_columns(self, table: LakeTable) -> None:
        """Record that the Delta table has the columns that the relation has."""
        self.conn.execute("SELECT penstock.take_columns(%s::oid)", [table.relid])

    def set_relation_state(
        self, subid: int, relid: int, state: TableState, lsn: int | None = None
    ) -> None:
        """Set srsubstate and srsublsn.

        WrongStateError when the subscription lost the table, or the table is in a state from
        which it does not come to this one (control/table_state.py).
        """
        done = self.conn.execute(
            "UPDATE pg_subscription_rel SET srsubstate = %s, srsublsn = %s::pg_lsn"
            " WHERE srsubid = %s::oid AND srrelid = %s::oid"
            ' AND srsubstate = ANY(%s::"char"[])',
            [
                state.value,
                None if lsn is None else format_lsn(lsn),
                subid,
                relid,
                [before.value for before in BEFORE[state]],
            ],
        )
        if done.rowcount != 1:
            raise WrongStateError(
                f"relation with OID {relid} of subscription with OID {subid}"
                f' cannot come to state "{state.value}"',
                detail="It was removed from the subscription, or its state was changed meanwhile.",
            )

    def set_origin(self, name: str, lsn: int, commit_time_us: int) -> None:
        """Move a subscription's position to a remote commit's end, in this transaction.

        ``commit_time_us`` is the remote commit's time, in microseconds since 1970-01-01 UTC.
        A connection serves one origin for its whole life; 55006 when another session has it.
        """
        if self.conn.origin is None:
            self.conn.execute("SELECT pg_replication_origin_session_setup(%s)", [name])
            self.conn.origin = name
        if self.conn.origin != name:
            raise WrongStateError(
                f'connection serves replication origin "{self.conn.origin}", not "{name}"'
            )
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=commit_time_us)
        self.conn.execute(
            "INSERT INTO penstock.origin_position VALUES (%(name)s, %(lsn)s::pg_lsn, %(time)s)"
            " ON CONFLICT (origin) DO UPDATE SET lsn = excluded.lsn, time = excluded.time",
            {"name": name, "lsn": format_lsn(lsn), "time": time},
        )
        self._position = _Position(name, format_lsn(lsn), time)

    def clear_skip_lsn(self, subid: int, lsn: int) -> bool:
        """Forget the LSN of ALTER SUBSCRIPTION ... SKIP; whether it was still this one.

        As clear_subscription_skip_lsn() in worker.c: one that was set meanwhile stays.
        """
        done = self.conn.execute(
            "UPDATE pg_subscription SET subskiplsn = '0/0'"
            " WHERE oid = %s::oid AND subskiplsn = %s::pg_lsn",
            [subid, format_lsn(lsn)],
        )
        return done.rowcount == 1

    def forget_sole_writer(self, origin: str, relids: Sequence[int] | None = None) -> None:
        """The origin's tables no longer have exactly what the publisher sent.

        Something was left out, which may have deleted rows: from now on keys that come again must
        be looked for.  ``relids``: only in these tables, and in their partitions.
        """
        chosen = "sole_writer = %s"
        parameters: list[object] = [origin]
        if relids is not None:
            chosen += (
                " AND (relid = ANY (%s::oid[]) OR EXISTS (SELECT FROM"
                " pg_partition_ancestors(relid) a WHERE a.relid = ANY (%s::oid[])))"
            )
            parameters += [list(relids), list(relids)]
        self.conn.execute(
            f"SELECT FROM penstock.table_version WHERE {chosen} ORDER BY relid FOR UPDATE".encode(),
            parameters,
        )
        self.conn.execute(
            f"UPDATE penstock.table_version SET sole_writer = NULL WHERE {chosen}".encode(),
            parameters,
        )

    def _lock_relations(self, relids: list[int]) -> None:
        names = self._names(relids)
        for _ in range(_LOCK_ATTEMPTS):
            if len(names) < len(relids):
                raise not_a_lake_table(next(relid for relid in relids if relid not in names))
            for relid, name in names.items():
                lock = sql.SQL("LOCK TABLE ONLY {} IN ROW EXCLUSIVE MODE")
                try:
                    self.conn.execute(lock.format(sql.Identifier(*name)))
                except (UndefinedTable, InvalidSchemaName) as error:
                    raise not_a_lake_table(relid) from error  # dropped since it was looked for
            held, names = names, self._names(relids)
            if names == held:
                return
        raise WrongStateError("tables were renamed all the time while they were to be locked")

    def _names(self, relids: list[int]) -> dict[int, tuple[str, str]]:
        rows = self.conn.execute(
            "SELECT c.oid::bigint, n.nspname, c.relname FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.oid = ANY(%s::oid[]) AND c.relkind IN ('r', 'p') ORDER BY c.oid",
            [relids],
        ).fetchall()
        return {relid: (schema, name) for relid, schema, name in rows}

    def _write_record(self) -> None:
        if not self._moved:
            return
        record = commit_record(
            self.node,
            self.xid,
            self.purpose,
            None if self._position is None else self._position.origin,
            [
                moved_table(m.table, m.version, m.ranges, m.kind, m.truncated)
                for m in self._moved.values()
            ],
        )
        self.conn.execute(
            "SELECT pg_logical_emit_message(true, %s, %s)",
            [RECORD_PREFIX, json.dumps(record, separators=(",", ":"))],
        )


@contextmanager
def begin_commit(conn: ControlConnection, purpose: str, lake_root: Path) -> Iterator[Commit]:
    """Open a commit on an idle autocommit connection; ROLLBACK on any exception.

    CommitOutcomeUnknownError (08006) when the connection ends while COMMIT is under way.
    """
    if not conn.autocommit or conn.info.transaction_status is not TransactionStatus.IDLE:
        raise WrongStateError("a commit needs an idle connection in autocommit mode")
    with ExitStack() as on_error:
        conn.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        on_error.callback(_roll_back, conn)
        row = conn.execute(
            "SELECT id::text, pg_current_xact_id()::text FROM penstock.node"
        ).fetchone()
        assert row is not None  # the schema's first step inserts it
        commit = Commit(conn, purpose, lake_root, node=row[0], xid=row[1])
        yield commit
        commit._write_record()
        try:
            conn.execute("COMMIT")
        except psycopg.OperationalError as error:
            if conn.closed:
                raise CommitOutcomeUnknownError(commit.xid) from error
            raise
        on_error.pop_all()
    if commit._position is not None:
        _move_origin(conn, commit._position)


def flush_wal(conn: ControlConnection) -> None:
    """Make durable what other sessions have written to the WAL so far, committed or not.

    A commit flushes all that is before it; ``conn`` is an idle connection in autocommit mode.
    """
    conn.execute("SELECT pg_logical_emit_message(true, %s, '{}')", [XID_PREFIX])


def _make_xid_durable(conn: ControlConnection) -> None:
    """Make the xid of the connection's transaction durable, though it has not committed."""
    if conn.info.server_version >= 170000:
        conn.execute("SELECT pg_logical_emit_message(false, %s, '{}', flush => true)", [XID_PREFIX])
        return
    conn.execute("SELECT pg_logical_emit_message(false, %s, '{}')", [XID_PREFIX])
    with ControlConnection.connect(
        conn.info.dsn, password=conn.info.password, autocommit=True
    ) as other:
        flush_wal(other)


def _roll_back(conn: ControlConnection) -> None:
    if conn.closed:
        return
    try:
        conn.execute("ROLLBACK")
    except psycopg.OperationalError:
        conn.close()  # the server rolls back what a lost connection had begun


def _move_origin(conn: ControlConnection, position: _Position) -> None:
    """Let the replication origin follow a position that is committed.

    Not flushed: after a crash the origin may be behind, never ahead.  An origin moves only with a
    transaction that has an xid.
    """
    with suppress(psycopg.OperationalError):  # the commit stands; the next use finds it closed
        with conn.transaction():
            conn.execute("SET LOCAL synchronous_commit = off")
            conn.execute(
                "SELECT pg_replication_origin_xact_setup(%s::pg_lsn, %s), pg_current_xact_id()",
                [position.lsn, position.time],
            )


def xact_status(conn: ControlConnection, xid: str) -> str | None:
    """``committed``, ``aborted`` or ``in progress``; None when the server has forgotten it.

    ``xid`` is the 64-bit form, as in ``Commit.xid``.
    """
    row = conn.execute("SELECT pg_xact_status(%s::xid8)", [xid]).fetchone()
    assert row is not None
    status: str | None = row[0]
    return status
