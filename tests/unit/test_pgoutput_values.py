# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL's text form becomes typed values; what the lake cannot hold is an error."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.change import types
from penstock.change.relation import Column, Relation
from penstock.errors import FeatureNotSupportedError, ProtocolError, ValueNotHeldError
from penstock.pgoutput.decode import Decoder
from tests.support import pgoutput_bytes as wire

INT_ARRAY, TEXT_ARRAY, NUMERIC_ARRAY = 1007, 1009, 1231
DATE_ARRAY, BOOL_ARRAY = 1182, 1000
UUID = 2950


def numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


def decode(type_oid: int, typmod: int, *texts: wire.Value) -> pa.Array:
    relation = Relation(9, "s", "t", "d", (Column("c", type_oid, typmod, key=False),))
    messages = [wire.describe(relation), *(wire.insert(9, [text]) for text in texts)]
    decoded = Decoder().feed(*wire.framed(wire.transaction(8, *messages)))
    ((_, table),) = decoded.tables
    table.validate(full=True)
    return table["new"].combine_chunks().field("c")


READABLE: list[tuple[int, int, str, Any]] = [
    (types.INT2, -1, "-32768", -32768),
    (types.INT4, -1, "2147483647", 2147483647),
    (types.INT8, -1, "-9223372036854775808", -(2**63)),
    (types.INT8, -1, "9223372036854775807", 2**63 - 1),
    (types.OID, -1, "4294967295", 2**32 - 1),
    (types.BOOL, -1, "t", True),
    (types.BOOL, -1, "f", False),
    (types.FLOAT8, -1, "-1.7976931348623157e+308", -1.7976931348623157e308),
    (types.FLOAT8, -1, "Infinity", float("inf")),
    (types.FLOAT8, -1, "-Infinity", float("-inf")),
    (types.FLOAT4, -1, "0.5", 0.5),
    (types.NUMERIC, numeric(12, 2), "-1234567890.12", Decimal("-1234567890.12")),
    (types.NUMERIC, numeric(12, 2), "5", Decimal("5.00")),
    (types.NUMERIC, numeric(38, 0), "9" * 38, Decimal("9" * 38)),
    (types.NUMERIC, numeric(38, 0), "-" + "9" * 38, Decimal("-" + "9" * 38)),
    (types.NUMERIC, numeric(38, 38), "0." + "9" * 38, Decimal("0." + "9" * 38)),
    (types.NUMERIC, numeric(3, -2), "-99900", Decimal("-99900")),
    (types.NUMERIC, numeric(2, 4), "0.0099", Decimal("0.0099")),
    (
        types.NUMERIC,
        -1,
        "12345678901234567890.123456789",
        Decimal("12345678901234567890.123456789"),
    ),
    (types.NUMERIC, -1, "0.1234567890123456780000", Decimal("0.123456789012345678")),
    (types.NUMERIC, -1, "-0.000000000000000001", Decimal("-0.000000000000000001")),
    (types.DATE, -1, "2024-02-29", date(2024, 2, 29)),
    (types.DATE, -1, "0001-01-01", date(1, 1, 1)),
    (types.DATE, -1, "9999-12-31", date(9999, 12, 31)),
    (
        types.TIMESTAMP,
        -1,
        "1969-12-31 23:59:59.999999",
        datetime(1969, 12, 31, 23, 59, 59, 999999),
    ),
    (types.TIMESTAMP, -1, "2026-11-21 09:22:13.5", datetime(2026, 11, 21, 9, 22, 13, 500000)),
    (types.TIMESTAMP, -1, "2026-11-21 09:22:13", datetime(2026, 11, 21, 9, 22, 13)),
    (types.TIMESTAMPTZ, -1, "2000-01-01 00:00:00+00", datetime(2000, 1, 1, tzinfo=UTC)),
    (types.TIMESTAMPTZ, -1, "2000-01-01 05:30:00+05:30", datetime(2000, 1, 1, tzinfo=UTC)),
    (
        types.TIMESTAMPTZ,
        -1,
        "1890-01-01 00:00:30-00:00:30",
        datetime(1890, 1, 1, 0, 1, tzinfo=UTC),
    ),
    (types.BYTEA, -1, r"\x", b""),
    (types.BYTEA, -1, r"\x00ff7a", b"\x00\xffz"),
    (types.TEXT, -1, "", ""),
    (types.TEXT, -1, "žluťoučký 🐎", "žluťoučký 🐎"),
    (UUID, -1, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    (INT_ARRAY, -1, "{}", []),
    (INT_ARRAY, -1, "{1,NULL,-3}", [1, None, -3]),
    (BOOL_ARRAY, -1, "{t,f}", [True, False]),
    (NUMERIC_ARRAY, numeric(4, 1), "{1.5,NULL}", [Decimal("1.5"), None]),
    (DATE_ARRAY, -1, "{2024-02-29}", [date(2024, 2, 29)]),
    (TEXT_ARRAY, -1, '{a,"b c","","NULL",NULL}', ["a", "b c", "", "NULL", None]),
    (TEXT_ARRAY, -1, r'{"q\"u","back\\slash","{br,ace}"}', ['q"u', "back\\slash", "{br,ace}"]),
]


@pytest.mark.parametrize(("type_oid", "typmod", "text", "value"), READABLE)
def test_values(type_oid: int, typmod: int, text: str, value: Any) -> None:
    """A value is read exactly, between nulls as well as alone."""
    expected = pa.array([value], types.arrow_type(type_oid, typmod))
    assert decode(type_oid, typmod, text).equals(expected)
    between = decode(type_oid, typmod, None, text, None, text)
    assert between.equals(pa.array([None, value, None, value], expected.type))


def test_not_a_number_is_a_float() -> None:
    """NaN is a value of the lake's floats."""
    (value,) = decode(types.FLOAT8, -1, "NaN").to_pylist()
    assert value != value


@pytest.mark.parametrize(
    ("type_oid", "typmod", "text"),
    [
        (types.NUMERIC, numeric(12, 2), "NaN"),
        (types.NUMERIC, -1, "Infinity"),
        (types.NUMERIC, -1, "-Infinity"),
        (types.NUMERIC, -1, "0.1234567890123456789"),
        (types.NUMERIC, -1, "1" + 20 * "0"),
        (types.NUMERIC, -1, "1" * 1000),
        (types.DATE, -1, "infinity"),
        (types.DATE, -1, "-infinity"),
        (types.DATE, -1, "10000-01-01"),
        (types.DATE, -1, "0044-03-15 BC"),
        (types.TIMESTAMP, -1, "infinity"),
        (types.TIMESTAMP, -1, "294276-12-31 23:59:59.999999"),
        (types.TIMESTAMP, -1, "4713-01-01 00:00:00 BC"),
        (types.TIMESTAMPTZ, -1, "0001-01-01 00:00:00+01"),
        (types.TIMESTAMPTZ, -1, "9999-12-31 23:59:59-01"),
        (types.TIMESTAMPTZ, -1, "0044-03-15 00:00:00+00 BC"),
        (INT_ARRAY, -1, "{{1,2},{3,4}}"),
        (INT_ARRAY, -1, "[0:1]={1,2}"),
        (NUMERIC_ARRAY, -1, "{1,NaN}"),
    ],
)
def test_values_that_the_lake_cannot_hold(type_oid: int, typmod: int, text: str) -> None:
    """Such a value stops the stream; the error names table, column, value and position."""
    with pytest.raises(ValueNotHeldError) as caught:
        decode(type_oid, typmod, None, text)
    assert '"s.t"' in caught.value.message
    assert '"c"' in caught.value.message
    assert text[:50] in caught.value.message
    assert "0/8" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("type_oid", "text"),
    [
        (types.INT2, "32768"),
        (types.INT4, "1x"),
        (types.INT4, ""),
        (types.INT4, "-"),
        (types.INT8, "9223372036854775808"),
        (types.INT8, "99999999999999999999"),
        (types.OID, "-1"),
        (types.BOOL, "true"),
        (types.FLOAT8, "1,5"),
        (types.FLOAT8, ""),
        (types.NUMERIC, ""),
        (types.NUMERIC, "1."),
        (types.NUMERIC, ".5"),
        (types.NUMERIC, "1e5"),
        (types.DATE, "2023-02-29"),
        (types.DATE, "2023-13-01"),
        (types.DATE, "01.02.2023"),
        (types.DATE, "2023-1-01"),
        (types.DATE, "0000-01-01"),
        (types.TIMESTAMP, "2023-01-01"),
        (types.TIMESTAMP, "2023-01-01 24:00:00"),
        (types.TIMESTAMP, "2023-01-01 10:00:00."),
        (types.TIMESTAMP, "2023-01-01 10:00:00.1234567"),
        (types.TIMESTAMP, "2023-01-01 10:00:00+00"),
        (types.TIMESTAMPTZ, "2023-01-01 10:00:00"),
        (types.TIMESTAMPTZ, "2023-01-01 10:00:00+00:00:00:00"),
        (types.BYTEA, "abc"),
        (types.BYTEA, r"\xabc"),
        (types.BYTEA, r"\xzz"),
        (types.BYTEA, ""),
        (INT_ARRAY, "{1,2"),
        (INT_ARRAY, "{1,}"),
        (INT_ARRAY, "{,1}"),
        (INT_ARRAY, "1"),
        (INT_ARRAY, "{1}x}"),
        (TEXT_ARRAY, '{"a}'),
        (TEXT_ARRAY, '{"a"b}'),
        (TEXT_ARRAY, '{a"b}'),
        (TEXT_ARRAY, '{"a\\}'),
        (TEXT_ARRAY, "{"),
    ],
)
def test_values_of_a_wrong_form(type_oid: int, text: str) -> None:
    """What the type never prints is the publisher's fault."""
    with pytest.raises(ProtocolError):
        decode(type_oid, -1, text)


def test_a_type_that_the_lake_cannot_hold() -> None:
    """A numeric with too many digits is refused whatever the value is, and the table is named."""
    with pytest.raises(FeatureNotSupportedError) as caught:
        decode(types.NUMERIC, numeric(39, 0), "1")
    assert '"s.t"' in str(caught.value)
