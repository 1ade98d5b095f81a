# SPDX-License-Identifier: Apache-2.0
"""The rows of a table at a version as Arrow, one after another, never the table in memory.

In:   a table's folder and a version that its log has, and columns of it.
Out:  its rows in the order of its files, in batches of about BATCH_BYTES.

Files come in the order in which they were written, as rows do from PostgreSQL's heap; a checkpoint
of Delta's log has them in any order.  Keys mostly ascend with time, and who puts the rows into a
table with an index, as a subscriber does, is a third quicker when they do.

The files are read as they are: the log says which, deletion vectors which of their rows are gone,
the metadata what a column is called in them, and a file from before a column has nulls for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import TableStateError
from penstock.lake.log import data_files, physical_names
from penstock.lake.reading import Ints
from penstock.lake.vectors import read_vector

BATCH_BYTES = 2 * 1024 * 1024
BATCH_ROWS = 16_384
"""Bytes, about, and rows of a batch."""

SAMPLE_ROWS = 64
"""Rows of a file that tell how large its rows are."""

_BUFFER = 1024 * 1024
"""Bytes of a column that are read from a file at a time."""


def table_rows(location: Path, version: int | None, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The columns of ``schema``; TableStateError when the version lacks one, or a file of it.

    A version of None is the empty table that has no Delta table yet.
    """
    if version is None:
        return
    names = physical_names(str(location), version)
    missing = [name for name in schema.names if name not in names]
    if missing:
        raise TableStateError(
            f'the Delta table in {location} has no column "{missing[0]}" at version {version}',
            hint="If its definition was just changed, start the transaction again.",
        )
    files = data_files(str(location), version).values()
    for file in sorted(files, key=lambda file: file.add.get("modificationTime", 0)):
        gone = read_vector(str(location), file.vector).astype(np.int64)
        try:
            for start, batch in _file_rows(location / file.path, names, schema):
                left = _left(batch, start, gone)
                if left.num_rows:
                    yield left
        except (OSError, pa.ArrowException) as error:
            raise TableStateError(
                f"could not read a data file of the Delta table in {location}",
                detail=str(error).partition("\n")[0],
                hint="A version that is older than the table's retention may lack files.",
            ) from error


def file_rows(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """All rows of one Parquet file that has these columns."""
    for _, batch in _file_rows(path, {name: name for name in schema.names}, schema):
        yield batch


def _file_rows(
    path: Path, names: Mapping[str, str], schema: pa.Schema
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches of a file, each with the position of its first row."""
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us", buffer_size=_BUFFER) as parquet:
        there = set(parquet.schema_arrow.names)
        physical = [names[name] for name in schema.names]
        wanted = [each for each in physical if each in there]
        start = 0
        for batch in parquet.iter_batches(_batch_rows(parquet, wanted), columns=wanted):
            yield start, _as_table(batch, physical, schema)
            start += batch.num_rows


def _batch_rows(parquet: pq.ParquetFile, wanted: Sequence[str]) -> int:
    """How many rows have BATCH_BYTES: by the footer, and by some rows.

    The footer counts a value once that many rows share, and the first rows may be the small ones.
    """
    if not parquet.num_row_groups:
        return 1
    size = sum(
        column.total_uncompressed_size
        for group in map(parquet.metadata.row_group, range(parquet.num_row_groups))
        for column in map(group.column, range(group.num_columns))
        if any(f"{column.path_in_schema}.".startswith(f"{name}.") for name in wanted)
    )
    each = size / max(parquet.metadata.num_rows, 1)
    for sample in parquet.iter_batches(SAMPLE_ROWS, row_groups=[0], columns=wanted):
        each = max(each, sample.nbytes / sample.num_rows)
        break
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(each, 1))))


def _as_table(batch: pa.RecordBatch, physical: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    there = set(batch.schema.names)
    columns = [
        _cast(batch.column(each), field.type)
        if each in there
        else pa.nulls(batch.num_rows, field.type)
        for each, field in zip(physical, schema, strict=True)
    ]
    if not columns:
        return batch.select([])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)


def _left(batch: pa.RecordBatch, start: int, gone: Ints) -> pa.RecordBatch:
    first, last = np.searchsorted(gone, [start, start + batch.num_rows])
    if first == last:
        return batch
    kept = np.ones(batch.num_rows, np.bool_)
    kept[gone[first:last] - start] = False
    return batch.filter(pa.array(kept))
