# SPDX-License-Identifier: Apache-2.0
"""Geometric values in binary form: coordinates, each a float8, and what is around them; compiled.

In:   one value in a buffer; its coordinates as text.
Out:  how many coordinates it has, and its text as geo_ops.c writes it.

    point    x, y                             (x,y)
    lseg     two points                       [(x,y),(x,y)]
    box      two points                       (x,y),(x,y)
    path     closed, number, points           ((x,y),…) or, when it is open, [(x,y),…]
    polygon  number, points                   ((x,y),…)
    line     A, B, C                          {A,B,C}
    circle   x, y, radius                     <(x,y),r>
"""

from __future__ import annotations

from penstock.change.write_text import copy
from penstock.compiled import Bytes, compiled
from penstock.pgoutput.columns import Cells
from penstock.pgoutput.scan import be32

POINT, LSEG, BOX, PATH, POLYGON, LINE, CIRCLE = range(200, 207)

_OPEN, _CLOSE, _OPEN_BRACKET, _CLOSE_BRACKET, _COMMA = (ord(c) for c in "()[],")
_OPEN_BRACE, _CLOSE_BRACE, _LESS, _GREATER = (ord(c) for c in "{}<>")

COORDINATE = 8
"""Bytes of a coordinate."""


@compiled
def coordinates(kind: int, buf: Bytes, at: int, size: int) -> tuple[int, int]:
    """How many coordinates a value has, -1 when it is wrong, and how many bytes come before."""
    header = 0
    if kind == POINT:
        count = 2
    elif kind in (LSEG, BOX):
        count = 4
    elif kind in (LINE, CIRCLE):
        count = 3
    else:
        header = 5 if kind == PATH else 4
        count = 2 * be32(buf, at + header - 4) if size >= header else -1
    return (count if size == header + COORDINATE * count else -1), header


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
def geometry_text(
    kind: int, closed: bool, items: Cells, begin: int, end: int, out: Bytes, to: int
) -> int:
    """Write a value whose coordinates are the texts from ``begin`` up to ``end``."""
    text, starts, lengths = items
    left, right = _frame(kind, closed)
    if left > 0:
        out[to] = left
        to += 1
    for item in range(begin, end):
        place = item - begin
        # Coordinates come in pairs, but those of a line and the radius of a circle do not.
        paired = kind != LINE and not (kind == CIRCLE and place == 2)
        if place > 0:
            out[to] = _COMMA
            to += 1
        if paired and place % 2 == 0:
            out[to] = _OPEN
            to += 1
        to = copy(text, starts[item], lengths[item], out, to)
        if paired and place % 2 == 1:
            out[to] = _CLOSE
            to += 1
    if right > 0:
        out[to] = right
        to += 1
    return to
