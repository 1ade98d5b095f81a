# SPDX-License-Identifier: Apache-2.0
"""Scalar values in binary form as the output functions of their types print them; compiled.

In:   a buffer and, for each value, where it starts (negative: null) and how long it is.
Out:  their text, one after the other, as with DateStyle ISO, IntervalStyle postgres,
      bytea_output hex and TimeZone UTC, which the connection to a publisher sets.

A value that its send function would not write is WRONG_SYNTAX.
"""

from __future__ import annotations

import numpy as np

from penstock.change.write_text import bytea_text, copy, hex_byte, hex_digit, number, put, signed
from penstock.compiled import Bytes, Positions, compiled
from penstock.pgoutput.binary_read import (
    BASE,
    MAX_INT64,
    MINUS_INFINITY,
    NAN,
    NEGATIVE,
    NUMERIC_HEADER,
    PLUS_INFINITY,
    numeric_is_well_formed,
    signed16,
    signed32,
)
from penstock.pgoutput.binary_times import date_text, interval_text, time_text, timestamp_text
from penstock.pgoutput.parse import OK, WRONG_SYNTAX
from penstock.pgoutput.scan import be16, be32, be64

(
    TEXT,
    VERSIONED_TEXT,
    INTEGER,
    UNSIGNED,
    BOOLEAN,
    HEX,
    DATE,
    TIMESTAMP,
    TIMESTAMPTZ,
    TIME,
    TIMETZ,
    INTERVAL,
    NUMERIC,
    UUID,
    INET,
    MACADDR,
    BITS,
    LSN,
    TID,
    CHAR,
    TSVECTOR,
) = range(21)
"""Kinds of binary forms; those that have items are in binary_nested.py."""

INET4, INET6 = 2, 3
"""PGSQL_AF_INET and PGSQL_AF_INET6."""

_FIXED_WIDTH = 96
"""Room for the text of any kind that is not sized by its content; an interval has up to 85."""

_BLANK, _MINUS, _POINT, _SLASH, _ZERO, _COLON = (ord(c) for c in " -./0:")
_COMMA, _QUOTE, _BACKSLASH = (ord(c) for c in ",'\\")
_NUMERIC_INFINITY = np.frombuffer(b"Infinity", np.uint8)
_NAN_WORD = np.frombuffer(b"NaN", np.uint8)
_WEIGHTS = np.frombuffer(b"\0CBA", np.uint8)


@compiled
def _hex(out: Bytes, to: int, value: int, upper: bool) -> int:
    """Write a 32-bit number in hexadecimal, without leading zeros."""
    digits = 1
    while digits < 8 and value >> (4 * digits) > 0:
        digits += 1
    for k in range(digits):
        digit = (value >> (4 * (digits - 1 - k))) & 15
        out[to + k] = (55 + digit) if upper and digit > 9 else hex_digit(digit)
    return to + digits


@compiled
def _integer(buf: Bytes, at: int, size: int, has_sign: bool, out: Bytes, to: int) -> int:
    if size != 2 and size != 4 and size != 8:
        return -1
    if size == 8:
        value = be64(buf, at)
        if value < 0 and not has_sign:  # the last digit apart: numba has no greater number
            half = (value >> 1) & MAX_INT64
            tens = half // 5
            to = number(out, to, tens, 1)
            return number(out, to, (half - tens * 5) * 2 + (value & 1), 1)
    elif size == 4:
        value = signed32(buf, at) if has_sign else be32(buf, at)
    else:
        value = signed16(buf, at) if has_sign else be16(buf, at)
    return signed(out, to, value)


@compiled
def _numeric_text(buf: Bytes, at: int, size: int, out: Bytes, to: int) -> int:
    """get_str_from_var: as many digits behind the point as the display scale says."""
    if not numeric_is_well_formed(buf, at, size):
        return -1
    sign = be16(buf, at + 4)
    if sign == NAN:
        return put(out, to, _NAN_WORD)
    if sign in (NEGATIVE, MINUS_INFINITY):
        out[to] = _MINUS
        to += 1
    if sign in (PLUS_INFINITY, MINUS_INFINITY):
        return put(out, to, _NUMERIC_INFINITY)
    digits, weight, scale = be16(buf, at), signed16(buf, at + 2), be16(buf, at + 6)
    at += NUMERIC_HEADER
    if weight < 0:
        to = number(out, to, 0, 1)
    for group in range(weight + 1):
        value = be16(buf, at + 2 * group) if group < digits else 0
        to = number(out, to, value, 1 if group == 0 else 4)
    if scale > 0:
        out[to] = _POINT
        to += 1
        group = weight + 1
        left = scale
        while left > 0:
            value = be16(buf, at + 2 * group) if 0 <= group < digits else 0
            unit = BASE // 10
            while unit > 0 and left > 0:
                out[to] = _ZERO + value // unit % 10
                to += 1
                left -= 1
                unit //= 10
            group += 1
    return to


@compiled
def _numeric_size(buf: Bytes, at: int, size: int) -> int:
    if size < NUMERIC_HEADER:
        return 0
    return 4 * max(signed16(buf, at + 2) + 1, 0) + be16(buf, at + 6) + 16


@compiled
def _uuid_text(buf: Bytes, at: int, size: int, out: Bytes, to: int) -> int:
    if size != 16:
        return -1
    for k in range(16):
        if k == 4 or k == 6 or k == 8 or k == 10:
            out[to] = _MINUS
            to += 1
        to = hex_byte(out, to, buf[at + k])
    return to


@compiled
def _macaddr_text(buf: Bytes, at: int, size: int, out: Bytes, to: int) -> int:
    if size != 6 and size != 8:
        return -1
    for k in range(size):
        if k > 0:
            out[to] = _COLON
            to += 1
        to = hex_byte(out, to, buf[at + k])
    return to


@compiled
def _ipv4(buf: Bytes, at: int, out: Bytes, to: int) -> int:
    for k in range(4):
        if k > 0:
            out[to] = _POINT
            to += 1
        to = number(out, to, int(buf[at + k]), 1)
    return to


@compiled
def _zero_run(buf: Bytes, at: int) -> tuple[int, int]:
    """The longest run of at least two zero words in an IPv6 address: its begin and its length."""
    best_begin, best = -1, 1
    begin, run = -1, 0
    for word in range(8):
        if be16(buf, at + 2 * word) != 0:
            run = 0
            continue
        begin = word if run == 0 else begin
        run += 1
        if run > best:
            best_begin, best = begin, run
    return best_begin, best


@compiled
def _ipv6(buf: Bytes, at: int, out: Bytes, to: int) -> int:
    begin, run = _zero_run(buf, at)
    last = be16(buf, at + 14)
    embedded = begin == 0 and (
        run == 6 or (run == 7 and last != 1) or (run == 5 and be16(buf, at + 10) == 0xFFFF)
    )
    for word in range(8):
        if begin >= 0 and begin <= word < begin + run:
            if word == begin:
                out[to] = _COLON
                to += 1
            continue
        if word > 0:
            out[to] = _COLON
            to += 1
        if word == 6 and embedded:
            return _ipv4(buf, at + 12, out, to)
        to = _hex(out, to, be16(buf, at + 2 * word), False)
    if begin >= 0 and begin + run == 8:
        out[to] = _COLON
        to += 1
    return to


@compiled
def _inet_text(buf: Bytes, at: int, size: int, out: Bytes, to: int) -> int:
    """network_send: family, bits, whether it is a cidr, number of bytes, the address."""
    if size < 4 or size != 4 + buf[at + 3]:
        return -1
    family, bits, is_cidr = buf[at], buf[at + 1], buf[at + 2]
    if not (family == INET4 and size == 8) and not (family == INET6 and size == 20):
        return -1
    to = _ipv4(buf, at + 4, out, to) if family == INET4 else _ipv6(buf, at + 4, out, to)
    if is_cidr or bits != (32 if family == INET4 else 128):
        out[to] = _SLASH
        to = number(out, to + 1, int(bits), 1)
    return to


@compiled
def _bits_text(buf: Bytes, at: int, size: int, out: Bytes, to: int) -> int:
    if size < 4 or size != 4 + (be32(buf, at) + 7) // 8:
        return -1
    bits = be32(buf, at)
    for k in range(bits):
        out[to + k] = _ZERO + ((buf[at + 4 + k // 8] >> (7 - k % 8)) & 1)
    return to + bits


@compiled
def _char_text(buf: Bytes, at: int, size: int, out: Bytes, to: int) -> int:
    r"""One byte; none for 0, ``\ooo`` for one that is not ASCII (charout, since 16)."""
    if size != 1:
        return -1
    value = buf[at]
    if value >= 128:
        out[to] = _BACKSLASH
        out[to + 1] = _ZERO + (value >> 6)
        out[to + 2] = _ZERO + ((value >> 3) & 7)
        out[to + 3] = _ZERO + (value & 7)
        return to + 4
    out[to] = value
    return to + (1 if value > 0 else 0)


@compiled
def _positions(buf: Bytes, at: int, end: int, out: Bytes, to: int) -> tuple[int, int]:
    """The places of one lexeme of a tsvector, ``:1A,2``: what follows in both, -1 when wrong."""
    if at + 2 > end:
        return -1, to
    count = be16(buf, at)
    at += 2
    if at + 2 * count > end:
        return -1, to
    for k in range(count):
        place = be16(buf, at + 2 * k)
        out[to] = _COLON if k == 0 else _COMMA
        to = number(out, to + 1, place & 0x3FFF, 1)
        if place >> 14 > 0:
            out[to] = _WEIGHTS[place >> 14]
            to += 1
    return at + 2 * count, to


@compiled
def _tsvector_text(buf: Bytes, at: int, size: int, out: Bytes, to: int) -> int:
    if size < 4:
        return -1
    end = at + size
    count = be32(buf, at)
    at += 4
    for lexeme in range(count):
        if lexeme > 0:
            out[to] = _BLANK
            to += 1
        out[to] = _QUOTE
        to += 1
        while at < end and buf[at] != 0:
            if buf[at] == _QUOTE or buf[at] == _BACKSLASH:
                out[to] = buf[at]
                to += 1
            out[to] = buf[at]
            to += 1
            at += 1
        out[to] = _QUOTE
        at, to = _positions(buf, at + 1, end, out, to + 1)
        if at < 0:
            return -1
    return to if at == end else -1


@compiled
def _text(kind: int, buf: Bytes, at: int, size: int, out: Bytes, to: int) -> int:
    """Write one value; the position after it, or -1 when it is wrong."""
    if kind == TEXT:
        return copy(buf, at, size, out, to)
    if kind == VERSIONED_TEXT:  # jsonb and jsonpath: the format's number, 1, comes first
        return copy(buf, at + 1, size - 1, out, to) if size > 0 and buf[at] == 1 else -1
    if kind in (INTEGER, UNSIGNED):
        return _integer(buf, at, size, kind == INTEGER, out, to)
    if kind == BOOLEAN:
        if size != 1:
            return -1
        out[to] = 116 if buf[at] != 0 else 102  # t, f
        return to + 1
    if kind == HEX:
        return bytea_text(buf, at, size, out, to)
    if kind == DATE:
        return date_text(buf, at, size, out, to)
    if kind in (TIMESTAMP, TIMESTAMPTZ):
        return timestamp_text(buf, at, size, kind == TIMESTAMPTZ, out, to)
    if kind in (TIME, TIMETZ):
        return time_text(buf, at, size, kind == TIMETZ, out, to)
    if kind == INTERVAL:
        return interval_text(buf, at, size, out, to)
    if kind == NUMERIC:
        return _numeric_text(buf, at, size, out, to)
    if kind == UUID:
        return _uuid_text(buf, at, size, out, to)
    if kind == INET:
        return _inet_text(buf, at, size, out, to)
    if kind == MACADDR:
        return _macaddr_text(buf, at, size, out, to)
    if kind == BITS:
        return _bits_text(buf, at, size, out, to)
    if kind == CHAR:
        return _char_text(buf, at, size, out, to)
    if kind == TSVECTOR:
        return _tsvector_text(buf, at, size, out, to)
    return _pair_text(kind, buf, at, size, out, to)


@compiled
def _pair_text(kind: int, buf: Bytes, at: int, size: int, out: Bytes, to: int) -> int:
    """pg_lsn as two hexadecimal numbers, tid as a block and a place in it."""
    if size != (8 if kind == LSN else 6):
        return -1
    if kind == LSN:
        to = _hex(out, to, be32(buf, at), True)
        out[to] = _SLASH
        return _hex(out, to + 1, be32(buf, at + 4), True)
    out[to] = 40  # (
    to = number(out, to + 1, be32(buf, at), 1)
    out[to] = _COMMA
    to = number(out, to + 1, be16(buf, at + 4), 1)
    out[to] = 41  # )
    return to + 1


@compiled
def text_room(kind: int, buf: Bytes, starts: Positions, lengths: Positions) -> int:
    """Bytes in which the text of these values fits."""
    room = 0
    for i in range(starts.shape[0]):
        if starts[i] < 0:
            continue
        size = lengths[i]
        if kind in (TEXT, VERSIONED_TEXT):
            room += size
        elif kind == HEX:
            room += 2 + 2 * size
        elif kind == BITS:
            room += 8 * size
        elif kind == TSVECTOR:
            room += 4 * size
        elif kind == NUMERIC:
            room += _numeric_size(buf, starts[i], size)
        else:
            room += _FIXED_WIDTH
    return room


@compiled
def write_texts(  # type: ignore[no-untyped-def]  # a tuple of a tuple, for numba
    kind: int,
    buf: Bytes,
    starts: Positions,
    lengths: Positions,
    out: Bytes,
    out_starts: Positions,
    out_lengths: Positions,
):
    """Write the values' text into ``out`` (of ``text_room`` bytes); where each is."""
    to = 0
    for i in range(starts.shape[0]):
        out_starts[i] = -1
        out_lengths[i] = 0
        if starts[i] >= 0:
            after = _text(kind, buf, starts[i], lengths[i], out, to)
            if after < 0:
                return WRONG_SYNTAX, i
            out_starts[i] = to
            out_lengths[i] = after - to
            to = after
    return OK, 0
