# SPDX-License-Identifier: Apache-2.0
"""Which staged changes go into which table."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.change.relation import Column, Relation
from penstock.control.catalog import SubscriptionRelation
from penstock.control.table_state import TableState
from penstock.pgoutput.decode import Transaction
from penstock.staging.segment import ChangeFile, Segment, pack_transactions
from penstock.sync.work import (
    Batch,
    TableWork,
    catch_up_work,
    stream_work,
    take,
    trim_position,
)


def _file(table: str, number: int) -> ChangeFile:
    relation = Relation(7, "public", table, "d", (Column("id", 23, -1, True),))
    return ChangeFile(relation, f"{number}-{table}.parquet", 10, 1, 1, 0, 0, 0)


def _segment(first: int, last: int, end: int, *tables: str) -> Segment:
    """Transactions that commit at ``first`` and at ``last`` (one if they are the same)."""
    files = tuple(_file(table, first) for table in tables)
    commits = sorted({first, last})
    rows = [[lsn, end if lsn == last else lsn + 5, 10 * lsn, 1000 + lsn] for lsn in commits]
    packed = pack_transactions(np.array(rows, np.int64))
    size = 10 * len(files)
    return Segment(first, last, end, 10 * last, len(rows), size, files, packed)


def _batch(segments: list[Segment], applied: int = 0) -> Batch:
    batch = take(segments, 10**9, applied)
    assert batch is not None
    return batch


def _missed(segments: list[Segment], table: SubscriptionRelation, applied: int) -> TableWork | None:
    missed = catch_up_work(segments, table, applied)
    return None if missed is None else missed[0]


def _table(name: str, state: str, lsn: int | None) -> SubscriptionRelation:
    return SubscriptionRelation(1, "public", name, TableState(state), lsn)


SEGMENTS = [
    _segment(100, 110, 115, "a"),
    _segment(120, 120, 125, "a", "b"),
    _segment(130, 140, 145, "b"),
]


def test_batches_grow_up_to_the_limit_and_have_one_segment_at_least() -> None:
    """A segment larger than the limit is still taken; afterwards the limit holds."""
    for limit, taken in ((1, 1), (30, 2), (1000, 3)):
        batch = take(SEGMENTS, limit)
        assert batch is not None
        assert batch.segments == tuple(SEGMENTS[:taken])
        assert (batch.to_lsn, batch.position) == (
            SEGMENTS[taken - 1].last_commit_lsn,
            SEGMENTS[taken - 1].end_lsn,
        )
    assert take([], 1000) is None


def test_a_batch_begins_and_ends_at_any_transaction() -> None:
    """From the stream's position on; cut before a commit it ends where the one before ends."""
    batch = _batch(SEGMENTS, applied=105)
    assert batch.transactions()[:, 0].tolist() == [110, 120, 130, 140]
    assert batch.transaction(130) == Transaction(130, 135, 1300, 1130)
    cut = batch.before(140)
    assert cut == Batch(tuple(SEGMENTS), 105, 130, 135, 1300)
    assert batch.before(130) == Batch(tuple(SEGMENTS[:2]), 105, 120, 125, 1200)
    assert batch.before(110) is None, "what lies before the position is done"
    with pytest.raises(KeyError, match="0/64"):
        batch.transaction(100)
    work, _ = stream_work(cut, {("public", "b"): _table("b", "r", None)})
    assert [(w.from_lsn, w.to_lsn) for w in work] == [(105, 130)]


def test_ready_tables_take_everything_and_others_only_what_postgresql_would() -> None:
    """r takes all, s from its LSN on, i, d and f nothing; unknown relations are named."""
    states = {("public", "a"): _table("a", "r", None), ("public", "b"): _table("b", "s", 130)}
    work, unknown = stream_work(_batch(SEGMENTS), states)
    assert [(w.name[1], len(w.files), w.from_lsn, w.to_lsn) for w in work] == [
        ("a", 2, 0, 140),
        ("b", 2, 130, 140),
    ]
    assert unknown == []
    for state in "idf":
        work, unknown = stream_work(_batch(SEGMENTS[:1]), {("public", "a"): _table("a", state, 1)})
        assert (work, unknown) == ([], [])
    work, unknown = stream_work(_batch(SEGMENTS[:1]), {})
    assert (work, [w.name for w in unknown]) == ([], [("public", "a")])


def test_a_table_in_s_whose_lsn_lies_ahead_gets_nothing() -> None:
    """Changes before the state's LSN are in the table already."""
    work, _ = stream_work(_batch(SEGMENTS), {("public", "a"): _table("a", "s", 141)})
    assert work == []


def test_catch_up_brings_what_lies_between_the_copy_and_the_stream() -> None:
    """Only segments that the stream has applied, and of those the commits from the copy's LSN."""
    work = _missed(SEGMENTS, _table("b", "f", 118), 125)
    assert work is not None
    assert ([f.path for f in work.files], work.from_lsn, work.to_lsn) == (
        ["120-b.parquet"],
        118,
        120,
    )
    assert _missed(SEGMENTS, _table("b", "f", 126), 125) is None
    assert _missed(SEGMENTS, _table("c", "f", 0), 145) is None
    work = _missed(SEGMENTS, _table("b", "f", 118), 135)
    assert work is not None and work.to_lsn == 134, "the stream stands inside the last segment"


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
    caught_up = _missed(segments, _table("a", "f", copied), applied)
    rest = [segment for segment in segments if segment.end_lsn > applied]
    joined = max(copied, applied)
    works = [caught_up] if caught_up else []
    if rest:
        works += stream_work(_batch(rest), {("public", "a"): _table("a", "s", joined)})[0]
    arrived = [
        lsn
        for work in works
        for lsn in range(100, 145, 10)
        if work.from_lsn <= lsn <= work.to_lsn and any(f"{lsn}-" in f.path for f in work.files)
    ]
    assert sorted(arrived) == [lsn for lsn in range(100, 145, 10) if lsn >= copied]
