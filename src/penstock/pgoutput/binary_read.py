# SPDX-License-Identifier: Apache-2.0
"""Read values from PostgreSQL's binary form (the send functions), a column at a time; compiled.

In:   a buffer and, for each value, where it starts (negative: null) and how long it is.
Out:  the values in a new array; a null's place holds zero.  Each function returns
      (fault, number of the first value that it could not read), with the faults of parse.py.

Numbers are in network byte order.  Dates and times count from 2000-01-01; the greatest and the
smallest number are the infinities.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.change.write_text import DAY_US
from penstock.compiled import Bytes, Ints, Positions, compiled
from penstock.pgoutput import parse
from penstock.pgoutput.parse import NOT_HELD, OK, WRONG_SYNTAX
from penstock.pgoutput.scan import be16, be32, be64

EPOCH_DAYS = 10_957
"""2000-01-01 in days since 1970-01-01."""

MAX_INT32, MIN_INT32 = 2**31 - 1, -(2**31)
MAX_INT64, MIN_INT64 = 2**63 - 1, -(2**63)

# numeric.c: the header of numeric_send, and the signs that are no numbers.
NUMERIC_HEADER = 8
NEGATIVE, NAN, PLUS_INFINITY, MINUS_INFINITY = 0x4000, 0xC000, 0xD000, 0xF000
BASE = 10_000


@compiled
def signed16(buf: Bytes, at: int) -> int:
    """A 16-bit number with a sign at a position."""
    number: int = be16(buf, at)
    return number - 65536 if number >= 32768 else number


@compiled
def signed32(buf: Bytes, at: int) -> int:
    """A 32-bit number with a sign at a position."""
    number: int = be32(buf, at)
    return number - 4294967296 if number > MAX_INT32 else number


@compiled
def read_integers(
    buf: Bytes, starts: Positions, lengths: Positions, width: int, signed: bool, out: Ints
) -> tuple[int, int]:
    """Read integers of ``width`` bytes (1, 2, 4 or 8); 8 bytes come out with a sign anyway."""
    for i in range(starts.shape[0]):
        at = starts[i]
        out[i] = 0
        if at < 0:
            continue
        if lengths[i] != width:
            return WRONG_SYNTAX, i
        if width == 8:
            out[i] = be64(buf, at)
        elif width == 4:
            out[i] = signed32(buf, at) if signed else be32(buf, at)
        elif width == 2:
            out[i] = signed16(buf, at)
        else:
            out[i] = buf[at]
    return OK, 0


@compiled
def read_moments(
    buf: Bytes, starts: Positions, lengths: Positions, kind: int, clamp: bool, out: Ints
) -> tuple[int, int]:
    """Read dates (days since 1970) and timestamps (microseconds since 1970).

    ``clamp``: infinities become the first and the last value that the lake holds.
    """
    date = kind == parse.DATE
    unit = 1 if date else DAY_US
    first, end = parse.FIRST_DAY * unit, parse.END_DAY * unit
    for i in range(starts.shape[0]):
        at = starts[i]
        out[i] = 0
        if at < 0:
            continue
        if lengths[i] != (4 if date else 8):
            return WRONG_SYNTAX, i
        value = signed32(buf, at) if date else be64(buf, at)
        if value == (MAX_INT32 if date else MAX_INT64):
            if not clamp:
                return NOT_HELD, i
            out[i] = end - 1
        elif value == (MIN_INT32 if date else MIN_INT64):
            if not clamp:
                return NOT_HELD, i
            out[i] = first
        else:
            # Compared before the shift, which may not fit 64 bits.
            shift = EPOCH_DAYS * unit
            if value < first - shift or value >= end - shift:
                return NOT_HELD, i
            out[i] = value + shift
    return OK, 0


@compiled
def numeric_is_well_formed(buf: Bytes, at: int, size: int) -> bool:
    """Whether the bytes are what numeric_send may write."""
    if size < NUMERIC_HEADER:
        return False
    digits = be16(buf, at)
    sign = be16(buf, at + 4)
    if size != NUMERIC_HEADER + 2 * digits or be16(buf, at + 6) > 0x3FFF:
        return False
    if sign not in (0, NEGATIVE, NAN, PLUS_INFINITY, MINUS_INFINITY):
        return False
    for k in range(digits):  # noqa: SIM110 -- numba has no all() over a generator
        if be16(buf, at + NUMERIC_HEADER + 2 * k) >= BASE:
            return False
    return True


@compiled
def _read_decimal(
    buf: Bytes, at: int, size: int, precision: int, scale: int, out: NDArray[np.uint64]
) -> int:
    if not numeric_is_well_formed(buf, at, size):
        return WRONG_SYNTAX
    sign = be16(buf, at + 4)
    if sign != 0 and sign != NEGATIVE:
        return NOT_HELD
    digits = be16(buf, at)
    if digits == 0:
        return OK
    left = (signed16(buf, at + 2) + 1) * 4 + scale
    high = np.uint64(0)
    low = np.uint64(0)
    for k in range(digits):
        group = be16(buf, at + NUMERIC_HEADER + 2 * k)
        unit = 1000
        while unit > 0:
            digit = group // unit % 10
            if digit != 0 and (left > precision or left <= 0):
                return NOT_HELD
            high, low = parse.add_digit(high, low, left, digit)
            left -= 1
            unit //= 10
    parse.put_decimal(high, low, left, sign == NEGATIVE, out)
    return OK


@compiled
def read_decimals(
    buf: Bytes,
    starts: Positions,
    lengths: Positions,
    precision: int,
    scale: int,
    out: NDArray[np.uint64],
) -> tuple[int, int]:
    """Read numerics into ``out`` [value, 2]: 128-bit two's complement times 10**scale."""
    for i in range(starts.shape[0]):
        at = starts[i]
        out[i, 0] = np.uint64(0)
        out[i, 1] = np.uint64(0)
        if at >= 0:
            fault = _read_decimal(buf, at, lengths[i], precision, scale, out[i])
            if fault != OK:
                return fault, i
    return OK, 0
