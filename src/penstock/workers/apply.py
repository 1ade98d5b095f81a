# SPDX-License-Identifier: Apache-2.0
"""One apply batch: staged changes of several tables, one control transaction.

In:   the work per published relation (sync/work.py), and the position that it reaches.
Out:  new Delta versions, made true together by one COMMIT, with the origin's position.

Order, and what is durable:

    1  the tables' relations and rows in table_version are locked          nothing
    2  a head that an aborted writer left ahead is restored                a Delta version
    3  each table's changes become one or more Delta commits               heads ahead
    4  table_version, origin position and commit record; COMMIT            everything

A crash before 4 leaves heads ahead of table_version; the next writer restores them, and the same
segments are applied again, perhaps cut differently.

A partitioned target has no rows of its own: each leaf gets the whole work, and keeps what its
partition constraint accepts.  PostgreSQL requires the partition columns in the key, so a row that
moves between partitions changes its key: a delete for the old leaf, an insert for the new one.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from penstock.apply.batch import Commits, Generated, TableBatch, Takes
from penstock.apply.changes import Applied, apply_changes
from penstock.apply.conflicts import Policy
from penstock.apply.failing import (
    CHANGE_ERRORS,
    FailedChangeError,
    change_named,
    first_change,
    first_of,
)
from penstock.apply.fill import computed_columns
from penstock.apply.leaf import check_routed
from penstock.apply.values import values_from_text
from penstock.change.relation import LakeTable
from penstock.control.catalog import (
    Subscription,
    SubscriptionRelation,
    lake_table_by_name,
    leaf_partitions,
    origin_was_advanced,
)
from penstock.control.commits import Commit, begin_commit
from penstock.control.conflict_log import Conflicts, record_conflicts
from penstock.control.connect import ControlConnection
from penstock.control.table_state import TableState
from penstock.errors import FeatureNotSupportedError, PenstockError, RelationMismatchError
from penstock.failpoints import Failpoint, reach
from penstock.lake.session import GetSession, scratch_folder
from penstock.pgoutput.decode import Transaction
from penstock.sync.work import Batch, QualifiedName, TableWork
from penstock.workers.conflicts import log_conflicts
from penstock.workers.context import WorkerContext
from penstock.workers.defaults import Defaults, column_defaults, compute_defaults
from penstock.workers.definitions import follow_definitions
from penstock.workers.external import retried
from penstock.workers.generated import generated_columns
from penstock.workers.partitions import HASH, takes
from penstock.workers.privileges import acting_role, denied_changes
from penstock.workers.published import PublishedTables, known_tables
from penstock.workers.row_values import RowValues
from penstock.workers.schema_changes import follow_columns
from penstock.workers.sequences import Restarted, owned_sequences, restart_sequences
from penstock.workers.writing import lock_settled

CONCURRENT_TABLES = 4
"""Tables of one batch that are written at the same time; each needs a Spark session of its own."""


@dataclass(frozen=True)
class Target:
    """A table with rows of its own, and what goes into it (see TableBatch, apply_changes).

    ``published`` is the table itself, or the partitioned one that it is a leaf of.
    """

    relid: int
    work: TableWork
    takes: Takes | None
    siblings: tuple[int, ...]
    defaults: Mapping[str, pa.Scalar]
    origin: str | None
    published: LakeTable
    computed: pa.Table | None = None
    generated: Generated | None = None
    restarted: Restarted | None = None
    conflicts: Conflicts = field(default_factory=Conflicts)


class Applier:
    """Applies batches of one subscription, one at a time, on one control connection."""

    def __init__(
        self,
        context: WorkerContext,
        subscription: Subscription,
        connection: ControlConnection,
        values: RowValues,
        described: Callable[[], int],
    ) -> None:
        """``described`` counts the Relation messages, as Receiver has it."""
        self._values = values
        self._context = context
        self._subscription = subscription
        self._connection = connection
        self._root = context.settings.lake_path
        self._published = PublishedTables(context, subscription, connection, described)
        self._sessions: queue.SimpleQueue[GetSession] = queue.SimpleQueue()
        for _ in range(CONCURRENT_TABLES):
            self._sessions.put(context.spark.own_session())

    def apply(self, works: Sequence[TableWork], batch: Batch, skip_lsn: int) -> bool:
        """Apply a batch and move the origin to its end; all of it or nothing.

        A ``skip_lsn`` that is not 0 is cleared; whether it was.  FailedChangeError when a change
        cannot be applied.  TableStateError when another program's writes have stopped a table.
        """
        return retried(self._context, self._connection, lambda: self._apply(works, batch, skip_lsn))

    def _apply(self, works: Sequence[TableWork], batch: Batch, skip_lsn: int) -> bool:
        subid = self._subscription.oid
        cleared = False
        self._published.look()
        with begin_commit(self._connection, "apply", self._root) as commit:
            self._write(commit, works, batch)
            if skip_lsn:
                cleared = commit.clear_skip_lsn(subid, skip_lsn)
            origin = self._subscription.origin_name
            commit.set_origin(origin, batch.position, batch.commit_time_us)
            reach(Failpoint.APPLY_BEFORE_COMMIT)
        reach(Failpoint.APPLY_AFTER_COMMIT)
        return cleared

    def skip(self, transaction: Transaction) -> None:
        """Move the origin over a transaction that ALTER SUBSCRIPTION ... SKIP names."""
        with begin_commit(self._connection, "skip", self._root) as commit:
            commit.clear_skip_lsn(self._subscription.oid, transaction.commit_lsn)
            origin = self._subscription.origin_name
            commit.forget_sole_writer(origin)
            commit.set_origin(origin, transaction.end_lsn, transaction.commit_time_us)

    def begin(self) -> None:
        """Take note of what does not come: before the first batch of an attempt.

        A transaction that the origin was advanced over by hand may have deleted rows that the lake
        still has.
        """
        origin = self._subscription.origin_name
        if origin_was_advanced(self._connection, origin):
            with begin_commit(self._connection, "begin", self._root) as commit:
                commit.forget_sole_writer(origin)

    def catch_up(
        self, table: SubscriptionRelation, work: TableWork, batch: Batch, position: int
    ) -> None:
        """Bring a copied table to the stream's position: state s, the origin stays.

        FailedChangeError when a change cannot be applied.
        """
        catch_up = partial(self._catch_up, table, work, batch, position)
        retried(self._context, self._connection, catch_up)

    def _catch_up(
        self, table: SubscriptionRelation, work: TableWork, batch: Batch, position: int
    ) -> None:
        self._published.look()
        with begin_commit(self._connection, "catch up", self._root) as commit:
            self._write(commit, [work], batch)
            commit.set_relation_state(
                self._subscription.oid, table.relid, TableState.SYNCDONE, position
            )

    def set_state(self, table: SubscriptionRelation, state: TableState, lsn: int | None) -> None:
        """Move a table on without any change to it."""
        with begin_commit(self._connection, "state", self._root) as commit:
            commit.set_relation_state(self._subscription.oid, table.relid, state, lsn)

    def require_tables(self, works: Sequence[TableWork]) -> None:
        """PostgreSQL's error for published tables that are not here, as FailedChangeError.

        A table that exists, but that the subscription does not know yet, is left alone until
        ALTER SUBSCRIPTION ... REFRESH PUBLICATION.
        """
        for work in works:
            try:
                self._table(work.name)
            except RelationMismatchError as error:
                _raise_at_first(error, work)

    def _write(self, commit: Commit, works: Sequence[TableWork], batch: Batch) -> None:
        commits = Commits(self._subscription.oid, batch.transactions())
        targets = self._all_targets(commit, works)
        with self._session() as session:
            tables = lock_settled(session, commit, [target.relid for target in targets])
            tables = follow_definitions(session, commit, tables)
        self._restart_identity(targets)
        reach(Failpoint.APPLY_TABLES_LOCKED)
        with ThreadPoolExecutor(CONCURRENT_TABLES, "apply") as threads:
            results = threads.map(lambda t: self._apply_one(commit, t, tables, commits), targets)
            for target, applied in zip(targets, results, strict=True):
                if applied is not None:
                    _record(commit, tables[target.relid], applied, target.published)
        for target in targets:
            published = target.published
            record_conflicts(self._connection, self._subscription.oid, published, target.conflicts)
            log_conflicts(self._subscription.origin_name, published, target.conflicts)
        reach(Failpoint.APPLY_ALL_COMMITTED)

    def _restart_identity(self, targets: Sequence[Target]) -> None:
        """Of each published table that a TRUNCATE of the batch restarts."""
        restarted = {t.published.relid: t.restarted for t in targets if t.restarted is not None}
        for relid, sequences in sorted(restarted.items()):
            role = acting_role(self._connection, self._subscription, relid)
            restart_sequences(self._connection, sequences, role)

    def _all_targets(self, commit: Commit, works: Sequence[TableWork]) -> list[Target]:
        """What goes into which table, once the tables have the columns that are published."""
        targets: list[Target] = []
        known = known_tables(self._connection, self._subscription.oid)
        for work in works:
            try:
                table = self._table(work.name)
                added = follow_columns(
                    self._published,
                    self._subscription,
                    commit,
                    table,
                    work,
                    known.get(table.relid),
                )
                targets += self._targets(work, added)
            except CHANGE_ERRORS as error:
                _raise_at_first(error, work)
        return targets

    def _apply_one(
        self, commit: Commit, target: Target, tables: dict[int, LakeTable], commits: Commits
    ) -> Applied | None:
        table = tables[target.relid]
        siblings = tuple(tables[relid] for relid in target.siblings)
        batch = replace(
            _batch(target.work, target.computed),
            takes=target.takes,
            siblings=siblings,
            commits=commits,
            generated=target.generated,
        )
        with self._session() as session, change_named(batch, table, target.defaults):
            applied = apply_changes(
                session,
                table,
                batch,
                commit.metadata,
                target.origin,
                target.defaults,
                target.conflicts,
                Policy(self._subscription.on_conflict),
                self._context.settings.search_spread_rows,
            )
        reach(Failpoint.APPLY_TABLE_COMMITTED)
        return applied

    def _targets(self, work: TableWork, added: Mapping[str, str]) -> list[Target]:
        """``added``: columns that the table just got, with what rows sent before have there."""
        table = self._table(work.name)
        leaves: list[tuple[LakeTable, str | None]] = [(table, None)]
        if table.kind == "p":
            leaves = leaf_partitions(self._connection, table.relid, self._root)
        relids = tuple(leaf.relid for leaf, _ in leaves)
        self._require_privileges(work, table, relids)
        role = acting_role(self._connection, self._subscription, table.relid)
        found = column_defaults(self._connection, self._values, table, _always_sent(work), role)
        defaults = values_from_text({**found.constants, **added}, table)
        restarted = None
        if _batch(work).restarts:
            restarted = Restarted(owned_sequences(self._connection, table.relid))
        computed = self._computed(work, table, found, restarted)
        known = self._published.all_is_sent(table.relid, work.from_lsn) and _apart(work, table)
        origin = self._subscription.origin_name if known else None

        def target(leaf: LakeTable, taken: Takes | None, siblings: tuple[int, ...]) -> Target:
            generated = generated_columns(self._connection, self._values, leaf, role)
            filled = (defaults, origin, table, computed, generated, restarted)
            return Target(leaf.relid, work, taken, siblings, *filled)

        if table.kind == "r":
            return [target(table, None, ())]
        parts = [
            (leaf, None if only is None else self._takes(leaf, only, role, added))
            for leaf, only in leaves
        ]
        self._check_routed(table, _batch(work, computed), parts, defaults)
        return [target(leaf, taken, relids) for leaf, taken in parts]

    def _takes(
        self, leaf: LakeTable, constraint: str, role: str, added: Mapping[str, str]
    ) -> Takes:
        if added and HASH in constraint:  # it looks at the parent, which is locked by now
            raise FeatureNotSupportedError(
                f'cannot add column "{next(iter(added))}" to a table partitioned by hash while'
                " its rows are routed",
                hint="ALTER TABLE ... ADD COLUMN on the subscriber.",
            )
        return takes(self._connection, self._values, leaf, constraint, role)

    def _computed(
        self, work: TableWork, table: LakeTable, defaults: Defaults, restarted: Restarted | None
    ) -> pa.Table | None:
        """The columns that are not published and have a value of their own in each row.

        ``restarted`` is told where rows after a TRUNCATE have brought the sequences.
        """
        remote = Policy(self._subscription.on_conflict) is Policy.APPLY_REMOTE
        ops = "IU" if remote else "I"  # an update of a missing row becomes an insert
        changes = sum(f.inserts + f.updates * remote for f in work.files)
        if not defaults.varying or not changes:
            return None
        columns = [column for column in table.columns if column.name in defaults.varying]

        def compute(names: Collection[str], rows: int, after: bool) -> dict[str, pa.Array]:
            since = restarted if after else None
            return compute_defaults(self._values, defaults, names, rows, since)

        scratch = scratch_folder(self._context.settings)
        with change_named(_batch(work), table, {}):
            return computed_columns(_batch(work), columns, ops, compute, scratch)

    def _require_privileges(self, work: TableWork, table: LakeTable, relids: Sequence[int]) -> None:
        """FailedChangeError for the first change that the subscription may not do."""
        denied = denied_changes(self._connection, self._subscription, table.relid, relids)
        if denied:
            change = first_of(_batch(work), denied)
            if change is not None:
                raise FailedChangeError(denied[change.op], change) from None

    def _check_routed(
        self,
        table: LakeTable,
        batch: TableBatch,
        leaves: Sequence[tuple[LakeTable, Takes | None]],
        defaults: Mapping[str, pa.Scalar],
    ) -> None:
        """FailedChangeError when no leaf takes a row; one without a constraint takes all."""
        limited = [taken for _, taken in leaves if taken is not None]
        if len(limited) < len(leaves):
            return
        with change_named(batch, table, defaults):
            check_routed(table, batch, limited, defaults)

    @contextmanager
    def _session(self) -> Iterator[GetSession]:
        """One of the sessions, for one table at a time."""
        session = self._sessions.get()
        try:
            yield session
        finally:
            self._sessions.put(session)

    def _table(self, name: QualifiedName) -> LakeTable:
        table = lake_table_by_name(self._connection, *name, self._root)
        if table is None:
            raise RelationMismatchError(
                f'logical replication target relation "{name[0]}.{name[1]}" does not exist',
                hint="Create the table, then ALTER SUBSCRIPTION ... REFRESH PUBLICATION.",
            )
        return table


def _record(commit: Commit, table: LakeTable, applied: Applied, published: LakeTable) -> None:
    emptied = applied.kind == "truncate" and published.relid != table.relid
    roots = (published.relid,) if emptied else ()
    commit.moved(table, applied.version, applied.ranges, applied.kind, applied.sole_writer, roots)
    if applied.created:
        commit.set_columns(table)


def _always_sent(work: TableWork) -> set[str]:
    """The columns that every row of a work has."""
    return set.intersection(*({c.name for c in file.relation.columns} for file in work.files))


def _apart(work: TableWork, table: LakeTable) -> bool:
    """Whether the publisher's identity lets no two rows have the same key of the lake's table."""
    relations = [file.relation for file in work.files]
    return not table.key or all(
        each.identity in ("d", "i")
        and any(column.key for column in each.columns)
        and {column.name for column in each.columns if column.key} <= set(table.key)
        for each in relations
    )


def _batch(work: TableWork, computed: pa.Table | None = None) -> TableBatch:
    return TableBatch(work.files, work.from_lsn, work.to_lsn, computed=computed)


def _raise_at_first(error: PenstockError, work: TableWork) -> None:
    """Raise an error about a whole relation as one about its first change, if it has one here."""
    change = first_change(_batch(work))
    if change is not None:
        raise FailedChangeError(error, change) from error
