# SPDX-License-Identifier: Apache-2.0
"""Dates, times and intervals in binary form as their output functions print them; compiled.

In:   one value: where it is in a buffer, and how long it is.
Out:  its text at a place in another buffer; the position after it, or -1 when it is wrong.

As with DateStyle ISO, IntervalStyle postgres and TimeZone UTC (datetime.c, date.c, timestamp.c).
"""

from __future__ import annotations

import numpy as np

from penstock.pgoutput.binary_read import (
    EPOCH_DAYS,
    MAX_INT32,
    MAX_INT64,
    MIN_INT32,
    MIN_INT64,
    signed32,
)
from penstock.pgoutput.compiled import Bytes, compiled
from penstock.pgoutput.parse import DAY_US
from penstock.pgoutput.scan import be64

HOUR_US, MINUTE_US, SECOND_US = 3_600_000_000, 60_000_000, 1_000_000

_BLANK, _PLUS, _MINUS, _POINT, _COLON, _ZERO = (ord(c) for c in " +-.:0")
_INFINITY = np.frombuffer(b"infinity", np.uint8)
_ERA = np.frombuffer(b" BC", np.uint8)
_LONGEST = np.frombuffer(b":00:54.775808", np.uint8)
_UNITS = np.frombuffer(b"year mon  day  ", np.uint8)
_UNIT_LENGTHS = (4, 3, 3)


@compiled
def put(out: Bytes, to: int, word: Bytes) -> int:
    """Write a word."""
    size: int = word.shape[0]
    for k in range(size):
        out[to + k] = word[k]
    return to + size


@compiled
def number(out: Bytes, to: int, value: int, width: int) -> int:
    """Write a number that is not negative with at least ``width`` digits."""
    digits = 1
    rest = value // 10
    while rest > 0:
        digits += 1
        rest //= 10
    digits = max(digits, width)
    for k in range(digits):
        out[to + digits - 1 - k] = _ZERO + value % 10
        value //= 10
    return to + digits


@compiled
def _date(out: Bytes, to: int, days: int) -> tuple[int, bool]:
    """Write YYYY-MM-DD of days since 1970-01-01; whether it is before Christ."""
    shifted = days + 719468
    era = shifted // 146097
    of_era = shifted - era * 146097
    year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year += era * 400 + (1 if month <= 2 else 0)
    before_christ = year <= 0
    to = number(out, to, 1 - year if before_christ else year, 4)
    out[to] = _MINUS
    to = number(out, to + 1, month, 2)
    out[to] = _MINUS
    return number(out, to + 1, day, 2), before_christ


@compiled
def _fraction(out: Bytes, to: int, micros: int) -> int:
    """Write a fraction of a second without zeros at its end; nothing for 0."""
    if micros == 0:
        return to
    out[to] = _POINT
    digits = 6
    while micros % 10 == 0:
        micros //= 10
        digits -= 1
    return number(out, to + 1, micros, digits)


@compiled
def _clock(out: Bytes, to: int, micros: int) -> int:
    """Write HH:MM:SS[.ffffff]."""
    to = number(out, to, micros // HOUR_US, 2)
    out[to] = _COLON
    to = number(out, to + 1, micros // MINUTE_US % 60, 2)
    out[to] = _COLON
    to = number(out, to + 1, micros // SECOND_US % 60, 2)
    return _fraction(out, to, micros % SECOND_US)


@compiled
def _infinity(out: Bytes, to: int, negative: bool) -> int:
    if negative:
        out[to] = _MINUS
        to += 1
    return put(out, to, _INFINITY)


@compiled
def date_text(buf: Bytes, at: int, size: int, out: Bytes, to: int) -> int:
    """Write a date; days since 2000-01-01."""
    if size != 4:
        return -1
    value = signed32(buf, at)
    if value in (MAX_INT32, MIN_INT32):
        return _infinity(out, to, value < 0)
    to, before_christ = _date(out, to, value + EPOCH_DAYS)
    return put(out, to, _ERA) if before_christ else to


@compiled
def timestamp_text(buf: Bytes, at: int, size: int, zone: bool, out: Bytes, to: int) -> int:
    """Write a timestamp, with ``zone`` a timestamptz; microseconds since 2000-01-01."""
    if size != 8:
        return -1
    value = be64(buf, at)
    if value in (MAX_INT64, MIN_INT64):
        return _infinity(out, to, value < 0)
    days = value // DAY_US
    to, before_christ = _date(out, to, days + EPOCH_DAYS)
    out[to] = _BLANK
    to = _clock(out, to + 1, value - days * DAY_US)
    if zone:
        out[to] = _PLUS
        to = number(out, to + 1, 0, 2)
    return put(out, to, _ERA) if before_christ else to


@compiled
def time_text(buf: Bytes, at: int, size: int, zone: bool, out: Bytes, to: int) -> int:
    """time, or timetz: then seconds west of UTC follow (EncodeTimezone)."""
    if size != (12 if zone else 8):
        return -1
    micros = be64(buf, at)
    if micros < 0 or micros > DAY_US:
        return -1
    to = _clock(out, to, micros)
    if zone:
        west = signed32(buf, at + 8)
        out[to] = _PLUS if west <= 0 else _MINUS
        seconds = abs(west)
        to = number(out, to + 1, seconds // 3600, 2)
        if seconds % 3600 != 0:
            out[to] = _COLON
            to = number(out, to + 1, seconds // 60 % 60, 2)
        if seconds % 60 != 0:
            out[to] = _COLON
            to = number(out, to + 1, seconds % 60, 2)
    return to


@compiled
def _interval_part(out: Bytes, first: int, to: int, value: int, unit: int, plus: bool) -> int:
    if to > first:
        out[to] = _BLANK
        to += 1
    if value < 0:
        out[to] = _MINUS
        to += 1
    elif plus:
        out[to] = _PLUS
        to += 1
    to = number(out, to, abs(value), 1)
    out[to] = _BLANK
    to = put(out, to + 1, _UNITS[5 * unit : 5 * unit + _UNIT_LENGTHS[unit]])
    if value != 1:
        out[to] = 115  # s
        to += 1
    return to


@compiled
def interval_text(buf: Bytes, at: int, size: int, out: Bytes, to: int) -> int:
    """EncodeInterval in the style postgres; a part after a negative one has its sign."""
    if size != 16:
        return -1
    micros, days, months = be64(buf, at), signed32(buf, at + 8), signed32(buf, at + 12)
    if micros == MAX_INT64 and days == MAX_INT32 and months == MAX_INT32:  # since 17
        return _infinity(out, to, False)
    if micros == MIN_INT64 and days == MIN_INT32 and months == MIN_INT32:
        return _infinity(out, to, True)
    first = to
    years = abs(months) // 12
    rest = abs(months) - 12 * years
    sign = -1 if months < 0 else 1
    plus = False
    parts = (sign * years, sign * rest, days)
    for unit in range(3):
        value = parts[unit]
        if value != 0:
            to = _interval_part(out, first, to, value, unit, plus)
            plus = value < 0
    if to > first and micros == 0:
        return to
    if to > first:
        out[to] = _BLANK
        to += 1
    if micros < 0:
        out[to] = _MINUS
        to += 1
    elif plus:
        out[to] = _PLUS
        to += 1
    if micros == MIN_INT64:
        to = number(out, to, 2562047788, 2)
        return put(out, to, _LONGEST)
    return _clock(out, to, abs(micros))
