# SPDX-License-Identifier: Apache-2.0
"""Which staged changes go into which table."""

from __future__ import annotations

import pytest

from penstock.change.relation import Column, Relation
from penstock.control.catalog import SubscriptionRelation
from penstock.control.table_state import TableState
from penstock.staging.segment import ChangeFile, Segment
from penstock.sync.work import catch_up_work, stream_work, take, trim_position


def _file(table: str, number: int) -> ChangeFile:
    relation = Relation(7, "public", table, "d", (Column("id", 23, -1, True),))
    return ChangeFile(relation, f"{number}-{table}.parquet", 10, 1, 1, 0, 0, 0)


def _segment(first: int, last: int, end: int, *tables: str) -> Segment:
    files = tuple(_file(table, first) for table in tables)
    return Segment(first, last, end, 0, 1, 10 * len(files), files)


def _table(name: str, state: str, lsn: int | None) -> SubscriptionRelation:
    return SubscriptionRelation(1, "public", name, TableState(state), lsn)


SEGMENTS = [
    _segment(100, 110, 115, "a"),
    _segment(120, 120, 125, "a", "b"),
    _segment(130, 140, 145, "b"),
]


def test_batches_grow_up_to_the_limit_and_have_one_segment_at_least() -> None:
    """A segment larger than the limit is still taken; afterwards the limit holds."""
    assert take(SEGMENTS, 1) == SEGMENTS[:1]
    assert take(SEGMENTS, 30) == SEGMENTS[:2]
    assert take(SEGMENTS, 1000) == SEGMENTS
    assert take([], 1000) == []


def test_ready_tables_take_everything_and_others_only_what_postgresql_would() -> None:
    """r takes all, s from its LSN on, i, d and f nothing; unknown relations are named."""
    states = {("public", "a"): _table("a", "r", None), ("public", "b"): _table("b", "s", 130)}
    work, unknown = stream_work(SEGMENTS, states)
    assert [(w.name[1], len(w.files), w.from_lsn, w.to_lsn) for w in work] == [
        ("a", 2, 0, 140),
        ("b", 2, 130, 140),
    ]
    assert unknown == []
    for state in "idf":
        work, unknown = stream_work(SEGMENTS[:1], {("public", "a"): _table("a", state, 1)})
        assert (work, unknown) == ([], [])
    assert stream_work(SEGMENTS[:1], {}) == ([], [("public", "a")])


def test_a_table_in_s_whose_lsn_lies_ahead_gets_nothing() -> None:
    """Changes before the state's LSN are in the table already."""
    work, _ = stream_work(SEGMENTS, {("public", "a"): _table("a", "s", 141)})
    assert work == []


def test_catch_up_brings_what_lies_between_the_copy_and_the_stream() -> None:
    """Only segments that the stream has applied, and of those the commits from the copy's LSN."""
    work = catch_up_work(SEGMENTS, _table("b", "f", 118), 125)
    assert work is not None
    assert ([f.path for f in work.files], work.from_lsn, work.to_lsn) == (
        ["120-b.parquet"],
        118,
        120,
    )
    assert catch_up_work(SEGMENTS, _table("b", "f", 126), 125) is None
    assert catch_up_work(SEGMENTS, _table("c", "f", 0), 145) is None


def test_segments_stay_while_a_copy_may_need_them() -> None:
    """Applied, but not beyond a copied table's LSN or the position at which a copy began."""
    ready = [_table("a", "r", None)]
    assert trim_position(145, ready, None) == 145
    assert trim_position(145, [*ready, _table("b", "f", 118)], None) == 118
    assert trim_position(145, [*ready, _table("b", "d", None)], 115) == 115


@pytest.mark.parametrize("copied", range(100, 145, 5))
@pytest.mark.parametrize("applied", [105, 115, 125, 145])
def test_each_transaction_arrives_once(copied: int, applied: int) -> None:
    """Copy, catch-up and stream divide a table's transactions without gap or overlap."""
    segments = [_segment(lsn, lsn, lsn + 5, "a") for lsn in range(100, 145, 10)]
    caught_up = catch_up_work(segments, _table("a", "f", copied), applied)
    rest = [segment for segment in segments if segment.end_lsn > applied]
    joined = max(copied, applied)
    works = [caught_up] if caught_up else []
    works += stream_work(rest, {("public", "a"): _table("a", "s", joined)})[0] if rest else []
    arrived = [
        lsn
        for work in works
        for lsn in range(100, 145, 10)
        if work.from_lsn <= lsn <= work.to_lsn and any(f"{lsn}-" in f.path for f in work.files)
    ]
    assert sorted(arrived) == [lsn for lsn in range(100, 145, 10) if lsn >= copied]
