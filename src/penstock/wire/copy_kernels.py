# SPDX-License-Identifier: Apache-2.0
"""Compiled loops that write columns into CopyData messages.

A column is (``offsets`` int64[n + 1], ``data`` uint8[], ``valid`` bool[n]).  For each there are two
passes: ``..._sizes`` adds the bytes of its fields to ``sizes``, ``place_...`` writes each at ``at``
of its row and moves ``at`` behind it.  ``end`` is the byte behind the field: the delimiter, or the
newline behind a row's last one.
"""

from __future__ import annotations

from typing import Any

from penstock.change.write_text import copy, int32, put
from penstock.compiled import Bytes, compiled

_BACKSLASH, _POINT, _NEWLINE, _RETURN = (ord(c) for c in "\\.\n\r")
_COPY_DATA = ord("d")


@compiled
def frame(starts: Any, out: Bytes) -> None:
    """Write type and length of the messages that begin at ``starts`` (one more than there are)."""
    for row in range(len(starts) - 1):
        at = starts[row]
        out[at] = _COPY_DATA
        int32(out, at + 1, starts[row + 1] - at - 1)


@compiled
def plain_sizes(offsets: Any, valid: Any, null_size: int, sizes: Any) -> None:
    """Fields that are written as they are."""
    for row in range(len(sizes)):
        sizes[row] += 1 + (offsets[row + 1] - offsets[row] if valid[row] else null_size)


@compiled
def place_plain(
    offsets: Any, data: Bytes, valid: Any, null: Bytes, end: int, at: Any, out: Bytes
) -> None:
    """See ``plain_sizes``."""
    for row in range(len(at)):
        to = at[row]
        if valid[row]:
            to = copy(data, offsets[row], offsets[row + 1] - offsets[row], out, to)
        else:
            to = put(out, to, null)
        out[to] = end
        at[row] = to + 1


@compiled
def has_any(data: Bytes, escapes: Bytes) -> bool:
    """Whether one of the bytes is one that is escaped."""
    found = 0
    for k in range(len(data)):
        found |= escapes[data[k]]
    return found != 0


@compiled
def text_sizes(
    offsets: Any, data: Bytes, valid: Any, escapes: Bytes, null_size: int, sizes: Any
) -> None:
    """Fields in the text format: ``escapes`` has what follows a backslash in place of each byte."""
    for row in range(len(sizes)):
        size = null_size
        if valid[row]:
            size = offsets[row + 1] - offsets[row]
            for k in range(offsets[row], offsets[row + 1]):
                if escapes[data[k]] != 0:
                    size += 1
        sizes[row] += size + 1


@compiled
def place_text(
    offsets: Any,
    data: Bytes,
    valid: Any,
    escapes: Bytes,
    null: Bytes,
    end: int,
    at: Any,
    out: Bytes,
) -> None:
    """See ``text_sizes`` (CopyAttributeOutText in copyto.c)."""
    for row in range(len(at)):
        to = at[row]
        if valid[row]:
            for k in range(offsets[row], offsets[row + 1]):
                escape = escapes[data[k]]
                if escape != 0:
                    out[to] = _BACKSLASH
                    out[to + 1] = escape
                    to += 2
                else:
                    out[to] = data[k]
                    to += 1
        else:
            to = put(out, to, null)
        out[to] = end
        at[row] = to + 1


@compiled
def csv_sizes(
    offsets: Any,
    data: Bytes,
    valid: Any,
    style: Any,
    null: Bytes,
    quoted: Any,
    sizes: Any,
) -> None:
    """Fields in the csv format, and which of them are ``quoted``.

    ``style``: delimiter, quote, escape, whether all are quoted, whether there is no other column.
    """
    delimiter, quote, escape, forced, alone = style
    for row in range(len(sizes)):
        if not valid[row]:
            sizes[row] += null.shape[0] + 1
            continue
        start, stop = offsets[row], offsets[row + 1]
        needed = forced or _same(data, start, stop - start, null)
        if alone and stop - start == 2 and data[start] == _BACKSLASH and data[start + 1] == _POINT:
            needed = True  # it would be taken for the end of the rows
        doubled = 0
        for k in range(start, stop):
            letter = data[k]
            if letter in (delimiter, quote, _NEWLINE, _RETURN):
                needed = True
            if letter in (quote, escape):
                doubled += 1
        quoted[row] = needed
        sizes[row] += stop - start + 1 + (2 + doubled if needed else 0)


@compiled
def place_csv(
    offsets: Any,
    data: Bytes,
    valid: Any,
    style: Any,
    null: Bytes,
    quoted: Any,
    end: int,
    at: Any,
    out: Bytes,
) -> None:
    """See ``csv_sizes`` (CopyAttributeOutCSV in copyto.c)."""
    quote, escape = style[1], style[2]
    for row in range(len(at)):
        to = at[row]
        if not valid[row]:
            to = put(out, to, null)
        elif not quoted[row]:
            to = copy(data, offsets[row], offsets[row + 1] - offsets[row], out, to)
        else:
            out[to] = quote
            to += 1
            for k in range(offsets[row], offsets[row + 1]):
                if data[k] in (quote, escape):
                    out[to] = escape
                    to += 1
                out[to] = data[k]
                to += 1
            out[to] = quote
            to += 1
        out[to] = end
        at[row] = to + 1


@compiled
def _same(data: Bytes, start: int, size: int, word: Bytes) -> bool:
    if size != word.shape[0]:
        return False
    for k in range(size):  # noqa: SIM110 -- numba has no any() over a generator
        if data[start + k] != word[k]:
            return False
    return True
