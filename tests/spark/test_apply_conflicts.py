# SPDX-License-Identifier: Apache-2.0
"""Policies for conflicts: the table must be as if the changes had been judged one at a time."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from penstock.apply.batch import Commits, TableBatch
from penstock.apply.changes import apply_changes
from penstock.apply.conflicts import Policy
from penstock.change.last_change import LAST_CHANGE
from penstock.change.relation import LakeTable
from penstock.control.conflict_log import LOGGED, Conflicts
from penstock.errors import FeatureNotSupportedError, UnresolvedConflictError
from penstock.lake import tables
from penstock.lake.compact import rewrite, swap
from penstock.lake.files import write_file
from penstock.lake.find import find_rows, take_rows
from penstock.lake.log import actions_of, data_files, head_version
from penstock.lake.tables import added, arrow_schema, commit_actions, read
from tests.support.changes import Change, Row, Shape, at, delete, insert, staged, update

METADATA = '{"penstock": "node", "xid": "7", "purpose": "apply"}'
OURS, OTHER = 1, 2
"""Two subscriptions that write one table."""


class Shared:
    """A table that two subscriptions write; ``now`` is the time of the next transaction."""

    def __init__(self, spark: SparkSession, folder: Path, shape: Shape | None = None) -> None:
        self.spark = spark
        self.shape = shape or Shape()
        self.table = self.shape.target(folder / "t")
        self.now = 1_000_000
        self._staging = folder / "staging"

    def apply(
        self,
        changes: list[Change],
        policy: Policy = Policy.ERROR,
        subid: int = OURS,
        times: list[int] | None = None,
        publisher: Shape | None = None,
        **parts: Any,
    ) -> Conflicts:
        """Apply changes, each a transaction of its own; the conflicts that they met."""
        times = times or list(range(self.now, self.now + len(changes)))
        self.now = max(self.now, *times) + 1
        lsns = range(1000, 1000 + len(changes))
        rows = [[lsn, lsn + 1, time, lsn - 900] for lsn, time in zip(lsns, times, strict=True)]
        batch = TableBatch(
            [staged(self._staging, (publisher or self.shape).relation(), changes)],
            0,
            2**62,
            commits=Commits(subid, np.array(rows)),
            **parts,
        )
        met = Conflicts()
        applied = apply_changes(
            lambda: self.spark, self.table, batch, METADATA, None, None, met, policy
        )
        if applied is not None:
            self.table = at(self.table, applied.version, applied.sole_writer)
        return met

    def rows(self) -> list[Row]:
        """The table's rows, by key."""
        rows: list[Row] = read(self.spark, self.table).toArrow().to_pylist()
        return sorted(rows, key=lambda row: row["id"])

    def last_change(self, key: int) -> tuple[int | None, int | None]:
        """Which subscription changed the row with this key last, and when."""
        hits = find_rows(self.table, pa.table({"id": pa.array([key])}))
        [found] = take_rows(self.table, hits, LAST_CHANGE).to_pylist()
        return tuple(found.values())

    def rewritten_by_another_program(self, *rows: Row) -> None:
        """Add a file as OPTIMIZE of a Spark job does: without who changed the rows, and when."""
        file = write_file(
            pa.Table.from_pylist(list(rows), schema=arrow_schema(self.table)), self.table.location
        )
        actions = [added(file, data_change=False)]
        version = commit_actions(self.table, actions, "OPTIMIZE", METADATA)
        self.table = at(self.table, version, None)


@pytest.fixture
def shared(spark_worker: SparkSession, tmp_path: Path) -> Shared:
    """An empty table with key id."""
    return Shared(spark_worker, tmp_path)


def row(key: int, v: int | None = 0, big: str | None = None) -> Row:
    """A row of the table."""
    return {"id": key, "v": v, "big": big}


@dataclass
class Held:
    """A row of the model: who wrote it, and when."""

    row: Row
    subid: int
    time: int


@dataclass
class Judge:
    """The rules of docs/architecture.md, on a dict of rows, one change at a time."""

    policy: Policy
    rows: dict[int, Held]
    counts: dict[str, int] = field(default_factory=dict)

    def apply(self, change: Change, time: int) -> None:
        """Apply a change of subscription OURS."""
        new = dict(change.new or {})
        key = (change.old or new)["id"]
        if change.op != "I":
            held = self.rows.get(key)
            kind = "update" if change.op == "U" else "delete"
            if held is None:
                self._count(f"{kind}_missing")
                whole = not change.unchanged
                if change.op == "D" or self.policy is not Policy.APPLY_REMOTE or not whole:
                    return
                change = Change("I", None, new)
            else:
                if held.subid != OURS:
                    self._count(f"{kind}_origin_differs")
                    if not self._wins(held, time):
                        return
                if change.op == "D":
                    del self.rows[key]
                    return
                new = held.row | new
        existing = self.rows.get(new["id"])
        if existing is not None and (change.op == "I" or key != new["id"]):
            self._count("insert_exists" if change.op == "I" else "update_exists")
            if not self._wins(existing, time):
                return
        if change.op == "U":
            del self.rows[key]
        self.rows[new["id"]] = Held(new, OURS, time)

    def _wins(self, held: Held, time: int) -> bool:
        if self.policy is Policy.LAST_UPDATE_WINS:
            return time >= held.time
        return self.policy is Policy.APPLY_REMOTE

    def _count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1


def any_change(chance: random.Random, keys: int) -> Change:
    """A change that need not fit what the table has."""
    key, v = chance.randrange(keys), chance.randrange(10**6)
    kind = chance.random()
    if kind < 0.35:
        return insert(id=key, v=v, big=chance.choice([None, "b"]))
    if kind < 0.75:
        target = key if kind < 0.55 else chance.randrange(keys)
        old = None if target == key else {"id": key}
        if chance.random() < 0.3:
            return update({"id": target, "v": v}, old, ("big",))
        return update(row(target, v, "u"), old)
    return delete(id=key)


@pytest.mark.parametrize(
    "policy", [Policy.APPLY_REMOTE, Policy.KEEP_LOCAL, Policy.LAST_UPDATE_WINS]
)
def test_histories(shared: Shared, policy: Policy) -> None:
    """Any changes, two batches: rows, who wrote them, and the number of each kind of conflict."""
    chance = random.Random(f"{policy}")
    ours = [insert(**row(key, 1)) for key in range(0, 60, 3)]
    theirs = [insert(**row(key, 2, "t")) for key in range(1, 60, 3)]
    times = [chance.randrange(100, 200) for _ in range(40)]
    shared.apply(ours, times=times[:20])
    shared.apply(theirs, subid=OTHER, times=times[20:])
    held = {
        change.new["id"]: Held(change.new, OURS if change in ours else OTHER, time)
        for change, time in zip(ours + theirs, times, strict=True)
        if change.new is not None
    }
    judge = Judge(policy, held)
    counts: dict[str, int] = {}
    for start in (130, 160):
        changes = [any_change(chance, 60) for _ in range(150)]
        moments = sorted(chance.randrange(start, start + 30) for _ in changes)
        met = shared.apply(changes, policy, times=moments)
        for change, time in zip(changes, moments, strict=True):
            judge.apply(change, time)
        for (kind, _), count in met.counts.items():
            counts[kind] = counts.get(kind, 0) + count
        assert shared.rows() == [judge.rows[key].row for key in sorted(judge.rows)]
        for key, each in judge.rows.items():
            assert shared.last_change(key) == (each.subid, each.time)
    assert counts == judge.counts
    assert len(counts) == 6, "the history has every kind of conflict"


def test_compaction_keeps_who_changed_a_row(shared: Shared) -> None:
    """A file made of files of two writers still tells whose its rows are; a strange one does not.

    So the last update wins after compaction as before; where nothing is known it is refused.
    """
    shared.apply([insert(**row(1, 1))], times=[100])
    shared.apply([insert(**row(2, 2))], subid=OTHER, times=[200])
    shared.rewritten_by_another_program(row(3, 3))
    made = rewrite(shared.table, list(data_files(*place(shared)).values()))
    version = swap(shared.table, made, METADATA)
    assert version is not None
    shared.table = at(shared.table, version, None)
    assert len(data_files(*place(shared))) == 1
    assert [shared.last_change(key) for key in (1, 2, 3)] == [(1, 100), (2, 200), (None, None)]
    met = shared.apply(
        [update(row(2, 20)), insert(**row(1, 10))], Policy.LAST_UPDATE_WINS, times=[150, 150]
    )
    assert met.counts == {
        ("update_origin_differs", "keep_local"): 1,
        ("insert_exists", "apply_remote"): 1,
    }
    assert shared.rows() == [row(1, 10), row(2, 2), row(3, 3)]
    changes = [update(row(1, 11)), update(row(3, 30)), delete(id=3)]
    with pytest.raises(UnresolvedConflictError, match="not known when a row") as caught:
        shared.apply(changes, Policy.LAST_UPDATE_WINS)
    assert (caught.value.sqlstate, caught.value.position) == ("0A000", 1)
    assert shared.rows() == [row(1, 10), row(2, 2), row(3, 3)]
    met = shared.apply(changes, Policy.KEEP_LOCAL)
    assert shared.rows() == [row(1, 11), row(2, 2), row(3, 3)]
    met = shared.apply(changes, Policy.APPLY_REMOTE)
    assert met.counts == {
        ("update_origin_differs", "apply_remote"): 1,
    }
    assert shared.rows() == [row(1, 11), row(2, 2)]


def place(shared: Shared) -> tuple[str, int]:
    """The table's folder and version."""
    assert shared.table.version is not None
    return shared.table.location, shared.table.version


def test_the_last_update_of_another_program(shared: Shared) -> None:
    """Spark's INSERT and UPDATE are as old as their commit, after compaction too.

    OPTIMIZE rewrites rows that it does not change: from then on nothing is known of those that had
    no time of their own.
    """
    path = f"delta.`{shared.table.location}`"

    def spark(sql: str) -> int:
        """Run a statement of another program; the time of its commit."""
        shared.spark.sql(sql)
        head = head_version(shared.table.location)
        shared.table = at(shared.table, head, None)
        assert head is not None
        actions = list(actions_of(shared.table.location, head))
        [info] = [action["commitInfo"] for action in actions if "commitInfo" in action]
        return int(info["timestamp"]) * 1000

    shared.apply([insert(**row(key)) for key in range(1, 9)], times=[100] * 8)
    inserted = spark(f"INSERT INTO {path} VALUES (20, 1, 'spark'), (21, 1, 'spark')")
    updated = spark(f"UPDATE {path} SET v = 5 WHERE id IN (1, 21)")
    assert inserted < updated
    changes = [update(row(20, 7)), update(row(1, 7)), update(row(21, 8)), update(row(2, 9))]
    times = [inserted - 1, updated - 1, updated, 200]

    def judged() -> list[tuple[str, int | None, bool]]:
        before = shared.table
        met = shared.apply(changes, Policy.LAST_UPDATE_WINS, times=times)
        shared.table = at(shared.table, restore(before, shared), None)
        return [(each.resolution, each.local_time_us, each.key["id"] == "21") for each in met.shown]

    expected = [
        ("keep_local", inserted, False),
        ("keep_local", updated, False),
        ("apply_remote", updated, True),
    ]
    assert judged() == expected
    made = rewrite(shared.table, list(data_files(*place(shared)).values()))
    version = swap(shared.table, made, METADATA)
    assert version is not None
    shared.table = at(shared.table, version, None)
    assert judged() == expected
    assert shared.last_change(2) == (OURS, 100)
    spark(f"OPTIMIZE {path} ZORDER BY (v)")
    with pytest.raises(UnresolvedConflictError):
        shared.apply(changes, Policy.LAST_UPDATE_WINS, times=times)


def restore(before: LakeTable, shared: Shared) -> int:
    """Bring the table back to an older version; the new one."""
    assert before.version is not None
    return tables.restore(lambda: shared.spark, before.location, before.version, METADATA)


def test_conflicts_are_shown_with_both_rows(shared: Shared) -> None:
    """Of each conflict: key, both rows as texts, who changed the local one; bounded in number."""
    shared.apply([insert(**row(1, 1, "here"))], subid=OTHER, times=[100])
    met = shared.apply(
        [update({"id": 1, "v": None}, None, ("big",)), delete(id=5)],
        Policy.KEEP_LOCAL,
        times=[300, 400],
    )
    differs, missing = met.shown
    assert (differs.kind, differs.resolution) == ("update_origin_differs", "keep_local")
    assert (differs.commit_lsn, differs.xid, differs.time_us) == (1000, 100, 300)
    assert differs.key == {"id": "1"}
    assert differs.local == {"id": "1", "v": "1", "big": "here"}
    assert differs.remote == {"id": "1", "v": None}, "the unchanged column was not sent"
    assert (differs.local_origin, differs.local_time_us) == (OTHER, 100)
    assert (missing.kind, missing.resolution) == ("delete_missing", "skip")
    assert (missing.key, missing.local, missing.remote) == ({"id": "5"}, None, None)
    met = shared.apply([delete(id=key) for key in range(10, 400)])
    assert met.counts == {("delete_missing", "skip"): 390}
    assert len(met.shown) == LOGGED
    assert list(met.not_shown()) == [("delete_missing", "skip", 390 - LOGGED)]


def test_an_update_that_does_not_know_the_row(spark_worker: SparkSession, tmp_path: Path) -> None:
    """A missing row is inserted only whole: never with NULL for what was not sent.

    A column that is not published gets its default, or stays what it is where the row exists; if it
    may not be null and has no default, an update cannot make a row.
    """
    shape = Shape({"id": 20, "v": 23, "own": 23, "must": 23}, key=("id",))
    shared = Shared(spark_worker, tmp_path, shape)
    publisher = Shape({"id": 20, "v": 23})
    shared.apply([insert(id=1, v=1, own=1, must=1)], subid=OTHER)
    for required, expected in ((False, "apply_remote"), (True, "skip")):
        columns = [
            dataclasses.replace(each, not_null=required and each.name == "must")
            for each in shared.table.columns
        ]
        shared.table = dataclasses.replace(shared.table, columns=tuple(columns))
        changes = [update({"id": 5, "v": 5}), insert(id=1, v=2)]
        if required:
            changes = [update({"id": 6, "v": 6})]
        met = shared.apply(changes, Policy.APPLY_REMOTE, publisher=publisher)
        assert met.counts["update_missing", expected] == 1
    assert shared.rows() == [
        {"id": 1, "v": 2, "own": 1, "must": 1},
        {"id": 5, "v": 5, "own": None, "must": None},
    ]
    met = shared.apply([update({"id": 7}, None, ("v",))], Policy.APPLY_REMOTE, publisher=publisher)
    assert met.counts == {("update_missing", "skip"): 1}


def test_leaves_of_a_partitioned_table(spark_worker: SparkSession, tmp_path: Path) -> None:
    """Every leaf judges the same, the first one tells; a row moves into a leaf that was empty."""
    low, high = Shared(spark_worker, tmp_path / "low"), Shared(spark_worker, tmp_path / "high")
    high.table = dataclasses.replace(high.table, relid=16501)

    def both(changes: list[Change], policy: Policy, subid: int = OURS) -> list[Conflicts]:
        siblings = (low.table, high.table)
        leaves = (low, lambda t: pc.less(t["id"], 100)), (high, lambda t: pc.greater(t["id"], 99))
        return [
            leaf.apply(changes, policy, subid, takes=takes, siblings=siblings)
            for leaf, takes in leaves
        ]

    both([insert(**row(1)), insert(**row(2))], Policy.ERROR, OTHER)
    assert high.table.version is None
    both([update(row(101, 5), {"id": 1})], Policy.ERROR)
    assert (low.rows(), high.rows()) == ([row(2)], [row(101, 5)])
    changes = [
        update(row(102, 6), {"id": 2}),
        delete(id=101),
        insert(**row(3)),
        update(row(103), {"id": 2}),
        delete(id=900),
    ]
    told, silent = both(changes, Policy.KEEP_LOCAL)
    assert told.counts == {
        ("update_origin_differs", "keep_local"): 2,
        ("delete_missing", "skip"): 1,
    }
    assert not silent.counts
    assert (low.rows(), high.rows()) == ([row(2), row(3)], [])
    told, _ = both(changes, Policy.APPLY_REMOTE)
    assert told.counts == {
        ("update_origin_differs", "apply_remote"): 1,
        ("delete_missing", "skip"): 2,
        ("insert_exists", "apply_remote"): 1,
        ("update_missing", "apply_remote"): 1,
    }
    assert (low.rows(), high.rows()) == ([row(3)], [row(102, 6), row(103)])


def test_without_a_key(spark_worker: SparkSession, tmp_path: Path) -> None:
    """Missing rows are inserted by apply_remote; whose equal rows are cannot be said."""
    shape = Shape({"id": 20, "v": 23}, key=(), identity="f")
    shared = Shared(spark_worker, tmp_path, shape)
    shared.apply([insert(id=1, v=1)], subid=OTHER)
    changes: list[Any] = [update({"id": 2, "v": 2}, {"id": 2, "v": 1}), delete(id=3, v=3)]
    met = shared.apply(changes)
    assert met.counts == {("update_missing", "skip"): 1, ("delete_missing", "skip"): 1}
    assert shared.rows() == [{"id": 1, "v": 1}]
    met = shared.apply(changes, Policy.APPLY_REMOTE)
    assert met.counts == {("update_missing", "apply_remote"): 1, ("delete_missing", "skip"): 1}
    assert met.shown[0].key == {"id": "2", "v": "1"}
    assert shared.rows() == [{"id": 1, "v": 1}, {"id": 2, "v": 2}]
    for policy in (Policy.KEEP_LOCAL, Policy.LAST_UPDATE_WINS):
        with pytest.raises(FeatureNotSupportedError, match="no key"):
            shared.apply(changes, policy)
