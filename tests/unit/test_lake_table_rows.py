# SPDX-License-Identifier: Apache-2.0
"""The rows of a table as Arrow batches: which rows there are, and how little is in memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.change import types
from penstock.change.relation import LakeColumn, LakeTable
from penstock.errors import TableStateError
from penstock.lake import tables
from penstock.lake.files import write_file
from penstock.lake.log import data_files
from penstock.lake.table_rows import BATCH_BYTES, table_rows
from tests.support.no_spark import no_spark


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    """An empty table of two columns at version 0."""
    columns = (
        LakeColumn(1, "id", types.INT8, -1, False),
        LakeColumn(2, "v", types.TEXT, -1, False),
    )
    location = str(tmp_path / "t")
    made = LakeTable(1, "public", "t", "r", "d", columns, (), location, None, None)
    return dataclasses.replace(made, version=tables.create(no_spark, made, "m"))


def append(table: LakeTable, rows: pa.Table) -> LakeTable:
    """One more file."""
    file = write_file(rows, table.location)
    return dataclasses.replace(table, version=tables.append_files(table, [file], "m"))


def ids(table: LakeTable, version: int | None) -> list[int]:
    found = table_rows(Path(table.location), version, pa.schema([("id", pa.int64())]))
    return [value for batch in found for value in batch.column(0).to_pylist()]


def test_each_version_has_its_rows(table: LakeTable) -> None:
    """Rows that are gone are left out, in whichever batch they are; older versions have them."""
    one = append(table, pa.table({"id": range(50_000), "v": ["x"] * 50_000}))
    two = append(one, pa.table({"id": [-1, -2], "v": ["y", None]}))
    assert two.version is not None
    first, second = data_files(two.location, two.version)
    gone = np.array([0, 16_383, 16_384, 30_000, 49_999], np.uint64)
    masked = tables.change_rows(two, {first: gone}, [], "m")  # now its action is the last one
    last = dataclasses.replace(two, version=masked)
    after = tables.change_rows(last, {second: np.array([0], np.uint64)}, [], "m")
    left = [number for number in range(50_000) if number not in set(gone.tolist())]
    assert ids(table, after) == [*left, -2]
    assert ids(table, two.version) == [*range(50_000), -1, -2]
    assert ids(table, masked) == [*left, -1, -2]
    assert ids(table, 0) == []
    assert ids(table, None) == []


def test_columns(table: LakeTable) -> None:
    """Those that are asked for, in that order and type; none; one that the version lacks."""
    filled = append(table, pa.table({"id": [1], "v": ["x"]}))
    location = Path(table.location)
    schema = pa.schema([("v", pa.string()), ("id", pa.decimal128(20, 0))])
    (batch,) = table_rows(location, filled.version, schema)
    assert batch.schema == schema
    (batch,) = table_rows(location, filled.version, pa.schema([]))
    assert (batch.num_rows, batch.num_columns) == (1, 0)
    with pytest.raises(TableStateError, match='no column "w"'):
        next(table_rows(location, filled.version, pa.schema([("w", pa.string())])))


def test_a_file_that_is_gone(table: LakeTable) -> None:
    """A version whose files were removed since is an error, never fewer rows."""
    filled = append(table, pa.table({"id": [1], "v": ["x"]}))
    assert filled.version is not None
    (path,) = data_files(filled.location, filled.version)
    (Path(filled.location) / path).unlink()
    with pytest.raises(TableStateError, match="could not read a data file"):
        ids(filled, filled.version)


@pytest.mark.parametrize("values", ["one", "many"])
def test_large_values_come_a_few_at_a_time(table: LakeTable, values: str) -> None:
    """Whether the file has them once for all rows, or each: a batch is about as large as told."""
    texts = ["m" * 20_000] * 3000
    if values == "many":
        texts = [f"{number:08}" * 2_500 for number in range(3000)]
    filled = append(table, pa.table({"id": range(3000), "v": texts}))
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    before = pa.total_allocated_bytes()
    most, count = 0, 0
    for batch in table_rows(Path(table.location), filled.version, schema):
        most = max(most, pa.total_allocated_bytes() - before)
        count += batch.num_rows
        assert batch.nbytes < 2 * BATCH_BYTES
    assert count == 3000
    assert most < 12 * BATCH_BYTES, "60 MB of texts"
