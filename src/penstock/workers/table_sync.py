# SPDX-License-Identifier: Apache-2.0
"""Table sync: the initial copy of the tables of a subscription that are in state i or d.

In:   tables of one subscription without their data.
Out:  each table's rows of one snapshot in its Delta table, committed, state f with the LSN C.

Order, and what is durable:

    1  state d, empty Delta tables; one control transaction    a crash from here on copies again
    2  a snapshot is exported at LSN C                         nothing
    3  ranges are read and written as Parquet, by Spark's
       executors or, when there is little, by the node         files that no Delta commit names
    4  per table: one Delta commit of all its files            a head ahead of table_version
    5  table_version and state f with C, one transaction       the copy: it will not run again

The stream is received, staged and applied to the other tables meanwhile; what it brought for
these tables since C is applied by the catch-up (workers/subscription.py).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import psycopg
import pyarrow as pa

from penstock.change.relation import LakeTable
from penstock.client.connection import publisher_conninfo
from penstock.client.copy import Leaf, TableCopy, copy_packs
from penstock.client.published import published_table
from penstock.client.snapshot import Snapshot, export_snapshot
from penstock.client.standing import standings
from penstock.control.catalog import (
    Subscription,
    SubscriptionRelation,
    lake_table,
    leaf_partitions,
)
from penstock.control.commits import Commit, begin_commit
from penstock.control.connect import ControlConnection, connect
from penstock.control.table_state import TableState
from penstock.errors import PenstockError, UniqueViolationError, ValueNotHeldError
from penstock.failpoints import Failpoint, reach
from penstock.lake.copy import Pack, Readers, TableCopied, run_copy
from penstock.lake.copy_node import NodeReader
from penstock.lake.copy_source import Ahead, Source
from penstock.lake.copy_spark import ExecutorReaders
from penstock.lake.files import WrittenFile
from penstock.lake.log import DataFile, data_files, physical_names
from penstock.lake.new_rows import key_twice, new_rows
from penstock.lake.tables import added, append_files, arrow_schema, create
from penstock.lsn import format_lsn
from penstock.threads import beside, meanwhile
from penstock.workers.context import WorkerContext
from penstock.workers.copy_fill import CopyFill
from penstock.workers.defaults import column_defaults
from penstock.workers.external import retried
from penstock.workers.generated import generated_columns
from penstock.workers.partitions import publisher_knows_leaves, takes
from penstock.workers.privileges import acting_role, check_copy
from penstock.workers.published import Known, keep
from penstock.workers.reporting import WorkerReport
from penstock.workers.row_values import RowValues
from penstock.workers.writing import lock_settled

log = logging.getLogger(__name__)

_EXPECTED = (PenstockError, psycopg.Error)
"""Errors that end a copy without being a defect: the publisher's, or the control database's."""


@contextmanager
def _told_at(lsn: int) -> Iterator[None]:
    """Say of a value that cannot be held in which snapshot it is."""
    try:
        yield
    except ValueNotHeldError as error:
        error.where = f"initial copy of the snapshot at {format_lsn(lsn)}"
        raise


class TableSyncStopped(PenstockError):
    """The subscription's worker was asked to stop while tables were copied."""

    sqlstate = "57P01"


class TableSync:
    """One run of the copy, on a thread of its own.

    ``held_position`` is the end of staging when it was made: C is not before that, so what is
    staged after it must stay until the copied tables have caught up.  ``moved`` is called when a
    table is in, and at the end.
    """

    def __init__(
        self,
        context: WorkerContext,
        subscription: Subscription,
        tables: Sequence[SubscriptionRelation],
        held_position: int,
        moved: Callable[[], None],
    ) -> None:
        self.held_position = held_position
        self._moved = moved
        self._context = context
        self._subscription = subscription
        self._tables = {table.relid: table for table in tables}
        self._session = context.spark.own_session()
        self._known: dict[int, Known] = {}
        self._fills: dict[int, CopyFill] = {}  # by table, where rows need one
        self._apart: set[int] = set()  # tables whose key the publisher has, too
        self._rows: Counter[int] = Counter()
        self._estimates: dict[int, int | None] = {}
        self._stopping = threading.Event()
        self._done: Future[None] = Future()
        self._pid = os.getpid()

    @property
    def running(self) -> bool:
        """Whether the copy still runs."""
        return not self._done.done()

    @property
    def relids(self) -> list[int]:
        """The tables that are not in."""
        return list(self._tables)

    def start(self) -> None:
        """Begin to copy."""
        self._done = beside(self._run, f"table sync {self._subscription.oid}", _EXPECTED)
        self._done.add_done_callback(lambda _: self._moved())

    def stop(self) -> None:
        """Cancel the copy; tables that are not in stay in state d."""
        self._stopping.set()
        wait([self._done])

    def raise_error(self) -> None:
        """Raise what ended the copy before its end, if something did; it does not run any more."""
        self._done.result()

    def reports(self) -> list[WorkerReport]:
        """A row for each table that is not in yet."""
        return [
            WorkerReport(
                subid=self._subscription.oid,
                worker_type="table synchronization",
                pid=self._pid,
                relid=relid,
                rows_copied=self._rows[relid],
                rows_total=self._estimates.get(relid),
            )
            for relid in list(self._tables)
        ]

    def _run(self) -> None:
        self._pid = threading.get_native_id()
        with connect(self._context.control, application_name="penstock table sync") as conn:
            self._copy(conn)

    def _copy(self, conn: ControlConnection) -> None:
        subscription, context = self._subscription, self._context
        name = f"{subscription.name} table sync"
        conninfo = publisher_conninfo(
            subscription.conninfo,
            replication=False,
            application_name=name,
            default_user=context.publisher_user,
        )
        begin = partial(retried, context, conn, lambda: self._begin(conn))
        # Meanwhile connections to the publisher are made.
        with (
            closing(Ahead(conninfo)) as ahead,
            closing(RowValues(context.control)) as values,
            meanwhile(begin, "begin copy", _EXPECTED) as begun,
        ):
            with export_snapshot(
                subscription.conninfo,
                stopping=self._stopping,
                application_name=name,
                default_user=context.publisher_user,
                password_required=subscription.password_required,
                prepared=begun.result,
            ) as snapshot:
                packs = self._packs(conn, values, snapshot)
                last_change = (subscription.oid, time.time_ns() // 1000)
                source = Source(conninfo, snapshot.name, last_change)
                self._run_copy(conn, packs, snapshot.lsn, self._readers(packs, source, ahead))

    def _packs(self, conn: ControlConnection, values: RowValues, snapshot: Snapshot) -> list[Pack]:
        self._known = self._published(snapshot)
        settings = self._context.settings
        return copy_packs(
            [self._table_copy(conn, values, snapshot, table) for table in self._tables.values()],
            settings.max_sync_workers_per_subscription,
            settings.copy_spread_bytes,
        )

    def _readers(self, packs: Sequence[Pack], source: Source, ahead: Ahead) -> Readers:
        settings = self._context.settings
        if sum(each.estimate for each in chain.from_iterable(packs)) <= settings.copy_spread_bytes:
            return NodeReader(source, ahead)
        ahead.close()
        concurrency = settings.max_sync_workers_per_subscription
        return ExecutorReaders(self._session(), source, concurrency)

    def _run_copy(
        self, conn: ControlConnection, packs: Sequence[Pack], lsn: int, readers: Readers
    ) -> None:
        begun = time.monotonic()
        copied = run_copy(readers, packs, self._progress, self._stopping)
        with _told_at(lsn), closing(copied):
            for table in copied:
                if table.target.relid in self._fills:
                    self._fills[table.target.relid].complete(table, self._stopping)
                commit = partial(self._commit, conn, table, lsn, time.monotonic() - begun)
                retried(self._context, conn, commit)
                self._moved()

    def _published(self, snapshot: Snapshot) -> dict[int, Known]:
        """What the catalogs say of the tables in the snapshot."""
        names = {relid: (table.schema, table.name) for relid, table in self._tables.items()}
        found = standings(
            snapshot.connection, self._subscription.publications, list(names.values())
        )
        return {
            relid: Known(found[name], snapshot.lsn, frozenset())
            for relid, name in names.items()
            if name in found
        }

    def _begin(self, conn: ControlConnection) -> None:
        """State d, and a Delta table for each target that has none."""
        root = self._context.settings.lake_path
        with begin_commit(conn, "copy", root) as commit:
            for relid in self._tables:
                check_copy(conn, self._subscription, relid)
            for table in self._tables.values():
                commit.set_relation_state(self._subscription.oid, table.relid, TableState.DATASYNC)
                for leaf in _leaf_relids(conn, table.relid, commit):
                    target = lock_settled(self._session, commit, [leaf])[leaf]
                    if target.version is None:
                        version = create(self._session, target, commit.metadata)
                        origin = self._subscription.origin_name
                        commit.moved(target, version, [(version, version)], "create", origin)
                        commit.set_columns(target)

    def _table_copy(
        self,
        conn: ControlConnection,
        values: RowValues,
        snapshot: Snapshot,
        table: SubscriptionRelation,
    ) -> TableCopy:
        root = self._context.settings.lake_path
        published = published_table(
            snapshot.connection, self._subscription.publications, table.schema, table.name
        )
        self._estimates[table.relid] = published.estimated_rows
        lake = lake_table(conn, table.relid, root)
        parts = [(lake, None)] if lake.kind == "r" else leaf_partitions(conn, table.relid, root)
        leaves = [
            Leaf(leaf, only, physical_names(leaf.location, leaf.version)) for leaf, only in parts
        ]
        names = [column.name for column in published.relation.columns]
        if table.relid in self._known:
            known = self._known[table.relid]
            self._known[table.relid] = replace(known, columns=frozenset(names))
        if published.keeps_apart(lake.key):
            self._apart.add(table.relid)
        role = acting_role(conn, self._subscription, lake.relid)
        defaults = column_defaults(conn, values, lake, names, role)
        constraints = [only for _, only in parts]
        routed = lake.kind == "p" and publisher_knows_leaves(conn, lake, constraints, names)
        fill = CopyFill(
            values,
            defaults,
            {leaf.table.relid: leaf.table for leaf in leaves},
            {leaf.table.relid: leaf.physical for leaf in leaves},
            {
                leaf.table.relid: generated_columns(conn, values, leaf.table, role)
                for leaf in leaves
            },
            {
                leaf.relid: takes(conn, values, leaf, only, role)
                for leaf, only in (parts if lake.kind == "p" and not routed else [])
            },
        )
        if fill.needed(frozenset(names)):
            self._fills[table.relid] = fill
        clamp = self._subscription.mapping.clamps
        return TableCopy(published, lake, tuple(leaves), defaults.constants, clamp, routed)

    def _progress(self, relid: int, rows: int) -> None:
        self._rows[relid] += rows
        if self._stopping.is_set():
            raise TableSyncStopped("the copy was stopped")

    def _commit(
        self, conn: ControlConnection, copied: TableCopied, lsn: int, seconds: float
    ) -> None:
        """Make one table's copy true."""
        relid = copied.target.relid
        with begin_commit(conn, "copy", self._context.settings.lake_path) as commit:
            tables = lock_settled(self._session, commit, [relid, *copied.files])
            self._check_keys(tables, copied)
            for leaf, files in copied.files.items():
                table = tables[leaf]
                version = append_files(table, files, commit.metadata)
                commit.moved(table, version, [(version, version)], "copy", table.sole_writer)
            reach(Failpoint.COPY_DELTA_COMMITTED)
            commit.set_relation_state(self._subscription.oid, relid, TableState.FINISHEDCOPY, lsn)
            if relid in self._known:
                keep(conn, self._subscription.oid, relid, self._known[relid])
            conn.execute(
                "INSERT INTO penstock.subscription_table (subid, relid, rows_copied, copy_seconds)"
                " VALUES (%s, %s, %s, %s) ON CONFLICT (subid, relid) DO UPDATE SET"
                " (rows_copied, copy_seconds) = (excluded.rows_copied, excluded.copy_seconds)",
                [self._subscription.oid, relid, copied.rows, seconds],
            )
        reach(Failpoint.COPY_TABLE_FINISHED)
        done = self._tables.pop(relid)
        log.info(
            'table "%s.%s": %d rows copied in %.1f s at %s',
            done.schema,
            done.name,
            copied.rows,
            seconds,
            format_lsn(lsn),
        )

    def _check_keys(self, tables: dict[int, LakeTable], copied: TableCopied) -> None:
        """PostgreSQL's error for a copied row whose key another row of the table has.

        The copy's files are removed then: the next attempt writes them again.
        """
        apart = copied.target.relid in self._apart
        for leaf, files in copied.files.items():
            twice = self._key_twice(tables[leaf], files, apart)
            if twice is not None:
                for each, its in copied.files.items():
                    for file in its:
                        Path(tables[each].location, file.path).unlink()
                table = tables[leaf]
                raise UniqueViolationError(
                    f'duplicate key value violates unique constraint "{table.key_index}"',
                    detail=f"{twice} already exists.",
                    where=f"COPY {table.name}",
                )

    def _key_twice(self, table: LakeTable, files: Sequence[WrittenFile], apart: bool) -> str | None:
        """``apart``: no two of the copied rows have the same key."""
        assert table.version is not None  # made when the copy began
        before = data_files(table.location, table.version)
        if not table.key or (apart and not before):
            return None
        adds = [added(file)["add"] for file in files]
        after = before | {add["path"]: DataFile(add) for add in adds}
        schema = pa.schema([arrow_schema(table).field(name) for name in table.key])
        copied = pa.concat_tables([schema.empty_table(), *new_rows(table, before, after, schema)])
        return key_twice(self._session, table, copied, after.values())


def _leaf_relids(conn: ControlConnection, relid: int, commit: Commit) -> list[int]:
    """The tables with rows that stand for a lake table: itself, or its leaf partitions."""
    table = lake_table(conn, relid, commit.lake_root)
    if table.kind == "r":
        return [relid]
    return [leaf.relid for leaf, _ in leaf_partitions(conn, relid, commit.lake_root)]
