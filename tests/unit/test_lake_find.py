# SPDX-License-Identifier: Apache-2.0
"""Rows are found in files as a loop over all rows would find them, whatever is not read."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.change import types
from penstock.change.relation import LakeColumn, LakeTable
from penstock.lake import tables
from penstock.lake.files import ROW_GROUP_ROWS, write_file
from penstock.lake.find import find_rows, take_rows
from penstock.lake.log import data_files
from tests.support.no_spark import no_spark

Row = dict[str, Any]
COLUMNS = {"id": types.INT4, "name": types.TEXT, "f": types.FLOAT8, "at": types.TIMESTAMPTZ}


def lake(folder: Path, columns: dict[str, int]) -> LakeTable:
    """An empty table at version 0."""
    made = LakeTable(
        1,
        "public",
        "t",
        "r",
        "d",
        tuple(LakeColumn(n, name, oid, -1, False) for n, (name, oid) in enumerate(columns.items())),
        (),
        str(folder / "t"),
        None,
        None,
    )
    return dataclasses.replace(made, version=tables.create(no_spark, made, "m"))


def append(table: LakeTable, rows: list[Row]) -> LakeTable:
    """One more file."""
    file = write_file(pa.Table.from_pylist(rows, schema=tables.arrow_schema(table)), table.location)
    return dataclasses.replace(table, version=tables.append_files(table, [file], "m"))


def some(chance: random.Random) -> Row:
    """A row out of few possible ones, with every special value."""
    return {
        "id": chance.choice([None, *range(-3, 4)]),
        "name": chance.choice([None, "", "a", "aa", "é", "\U0001f600"]),
        "f": chance.choice([None, 0.0, -0.0, float("nan"), float("-inf"), 1.5]),
        "at": chance.choice([None, *(n * 10**6 for n in (-(10**11), 0, 253402300800))]),
    }


def same(one: Row, other: Row) -> bool:
    """Equality of PostgreSQL's values, null equal to null."""
    return all(
        repr(one[name]).replace("-0.0", "0.0") == repr(other[name]).replace("-0.0", "0.0")
        for name in one
    )


@pytest.mark.parametrize("names", [["id"], ["name"], ["id", "name"], list(COLUMNS)])
def test_hits_are_those_of_a_loop(tmp_path: Path, names: list[str]) -> None:
    """All equal rows that are not gone are hits, and no others; their values are taken right."""
    chance = random.Random(",".join(names))
    table = lake(tmp_path, COLUMNS)
    there: list[list[Row]] = []
    for size in (40, 1, 25):
        there.append([some(chance) for _ in range(size)])
        table = append(table, there[-1])
    assert table.version is not None
    paths = list(data_files(table.location, table.version))
    rows_at = dict(zip(paths, there, strict=True))
    gone = {paths[0]: np.array([0, 7, 39], np.uint64)}
    table = dataclasses.replace(table, version=tables.change_rows(table, gone, [], "m"))
    wanted: list[Row] = []
    for _ in range(12):
        row = some(chance)
        if not any(same({n: row[n] for n in names}, each) for each in wanted):
            wanted.append({name: row[name] for name in names})
    schema = pa.schema([tables.arrow_schema(table).field(name) for name in names])
    hits = find_rows(table, pa.Table.from_pylist(wanted, schema=schema))
    found = sorted(
        (hits.files[file].add["path"], int(row), int(at))
        for file, row, at in zip(hits.file, hits.row, hits.at, strict=True)
    )
    expected = sorted(
        (path, row, at)
        for path, rows in rows_at.items()
        for row, each in enumerate(rows)
        for at, asked in enumerate(wanted)
        if same(asked, each) and not (path == paths[0] and row in (0, 7, 39))
    )
    assert found == expected and found
    order = np.array(chance.sample(range(len(hits)), len(hits)))
    taken = take_rows(table, hits.only(order), ["id", "name"]).to_pylist()
    assert taken == [
        {n: rows_at[hits.files[hits.file[i]].add["path"]][hits.row[i]][n] for n in ("id", "name")}
        for i in order
    ]


def test_only_row_groups_that_may_have_a_hit_are_read(tmp_path: Path) -> None:
    """In a large file, and among files, places are right although most is not read."""
    table = lake(tmp_path, {"id": types.INT8, "name": types.TEXT})
    count = 2 * ROW_GROUP_ROWS + 10
    for start in (0, count):
        ids = np.arange(start, start + count)
        rows = pa.table(
            [pa.array(ids), pa.array(ids).cast(pa.string())], schema=tables.arrow_schema(table)
        )
        file = write_file(rows, table.location)
        table = dataclasses.replace(table, version=tables.append_files(table, [file], "m"))
    asked = [2**40, count + 2 * ROW_GROUP_ROWS + 3, 5, -1]
    hits = find_rows(table, pa.table({"id": pa.array(asked, pa.int64())}))
    assert sorted(hits.at.tolist()) == [1, 2]
    assert dict(zip(hits.at.tolist(), hits.row.tolist(), strict=True)) == {
        1: 2 * ROW_GROUP_ROWS + 3,
        2: 5,
    }
    names = take_rows(table, hits, ["name"]).column(0).to_pylist()
    assert names == [str(asked[at]) for at in hits.at]
