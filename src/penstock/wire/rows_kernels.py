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
    MINUS,
    POINT,
    SECOND_US,
    bytea_text,
    clock,
    copy,
    date,
    int32,
    number,
    put,
    signed,
    zone,
)
from penstock.compiled import compiled

Bytes = Any
"""numpy uint8 array; numba is not typed, so neither are the arrays here."""

DATE_WIDTH = 16
TIMESTAMP_WIDTH = 48
DECIMAL_WIDTH = 24
ITEM_OVERHEAD = 5
"""Bytes around an item of an array: delimiter and quotes, or delimiter and NULL."""

NUMERIC_WIDTH = 28
"""Bytes of a numeric of at most 19 digits in binary: the header, ten digits to base 10000."""

_LEAD = 5
"""Digits to base 10000 that an int64 may have before the point."""
_POWERS = 10 ** np.arange(19, dtype=np.int64)

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
        at[row] = copy(data, offsets[row], size, out, int32(out, where, size))


@compiled
def pack(wide: Any, used: Any, offsets: Any, out: Bytes) -> None:
    """Move the used part of each fixed-width row to its offset."""
    for row in range(len(used)):
        copy(wide[row], 0, used[row], out, offsets[row])


@compiled
def dates(days: Any, valid: Any, out: Bytes, out_offsets: Any) -> None:
    """Days as ``YYYY-MM-DD`` or ``YYYY-MM-DD BC``; ``out`` has room for DATE_WIDTH of each."""
    to = 0
    for row in range(len(days)):
        out_offsets[row] = to
        if valid[row]:
            to, before_christ = date(out, to, days[row])
            to = put(out, to, ERA) if before_christ else to
    out_offsets[len(days)] = to


@compiled
def timestamps(
    micros: Any, valid: Any, zoned: bool, shift: Any, out: Bytes, out_offsets: Any
) -> None:
    """Microseconds as ISO text, ``shift`` seconds east of UTC.

    ``out`` has room for TIMESTAMP_WIDTH of each.  A day is written once for rows that follow each
    other, and then copied.
    """
    to, day_at, day_size, before_christ = 0, 0, 0, False
    last = -(2**62)
    for row in range(len(micros)):
        out_offsets[row] = to
        if not valid[row]:
            continue
        value = micros[row] + shift[row] * SECOND_US
        days = value // DAY_US
        if days != last:
            day_at, last = to, days
            to, before_christ = date(out, to, days)
            day_size = to - day_at
        else:
            to = copy(out, day_at, day_size, out, to)
        out[to] = _BLANK
        to = clock(out, to + 1, value - days * DAY_US)
        if zoned:
            to = zone(out, to, shift[row])
        to = put(out, to, ERA) if before_christ else to
    out_offsets[len(micros)] = to


@compiled
def decimals(values: Any, valid: Any, scale: int, out: Bytes, out_offsets: Any) -> None:
    """Whole numbers as decimals with ``scale`` digits behind the point.

    ``out`` has room for DECIMAL_WIDTH and ``scale`` bytes of each.
    """
    unit = _POWERS[scale]
    to = 0
    for row in range(len(values)):
        out_offsets[row] = to
        if not valid[row]:
            continue
        value = values[row]
        if scale == 0:
            to = signed(out, to, value)
            continue
        if value < 0:
            out[to] = MINUS
            to += 1
            value = -value
        before = value // unit
        to = number(out, to, before, 1)
        out[to] = POINT
        to = number(out, to + 1, value - before * unit, scale)
    out_offsets[len(values)] = to


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
        to = int32(out, to, 1 if last > first else 0)
        to = int32(out, int32(out, to, nulls), element_oid)
        if last > first:
            to = int32(out, int32(out, to, last - first), 1)
        for item in range(first, last):
            if valid[item]:
                size = offsets[item + 1] - offsets[item]
                to = copy(data, offsets[item], size, out, int32(out, to, size))
            else:
                to = int32(out, to, -1)
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
        at = _numeric(groups, lead, count, negative, scale, out, at)
    out_offsets[len(offsets) - 1] = at


@compiled
def decimal_binary(values: Any, valid: Any, scale: int, out: Bytes, out_offsets: Any) -> None:
    """Whole numbers as numeric_send writes decimals with ``scale`` (at most 18) digits.

    ``out`` has room for NUMERIC_WIDTH bytes of each.
    """
    groups = np.zeros(10, dtype=np.int64)
    at = 0
    for row in range(len(values)):
        out_offsets[row] = at
        if not valid[row]:
            continue
        size = abs(values[row])
        before = size // _POWERS[scale]
        rest = size - before * _POWERS[scale]
        for i in range(_LEAD):
            groups[_LEAD - 1 - i] = before % 10000
            before //= 10000
        count, left = _LEAD, scale
        while left > 0:
            unit = _POWERS[max(left - 4, 0)]
            group = rest // unit
            rest -= group * unit
            groups[count] = group if left >= 4 else group * _POWERS[4 - left]
            count, left = count + 1, left - 4
        at = _numeric(groups, _LEAD, count, values[row] < 0, scale, out, at)
    out_offsets[len(values)] = at


@compiled
def _numeric(
    groups: Any, lead: int, count: int, negative: bool, scale: int, out: Bytes, at: int
) -> int:
    """numeric_send of ``count`` digits to base 10000, ``lead`` of them before the point."""
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
    return at
