# SPDX-License-Identifier: Apache-2.0
"""Find rows of a Delta table by their values, as places in its data files.

In:   a table at its committed version, and rows to look for: some of its columns, in its types.
Out:  hits: the file and the position of each row that equals one of them; and columns of hits.

Equality is that of ``row_codes`` (change/codes.py): nulls are equal, NaN equals NaN.  Files and row
groups whose bounds exclude every row asked for are not read.  What is left of a file is

    looked up     rows asked for by the table's key, and the file has an index (key_index.py)
    indexed       by the key, in so many rows that it pays: an index is made, and asked
    read          otherwise: only the columns that are asked for, 30 M rows/s on two cores

by the cores of the node, one file after the other on each.  Files without an index that have more
than SPREAD_ROWS rows together are a Spark job, whose executors index or read them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from penstock.change.codes import row_codes
from penstock.change.last_change import with_last_change
from penstock.change.relation import LakeTable
from penstock.lake.key_index import INDEXING, Found, Indexing, KeySearch, key_search
from penstock.lake.log import DataFile, data_files, physical_names
from penstock.lake.reading import Ints, group_sizes, open_file, positions, read_groups
from penstock.lake.session import GetSession
from penstock.lake.tables import arrow_schema
from penstock.lake.vectors import read_vector

T = TypeVar("T")

log = logging.getLogger(__name__)

SPREAD_ROWS = 20_000_000
"""Rows in files without an index, that may have a hit, from which executors look through them."""


@dataclass(frozen=True)
class Hits:
    """Rows of a table that equal rows asked for.

    Hit i is row ``row[i]`` of file ``files[file[i]]``, and equals the row ``at[i]`` asked for.
    """

    files: Sequence[DataFile]
    file: Ints
    row: Ints
    at: Ints

    def __len__(self) -> int:
        return len(self.row)

    def only(self, chosen: NDArray[Any]) -> Hits:
        """These of the hits, by mask or by place."""
        return Hits(self.files, self.file[chosen], self.row[chosen], self.at[chosen])


@dataclass(frozen=True)
class _Bounds:
    """The values asked for in one column: sorted when they are integers, else only the ends."""

    name: str
    low: Any
    high: Any
    values: NDArray[Any] | None

    def may_lie_in(self, low: Any, high: Any) -> bool:
        """Whether one of the values may lie between these, both included."""
        if self.values is None:
            return bool(low <= self.high and self.low <= high)
        first = np.searchsorted(self.values, low, "left")
        return bool(first < np.searchsorted(self.values, high, "right"))


def find_rows(
    table: LakeTable,
    asked: pa.Table,
    session: GetSession | None = None,
    spread_rows: int = SPREAD_ROWS,
    among: Iterable[DataFile] | None = None,
    indexing: Indexing = INDEXING,
) -> Hits:
    """The rows of a table that equal one of ``asked``, whose rows are distinct.

    ``asked`` has columns of the table under their names, in the table's types.  No hits for a
    table without a Delta table.  With ``session``, files without an index that have more than
    ``spread_rows`` rows together are looked through by its executors.  ``among`` are the data
    files; by default the version's.  ``indexing`` says which of them get an index.
    """
    if table.version is None or not asked.num_rows:
        nothing = np.zeros(0, np.int64)
        return Hits((), nothing, nothing, nothing)
    names = physical_names(table.location, table.version)
    bounds = [each for name in asked.column_names if (each := _bounds(name, asked.column(name)))]
    if among is None:
        among = data_files(table.location, table.version).values()
    files = [
        file
        for file in among
        if all(_file_may_have(file, names[each.name], each) for each in bounds)
    ]
    look = _Look(table.location, names, asked, bounds, key_search(table, names, asked, indexing))
    far = [n for n, file in enumerate(files) if not look.has_index(file)]
    if session is None or sum(files[number].rows for number in far) <= spread_rows:
        far = []
    near = sorted(set(range(len(files))).difference(far))
    found = [
        *_on_executors(session, look, [files[number] for number in far]),
        *on_all_cores(lambda number: look(files[number]), near),
    ]
    nothing = np.zeros(0, np.int64)
    numbers = [
        np.full(len(rows), number) for number, (rows, _) in zip(far + near, found, strict=True)
    ]
    return Hits(
        files,
        np.concatenate([nothing, *numbers]),
        np.concatenate([nothing, *(rows for rows, _ in found)]),
        np.concatenate([nothing, *(at for _, at in found)]),
    )


def take_rows(table: LakeTable, hits: Hits, columns: Sequence[str]) -> pa.Table:
    """These columns of the hits, in their order; those of change/last_change.py may be asked."""
    wanted = with_last_change(arrow_schema(table))
    schema = pa.schema([wanted.field(name) for name in columns])
    if not len(hits):  # there may be no Delta table
        return schema.empty_table()
    names = physical_names(table.location, table.version)
    order = np.lexsort((hits.row, hits.file))
    numbers, starts = np.unique(hits.file[order], return_index=True)
    parts = np.split(hits.row[order], starts[1:])

    def take(part: int) -> pa.Table:
        file = hits.files[numbers[part]]
        with open_file(Path(table.location) / file.path) as parquet:
            ends = np.cumsum(group_sizes(parquet))
            groups = np.unique(np.searchsorted(ends, parts[part], side="right")).tolist()
            rows = read_groups(parquet, groups, names, schema)
            return rows.take(pa.array(_positions_in(parquet, groups, parts[part])))

    pieces = list(on_all_cores(take, range(len(parts))))
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return pa.concat_tables(pieces).take(pa.array(back))


@dataclass(frozen=True)
class _Look:
    """Looks through one data file: positions of hits in it, and the rows asked for."""

    location: str
    names: Mapping[str, str]
    asked: pa.Table
    bounds: Sequence[_Bounds]
    search: KeySearch | None

    def has_index(self, file: DataFile) -> bool:
        """Whether the file is looked up, as far as can be seen from outside."""
        return self.search is not None and self.search.indexed(file)

    def __call__(self, file: DataFile) -> Found:
        rows, at = self._equal(file)
        gone = read_vector(self.location, file.vector)
        if not len(gone):
            return rows, at
        places = rows.astype(np.uint64)
        nearest = np.minimum(np.searchsorted(gone, places), len(gone) - 1)
        left = gone[nearest] != places
        return rows[left], at[left]

    def _equal(self, file: DataFile) -> Found:
        """Hits among all rows of the file, gone ones too."""
        if self.search is not None and (found := self.search.find(file)) is not None:
            return found
        with open_file(Path(self.location) / file.path) as parquet:
            groups = [
                number
                for number in range(parquet.num_row_groups)
                if all(_group_may_have(parquet, number, self.names[b.name], b) for b in self.bounds)
            ]
            sizes = group_sizes(parquet)
            if (
                self.search is not None
                and self.search.indexing.pays(sum(sizes[n] for n in groups), sum(sizes))
                and self.search.make(file)
                and (found := self.search.find(file)) is not None
            ):
                return found
            return self._read(parquet, groups)

    def _read(self, parquet: pq.ParquetFile, groups: list[int]) -> Found:
        """Hits in some row groups, by reading them."""
        if not groups:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        rows = read_groups(parquet, groups, self.names, self.asked.schema)
        count = self.asked.num_rows
        codes = row_codes(pa.concat_tables([self.asked, rows]).columns)
        owner = np.full(int(codes.max(initial=-1)) + 1, -1)
        owner[codes[:count]] = np.arange(count)
        at = owner[codes[count:]]
        hit = at >= 0
        return positions(parquet, groups)[hit], at[hit]


def _positions_in(parquet: pq.ParquetFile, groups: Sequence[int], rows: Ints) -> Ints:
    """Where rows of the file are in a table of some of its row groups, which have them."""
    found: Ints = np.searchsorted(positions(parquet, groups), rows)
    return found


def _bounds(name: str, values: pa.ChunkedArray) -> _Bounds | None:
    """None for a column by whose bounds nothing is excluded: only numbers' and texts' are exact."""
    whole = pa.types.is_integer(values.type)
    if values.null_count or not (whole or pa.types.is_string(values.type)):
        return None
    ends = pc.min_max(values).as_py()
    numbers = np.sort(values.to_numpy()) if whole else None
    return _Bounds(name, ends["min"], ends["max"], numbers)


def _file_may_have(file: DataFile, name: str, asked: _Bounds) -> bool:
    """By Delta's statistics, whose whole numbers are exact."""
    if asked.values is None:
        return True
    low = file.stats.get("minValues", {}).get(name)
    high = file.stats.get("maxValues", {}).get(name)
    return low is None or high is None or asked.may_lie_in(low, high)


def _group_may_have(parquet: pq.ParquetFile, group: int, name: str, asked: _Bounds) -> bool:
    """By Parquet's statistics of a row group."""
    if name not in parquet.schema_arrow.names:
        return False
    meta = parquet.metadata.row_group(group)
    number = next(n for n in range(meta.num_columns) if meta.column(n).path_in_schema == name)
    stats = meta.column(number).statistics
    if stats is None or not stats.has_min_max or type(stats.min) is not type(asked.low):
        return True
    return asked.may_lie_in(stats.min, stats.max)


def _on_executors(
    session: GetSession | None, look: _Look, files: Sequence[DataFile]
) -> list[Found]:
    if session is None or not files:
        return []
    log.debug("executors look through %d files of %s", len(files), look.location)
    context = session().sparkContext
    tasks = context.parallelize(files, min(len(files), 2 * context.defaultParallelism))
    found: list[Found] = tasks.map(look).collect()
    return found


def on_all_cores(work: Callable[[int], T], numbers: Sequence[int]) -> Iterator[T]:
    """The results for some numbers, in their order, computed by the cores of the node."""
    if len(numbers) < 2:
        yield from map(work, numbers)
        return
    with ThreadPoolExecutor(os.cpu_count() or 1, "find") as threads:
        yield from threads.map(work, numbers)
