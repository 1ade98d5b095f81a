# SPDX-License-Identifier: Apache-2.0
"""Statements that write lake tables: PostgreSQL computes the rows, and the lake keeps them.

In:   a statement that the router found to write lake tables, in the client's own session; a COPY
      FROM STDIN takes the client's rows meanwhile.
Out:  PostgreSQL's own answer to it, and new Delta versions in the client's transaction.

The relation in the control database is empty.  If the statement has to see rows of lake tables,
they are put into their relations; then it is run there as it is, and what it has put in and taken
out is what is to be done to the lake.  Defaults, casts, sequences, generated columns, NOT NULL,
CHECK, partitions, WHERE, joins, ON CONFLICT, MERGE, RETURNING and the command tag are PostgreSQL's.

    1  the relations are locked, and their rows in table_version; the leaves' definitions are read
    2  SAVEPOINT, rows put in, the client's statement, the rows then read through a cursor, ROLLBACK
       TO SAVEPOINT: the relation is empty again, and sequences have advanced
    3  for each leaf with a change: the head is settled, keys of new rows are looked for unless all
       rows were there, files and deletion vectors written, one Delta commit  heads ahead
    4  table_version (without a sole writer), table_column, the commit record
    5  the client's COMMIT, or that of the implicit transaction               everything

TRUNCATE needs no savepoint: PostgreSQL's own empties what is empty, and starts sequences again.

A head that is ahead after an abort, or after a rollback to a savepoint, is restored by the next
writer, by the subtransaction's xid in the Delta commit (session_commit.py).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa

from penstock.change.relation import LakeTable
from penstock.control.address import ControlAddress
from penstock.control.commits import moved_table
from penstock.control.connect import connect
from penstock.control.guard import HIDE_PARAMETERS, Guard
from penstock.errors import FeatureNotSupportedError, PenstockError
from penstock.failpoints import Failpoint, reach
from penstock.frontdoor.actions import WriteLake
from penstock.frontdoor.backend import ControlBackend
from penstock.frontdoor.blocks import open_block, own_command
from penstock.frontdoor.exchange import Exchange
from penstock.frontdoor.session_commit import SessionCommit, call, status_from
from penstock.frontdoor.write_targets import CTID, Target, read_targets
from penstock.lake.placed import Placed, placed_rows, table_size
from penstock.lake.reading import Ints
from penstock.lake.session import Spark
from penstock.lake.writes import Change, DuplicateKeyError, Written, write_change
from penstock.names import quote_pg_qualified
from penstock.pgoutput.data_rows import read_rows
from penstock.wire.responses import ServerError
from penstock.wire.rows_text import text_column

log = logging.getLogger(__name__)

Execute = Callable[[], Awaitable[Exchange]]
"""Runs the client's statement on its connection, and keeps all that it answers."""

SAVEPOINT = "penstock_write"

FETCH_BYTES = 32 * 1024 * 1024
"""About so many bytes of rows are fetched together."""

FIRST_FETCH = 2000
"""Rows of the first fetch, before it is known how large they are."""

LOAD_ROWS = 200_000
LOAD_BYTES = 32 * 1024 * 1024
"""Rows, and bytes of data files, of all tables whose rows one statement has to see."""

VACUUM_ROWS = 10_000
"""Rolled back rows in a relation that do not wait for autovacuum: statements read past them."""

_READ_ONLY = "SELECT pg_catalog.current_setting('transaction_read_only')"
_STYLES = """
SELECT pg_catalog.set_config(name, value, true) FROM (VALUES
    ('DateStyle', 'ISO, MDY'), ('TimeZone', 'UTC'), ('IntervalStyle', 'postgres'),
    ('bytea_output', 'hex'), ('extra_float_digits', '1'),
    ('search_path', 'pg_catalog, pg_temp')) AS s (name, value)"""
"""Texts of values as the lake keeps them, a regclass with its schema; the rollback to the
savepoint takes it back."""
_ENCODING = "SELECT pg_catalog.set_config('client_encoding', $1, true)"
_MAY_READ = """
SELECT pg_catalog.bool_and(pg_catalog.has_column_privilege($1::oid, name, 'SELECT')),
    pg_catalog.string_agg(pg_catalog.quote_ident(name), ', ' ORDER BY place)
FROM pg_catalog.json_array_elements_text($2::json) WITH ORDINALITY AS c (name, place)"""


@dataclass(frozen=True)
class Loaded:
    """Rows of the lake that a relation has for a moment; ``ctids[i]`` is row i's."""

    placed: Placed
    ctids: Ints


class LakeWriter:
    """Carries out statements that write the lake; one serves all sessions of a node."""

    def __init__(
        self, spark: Spark, guard: Guard, control: ControlAddress, lake_root: Path
    ) -> None:
        self._spark = spark
        self._guard = guard
        self._control = control
        self._lake_root = lake_root
        self._vacuuming: set[asyncio.Task[None]] = set()

    async def run(self, backend: ControlBackend, write: WriteLake, execute: Execute) -> Exchange:
        """Carry out one statement; the answer to it, which may be told when this returns.

        The session is settled.  An error is the statement's.  FeatureNotSupportedError (0A000) for
        a table with constraints that the lake cannot keep; 23505 for a key that the lake has;
        ConcurrentWriteError (40001) when another program has just written the table.
        """
        backend.executed = True
        held, backend.hold_open = backend.hold_open, True
        try:
            return await self._run(backend, write, execute)
        finally:
            backend.hold_open = held

    async def _run(self, backend: ControlBackend, write: WriteLake, execute: Execute) -> Exchange:
        await open_block(backend)
        if await backend.query(_READ_ONLY) == [("on",)]:
            return await execute()  # PostgreSQL's error
        await call(backend, HIDE_PARAMETERS)
        if write.truncates:
            return await self._truncate(backend, write, execute)
        targets = await self._lock(backend, write)
        needed = [target for target in targets if target.part_of.intersection(write.needed)]
        await self._check_size(needed)
        await own_command(backend, f"SAVEPOINT {SAVEPOINT}")
        loaded = {target.table.relid: await self._load(backend, target) for target in needed}
        answer = await execute()
        await backend.query(_STYLES)
        written = [target for target in targets if target.part_of.intersection(write.relids)]
        changes = [
            (target, await self._change(backend, target, loaded.get(target.table.relid)))
            for target in written
        ]
        await own_command(backend, f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
        await own_command(backend, f"RELEASE SAVEPOINT {SAVEPOINT}")
        self._note_dead_rows(backend, changes, list(zip(needed, loaded.values(), strict=True)))
        await self._keep(backend, changes)
        return answer

    async def _truncate(
        self, backend: ControlBackend, write: WriteLake, execute: Execute
    ) -> Exchange:
        """TRUNCATE: PostgreSQL's own locks the relation, and starts sequences again."""
        answer = await execute()
        targets = await self._lock(backend, write)
        everything = [
            (target, Change({}, read_rows([], target.table.columns, ""), truncates=True))
            for target in targets
            if target.table.version is not None
        ]
        await self._keep(backend, everything)
        return answer

    async def _lock(self, backend: ControlBackend, write: WriteLake) -> list[Target]:
        try:
            relids = sorted({*write.relids, *write.needed})
            ((text,),) = await call(backend, self._guard.lock_for_write(relids))
        except ServerError as error:
            error.fields.pop("W", None)  # it would tell of our function
            raise
        targets = read_targets(json.loads(text or "[]"), self._lake_root)
        for target in targets:
            obstacle = target.obstacle
            changed = write.relids if write.truncates else write.needed
            if target.part_of.intersection(changed).intersection(write.relids):
                obstacle = obstacle or target.changes_obstacle
            if target.part_of.intersection(write.needed):
                obstacle = obstacle or target.loading_obstacle
            if obstacle is not None:
                raise FeatureNotSupportedError(
                    f'writing with lake table "{target.name}" is not supported yet',
                    detail=f"It has {obstacle}, which the lake does not check.",
                )
        return targets

    async def _check_size(self, needed: Sequence[Target]) -> None:
        """Refuse a statement that would have to see more rows than PostgreSQL is given."""
        tables = [target.table for target in needed]
        sizes = await asyncio.to_thread(lambda: [table_size(table) for table in tables])
        if sum(each.rows for each in sizes) > LOAD_ROWS or (
            sum(each.size for each in sizes) > LOAD_BYTES
        ):
            largest = max(zip(sizes, needed, strict=True), key=lambda each: each[0].size)
            raise FeatureNotSupportedError(
                "changing or reading so many rows of lake tables in one statement is not"
                " supported yet",
                detail=f'Table "{largest[1].name}" has {largest[0].rows} rows; the tables of such a'
                f" statement may have {LOAD_ROWS} rows in {LOAD_BYTES >> 20} MB of files.",
                hint="INSERT of new rows and COPY have no limit.",
            )

    async def _load(self, backend: ControlBackend, target: Target) -> Loaded:
        """Put the lake's rows into a relation."""
        placed = await asyncio.to_thread(placed_rows, target.table)
        if not placed.rows.num_rows:
            return Loaded(placed, np.zeros(0, np.int64))
        literals = await asyncio.to_thread(target.literals, placed.rows)
        call = self._guard.load_rows(target.loading, literals)
        try:
            blocks = await backend.binary_rows(call.sql, call.parameters)
        except ServerError as error:
            for internal in ("p", "q"):
                error.fields.pop(internal, None)
            error.fields["W"] = f'rows of lake table "{target.name}"'
            raise
        ctids = await asyncio.to_thread(read_rows, blocks, [CTID], target.name)
        return Loaded(placed, ctids.column(0).to_numpy())

    async def _change(
        self, backend: ControlBackend, target: Target, loaded: Loaded | None
    ) -> Change:
        """What the statement has done to a relation."""
        rows = await self._read(backend, target)
        ctids, rows = rows.column(0).to_numpy(), rows.select(range(1, rows.num_columns))
        if loaded is None:
            return Change({}, rows)
        gone = np.flatnonzero(~np.isin(loaded.ctids, ctids))
        new = np.flatnonzero(~np.isin(ctids, loaded.ctids))
        return Change(loaded.placed.by_path(gone), rows.take(pa.array(new)), checked=True)

    async def _read(self, backend: ControlBackend, target: Target) -> pa.Table:
        """The rows that a relation has, and before them their ctids."""
        encoding = backend.client_encoding
        await call(backend, self._guard.open_written_rows(target.selection))
        if encoding != "UTF8":
            await backend.query(_ENCODING, ["UTF8"])
        columns = (CTID, *target.table.columns)
        parts = [read_rows([], columns, target.name)]
        count = FIRST_FETCH
        while blocks := await backend.binary_rows(f"FETCH FORWARD {count} FROM penstock_written"):
            rows = await asyncio.to_thread(read_rows, blocks, columns, target.name)
            parts.append(rows)
            if rows.num_rows < count:
                break
            size = sum(map(len, blocks)) / rows.num_rows
            count = max(1, int(FETCH_BYTES / size))
        await backend.query("CLOSE penstock_written")
        if encoding != "UTF8":
            await backend.query(_ENCODING, [encoding])
        return pa.concat_tables(parts)

    async def _keep(
        self, backend: ControlBackend, changes: Sequence[tuple[Target, Change]]
    ) -> None:
        """Bring the changes into the lake, in the client's transaction."""
        moved = []
        commit = await SessionCommit.begin(backend, self._guard, self._control, "sql")
        for target, change in changes:
            if change:
                done = await self._write(backend, commit, target, change)
                ranges = [(done.first, done.version)]
                roots = target.part_of - {target.table.relid} if change.truncates else ()
                moved.append(moved_table(target.table, done.version, ranges, done.kind, roots))
        if moved:
            await commit.record(moved)
            reach(Failpoint.WRITE_BEFORE_COMMIT)

    async def _write(
        self, backend: ControlBackend, commit: SessionCommit, target: Target, change: Change
    ) -> Written:
        table = target.table
        metadata = await commit.metadata(table, sole_writer=None)
        try:
            done = await asyncio.to_thread(
                write_change,
                self._spark.own_session(),
                table,
                target.uniques,
                change,
                status_from(backend),
                metadata,
            )
        except DuplicateKeyError as error:
            raise await _unique_violation(backend, target, error) from None
        await commit.moved(table, done.version, sole_writer=None)
        if done.created:
            await call(backend, self._guard.set_table_columns(table.relid))
        return done

    def _note_dead_rows(
        self,
        backend: ControlBackend,
        changes: Sequence[tuple[Target, Change]],
        loaded: Sequence[tuple[Target, Loaded]],
    ) -> None:
        dead = [(target, change.rows.num_rows) for target, change in changes]
        dead += [(target, len(each.ctids)) for target, each in loaded]
        for target in {target for target, rows in dead if rows >= VACUUM_ROWS}:
            backend.endings.add(partial(self._vacuum, target.table))

    async def _vacuum(self, table: LakeTable, _committed: bool) -> None:
        """Take many rolled back rows out of a relation; nobody waits for it."""
        task = asyncio.create_task(asyncio.to_thread(self._vacuum_in_thread, table))
        self._vacuuming.add(task)
        task.add_done_callback(self._vacuuming.discard)

    def _vacuum_in_thread(self, table: LakeTable) -> None:
        name = quote_pg_qualified(table.schema, table.name)
        try:
            with connect(self._control, application_name="penstock vacuum") as conn:
                conn.execute(f"VACUUM {name}".encode())
        except (psycopg.Error, PenstockError) as error:  # autovacuum does it later
            log.info("relation %s is not vacuumed now: %s", name, error)


async def _unique_violation(
    backend: ControlBackend, target: Target, found: DuplicateKeyError
) -> PenstockError:
    """PostgreSQL's error (_bt_check_unique); who may not read the key is not shown it."""
    names, table = found.key.column_names, target.table
    fields = {
        "S": "ERROR",
        "V": "ERROR",
        "C": "23505",
        "M": f'duplicate key value violates unique constraint "{found.index.name}"',
    }
    ((may_read, columns),) = await backend.query(_MAY_READ, [str(table.relid), json.dumps(names)])
    if may_read == "t":
        zone = backend.parameters.get("TimeZone", "UTC")
        texts = [text_column(column.combine_chunks(), zone) for column in found.key.columns]
        values = [text.to_pylist()[0] for text in texts]
        shown = ", ".join("null" if value is None else value.decode() for value in values)
        fields["D"] = f"Key ({columns})=({shown}) already exists."
    return ServerError(fields | {"s": table.schema, "t": table.name, "n": found.index.name})
