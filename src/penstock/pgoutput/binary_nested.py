# SPDX-License-Identifier: Apache-2.0
"""Values that have other values in them, in binary form; compiled.

In:   a buffer and, for each value, where it starts (negative: null) and how long it is.
Out:  first the places of the values inside them (``split_items``, ``split_ranges``,
      ``split_records``), then, once these are text, the text of the whole (``write_nested``) as
      array_out, range_out, multirange_out and record_out write it, and geo_ops.c.

Value i has the items from offsets[i] up to offsets[i + 1]; a range has always two, and one of them
is null where there is no bound.  Loops unpack the items before they begin: a tuple's field
that is taken for each item costs compiled code a third more.
"""

from __future__ import annotations

import numpy as np

from penstock.change.quoting import (
    ARRAY_QUOTING,
    NO_QUOTING,
    NULL,
    RANGE_QUOTING,
    RECORD_QUOTING,
    write_item,
)
from penstock.change.write_text import put, signed
from penstock.compiled import Bytes, Ints, Positions, compiled
from penstock.pgoutput.binary_geometry import (
    CIRCLE,
    COORDINATE,
    PATH,
    POINT,
    coordinates,
    geometry_text,
)
from penstock.pgoutput.binary_read import signed32
from penstock.pgoutput.columns import Cells
from penstock.pgoutput.parse import NOT_HELD, OK, OTHER_FIELDS, WRONG_SYNTAX
from penstock.pgoutput.scan import be32

ARRAY, RANGE, MULTIRANGE, RECORD = range(100, 104)
KINDS = frozenset((*range(ARRAY, RECORD + 1), *range(POINT, CIRCLE + 1)))
"""Kinds of binary forms that have items; geometric ones are in binary_geometry.py."""

# array_send: dimensions, flags and element type; then length and lower bound of each dimension.
_ARRAY_HEADER = 12
_MAX_DIMENSIONS = 6

# rangetypes.h
_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE, _LOWER_INFINITE, _UPPER_INFINITE = 1, 2, 4, 8, 16

OVERHEAD = 160
"""Room for what surrounds the items of one value: six dimensions ``[-2147483648:2147483647]``."""

ITEM_OVERHEAD = 16
"""Room for what surrounds one item: quotes, delimiter, braces."""

_COMMA, _COLON, _EQUALS, _OPEN, _CLOSE = (ord(c) for c in ",:=()")
_OPEN_BRACE, _CLOSE_BRACE, _OPEN_BRACKET, _CLOSE_BRACKET = (ord(c) for c in "{}[]")
_EMPTY_RANGE = np.frombuffer(b"empty", np.uint8)


@compiled
def _array_items(buf: Bytes, at: int, size: int) -> tuple[int, int]:
    if size < _ARRAY_HEADER:
        return -1, 0
    dimensions = be32(buf, at)
    header = _ARRAY_HEADER + 8 * dimensions
    if dimensions > _MAX_DIMENSIONS or size < header:
        return -1, 0
    count = 1 if dimensions > 0 else 0
    for d in range(dimensions):
        count *= be32(buf, at + _ARRAY_HEADER + 8 * d)
        if count > size:  # each element has at least its length's four bytes
            return -1, 0
    return count, header


@compiled
def _items(kind: int, buf: Bytes, at: int, size: int) -> tuple[int, int]:
    """How many items a value has, -1 when it is wrong, and how many bytes come before."""
    if kind == ARRAY:
        return _array_items(buf, at, size)
    if kind == MULTIRANGE:
        count = be32(buf, at) if size >= 4 else -1
        return (count if count <= size else -1), 4
    return coordinates(kind, buf, at, size)


@compiled
def _is_plain(buf: Bytes, at: int) -> bool:
    """Whether an array is empty, or has one dimension that begins at 1."""
    dimensions = be32(buf, at)
    return dimensions == 0 or (dimensions == 1 and be32(buf, at + _ARRAY_HEADER + 4) == 1)


@compiled
def split_items(  # type: ignore[no-untyped-def]  # a tuple of arrays, for numba
    kind: int, only_plain: bool, buf: Bytes, starts: Positions, lengths: Positions
):
    """Find the items of arrays, multiranges and geometric values: nothing is copied.

    Returns (fault, value number), offsets [n + 1], and the items' starts and lengths.  With
    ``only_plain`` arrays of several dimensions, and such that do not begin at 1, are NOT_HELD.
    """
    count = starts.shape[0]
    offsets = np.zeros(count + 1, np.int32)
    firsts = np.empty(count, np.int32)
    fault = OK
    i = 0
    while i < count:
        found = 0
        if starts[i] >= 0:
            found, header = _items(kind, buf, starts[i], lengths[i])
            firsts[i] = starts[i] + header
            if found < 0:
                fault = WRONG_SYNTAX
            elif only_plain and not _is_plain(buf, starts[i]):
                fault = NOT_HELD
            if fault != OK:
                break
        offsets[i + 1] = offsets[i] + found
        i += 1
    total = offsets[count] if fault == OK else 0
    item_starts = np.empty(total, np.int32)
    item_lengths = np.full(total, COORDINATE, np.int32)
    if fault == OK:
        i = 0
        while i < count:
            if starts[i] >= 0:
                at, end = firsts[i], starts[i] + lengths[i]
                for item in range(offsets[i], offsets[i + 1]):
                    if kind >= POINT:
                        item_starts[item] = at
                        at += COORDINATE
                    else:
                        at = _next_field(buf, at, end, item, item_starts, item_lengths)
                        if at < 0:
                            break
                if at != end:
                    fault = WRONG_SYNTAX
                    break
            i += 1
    return (fault, i), offsets, item_starts, item_lengths


@compiled
def _next_field(
    buf: Bytes, at: int, end: int, item: int, starts: Positions, lengths: Positions
) -> int:
    """Note a value that has its length (-1: null) before it; the position after it, or -1."""
    if at + 4 > end:
        return -1
    size = signed32(buf, at)
    at += 4
    if size == -1:
        starts[item] = -1
        lengths[item] = 0
        return at
    if size < 0 or size > end - at:
        return -1
    starts[item] = at
    lengths[item] = size
    return at + size


@compiled
def split_ranges(  # type: ignore[no-untyped-def]  # a tuple of arrays, for numba
    buf: Bytes, starts: Positions, lengths: Positions
):
    """The two bounds of each range, null where there is none; returns as ``split_items``."""
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
            elif flags & _EMPTY == 0:
                if flags & _LOWER_INFINITE == 0:
                    at = _next_field(buf, at, end, 2 * i, item_starts, item_lengths)
                if at >= 0 and flags & _UPPER_INFINITE == 0:
                    at = _next_field(buf, at, end, 2 * i + 1, item_starts, item_lengths)
            if at != end:
                fault = WRONG_SYNTAX
                break
        i += 1
    offsets = np.arange(0, 2 * count + 2, 2).astype(np.int32)
    return (fault, i), offsets, item_starts, item_lengths


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
                if at + 4 > end:
                    at = -1
                elif be32(buf, at) != oids[f]:
                    fault = OTHER_FIELDS
                else:
                    at = _next_field(buf, at + 4, end, i, item_starts[f], item_lengths[f])
                if at < 0 or fault != OK:
                    break
            if fault == OK and at != end:
                fault = WRONG_SYNTAX
            if fault != OK:
                break
        i += 1
    return (fault, i), item_starts, item_lengths


@compiled
def nested_room(item_lengths: Positions, values: int) -> int:
    """Bytes in which the text of values with these items (text) fits."""
    room = values * OVERHEAD
    for k in range(item_lengths.shape[0]):
        room += 2 * item_lengths[k] + ITEM_OVERHEAD
    return room


@compiled
def write_nested(
    kind: int, delimiter: int, cells: Cells, offsets: Positions, items: Cells, into: Cells
) -> None:
    """Write values whose items are text; ``into`` gets where each is, and has room for all.

    ``delimiter`` is an array's.
    """
    buf, out = cells.buffer, into.buffer
    to = 0
    for i in range(cells.starts.shape[0]):
        at, begin, end = cells.starts[i], offsets[i], offsets[i + 1]
        into.starts[i] = -1
        into.lengths[i] = 0
        if at < 0:
            continue
        first = to
        if kind == ARRAY:
            to = _array(delimiter, buf, at, items, begin, end, out, to)
        elif kind == RANGE:
            to = _range(int(buf[at]), items, begin, end, out, to)
        elif kind == MULTIRANGE:
            to = _list(NO_QUOTING, items, begin, end, out, to)
        elif kind == RECORD:
            to = _list(RECORD_QUOTING, items, begin, end, out, to)
        else:
            closed = kind == PATH and buf[at] != 0
            to = geometry_text(kind, closed, items, begin, end, out, to)
        into.starts[i] = first
        into.lengths[i] = to - first


@compiled
def _array(
    delimiter: int, buf: Bytes, at: int, items: Cells, begin: int, end: int, out: Bytes, to: int
) -> int:
    text, starts, lengths = items
    if begin == end:
        out[to], out[to + 1] = _OPEN_BRACE, _CLOSE_BRACE
        return to + 2
    to = _bounds(buf, at, out, to)
    width = be32(buf, at + _ARRAY_HEADER + 8 * (be32(buf, at) - 1))  # of the last dimension
    place = 0
    for item in range(begin, end):
        if item > begin:
            out[to] = delimiter
            to += 1
        if place == 0:
            to = _braces(buf, at, item - begin, _OPEN_BRACE, out, to)
        if starts[item] < 0:
            to = put(out, to, NULL)
        else:
            to = write_item(text, starts[item], lengths[item], ARRAY_QUOTING, delimiter, out, to)
        place += 1
        if place == width:
            place = 0
            to = _braces(buf, at, item - begin + 1, _CLOSE_BRACE, out, to)
    return to


@compiled
def _bounds(buf: Bytes, at: int, out: Bytes, to: int) -> int:
    """Write ``[2:3]=`` when a dimension of an array does not begin at 1."""
    dimensions = be32(buf, at)
    needed = False
    for d in range(dimensions):
        needed = needed or be32(buf, at + _ARRAY_HEADER + 8 * d + 4) != 1
    if not needed:
        return to
    for d in range(dimensions):
        low = signed32(buf, at + _ARRAY_HEADER + 8 * d + 4)
        out[to] = _OPEN_BRACKET
        to = signed(out, to + 1, low)
        out[to] = _COLON
        to = signed(out, to + 1, low + be32(buf, at + _ARRAY_HEADER + 8 * d) - 1)
        out[to] = _CLOSE_BRACKET
        to += 1
    out[to] = _EQUALS
    return to + 1


@compiled
def _braces(buf: Bytes, at: int, items: int, brace: int, out: Bytes, to: int) -> int:
    """Write a brace for each dimension that begins (or ends) with so many items before."""
    size = 1
    for d in range(be32(buf, at) - 1, -1, -1):
        size *= be32(buf, at + _ARRAY_HEADER + 8 * d)
        if items % size == 0:
            out[to] = brace
            to += 1
    return to


@compiled
def _range(flags: int, items: Cells, begin: int, end: int, out: Bytes, to: int) -> int:
    if flags & _EMPTY != 0:
        return put(out, to, _EMPTY_RANGE)
    first = to
    to = _list(RANGE_QUOTING, items, begin, end, out, to)
    out[first] = _OPEN_BRACKET if flags & _LOWER_INCLUSIVE != 0 else _OPEN
    out[to - 1] = _CLOSE_BRACKET if flags & _UPPER_INCLUSIVE != 0 else _CLOSE
    return to


@compiled
def _list(quoting: int, items: Cells, begin: int, end: int, out: Bytes, to: int) -> int:
    """Write items between brackets, braces without quoting; nothing for one that is null."""
    text, starts, lengths = items
    out[to] = _OPEN_BRACE if quoting == NO_QUOTING else _OPEN
    to += 1
    for item in range(begin, end):
        if item > begin:
            out[to] = _COMMA
            to += 1
        if starts[item] >= 0:
            to = write_item(text, starts[item], lengths[item], quoting, _COMMA, out, to)
    out[to] = _CLOSE_BRACE if quoting == NO_QUOTING else _CLOSE
    return to + 1
