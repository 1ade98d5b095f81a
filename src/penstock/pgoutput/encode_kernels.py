# SPDX-License-Identifier: Apache-2.0
"""Compiled loops that put messages together: numba, because Arrow has no such functions.

``at`` is where the next byte of each message goes in ``out``; what writes moves it on.
"""

from __future__ import annotations

from typing import Any

from penstock.change.write_text import copy, int32
from penstock.compiled import Bytes, Ints, compiled

_TRUNCATE, _NULL, _UNCHANGED = (ord(letter) for letter in "Tnu")

HEAD = 5
"""Bytes of letter and relation, with which a message of a row begins."""

TUPLE_HEAD = 3
"""Bytes of a tuple's letter and its number of columns."""

TRUNCATE_SIZE = 10
"""Bytes of a Truncate message of one relation."""

VALUE_HEAD = 5
"""Bytes of a value's letter and its length."""


@compiled
def place_heads(out: Bytes, at: Ints, ops: Bytes, oid: int) -> None:
    """Write letter and relation of each message; a Truncate is then complete."""
    for row in range(len(at)):
        out[at[row]] = ops[row]
        to = at[row] + 1
        if ops[row] == _TRUNCATE:
            to = int32(out, to, 1)
            out[to] = 0
            to += 1
        at[row] = int32(out, to, oid)


@compiled
def place_tuple_heads(out: Bytes, at: Ints, letter: int, columns: int) -> None:
    """Write how a tuple begins."""
    for row in range(len(at)):
        to = at[row]
        out[to] = letter
        out[to + 1] = columns >> 8
        out[to + 2] = columns & 255
        at[row] = to + TUPLE_HEAD


@compiled
def place_values(
    out: Bytes, at: Ints, offsets: Ints, content: Bytes, valid: Any, absent: Any, letter: int
) -> None:
    """Write one column's values: ``absent`` ones are unchanged, those not ``valid`` are null."""
    for row in range(len(at)):
        to = at[row]
        if absent[row]:
            out[to] = _UNCHANGED
            at[row] = to + 1
        elif not valid[row]:
            out[to] = _NULL
            at[row] = to + 1
        else:
            size = offsets[row + 1] - offsets[row]
            out[to] = letter
            to = int32(out, to + 1, size)
            at[row] = copy(content, offsets[row], size, out, to)


@compiled
def frame(content: Bytes, offsets: Ints, head: Bytes, out: Bytes) -> None:
    """Write each message behind ``head``, whose bytes 1 to 4 become the length from there on."""
    to = 0
    for i in range(len(offsets) - 1):
        size = offsets[i + 1] - offsets[i]
        behind = copy(head, 0, len(head), out, to)
        int32(out, to + 1, len(head) - 1 + size)
        to = copy(content, offsets[i], size, out, behind)
