# SPDX-License-Identifier: Apache-2.0
"""Batches applied to Delta tables: the rows must be those of changes applied one at a time."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from penstock.apply.batch import TableBatch
from penstock.apply.changes import Applied, apply_changes
from penstock.change import types
from penstock.change.relation import LakeTable
from penstock.errors import ConcurrentWriteError, RelationMismatchError, UniqueViolationError
from penstock.lake.difference import difference
from penstock.lake.log import head_version
from penstock.lake.tables import read
from tests.support.changes import (
    TRUNCATE,
    Change,
    Model,
    Row,
    Shape,
    at,
    delete,
    insert,
    staged,
    update,
)

METADATA = '{"penstock": "node", "xid": "7", "purpose": "apply"}'
ORIGIN = "pg_1"


class Subscriber:
    """A lake table to which batches are applied, beside the model of it."""

    def __init__(self, spark: SparkSession, folder: Path, shape: Shape) -> None:
        self.spark = spark
        self.shape = shape
        self.model = Model(shape)
        self.table = shape.target(folder / "t")
        self._staging = folder / "staging"

    def apply(self, changes: list[Change], **batch: Any) -> Applied | None:
        """Apply changes on both sides."""
        applied = self.apply_here(changes, **batch)
        self.model.apply(changes)
        return applied

    def apply_here(self, changes: list[Change], **batch: Any) -> Applied | None:
        """Apply changes to the lake table only."""
        files = [staged(self._staging, self.shape.relation(), changes)]
        applied = apply_changes(
            lambda: self.spark, self.table, TableBatch(files, 0, 2**62, **batch), METADATA, ORIGIN
        )
        if applied is not None:
            assert applied.ranges[-1][1] == applied.version == head_version(self.table.location)
            self.table = at(self.table, applied.version, applied.sole_writer)
        return applied

    def rows(self) -> list[Row]:
        """The rows that the lake table has."""
        rows: list[Row] = read(self.spark, self.table).toArrow().to_pylist()
        return rows

    def check(self) -> None:
        """The lake table has the model's rows."""
        assert in_order(self.rows()) == in_order(self.model.rows)


@pytest.fixture
def keyed(spark_worker: SparkSession, tmp_path: Path) -> Subscriber:
    """A table with key id."""
    return Subscriber(spark_worker, tmp_path, Shape())


def in_order(rows: list[Row]) -> list[str]:
    """Rows as texts in a fixed order, so that NaN equals NaN."""
    return sorted(repr(row) for row in rows)


def row(key: int, v: int | None = 0, big: str | None = None) -> Row:
    """A row of the table with key id."""
    return {"id": key, "v": v, "big": big}


def history(chance: random.Random, model: Model, count: int, keys: int) -> list[Change]:
    """Changes that a publisher with the model's rows could make; some of rows that are missing."""
    played = Model(model.shape, [dict(each) for each in model.rows])
    changes: list[Change] = []
    while len(changes) < count:
        change = _one(chance, {each["id"] for each in played.rows}, keys)
        played.apply([change])
        changes.append(change)
    return changes


def _one(chance: random.Random, there: set[int], keys: int) -> Change:
    key, v = chance.randrange(keys), chance.randrange(10**6)
    big = chance.choice([None, "short", "long" * 50])
    absent = chance.random() < 0.3
    new: Row = {"id": key, "v": v} | ({} if absent else {"big": big})
    unchanged = ("big",) if absent else ()
    kind = chance.random()
    if kind < 0.004:
        return TRUNCATE
    if key not in there and kind < 0.6:
        return insert(id=key, v=v, big=big)
    if kind < 0.7:
        return update(new, None, unchanged)
    target = chance.randrange(keys)
    if kind < 0.85 and target not in there:
        return update(new | {"id": target}, {"id": key}, unchanged)
    return delete(id=key)


@settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32))
def test_histories(spark_worker: SparkSession, tmp_path: Path, seed: int) -> None:
    """Batch after batch of any changes leaves what PostgreSQL's apply would leave."""
    chance = random.Random(seed)
    keyed = Subscriber(spark_worker, tmp_path / str(seed), Shape())
    for keys in (200, 200, 50):
        keyed.apply(history(chance, keyed.model, 300, keys))
        keyed.check()


def test_inserts_are_appended(keyed: Subscriber) -> None:
    """While this subscription alone writes a table, inserts add one file and leave no other."""
    first = keyed.apply([insert(**row(1)), insert(**row(2))])
    assert first is not None
    assert (first.kind, first.created, first.ranges) == ("append", True, ((0, 1),))
    second = keyed.apply([insert(**row(3))])
    assert second is not None
    assert (second.kind, second.created, second.sole_writer) == ("append", False, ORIGIN)
    assert second.counts.inserts == second.counts.total == 1
    keyed.check()
    assert len(list(Path(keyed.table.location).glob("*.parquet"))) == 2
    history = DeltaTable(keyed.table.location).history()
    assert {entry["userMetadata"] for entry in history} == {METADATA}


def test_many_rows(keyed: Subscriber) -> None:
    """Every row of a large batch of updates is replaced, and nothing but data files stays."""
    count = 12_000
    keyed.apply_here([insert(**row(key)) for key in range(count)])
    applied = keyed.apply_here([update(row(key, key, "new")) for key in range(count)])
    assert applied is not None and applied.kind == "merge"
    assert applied.counts.updates == count
    assert in_order(keyed.rows()) == in_order([row(key, key, "new") for key in range(count)])
    assert not [path for path in Path(keyed.table.location).iterdir() if "penstock" in path.name]


def test_truncate_and_insert(keyed: Subscriber) -> None:
    """TRUNCATE empties the table in a version of its own; inserts after it are appended."""
    keyed.apply([insert(**row(1))])
    applied = keyed.apply([insert(**row(2)), TRUNCATE, insert(**row(3)), update(row(3, 5))])
    assert applied is not None and applied.kind == "truncate"
    assert applied.ranges == ((2, 3),)
    keyed.check()


def test_truncate_of_a_table_that_has_had_no_rows(keyed: Subscriber) -> None:
    """It is a version, too, which subscribers of this table are told of; rows may follow."""
    applied = keyed.apply([TRUNCATE, insert(**row(3))])
    assert applied is not None
    assert (applied.kind, applied.created, applied.ranges) == ("truncate", True, ((0, 2),))
    assert difference(keyed.table.location, 1).truncated
    keyed.check()


def test_nothing_to_do(keyed: Subscriber) -> None:
    """A batch that changes nothing makes no version: deletes of an empty table, no changes."""
    assert keyed.apply([delete(id=1)]) is None
    assert keyed.apply([insert(**row(1)), delete(id=1)]) is None
    files = [staged(Path(keyed.table.location), keyed.shape.relation(), [insert(**row(1))])]
    batch = TableBatch(files, 1, 999)
    assert apply_changes(lambda: keyed.spark, keyed.table, batch, METADATA, ORIGIN) is None


def test_range_of_commits(keyed: Subscriber, tmp_path: Path) -> None:
    """Only commits in the range count, both ends included."""
    files = [
        staged(tmp_path / "s", keyed.shape.relation(), [insert(**row(n)) for n in range(5)], lsn)
        for lsn in (100, 200)
    ]
    batch = TableBatch([files[0]], 101, 103)
    applied = apply_changes(lambda: keyed.spark, keyed.table, batch, METADATA, ORIGIN)
    assert applied is not None and applied.counts.inserts == 3
    keyed.table = at(keyed.table, applied.version)
    assert {each["id"] for each in keyed.rows()} == {1, 2, 3}


def test_key_that_another_writer_has(keyed: Subscriber) -> None:
    """In a table that others write, an INSERT of a key that is there is PostgreSQL's error."""
    keyed.apply([insert(**row(1)), insert(**row(2))])
    keyed.table = at(keyed.table, keyed.table.version, "pg_other")
    with pytest.raises(UniqueViolationError) as error:
        keyed.apply_here([insert(**row(7)), insert(**row(2))])
    assert error.value.message == 'duplicate key value violates unique constraint "t_pkey"'
    assert error.value.detail == "Key (id)=(2) already exists."
    assert head_version(keyed.table.location) == keyed.table.version
    applied = keyed.apply([insert(**row(8))])
    assert applied is not None and applied.sole_writer is None
    keyed.check()


def test_head_must_be_the_committed_version(keyed: Subscriber) -> None:
    """Nothing is written on top of a head that was not settled."""
    keyed.apply([insert(**row(1))])
    keyed.table = at(keyed.table, 0)
    with pytest.raises(ConcurrentWriteError):
        keyed.apply_here([insert(**row(2))])


WHOLE = Shape({"a": types.INT4, "b": types.TEXT, "c": types.FLOAT8, "d": 1007}, (), "f")


def test_whole_rows(spark_worker: SparkSession, tmp_path: Path) -> None:
    """Without a key whole rows match, NULL and NaN too, and one of several equal rows goes."""
    table = Subscriber(spark_worker, tmp_path, WHOLE)
    nan = math.nan

    def row(a: int | None, b: str | None = None, c: float | None = None) -> Row:
        return {"a": a, "b": b, "c": c, "d": None if a is None else [a, None]}

    twins = [insert(**row(1, "x", nan)) for _ in range(3)]
    table.apply([*twins, insert(**row(None)), insert(**row(None)), insert(**row(2, "y", 0.0))])
    assert in_order(table.rows()) == in_order(table.model.rows)
    applied = table.apply_here(
        [
            delete(**row(1, "x", nan)),
            update(row(3, "new"), row(None)),
            delete(**row(9, "missing")),
            update(row(4), row(9, "missing")),
            delete(**row(2, "y", -0.0)),
            insert(**row(5)),
            insert(**row(5)),
            delete(**row(5)),
        ]
    )
    assert applied is not None and applied.kind == "merge"
    wanted = [row(1, "x", nan), row(1, "x", nan), row(None), row(3, "new"), row(5)]
    assert in_order(table.rows()) == in_order(wanted)


def test_leaves_of_a_partitioned_table(spark_worker: SparkSession, tmp_path: Path) -> None:
    """Each leaf takes what its constraint accepts; a row that moves takes its values along."""
    shape = Shape()
    low = Subscriber(spark_worker, tmp_path / "low", shape)
    high = Subscriber(spark_worker, tmp_path / "high", shape)
    high.table = dataclasses.replace(high.table, relid=16501)

    def both(changes: list[Change]) -> None:
        siblings = (low.table, high.table)
        low.apply_here(changes, takes=lambda t: pc.less(t["id"], 100), siblings=siblings)
        high.apply_here(changes, takes=lambda t: pc.greater_equal(t["id"], 100), siblings=siblings)

    both([insert(**row(1, 1, "one")), insert(**row(2)), insert(**row(200))])
    assert in_order(low.rows()) == in_order([row(1, 1, "one"), row(2)])
    assert high.rows() == [row(200)]
    both([update({"id": 101, "v": 5}, {"id": 1}, ("big",)), delete(id=200), update(row(2, 9))])
    assert low.rows() == [row(2, 9)]
    assert high.rows() == [row(101, 5, "one")]
    both([TRUNCATE, insert(**row(150))])
    assert (low.rows(), high.rows()) == ([], [row(150)])


def test_columns_match_by_name(spark_worker: SparkSession, tmp_path: Path) -> None:
    """Order does not matter, types may be wider, and more columns keep or get their default."""
    publisher = Shape({"b c": types.INT4, "id": types.INT4, "n": types.INT2})
    target = Shape(
        {"id": types.INT8, "extra": types.TEXT, "n": types.NUMERIC, "b c": types.TEXT}
    ).target(tmp_path / "t")

    def apply(changes: list[Change], table: LakeTable) -> LakeTable:
        files = [staged(tmp_path / "s", publisher.relation(), changes)]
        batch = TableBatch(files, 0, 2**62)
        applied = apply_changes(
            lambda: spark_worker,
            table,
            batch,
            METADATA,
            ORIGIN,
            {"extra": pa.scalar("by default")},
        )
        assert applied is not None
        return at(table, applied.version, applied.sole_writer)

    table = apply([insert(id=1, n=1, **{"b c": 1}), insert(id=2, n=2, **{"b c": 2})], target)
    path = f"delta.`{table.location}`"
    spark_worker.sql(f"UPDATE {path} SET extra = 'by hand' WHERE id = 1")
    table = at(table, head_version(table.location))
    changes = [update({"id": 1, "n": 7, "b c": 70}), update({"id": 3, "n": 3}, {"id": 2})]
    table = apply(changes, table)
    rows = read(spark_worker, table).orderBy("id").toArrow().to_pylist()
    assert [(each["id"], each["extra"], int(each["n"]), each["b c"]) for each in rows] == [
        (1, "by hand", 7, "70"),
        (3, "by default", 3, None),
    ]
    table = apply([insert(id=4, n=4), update({"id": 4, "n": 5, "b c": 6})], table)
    rows = read(spark_worker, table).where("id = 4").toArrow().to_pylist()
    assert [(each["extra"], int(each["n"]), each["b c"]) for each in rows] == [
        ("by default", 5, "6")
    ]


@pytest.mark.parametrize(
    ("target", "publisher", "message"),
    [
        (Shape({"id": types.INT8}), Shape(), 'is missing replicated columns: "v", "big"'),
        (Shape({"a": 23}, ()), Shape({"a": 23}, ("a",)), "has neither REPLICA IDENTITY index"),
        (Shape(key=("v",)), Shape(), "publisher did not send replica identity column"),
    ],
)
def test_tables_that_do_not_fit(
    spark: SparkSession, tmp_path: Path, target: Shape, publisher: Shape, message: str
) -> None:
    """PostgreSQL's errors for a target that cannot take the publisher's changes."""
    changes = [delete(**dict.fromkeys(publisher.key, 1))]
    files = [staged(tmp_path / "s", publisher.relation(), changes)]
    table = target.target(tmp_path / "t")
    with pytest.raises(RelationMismatchError, match=message):
        apply_changes(lambda: spark, table, TableBatch(files, 0, 2**62), METADATA, ORIGIN)


def test_metadata_names_the_writer(keyed: Subscriber) -> None:
    """Every Delta commit of a batch, through Spark too, says whose it is."""
    keyed.apply([insert(**row(1))])
    keyed.apply([update(row(1, 2))])
    entry = DeltaTable(keyed.table.location).history(1)[0]
    assert entry["operation"] == "MERGE"
    assert json.loads(entry["userMetadata"])["xid"] == "7"
