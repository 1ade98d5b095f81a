# SPDX-License-Identifier: Apache-2.0
"""Compaction changes files and no rows, whatever is taken out of them meanwhile."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.change import types
from penstock.change.relation import LakeColumn, LakeTable
from penstock.lake import tables
from penstock.lake.compact import EIGHT, groups, rewrite, swap
from penstock.lake.files import write_file
from penstock.lake.find import find_rows
from penstock.lake.log import DataFile, actions_of, data_files
from tests.support.no_spark import no_spark


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    """An empty table with key id, at version 0."""
    columns = (
        LakeColumn(1, "id", types.INT8, -1, True),
        LakeColumn(2, "v", types.TEXT, -1, False),
    )
    made = LakeTable(1, "public", "t", "r", "d", columns, ("id",), str(tmp_path / "t"), None, None)
    version = tables.create(no_spark, made, "m")
    return dataclasses.replace(made, version=version)


def at(table: LakeTable, version: int | None) -> LakeTable:
    """The table with this version committed."""
    assert version is not None
    return dataclasses.replace(table, version=version)


def append(table: LakeTable, ids: list[int]) -> LakeTable:
    """One more file."""
    rows = pa.table(
        [pa.array(ids, pa.int64()), pa.array([f"v{each}" for each in ids])],
        schema=tables.arrow_schema(table),
    )
    file = write_file(rows, table.location)
    return at(table, tables.append_files(table, [file], "m"))


def delete(table: LakeTable, ids: list[int]) -> LakeTable:
    """Take rows out, as apply does."""
    hits = find_rows(table, pa.table({"id": pa.array(ids, pa.int64())}))
    gone = {
        hits.files[file].add["path"]: np.sort(hits.row[hits.file == file]).astype(np.uint64)
        for file in np.unique(hits.file)
    }
    return at(table, tables.change_rows(table, gone, [], "m"))


def files(table: LakeTable) -> list[DataFile]:
    """The data files of the table's version."""
    assert table.version is not None
    return list(data_files(table.location, table.version).values())


def rows(table: LakeTable) -> list[tuple[int, str]]:
    """What deltalake, a reader of its own, finds."""
    read = pa.table(DeltaTable(table.location, version=table.version).scan())
    return sorted((row["id"], row["v"]) for row in read.to_pylist())


def test_eight_small_files_become_one(table: LakeTable) -> None:
    """Seven are left alone; eight become one, in key order, in a commit that changes no data."""
    for number in range(EIGHT - 1):
        table = append(table, [100 - number, number])
    assert groups(files(table)) == []
    table = append(table, [50])
    [group] = groups(files(table))
    before = rows(table)
    after = at(table, swap(table, rewrite(table, group), "m"))
    assert rows(after) == before == rows(table)
    [file] = files(after)
    ids = pa.table(DeltaTable(after.location).scan()).column("id").to_pylist()
    assert ids == sorted(ids) and file.stats["numRecords"] == len(ids)
    assert after.version is not None
    changes = [
        change["dataChange"]
        for action in actions_of(after.location, after.version)
        for change in action.values()
        if "dataChange" in change
    ]
    assert changes == [False] * (EIGHT + 1)
    assert groups(files(after)) == []


def test_a_file_with_many_rows_gone_is_written_anew(table: LakeTable) -> None:
    """The rows that are gone cost no space any more; a few of them are left alone."""
    table = append(table, list(range(100)))
    assert groups(files(delete(table, list(range(10))))) == []
    table = delete(at(table, table.version and table.version + 1), list(range(10, 40)))
    [group] = groups(files(table))
    after = at(table, swap(table, rewrite(table, group), "m"))
    [file] = files(after)
    assert (file.vector, file.stats["numRecords"]) == (None, 60)
    assert rows(after) == rows(table)


@pytest.mark.parametrize("seed", range(6))
def test_rows_that_go_while_a_file_is_written_anew(table: LakeTable, seed: int) -> None:
    """Between rewrite and swap rows go, files go, and more come: the rows stay what they are."""
    chance = random.Random(seed)
    ids = list(range(400))
    chance.shuffle(ids)
    for start in range(0, 400, 40):
        table = append(table, ids[start : start + 40])
    table = delete(table, chance.sample(range(400), 60))
    [group] = groups(files(table))
    made = rewrite(table, group)
    left = [key for key, _ in rows(table)]
    table = delete(table, chance.sample(left, 70))
    if seed % 2:
        whole = set(ids[80:120])
        table = delete(table, [key for key, _ in rows(table) if key in whole])
    table = append(table, [1000, 1001])
    after = at(table, swap(table, made, "m"))
    assert rows(after) == rows(table)
    assert len(files(after)) < len(files(table))
    again = delete(after, [key for key, _ in rows(after)][:50])
    assert rows(again) == rows(after)[50:]


def test_a_table_that_was_emptied_meanwhile(table: LakeTable) -> None:
    """After a TRUNCATE nothing is swapped in, and the new file is removed."""
    for number in range(EIGHT):
        table = append(table, [number])
    [group] = groups(files(table))
    made = rewrite(table, group)
    table = at(table, tables.truncate(table, "m"))
    assert swap(table, made, "m") is None
    assert made.file is not None
    assert not Path(table.location, made.file.path).exists()
    assert rows(table) == []


def test_rows_that_came_back_meanwhile(table: LakeTable) -> None:
    """When a source has rows again that it had lost, the rewrite is given up."""
    for number in range(EIGHT):
        table = append(table, [number, number + 100])
    whole = table.version
    table = delete(table, [3])
    made = rewrite(table, groups(files(table))[0])
    assert whole is not None
    version = tables.restore(no_spark, table.location, whole, "m")
    table = at(table, version)
    assert swap(table, made, "m") is None
    assert len(rows(table)) == 2 * EIGHT


def test_files_of_a_copy_are_left_alone() -> None:
    """What is large depends on the table: 4 MiB in a small one, a 64th of it in a larger one."""

    def made(size: int, number: int) -> list[DataFile]:
        mib = 1024 * 1024
        return [
            DataFile({"path": f"{size}-{n}", "size": size * mib, "stats": '{"numRecords":9}'})
            for n in range(number)
        ]

    assert groups(made(5, 20)) == []
    assert [len(group) for group in groups(made(3, 20))] == [20]
    assert [len(group) for group in groups(made(5, 200))] == [64]
    assert groups(made(200, 300)) == []
