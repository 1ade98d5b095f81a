# SPDX-License-Identifier: Apache-2.0
"""All rows of a table, each with its place in the data files.

In:   a table at its committed version.
Out:  its rows in the table's types, and the file and position of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.change.relation import LakeTable
from penstock.lake.log import DataFile, data_files, physical_names
from penstock.lake.reading import Ints, read_columns
from penstock.lake.tables import arrow_schema
from penstock.lake.vectors import Rows, read_vector


@dataclass(frozen=True)
class Placed:
    """Row i is at position ``row[i]`` of the data file ``paths[file[i]]`` (its action's path)."""

    rows: pa.Table
    paths: tuple[str, ...]
    file: Ints
    row: Ints

    def by_path(self, chosen: Ints) -> dict[str, Rows]:
        """The positions of some of the rows, ascending, by path."""
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


def placed_rows(table: LakeTable) -> Placed:
    """Read all rows of a table."""
    schema = arrow_schema(table)
    nothing = np.zeros(0, np.int64)
    if table.version is None:
        return Placed(schema.empty_table(), (), nothing, nothing)
    names = physical_names(table.location, table.version)
    files = data_files(table.location, table.version)
    parts, places = [schema.empty_table()], [nothing]
    for file in files.values():
        rows = read_columns(Path(table.location) / file.path, names, schema)
        left = _left(table, file, rows.num_rows)
        parts.append(rows.take(pa.array(left)))
        places.append(left)
    counts = [len(each) for each in places[1:]]
    return Placed(
        pa.concat_tables(parts),
        tuple(files),
        np.repeat(np.arange(len(counts)), counts),
        np.concatenate(places),
    )


def _left(table: LakeTable, file: DataFile, count: int) -> Ints:
    gone = read_vector(table.location, file.vector).astype(np.int64)
    return np.delete(np.arange(count), gone)
