# SPDX-License-Identifier: Apache-2.0
"""Which of Spark's types a column of the lake takes: those whose values stay what they are."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.change import types
from penstock.change.copy_format import CopyFormat
from penstock.frame import fits
from penstock.wire.copy_rows import Field, copy_lines, copy_rows
from penstock.wire.rows_text import text_column


def numeric(precision: int, scale: int) -> int:
    """numeric's typmod."""
    return (precision << 16 | scale & 0x7FF) + 4


@pytest.mark.parametrize(
    ("kind", "type_oid", "typmod", "expected"),
    [
        (pa.int64(), types.INT2, -1, True),  # PostgreSQL refuses what is too large
        (pa.int8(), types.OID, -1, True),
        (pa.int64(), types.NUMERIC, numeric(3, 0), True),
        (pa.int32(), types.NUMERIC, numeric(3, -2), False),
        (pa.int32(), types.FLOAT8, -1, True),
        (pa.int64(), types.FLOAT8, -1, False),
        (pa.int16(), types.FLOAT4, -1, True),
        (pa.int32(), types.FLOAT4, -1, False),
        (pa.int32(), types.TEXT, -1, False),
        (pa.int32(), types.BOOL, -1, False),
        (pa.float32(), types.FLOAT8, -1, True),
        (pa.float64(), types.FLOAT4, -1, False),
        (pa.float64(), types.NUMERIC, -1, False),
        (pa.decimal128(38, 2), types.NUMERIC, numeric(4, 2), True),
        (pa.decimal128(4, 3), types.NUMERIC, numeric(9, 2), False),
        (pa.decimal128(38, 18), types.NUMERIC, -1, True),
        (pa.decimal128(38, 19), types.NUMERIC, -1, False),
        (pa.decimal128(5, 0), types.INT4, -1, False),
        (pa.date32(), types.TIMESTAMP, -1, True),
        (pa.date32(), types.TIMESTAMPTZ, -1, False),
        (pa.timestamp("us"), types.DATE, -1, False),
        (pa.timestamp("us"), types.TIMESTAMPTZ, -1, False),
        (pa.timestamp("us", "UTC"), types.TIMESTAMP, -1, False),
        (pa.timestamp("us", "UTC"), types.TIMESTAMPTZ, -1, True),
        (pa.string(), types.KEPT_AS_TEXT["jsonb"], -1, True),
        (pa.string(), types.INT4, -1, False),
        (pa.string(), types.BYTEA, -1, False),
        (pa.binary(), types.BYTEA, -1, True),
        (pa.list_(pa.int64()), 1007, -1, True),  # int4[]
        (pa.list_(pa.string()), 1007, -1, False),
        (pa.int32(), 1007, -1, False),
        (pa.null(), types.BYTEA, -1, True),
        (pa.list_(pa.null()), 1007, -1, True),
    ],
)
def test_a_type_fits_where_nothing_can_be_lost(
    kind: pa.DataType, type_oid: int, typmod: int, expected: bool
) -> None:
    """Values that are out of range fail in PostgreSQL; what it would round or cut does not fit."""
    assert fits(kind, type_oid, typmod) is expected


def test_lines_are_the_messages_without_their_frames() -> None:
    """What COPY FROM reads is what COPY TO sends, one line a row."""
    columns = [pa.array([1, None]), pa.array(["a\tb", "\\."])]
    fields = [Field(text_column(each)) for each in columns]
    assert copy_lines(fields, 2, CopyFormat()) == b"1\ta\\tb\n\\N\t\\\\.\n"
    assert copy_lines(fields, 0, CopyFormat()) == b""
    assert len(copy_rows(fields, 2, CopyFormat())) == len(b"1\ta\\tb\n\\N\t\\\\.\n") + 2 * 5
