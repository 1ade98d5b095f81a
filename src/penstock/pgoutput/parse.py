# SPDX-License-Identifier: Apache-2.0
"""Read values from PostgreSQL's text form, a column at a time; compiled.

In:   a buffer and, for each value, where it starts (negative: null) and how long it is.
Out:  the values in a new array; a null's place holds zero.  Each function returns
      (fault, number of the first value that it could not read).

NOT_HELD is a right value that the lake's type has no room for; it is never changed to fit.
OTHER_FIELDS is a composite value whose type has been altered since (binary_nested.py).
Dates and times are those of Spark and Delta, years 1 to 9999; BC is NOT_HELD, and so is infinity
unless it is clamped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.change.write_text import DAY_US
from penstock.compiled import Bytes, Ints, Positions, compiled

OK, WRONG_SYNTAX, NOT_HELD, OTHER_FIELDS = range(4)

ZERO, MINUS, PLUS, POINT, COLON, SPACE, COMMA = (ord(c) for c in "0-+.: ,")
OPEN_BRACE, CLOSE_BRACE, QUOTE, BACKSLASH = (ord(c) for c in '{}"\\')
OPEN_BRACKET, TRUE, FALSE, HEX = (ord(c) for c in "[tfx")

MIN_INT64 = -(2**63)
# From 0001-01-01 up to, not including, 10000-01-01, in days since 1970-01-01.
FIRST_DAY, END_DAY = -719_162, 2_932_897

DATE, TIMESTAMP, TIMESTAMPTZ = range(3)


@compiled
def parse_integers(
    buf: Bytes, starts: Positions, lengths: Positions, low: int, high: int, out: Ints
) -> tuple[int, int]:
    """Read integers between ``low`` and ``high``; anything else is WRONG_SYNTAX."""
    for i in range(starts.shape[0]):
        at = starts[i]
        out[i] = 0
        if at < 0:
            continue
        end = at + lengths[i]
        negative = at < end and buf[at] == MINUS
        if negative:
            at += 1
        if at == end:
            return WRONG_SYNTAX, i
        value = 0  # kept negative: the negative side has one number more
        while at < end:
            digit = buf[at] - ZERO
            if digit < 0 or digit > 9:
                return WRONG_SYNTAX, i
            if value < -922337203685477580 or (value == -922337203685477580 and digit > 8):
                return WRONG_SYNTAX, i
            value = value * 10 - digit
            at += 1
        if not negative:
            if value == MIN_INT64:
                return WRONG_SYNTAX, i
            value = -value
        if value < low or value > high:
            return WRONG_SYNTAX, i
        out[i] = value
    return OK, 0


@compiled
def parse_booleans(
    buf: Bytes, starts: Positions, lengths: Positions, out: NDArray[np.bool_]
) -> tuple[int, int]:
    """Read ``t`` and ``f``."""
    for i in range(starts.shape[0]):
        at = starts[i]
        out[i] = False
        if at < 0:
            continue
        if lengths[i] != 1 or (buf[at] != TRUE and buf[at] != FALSE):
            return WRONG_SYNTAX, i
        out[i] = buf[at] == TRUE
    return OK, 0


@compiled
def _multiply_add(high: np.uint64, low: np.uint64, out: NDArray[np.uint64]) -> None:
    """``out`` becomes high * 10**19 + low, 128 bits, the lower half first."""
    ten19 = np.uint64(10_000_000_000_000_000_000)
    mask = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    a_low, a_high = high & mask, high >> shift
    b_low, b_high = ten19 & mask, ten19 >> shift
    lowest = a_low * b_low
    middle = a_high * b_low + (lowest >> shift)
    other = a_low * b_high + (middle & mask)
    product = (other << shift) | (lowest & mask)
    upper = a_high * b_high + (middle >> shift) + (other >> shift)
    total = product + low
    if total < product:
        upper += np.uint64(1)
    out[0] = total
    out[1] = upper


@compiled
def add_digit(
    high: np.uint64, low: np.uint64, left: int, digit: int
) -> tuple[np.uint64, np.uint64]:
    """A number as its last 19 digits, and those before them, with one more of ``left`` digits.

    So each half fits 64 bits; a digit for which there is no room (``left`` 0 or less) is dropped.
    """
    if left > 19:
        return high * np.uint64(10) + np.uint64(digit), low
    if left > 0:
        return high, low * np.uint64(10) + np.uint64(digit)
    return high, low


@compiled
def put_decimal(
    high: np.uint64, low: np.uint64, left: int, negative: bool, out: NDArray[np.uint64]
) -> None:
    """``out`` becomes the number with ``left`` zeros at its end, or minus that, 128 bits."""
    while left > 0:
        high, low = add_digit(high, low, left, 0)
        left -= 1
    _multiply_add(high, low, out)
    if negative:
        out[0] = ~out[0] + np.uint64(1)
        out[1] = ~out[1]
        if out[0] == np.uint64(0):
            out[1] += np.uint64(1)


@compiled
def _parse_decimal(
    buf: Bytes, at: int, end: int, precision: int, scale: int, out: NDArray[np.uint64]
) -> int:
    negative = at < end and buf[at] == MINUS
    if negative:
        at += 1
    if at == end:
        return WRONG_SYNTAX
    if buf[at] == 78 or buf[at] == 73:  # NaN, Infinity
        return NOT_HELD
    while at < end - 1 and buf[at] == ZERO and buf[at + 1] != POINT:
        at += 1
    point = at
    while point < end and buf[point] != POINT:
        point += 1
    if point == at or point == end - 1:
        return WRONG_SYNTAX
    whole = point - at
    left = whole + scale
    fits = whole <= precision - scale or (whole == 1 and buf[at] == ZERO)
    high = np.uint64(0)
    low = np.uint64(0)
    while at < end:
        if at != point:
            digit = buf[at] - ZERO
            if digit < 0 or digit > 9:
                return WRONG_SYNTAX
            fits = fits and (left > 0 or digit == 0)
            high, low = add_digit(high, low, left, digit)
            left -= 1
        at += 1
    if not fits:
        return NOT_HELD
    put_decimal(high, low, left, negative, out)
    return OK


@compiled
def parse_decimals(
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
            fault = _parse_decimal(buf, at, at + lengths[i], precision, scale, out[i])
            if fault != OK:
                return fault, i
    return OK, 0


@compiled
def _number(buf: Bytes, at: int, digits: int, end: int) -> int:
    """A number of exactly so many digits, or -1."""
    if at + digits > end:
        return -1
    value = 0
    for k in range(digits):
        digit = buf[at + k] - ZERO
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@compiled
def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the proleptic Gregorian calendar."""
    y = year - 1 if month <= 2 else year
    era = y // 400
    of_era = y - era * 400
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@compiled
def _month_length(year: int, month: int) -> int:
    if month == 2:
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        return 29 if leap else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


@compiled
def _parse_time(buf: Bytes, at: int, end: int) -> tuple[int, int]:
    """Read `` HH:MM:SS[.ffffff]``: microseconds, or -1, and the position after it."""
    if at + 9 > end or buf[at] != SPACE or buf[at + 3] != COLON or buf[at + 6] != COLON:
        return -1, at
    hour = _number(buf, at + 1, 2, end)
    minute = _number(buf, at + 4, 2, end)
    second = _number(buf, at + 7, 2, end)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return -1, at
    value = ((hour * 60 + minute) * 60 + second) * 1_000_000
    at += 9
    if at < end and buf[at] == POINT:
        at += 1
        unit = 100_000
        first = at
        while at < end and buf[at] >= ZERO and buf[at] <= ZERO + 9 and unit > 0:
            value += (buf[at] - ZERO) * unit
            unit //= 10
            at += 1
        if at == first:
            return -1, at
    return value, at


@compiled
def _parse_offset(buf: Bytes, at: int, end: int) -> tuple[int, int, bool]:
    """Read ``+HH[:MM[:SS]]``: seconds east of UTC, the position after it, whether it is right."""
    if at + 3 > end or (buf[at] != PLUS and buf[at] != MINUS):
        return 0, at, False
    west = buf[at] == MINUS
    hours = _number(buf, at + 1, 2, end)
    if hours < 0 or hours > 15:
        return 0, at, False
    seconds = hours * 3600
    at += 3
    unit = 60
    while at < end and buf[at] == COLON and unit > 0:
        part = _number(buf, at + 1, 2, end)
        if part < 0 or part > 59:
            return 0, at, False
        seconds += part * unit
        unit //= 60
        at += 3
    return -seconds if west else seconds, at, True


@compiled
def _is_infinity(buf: Bytes, at: int, end: int) -> bool:
    if at < end and buf[at] == MINUS:
        at += 1
    word = b"infinity"
    if end - at != len(word):
        return False
    for k in range(len(word)):  # noqa: SIM110 -- numba has no all() over a generator
        if buf[at + k] != word[k]:
            return False
    return True


@compiled
def _parse_moment(buf: Bytes, at: int, end: int, kind: int, clamp: bool) -> tuple[int, int]:
    """Read one date or time: (fault, value)."""
    if _is_infinity(buf, at, end):
        unit = 1 if kind == DATE else DAY_US
        bound = FIRST_DAY * unit if buf[at] == MINUS else END_DAY * unit - 1
        return (OK if clamp else NOT_HELD), bound
    digits = 0
    while at + digits < end and digits < 8 and buf[at + digits] != MINUS:
        digits += 1
    year = _number(buf, at, digits, end)
    at += digits
    if (
        digits < 4
        or (digits > 4 and buf[at - digits] == ZERO)
        or year < 0
        or at + 6 > end
        or buf[at] != MINUS
        or buf[at + 3] != MINUS
    ):
        return WRONG_SYNTAX, 0
    month = _number(buf, at + 1, 2, end)
    day = _number(buf, at + 4, 2, end)
    at += 6
    if month < 1 or month > 12 or day < 1 or day > 31:
        return WRONG_SYNTAX, 0
    value = 0
    if kind != DATE:
        value, at = _parse_time(buf, at, end)
        if value < 0:
            return WRONG_SYNTAX, 0
    if kind == TIMESTAMPTZ:
        east, at, right = _parse_offset(buf, at, end)
        if not right:
            return WRONG_SYNTAX, 0
        value -= east * 1_000_000
    if end - at == 3 and buf[at] == SPACE and buf[at + 1] == 66 and buf[at + 2] == 67:
        return NOT_HELD, 0
    if at != end or year < 1 or day > _month_length(year, month):
        return WRONG_SYNTAX, 0
    days = _days(year, month, day)
    if kind == DATE:
        return (OK if days < END_DAY else NOT_HELD), days
    value += days * DAY_US
    held = value >= FIRST_DAY * DAY_US and value < END_DAY * DAY_US
    return (OK if held else NOT_HELD), value


@compiled
def parse_moments(
    buf: Bytes, starts: Positions, lengths: Positions, kind: int, clamp: bool, out: Ints
) -> tuple[int, int]:
    """Read ISO dates (days since 1970), timestamps and timestamptz (microseconds since 1970).

    ``clamp``: infinities become the first and the last value that the lake holds.
    """
    for i in range(starts.shape[0]):
        at = starts[i]
        out[i] = 0
        if at >= 0:
            fault, value = _parse_moment(buf, at, at + lengths[i], kind, clamp)
            if fault != OK:
                return fault, i
            out[i] = value
    return OK, 0


@compiled
def copy_values(buf: Bytes, starts: Positions, lengths: Positions) -> tuple[Positions, Bytes]:
    """The values' bytes one after the other, with n + 1 offsets."""
    count = starts.shape[0]
    offsets = np.empty(count + 1, np.int32)
    total = 0
    offsets[0] = 0
    for i in range(count):
        total += lengths[i]
        offsets[i + 1] = total
    out = np.empty(total, np.uint8)
    to = 0
    for i in range(count):
        at = starts[i]
        for k in range(lengths[i]):
            out[to + k] = buf[at + k]
        to += lengths[i]
    return offsets, out


@compiled
def _nibble(letter: int) -> int:
    if letter >= ZERO and letter <= ZERO + 9:
        return letter - ZERO
    if letter >= 97 and letter <= 102:
        return letter - 87
    return -1


@compiled
def parse_hex(
    buf: Bytes, starts: Positions, lengths: Positions, offsets: Positions, out: Bytes
) -> tuple[int, int]:
    r"""Read bytea's ``\x...`` form; ``offsets`` [n + 1] and ``out`` are filled."""
    to = 0
    offsets[0] = 0
    for i in range(starts.shape[0]):
        at = starts[i]
        if at >= 0:
            end = at + lengths[i]
            if lengths[i] % 2 != 0 or at == end or buf[at] != BACKSLASH or buf[at + 1] != HEX:
                return WRONG_SYNTAX, i
            at += 2
            while at < end:
                upper, lower = _nibble(buf[at]), _nibble(buf[at + 1])
                if upper < 0 or lower < 0:
                    return WRONG_SYNTAX, i
                out[to] = upper * 16 + lower
                to += 1
                at += 2
        offsets[i + 1] = to
    return OK, 0


@compiled
def _is_null_word(text: Bytes, begin: int, end: int) -> bool:
    word = b"null"
    if end - begin != len(word):
        return False
    for k in range(len(word)):  # noqa: SIM110 -- numba has no all() over a generator
        if text[begin + k] | 32 != word[k]:
            return False
    return True


@compiled
def _parse_element(buf: Bytes, at: int, end: int, text: Bytes, to: int) -> tuple[int, int, bool]:
    """Copy one element of an array: the positions after it, -1 when wrong; whether quoted."""
    if buf[at] == QUOTE:
        at += 1
        while at < end and buf[at] != QUOTE:
            if buf[at] == BACKSLASH:
                at += 1
                if at == end:
                    return -1, to, True
            text[to] = buf[at]
            to += 1
            at += 1
        return (at + 1 if at < end else -1), to, True
    first = at
    while at < end and buf[at] != COMMA and buf[at] != CLOSE_BRACE:
        letter = buf[at]
        if letter in (QUOTE, BACKSLASH, OPEN_BRACE):
            return -1, to, False
        text[to] = letter
        to += 1
        at += 1
    return (at if at > first else -1), to, False


@compiled
def split_arrays(  # type: ignore[no-untyped-def]  # a tuple of arrays, for numba
    buf: Bytes, starts: Positions, lengths: Positions
):
    """Split one-dimensional arrays, ``{1,NULL,"a b"}``, into their elements' text.

    Returns (fault, value number), list offsets [n + 1], and the elements: their bytes, starts
    and lengths.  Nested arrays, and arrays that do not begin at 1, are NOT_HELD.
    """
    count = starts.shape[0]
    offsets = np.zeros(count + 1, np.int32)
    size = 0
    for i in range(count):
        size += lengths[i]
    text = np.empty(size, np.uint8)
    element_starts = np.empty(size // 2 + 1, np.int32)
    element_lengths = np.empty(size // 2 + 1, np.int32)
    fault = OK
    elements = 0
    to = 0
    i = 0
    while i < count:
        at = starts[i]
        if at >= 0:
            end = at + lengths[i]
            if at < end and buf[at] == OPEN_BRACKET:
                fault = NOT_HELD
            elif end - at < 2 or buf[at] != OPEN_BRACE or buf[end - 1] != CLOSE_BRACE:
                fault = WRONG_SYNTAX
            elif buf[at + 1] == OPEN_BRACE:
                fault = NOT_HELD
            at += 1
            end -= 1  # the last brace; every element ends before it
            more = fault == OK and at < end
            while more:
                begin = to
                at, to, quoted = (
                    _parse_element(buf, at, end, text, to) if at < end else (-1, to, False)
                )
                if at < 0 or (at < end and buf[at] != COMMA):
                    fault = WRONG_SYNTAX
                    break
                missing = not quoted and _is_null_word(text, begin, to)
                element_starts[elements] = -1 if missing else begin
                element_lengths[elements] = 0 if missing else to - begin
                elements += 1
                more = at < end
                at += 1
            if fault != OK:
                break
        offsets[i + 1] = elements
        i += 1
    return (
        (fault, i),
        offsets,
        (text[:to], element_starts[:elements], element_lengths[:elements]),
    )
