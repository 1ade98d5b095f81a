# SPDX-License-Identifier: Apache-2.0
"""Values of a published column as values of the target's column.

PostgreSQL's subscriber sends a value's text through the input function of the target's type.  Here
the pairs of types where that can be done exactly on columns are converted; any other pair is
refused before anything is changed.

    publisher            target               how
    -------------------  -------------------  --------------------------------------------------
    same type            same type            as it is; a shorter varchar or char is checked
    int2, int4, int8     int2, int4, int8     value, range checked
    int*                 numeric, float*      value, range checked
    int*, bool           text, varchar        PostgreSQL's text form
    float4               float8               through the text form: 1.1 stays 1.1
    numeric              numeric              rounded half away from zero, range checked
    text, varchar, char  int*                 parsed
    text, user-defined   any that is typed    parsed, where the text is in the type's output form
    date                 timestamp            midnight
    any that is text     text, varchar        the text form that the lake holds anyway
    an enum or domain    an enum or domain    the text form

User-defined types come as text: a domain's column can have the type below it here.  Text that is
no text on the publisher is what numeric_as and the like have made of it (change/mapping.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.change import types
from penstock.change.mapping import DATES_AND_TIMES, option_for, shortened
from penstock.change.relation import Column, LakeColumn, LakeTable
from penstock.errors import (
    FeatureNotSupportedError,
    InvalidTextError,
    NotNullViolationError,
    ValueNotHeldError,
)
from penstock.pgoutput import columns

_TEXTS = {types.TEXT, types.VARCHAR, types.BPCHAR, types.CHAR, types.NAME}
_INTS = {types.INT2: "smallint", types.INT4: "integer", types.INT8: "bigint"}
_FLOATS = {types.FLOAT4, types.FLOAT8}
_FIRST_USER_OID = 16384


def check_convertible(source: Column, target: LakeColumn, relation: str) -> None:
    """FeatureNotSupportedError (0A000) when values of these types are not converted here."""
    if not _convertible(source.type_oid, target.type_oid):
        option = option_for(source.type_oid) if target.type_oid in _TEXTS else None
        raise FeatureNotSupportedError(
            f'column "{target.name}" of "{relation}" has another type on the publisher',
            detail=f"Values of {types.type_name(source.type_oid)} are not converted to"
            f" {types.type_name(target.type_oid)} by the lake.",
            hint="Give the lake's column the publisher's type"
            + (f", or ALTER SUBSCRIPTION ... SET ({option} = text)." if option else "."),
        )


def convert(values: pa.Array, source: Column, target: LakeColumn) -> pa.Array:
    """Convert a column; what reports an error adds the relation to its context.

    ValueNotHeldError (22003, 22001) for a value outside the target's type, InvalidTextError
    (22P02) for a text that the target's type does not accept.
    """
    same = (source.type_oid, source.typmod) == (target.type_oid, target.typmod)
    if same:
        return values
    if _isfrom_text(source.type_oid, target.type_oid):
        return from_text(values, target)
    wanted = types.arrow_type(target.type_oid, target.typmod)
    try:
        converted = _converted(values, source.type_oid, target.type_oid, wanted)
    except pa.ArrowInvalid as error:
        value = _first_unconverted(values, source.type_oid, target.type_oid, wanted)
        raise _value_error(error, value, target) from error
    if target.type_oid in (types.VARCHAR, types.BPCHAR) and target.typmod >= 4:
        return _limited(converted, target)
    return converted


def check_not_null(values: pa.Array, sent: pa.Array | None, target: LakeColumn, table: str) -> None:
    """NotNullViolationError when a value that was sent is null where the target forbids it."""
    nulls = pc.is_null(values)
    if sent is not None:
        nulls = pc.and_(nulls, sent)
    if pc.any(nulls).as_py():
        raise NotNullViolationError(
            f'null value in column "{target.name}" of relation "{table}"'
            " violates not-null constraint"
        )


def values_from_text(texts: Mapping[str, str], target: LakeTable) -> dict[str, pa.Scalar]:
    """Values of some columns from their types' output form.

    ValueNotHeldError for one that the lake cannot hold.
    """
    return {
        c.name: from_text(pa.array([texts[c.name]]), c)[0]
        for c in target.columns
        if c.name in texts
    }


def _convertible(source: int, target: int) -> bool:
    if source == target:
        return True
    if source >= _FIRST_USER_OID and target >= _FIRST_USER_OID:
        return True
    if target in _TEXTS:
        held_as_text = pa.types.is_string(types.arrow_type(source, -1))
        return held_as_text or source in _INTS or source == types.BOOL
    if _isfrom_text(source, target):
        return True
    if target in _INTS:
        return source in _INTS or source in _TEXTS
    if target == types.NUMERIC or target in _FLOATS:
        return source in _INTS or (source, target) == (types.FLOAT4, types.FLOAT8)
    return (source, target) == (types.DATE, types.TIMESTAMP)


def _isfrom_text(source: int, target: int) -> bool:
    """Whether values come as text and their type's output form is read."""
    if source >= _FIRST_USER_OID:
        return target not in _TEXTS and not pa.types.is_string(types.arrow_type(target, -1))
    return source in _TEXTS and (
        target in (types.NUMERIC, *DATES_AND_TIMES) or target in types.ARRAY_ELEMENTS
    )


def from_text(values: pa.Array, target: LakeColumn) -> pa.Array:
    """Texts in their type's output form as values of the column.

    ValueNotHeldError (22003), InvalidTextError (22P02).
    """
    cells = _cells(values)
    try:
        return columns.to_array(cells, target.type_oid, target.typmod)
    except columns.UnreadableValue as error:
        if target.type_oid == types.NUMERIC and error.not_held:
            return _rounded(values, target)
        raise _text_error(cells.text(error.index), error.not_held, target) from error


def _rounded(values: pa.Array, target: LakeColumn) -> pa.Array:
    """Numerics with more digits behind the point than the column has, as numeric_in rounds them."""
    cells = _cells(values)
    wanted = types.numeric_type(target.typmod)
    try:
        exact = columns.to_array(cells, types.NUMERIC, -1)
        return pc.cast(pc.round(exact, wanted.scale, round_mode="half_towards_infinity"), wanted)
    except (columns.UnreadableValue, pa.ArrowInvalid) as error:
        index = error.index if isinstance(error, columns.UnreadableValue) else 0
        raise _text_error(cells.text(index), True, target) from error


def _cells(values: pa.Array) -> columns.Cells:
    """Where the texts of an array are."""
    _, offsets, text = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    missing = pc.is_null(values).to_numpy(zero_copy_only=False)
    return columns.Cells(
        np.frombuffer(text, np.uint8) if text else np.zeros(0, np.uint8),
        np.where(missing, -1, ends[:-1]).astype(np.int32),
        np.where(missing, 0, np.diff(ends)).astype(np.int32),
    )


def _text_error(text: str, is_not_held: bool, target: LakeColumn) -> Exception:
    if is_not_held:
        return ValueNotHeldError(
            f'value "{shortened(text)}" cannot be held by the lake\'s column "{target.name}"',
            hint="Give the lake's column the type text.",
        )
    return InvalidTextError(
        f'invalid input syntax for the type of column "{target.name}": "{shortened(text)}"'
    )


def _converted(values: pa.Array, source: int, target: int, wanted: pa.DataType) -> pa.Array:
    if values.type == wanted:
        return values
    if source == types.BOOL and target in _TEXTS:
        return pc.if_else(values, "t", "f")
    if source == types.FLOAT4 and target == types.FLOAT8:
        return pc.cast(pc.cast(values, pa.string()), wanted)
    if pa.types.is_integer(values.type) and pa.types.is_decimal(wanted):
        values = pc.cast(values, pa.decimal128(19, 0))  # then by value, not by type, as below
    if pa.types.is_decimal(values.type) and pa.types.is_decimal(wanted):
        rounded = pc.round(values, wanted.scale, round_mode="half_towards_infinity")
        return pc.cast(rounded, wanted)
    return pc.cast(values, wanted)


def _first_unconverted(values: pa.Array, source: int, target: int, wanted: pa.DataType) -> str:
    """Text of the first value that cannot be converted; one of them cannot."""
    good, bad = 0, len(values)  # values that can be, and values among which one cannot
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            _converted(values.slice(good, middle - good), source, target, wanted)
            good = middle
        except pa.ArrowInvalid:
            bad = middle
    return str(values[good].as_py())


def _value_error(error: pa.ArrowInvalid, value: str, target: LakeColumn) -> Exception:
    """The error of the type's input function (int.c, numutils.c, numeric.c)."""
    where = f'column "{target.name}"'
    name = _INTS.get(target.type_oid)
    if name is None:
        return ValueNotHeldError("numeric field overflow", detail=str(error), where=where)
    if not re.fullmatch(r"\s*[-+]?\d+\s*", value):
        message = f'invalid input syntax for type {name}: "{value}"'
        return InvalidTextError(message, where=where)
    return ValueNotHeldError(f'value "{value}" is out of range for type {name}', where=where)


def _limited(values: pa.Array, target: LakeColumn) -> pa.Array:
    """Texts that fit varchar(n) or char(n); for the latter filled up with blanks."""
    limit = target.typmod - 4
    blank_padded = target.type_oid == types.BPCHAR
    text = pc.utf8_rtrim_whitespace(values) if blank_padded else values
    if pc.any(pc.greater(pc.utf8_length(text), limit)).as_py():
        kind = "character" if blank_padded else "character varying"
        raise ValueNotHeldError(
            f"value too long for type {kind}({limit})",
            where=f'column "{target.name}"',
            sqlstate="22001",
        )
    return pc.utf8_rpad(text, limit) if blank_padded else text
