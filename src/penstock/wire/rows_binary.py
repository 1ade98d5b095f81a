# SPDX-License-Identifier: Apache-2.0
"""A column of values as PostgreSQL's send functions write them (result format code 1).

In:   an Arrow array as for ``rows_text``, and the PostgreSQL type, which decides the form.
Out:  a binary array of the same length, null where the value is NULL.  0A000 for a type whose
      binary form is not written here; the client may ask for text instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.change import types
from penstock.errors import FeatureNotSupportedError
from penstock.wire import rows_kernels as kernels
from penstock.wire.rows_text import (
    binary_parts,
    decimal_text,
    from_parts,
    validity,
    whole_numbers,
)

_POSTGRES_EPOCH_DAYS = 10957
_POSTGRES_EPOCH_MICROS = _POSTGRES_EPOCH_DAYS * 86_400_000_000

JSON, UUID, JSONB = 114, 2950, 3802

_TEXT_LIKE = frozenset({types.TEXT, types.VARCHAR, types.BPCHAR, types.NAME, types.BYTEA, JSON})
_WIDTHS = {
    types.INT2: ">i2",
    types.INT4: ">i4",
    types.INT8: ">i8",
    types.OID: ">u4",
    types.FLOAT4: ">f4",
    types.FLOAT8: ">f8",
}
_WRITTEN = frozenset(
    {*_TEXT_LIKE, *_WIDTHS, types.BOOL, types.DATE, types.TIMESTAMP, types.TIMESTAMPTZ}
    | {types.NUMERIC, UUID, JSONB}
)


def has_binary_form(type_oid: int) -> bool:
    """Whether ``binary_column`` writes values of a type."""
    return type_oid in _WRITTEN


_SCALARS = frozenset({types.BOOL, types.DATE, types.TIMESTAMP, types.TIMESTAMPTZ, types.NUMERIC})

WRITTEN = frozenset(
    {*_TEXT_LIKE, *_WIDTHS, *_SCALARS, *types.ARRAY_ELEMENTS, types.CHAR, UUID, JSONB}
)
"""The types whose binary form is written here."""


_SCALARS = frozenset({types.BOOL, types.DATE, types.TIMESTAMP, types.TIMESTAMPTZ, types.NUMERIC})

WRITTEN = frozenset(
    {*_TEXT_LIKE, *_WIDTHS, *_SCALARS, *types.ARRAY_ELEMENTS, types.CHAR, UUID, JSONB}
)
"""The types whose binary form is written here."""


def binary_column(array: Any, type_oid: int) -> Any:
    """Encode one array in its type's binary format."""
    if type_oid in _TEXT_LIKE:
        return pc.cast(array, pa.large_binary())
    if type_oid in _WIDTHS:
        filled = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
        return _fixed(filled.astype(_WIDTHS[type_oid]), array)
    if type_oid == types.BOOL:
        filled = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
        return _fixed(filled.astype(np.uint8), array)
    if type_oid == types.DATE:
        days = pc.fill_null(pc.cast(array, pa.int32()), _POSTGRES_EPOCH_DAYS).to_numpy()
        return _fixed((days - _POSTGRES_EPOCH_DAYS).astype(">i4"), array)
    if type_oid in (types.TIMESTAMP, types.TIMESTAMPTZ):
        micros = pc.fill_null(pc.cast(array, pa.int64()), _POSTGRES_EPOCH_MICROS).to_numpy()
        return _fixed((micros - _POSTGRES_EPOCH_MICROS).astype(">i8"), array)
    if type_oid == types.NUMERIC:
        return _numeric(array)
    if type_oid == UUID:
        return _uuid(array)
    if type_oid == JSONB:
        versioned = pc.binary_join_element_wise("\x01", pc.cast(array, pa.string()), "")
        return pc.cast(versioned, pa.large_binary())
    if type_oid == types.CHAR:
        return _char(array)
    if type_oid in types.ARRAY_ELEMENTS:
        return _lists(array, types.ARRAY_ELEMENTS[type_oid])
    raise FeatureNotSupportedError(
        f"binary format is not supported for {types.type_name(type_oid)}",
        hint="Ask for this column in text format.",
    )


def _fixed(values: Any, array: Any) -> Any:
    valid = validity(array)
    offsets = np.arange(len(values) + 1, dtype=np.int64) * values.dtype.itemsize
    return from_parts(offsets, np.ascontiguousarray(values).view(np.uint8), valid)


def _numeric(array: Any) -> Any:
    numbers = whole_numbers(array) if pa.types.is_decimal(array.type) else None
    if numbers is not None:
        valid = validity(array)
        out = np.empty(kernels.NUMERIC_WIDTH * len(valid), np.uint8)
        out_offsets = np.zeros(len(valid) + 1, np.int64)
        kernels.decimal_binary(numbers, valid, array.type.scale, out, out_offsets)
        return from_parts(out_offsets, out[: out_offsets[-1]], valid)
    texts = decimal_text(array) if pa.types.is_decimal(array.type) else array
    offsets, content, valid = binary_parts(texts)
    if pc.any(pc.match_substring_regex(texts, "[^-0-9.]")).as_py():
        raise FeatureNotSupportedError("binary format is not supported for a numeric NaN")
    out = np.empty(len(content) * 2 + 16 * len(valid), np.uint8)
    out_offsets = np.zeros(len(offsets), np.int64)
    kernels.numeric_binary(offsets, content, out, out_offsets)
    return from_parts(out_offsets, out[: out_offsets[-1]], valid)


def _uuid(array: Any) -> Any:
    _, content, valid = binary_parts(pc.replace_substring(array, "-", ""))
    nibbles = np.where(content >= 97, content - 87, content - 48)
    packed = (nibbles[0::2] << 4 | nibbles[1::2]).astype(np.uint8)
    offsets = np.zeros(len(valid) + 1, np.int64)
    np.cumsum(np.where(valid, 16, 0), out=offsets[1:])
    return from_parts(offsets, packed, valid)


def _char(array: Any) -> Any:
    r"""charsend: one byte; the text is that byte, none for byte 0, or its octal form ``\ooo``."""
    offsets, content, valid = binary_parts(array)
    sizes = np.diff(offsets)
    content = np.append(content, np.zeros(4, np.uint8))
    at = offsets[:-1]
    digits = (content[at[:, None] + np.arange(1, 4)].astype(np.int64) - 48) @ np.array([64, 8, 1])
    letters = np.where(sizes == 4, digits, np.where(sizes == 0, 0, content[at])).astype(np.uint8)
    out_offsets = np.zeros(len(offsets), np.int64)
    np.cumsum(valid, out=out_offsets[1:])
    return from_parts(out_offsets, letters[valid], valid)


def _lists(array: Any, element_oid: int) -> Any:
    """array_send of arrays of one dimension that begin at 1."""
    valid = validity(array)
    lists = array.offsets.to_numpy().astype(np.int64)
    offsets, content, items_valid = binary_parts(binary_column(array.values, element_oid))
    out_offsets = np.zeros(len(lists), np.int64)
    room = kernels.ARRAY_OVERHEAD * len(valid) + 4 * len(items_valid) + len(content)
    out = np.empty(room, np.uint8)
    items = (offsets, content, items_valid)
    kernels.array_binary(lists, valid, items, element_oid, out, out_offsets)
    return from_parts(out_offsets, out[: out_offsets[-1]], valid)
