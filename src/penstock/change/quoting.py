# SPDX-License-Identifier: Apache-2.0
"""Items of arrays, ranges and composite values, in quotes where they need them; compiled.

As array_out, range_out (range_bound_escape) and record_out do it: an empty item, one with a
delimiter, quote, bracket or blank in it, and an array's item that reads NULL are in quotes.  Inside
of them an array escapes by backslashes, the others write a letter twice.
"""

from __future__ import annotations

import numpy as np

from penstock.change.write_text import copy
from penstock.compiled import Bytes, compiled

NO_QUOTING, ARRAY_QUOTING, RANGE_QUOTING, RECORD_QUOTING = range(4)

NULL = np.frombuffer(b"NULL", np.uint8)
"""What an array has for an item that is null."""

_QUOTE, _BACKSLASH, _BLANK = (ord(c) for c in '"\\ ')
_OPEN_BRACE, _CLOSE_BRACE, _OPEN_BRACKET, _CLOSE_BRACKET, _OPEN, _CLOSE = map(ord, "{}[]()")


@compiled
def write_item(
    text: Bytes, at: int, size: int, quoting: int, delimiter: int, out: Bytes, to: int
) -> int:
    """Write one item, at most 2 * size + 2 bytes; the place behind it."""
    if not _needs_quotes(text, at, size, quoting, delimiter):
        return copy(text, at, size, out, to)
    out[to] = _QUOTE
    to += 1
    for k in range(size):
        letter = text[at + k]
        if letter in (_QUOTE, _BACKSLASH):
            out[to] = _BACKSLASH if quoting == ARRAY_QUOTING else letter
            to += 1
        out[to] = letter
        to += 1
    out[to] = _QUOTE
    return to + 1


@compiled
def _needs_quotes(text: Bytes, at: int, size: int, quoting: int, delimiter: int) -> bool:
    if quoting == NO_QUOTING:
        return False
    if size == 0:
        return True
    if quoting == ARRAY_QUOTING and size == 4:
        is_null = True
        for k in range(4):
            is_null = is_null and (text[at + k] & 0xDF) == NULL[k]
        if is_null:
            return True
    for k in range(size):  # noqa: SIM110 -- numba has no any() over a generator
        if _is_special(text[at + k], quoting, delimiter):
            return True
    return False


@compiled
def _is_special(letter: int, quoting: int, delimiter: int) -> bool:
    """Whether a letter makes quotes necessary: delimiters, quotes, and C's isspace()."""
    if letter in (_QUOTE, _BACKSLASH, _BLANK, delimiter) or 9 <= letter <= 13:
        return True
    if quoting == ARRAY_QUOTING:
        return letter in (_OPEN_BRACE, _CLOSE_BRACE)
    if letter in (_OPEN, _CLOSE):
        return True
    return quoting == RANGE_QUOTING and letter in (_OPEN_BRACKET, _CLOSE_BRACKET)
