# SPDX-License-Identifier: Apache-2.0
"""DataRow messages become Arrow tables, and nothing that is no DataRow does."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.change import types
from penstock.change.relation import LakeColumn
from penstock.errors import ProtocolError, ValueNotHeldError
from penstock.pgoutput.data_rows import read_rows

COLUMNS = (
    LakeColumn(1, "id", types.INT4, -1, True),
    LakeColumn(2, "label", types.TEXT, -1, False),
    LakeColumn(3, "own", 20_000, -1, False),
)


def row(*values: bytes | None) -> bytes:
    """One DataRow."""
    body = len(values).to_bytes(2, "big")
    for value in values:
        size = -1 if value is None else len(value)
        body += struct.pack(">i", size) + (value or b"")
    return b"D" + struct.pack(">i", len(body) + 4) + body


def test_values_nulls_and_types_that_come_as_text() -> None:
    """A type whose binary form is not known comes as text; blocks may have any number of rows."""
    first = row(struct.pack(">i", 1), b"a", b"(1,2)") + row(struct.pack(">i", -2), None, None)
    rows = read_rows([first, b"", row(struct.pack(">i", 3), b"", b"x")], COLUMNS, "public.t")
    assert rows.to_pydict() == {
        "id": [1, -2, 3],
        "label": ["a", None, ""],
        "own": ["(1,2)", None, "x"],
    }
    assert read_rows([], COLUMNS, "public.t").num_rows == 0


def test_a_value_that_the_lake_cannot_hold_is_named() -> None:
    """infinity has no place in a date."""
    column = LakeColumn(1, "day", types.DATE, -1, False)
    with pytest.raises(ValueNotHeldError, match='"infinity" of column "day"'):
        read_rows([row(struct.pack(">i", 2**31 - 1))], [column], "public.t")


@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_rows_or_an_error(content: bytes, framed: bool) -> None:
    """No bytes make the reader look outside of them."""
    block = b"D" + struct.pack(">i", len(content) + 4) + content if framed else content
    try:
        rows = read_rows([block], COLUMNS, "public.t")
    except (ProtocolError, ValueNotHeldError):
        return
    assert rows.num_rows == block.count(b"D", 0, 1)
