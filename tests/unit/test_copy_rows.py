# SPDX-License-Identifier: Apache-2.0
"""CopyData messages made from columns: framing, escapes, quotes, binary forms."""

from __future__ import annotations

import struct
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest

from penstock.change import types
from penstock.change.copy_format import CopyFormat
from penstock.wire.array_literal import array_literal
from penstock.wire.copy_rows import Field, copy_rows, end_of_copy, is_plain
from penstock.wire.rows_binary import binary_column
from penstock.wire.rows_text import text_column

CSV = CopyFormat("csv", b",", b"")


def contents(messages: bytes) -> list[bytes]:
    """The content of each CopyData message; an independent reader of the format."""
    found, at = [], 0
    while at < len(messages):
        assert messages[at : at + 1] == b"d"
        (size,) = struct.unpack_from("!i", messages, at + 1)
        found.append(messages[at + 5 : at + 1 + size])
        at += 1 + size
    assert at == len(messages)
    return found


def copied(form: CopyFormat, *columns: pa.Array, forced: bool = False) -> list[bytes]:
    fields = [Field(text_column(each), is_plain(each.type), forced) for each in columns]
    return contents(copy_rows(fields, len(columns[0]), form))


TEXTS = ["a\tb", "\\", "\b\f\n\r\v", "", None, "\\N", "žluť", "x" * 300, "a|b"]


def test_text_format() -> None:
    """Control letters, backslashes and the delimiter are escaped, NULL is not."""
    assert copied(CopyFormat(), pa.array(range(9)), pa.array(TEXTS)) == [
        b"0\ta\\tb\n",
        b"1\t\\\\\n",
        b"2\t\\b\\f\\n\\r\\v\n",
        b"3\t\n",
        b"4\t\\N\n",
        b"5\t\\\\N\n",
        "6\tžluť\n".encode(),
        b"7\t" + b"x" * 300 + b"\n",
        b"8\ta|b\n",
    ]


def test_text_options() -> None:
    """Another delimiter, a letter perhaps that numbers have in them; another NULL."""
    bar = CopyFormat(delimiter=b"|", null=b"")
    assert copied(bar, pa.array(TEXTS[:1] + TEXTS[4:5] + TEXTS[8:])) == [
        b"a\\tb\n",
        b"\n",
        b"a\\|b\n",
    ]
    minus = CopyFormat(delimiter=b"-")
    assert copied(minus, pa.array([-1, None]), pa.array([1.5, -2.0])) == [
        b"\\-1-1.5\n",
        b"\\N-\\-2\n",
    ]
    control = CopyFormat(delimiter=b"\x01")
    assert copied(control, pa.array(["\x01\x02"]), pa.array(["a"])) == [b"\\\x01\x02\x01a\n"]
    assert copied(CopyFormat(), pa.array(["a\tb\\"], pa.string())) == [b"a\\tb\\\\\n"]


def test_csv_format() -> None:
    """Quotes where a reader needs them; the empty string is not NULL; ``\\.`` alone on a line."""
    values = pa.array(["a,b", 'q"u', "n\nl", "r\r", "", None, "\\.", " plain\t"])
    assert copied(CSV, values, pa.array(range(8))) == [
        b'"a,b",0\n',
        b'"q""u",1\n',
        b'"n\nl",2\n',
        b'"r\r",3\n',
        b'"",4\n',
        b",5\n",
        b"\\.,6\n",
        b" plain\t,7\n",
    ]
    assert copied(CSV, pa.array(["\\.", "."])) == [b'"\\."\n', b".\n"]


def test_csv_options() -> None:
    """FORCE_QUOTE leaves NULL alone; ESCAPE stands before itself and before QUOTE."""
    form = CopyFormat("csv", b";", b"7", b"'", b"e")
    assert copied(form, pa.array(["it's", "see;", "e", "7", None])) == [
        b"'ite's'\n",
        b"'seee" + b"e;'\n",
        b"e\n",
        b"'7'\n",
        b"7\n",
    ]
    assert copied(form, pa.array([7, 8, None])) == [b"'7'\n", b"8\n", b"7\n"]
    assert copied(CSV, pa.array([1, None]), forced=True) == [b'"1"\n', b"\n"]


def test_binary_format() -> None:
    """The header is before the first row, in its message; a trailer ends the copy."""
    form = CopyFormat("binary")
    columns = (pa.array([1, None], pa.int32()), pa.array(["ab", ""]))
    fields = [
        Field(binary_column(column, oid))
        for column, oid in zip(columns, (types.INT4, types.TEXT), strict=True)
    ]
    header = b"PGCOPY\n\xff\r\n\0" + bytes(8)
    rows = [
        b"\0\2" + b"\0\0\0\4\0\0\0\1" + b"\0\0\0\2ab",
        b"\0\2" + b"\xff\xff\xff\xff" + b"\0\0\0\0",
    ]
    assert contents(copy_rows(fields, 2, form, first=True)) == [header + rows[0], rows[1]]
    assert contents(copy_rows(fields, 2, form)) == rows
    assert contents(end_of_copy(form, 2)) == [b"\xff\xff"]
    assert contents(end_of_copy(form, 0)) == [header + b"\xff\xff"]
    assert end_of_copy(CSV, 2) == b""


def test_no_columns_and_no_rows() -> None:
    """A row of no columns is an empty line, or a count of 0 in binary."""
    assert contents(copy_rows([], 2, CopyFormat())) == [b"\n", b"\n"]
    assert contents(copy_rows([], 1, CopyFormat("binary"))) == [b"\0\0"]
    assert copy_rows([], 0, CopyFormat()) == b""


ARRAYS = [
    (pa.array([[1, None], [], None], pa.list_(pa.int32())), 1007,
     ["00000001" "00000001" "00000017" "00000002" "00000001" "00000004" "00000001" "ffffffff",
      "00000000" "00000000" "00000017", None]),
    (pa.array([["a", ""]]), 1009,
     ["00000001" "00000000" "00000019" "00000002" "00000001" "00000001" "61" "00000000"]),
    (pa.array(["a", "", "\\377", None]), types.CHAR, ["61", "00", "ff", None]),
]  # fmt: skip


@pytest.mark.parametrize(("array", "oid", "expected"), ARRAYS)
def test_binary_arrays_and_chars(array: pa.Array, oid: int, expected: list[str | None]) -> None:
    """As array_send and charsend write them."""
    found = binary_column(array, oid).to_pylist()
    assert [each if each is None else each.hex() for each in found] == expected


DECIMALS = ["0", "1.5", "-0.0001", "12345.6789", "-99999999.000000000000000001", None, "9" * 20]


@pytest.mark.parametrize("scale", [0, 3, 4, 18])
def test_decimals_of_any_size(scale: int) -> None:
    """Decimals that fit an int64 take a way of their own, to the same texts and binary forms."""
    unit = Decimal(1).scaleb(-scale)
    with localcontext(prec=60):
        # A sum with 0 has no negative zero.
        values = [None if each is None else Decimal(each).quantize(unit) + 0 for each in DECIMALS]
    wide = pa.array(values, pa.decimal128(38, scale))
    apart = [wide.slice(n, 1) for n in range(len(values))]
    texts = [None if value is None else f"{value:.{scale}f}".encode() for value in values]
    assert [text_column(each).to_pylist()[0] for each in apart] == texts
    assert text_column(wide).to_pylist() == texts
    binary = binary_column(wide, types.NUMERIC).to_pylist()
    assert [binary_column(each, types.NUMERIC).to_pylist()[0] for each in apart] == binary
    with localcontext(prec=60):
        assert [_read_numeric(each) for each in binary] == values


def _read_numeric(sent: bytes | None) -> Decimal | None:
    if sent is None:
        return None
    count, weight, sign, scale = struct.unpack_from("!hhHh", sent)
    digits = struct.unpack_from(f"!{count}h", sent, 8)
    value = sum(
        (Decimal(d).scaleb(4 * (weight - n)) for n, d in enumerate(digits)), start=Decimal(0)
    )
    return (-value if sign else value).quantize(Decimal(1).scaleb(-scale))


@pytest.mark.parametrize(
    ("texts", "expected"), [(["a", 'q"\\', ""], '{"a","q\\"\\\\",""}'), ([], "{}")]
)
def test_array_literal(texts: list[Any], expected: str) -> None:
    """Each item is in quotes, so that none is read as NULL."""
    assert array_literal(pa.array(texts, pa.string())) == expected
    assert array_literal(pa.array(texts, pa.string()), ";") == expected.replace('","', '";"')
