# SPDX-License-Identifier: Apache-2.0
"""Arrays, ranges, multiranges and composite values in binary form; compiled.

In:   a buffer and, for each value, where it starts (negative: null) and how long it is.
Out:  first the places of the values inside them (``split_arrays`` in binary_read.py,
      ``split_ranges``, ``split_multiranges``, ``split_records``), then, once these are text, the
      text of the whole as array_out, range_out, multirange_out and record_out write it.
"""

from __future__ import annotations

import numpy as np

from penstock.pgoutput.binary_read import (
    ARRAY_HEADER,
    array_elements,
    next_field,
    signed32,
)
from penstock.pgoutput.binary_times import number, put
from penstock.pgoutput.compiled import Bytes, Ints, Positions, compiled
from penstock.pgoutput.parse import OK, OTHER_FIELDS, WRONG_SYNTAX
from penstock.pgoutput.scan import be32

# rangetypes.h
EMPTY, LOWER_INCLUSIVE, UPPER_INCLUSIVE, LOWER_INFINITE, UPPER_INFINITE = 1, 2, 4, 8, 16

ARRAY_QUOTING, RANGE_QUOTING, RECORD_QUOTING = range(3)

OVERHEAD = 160
"""Room for what surrounds the items of one value: six dimensions ``[-2147483648:2147483647]``."""

ITEM_OVERHEAD = 16
"""Room for what surrounds one item: quotes, delimiter, braces."""

_QUOTE, _BACKSLASH, _COMMA, _MINUS = ord('"'), ord("\\"), ord(","), ord("-")
_OPEN_BRACE, _CLOSE_BRACE, _OPEN_BRACKET, _CLOSE_BRACKET = (ord(c) for c in "{}[]")
_OPEN, _CLOSE, _COLON, _EQUALS, _BLANK = (ord(c) for c in "():= ")
_NULL = np.frombuffer(b"NULL", np.uint8)
_EMPTY = np.frombuffer(b"empty", np.uint8)


@compiled
def _is_special(letter: int, quoting: int, delimiter: int) -> bool:
    """Whether a letter makes quotes necessary: delimiters, quotes, and C's isspace()."""
    if letter in (_QUOTE, _BACKSLASH, _BLANK, delimiter) or 9 <= letter <= 13:
        return True
    if quoting == ARRAY_QUOTING:
        return letter in (_OPEN_BRACE, _CLOSE_BRACE)
    if letter in (_OPEN, _CLOSE):
        return True
    return quoting == RANGE_QUOTING and letter in (_OPEN_BRACKET, _CLOSE_BRACKET)


@compiled
def _needs_quotes(text: Bytes, at: int, size: int, quoting: int, delimiter: int) -> bool:
    if size == 0:
        return True
    if quoting == ARRAY_QUOTING and size == 4:
        is_null = True
        for k in range(4):
            is_null = is_null and (text[at + k] & 0xDF) == _NULL[k]
        if is_null:
            return True
    for k in range(size):  # noqa: SIM110 -- numba has no any() over a generator
        if _is_special(text[at + k], quoting, delimiter):
            return True
    return False


@compiled
def _item(
    text: Bytes, at: int, size: int, quoting: int, delimiter: int, out: Bytes, to: int
) -> int:
    """Write one item, in quotes where it needs them; arrays escape by backslash, others double."""
    if not _needs_quotes(text, at, size, quoting, delimiter):
        for k in range(size):
            out[to + k] = text[at + k]
        return to + size
    out[to] = _QUOTE
    to += 1
    for k in range(size):
        letter = text[at + k]
        if letter in (_QUOTE, _BACKSLASH):
            out[to] = _BACKSLASH if quoting == ARRAY_QUOTING else letter
            to += 1
        out[to] = letter
        to += 1
    out[to] = _QUOTE
    return to + 1


@compiled
def nested_room(item_lengths: Positions, values: int) -> int:
    """Bytes in which the text of values with these items (text) fits."""
    room = values * OVERHEAD
    for k in range(item_lengths.shape[0]):
        room += 2 * item_lengths[k] + ITEM_OVERHEAD
    return room


@compiled
def _signed(out: Bytes, to: int, value: int) -> int:
    if value < 0:
        out[to] = _MINUS
        to += 1
    return number(out, to, abs(value), 1)


@compiled
def _bounds(buf: Bytes, at: int, dimensions: int, out: Bytes, to: int) -> int:
    """Write ``[2:3]=`` when a dimension does not begin at 1."""
    needed = False
    for d in range(dimensions):
        needed = needed or be32(buf, at + ARRAY_HEADER + 8 * d + 4) != 1
    if not needed:
        return to
    for d in range(dimensions):
        low = signed32(buf, at + ARRAY_HEADER + 8 * d + 4)
        out[to] = _OPEN_BRACKET
        to = _signed(out, to + 1, low)
        out[to] = _COLON
        to = _signed(out, to + 1, low + be32(buf, at + ARRAY_HEADER + 8 * d) - 1)
        out[to] = _CLOSE_BRACKET
        to += 1
    out[to] = _EQUALS
    return to + 1


@compiled
def array_texts(  # type: ignore[no-untyped-def]  # a tuple of a tuple, for numba
    buf: Bytes,
    starts: Positions,
    lengths: Positions,
    delimiter: int,
    offsets: Positions,
    text: Bytes,
    item_starts: Positions,
    item_lengths: Positions,
    out: Bytes,
    out_starts: Positions,
    out_lengths: Positions,
):
    """Arrays whose elements are text; value i has the items from offsets[i] to offsets[i + 1]."""
    to = 0
    sizes = np.empty(8, np.int64)
    for i in range(starts.shape[0]):
        at = starts[i]
        out_starts[i] = -1
        out_lengths[i] = 0
        if at < 0:
            continue
        if array_elements(buf, at, lengths[i]) < 0:
            return WRONG_SYNTAX, i
        first = to
        dimensions = be32(buf, at)
        for d in range(dimensions):
            sizes[d] = be32(buf, at + ARRAY_HEADER + 8 * d)
        to = _bounds(buf, at, dimensions, out, to)
        begin, end = offsets[i], offsets[i + 1]
        if begin == end:
            out[to], out[to + 1] = _OPEN_BRACE, _CLOSE_BRACE
            to += 2
        for item in range(begin, end):
            if item > begin:
                out[to] = delimiter
                to += 1
            to = _braces(out, to, item - begin, dimensions, sizes, _OPEN_BRACE)
            if item_starts[item] < 0:
                to = put(out, to, _NULL)
            else:
                to = _item(
                    text,
                    item_starts[item],
                    item_lengths[item],
                    ARRAY_QUOTING,
                    delimiter,
                    out,
                    to,
                )
            to = _braces(out, to, item - begin + 1, dimensions, sizes, _CLOSE_BRACE)
        out_starts[i] = first
        out_lengths[i] = to - first
    return OK, 0


@compiled
def _braces(out: Bytes, to: int, item: int, dimensions: int, sizes: Ints, brace: int) -> int:
    """Write a brace for each dimension that begins (or ends) with so many items before."""
    size = 1
    for d in range(dimensions - 1, -1, -1):
        size *= sizes[d]
        if size > 0 and item % size == 0:
            out[to] = brace
            to += 1
    return to


@compiled
def split_ranges(  # type: ignore[no-untyped-def]  # a tuple of arrays, for numba
    buf: Bytes, starts: Positions, lengths: Positions
):
    """The two bounds of each range, null where there is none: (fault, number), starts, lengths."""
    count = starts.shape[0]
    item_starts = np.full(2 * count, -1, np.int32)
    item_lengths = np.zeros(2 * count, np.int32)
    fault = OK
    i = 0
    while i < count:
        at = starts[i]
        if at >= 0:
            end = at + lengths[i]
            flags = int(buf[at]) if lengths[i] > 0 else -1
            at += 1
            if flags < 0 or flags > 31:
                at = -1
            elif flags & EMPTY == 0:
                if flags & LOWER_INFINITE == 0:
                    at = next_field(buf, at, end, 2 * i, item_starts, item_lengths)
                if at >= 0 and flags & UPPER_INFINITE == 0:
                    at = next_field(buf, at, end, 2 * i + 1, item_starts, item_lengths)
            if at != end:
                fault = WRONG_SYNTAX
                break
        i += 1
    return (fault, i), item_starts, item_lengths


@compiled
def range_texts(
    buf: Bytes,
    starts: Positions,
    text: Bytes,
    item_starts: Positions,
    item_lengths: Positions,
    out: Bytes,
    out_starts: Positions,
    out_lengths: Positions,
) -> None:
    """Ranges whose bounds are text."""
    to = 0
    for i in range(starts.shape[0]):
        out_starts[i] = -1
        out_lengths[i] = 0
        if starts[i] < 0:
            continue
        first = to
        flags = int(buf[starts[i]])
        if flags & EMPTY != 0:
            to = put(out, to, _EMPTY)
        else:
            out[to] = _OPEN_BRACKET if flags & LOWER_INCLUSIVE != 0 else _OPEN
            to += 1
            for item in range(2 * i, 2 * i + 2):
                if item > 2 * i:
                    out[to] = _COMMA
                    to += 1
                at = item_starts[item]
                if at >= 0:
                    size = item_lengths[item]
                    to = _item(text, at, size, RANGE_QUOTING, _COMMA, out, to)
            out[to] = _CLOSE_BRACKET if flags & UPPER_INCLUSIVE != 0 else _CLOSE
            to += 1
        out_starts[i] = first
        out_lengths[i] = to - first


@compiled
def split_multiranges(  # type: ignore[no-untyped-def]  # a tuple of arrays, for numba
    buf: Bytes, starts: Positions, lengths: Positions
):
    """The ranges of each multirange: (fault, number), offsets [n + 1], starts, lengths."""
    count = starts.shape[0]
    offsets = np.zeros(count + 1, np.int32)
    total = 0
    for i in range(count):
        if starts[i] >= 0 and lengths[i] >= 4:
            total += min(be32(buf, starts[i]), lengths[i] // 4)
        offsets[i + 1] = total
    item_starts = np.empty(total, np.int32)
    item_lengths = np.empty(total, np.int32)
    fault = OK
    i = 0
    while i < count:
        if starts[i] >= 0:
            at, end = starts[i] + 4, starts[i] + lengths[i]
            if at > end or be32(buf, starts[i]) != offsets[i + 1] - offsets[i]:
                at = -1
            else:
                for item in range(offsets[i], offsets[i + 1]):
                    at = next_field(buf, at, end, item, item_starts, item_lengths)
                    if at < 0:
                        break
            if at != end:
                fault = WRONG_SYNTAX
                break
        i += 1
    return (fault, i), offsets, item_starts, item_lengths


@compiled
def multirange_texts(
    starts: Positions,
    offsets: Positions,
    text: Bytes,
    item_starts: Positions,
    item_lengths: Positions,
    out: Bytes,
    out_starts: Positions,
    out_lengths: Positions,
) -> None:
    """Multiranges whose ranges are text."""
    to = 0
    for i in range(starts.shape[0]):
        out_starts[i] = -1
        out_lengths[i] = 0
        if starts[i] < 0:
            continue
        first = to
        out[to] = _OPEN_BRACE
        to += 1
        for item in range(offsets[i], offsets[i + 1]):
            if item > offsets[i]:
                out[to] = _COMMA
                to += 1
            at = item_starts[item]
            for k in range(item_lengths[item]):
                out[to + k] = text[at + k]
            to += item_lengths[item]
        out[to] = _CLOSE_BRACE
        to += 1
        out_starts[i] = first
        out_lengths[i] = to - first


@compiled
def split_records(  # type: ignore[no-untyped-def]  # a tuple of arrays, for numba
    buf: Bytes, starts: Positions, lengths: Positions, oids: Ints
):
    """The fields of composite values: (fault, number), starts and lengths [field, value].

    OTHER_FIELDS for a value whose fields are of other types than ``oids``.
    """
    count = starts.shape[0]
    fields = oids.shape[0]
    item_starts = np.full((fields, count), -1, np.int32)
    item_lengths = np.zeros((fields, count), np.int32)
    fault = OK
    i = 0
    while i < count:
        if starts[i] >= 0:
            at, end = starts[i] + 4, starts[i] + lengths[i]
            if at > end:
                fault = WRONG_SYNTAX
                break
            if be32(buf, starts[i]) != fields:
                fault = OTHER_FIELDS
                break
            for f in range(fields):
                if at + 4 <= end and be32(buf, at) != oids[f]:
                    fault = OTHER_FIELDS
                    break
                if at + 4 <= end:
                    at = next_field(buf, at + 4, end, i, item_starts[f], item_lengths[f])
                else:
                    at = -1
                if at < 0:
                    break
            if fault == OK and at != end:
                fault = WRONG_SYNTAX
            if fault != OK:
                break
        i += 1
    return (fault, i), item_starts, item_lengths


@compiled
def record_texts(
    starts: Positions,
    fields: int,
    text: Bytes,
    item_starts: Positions,
    item_lengths: Positions,
    out: Bytes,
    out_starts: Positions,
    out_lengths: Positions,
) -> None:
    """Composite values whose fields are text; field f of value i is item f * n + i."""
    to = 0
    count = starts.shape[0]
    for i in range(count):
        out_starts[i] = -1
        out_lengths[i] = 0
        if starts[i] < 0:
            continue
        first = to
        out[to] = _OPEN
        to += 1
        for f in range(fields):
            if f > 0:
                out[to] = _COMMA
                to += 1
            item = f * count + i
            at = item_starts[item]
            if at >= 0:
                to = _item(text, at, item_lengths[item], RECORD_QUOTING, _COMMA, out, to)
        out[to] = _CLOSE
        to += 1
        out_starts[i] = first
        out_lengths[i] = to - first
