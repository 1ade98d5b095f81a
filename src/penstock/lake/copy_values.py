# SPDX-License-Identifier: Apache-2.0
"""Arrow values as ADBC reads them become values of the lake's columns, or an error; never others.

In:   one array of a result, and the lake column that it is for.
Out:  an array of the column's Arrow type.

    ADBC gives                     becomes
    ----------                     -------
    text (of a numeric)            decimal; NaN, infinity and too many digits are errors
    date, timestamp                itself; a year outside 1 to 9999 is an error, and so is infinity
                                   unless the column clamps it
    list of these                  list; element by element
    int, float, decimal, text      itself, or wider; a value that does not fit is an error

ADBC shifts PostgreSQL's epoch (2000) to Arrow's (1970) without looking, so infinity wraps around;
wrapped values lie outside the years 1 to 9999 too, and ``_moment_text`` undoes the shift to name
them.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.change.mapping import not_held
from penstock.errors import PenstockError, ValueNotHeldError

# 0001-01-01 and 9999-12-31, in days and microseconds since 1970-01-01.
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
DAY_US = 86_400_000_000
EPOCH_2000_DAYS = 10_957


@dataclass(frozen=True)
class CopyColumn:
    """A column of the lake's table that the publisher fills.

    ``type`` is what values of ``type_oid`` are in Arrow.  ``max_length`` is that of varchar(n), in
    characters, where the publisher's type does not see to it.  ``clamp``: infinite dates and times
    become the first and the last that the lake holds.
    """

    name: str
    type_oid: int
    type: pa.DataType
    not_null: bool = False
    max_length: int | None = None
    clamp: bool = False

    def not_held(self, value: str, table: str) -> ValueNotHeldError:
        """The error for a value that the column cannot hold."""
        return not_held(value, self.name, self.type_oid, table, in_copy=True)


def held(values: pa.Array, column: CopyColumn, table: str) -> pa.Array:
    """The values as the lake holds them; ``table`` is the qualified name for messages.

    ValueNotHeldError names table, column and value; 23502 for a null in a column without nulls,
    22001 for a text that is too long.
    """
    if column.not_null and values.null_count:
        raise PenstockError(
            f'null value in column "{column.name}" of relation "{table}" violates not-null'
            " constraint",
            sqlstate="23502",
        )

    if column.clamp:
        values = _clamped(values)
    result = _convert(values, column.type, partial(column.not_held, table=table))
    if column.max_length is not None:
        _check_length(result, column, table)
    return result


Refuse = Callable[[str], ValueNotHeldError]


def _convert(values: pa.Array, wanted: pa.DataType, refuse: Refuse) -> pa.Array:
    if pa.types.is_list(wanted):
        return _convert_list(values, wanted, refuse)
    if pa.types.is_string(wanted):
        return _convert_text(values, refuse)
    if pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):
        _check_moments(values, refuse)
    elif pa.types.is_decimal(wanted) and pa.types.is_string(values.type):
        return _convert_numeric(values, wanted, refuse)
    if values.type == wanted:
        return values
    try:
        return values.cast(wanted)
    except pa.ArrowInvalid:
        raise refuse(_first_uncastable(values, wanted)) from None


def _convert_list(values: pa.Array, wanted: pa.ListType, refuse: Refuse) -> pa.Array:
    return _with_children(values, wanted, _convert(values.values, wanted.value_type, refuse))


def _with_children(values: pa.Array, wanted: pa.ListType, children: pa.Array) -> pa.Array:
    buffers = values.buffers()[:2]
    return pa.Array.from_buffers(
        wanted, len(values), buffers, values.null_count, values.offset, children=[children]
    )


def _convert_text(values: pa.Array, refuse: Refuse) -> pa.Array:
    try:
        values.validate(full=True)  # A publisher with encoding SQL_ASCII may send anything.
    except pa.ArrowInvalid:
        raise refuse("(text that is not UTF-8)") from None
    return values if pa.types.is_string(values.type) else values.cast(pa.string())


def _check_moments(values: pa.Array, refuse: Refuse) -> None:
    if values.null_count == len(values):
        return
    days = pa.types.is_date(values.type)
    numbers = values.view(pa.int32() if days else pa.int64())
    low, high = FIRST_DAY, LAST_DAY
    if not days:
        low, high = low * DAY_US, (high + 1) * DAY_US - 1
    found = pc.min_max(numbers)
    for number in (found["min"].as_py(), found["max"].as_py()):
        if not low <= number <= high:
            raise refuse(_moment_text(number, days=days))


def _clamped(values: pa.Array) -> pa.Array:
    """Infinite dates and times as the first and the last that the lake holds, in lists, too."""
    if pa.types.is_list(values.type):
        return _with_children(values, values.type, _clamped(values.values))
    days = pa.types.is_date(values.type)
    if not days and not pa.types.is_timestamp(values.type):
        return values
    bits, unit = (32, 1) if days else (64, DAY_US)
    shift = EPOCH_2000_DAYS * unit
    latest = 2 ** (bits - 1) - 1 + shift - 2**bits  # it wraps around
    earliest = -(2 ** (bits - 1)) + shift
    numbers = values.view(pa.int32() if days else pa.int64())
    last, first = (LAST_DAY + 1) * unit - 1, FIRST_DAY * unit
    for infinite, bound in ((latest, last), (earliest, first)):
        wanted = pa.scalar(bound, numbers.type)
        numbers = pc.if_else(pc.equal(numbers, pa.scalar(infinite, numbers.type)), wanted, numbers)
    return numbers.view(values.type)


def _moment_text(number: int, *, days: bool) -> str:
    bits = 32 if days else 64
    epoch = EPOCH_2000_DAYS if days else EPOCH_2000_DAYS * DAY_US
    unshifted = (number - epoch + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
    if unshifted == 2 ** (bits - 1) - 1:
        return "infinity"
    if unshifted == -(2 ** (bits - 1)):
        return "-infinity"
    day = (unshifted if days else unshifted // DAY_US) + EPOCH_2000_DAYS
    text = str(np.datetime64(day, "D"))
    if not text.startswith("-") and not text.startswith("0000"):
        return text
    year, rest = text[: text.rindex("-", 0, -3)], text[text.rindex("-", 0, -3) :]
    return f"{1 - int(year):04}{rest} BC"


def _convert_numeric(values: pa.Array, wanted: pa.DataType, refuse: Refuse) -> pa.Array:
    try:
        return values.cast(wanted)
    except pa.ArrowInvalid:
        # Rare: a value that is not held, or digits beyond 38 that are all zeros.
        return pa.array([_decimal(value, wanted, refuse) for value in values.to_pylist()], wanted)


def _decimal(text: str | None, wanted: Any, refuse: Refuse) -> decimal.Decimal | None:
    if text is None:
        return None
    if not text[-1].isdecimal():  # NaN, Infinity, -Infinity
        raise refuse(text)
    exact = decimal.Context(prec=100_000, Emin=-100_000, Emax=200_000)
    value = exact.create_decimal(text)
    quantum = decimal.Decimal(1).scaleb(-wanted.scale)
    rounded = value.quantize(quantum, context=exact)
    if rounded != value or len(rounded.as_tuple().digits) > wanted.precision:
        raise refuse(text)
    return rounded


def _first_uncastable(values: pa.Array, wanted: pa.DataType) -> str:
    for value in values:
        try:
            value.cast(wanted)
        except pa.ArrowInvalid:
            return str(value.as_py())
    return "?"


def _check_length(values: pa.Array, column: CopyColumn, table: str) -> None:
    longest = pc.max(pc.utf8_length(values)).as_py()
    if longest is not None and longest > column.max_length:
        raise PenstockError(
            f"value too long for type character varying({column.max_length})",
            where=f'initial copy of table "{table}", column "{column.name}"',
            sqlstate="22001",
        )
