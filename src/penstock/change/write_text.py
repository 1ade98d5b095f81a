# SPDX-License-Identifier: Apache-2.0
"""Words, numbers, dates and times as PostgreSQL's output functions write them; compiled.

In:   a buffer, a place in it, and what is to be written there.
Out:  the place behind it.  The caller has seen to it that there is room.

Dates and times are those of DateStyle ISO (EncodeDateOnly, EncodeTimeOnly, EncodeTimezone in
datetime.c); years before Christ are numbers from 0 downwards here, and have `` BC`` behind all.
"""

from __future__ import annotations

import numpy as np

from penstock.compiled import Bytes, compiled

DAY_US, HOUR_US, MINUTE_US, SECOND_US = 86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000

PLUS, MINUS, POINT, COLON = (ord(c) for c in "+-.:")
ERA = np.frombuffer(b" BC", np.uint8)

_ZERO, _BACKSLASH, _X = (ord(c) for c in "0\\x")
_MIN_INT64 = -(2**63)
_PAIRS = np.frombuffer(b"".join(b"%02d" % value for value in range(100)), np.uint8)


@compiled
def int32(out: Bytes, to: int, value: int) -> int:
    """Write an int32 in network order, as every length in the protocol is."""
    out[to] = (value >> 24) & 255
    out[to + 1] = (value >> 16) & 255
    out[to + 2] = (value >> 8) & 255
    out[to + 3] = value & 255
    return to + 4


@compiled
def put(out: Bytes, to: int, word: Bytes) -> int:
    """Write a word."""
    return copy(word, 0, word.shape[0], out, to)


@compiled
def copy(source: Bytes, at: int, size: int, out: Bytes, to: int) -> int:
    """Write bytes that are in another buffer."""
    for k in range(size):
        out[to + k] = source[at + k]
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
def pair(out: Bytes, to: int, value: int) -> int:
    """Write a number below 100 with two digits."""
    out[to] = _PAIRS[2 * value]
    out[to + 1] = _PAIRS[2 * value + 1]
    return to + 2


@compiled
def signed(out: Bytes, to: int, value: int) -> int:
    """Write a number, with a minus when it is negative."""
    if value < 0:
        out[to] = MINUS
        to += 1
        if value == _MIN_INT64:  # it has no positive counterpart
            to = number(out, to, 922337203685477580, 1)
            value = -8
        value = -value
    return number(out, to, value, 1)


@compiled
def hex_digit(value: int) -> int:
    """The letter of a number below 16."""
    return _ZERO + value if value < 10 else 87 + value


@compiled
def hex_byte(out: Bytes, to: int, value: int) -> int:
    """Write a byte as two hexadecimal digits."""
    out[to] = hex_digit(value >> 4)
    out[to + 1] = hex_digit(value & 15)
    return to + 2


@compiled
def bytea_text(source: Bytes, at: int, size: int, out: Bytes, to: int) -> int:
    r"""Write bytes that are in another buffer as bytea's ``\x...``."""
    out[to], out[to + 1] = _BACKSLASH, _X
    to += 2
    for k in range(size):
        to = hex_byte(out, to, source[at + k])
    return to


@compiled
def date(out: Bytes, to: int, days: int) -> tuple[int, bool]:
    """Write YYYY-MM-DD of days since 1970-01-01; whether it is before Christ.

    Howard Hinnant's civil_from_days, for the proleptic Gregorian calendar.
    """
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
    out[to] = MINUS
    to = pair(out, to + 1, month)
    out[to] = MINUS
    return pair(out, to + 1, day), before_christ


@compiled
def clock(out: Bytes, to: int, micros: int) -> int:
    """Write HH:MM:SS[.ffffff], without zeros at the end of the fraction."""
    seconds = micros // SECOND_US
    fraction = micros - seconds * SECOND_US
    minutes = seconds // 60
    hours = minutes // 60
    to = number(out, to, hours, 2)
    out[to] = COLON
    to = pair(out, to + 1, minutes - hours * 60)
    out[to] = COLON
    to = pair(out, to + 1, seconds - minutes * 60)
    if fraction == 0:
        return to
    out[to] = POINT
    hundreds = fraction // 100
    to = pair(out, to + 1, hundreds // 100)
    to = pair(out, to, hundreds % 100)
    to = pair(out, to, fraction - hundreds * 100)
    while out[to - 1] == _ZERO:
        to -= 1
    return to


@compiled
def zone(out: Bytes, to: int, east: int) -> int:
    """Write +HH[:MM[:SS]] of seconds east of UTC."""
    out[to] = MINUS if east < 0 else PLUS
    seconds = abs(east)
    to = pair(out, to + 1, seconds // 3600)
    if seconds % 3600 != 0:
        out[to] = COLON
        to = pair(out, to + 1, seconds // 60 % 60)
    if seconds % 60 != 0:
        out[to] = COLON
        to = pair(out, to + 1, seconds % 60)
    return to
