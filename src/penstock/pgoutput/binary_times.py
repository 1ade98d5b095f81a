# SPDX-License-Identifier: Apache-2.0
"""Dates, times and intervals in binary form as their output functions print them; compiled.

In:   one value: where it is in a buffer, and how long it is.
Out:  its text at a place in another buffer; the position after it, or -1 when it is wrong.

As with DateStyle ISO, IntervalStyle postgres and TimeZone UTC (datetime.c, date.c, timestamp.c).
"""

from __future__ import annotations

import numpy as np

from penstock.change.write_text import DAY_US, ERA, MINUS, PLUS, clock, date, number, put, zone
from penstock.compiled import Bytes, compiled
from penstock.pgoutput.binary_read import (
    EPOCH_DAYS,
    MAX_INT32,
    MAX_INT64,
    MIN_INT32,
    MIN_INT64,
    signed32,
)
from penstock.pgoutput.scan import be64

_BLANK = ord(" ")
_INFINITY = np.frombuffer(b"infinity", np.uint8)
_LONGEST = np.frombuffer(b":00:54.775808", np.uint8)
_UNITS = np.frombuffer(b"year mon  day  ", np.uint8)
_UNIT_LENGTHS = (4, 3, 3)


@compiled
def _infinity(out: Bytes, to: int, negative: bool) -> int:
    if negative:
        out[to] = MINUS
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
    to, before_christ = date(out, to, value + EPOCH_DAYS)
    return put(out, to, ERA) if before_christ else to


@compiled
def timestamp_text(buf: Bytes, at: int, size: int, zoned: bool, out: Bytes, to: int) -> int:
    """Write a timestamp, with ``zoned`` a timestamptz; microseconds since 2000-01-01."""
    if size != 8:
        return -1
    value = be64(buf, at)
    if value in (MAX_INT64, MIN_INT64):
        return _infinity(out, to, value < 0)
    days = value // DAY_US
    to, before_christ = date(out, to, days + EPOCH_DAYS)
    out[to] = _BLANK
    to = clock(out, to + 1, value - days * DAY_US)
    if zoned:
        to = zone(out, to, 0)
    return put(out, to, ERA) if before_christ else to


@compiled
def time_text(buf: Bytes, at: int, size: int, zoned: bool, out: Bytes, to: int) -> int:
    """time, or timetz: then seconds west of UTC follow."""
    if size != (12 if zoned else 8):
        return -1
    micros = be64(buf, at)
    if micros < 0 or micros > DAY_US:
        return -1
    to = clock(out, to, micros)
    return zone(out, to, -signed32(buf, at + 8)) if zoned else to


@compiled
def _signed_part(out: Bytes, first: int, to: int, negative: bool, plus: bool) -> int:
    """What comes before a part of an interval: a blank behind another, and its sign."""
    if to > first:
        out[to] = _BLANK
        to += 1
    if negative:
        out[to] = MINUS
        to += 1
    elif plus:
        out[to] = PLUS
        to += 1
    return to


@compiled
def _interval_part(out: Bytes, first: int, to: int, value: int, unit: int, plus: bool) -> int:
    to = _signed_part(out, first, to, value < 0, plus)
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
    to = _signed_part(out, first, to, micros < 0, plus)
    if micros == MIN_INT64:
        to = number(out, to, 2562047788, 2)
        return put(out, to, _LONGEST)
    return clock(out, to, abs(micros))
