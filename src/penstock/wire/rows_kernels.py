# SPDX-License-Identifier: Apache-2.0
"""Compiled loops over the values of a column: numba, because Arrow has no such functions.

A column of byte strings is (``offsets`` int64[n + 1], ``data`` uint8[]) as in Arrow; a kernel
that makes one gets the offsets of its output and fills the data, or fills rows of a fixed width
and says how much of each it used.  Times are microseconds since 1970-01-01, days likewise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.change.quoting import ARRAY_QUOTING, NULL, write_item
from penstock.change.write_text import (
    DAY_US,
    ERA,
    SECOND_US,
    bytea_text,
    clock,
    copy,
    date,
    put,
    zone,
)
from penstock.compiled import compiled

Bytes = Any
"""numpy uint8 array; numba is not typed, so neither are the arrays here."""

DATE_WIDTH = 16
TIMESTAMP_WIDTH = 48
ITEM_OVERHEAD = 5
"""Bytes around an item of an array: delimiter and quotes, or delimiter and NULL."""

ARRAY_OVERHEAD = 20
"""Bytes before the items of an array in binary: dimensions, flag, type, length, lower bound."""

_BLANK, _COMMA, _OPEN_BRACE, _CLOSE_BRACE = (ord(c) for c in " ,{}")


@compiled
def place(out: Bytes, at: Any, offsets: Any, data: Bytes, valid: Any) -> None:
    """Write one column's fields (length, bytes) at ``at`` of each row, and move ``at`` behind."""
    for row in range(len(at)):
        where = at[row]
        if not valid[row]:
            out[where : where + 4] = 255
            at[row] = where + 4
            continue
        size = offsets[row + 1] - offsets[row]
        at[row] = copy(data, offsets[row], size, out, _int32(out, where, size))


@compiled
def _int32(out: Bytes, to: int, value: int) -> int:
    """Write an int32 in network order; the place behind it."""
    out[to] = (value >> 24) & 255
    out[to + 1] = (value >> 16) & 255
    out[to + 2] = (value >> 8) & 255
    out[to + 3] = value & 255
    return to + 4


@compiled
def pack(wide: Any, used: Any, offsets: Any, out: Bytes) -> None:
    """Move the used part of each fixed-width row to its offset."""
    for row in range(len(used)):
        copy(wide[row], 0, used[row], out, offsets[row])


@compiled
def dates(days: Any, wide: Any, used: Any) -> None:
    """Days as ``YYYY-MM-DD`` or ``YYYY-MM-DD BC`` in rows of DATE_WIDTH."""
    for row in range(len(days)):
        at, before_christ = date(wide[row], 0, days[row])
        used[row] = put(wide[row], at, ERA) if before_christ else at


@compiled
def timestamps(micros: Any, zoned: bool, shift: Any, wide: Any, used: Any) -> None:
    """Microseconds as ISO text, ``shift`` seconds east of UTC, in rows of TIMESTAMP_WIDTH."""
    for row in range(len(micros)):
        out = wide[row]
        value = micros[row] + shift[row] * SECOND_US
        days = value // DAY_US
        at, before_christ = date(out, 0, days)
        out[at] = _BLANK
        at = clock(out, at + 1, value - days * DAY_US)
        if zoned:
            at = zone(out, at, shift[row])
        used[row] = put(out, at, ERA) if before_christ else at


@compiled
def hex_text(offsets: Any, data: Bytes, out_offsets: Any, out: Bytes) -> None:
    r"""bytea's ``\x`` form; nothing for a row whose output has no room."""
    for row in range(len(offsets) - 1):
        at = out_offsets[row]
        if out_offsets[row + 1] > at:
            bytea_text(data, offsets[row], offsets[row + 1] - offsets[row], out, at)


@compiled
def array_text(
    lists: Any, lists_valid: Any, offsets: Any, data: Bytes, valid: Any, out: Any, out_offsets: Any
) -> None:
    """One-dimensional arrays as ``{a,"b c",NULL}``; elements are given as text.

    ``out`` has room for 2 bytes of each list, ITEM_OVERHEAD of each item and twice ``data``.
    """
    to = 0
    for row in range(len(lists) - 1):
        out_offsets[row] = to
        if not lists_valid[row]:
            continue
        out[to] = _OPEN_BRACE
        to += 1
        for item in range(lists[row], lists[row + 1]):
            if item > lists[row]:
                out[to] = _COMMA
                to += 1
            if valid[item]:
                size = offsets[item + 1] - offsets[item]
                to = write_item(data, offsets[item], size, ARRAY_QUOTING, _COMMA, out, to)
            else:
                to = put(out, to, NULL)
        out[to] = _CLOSE_BRACE
        to += 1
    out_offsets[len(lists) - 1] = to


@compiled
def array_binary(
    lists: Any, lists_valid: Any, items: Any, element_oid: int, out: Any, out_offsets: Any
) -> None:
    """One-dimensional arrays as array_send writes them; ``items``: offsets, bytes, validity.

    ``out`` has room for ARRAY_OVERHEAD of each list, and 4 bytes and the bytes of each item.
    """
    offsets, data, valid = items
    to = 0
    for row in range(len(lists) - 1):
        out_offsets[row] = to
        if not lists_valid[row]:
            continue
        first, last = lists[row], lists[row + 1]
        nulls = 0
        for item in range(first, last):
            if not valid[item]:
                nulls = 1
        to = _int32(out, to, 1 if last > first else 0)
        to = _int32(out, _int32(out, to, nulls), element_oid)
        if last > first:
            to = _int32(out, _int32(out, to, last - first), 1)
        for item in range(first, last):
            if valid[item]:
                size = offsets[item + 1] - offsets[item]
                to = copy(data, offsets[item], size, out, _int32(out, to, size))
            else:
                to = _int32(out, to, -1)
    out_offsets[len(lists) - 1] = to


@compiled
def numeric_binary(offsets: Any, data: Bytes, out: Bytes, out_offsets: Any) -> None:
    """Decimal texts (at most 1,000 digits, no exponent) as numeric_send writes them."""
    # numeric_send: ndigits, weight, sign, dscale (int16 each), then digits to base 10000.
    at = 0
    groups = np.zeros(400, dtype=np.int64)
    for row in range(len(offsets) - 1):
        out_offsets[row] = at
        start, stop = offsets[row], offsets[row + 1]
        if start == stop:
            continue
        negative = data[start] == 45
        if negative:
            start += 1
        point = stop
        for i in range(start, stop):
            if data[i] == 46:
                point = i
        scale = stop - point - 1 if point < stop else 0
        before = point - start
        groups[:] = 0
        lead = (before + 3) // 4
        for i in range(before):
            place_of = before - 1 - i
            groups[lead - 1 - place_of // 4] += (data[start + i] - 48) * 10 ** (place_of % 4)
        for i in range(scale):
            groups[lead + i // 4] += (data[point + 1 + i] - 48) * 10 ** (3 - i % 4)
        count = lead + (scale + 3) // 4
        first = 0
        while first < count and groups[first] == 0:
            first += 1
        while count > first and groups[count - 1] == 0:
            count -= 1
        weight = lead - 1 - first if count > first else 0
        header = (count - first, weight, 16384 if negative and count > first else 0, scale)
        for field in header:
            out[at], out[at + 1] = (field >> 8) & 255, field & 255
            at += 2
        for i in range(first, count):
            out[at], out[at + 1] = groups[i] >> 8, groups[i] & 255
            at += 2
    out_offsets[len(offsets) - 1] = at
