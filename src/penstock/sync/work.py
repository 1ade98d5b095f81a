# SPDX-License-Identifier: Apache-2.0
"""Which staged changes go into which table: pure, from segments and table states.

In:   staged segments in commit order, and the state of each table of the subscription.
Out:  per table the files to apply and the range of commits in them that counts.

The stream applies a transaction with commit LSN L to a table (``applied_from``) that is

    i, d    not: the copy will contain it, or the catch-up will bring it
    f       not: the catch-up brings everything from the copy's LSN on
    s       if L >= the state's LSN
    r       always

and in every state not if L lies before the stream's position, which is inside a segment after a
transaction was skipped (ALTER SUBSCRIPTION ... SKIP, pg_replication_origin_advance).

Catch-up of a table in state f with copy LSN C, when the stream is already at A: the changes with
C <= L < A.  Segments are kept until no table can need them any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.compiled import Ints
from penstock.control.catalog import SubscriptionRelation
from penstock.control.table_state import TableState, applied_from
from penstock.lsn import format_lsn
from penstock.pgoutput.decode import Transaction
from penstock.staging.segment import ChangeFile, Segment

QualifiedName = tuple[str, str]


@dataclass(frozen=True)
class TableWork:
    """The staged files of one published relation, and the commits in them that count."""

    name: QualifiedName
    files: tuple[ChangeFile, ...]
    from_lsn: int
    to_lsn: int


@dataclass(frozen=True)
class Batch:
    """Transactions to apply together: those of ``segments`` with from_lsn <= commit LSN <= to_lsn.

    It may begin and end inside a segment: a transaction was skipped, or stopped the one before.
    ``position`` is the end of the last of them, ``commit_time_us`` its commit time.
    """

    segments: tuple[Segment, ...]
    from_lsn: int
    to_lsn: int
    position: int
    commit_time_us: int

    def transactions(self) -> Ints:
        """The transactions, in commit order: array [n, 4], the fields of Transaction."""
        rows = np.concatenate([segment.transaction_rows() for segment in self.segments])
        inside = (rows[:, 0] >= self.from_lsn) & (rows[:, 0] <= self.to_lsn)
        chosen: Ints = rows[inside]
        return chosen

    def transaction(self, commit_lsn: int) -> Transaction:
        """The transaction with this commit LSN; KeyError when it is not one of them."""
        rows = self.transactions()
        found = rows[rows[:, 0] == commit_lsn]
        if not len(found):
            raise KeyError(format_lsn(commit_lsn))
        return Transaction(*map(int, found[0]))

    def before(self, commit_lsn: int) -> Batch | None:
        """Those that commit before this LSN; None when none does."""
        rows = self.transactions()
        rows = rows[rows[:, 0] < commit_lsn]
        if not len(rows):
            return None
        last = Transaction(*map(int, rows[-1]))
        segments = tuple(s for s in self.segments if s.first_commit_lsn <= last.commit_lsn)
        return Batch(segments, self.from_lsn, last.commit_lsn, last.end_lsn, last.commit_time_us)


def take(segments: Iterable[Segment], limit: int, applied: int = 0) -> Batch | None:
    """The next batch: one segment at least, together at most ``limit`` bytes; None without any.

    ``applied`` is the stream's position: what commits before it is done, or skipped.
    """
    taken: list[Segment] = []
    size = 0
    for segment in segments:
        if taken and size + segment.bytes > limit:
            break
        taken.append(segment)
        size += segment.bytes
    if not taken:
        return None
    last = taken[-1]
    return Batch(tuple(taken), applied, last.last_commit_lsn, last.end_lsn, last.commit_time_us)


def by_relation(segments: Sequence[Segment]) -> dict[QualifiedName, list[ChangeFile]]:
    """The files of each published relation, in commit order."""
    files: dict[QualifiedName, list[ChangeFile]] = {}
    for segment in segments:
        for file in segment.files:
            files.setdefault((file.relation.schema, file.relation.name), []).append(file)
    return files


def stream_work(
    batch: Batch, states: Mapping[QualifiedName, SubscriptionRelation]
) -> tuple[list[TableWork], list[TableWork]]:
    """What the stream applies now, and what there is of relations that the subscription lacks."""
    work: list[TableWork] = []
    unknown: list[TableWork] = []
    for name, files in by_relation(batch.segments).items():
        state = states.get(name)
        if state is None:
            unknown.append(TableWork(name, tuple(files), batch.from_lsn, batch.to_lsn))
            continue
        from_lsn = applied_from(state.state, state.lsn)
        if from_lsn is not None and from_lsn <= batch.to_lsn:
            first = max(from_lsn, batch.from_lsn)
            work.append(TableWork(name, tuple(files), first, batch.to_lsn))
    return work, unknown


def catch_up_work(
    segments: Sequence[Segment], table: SubscriptionRelation, applied: int
) -> tuple[TableWork, Batch] | None:
    """What a freshly copied table (state f) has missed while the stream went on to ``applied``.

    With it comes the batch that it is of.
    """
    copied = table.lsn or 0
    missed = [s for s in segments if s.first_commit_lsn < applied and s.last_commit_lsn >= copied]
    files = by_relation(missed).get((table.schema, table.name))
    if not files:
        return None
    last = missed[-1]
    to_lsn = min(last.last_commit_lsn, applied - 1)
    batch = Batch(tuple(missed), copied, to_lsn, applied, last.commit_time_us)
    return TableWork((table.schema, table.name), tuple(files), copied, to_lsn), batch


def trim_position(applied: int, states: Iterable[SubscriptionRelation], held: int | None) -> int:
    """Up to where segments may go: applied, and not needed by a copy that runs or just ended.

    ``held`` is the end of staging when the running copy began; its snapshot is later than that.
    """
    positions = [applied]
    positions.extend(table.lsn or 0 for table in states if table.state is TableState.FINISHEDCOPY)
    if held is not None:
        positions.append(held)
    return min(positions)
