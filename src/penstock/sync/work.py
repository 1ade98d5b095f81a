# SPDX-License-Identifier: Apache-2.0
"""Which staged changes go into which table: pure, from segments and table states.

In:   staged segments in commit order, and the state of each table of the subscription.
Out:  per table the files to apply and the range of commits in them that counts.

The stream applies a transaction with commit LSN L to a table (``applied_from``) that is

    i, d    not: the copy will contain it, or the catch-up will bring it
    f       not: the catch-up brings everything from the copy's LSN on
    s       if L >= the state's LSN
    r       always

Catch-up of a table in state f with copy LSN C, when the stream is already at A: the changes with
C <= L that lie in segments up to A.  Segments are kept until no table can need them any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.control.catalog import SubscriptionRelation
from penstock.control.table_state import TableState, applied_from
from penstock.staging.segment import ChangeFile, Segment

QualifiedName = tuple[str, str]


@dataclass(frozen=True)
class TableWork:
    """The staged files of one published relation, and the commits in them that count."""

    name: QualifiedName
    files: tuple[ChangeFile, ...]
    from_lsn: int
    to_lsn: int


def take(segments: Iterable[Segment], limit: int) -> list[Segment]:
    """The next segments to apply together: at least one, together at most ``limit`` bytes."""
    taken: list[Segment] = []
    size = 0
    for segment in segments:
        if taken and size + segment.bytes > limit:
            break
        taken.append(segment)
        size += segment.bytes
    return taken


def by_relation(segments: Sequence[Segment]) -> dict[QualifiedName, list[ChangeFile]]:
    """The files of each published relation, in commit order."""
    files: dict[QualifiedName, list[ChangeFile]] = {}
    for segment in segments:
        for file in segment.files:
            files.setdefault((file.relation.schema, file.relation.name), []).append(file)
    return files


def stream_work(
    segments: Sequence[Segment], states: Mapping[QualifiedName, SubscriptionRelation]
) -> tuple[list[TableWork], list[QualifiedName]]:
    """What the stream applies now, and the relations in it that the subscription does not know."""
    to_lsn = segments[-1].last_commit_lsn
    work: list[TableWork] = []
    unknown: list[QualifiedName] = []
    for name, files in by_relation(segments).items():
        state = states.get(name)
        if state is None:
            unknown.append(name)
            continue
        from_lsn = applied_from(state.state, state.lsn)
        if from_lsn is not None and from_lsn <= to_lsn:
            work.append(TableWork(name, tuple(files), from_lsn, to_lsn))
    return work, unknown


def catch_up_work(
    segments: Sequence[Segment], table: SubscriptionRelation, applied: int
) -> TableWork | None:
    """What a freshly copied table (state f) has missed while the stream went on to ``applied``."""
    copied = table.lsn or 0
    missed = [s for s in segments if s.end_lsn <= applied and s.last_commit_lsn >= copied]
    files = by_relation(missed).get((table.schema, table.name))
    if not files:
        return None
    return TableWork((table.schema, table.name), tuple(files), copied, missed[-1].last_commit_lsn)


def trim_position(applied: int, states: Iterable[SubscriptionRelation], held: int | None) -> int:
    """Up to where segments may go: applied, and not needed by a copy that runs or just ended.

    ``held`` is the end of staging when the running copy began; its snapshot is later than that.
    """
    positions = [applied]
    positions.extend(table.lsn or 0 for table in states if table.state is TableState.FINISHEDCOPY)
    if held is not None:
        positions.append(held)
    return min(positions)
