# SPDX-License-Identifier: Apache-2.0
"""Delta tables as the lake makes them: created, appended to, read at a version, brought back."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.change import types
from penstock.change.relation import LakeColumn, LakeTable
from penstock.lake import tables
from penstock.lake.durable import deletion_vector_path, log_entry, sync_versions
from penstock.lake.files import NewFile, write_file
from penstock.lake.find import find_rows
from penstock.lake.key_index import FOLDER, INDEXING
from penstock.lake.log import data_files, head_version, physical_names
from penstock.names import quote_spark
from tests.support.no_spark import no_spark

COLUMNS = {
    "id": types.INT8,
    "small": types.INT2,
    "amount": types.NUMERIC,
    "a.b": types.TEXT,
    "at": types.TIMESTAMPTZ,
    "local": types.TIMESTAMP,
    "day": types.DATE,
    "raw": types.BYTEA,
    "numbers": 1007,
    "ratio": types.FLOAT8,
}


def lake_table(location: Path, columns: dict[str, int] | None = None) -> LakeTable:
    """A table without a Delta table yet, keyed by ``id``."""
    wanted = columns or COLUMNS
    return LakeTable(
        relid=1,
        schema="public",
        name="t",
        kind="r",
        identity="d",
        columns=tuple(
            LakeColumn(number, name, oid, -1, name == "id")
            for number, (name, oid) in enumerate(wanted.items(), 1)
        ),
        key=("id",),
        location=str(location),
        version=None,
        sole_writer=None,
    )


ROW: dict[str, object] = {
    "id": 1,
    "small": 2,
    "amount": Decimal("12345678901234567890.123456789012345678"),
    "a.b": "x" * 40,
    "at": dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC),
    "local": dt.datetime(1500, 1, 2, 3, 4, 5, 678901),
    "day": dt.date(1200, 2, 29),
    "raw": b"\0\xff",
    "numbers": [1, None, 3],
    "ratio": float("inf"),
}
NULLS: dict[str, object] = {**dict.fromkeys(COLUMNS), "id": 2}


def arrow(table: LakeTable, rows: list[dict[str, object]]) -> pa.Table:
    """Rows in the table's Arrow schema."""
    return pa.Table.from_pylist(rows, schema=tables.arrow_schema(table))


def at(table: LakeTable, version: int | None) -> LakeTable:
    """The table with this version committed."""
    return dataclasses.replace(table, version=version)


def at_head(table: LakeTable) -> LakeTable:
    """The table with all that was written committed."""
    return at(table, head_version(table.location))


def by_delta(spark: SparkSession, table: LakeTable) -> DataFrame:
    """The rows as Delta's own reader finds them in the log, by its statistics, too."""
    frame = spark.read.format("delta").option("versionAsOf", table.version).load(table.location)
    return frame.select(*(quote_spark(column.name) for column in table.columns))


def test_values_survive(spark_worker: SparkSession, tmp_path: Path) -> None:
    """Every type's values come back from Spark as they were written from Arrow."""
    table = lake_table(tmp_path / "t")
    assert head_version(table.location) is None
    assert tables.read(spark_worker, table).toArrow().num_rows == 0
    assert tables.create(lambda: spark_worker, table, '{"purpose": "ddl"}') == 0
    rows = arrow(table, [ROW, NULLS])
    version = tables.append_files(at_head(table), [write_file(rows, table.location)], "m")
    assert version == head_version(table.location) == 1
    frame = by_delta(spark_worker, at(table, 1))
    assert frame.schema == tables.spark_schema(table)
    assert frame.orderBy("id").toArrow().to_pylist() == rows.to_pylist()
    assert by_delta(spark_worker, at(table, 0)).count() == 0


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("id = 1", 1),
        ("`a.b` > 'x'", 1),
        ("`a.b` > 'y'", 0),
        ("`at` = timestamp'2026-01-02T03:04:05.678901Z'", 1),
        ("`at` > timestamp'2026-01-02T03:04:05.678901Z'", 0),
        ("local = timestamp_ntz'1500-01-02T03:04:05.678901'", 1),
        ("day = date'1200-02-29'", 1),
        ("amount = 12345678901234567890.123456789012345678", 1),
        ("ratio > 1e300", 1),
        ("small IS NULL", 1),
        ("small = 2", 1),
    ],
)
def test_pruning_never_hides_a_row(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, condition: str, found: int
) -> None:
    """A filter on any column finds its row through the statistics in Delta's log."""
    folder = tmp_path_factory.getbasetemp() / "pruned"
    table = lake_table(folder)
    if not folder.exists():
        tables.create(lambda: spark, table, "m")
        rows = arrow(table, [ROW, NULLS])
        tables.append_files(at_head(table), [write_file(rows, table.location)], "m")
    assert by_delta(spark, at(table, 1)).where(condition).count() == found


def test_statistics_are_delta_s(tmp_path: Path) -> None:
    """Bounds have Delta's forms: milliseconds rounded outwards, prefixes of long strings."""
    table = lake_table(tmp_path)
    written = write_file(arrow(table, [ROW, NULLS]), table.location)
    stats = json.loads(written.stats)
    assert stats["numRecords"] == written.rows == 2
    assert stats["minValues"]["at"] == "2026-01-02T03:04:05.678Z"
    assert stats["maxValues"]["at"] == "2026-01-02T03:04:05.679Z"
    assert stats["maxValues"]["local"] == "1500-01-02T03:04:05.679"
    assert stats["maxValues"]["a.b"] == "x" * 32 + "\U0010ffff"
    assert "12345678901234567890.123456789012345678" in written.stats
    assert set(stats["nullCount"]) == set(COLUMNS) - {"numbers"}
    assert "ratio" not in stats["maxValues"] and "raw" not in stats["maxValues"]


def test_a_failed_file_leaves_nothing(tmp_path: Path) -> None:
    """When writing fails, no file stays in the table's folder."""
    schema = pa.schema([("id", pa.int64())])
    with pytest.raises(ValueError), NewFile(str(tmp_path), schema) as file:
        file.write(pa.table({"id": ["x"], "b": [1]}))
    assert list(tmp_path.iterdir()) == []


def test_names_that_need_mapping(spark_worker: SparkSession, tmp_path: Path) -> None:
    """Names with blanks and quotes work, through column mapping, appends included."""
    table = lake_table(tmp_path / "t", {"id": types.INT4, "odd (name), `x`": types.TEXT})
    tables.create(lambda: spark_worker, table, "m")
    names = physical_names(table.location)
    rows = arrow(table, [{"id": 1, "odd (name), `x`": "a"}])
    physical = rows.rename_columns([names[name] for name in rows.column_names])
    version = tables.append_files(at_head(table), [write_file(physical, table.location)], "m")
    assert by_delta(spark_worker, at(table, version)).toArrow().to_pylist() == rows.to_pylist()


def test_append_to_a_widened_table(spark_worker: SparkSession, tmp_path: Path) -> None:
    """A table with type widening, which deltalake does not know, still takes files."""
    table = lake_table(tmp_path / "t", {"id": types.INT4})
    tables.create(lambda: spark_worker, table, "m")
    tables.append_files(
        at_head(table), [write_file(arrow(table, [{"id": 1}]), table.location)], "m"
    )
    path = tables.delta_path(table.location)
    spark_worker.sql(f"ALTER TABLE {path} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    spark_worker.sql(f"ALTER TABLE {path} ALTER COLUMN id TYPE bigint")
    wide = lake_table(tmp_path / "t", {"id": types.INT8})
    written = write_file(arrow(wide, [{"id": 2**40}]), wide.location)
    version = tables.append_files(at_head(wide), [written], "the metadata")
    ids = by_delta(spark_worker, at(wide, version)).orderBy("id").collect()
    assert [row.id for row in ids] == [1, 2**40]
    assert '"the metadata"' in log_entry(wide.location, version).read_text()
    hits = find_rows(at(wide, version), pa.table({"id": pa.array([2**40, 1], pa.int64())}))
    assert sorted(hits.at.tolist()) == [0, 1]
    while version < tables.CHECKPOINT_EVERY:
        written = write_file(arrow(wide, [{"id": 2**40 + version}]), wide.location)
        version = tables.append_files(at_head(wide), [written], "m")
    for entry in Path(wide.location, "_delta_log").glob("*.json"):
        if int(entry.stem) < version:
            entry.unlink()
    frame = by_delta(spark_worker, at(wide, version))
    assert frame.count() == version - 2 and frame.where("id = 1").count() == 1


def test_both_writers_vectors_add_up(spark_worker: SparkSession, tmp_path: Path) -> None:
    """Rows that Spark deleted and rows that we take out of the same file are gone for both."""
    table = lake_table(tmp_path / "t", {"id": types.INT4, "amount": types.NUMERIC})
    tables.create(lambda: spark_worker, table, "m")
    rows = [{"id": number, "amount": Decimal(f"{number}.5")} for number in range(10)]
    version = tables.append_files(
        at_head(table), [write_file(arrow(table, rows), table.location)], "m"
    )
    path = tables.delta_path(table.location)
    spark_worker.sql(f"DELETE FROM {path} WHERE id IN (2, 3)")
    [name] = data_files(table.location, version + 1)
    gone = {name: np.array([0, 9], np.uint64)}
    version = tables.change_rows(at(table, version + 1), gone, [], "m")
    left = [1, 4, 5, 6, 7, 8]
    frame = by_delta(spark_worker, at(table, version))
    assert [row.id for row in frame.orderBy("id").collect()] == left
    assert [row.id for row in frame.where("amount > 4").orderBy("id").collect()] == left[1:]
    spark_worker.sql(f"DELETE FROM {path} WHERE id = 8")
    asked = pa.table({"id": pa.array(range(10), pa.int32())})
    hits = find_rows(at(table, version + 1), asked)
    assert sorted(hits.at.tolist()) == left[:-1]


def test_executors_find_what_the_node_finds(spark_worker: SparkSession, tmp_path: Path) -> None:
    """A search that is spread over Spark's executors has the same hits, in the same files."""
    table = lake_table(tmp_path / "t", {"id": types.INT4, "v": types.TEXT})
    tables.create(lambda: spark_worker, table, "m")
    for start in range(0, 500, 100):
        rows = [{"id": (start + n) * 7 % 500, "v": f"v{n % 9}"} for n in range(100)]
        version = tables.append_files(
            at_head(table), [write_file(arrow(table, rows), table.location)], "m"
        )
    table = at(table, version)
    gone = {path: np.array([3, 4], np.uint64) for path in list(data_files(table.location, version))}
    table = at(table, tables.change_rows(table, gone, [], "m"))
    asked = pa.table(
        {"id": pa.array(range(0, 900, 3), pa.int32()), "v": [f"v{n % 9}" for n in range(300)]}
    )
    here = find_rows(table, asked)
    there = find_rows(table, asked, lambda: spark_worker, spread_rows=0)
    assert [file.path for file in there.files] == [file.path for file in here.files]
    for name in ("file", "row", "at"):
        assert getattr(there, name).tolist() == getattr(here, name).tolist() != []


def test_executors_make_indexes_that_spark_passes_over(
    spark_worker: SparkSession, tmp_path: Path
) -> None:
    """The index of a large file is made by the executor that searches it; the node then uses it.

    To readers and to VACUUM it is not there, however old.
    """
    table = lake_table(tmp_path / "t", {"id": types.INT4})
    tables.create(lambda: spark_worker, table, "m")
    rows = pa.table({"id": pa.array(np.arange(INDEXING.rows) * 2, pa.int32())})
    table = at(table, tables.append_files(at_head(table), [write_file(rows, table.location)], "m"))
    asked = pa.table({"id": pa.array(range(100_000, 100_100), pa.int32())})
    there = find_rows(table, asked, lambda: spark_worker, spread_rows=0)
    [index] = Path(table.location, FOLDER).iterdir()
    orphan = Path(table.location, "orphan.parquet")
    orphan.touch()
    for path in (index, index.parent, orphan):
        os.utime(path, (0, 0))
    spark_worker.sql(f"VACUUM {tables.delta_path(table.location)}")
    assert index.exists() and not orphan.exists()
    assert by_delta(spark_worker, table).count() == INDEXING.rows
    here = find_rows(table, asked, no_spark, spread_rows=0)
    assert len(here) == 50 and index.stat().st_mtime == 0
    assert (here.row.tolist(), here.at.tolist()) == (there.row.tolist(), there.at.tolist())


def test_restore_brings_back_rows_and_definition(
    spark_worker: SparkSession, tmp_path: Path
) -> None:
    """RESTORE undoes deletes, added columns and column mapping; it is a new version."""
    table = lake_table(tmp_path / "t", {"id": types.INT4, "v": types.TEXT})
    tables.create(lambda: spark_worker, table, "m")
    rows = arrow(table, [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    tables.append_files(at_head(table), [write_file(rows, table.location)], "m")
    path = tables.delta_path(table.location)
    spark_worker.sql(f"DELETE FROM {path} WHERE id = 1")
    spark_worker.sql(f"ALTER TABLE {path} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark_worker.sql(f"ALTER TABLE {path} RENAME COLUMN v TO w")
    head = tables.restore(lambda: spark_worker, table.location, 1, "undone")
    assert head == head_version(table.location) == 5
    frame = by_delta(spark_worker, at(table, head))
    assert frame.orderBy("id").toArrow().to_pylist() == rows.to_pylist()
    assert '"undone"' in log_entry(table.location, head).read_text()


def test_all_files_of_a_version_are_synced(spark_worker: SparkSession, tmp_path: Path) -> None:
    """Every file that a commit names is found: also deletion vectors and change files."""
    table = lake_table(tmp_path / "t", {"id": types.INT4})
    tables.create(lambda: spark_worker, table, "m")
    path = tables.delta_path(table.location)
    spark_worker.sql(f"ALTER TABLE {path} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = true)")
    rows = arrow(table, [{"id": number} for number in range(100)])
    tables.append_files(at_head(table), [write_file(rows, table.location)], "m")
    spark_worker.sql(f"DELETE FROM {path} WHERE id = 1")
    head = head_version(table.location)
    assert head is not None
    lines = log_entry(table.location, head).read_text().splitlines()
    actions = [json.loads(line) for line in lines]
    vectors = [a["add"]["deletionVector"] for a in actions if "add" in a]
    assert vectors and vectors[0]["storageType"] == "u"
    assert Path(table.location, deletion_vector_path(vectors[0]["pathOrInlineDv"])).is_file()
    sync_versions(table.location, 0, head)


def test_checkpoints_of_appends(spark_worker: SparkSession, tmp_path: Path) -> None:
    """Many appends get a checkpoint, which Spark reads, deletion vectors included."""
    table = lake_table(tmp_path / "t", {"id": types.INT4})
    tables.create(lambda: spark_worker, table, "m")
    rows = arrow(table, [{"id": number} for number in range(10)])
    tables.append_files(at_head(table), [write_file(rows, table.location)], "m")
    spark_worker.sql(f"DELETE FROM {tables.delta_path(table.location)} WHERE id < 3")
    version = 2
    while version < tables.CHECKPOINT_EVERY:
        version = tables.append_files(at_head(table), [write_file(rows, table.location)], "m")
    log = Path(table.location, "_delta_log")
    assert (log / f"{version:020d}.checkpoint.parquet").is_file()
    for entry in log.glob("*.json"):
        if int(entry.stem) < version:
            entry.unlink()
    assert (
        by_delta(spark_worker, at(table, version)).count() == (tables.CHECKPOINT_EVERY - 1) * 10 - 3
    )
