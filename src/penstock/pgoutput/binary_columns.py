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
from penstock.compiled import Positions
from penstock.errors import FeatureNotSupportedError
from penstock.pgoutput import binary_nested, binary_read, binary_text, columns, forms, parse
from penstock.pgoutput.binary_nested import RANGE, RECORD
from penstock.pgoutput.columns import Cells, UnreadableValue, check, primitive
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
    if form.kind in binary_nested.KINDS:
        return _nested_texts(cells, form)
    into = _room(binary_text.text_room(form.kind, *cells), len(cells.starts))
    check(binary_text.write_texts(form.kind, *cells, *into))
    return into


def _room(size: int, count: int) -> Cells:
    if size > _MAX_TEXT:
        raise UnreadableValue(0, True)
    return Cells(np.empty(size, np.uint8), np.empty(count, np.int32), np.empty(count, np.int32))


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
    result, offsets, starts, lengths = binary_nested.split_items(form.kind, True, *cells)
    check(result)
    with columns.items_of(offsets):
        elements = Cells(cells.buffer, starts, lengths)
        values = to_array(elements, form.items[0], element_oid, typmod, clamp)
    return columns.lists(cells, offsets, values)


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


def _nested_texts(cells: Cells, form: Form) -> Cells:
    offsets, items = (_field_texts if form.kind == RECORD else _item_texts)(cells, form)
    count = len(cells.starts)
    into = _room(binary_nested.nested_room(items.lengths, count), count)
    binary_nested.write_nested(form.kind, ord(form.delimiter), cells, offsets, items, into)
    return into


def _item_texts(cells: Cells, form: Form) -> tuple[Positions, Cells]:
    """The items' text, and which are whose; those of geometric values are coordinates."""
    if form.kind == RANGE:
        result, offsets, starts, lengths = binary_nested.split_ranges(*cells)
    else:
        result, offsets, starts, lengths = binary_nested.split_items(form.kind, False, *cells)
    check(result)
    item = form.items[0] if form.items else Form(forms.FLOAT8)
    with columns.items_of(offsets):
        return offsets, text_cells(Cells(cells.buffer, starts, lengths), item)


def _field_texts(cells: Cells, form: Form) -> tuple[Positions, Cells]:
    """As ``_item_texts``, for composite values, whose fields have forms of their own."""
    oids = np.array(form.oids, np.int64)
    result, starts, lengths = binary_nested.split_records(*cells, oids)
    if result[0] == parse.OTHER_FIELDS:
        raise FeatureNotSupportedError(
            "a composite value has other fields than its type has now",
            detail="The type has been altered on the publisher since the value was written.",
            hint="ALTER SUBSCRIPTION ... SET (binary = false): nothing is lost by that.",
        )
    check(result)
    fields = [  # an error's index is the value's
        text_cells(Cells(cells.buffer, *places), field)
        for field, *places in zip(form.items, starts, lengths, strict=True)
    ]
    offsets = np.arange(len(cells.starts) + 1, dtype=np.int32) * len(fields)
    return offsets.astype(np.int32), _by_value(fields, len(cells.starts))


def _by_value(fields: list[Cells], count: int) -> Cells:
    """Columns of text in one buffer: the fields of the first value, those of the second, ..."""
    starts = np.empty((count, len(fields)), np.int32)
    lengths = np.empty((count, len(fields)), np.int32)
    buffers = [np.zeros(0, np.uint8)]
    size = 0
    for number, field in enumerate(fields):
        offsets, text = parse.copy_values(*field)
        if size + len(text) > _MAX_TEXT:
            raise UnreadableValue(0, True)
        starts[:, number] = np.where(field.starts < 0, -1, offsets[:-1] + size)
        lengths[:, number] = field.lengths
        buffers.append(text)
        size += len(text)
    return Cells(np.concatenate(buffers), starts.reshape(-1), lengths.reshape(-1))
