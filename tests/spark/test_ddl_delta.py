# SPDX-License-Identifier: Apache-2.0
"""Delta tables follow changed columns, and come back after an abort at any point."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from penstock.change import types
from penstock.change.relation import LakeColumn, LakeTable
from penstock.errors import ValueNotHeldError
from penstock.lake import tables
from penstock.lake.columns import DefinedColumn, TableColumn, column_changes
from penstock.lake.ddl import alter_table, has_rows, rename_steps
from penstock.lake.files import write_file
from penstock.lake.log import head_version, physical_names
from penstock.names import quote_spark

METADATA = '{"penstock": "test", "xid": "7", "purpose": "ddl"}'
BEFORE = (
    LakeColumn(1, "id", types.INT4, -1, True),
    LakeColumn(2, "a", types.TEXT, -1, False),
    LakeColumn(3, "n", types.NUMERIC, (5 << 16 | 2) + 4, False),
    LakeColumn(4, "d", types.DATE, -1, False),
)
Values = dict[str, Any]
ROWS: list[Values] = [
    {"id": 1, "a": "x", "n": Decimal("1.50"), "d": dt.date(2024, 1, 2)},
    {"id": 2, "a": None, "n": None, "d": None},
]


@pytest.fixture
def table(spark_worker: SparkSession, tmp_path: Path) -> LakeTable:
    made = LakeTable(9, "public", "t", "r", "d", BEFORE, ("id",), str(tmp_path / "t"), None, None)
    version = tables.create(lambda: spark_worker, made, "{}")
    return append(replace(made, version=version), ROWS)


def append(table: LakeTable, rows: list[Values]) -> LakeTable:
    """Add rows as a copy does, and move the version."""
    names = physical_names(table.location)
    arrow = pa.Table.from_pylist(rows, tables.arrow_schema(table))
    arrow = arrow.rename_columns([names[name] for name in arrow.column_names])
    file = write_file(arrow, table.location)
    return replace(table, version=tables.append_files(table, [file], "{}"))


def alter(spark: SparkSession, table: LakeTable, columns: list[DefinedColumn]) -> LakeTable:
    """Follow the new columns, as the reconciler does."""
    recorded = [TableColumn(c.attnum, c.name, c.type_oid, c.typmod) for c in table.columns]
    changes = column_changes(
        recorded, columns, table="public.t", has_rows=has_rows(table), rewrite=0
    )
    version = alter_table(spark, table, changes, METADATA)
    now = tuple(LakeColumn(c.attnum, c.name, c.type_oid, c.typmod, c.not_null) for c in columns)
    return replace(table, columns=now, version=version)


def defined(table: LakeTable, **changed: Values) -> list[DefinedColumn]:
    """The table's columns, with changes by name."""
    result = []
    for column in table.columns:
        same = DefinedColumn(
            column.attnum, column.name, column.type_oid, column.typmod, column.not_null, False, None
        )
        result.append(replace(same, **changed.get(column.name, {})))
    return result


def added(attnum: int, name: str, type_oid: int, fill: str | None = None) -> DefinedColumn:
    return DefinedColumn(attnum, name, type_oid, -1, False, fill is not None, fill)


def rows(spark: SparkSession, table: LakeTable) -> list[Values]:
    frame = tables.read(spark, table)
    return [row.asDict() for row in frame.orderBy(quote_spark(frame.columns[0])).collect()]


def test_columns_are_added_with_constants(spark_worker: SparkSession, table: LakeTable) -> None:
    """Existing rows get null or PostgreSQL's constant, new rows their own values."""
    after = alter(
        spark_worker,
        table,
        [
            *defined(table),
            added(5, "plain", types.INT8),
            added(6, "const", types.TEXT, "it's \\ ü"),
            added(7, "at", types.TIMESTAMP, "2024-02-29 12:00:00.5"),
            added(8, "list", 1007, "{1,NULL}"),
            added(9, "flag", types.BOOL, "t"),
            added(10, "bytes", types.BYTEA, "\\x00ff"),
        ],
    )
    first, second = rows(spark_worker, after)
    constants = {
        "plain": None,
        "const": "it's \\ ü",
        "at": dt.datetime(2024, 2, 29, 12, 0, 0, 500000),
        "list": [1, None],
        "flag": True,
        "bytes": bytearray(b"\x00\xff"),
    }
    assert first == ROWS[0] | constants
    assert second == ROWS[1] | constants
    own = {"id": 3, "plain": 1, "const": "own", "list": []}
    assert rows(spark_worker, append(after, [own]))[2]["const"] == "own"
    assert rows(spark_worker, table) == ROWS


def test_a_constant_that_cannot_be_held(spark_worker: SparkSession, table: LakeTable) -> None:
    """It is refused before the Delta table is touched."""
    columns = [*defined(table), added(5, "at", types.DATE, "infinity")]
    with pytest.raises(ValueNotHeldError, match='"infinity" of column "at"'):
        alter(spark_worker, table, columns)
    assert head_version(table.location) == table.version


def test_columns_are_dropped_renamed_and_widened(
    spark_worker: SparkSession, table: LakeTable
) -> None:
    """A swap of names, a name with spaces, a dropped name that is added again, wider types."""
    swapped = alter(
        spark_worker, table, defined(table, a={"name": "d"}, d={"name": "a"}, id={"name": "Id ;"})
    )
    assert rows(spark_worker, swapped)[0] == {
        "Id ;": 1,
        "d": "x",
        "n": Decimal("1.50"),
        "a": dt.date(2024, 1, 2),
    }
    key, _dropped, numeric, date = defined(swapped)
    wide = alter(
        spark_worker,
        swapped,
        [
            replace(key, name="id", type_oid=types.INT8),
            replace(numeric, typmod=(8 << 16 | 4) + 4),
            replace(date, type_oid=types.TIMESTAMP),
            added(5, "d", types.INT4),
        ],
    )
    assert rows(spark_worker, wide)[0] == {
        "id": 1,
        "n": Decimal("1.5000"),
        "a": dt.datetime(2024, 1, 2),
        "d": None,
    }
    own = {"id": 2**40, "n": Decimal("9.9999"), "a": dt.datetime(2024, 1, 1, 1), "d": 4}
    assert rows(spark_worker, append(wide, [own]))[2] == own


def test_an_abort_at_any_point_is_restored(
    spark_worker: SparkSession, table: LakeTable, tmp_path: Path
) -> None:
    """Whatever Delta commits a crash left behind, RESTORE brings the old table back, for good."""
    columns = [
        *defined(
            table,
            id={"type_oid": types.INT8},
            n={"name": "m", "typmod": (8 << 16 | 4) + 4},
            d={"name": "e", "type_oid": types.TIMESTAMP},
        ),
        added(5, "a", types.TEXT, "filled"),
    ]
    del columns[1]
    after = alter(spark_worker, table, columns)
    assert table.version is not None and after.version is not None
    more = {"id": 3, "a": "new", "n": Decimal("2.50"), "d": None}
    first, last = table.version + 1, after.version
    # After the drop, half of the renames, everything.
    for cut in (first + 1, first + 2, last):
        copy = crashed(table, cut, tmp_path / f"crashed at {cut}")
        head = tables.restore(lambda: spark_worker, copy.location, table.version, METADATA)
        appended = append(replace(copy, version=head), [more])
        assert rows(spark_worker, appended) == [*ROWS, more]
    again = alter(spark_worker, appended, columns)
    assert [row["a"] for row in rows(spark_worker, again)] == ["filled"] * 3


def crashed(table: LakeTable, last: int, folder: Path) -> LakeTable:
    """A copy of a table as if its log had ended at a version."""
    shutil.copytree(table.location, folder, ignore=shutil.ignore_patterns(".*.crc"))
    log = folder / "_delta_log"
    (log / "_last_checkpoint").unlink(missing_ok=True)
    for entry in log.glob("[0-9]*"):
        if int(entry.name.split(".")[0]) > last or "checkpoint" in entry.name:
            entry.unlink()
    return replace(table, location=str(folder))


def test_every_commit_says_whose_it_is(spark_worker: SparkSession, table: LakeTable) -> None:
    """An aborted change is told from an external writer's by the userMetadata of each commit."""
    assert table.version is not None
    columns = [*defined(table, a={"name": "b"}), added(5, "c", types.INT4, "1")]
    after = alter(spark_worker, table, columns)
    assert after.version is not None
    history = {entry["version"]: entry for entry in DeltaTable(table.location).history()}
    for version in range(table.version + 1, after.version + 1):
        assert json.loads(history[version]["userMetadata"]) == json.loads(METADATA)


def test_an_empty_table_takes_any_column(spark_worker: SparkSession, tmp_path: Path) -> None:
    """Without rows a default need not be a constant, and nothing is filled."""
    made = LakeTable(9, "public", "t", "r", "d", BEFORE, ("id",), str(tmp_path / "e"), None, None)
    empty = replace(made, version=tables.create(lambda: spark_worker, made, "{}"))
    assert not has_rows(empty)
    column = DefinedColumn(5, "serial", types.INT4, -1, not_null=True, by_row=True, fill=None)
    after = alter(spark_worker, empty, [*defined(empty), column])
    assert rows(spark_worker, after) == []


@pytest.mark.parametrize(
    "renames",
    [
        (("a", "b"), ("b", "a")),
        (("a", "b"), ("b", "c")),
        (("a", "A"),),
        (("a", "B"), ("b", "C"), ("c", "A")),
        (("a", "b"), ("b", "c"), ("c", "a"), ("x", "y")),
    ],
)
def test_renames_never_meet(renames: tuple[tuple[str, str], ...]) -> None:
    """After every step names are unique, without case too, and at the end all are right."""
    names = {old: old for old, _ in renames}
    for old, new in rename_steps(renames):
        origin = next(key for key, value in names.items() if value == old)
        names[origin] = new
        assert len({name.lower() for name in names.values()}) == len(names)
    assert names == dict(renames)
