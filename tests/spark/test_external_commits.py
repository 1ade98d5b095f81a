# SPDX-License-Identifier: Apache-2.0
"""What another program may do to a lake's Delta table, and what stops it.

Spark here is that program; the node's part is ``register``, with transactions that are told to
have been aborted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.change import types
from penstock.change.relation import LakeColumn, LakeTable
from penstock.errors import ConcurrentWriteError, TableStateError
from penstock.lake import tables
from penstock.lake.external import Registered, register, written_by_another
from penstock.lake.files import write_file
from penstock.lake.log import data_files, head_version
from penstock.lake.settle import settle

NODE = '{"penstock": "n", "xid": "9", "purpose": "external"}'
ABORTED = '{"penstock": "n", "xid": "5", "purpose": "apply"}'


def status(xid: str) -> str:
    """No transaction here has committed."""
    return "aborted"


@pytest.fixture
def table(spark_worker: SparkSession, tmp_path: Path) -> LakeTable:
    """Keyed by id, rows 0 to 9 at version 1, written by one subscription alone."""
    columns = (
        LakeColumn(1, "id", types.INT8, -1, True),
        LakeColumn(2, "v", types.TEXT, -1, False),
        LakeColumn(3, "at", types.TIMESTAMPTZ, -1, False),
    )
    made = LakeTable(
        1, "public", "t", "r", "d", columns, ("id",), str(tmp_path / "t"), None, "pg_1", "t_pkey"
    )
    made = dataclasses.replace(made, version=tables.create(spark_worker, made, ABORTED))
    return append(made, range(10))


def append(table: LakeTable, ids: Sequence[int]) -> LakeTable:
    """A commit of the node's."""
    rows = pa.table(
        [pa.array(ids, pa.int64()), pa.array([f"v{each}" for each in ids]), pa.nulls(len(ids))],
        names=["id", "v", "at"],
    ).cast(tables.arrow_schema(table))
    file = write_file(rows, table.location)
    return dataclasses.replace(table, version=tables.append_files(table, [file], ABORTED))


def insert(spark: SparkSession, table: LakeTable, ids: range, mode: str = "append") -> None:
    """A commit of another program's, with 96-bit timestamps as Spark writes them by default."""
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    rows = spark.range(ids.start, ids.stop).selectExpr("id", "'x' AS v", "timestamp_micros(id) at")
    rows.coalesce(1).write.format("delta").mode(mode).save(table.location)


def sql(spark: SparkSession, table: LakeTable, statement: str) -> None:
    """A statement of another program's on the table, which is {} in it."""
    spark.sql(statement.format(tables.delta_path(table.location)))


def ids(spark: SparkSession, table: LakeTable) -> list[int]:
    """The table's rows as the lake's readers see them."""
    return [row.id for row in tables.read(spark, table).orderBy("id").collect()]


def registered(spark: SparkSession, table: LakeTable) -> Registered:
    """Register what there must be."""
    with pytest.raises(ConcurrentWriteError):
        settle(spark, table, status, NODE)
    assert written_by_another(table, "n")
    found = register(spark, table, status, NODE)
    assert found is not None
    assert not written_by_another(found.table, "n")
    assert settle(spark, found.table, status, NODE) == found.table
    return found


def test_nothing_of_another_program(spark_worker: SparkSession, table: LakeTable) -> None:
    """At the head, or with only our own commits ahead, there is nothing to register."""
    assert register(spark_worker, table, status, NODE) is None
    append(table, [77])
    assert not written_by_another(table, "n")
    assert register(spark_worker, table, status, NODE) is None


def test_an_append_and_what_follows(spark_worker: SparkSession, table: LakeTable) -> None:
    """Appends, deletes, an OPTIMIZE and an overwrite are registered with their ranges and kinds."""
    spark = spark_worker
    insert(spark, table, range(10, 13))
    found = registered(spark, table)
    assert (found.ranges, found.kind) == (((2, 2),), "append")
    assert found.table.sole_writer is None
    assert ids(spark, found.table) == list(range(13))
    sql(spark, table, "DELETE FROM {} WHERE id IN (3, 11)")
    insert(spark, table, range(20, 22))
    found = registered(spark, found.table)
    assert (found.ranges, found.kind) == (((3, 4),), "merge")
    before = ids(spark, found.table)
    ours = dataclasses.replace(found.table, sole_writer="pg_1")
    sql(spark, table, "OPTIMIZE {}")
    found = registered(spark, ours)
    assert (found.ranges, found.kind, found.table.sole_writer) == ((), "optimize", "pg_1")
    assert ids(spark, found.table) == before
    insert(spark, table, range(5, 8), "overwrite")
    found = registered(spark, found.table)
    assert (found.kind, ids(spark, found.table)) == ("merge", [5, 6, 7])


def test_appends_on_top_of_an_aborted_commit_are_put_back(
    spark_worker: SparkSession, table: LakeTable
) -> None:
    """Ours is restored away, theirs before and after it stay, each row once."""
    spark = spark_worker
    insert(spark, table, range(10, 12))
    aborted = append(dataclasses.replace(table, version=2), [100, 101])
    [path, *_] = data_files(table.location, 2)
    tables.change_rows(aborted, {path: np.array([0], np.uint64)}, [], ABORTED)
    insert(spark, table, range(20, 22))
    found = registered(spark, table)
    assert (found.ranges, found.kind) == (((2, 2), (7, 7)), "append")
    assert found.table.version == 7 and found.table.sole_writer is None
    assert ids(spark, found.table) == [*range(12), 20, 21]
    # As after a crash before the registration's commit: it comes to the same.
    again = registered(spark, table)
    assert ids(spark, again.table) == ids(spark, found.table)


def test_a_change_on_top_of_an_aborted_commit_stops_until_it_is_restored(
    spark_worker: SparkSession, table: LakeTable
) -> None:
    """What was read together with rows that never were is not trusted; RESTORE mends it."""
    spark = spark_worker
    append(table, [100, 101])
    sql(spark, table, "DELETE FROM {} WHERE id = 100")
    with pytest.raises(TableStateError, match="on top of a commit that has been aborted") as error:
        register(spark, table, status, NODE)
    assert "TO VERSION AS OF 1" in (error.value.hint or "")
    sql(spark, table, "RESTORE TABLE {} TO VERSION AS OF 1")
    found = registered(spark, table)
    assert (found.ranges, found.kind) == ((), "optimize")
    assert (found.table.version, ids(spark, found.table)) == (4, list(range(10)))


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("ALTER TABLE {} ADD COLUMN extra int", "columns"),
        ("ALTER TABLE {} SET TBLPROPERTIES ('delta.appendOnly' = 'true')", "delta.appendOnly"),
        ("ALTER TABLE {} ADD CONSTRAINT few CHECK (id < 1000)", "delta.constraints.few"),
        ("ALTER TABLE {} SET TBLPROPERTIES ('delta.feature.checkConstraints' = 'supported')", "feature"),
    ],
)
def test_a_changed_definition_stops_the_table(
    spark_worker: SparkSession, table: LakeTable, statement: str, message: str
) -> None:
    """The control database would not know of it, nor our own commits keep it."""
    sql(spark_worker, table, statement)
    with pytest.raises(TableStateError, match="definition") as error:
        register(spark_worker, table, status, NODE)
    assert message in (error.value.detail or "")


def test_a_changed_definition_can_be_taken_back(
    spark_worker: SparkSession, table: LakeTable
) -> None:
    """After the RESTORE of the hint, and with a property that harms nobody, the table goes on."""
    days = "SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 2 days')"
    sql(spark_worker, table, "ALTER TABLE {} ADD COLUMN extra int")
    sql(spark_worker, table, "RESTORE TABLE {} TO VERSION AS OF 1")
    sql(spark_worker, table, f"ALTER TABLE {{}} {days}")
    found = registered(spark_worker, table)
    assert (found.kind, ids(spark_worker, found.table)) == ("optimize", list(range(10)))


@pytest.mark.parametrize(
    ("wrong", "mended", "detail"),
    [
        ("INSERT INTO {} VALUES (4, 'y', null)", "v = 'y'", "Key (id)=(4)"),
        ("INSERT INTO {} VALUES (50, 'a', null), (50, 'b', null)", "v = 'b'", "Key (id)=(50)"),
        ("INSERT INTO {} VALUES (null, 'a', null)", "id IS NULL", 'column "id"'),
        ("UPDATE {} SET id = 8 WHERE id = 7", "id = 8", "Key (id)=(8)"),
    ],
)
def test_rows_that_break_the_key(
    spark_worker: SparkSession, table: LakeTable, wrong: str, mended: str, detail: str
) -> None:
    """A key that is there twice, or null, stops the table until the rows are deleted."""
    sql(spark_worker, table, wrong)
    with pytest.raises(TableStateError, match="rows that table") as error:
        register(spark_worker, table, status, NODE)
    assert detail in (error.value.detail or "")
    sql(spark_worker, table, f"DELETE FROM {{}} WHERE {mended}")
    found = registered(spark_worker, table)
    now: list[Any] = ids(spark_worker, found.table)
    assert len(now) == len(set(now)) and None not in now


def test_ours_never_lands_on_top_of_theirs(spark_worker: SparkSession, table: LakeTable) -> None:
    """A commit that was made from a version fails when another program made the next one."""
    insert(spark_worker, table, range(10, 12))
    for write in (lambda: append(table, [30]), lambda: tables.truncate(table, NODE)):
        with pytest.raises(ConcurrentWriteError):
            write()
    assert head_version(table.location) == 2
