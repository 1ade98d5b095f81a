# SPDX-License-Identifier: Apache-2.0
"""DataRow messages made from Arrow columns: framing, and each type's text as PostgreSQL's."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.change import types
from penstock.errors import FeatureNotSupportedError
from penstock.wire import rows

TZ = pa.timestamp("us", "UTC")


def parse(messages: bytes) -> list[list[bytes | None]]:
    """The fields of each DataRow; an independent reader of the format."""
    found: list[list[bytes | None]] = []
    at = 0
    while at < len(messages):
        assert messages[at : at + 1] == b"D"
        size, count = struct.unpack_from("!ih", messages, at + 1)
        place, row = at + 7, []
        for _ in range(count):
            (length,) = struct.unpack_from("!i", messages, place)
            place += 4
            row.append(None if length < 0 else messages[place : place + length])
            place += max(length, 0)
        assert place == at + 1 + size
        found.append(row)
        at = place
    return found


def column(array: pa.Array, oid: int, code: int = 0, timezone: str = "UTC") -> list[Any]:
    table = pa.table({"c": array})
    return [row[0] for row in parse(rows.encode_rows(table, [oid], [code], timezone))]


FLOAT8 = [
    (0.0, "0"), (-0.0, "-0"), (1.0, "1"), (-1.5, "-1.5"), (0.1, "0.1"), (1e-4, "0.0001"),
    (1e-5, "1e-05"),
    (1.25e-7, "1.25e-07"), (123456789012345.0, "123456789012345"), (1e14, "100000000000000"),
    (1e15, "1e+15"), (1.5e300, "1.5e+300"), (5e-324, "5e-324"), (1e23, "9.999999999999999e+22"),
    (1.7976931348623157e308, "1.7976931348623157e+308"), (100.25, "100.25"),
    (18014398509481986.0, "1.8014398509481984e+16"), (float("inf"), "Infinity"),
    (float("-inf"), "-Infinity"),
]  # fmt: skip


def test_float8_has_postgresqls_shortest_form() -> None:
    """Fixed form from 1e-4 up to 15 digits, at least two digits of exponent, no ties."""
    values = [*(value for value, _ in FLOAT8), float("nan"), None]
    texts = [None if t is None else t.decode() for t in column(pa.array(values), types.FLOAT8)]
    assert texts == [*(text for _, text in FLOAT8), "NaN", None]


def test_float4_switches_to_exponents_at_six_digits() -> None:
    """float4 prints like float8, with its own thresholds."""
    array = pa.array([1.1, 123456.0, 1e6, 33554434.0, 1e-4], pa.float32())
    assert column(array, types.FLOAT4) == [
        b"1.1", b"123456", b"1e+06", b"3.3554432e+07", b"0.0001",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("array", "oid", "expected"),
    [
        (pa.array([True, False, None]), types.BOOL, ["t", "f", None]),
        (pa.array([-5, 32767], pa.int16()), types.INT2, ["-5", "32767"]),
        (
            pa.array([Decimal("1.50"), Decimal("-0.05"), Decimal("0")], pa.decimal128(10, 2)),
            types.NUMERIC,
            ["1.50", "-0.05", "0.00"],
        ),
        (pa.array([Decimal("1E-18")], pa.decimal128(38, 18)), types.NUMERIC, [f"{0:.17f}1"]),
        (pa.array([Decimal("12")], pa.decimal128(5, 0)), types.NUMERIC, ["12"]),
        (
            pa.array([0, -1, -719528, 2932897, None], pa.date32()),
            types.DATE,
            ["1970-01-01", "1969-12-31", "0001-01-01 BC", "10000-01-01", None],
        ),
        (
            pa.array([0, -1, 1_500_000, 1_000_001], pa.timestamp("us")),
            types.TIMESTAMP,
            [
                "1970-01-01 00:00:00",
                "1969-12-31 23:59:59.999999",
                "1970-01-01 00:00:01.5",
                "1970-01-01 00:00:01.000001",
            ],
        ),
        (pa.array([b"\x00\xffab", b"", None]), types.BYTEA, ["\\x00ff6162", "\\x", None]),
        (pa.array(["é", "", None]), types.TEXT, ["é", "", None]),
        (
            pa.array([["a", "b c", "", None, "null", 'q"\\', "x,y"], [], None]),
            1009,
            ['{a,"b c","",NULL,"null","q\\"\\\\","x,y"}', "{}", None],
        ),
        (pa.array([[1.5, None]], pa.list_(pa.float64())), 1022, ["{1.5,NULL}"]),
        (pa.array([[True]]), 1000, ["{t}"]),
    ],
)  # fmt: skip
def test_text_output(array: pa.Array, oid: int, expected: list[str | None]) -> None:
    """Each type's text is what its output function prints."""
    assert column(array, oid) == [None if t is None else t.encode() for t in expected]


def test_timestamptz_is_shown_in_the_sessions_zone() -> None:
    """The offset has minutes only where there are some, and follows daylight saving time."""
    array = pa.array([0, 1_720_000_000_000_000], TZ)
    assert column(array, types.TIMESTAMPTZ) == [
        b"1970-01-01 00:00:00+00",
        b"2024-07-03 09:46:40+00",
    ]
    assert column(array, types.TIMESTAMPTZ, timezone="Europe/Berlin") == [
        b"1970-01-01 01:00:00+01", b"2024-07-03 11:46:40+02",
    ]  # fmt: skip
    assert (
        column(array, types.TIMESTAMPTZ, timezone="Asia/Kolkata")[0] == b"1970-01-01 05:30:00+05:30"
    )
    # As PostgreSQL reads them: by POSIX, where + is west.
    west = column(array, types.TIMESTAMPTZ, timezone="+05:30")[0]
    assert west == b"1969-12-31 18:30:00-05:30"
    assert column(array, types.TIMESTAMPTZ, timezone="-3")[0] == b"1970-01-01 03:00:00+03"
    with pytest.raises(FeatureNotSupportedError, match="time zone"):
        column(array, types.TIMESTAMPTZ, timezone="Nowhere/Else")


@pytest.mark.parametrize(
    ("array", "oid", "expected"),
    [
        (pa.array([True, None]), types.BOOL, [b"\x01", None]),
        (pa.array([-2], pa.int16()), types.INT2, [struct.pack("!h", -2)]),
        (pa.array([7, None], pa.int32()), types.INT4, [struct.pack("!i", 7), None]),
        (pa.array([1 << 40]), types.INT8, [struct.pack("!q", 1 << 40)]),
        (pa.array([4000000000]), types.OID, [struct.pack("!I", 4000000000)]),
        (pa.array([1.5]), types.FLOAT8, [struct.pack("!d", 1.5)]),
        (pa.array([1.5], pa.float32()), types.FLOAT4, [struct.pack("!f", 1.5)]),
        (pa.array([dt.date(2000, 1, 2), None]), types.DATE, [struct.pack("!i", 1), None]),
        (
            pa.array([dt.datetime(2000, 1, 1, 0, 0, 1)], pa.timestamp("us")),
            types.TIMESTAMP,
            [struct.pack("!q", 1_000_000)],
        ),
        (
            pa.array([Decimal("-12345.60"), Decimal("0.0001"), Decimal(0)], pa.decimal128(20, 4)),
            types.NUMERIC,
            [
                struct.pack("!hhHh3h", 3, 1, 0x4000, 4, 1, 2345, 6000),
                struct.pack("!hhHhh", 1, -1, 0, 4, 1),
                struct.pack("!hhHh", 0, 0, 0, 4),
            ],
        ),
        (pa.array(["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", None]), 2950,
         [bytes.fromhex("a0eebc999c0b4ef8bb6d6bb9bd380a11"), None]),
        (pa.array(['{"a": 1}']), 3802, [b'\x01{"a": 1}']),
        (pa.array([b"\x00x"]), types.BYTEA, [b"\x00x"]),
    ],
)  # fmt: skip
def test_binary_output(array: pa.Array, oid: int, expected: list[bytes | None]) -> None:
    """Each common type's binary form is what its send function writes."""
    assert column(array, oid, code=1) == expected


def test_other_types_have_no_binary_form() -> None:
    """An interval can only be asked for in text."""
    with pytest.raises(FeatureNotSupportedError, match="binary"):
        column(pa.array(["1 day"]), 1186, code=1)


def test_rows_of_several_columns_and_chunks() -> None:
    """Fields come in column order, rows in table order, across Arrow chunks and ours."""
    count = rows.CHUNK_ROWS + 10
    numbers = pa.chunked_array([pa.array(range(7)), pa.array(range(7, count))])
    words = pa.array([None if n % 3 == 0 else f"w{n}" for n in range(count)])
    table = pa.table({"n": numbers, "w": words})
    found = parse(rows.encode_rows(table, [types.INT8, types.TEXT], [0, 0]))
    assert found == [
        [str(n).encode(), None if n % 3 == 0 else f"w{n}".encode()] for n in range(count)
    ]
    assert rows.encode_rows(table.slice(0, 0), [types.INT8, types.TEXT], [0, 0]) == b""
