# SPDX-License-Identifier: Apache-2.0
"""A column of text values becomes a typed Arrow array; no Python object per value.

In:   where the values are in a buffer, and the column's PostgreSQL type.
Out:  an array of ``change.types.arrow_type``; a value that cannot become one raises
      UnreadableValue with its place, and the caller, who knows names and positions, says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.change import types
from penstock.compiled import Bytes, Positions
from penstock.pgoutput import parse

_INTEGERS: dict[int, tuple[type[np.signedinteger[Any]], int, int]] = {
    types.INT2: (np.int16, -(2**15), 2**15 - 1),
    types.INT4: (np.int32, -(2**31), 2**31 - 1),
    types.INT8: (np.int64, -(2**63), 2**63 - 1),
    types.OID: (np.int64, 0, 2**32 - 1),
}
MOMENTS: dict[int, tuple[int, type[np.signedinteger[Any]]]] = {
    types.DATE: (parse.DATE, np.int32),
    types.TIMESTAMP: (parse.TIMESTAMP, np.int64),
    types.TIMESTAMPTZ: (parse.TIMESTAMPTZ, np.int64),
}


class Cells(NamedTuple):
    """Values in a buffer: where each starts (negative: null) and how many bytes it has."""

    buffer: Bytes
    starts: Positions
    lengths: Positions

    def text(self, index: int) -> str:
        """One value as text, for messages."""
        at = int(self.starts[index])
        return bytes(self.buffer[at : at + int(self.lengths[index])]).decode(errors="replace")


class UnreadableValue(Exception):
    """The value at ``index`` is not of its type, or (``not_held``) the lake has no room for it."""

    def __init__(self, index: int, not_held: bool) -> None:
        super().__init__(index, not_held)
        self.index = index
        self.not_held = not_held


def to_array(cells: Cells, type_oid: int, typmod: int, clamp: bool = False) -> pa.Array:
    """Convert values to ``arrow_type(type_oid, typmod)``; UnreadableValue for the first bad one.

    ``clamp``: infinite dates and times become the first and the last that the lake holds.
    """
    element = types.ARRAY_ELEMENTS.get(type_oid)
    if element is not None:
        return _lists(cells, element, typmod, clamp)
    if type_oid in MOMENTS:
        return _moments(cells, type_oid, clamp)
    if type_oid == types.NUMERIC:
        return _decimals(cells, types.numeric_type(typmod))
    return _CONVERTERS.get(type_oid, _strings)(cells, type_oid)


def bitmap(valid: NDArray[np.bool_]) -> pa.Buffer | None:
    """Arrow's validity bitmap; None when everything is valid."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def check(result: tuple[int, int]) -> None:
    """Raise UnreadableValue for a fault of a compiled reader."""
    fault, index = result
    if fault != parse.OK:
        raise UnreadableValue(int(index), fault == parse.NOT_HELD)


def primitive(cells: Cells, arrow_type: pa.DataType, values: NDArray[Any]) -> pa.Array:
    """An array of values of a fixed width, null where the cells are."""
    buffers = [bitmap(cells.starts >= 0), pa.py_buffer(values)]
    return pa.Array.from_buffers(arrow_type, len(cells.starts), buffers)


def _integers(cells: Cells, type_oid: int) -> pa.Array:
    width, low, high = _INTEGERS[type_oid]
    values = np.empty(len(cells.starts), np.int64)
    check(parse.parse_integers(*cells, low, high, values))
    return primitive(cells, types.arrow_type(type_oid, -1), values.astype(width, copy=False))


def _moments(cells: Cells, type_oid: int, clamp: bool) -> pa.Array:
    kind, width = MOMENTS[type_oid]
    values = np.empty(len(cells.starts), np.int64)
    check(parse.parse_moments(*cells, kind, clamp, values))
    return primitive(cells, types.arrow_type(type_oid, -1), values.astype(width, copy=False))


def _booleans(cells: Cells, type_oid: int) -> pa.Array:
    values = np.empty(len(cells.starts), np.bool_)
    check(parse.parse_booleans(*cells, values))
    return primitive(cells, pa.bool_(), np.packbits(values, bitorder="little"))


def _decimals(cells: Cells, arrow_type: pa.Decimal128Type) -> pa.Array:
    values = np.empty((len(cells.starts), 2), np.uint64)
    check(parse.parse_decimals(*cells, arrow_type.precision, arrow_type.scale, values))
    return primitive(cells, arrow_type, values)


def _strings(cells: Cells, type_oid: int) -> pa.Array:
    strings = variable(cells, pa.string())
    try:
        strings.validate(full=True)  # UTF-8
    except pa.ArrowInvalid as error:
        raise UnreadableValue(_first_invalid_text(cells), False) from error
    return strings


def variable(cells: Cells, arrow_type: pa.DataType) -> pa.Array:
    """The cells' bytes as they are, as strings (unchecked) or binary values."""
    offsets, content = parse.copy_values(*cells)
    buffers = [bitmap(cells.starts >= 0), pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(arrow_type, len(cells.starts), buffers)


def _floats(cells: Cells, type_oid: int) -> pa.Array:
    wanted = types.arrow_type(type_oid, -1)
    strings = _strings(cells, type_oid)
    try:
        return strings.cast(wanted)
    except pa.ArrowInvalid as error:
        raise UnreadableValue(_first_uncastable(strings, wanted), False) from error


def _binary(cells: Cells, type_oid: int) -> pa.Array:
    count = len(cells.starts)
    offsets = np.empty(count + 1, np.int32)
    out = np.empty(int(cells.lengths.sum(dtype=np.int64)) // 2, np.uint8)
    check(parse.parse_hex(*cells, offsets, out))
    buffers = [bitmap(cells.starts >= 0), pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _lists(cells: Cells, element_oid: int, typmod: int, clamp: bool) -> pa.Array:
    result, offsets, elements = parse.split_arrays(*cells)
    check(result)
    with items_of(offsets):
        values = to_array(Cells(*elements), element_oid, typmod, clamp)
    return lists(cells, offsets, values)


@contextmanager
def items_of(offsets: Positions) -> Iterator[None]:
    """An item's UnreadableValue is one of the value that it is in; i has items from offsets[i]."""
    try:
        yield
    except UnreadableValue as error:
        index = int(np.searchsorted(offsets, error.index, side="right")) - 1
        raise UnreadableValue(index, error.not_held) from error


def lists(cells: Cells, offsets: Positions, values: pa.Array) -> pa.Array:
    """Lists of these elements, null where the cells are; list i begins at element offsets[i]."""
    buffers = [bitmap(cells.starts >= 0), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(
        pa.list_(values.type), len(cells.starts), buffers, children=[values]
    )


def _first_invalid_text(cells: Cells) -> int:
    for index in range(len(cells.starts)):
        if "�" in cells.text(index):
            return index
    return 0


def _first_uncastable(strings: pa.StringArray, wanted: pa.DataType) -> int:
    for index, value in enumerate(strings):
        try:
            value.cast(wanted)
        except pa.ArrowInvalid:
            return index
    return 0


_CONVERTERS: dict[int, Callable[[Cells, int], pa.Array]] = {
    **dict.fromkeys(_INTEGERS, _integers),
    types.BOOL: _booleans,
    types.BYTEA: _binary,
    types.FLOAT4: _floats,
    types.FLOAT8: _floats,
}
