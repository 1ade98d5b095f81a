# SPDX-License-Identifier: Apache-2.0
"""Statements that write lake tables: PostgreSQL computes the rows, and the lake keeps them.

In:   a statement that the router found to write lake tables, in the client's own session; a COPY
      FROM STDIN takes the client's rows meanwhile.
Out:  PostgreSQL's own answer to it, and new Delta versions in the client's transaction.

The relation in the control database is empty.  If the statement has to see rows of lake tables,
those that can count for it are put into their relations (loading.py); then it is run there as it
is, and what it has put in and taken out is what is to be done to the lake.  Defaults, casts,
sequences, generated columns, NOT NULL, CHECK, partitions, WHERE, joins, ON CONFLICT, MERGE,
RETURNING and the command tag are PostgreSQL's.

    1  the relations are locked, and their rows in table_version; the leaves' definitions are read
    2  SAVEPOINT, rows put in, the client's statement, the rows then read through a cursor, ROLLBACK
       TO SAVEPOINT: the relation is empty again, and sequences have advanced
    3  for each leaf with a change: the head is settled, keys of new rows are looked for unless all
       rows were there, files and deletion vectors written, one Delta commit  heads ahead
    4  table_version (without a sole writer), table_column, the commit record
    5  the client's COMMIT, or that of the implicit transaction               everything

A row that comes may have the key of one that was not put in.  That is an error, as that one stays;
but for ON CONFLICT it is put in too, and step 2 is done again, until no such row is left.

TRUNCATE needs no savepoint: PostgreSQL's own empties what is empty, and starts sequences again.

A head that is ahead after an abort, or after a rollback to a savepoint, is restored by the next
writer, by the subtransaction's xid in the Delta commit (../session_commit.py).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psycopg

from penstock.change.relation import LakeTable
from penstock.change.schema import CASCADE
from penstock.control.address import ControlAddress
from penstock.control.commits import moved_table
from penstock.control.connect import connect
from penstock.control.guard import HIDE_PARAMETERS, Guard
from penstock.errors import FeatureNotSupportedError, PenstockError
from penstock.failpoints import Failpoint, reach
from penstock.frontdoor.actions import Parameter, WriteLake
from penstock.frontdoor.backend import ControlBackend
from penstock.frontdoor.blocks import open_block, own_command
from penstock.frontdoor.exchange import Exchange
from penstock.frontdoor.reading.catalog import CatalogReader
from penstock.frontdoor.session_commit import SessionCommit, call, status_from
from penstock.frontdoor.writing.cursors import read_relation
from penstock.frontdoor.writing.deferred import check_foreign_keys, refuse_pending
from penstock.frontdoor.writing.foreign_keys import ForeignKeys
from penstock.frontdoor.writing.loading import FEW_ROWS, FEW_TABLES, NOTHING, Loader
from penstock.frontdoor.writing.narrowing import Narrowed, Narrowing
from penstock.frontdoor.writing.referential_actions import ReferentialActions
from penstock.frontdoor.writing.versions import rows_before
from penstock.frontdoor.writing.violations import unique_violation
from penstock.frontdoor.writing.write_targets import CTID, Locked, Target, read_locked
from penstock.lake.placed import Places, table_size
from penstock.lake.session import Spark
from penstock.lake.updates import Updates, ordered_updates
from penstock.lake.writes import (
    Change,
    DuplicateKeyError,
    Written,
    conflicting,
    write_change,
)
from penstock.names import quote_pg_qualified
from penstock.pgoutput.data_rows import read_rows
from penstock.wire.responses import ServerError

log = logging.getLogger(__name__)

Execute = Callable[[], Awaitable[Exchange]]
"""Runs the client's statement on its connection, and keeps all that it answers."""

Parameters = Callable[[], Awaitable[Sequence[Parameter]]]
"""Gives the parameters that the client has bound."""

SAVEPOINT = "penstock_write"

RUNS = 5
"""How often a statement with ON CONFLICT is run; twice is enough but for odd ones."""

VACUUM_ROWS = 10_000
"""Rolled back rows in a relation that do not wait for autovacuum: statements read past them."""

_TRUNCATED = """
SELECT relid FROM penstock.truncated_with(ARRAY(
    SELECT x::pg_catalog.oid FROM pg_catalog.json_array_elements_text($1::json) AS r (x))) AS relid
ORDER BY relid"""
_READ_ONLY = "SELECT pg_catalog.current_setting('transaction_read_only')"
_WITH_PAGES = """
SELECT oid::pg_catalog.text FROM pg_catalog.unnest($1::pg_catalog.oid[]) AS t (oid)
WHERE pg_catalog.pg_relation_size(oid) > 0"""
"""Relations that may have rows."""
_STYLES = """
SELECT pg_catalog.set_config(name, value, true) FROM (VALUES
    ('DateStyle', 'ISO, MDY'), ('TimeZone', 'UTC'), ('IntervalStyle', 'postgres'),
    ('bytea_output', 'hex'), ('extra_float_digits', '1'),
    ('search_path', 'pg_catalog, pg_temp')) AS s (name, value)"""
"""Texts of values as the lake keeps them, a regclass with its schema; the rollback to the
savepoint takes it back."""


class LakeWriter:
    """Carries out statements that write the lake; one serves all sessions of a node."""

    def __init__(
        self,
        spark: Spark,
        guard: Guard,
        control: ControlAddress,
        lake_root: Path,
        most_rows: int,
        scratch: Path,
    ) -> None:
        """``most_rows`` of lake tables may be put into relations for one statement.

        Rows that it has made wait in the folder ``scratch`` when they are many.
        """
        self._spark = spark
        self._guard = guard
        self._control = control
        self._lake_root = lake_root
        self._most_rows = most_rows
        self._scratch = scratch
        self._catalog = CatalogReader()
        self._vacuuming: set[asyncio.Task[None]] = set()

    async def run(
        self,
        backend: ControlBackend,
        write: WriteLake,
        execute: Execute,
        parameters: Parameters,
    ) -> Exchange:
        """Carry out one statement; the answer to it, which may be told when this returns.

        The session is settled.  An error is the statement's.  FeatureNotSupportedError (0A000) for
        a table with constraints that the lake cannot keep; 23505 for a key that the lake has;
        ConcurrentWriteError (40001) when another program has just written the table.
        """
        backend.executed = True
        held, backend.hold_open = backend.hold_open, True
        try:
            return await self._run(backend, write, execute, parameters)
        finally:
            backend.hold_open = held

    async def _run(
        self,
        backend: ControlBackend,
        write: WriteLake,
        execute: Execute,
        parameters: Parameters,
    ) -> Exchange:
        await open_block(backend)
        if await backend.query(_READ_ONLY) == [("on",)]:
            return await execute()  # PostgreSQL's error
        await call(backend, HIDE_PARAMETERS)
        if write.truncates:
            return await self._truncate(backend, write, execute)
        locked = await self._lock(backend, write)
        targets = locked.targets
        foreign = ForeignKeys(
            backend, self._guard, self._spark.own_session(), locked, self._lake_root
        )
        written = [target for target in targets if target.part_of.intersection(write.relids)]
        needed = [target for target in targets if target.part_of.intersection(write.needed)]
        scans = await self._scans(backend, write, needed, parameters)
        await own_command(backend, f"SAVEPOINT {SAVEPOINT}")
        loader = Loader(backend, self._guard, self._spark, self._most_rows)
        await loader.load(needed, scans)
        for _ in range(RUNS):
            await foreign.disable()
            answer = await execute()
            made = await self._made(backend, written, loader)
            more = await self._conflicting(written, made) if write.on_conflict else {}
            if not more:
                read = partial(self._change, backend, loader)
                await ReferentialActions(foreign, self._guard, loader, read).run(made)
            await own_command(backend, f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
            if not more and await foreign.lock_again():
                break
            await loader.load_again(more)
        else:
            raise _never_known(written[0]) if more else _changed_meanwhile()
        await own_command(backend, f"RELEASE SAVEPOINT {SAVEPOINT}")
        changes = [(foreign.tables[relid], change) for relid, change in made.items()]
        self._note_dead_rows(backend, changes, loader)
        await check_foreign_keys(foreign, self._guard, made)
        await self._keep(backend, changes)
        return answer

    async def _scans(
        self,
        backend: ControlBackend,
        write: WriteLake,
        needed: Sequence[Target],
        parameters: Parameters,
    ) -> Mapping[int, list[Narrowed]]:
        """What the statement's scans want, unless the tables are few and small."""
        sizes = await asyncio.to_thread(lambda: [table_size(each.table).rows for each in needed])
        if max(sizes, default=0) <= FEW_ROWS and len(needed) <= FEW_TABLES:
            return {}
        narrowing = Narrowing(self._catalog, backend, write, needed)
        return await narrowing.scans(await parameters())

    async def _made(
        self, backend: ControlBackend, written: Sequence[Target], loader: Loader
    ) -> dict[int, Change]:
        """What the statement has done to its tables."""
        await backend.query(_STYLES)
        oids = "{" + ",".join(str(target.table.relid) for target in written) + "}"
        touched = {int(oid or 0) for (oid,) in await backend.query(_WITH_PAGES, [oids])}
        made = {}
        for target in written:
            relid = target.table.relid
            if relid in touched:
                made[relid] = await self._change(backend, loader, target)
            else:
                made[relid] = Change({}, read_rows([], target.table.columns, target.name))
        return made

    async def _conflicting(
        self, written: Sequence[Target], made: Mapping[int, Change]
    ) -> dict[int, Places]:
        """Where the rows are that were not put in, and have a key of a row that comes."""
        found = {}
        for target in written:
            change = made[target.table.relid]
            if change.rows.num_rows and not change.checked:
                found[target.table.relid] = await asyncio.to_thread(
                    conflicting, self._spark.own_session(), target.table, target.uniques, change
                )
        return {relid: places for relid, places in found.items() if len(places)}

    async def _truncate(
        self, backend: ControlBackend, write: WriteLake, execute: Execute
    ) -> Exchange:
        """TRUNCATE: PostgreSQL's own locks the relation, and starts sequences again."""
        answer = await execute()
        if write.options & CASCADE:
            emptied = await backend.query(_TRUNCATED, [json.dumps(write.relids)])
            write = replace(write, relids=tuple(int(relid or 0) for (relid,) in emptied))
        await refuse_pending(backend, self._guard, write.relids)
        targets = (await self._lock(backend, write)).targets
        everything = [
            (target, Change({}, none, truncates=True, options=write.options))
            for target in targets
            for none in [read_rows([], target.table.columns, "")]
            if target.table.columns
        ]
        await self._keep(backend, everything)
        return answer

    async def _lock(self, backend: ControlBackend, write: WriteLake) -> Locked:
        try:
            relids = sorted({*write.relids, *write.needed})
            written = () if write.truncates else write.relids
            ((text,),) = await call(backend, self._guard.lock_for_write(relids, written))
        except ServerError as error:
            error.fields.pop("W", None)  # it would tell of our function
            raise
        locked = read_locked(json.loads(text or "{}"), self._lake_root)
        for target in locked.targets:
            if not (target.table.columns or write.truncates):  # Delta knows no rows without values
                raise FeatureNotSupportedError(
                    f'rows of lake table "{target.name}", which has no columns, are not supported'
                )
            obstacle = target.obstacle
            if target.part_of.intersection(write.needed):
                obstacle = obstacle or target.loading_obstacle
            if obstacle is not None:
                raise FeatureNotSupportedError(
                    f'writing with lake table "{target.name}" is not supported yet',
                    detail=f"It has {obstacle}, which the lake does not check.",
                )
        return locked

    async def _change(self, backend: ControlBackend, loader: Loader, target: Target) -> Change:
        """What the statement has done to a relation."""
        loaded = loader.loaded.get(target.table.relid, NOTHING)
        name, columns = target.name, target.table.columns
        chosen = np.zeros(0, np.int64)
        if len(loaded.places):
            old = target.old_rows(loaded.command, loaded.later)
            left = await read_relation(backend, self._guard, old, [CTID], name)
            chosen = np.flatnonzero(~np.isin(loaded.ctids, left.column(0).to_numpy()))
        named = len(chosen) > 0
        new = target.new_rows(loaded.command, loaded.later, named=named)
        wanted = [*columns, CTID] if named else columns
        rows = await read_relation(backend, self._guard, new, wanted, name, self._scratch)
        gone = loaded.places.only(chosen)
        updates = None
        if named:
            ctids, rows = rows.column(len(columns)).to_numpy(), rows.select(range(len(columns)))
            if len(ctids):
                of = await rows_before(backend, self._guard, target, loaded.ctids[chosen], ctids)
                rows, updates = await asyncio.to_thread(
                    ordered_updates, target.table, rows, Updates(gone, of)
                )
        return Change(gone.by_path(), rows, checked=loaded.whole, updates=updates)

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
            raise await unique_violation(backend, target, error) from None
        await commit.moved(table, done.version, sole_writer=None)
        if done.created:
            await call(backend, self._guard.set_table_columns(table.relid))
        return done

    def _note_dead_rows(
        self,
        backend: ControlBackend,
        changes: Sequence[tuple[Target, Change]],
        loader: Loader,
    ) -> None:
        dead = [(target, change.rows.num_rows) for target, change in changes]
        dead += [(target, len(each.ctids)) for target, each in loader.all_loaded]
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
                conn.execute(f"VACUUM (SKIP_LOCKED) {name}".encode())
        except (psycopg.Error, PenstockError) as error:  # autovacuum does it later
            log.info("relation %s is not vacuumed now: %s", name, error)


def _changed_meanwhile() -> PenstockError:
    """As heapam.c's; who runs the transaction again may have more luck."""
    return PenstockError(
        "could not serialize access due to concurrent update",
        detail=f"Tables that refer to its rows were written during {RUNS} runs of the statement.",
        sqlstate="40001",
    )


def _never_known(target: Target) -> FeatureNotSupportedError:
    return FeatureNotSupportedError(
        "ON CONFLICT with keys that are others at each evaluation is not supported",
        detail=f'The rows of lake table "{target.name}" that conflict were not found in {RUNS} runs'
        " of the statement.",
    )
