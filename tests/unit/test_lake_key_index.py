# SPDX-License-Identifier: Apache-2.0
"""Keys are found through indexes as they are found by reading, whatever becomes of an index."""

from __future__ import annotations

import dataclasses
import random
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.change import types
from penstock.change.relation import LakeColumn, LakeTable
from penstock.lake import key_index, tables
from penstock.lake.compact import rewrite, swap
from penstock.lake.files import write_file
from penstock.lake.find import find_rows
from penstock.lake.key_hash import key_numbers
from penstock.lake.key_index import FOLDER, INDEXING, Indexing, remove_unneeded
from penstock.lake.log import data_files
from tests.support.no_spark import no_spark

Row = dict[str, Any]
UUID = types.KEPT_AS_TEXT["uuid"]
VALUES: dict[int, list[Any]] = {
    types.INT2: [-(2**15), -1, 0, 1, 2**15 - 1],
    types.INT4: [-(2**31), -1, 0, 1, 2, 3, 2**31 - 1],
    types.INT8: [-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1],
    types.TEXT: ["", "a", "A", "a ", "aa", "é", "e\u0301", "\U0001f600", "0" * 40, "0" * 41],
    UUID: ["00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000001"],
    types.BYTEA: [b"", b"\x00", b"\x00\x00", b"a"],
    types.BOOL: [False, True],
    types.NUMERIC: [Decimal("0"), Decimal("-1.5"), Decimal("1.5"), Decimal(10**19)],
    types.FLOAT4: [0.0, -0.0, 1.5, float("nan"), float("inf")],
    types.FLOAT8: [0.0, -0.0, 1.5, float("nan"), -float("nan"), float("-inf")],
    types.DATE: [-719162, 0, 19000],
    types.TIMESTAMP: [-(10**16), 0, 1, 10**15],
    types.TIMESTAMPTZ: [-(10**16), 0, 1, 10**15],
}

NUMBERS = [0, 588756875088343948, 2062733168098466202]

ALWAYS = Indexing(rows=1, run_bytes=300)
"""Every file is worth an index, of several runs; GROUP_ROWS gives it several row groups."""
GROUP_ROWS = 16


def lake(folder: Path, *key: int) -> LakeTable:
    """An empty table at version 0 whose key has columns of these types, and one column more."""
    columns = [LakeColumn(n, f"k{n}", oid, -1, True) for n, oid in enumerate(key)]
    columns.append(LakeColumn(len(key), "v", types.INT8, -1, False))
    names = tuple(column.name for column in columns[:-1])
    location = str(folder / "t")
    made = LakeTable(1, "public", "t", "r", "d", tuple(columns), names, location, None, None)
    return at(made, tables.create(no_spark, made, "m"))


def at(table: LakeTable, version: int | None) -> LakeTable:
    """The table with this version committed."""
    assert version is not None
    return dataclasses.replace(table, version=version)


def append(table: LakeTable, rows: list[Row]) -> LakeTable:
    """One more file."""
    arrow = pa.Table.from_pylist(rows, schema=tables.arrow_schema(table))
    file = write_file(arrow, table.location, group_rows=GROUP_ROWS)
    return at(table, tables.append_files(table, [file], "m"))


def numbered(table: LakeTable, keys: range | list[int]) -> LakeTable:
    """One more file, of a table whose key is one whole number."""
    return append(table, [{"k0": key, "v": -key} for key in keys])


def keys_of(table: LakeTable, rows: list[Row]) -> pa.Table:
    """Keys to look for."""
    return pa.Table.from_pylist(rows, schema=tables.arrow_schema(table)).select(list(table.key))


def found(
    table: LakeTable, asked: pa.Table, indexing: Indexing = ALWAYS
) -> list[tuple[str, int, int]]:
    """All hits: file, position, and the key asked for."""
    hits = find_rows(table, asked, indexing=indexing)
    paths = [file.path for file in hits.files]
    return sorted(
        (paths[file], int(row), int(at))
        for file, row, at in zip(hits.file, hits.row, hits.at, strict=True)
    )


def by_reading(table: LakeTable, asked: pa.Table) -> list[tuple[str, int, int]]:
    """The same without an index: it does not count as a key then."""
    return found(dataclasses.replace(table, key=()), asked)


def indexes(table: LakeTable) -> list[Path]:
    """The files in the folder of indexes."""
    return sorted(Path(table.location, FOLDER).glob("*"))


@pytest.mark.parametrize(
    "key",
    [
        *((each,) for each in VALUES),
        (types.INT4, types.INT4),
        (types.TEXT, types.FLOAT8),
        (types.NUMERIC, types.INT8, UUID),
    ],
    ids=str,
)
def test_hits_are_those_of_reading(tmp_path: Path, key: tuple[int, ...]) -> None:
    """For keys of every type, in many files and rows, some gone: at first and with the index."""
    chance = random.Random(str(key))

    def row() -> Row:
        return {f"k{n}": chance.choice(VALUES[oid]) for n, oid in enumerate(key)}

    table = lake(tmp_path, *key)
    for size in (70, 1, 40):
        table = append(table, [row() | {"v": n} for n in range(size)])
    assert table.version is not None
    first, *_ = data_files(table.location, table.version)
    gone = {first: np.array([0, 7, 39, 69], np.uint64)}
    table = at(table, tables.change_rows(table, gone, [], "m"))
    asked = keys_of(table, list({repr(each): each for each in (row() for _ in range(30))}.values()))
    distinct = np.unique(key_numbers(asked), return_index=True)[1]  # -0.0 is 0.0, NaN is NaN
    asked = asked.take(pa.array(chance.sample(distinct.tolist(), len(distinct))))
    expected = by_reading(table, asked)
    assert expected and indexes(table) == []
    assert found(table, asked) == expected
    assert len(indexes(table)) == 3
    assert found(table, asked) == expected
    backwards = asked.select(list(reversed(table.key)))
    assert found(table, backwards) == expected
    assert found(table, asked.slice(0, 1)) == [hit for hit in expected if hit[2] == 0]


def test_a_data_file_is_not_read_again(tmp_path: Path) -> None:
    """Once there is an index, keys are found even if the data file is away."""
    table = numbered(lake(tmp_path, types.INT8), range(0, 200, 2))
    asked = pa.table({"k0": pa.array([7, 8, 198], pa.int64())})
    expected = found(table, asked)
    assert [(row, at) for _, row, at in expected] == [(4, 1), (99, 2)]
    Path(table.location, expected[0][0]).unlink()
    assert found(table, asked) == expected


def test_an_index_that_is_damaged_or_of_something_else(tmp_path: Path) -> None:
    """Cut anywhere, empty, of another file or key: it is made again, and nothing is missed."""
    table = numbered(numbered(lake(tmp_path, types.INT8), range(100)), range(100, 200))
    asked = pa.table({"k0": pa.array([5, 50, 150], pa.int64())})
    expected = found(table, asked)
    one, other = indexes(table)
    whole, another = one.read_bytes(), other.read_bytes()
    as_text = dataclasses.replace(
        table, columns=(LakeColumn(0, "k0", types.TEXT, -1, True), *table.columns[1:])
    )
    cut = [whole[:size] for size in (0, 1, 8, len(whole) // 2, len(whole) - 1)]
    for content in (*cut, another, whole + b"\0", b"\0" * len(whole)):
        one.write_bytes(content)
        assert found(table, asked) == expected
        assert one.read_bytes() == whole
    texts = pa.table({"k0": ["5", "50", "150", "05"]})
    assert found(as_text, texts) == expected
    assert one.read_bytes() != whole
    assert found(table, asked) == expected
    assert one.read_bytes() == whole


def colliding(count: int) -> list[Row]:
    """Different keys of two bigints that all have one number.

    The number is mix(mix(BASIS ^ k0) ^ k1), with SplitMix64's finalizer as mix.  So that k1 which
    is mix(BASIS ^ k0) itself makes the number mix(0) for any k0: 0.
    """
    word = 2**64 - 1

    def mix(bits: int) -> int:
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & word
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & word
        return bits ^ bits >> 31

    seconds = (mix(0xCBF29CE484222325 ^ first) for first in range(count))
    return [
        {"k0": first, "k1": second - 2**64 if second >> 63 else second}
        for first, second in enumerate(seconds)
    ]


def test_keys_whose_numbers_are_equal(tmp_path: Path) -> None:
    """If all keys have one hash, a look-up still finds the right rows, and not by the million.

    So nobody who may choose keys can make rows of others go, or fill the memory.
    """
    rows = colliding(90)
    table = append(lake(tmp_path, types.INT8, types.INT8), [row | {"v": 0} for row in rows[:50]])
    assert key_numbers(keys_of(table, rows)).tolist() == [0] * 90
    for count in (1, 60):
        asked = keys_of(table, rows[30 : 30 + count])
        expected = by_reading(table, asked)
        assert [(row, at) for _, row, at in expected] == [
            (30 + n, n) for n in range(min(count, 20))
        ]
        assert found(table, asked) == expected
        assert len(indexes(table)) == 1


def test_numbers_are_the_same_for_good(tmp_path: Path) -> None:
    """They are kept in files, so they may change only together with the version in those."""
    rows = [{"k0": "", "k1": 0.0}, {"k0": "a", "k1": -0.0}, {"k0": "ab", "k1": float("nan")}]
    keys = keys_of(lake(tmp_path, types.TEXT, types.FLOAT8), rows)
    assert key_index.VERSION == b"1"
    assert key_numbers(keys).tolist() == NUMBERS
    assert key_numbers(keys.slice(1)).tolist() == NUMBERS[1:]


def test_what_has_no_index(tmp_path: Path) -> None:
    """Few rows, the end of many, whole rows, null and lists as keys: they are read, and found."""
    table = numbered(lake(tmp_path / "few", types.INT4), range(1000))
    assert found(table, keys_of(table, [{"k0": 5}]), INDEXING) and indexes(table) == []
    table = numbered(lake(tmp_path / "end", types.INT4), range(16 * 20))
    assert found(table, keys_of(table, [{"k0": 319}])) and indexes(table) == []
    assert found(table, keys_of(table, [{"k0": 0}, {"k0": 319}])) and len(indexes(table)) == 1
    table = numbered(lake(tmp_path / "whole", types.INT4), range(100))
    rows = pa.Table.from_pylist([{"k0": 5, "v": -5}], schema=tables.arrow_schema(table))
    assert found(table, rows) and indexes(table) == []
    table = append(table, [{"k0": None, "v": 1}, {"k0": 6, "v": 1}])
    nothing = keys_of(table, [{"k0": None}])
    assert len(found(table, nothing)) == 1 and indexes(table) == []
    assert len(found(table, keys_of(table, [{"k0": 6}]))) == 2
    assert len(indexes(table)) == 1  # of the file without a null; the other left no draft
    lists = append(lake(tmp_path / "lists", 1007), [{"k0": [n, None], "v": 0} for n in range(9)])
    assert len(found(lists, keys_of(lists, [{"k0": [3, None]}]))) == 1 and indexes(lists) == []


def test_an_index_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As on a full disk: a warning, and the keys are found by reading."""
    table = numbered(lake(tmp_path, types.INT8), range(100))
    Path(table.location, FOLDER).touch()
    asked = pa.table({"k0": pa.array([7], pa.int64())})
    assert found(table, asked) == by_reading(table, asked) != []
    assert "are not indexed" in caplog.text


def test_a_rewritten_file_is_indexed_and_old_indexes_go(tmp_path: Path) -> None:
    """Compaction brings the index along; what the version does not need is removed."""
    table = numbered(numbered(lake(tmp_path, types.INT8), range(60)), range(60, 100))
    asked = pa.table({"k0": pa.array([7, 70], pa.int64())})
    assert table.version is not None
    sources = list(data_files(table.location, table.version).values())
    swap_at = at(table, swap(table, rewrite(table, sources), "m"))
    assert indexes(table) == []  # nobody has looked for a key yet
    found(swap_at, asked)
    [source] = data_files(table.location, swap_at.version or 0).values()
    torn = Path(table.location, FOLDER, ".torn.tmp")
    torn.touch()
    after = at(swap_at, swap(swap_at, rewrite(swap_at, [source]), "m"))
    assert len(indexes(table)) == 3
    assert remove_unneeded(after) == 2
    [index] = indexes(table)
    [file] = data_files(after.location, after.version or 0).values()
    assert index.name == key_index.index_name(file) and not torn.exists()
    assert [(row, at) for _, row, at in found(after, asked)] == [(7, 0), (70, 1)]
    shutil.rmtree(index.parent)
    assert remove_unneeded(after) == 0
    assert len(found(after, asked)) == 2
