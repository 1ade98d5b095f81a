# SPDX-License-Identifier: Apache-2.0
"""Rows of a data file, as Arrow in the table's types, whoever has written the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def open_file(path: Path) -> pq.ParquetFile:
    """A data file; Spark writes 96-bit timestamps by default, which are ours to the microsecond."""
    return pq.ParquetFile(path, coerce_int96_timestamp_unit="us")


def group_sizes(parquet: pq.ParquetFile) -> list[int]:
    """Rows of each row group."""
    return [parquet.metadata.row_group(n).num_rows for n in range(parquet.num_row_groups)]


def positions(parquet: pq.ParquetFile, groups: Sequence[int]) -> Ints:
    """The positions in the file of the rows of some row groups."""
    sizes = group_sizes(parquet)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return np.concatenate([np.arange(starts[n], starts[n + 1]) for n in groups])


def read_groups(
    parquet: pq.ParquetFile, groups: Sequence[int], names: Mapping[str, str], schema: pa.Schema
) -> pa.Table:
    """Columns of some row groups, in the table's types; null where the file lacks one.

    ``names`` says what the table's columns are called in its files.
    """
    read = parquet.read_row_groups(groups, columns=_there(parquet, names, schema))
    count = sum(parquet.metadata.row_group(group).num_rows for group in groups)
    return _typed(read, count, names, schema)


def iter_group(
    parquet: pq.ParquetFile, group: int, names: Mapping[str, str], schema: pa.Schema, rows: int
) -> Iterator[pa.Table]:
    """Like ``read_groups`` of one row group, in pieces of so many rows."""
    columns = _there(parquet, names, schema)
    left = parquet.metadata.row_group(group).num_rows
    if not columns:
        for start in range(0, left, rows):
            count = min(rows, left - start)
            yield _typed(pa.table({}), count, names, schema)
        return
    for batch in parquet.iter_batches(rows, row_groups=[group], columns=columns):
        yield _typed(pa.Table.from_batches([batch]), batch.num_rows, names, schema)


def _there(parquet: pq.ParquetFile, names: Mapping[str, str], schema: pa.Schema) -> list[str]:
    """What those of the schema's columns are called that the file has."""
    there = set(parquet.schema_arrow.names)
    return [name for each in schema.names if (name := names.get(each, each)) in there]


def _typed(read: pa.Table, count: int, names: Mapping[str, str], schema: pa.Schema) -> pa.Table:
    there = set(read.schema.names)
    physical = [names.get(name, name) for name in schema.names]
    columns = [
        read.column(each).cast(field.type) if each in there else pa.nulls(count, field.type)
        for each, field in zip(physical, schema, strict=True)
    ]
    return pa.table(columns, schema=schema)


def read_columns(path: Path, names: Mapping[str, str], schema: pa.Schema) -> pa.Table:
    """All rows of a data file, gone ones too: columns ``names`` of it, as ``schema`` has them."""
    with open_file(path) as parquet:
        return read_groups(parquet, range(parquet.num_row_groups), names, schema)
