# SPDX-License-Identifier: Apache-2.0
"""Compiled loops over the values of a column: numba, because Arrow has no such functions.

A column of byte strings is (``offsets`` int64[n + 1], ``data`` uint8[]) as in Arrow; a kernel
that makes one gets the offsets of its output and fills the data, or fills rows of a fixed width
and says how much of each it used.  Times are microseconds since 1970-01-01, days likewise.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

Bytes = Any
"""numpy uint8 array; numba is not typed, so neither are the arrays here."""

DATE_WIDTH = 16
TIMESTAMP_WIDTH = 48


def _place(out: Bytes, at: Any, offsets: Any, data: Bytes, valid: Any) -> None:
    for row in range(len(at)):
        where = at[row]
        if not valid[row]:
            out[where : where + 4] = 255
            at[row] = where + 4
            continue
        start, stop = offsets[row], offsets[row + 1]
        size = stop - start
        out[where] = (size >> 24) & 255
        out[where + 1] = (size >> 16) & 255
        out[where + 2] = (size >> 8) & 255
        out[where + 3] = size & 255
        for i in range(size):
            out[where + 4 + i] = data[start + i]
        at[row] = where + 4 + size


place = numba.njit(cache=True)(_place)
"""Write one column's fields (length, bytes) at ``at`` of each row, and move ``at`` behind them."""


def _pack(wide: Any, used: Any, offsets: Any, out: Bytes) -> None:
    for row in range(len(used)):
        start = offsets[row]
        for i in range(used[row]):
            out[start + i] = wide[row, i]


pack = numba.njit(cache=True)(_pack)
"""Move the used part of each fixed-width row to its offset."""


def _number(out: Bytes, at: int, value: int, width: int) -> int:
    digits, rest = 1, value // 10
    while rest > 0:
        digits += 1
        rest //= 10
    if digits < width:
        digits = width
    for i in range(digits):
        out[at + digits - 1 - i] = 48 + value % 10
        value //= 10
    return at + digits


_number_jit = numba.njit(cache=True, inline="always")(_number)


def _date(out: Bytes, days: int) -> tuple[int, bool]:
    # Howard Hinnant's civil_from_days, for the proleptic Gregorian calendar.
    shifted = days + 719468
    era = shifted // 146097
    doe = shifted - era * 146097
    yoe = (doe - doe // 1460 + doe // 36524 - doe // 146096) // 365
    doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    mp = (5 * doy + 2) // 153
    month = mp + 3 if mp < 10 else mp - 9
    year = yoe + era * 400 + (1 if month <= 2 else 0)
    before_christ = year <= 0
    if before_christ:
        year = 1 - year
    at = _number_jit(out, 0, year, 4)
    out[at] = 45
    at = _number_jit(out, at + 1, month, 2)
    out[at] = 45
    return _number_jit(out, at + 1, doy - (153 * mp + 2) // 5 + 1, 2), before_christ


_date_jit = numba.njit(cache=True)(_date)


def _era(out: Bytes, at: int) -> int:
    out[at], out[at + 1], out[at + 2] = 32, 66, 67
    return at + 3


_era_jit = numba.njit(cache=True)(_era)


def _dates(days: Any, wide: Any, used: Any) -> None:
    for row in range(len(days)):
        at, before_christ = _date_jit(wide[row], days[row])
        used[row] = _era_jit(wide[row], at) if before_christ else at


dates = numba.njit(cache=True)(_dates)
"""Days as ``YYYY-MM-DD`` or ``YYYY-MM-DD BC`` in rows of DATE_WIDTH."""


def _timestamps(micros: Any, zoned: bool, shift: Any, wide: Any, used: Any) -> None:
    for row in range(len(micros)):
        out = wide[row]
        value = micros[row] + shift[row] * 1000000
        days = value // 86400000000
        rest = value - days * 86400000000
        fraction = rest % 1000000
        seconds = rest // 1000000
        at, before_christ = _date_jit(out, days)
        out[at] = 32
        at = _number_jit(out, at + 1, seconds // 3600, 2)
        out[at] = 58
        at = _number_jit(out, at + 1, seconds // 60 % 60, 2)
        out[at] = 58
        at = _number_jit(out, at + 1, seconds % 60, 2)
        if fraction > 0:
            out[at] = 46
            at = _number_jit(out, at + 1, fraction, 6)
            while out[at - 1] == 48:
                at -= 1
        if zoned:
            offset = shift[row]
            out[at] = 45 if offset < 0 else 43
            offset = abs(offset)
            at = _number_jit(out, at + 1, offset // 3600, 2)
            if offset % 3600 > 0:
                out[at] = 58
                at = _number_jit(out, at + 1, offset // 60 % 60, 2)
                if offset % 60 > 0:
                    out[at] = 58
                    at = _number_jit(out, at + 1, offset % 60, 2)
        used[row] = _era_jit(out, at) if before_christ else at


timestamps = numba.njit(cache=True)(_timestamps)
"""Microseconds as PostgreSQL's ISO text, ``shift`` seconds east of UTC, in TIMESTAMP_WIDTH."""


def _hex_text(offsets: Any, data: Bytes, out_offsets: Any, out: Bytes) -> None:
    for row in range(len(offsets) - 1):
        at = out_offsets[row]
        if out_offsets[row + 1] == at:
            continue
        out[at], out[at + 1] = 92, 120
        at += 2
        for i in range(offsets[row], offsets[row + 1]):
            high, low = data[i] >> 4, data[i] & 15
            out[at] = high + (48 if high < 10 else 87)
            out[at + 1] = low + (48 if low < 10 else 87)
            at += 2


hex_text = numba.njit(cache=True)(_hex_text)
"""bytea's ``\\x`` form."""


def _needs_quotes(data: Bytes, start: int, stop: int) -> bool:
    if stop == start:
        return True
    if stop - start == 4:
        word = True
        for i in range(4):
            if data[start + i] | 32 != (110, 117, 108, 108)[i]:
                word = False
        if word:
            return True
    for i in range(start, stop):
        byte = data[i]
        if byte in (34, 44, 92, 123, 125, 32) or 9 <= byte <= 13:
            return True
    return False


_needs_quotes_jit = numba.njit(cache=True)(_needs_quotes)


def _array_text(
    lists: Any, lists_valid: Any, offsets: Any, data: Bytes, valid: Any, out_offsets: Any, out: Any
) -> int:
    """Write ``{a,"b c",NULL}``; with an empty ``out`` only measure: fill ``out_offsets``."""
    measure = len(out) == 0
    at = 0
    for row in range(len(lists) - 1):
        out_offsets[row] = at
        if not lists_valid[row]:
            continue
        if not measure:
            out[at] = 123
        at += 1
        for item in range(lists[row], lists[row + 1]):
            if item > lists[row]:
                if not measure:
                    out[at] = 44
                at += 1
            if not valid[item]:
                if not measure:
                    out[at], out[at + 1], out[at + 2], out[at + 3] = 78, 85, 76, 76
                at += 4
                continue
            start, stop = offsets[item], offsets[item + 1]
            quoted = _needs_quotes_jit(data, start, stop)
            if quoted:
                if not measure:
                    out[at] = 34
                at += 1
            for i in range(start, stop):
                if data[i] == 34 or data[i] == 92:
                    if not measure:
                        out[at] = 92
                    at += 1
                if not measure:
                    out[at] = data[i]
                at += 1
            if quoted:
                if not measure:
                    out[at] = 34
                at += 1
        if not measure:
            out[at] = 125
        at += 1
    out_offsets[len(lists) - 1] = at
    return at


array_text = numba.njit(cache=True)(_array_text)
"""One-dimensional arrays in PostgreSQL's text form; elements are given as text."""


def _numeric_binary(offsets: Any, data: Bytes, out: Bytes, out_offsets: Any) -> None:
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


numeric_binary = numba.njit(cache=True)(_numeric_binary)
"""Decimal texts (at most 1,000 digits, no exponent) as numeric_send writes them."""
