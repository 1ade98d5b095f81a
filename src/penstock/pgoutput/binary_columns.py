# SPDX-License-Identifier: Apache-2.0
"""A column of values in binary form becomes the Arrow array that their text form would become.

In:   where the values are in a buffer, the form that they have, the column's PostgreSQL type.
Out:  an array of ``change.types.arrow_type``, or UnreadableValue.

    the lake's type                    how
    ---------------                    ---
    numbers, bool, dates, bytea        read as they are
    text                               the form's text (``text_cells``), written by compiled code
    list                               its elements, one of the above
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.change import types
from penstock.change.float_text import FLOAT_WIDTH, float_texts
from penstock.errors import FeatureNotSupportedError
from penstock.pgoutput import (
    binary_geometry,
    binary_nested,
    binary_read,
    binary_text,
    columns,
    forms,
    parse,
)
from penstock.pgoutput.columns import Cells, UnreadableValue, check, primitive
from penstock.pgoutput.compiled import Positions
from penstock.pgoutput.forms import Form

_WIDTHS: dict[int, tuple[int, bool, type[np.signedinteger[Any]]]] = {
    types.INT2: (2, True, np.int16),
    types.INT4: (4, True, np.int32),
    types.INT8: (8, True, np.int64),
    types.OID: (4, False, np.int64),
}
_MAX_TEXT = 2**31 - 1


def to_array(cells: Cells, form: Form, type_oid: int, typmod: int, clamp: bool) -> pa.Array:
    """Convert binary values to ``arrow_type(type_oid, typmod)``; see ``columns.to_array``."""
    if type_oid in types.ARRAY_ELEMENTS:
        return _lists(cells, form, types.ARRAY_ELEMENTS[type_oid], typmod, clamp)
    if type_oid in _WIDTHS:
        width, signed, held = _WIDTHS[type_oid]
        values = _integers(cells, width, signed).astype(held, copy=False)
        return primitive(cells, types.arrow_type(type_oid, -1), values)
    if type_oid in (types.FLOAT4, types.FLOAT8):
        return primitive(cells, types.arrow_type(type_oid, -1), _floats(cells, form))
    if type_oid in columns.MOMENTS:
        return _moments(cells, type_oid, clamp)
    if type_oid == types.BOOL:
        values = np.packbits(_integers(cells, 1, False) != 0, bitorder="little")
        return primitive(cells, pa.bool_(), values)
    if type_oid == types.NUMERIC:
        return _decimals(cells, types.numeric_type(typmod))
    if type_oid == types.BYTEA:
        return columns.variable(cells, pa.binary())
    return columns.to_array(text_cells(cells, form), type_oid, typmod, clamp)


def text_cells(cells: Cells, form: Form) -> Cells:
    """The values in PostgreSQL's text form; UnreadableValue for one that is not of its type."""
    if form.kind == binary_text.TEXT:
        return cells
    if form.kind in (forms.FLOAT4, forms.FLOAT8):
        return _float_texts(cells, form)
    if form.kind in _NESTED:
        return _NESTED[form.kind](cells, form)
    out, starts, lengths = _room(binary_text.text_room(form.kind, *cells), len(cells.starts))
    check(binary_text.write_texts(form.kind, *cells, out, starts, lengths))
    return Cells(out, starts, lengths)


def _room(size: int, count: int) -> tuple[NDArray[np.uint8], Positions, Positions]:
    if size > _MAX_TEXT:
        raise UnreadableValue(0, True)
    return np.empty(size, np.uint8), np.empty(count, np.int32), np.empty(count, np.int32)


def _integers(cells: Cells, width: int, signed: bool) -> NDArray[np.int64]:
    values = np.empty(len(cells.starts), np.int64)
    check(binary_read.read_integers(*cells, width, signed, values))
    return values


def _floats(cells: Cells, form: Form) -> NDArray[Any]:
    if form.kind == forms.FLOAT4:
        return _integers(cells, 4, True).astype(np.int32).view(np.float32)
    return _integers(cells, 8, True).view(np.float64)


def _moments(cells: Cells, type_oid: int, clamp: bool) -> pa.Array:
    kind, width = columns.MOMENTS[type_oid]
    values = np.empty(len(cells.starts), np.int64)
    check(binary_read.read_moments(*cells, kind, clamp, values))
    return primitive(cells, types.arrow_type(type_oid, -1), values.astype(width, copy=False))


def _decimals(cells: Cells, arrow_type: pa.Decimal128Type) -> pa.Array:
    values = np.empty((len(cells.starts), 2), np.uint64)
    check(binary_read.read_decimals(*cells, arrow_type.precision, arrow_type.scale, values))
    return primitive(cells, arrow_type, values)


def _lists(cells: Cells, form: Form, element_oid: int, typmod: int, clamp: bool) -> pa.Array:
    result, offsets, starts, lengths = binary_read.split_arrays(*cells, True)
    check(result)
    elements = Cells(cells.buffer, starts, lengths)
    try:
        values = to_array(elements, form.items[0], element_oid, typmod, clamp)
    except UnreadableValue as error:
        raise _of_whole(error, offsets) from error
    return columns.lists(cells, offsets, values)


def _of_whole(error: UnreadableValue, offsets: Positions) -> UnreadableValue:
    """An item's error as one of the value that it is in."""
    index = int(np.searchsorted(offsets, error.index, side="right")) - 1
    return UnreadableValue(index, error.not_held)


def _float_texts(cells: Cells, form: Form) -> Cells:
    wide, used = float_texts(_floats(cells, form))
    count = len(cells.starts)
    missing = cells.starts < 0
    starts = np.arange(0, count * FLOAT_WIDTH, FLOAT_WIDTH, dtype=np.int32)
    return Cells(
        wide.reshape(-1),
        np.where(missing, -1, starts).astype(np.int32),
        np.where(missing, 0, used).astype(np.int32),
    )


def _array_texts(cells: Cells, form: Form) -> Cells:
    result, offsets, starts, lengths = binary_read.split_arrays(*cells, False)
    check(result)
    items = _item_texts(Cells(cells.buffer, starts, lengths), form.items[0], offsets)
    out, starts, lengths = _nested_room(cells, items)
    check(
        binary_nested.array_texts(
            *cells, ord(form.delimiter), offsets, *items, out, starts, lengths
        )
    )
    return Cells(out, starts, lengths)


def _geometry_texts(cells: Cells, form: Form) -> Cells:
    result, offsets, starts, lengths = binary_geometry.split_coordinates(form.kind, *cells)
    check(result)
    items = _float_texts(Cells(cells.buffer, starts, lengths), Form(forms.FLOAT8))
    out, starts, lengths = _nested_room(cells, items)
    binary_geometry.geometry_texts(
        form.kind, cells.buffer, cells.starts, offsets, *items, out, starts, lengths
    )
    return Cells(out, starts, lengths)


def _range_texts(cells: Cells, form: Form) -> Cells:
    result, starts, lengths = binary_nested.split_ranges(*cells)
    check(result)
    offsets = np.arange(0, len(starts) + 2, 2, dtype=np.int32)
    items = _item_texts(Cells(cells.buffer, starts, lengths), form.items[0], offsets)
    out, starts, lengths = _nested_room(cells, items)
    binary_nested.range_texts(cells.buffer, cells.starts, *items, out, starts, lengths)
    return Cells(out, starts, lengths)


def _multirange_texts(cells: Cells, form: Form) -> Cells:
    result, offsets, starts, lengths = binary_nested.split_multiranges(*cells)
    check(result)
    items = _item_texts(Cells(cells.buffer, starts, lengths), form.items[0], offsets)
    out, starts, lengths = _nested_room(cells, items)
    binary_nested.multirange_texts(cells.starts, offsets, *items, out, starts, lengths)
    return Cells(out, starts, lengths)


def _record_texts(cells: Cells, form: Form) -> Cells:
    count = len(cells.starts)
    oids = np.array(form.oids, np.int64)
    result, starts, lengths = binary_nested.split_records(*cells, oids)
    if result[0] == parse.OTHER_FIELDS:
        raise FeatureNotSupportedError(
            "a composite value has other fields than its type has now",
            detail="The type has been altered on the publisher since the value was written.",
            hint="ALTER SUBSCRIPTION ... SET (binary = false): nothing is lost by that.",
        )
    check(result)
    fields = []
    for number, field in enumerate(form.items):  # an error's index is the value's
        fields.append(text_cells(Cells(cells.buffer, starts[number], lengths[number]), field))
    items = _joined(fields)
    out, out_starts, out_lengths = _nested_room(cells, items)
    binary_nested.record_texts(
        cells.starts, len(fields), *items, out, out_starts[:count], out_lengths[:count]
    )
    return Cells(out, out_starts, out_lengths)


def _item_texts(items: Cells, form: Form, offsets: Positions) -> Cells:
    try:
        return text_cells(items, form)
    except UnreadableValue as error:
        raise _of_whole(error, offsets) from error


def _joined(parts: list[Cells]) -> Cells:
    """Several columns of text as one, in one buffer."""
    starts, lengths, buffers = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)], []
    size = 0
    for part in parts:
        offsets, text = parse.copy_values(*part)
        starts.append(np.where(part.starts < 0, -1, offsets[:-1] + size).astype(np.int32))
        lengths.append(part.lengths)
        buffers.append(text)
        size += len(text)
    if size > _MAX_TEXT:
        raise UnreadableValue(0, True)
    text = np.concatenate(buffers) if buffers else np.zeros(0, np.uint8)
    return Cells(text, np.concatenate(starts), np.concatenate(lengths))


def _nested_room(cells: Cells, items: Cells) -> tuple[NDArray[np.uint8], Positions, Positions]:
    count = len(cells.starts)
    return _room(binary_nested.nested_room(items.lengths, count), count)


_NESTED = {
    forms.ARRAY: _array_texts,
    forms.RANGE: _range_texts,
    forms.MULTIRANGE: _multirange_texts,
    forms.RECORD: _record_texts,
    **dict.fromkeys(range(binary_geometry.POINT, binary_geometry.CIRCLE + 1), _geometry_texts),
}
