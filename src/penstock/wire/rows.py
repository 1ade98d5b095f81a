# SPDX-License-Identifier: Apache-2.0
"""An Arrow table as DataRow messages, ready to be sent.

In:   the rows of a query, the PostgreSQL type of each column, and the result format codes.
Out:  whole DataRow messages, one after another.  Sizes are computed a column at a time, and each
      column's fields are then written to their places by one compiled loop: no Python object is
      made for a row or a value.

    DataRow:  'D'  int32 length  int16 fields  { int32 size or -1, bytes }*
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.wire import rows_kernels as kernels
from penstock.wire.rows_binary import binary_column
from penstock.wire.rows_text import binary_parts, text_column

CHUNK_ROWS = 65_536
"""Rows that are encoded at a time: bounds memory, and keeps 32-bit offsets of strings valid."""


def encode_rows(
    table: pa.Table, type_oids: Sequence[int], formats: Sequence[int], timezone: str = "UTC"
) -> bytes:
    """All rows as DataRow messages.

    ``formats`` is one result format code (0 text, 1 binary) for each column.  ``timezone`` is the
    session's TimeZone.  FeatureNotSupportedError for a binary format that is not written here,
    and for a time zone that tzdata does not know.
    """
    return b"".join(iter_encoded_rows(table, type_oids, formats, timezone))


def iter_encoded_rows(
    table: pa.Table, type_oids: Sequence[int], formats: Sequence[int], timezone: str = "UTC"
) -> Iterator[bytes]:
    """Like ``encode_rows``, in pieces of CHUNK_ROWS rows."""
    for start in range(0, table.num_rows, CHUNK_ROWS):
        piece = table.slice(start, CHUNK_ROWS)
        columns = [_one_array(piece.column(i)) for i in range(piece.num_columns)]
        fields = [
            binary_column(column, oid) if code else text_column(column, timezone)
            for column, oid, code in zip(columns, type_oids, formats, strict=True)
        ]
        yield _messages(fields, piece.num_rows)


def _one_array(column: Any) -> Any:
    joined = column.combine_chunks()
    return joined if isinstance(joined, pa.Array) else joined.chunk(0)


def _messages(fields: list[Any], rows: int) -> bytes:
    parts = [binary_parts(field) for field in fields]
    sizes = np.full(rows, 6 + 4 * len(fields), np.int64)  # the length field counts itself
    for offsets, _, valid in parts:
        sizes += np.where(valid, np.diff(offsets), 0)
    starts = np.zeros(rows + 1, np.int64)
    np.cumsum(sizes + 1, out=starts[1:])
    out = np.empty(starts[-1], np.uint8)
    at = starts[:-1].copy()
    header = np.empty((rows, 7), np.uint8)
    header[:, 0] = ord("D")
    header[:, 1:5] = sizes.astype(">i4").view(np.uint8).reshape(rows, 4)
    header[:, 5:7] = np.frombuffer(len(fields).to_bytes(2, "big"), np.uint8)
    kernels.pack(header, np.full(rows, 7, np.int64), at, out)
    at += 7
    for offsets, content, valid in parts:
        kernels.place(out, at, offsets, content, valid)
    return out.tobytes()
