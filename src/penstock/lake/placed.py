# SPDX-License-Identifier: Apache-2.0
"""Rows of a table by their places in its data files, and those rows, piece by piece.

In:   a table at its committed version.
Out:  the places of all its rows, or of some; its rows in the table's types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.change.relation import LakeTable
from penstock.lake.find import Hits
from penstock.lake.log import DataFile, data_files, physical_names
from penstock.lake.reading import Ints, group_sizes, open_file, read_groups
from penstock.lake.tables import arrow_schema
from penstock.lake.vectors import Rows, read_vector

PIECE_ROWS = 50_000
PIECE_BYTES = 16 * 1024 * 1024
"""Rows, and bytes as Arrow has them, that are read together at most; one row may be larger."""


@dataclass(frozen=True)
class Places:
    """Place i is the position ``row[i]`` of the data file ``paths[file[i]]`` (its action's path).

    Places are distinct, and ascend by file and row.
    """

    paths: tuple[str, ...]
    file: Ints
    row: Ints

    def __len__(self) -> int:
        return len(self.row)

    def only(self, chosen: Ints) -> Places:
        """Some of them, whose numbers ascend."""
        return Places(self.paths, self.file[chosen], self.row[chosen])

    def by_path(self, chosen: Ints | slice = slice(None)) -> dict[str, Rows]:
        """The positions of some of them, ascending, by path."""
        file, row = self.file[chosen], self.row[chosen]
        return {
            self.paths[number]: np.sort(row[file == number]).astype(np.uint64)
            for number in np.unique(file)
        }


@dataclass(frozen=True)
class Size:
    """Rows that a table has, and bytes that its data files have."""

    rows: int
    size: int


def table_size(table: LakeTable) -> Size:
    """How large a table is at its version, as Delta's log says."""
    if table.version is None:
        return Size(0, 0)
    files = data_files(table.location, table.version).values()
    gone = sum(file.vector["cardinality"] for file in files if file.vector is not None)
    return Size(sum(file.rows for file in files) - gone, sum(file.add["size"] for file in files))


def all_places(table: LakeTable) -> Places:
    """Where all rows of a table are."""
    if table.version is None:
        return places_of({})
    files = data_files(table.location, table.version)
    return places_of({path: _rows_left(table, file) for path, file in files.items()})


def places_of(rows: Mapping[str, Ints]) -> Places:
    """Places from the ascending positions of rows by the path of their data file."""
    parts = [np.zeros(0, np.int64), *rows.values()]
    numbers = np.repeat(np.arange(len(rows)), [len(each) for each in parts[1:]])
    return Places(tuple(rows), numbers, np.concatenate(parts).astype(np.int64))


def places_of_hits(hits: Hits) -> Places:
    """Where rows are that were found."""
    paths = [file.add["path"] for file in hits.files]
    return places_of(
        {path: np.unique(hits.row[hits.file == number]) for number, path in enumerate(paths)}
    )


def union(several: Sequence[Places]) -> Places:
    """The places that are among any of several."""
    rows: dict[str, Ints] = {}
    for places in several:
        for number, path in enumerate(places.paths):
            more = places.row[places.file == number]
            rows[path] = np.union1d(rows[path], more) if path in rows else more
    return places_of(rows)


def merged(first: Places, second: Places) -> tuple[Places, Ints]:
    """The places of both, which have none in common.

    Place i is number ``order[i]`` of the first ones followed by the second ones.
    """
    paths, file = _one_numbering(first, second)
    row = np.concatenate([first.row, second.row])
    order: Ints = np.lexsort((row, file))
    return Places(paths, file[order], row[order]), order


def without(places: Places, others: Places) -> Places:
    """Those that are not among others."""
    _, file = _one_numbering(places, others)
    codes = file << 40 | np.concatenate([places.row, others.row])
    return places.only(np.flatnonzero(~np.isin(codes[: len(places)], codes[len(places) :])))


def _one_numbering(first: Places, second: Places) -> tuple[tuple[str, ...], Ints]:
    """All paths, and the number of the file of each place, the first ones' before the second's."""
    paths = tuple(dict.fromkeys((*first.paths, *second.paths)))
    number = {path: n for n, path in enumerate(paths)}
    files = [
        np.array([number[path] for path in each.paths], np.int64)[each.file]
        for each in (first, second)
    ]
    return paths, np.concatenate(files)


def without_gone(table: LakeTable, file: DataFile, rows: Ints) -> Ints:
    """Those of ascending positions of a data file whose rows the version has."""
    gone = read_vector(table.location, file.vector).astype(np.int64)
    return rows[~np.isin(rows, gone, assume_unique=True)] if len(gone) else rows


def read_pieces(
    table: LakeTable, places: Places, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """The rows at some places of a table, in their order, some thousand at a time.

    ``columns``: these of them, not all.
    """
    if not len(places):
        return
    assert table.version is not None
    names = physical_names(table.location, table.version)
    files = data_files(table.location, table.version)
    schema = arrow_schema(table)
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    pending: list[pa.Table] = []
    for number, path in enumerate(places.paths):
        rows = places.row[places.file == number]
        for part in _parts(table, files[path], names, schema, rows):
            pending.append(part)
            if sum(each.num_rows for each in pending) >= PIECE_ROWS // 2:
                yield from _pieces(pending)
                pending = []
    if pending:
        yield from _pieces(pending)


def _parts(
    table: LakeTable, file: DataFile, names: Mapping[str, str], schema: pa.Schema, rows: Ints
) -> Iterator[pa.Table]:
    """Rows of a data file, those of one row group at a time."""
    with open_file(Path(table.location) / file.path) as parquet:
        starts = np.concatenate([[0], np.cumsum(group_sizes(parquet))])
        borders = np.searchsorted(rows, starts)
        for group in np.flatnonzero(np.diff(borders)):
            chosen = rows[borders[group] : borders[group + 1]] - starts[group]
            read = read_groups(parquet, [int(group)], names, schema)
            yield read if len(chosen) == read.num_rows else read.take(pa.array(chosen))


def _pieces(parts: Sequence[pa.Table]) -> Iterator[pa.Table]:
    whole = pa.concat_tables(parts)
    step = max(1, min(PIECE_ROWS, int(whole.num_rows * PIECE_BYTES / max(whole.nbytes, 1))))
    for start in range(0, whole.num_rows, step):
        yield whole.slice(start, step)


def _rows_left(table: LakeTable, file: DataFile) -> Ints:
    with open_file(Path(table.location) / file.path) as parquet:
        return without_gone(table, file, np.arange(parquet.metadata.num_rows))
