# SPDX-License-Identifier: Apache-2.0
"""Geometric values in binary form; compiled.

In:   a buffer and, for each value, where it starts (negative: null) and how long it is.
Out:  first where their coordinates are, each a float8, then, once these are text, the text of the
      whole as geo_ops.c writes it.

    point    x, y                             (x,y)
    lseg     two points                       [(x,y),(x,y)]
    box      two points                       (x,y),(x,y)
    path     closed, number, points           ((x,y),…) or, when it is open, [(x,y),…]
    polygon  number, points                   ((x,y),…)
    line     A, B, C                          {A,B,C}
    circle   x, y, radius                     <(x,y),r>
"""

from __future__ import annotations

import numpy as np

from penstock.pgoutput.compiled import Bytes, Positions, compiled
from penstock.pgoutput.parse import OK, WRONG_SYNTAX
from penstock.pgoutput.scan import be32

POINT, LSEG, BOX, PATH, POLYGON, LINE, CIRCLE = range(200, 207)

_OPEN, _CLOSE, _OPEN_BRACKET, _CLOSE_BRACKET, _COMMA = (ord(c) for c in "()[],")
_OPEN_BRACE, _CLOSE_BRACE, _LESS, _GREATER = (ord(c) for c in "{}<>")

COORDINATE = 8
"""Bytes of a coordinate."""


@compiled
def _coordinates(kind: int, buf: Bytes, at: int, size: int) -> tuple[int, int]:
    """How many coordinates a value has, -1 when it is wrong, and how many bytes come before."""
    if kind == POINT:
        return 2, 0
    if kind in (LSEG, BOX):
        return 4, 0
    if kind in (LINE, CIRCLE):
        return 3, 0
    header = 5 if kind == PATH else 4
    if size < header:
        return -1, header
    return 2 * be32(buf, at + header - 4), header


@compiled
def split_coordinates(  # type: ignore[no-untyped-def]  # a tuple of arrays, for numba
    kind: int, buf: Bytes, starts: Positions, lengths: Positions
):
    """The coordinates of each value: (fault, number), offsets [n + 1], starts, lengths."""
    count = starts.shape[0]
    offsets = np.zeros(count + 1, np.int32)
    fault = OK
    total = 0
    i = 0
    while i < count:
        if starts[i] >= 0:
            found, header = _coordinates(kind, buf, starts[i], lengths[i])
            if found < 0 or lengths[i] != header + COORDINATE * found:
                fault = WRONG_SYNTAX
                break
            total += found
        offsets[i + 1] = total
        i += 1
    item_starts = np.empty(total, np.int32)
    item_lengths = np.full(total, COORDINATE, np.int32)
    if fault == OK:
        for row in range(count):
            end = starts[row] + lengths[row]
            found = offsets[row + 1] - offsets[row]
            for k in range(found):
                item_starts[offsets[row] + k] = end - COORDINATE * (found - k)
    return (fault, i), offsets, item_starts, item_lengths


@compiled
def _frame(kind: int, closed: bool) -> tuple[int, int]:
    """What a value begins and ends with; 0 for nothing."""
    if kind == LINE:
        return _OPEN_BRACE, _CLOSE_BRACE
    if kind == CIRCLE:
        return _LESS, _GREATER
    if kind == POLYGON or (kind == PATH and closed):
        return _OPEN, _CLOSE
    if kind in (LSEG, PATH):
        return _OPEN_BRACKET, _CLOSE_BRACKET
    return 0, 0


@compiled
def geometry_texts(
    kind: int,
    buf: Bytes,
    starts: Positions,
    offsets: Positions,
    text: Bytes,
    item_starts: Positions,
    item_lengths: Positions,
    out: Bytes,
    out_starts: Positions,
    out_lengths: Positions,
) -> None:
    """Geometric values whose coordinates are text."""
    to = 0
    for i in range(starts.shape[0]):
        out_starts[i] = -1
        out_lengths[i] = 0
        if starts[i] < 0:
            continue
        first = to
        begin, end = _frame(kind, kind == PATH and buf[starts[i]] != 0)
        if begin > 0:
            out[to] = begin
            to += 1
        for item in range(offsets[i], offsets[i + 1]):
            place = item - offsets[i]
            # Coordinates come in pairs, but those of a line and the radius of a circle do not.
            paired = kind != LINE and not (kind == CIRCLE and place == 2)
            if place > 0:
                out[to] = _COMMA
                to += 1
            if paired and place % 2 == 0:
                out[to] = _OPEN
                to += 1
            at = item_starts[item]
            for k in range(item_lengths[item]):
                out[to + k] = text[at + k]
            to += item_lengths[item]
            if paired and place % 2 == 1:
                out[to] = _CLOSE
                to += 1
        if end > 0:
            out[to] = end
            to += 1
        out_starts[i] = first
        out_lengths[i] = to - first
