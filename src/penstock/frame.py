# SPDX-License-Identifier: Apache-2.0
"""A DataFrame's rows as the lines of a COPY into columns of a lake table.

In:   a DataFrame of any Spark session, and the columns of the table that it has values for.
Out:  COPY's text format, some MB at a time.

Spark writes the frame as Parquet files into a folder that it shares with this process, with all of
its executors; they are read in batches, and their columns become texts (wire/rows_text.py), which
PostgreSQL's input functions read.  So rows are never Python objects, and memory holds one batch.

A value is what PostgreSQL makes of its text; that must be the value itself, so a column of the
frame fits only where nothing can be lost:

    the frame has                 the table's column may be
    -------------                 -------------------------
    the type that the lake has    it (change/types.py); a string for all that is kept as text
    whole numbers                 int2, int4, int8, oid (22003 for a value out of range), numeric,
                                  float4 from 16 bits, float8 from 32 bits
    decimal(p, s)                 numeric with at least s digits behind the point (22003 above)
    float                         float8
    date                          timestamp
    arrays of these               arrays of those
    no type (NULL)                any

Dates and times go through Parquet as whole numbers: for them it has forms of several calendars.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as spark

from penstock.change import types
from penstock.change.copy_format import CopyFormat
from penstock.change.relation import LakeColumn
from penstock.errors import InvalidParameterError, PenstockError
from penstock.lake.table_rows import file_rows
from penstock.wire.copy_rows import Field, copy_lines, is_plain
from penstock.wire.rows_text import text_column

_UTC = pa.timestamp("us", "UTC")
_KINDS: dict[type[spark.DataType], pa.DataType] = {
    spark.NullType: pa.null(),
    spark.BooleanType: pa.bool_(),
    spark.ByteType: pa.int8(),
    spark.ShortType: pa.int16(),
    spark.IntegerType: pa.int32(),
    spark.LongType: pa.int64(),
    spark.FloatType: pa.float32(),
    spark.DoubleType: pa.float64(),
    spark.StringType: pa.string(),
    spark.CharType: pa.string(),
    spark.VarcharType: pa.string(),
    spark.BinaryType: pa.binary(),
    spark.DateType: pa.date32(),
    spark.TimestampType: _UTC,
    spark.TimestampNTZType: pa.timestamp("us"),
}
_UNTYPED = {pa.null(): pa.string()}
_IN_PARQUET = {**_UNTYPED, pa.date32(): pa.int32(), _UTC: pa.int64()}
_WHOLE = frozenset({types.INT2, types.INT4, types.INT8, types.OID})
_FLOAT_BITS = {types.FLOAT4: 16, types.FLOAT8: 32}
"""Bits of the whole numbers that a float holds exactly, of those that Spark has."""

_LONGEST = {types.NAME: 63, types.CHAR: 1}
"""Bytes of types whose input functions cut what is longer, without a word."""

_TIMES = frozenset({types.TIMESTAMP, types.TIMESTAMPTZ})
_LINES = CopyFormat()


@dataclass(frozen=True)
class FrameColumn:
    """A column of a frame, and the table's that takes its values."""

    target: LakeColumn
    given: spark.DataType
    kind: pa.DataType

    @property
    def parquet(self) -> pa.DataType:
        """What it is in the files."""
        return _replaced(self.kind, _IN_PARQUET)

    @property
    def held(self) -> pa.DataType:
        """What texts are made of."""
        return _replaced(self.kind, _UNTYPED)


def frame_columns(
    frame: DataFrame, table: str, columns: Sequence[LakeColumn]
) -> tuple[FrameColumn, ...]:
    """The frame's columns, in its order, each with the table's of the same name.

    42703 for a column that the table has not; 42804 for one whose type does not fit; 22023 for a
    frame without columns.
    """
    if not frame.schema.fields:
        raise InvalidParameterError(f'a DataFrame for table "{table}" has no columns')
    known = {column.name: column for column in columns}
    found = []
    for each in frame.schema.fields:
        target = known.get(each.name)
        if target is None:
            raise PenstockError(
                f'column "{each.name}" of relation "{table}" does not exist',
                hint=f"The table's columns are {', '.join(known)}.",
                sqlstate="42703",
            )
        kind = _kind(each.dataType)
        if kind is None or not fits(kind, target.type_oid, target.typmod):
            wanted = types.arrow_type(target.type_oid, target.typmod)
            raise PenstockError(
                f'column "{each.name}" of relation "{table}" does not take values of Spark\'s type'
                f" {each.dataType.simpleString()}",
                detail="They might be others in the lake, or have no form there.",
                hint=f"The lake keeps the column as {wanted}: cast the frame's column.",
                sqlstate="42804",
            )
        found.append(FrameColumn(target, each.dataType, kind))
    return tuple(found)


def fits(kind: pa.DataType, type_oid: int, typmod: int) -> bool:
    """Whether no value of an Arrow type is another one in a column of a PostgreSQL type."""
    if pa.types.is_null(kind):
        return True
    element = types.ARRAY_ELEMENTS.get(type_oid)
    if element is not None:
        return bool(pa.types.is_list(kind)) and fits(kind.value_type, element, typmod)
    if type_oid == types.NUMERIC:
        if typmod >= 4 and (typmod - 4) & 0x400:  # digits before the point are rounded
            return False
        scale = types.numeric_type(typmod).scale
        return bool(
            pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale <= scale)
        )
    if pa.types.is_integer(kind):
        return type_oid in _WHOLE or kind.bit_width <= _FLOAT_BITS.get(type_oid, 0)
    if pa.types.is_float32(kind) and type_oid == types.FLOAT8:
        return True
    if pa.types.is_date(kind) and type_oid == types.TIMESTAMP:
        return True
    return bool(kind == types.arrow_type(type_oid, typmod))


@contextmanager
def staged_lines(
    frame: DataFrame, columns: Sequence[FrameColumn], folder: Path
) -> Iterator[Iterator[bytes]]:
    """The frame's rows as lines of a COPY of these columns, for the block.

    Spark has computed the frame when the block begins; its files are in ``folder`` until it ends.
    PenstockError when reading for a value that a column would cut or round.
    """
    path = folder / f"frame-{uuid.uuid4()}"
    names = [f"c{number}" for number in range(len(columns))]
    plain = frame.toDF(*names).select(
        *(_portable(f.col(n), c.given).alias(n) for n, c in zip(names, columns, strict=True))
    )
    try:
        plain.write.parquet(path.as_uri(), mode="error", compression="snappy")
        schema = pa.schema([(n, c.parquet) for n, c in zip(names, columns, strict=True)])
        yield (
            _lines(batch, columns)
            for file in sorted(path.glob("*.parquet"))
            for batch in file_rows(file, schema)
        )
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _kind(given: spark.DataType) -> pa.DataType | None:
    """The Arrow type of a Spark type's values; None for one without a place in the lake."""
    if isinstance(given, spark.DecimalType):
        return pa.decimal128(given.precision, given.scale)
    if isinstance(given, spark.ArrayType):
        element = _kind(given.elementType)
        return None if element is None or pa.types.is_list(element) else pa.list_(element)
    return _KINDS.get(type(given))


def _replaced(kind: pa.DataType, by: Mapping[pa.DataType, pa.DataType]) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_replaced(kind.value_type, by))
    return by.get(kind, kind)


def _portable(column: Column, given: spark.DataType) -> Column:
    if isinstance(given, spark.ArrayType):
        element = given.elementType
        if isinstance(element, spark.NullType | spark.DateType | spark.TimestampType):
            return f.transform(column, lambda each: _portable(each, element))
    if isinstance(given, spark.NullType):
        return column.cast("string")
    if isinstance(given, spark.DateType):
        return f.unix_date(column)
    return f.unix_micros(column) if isinstance(given, spark.TimestampType) else column


def _lines(batch: pa.RecordBatch, columns: Sequence[FrameColumn]) -> bytes:
    fields = []
    for values, column in zip(batch.columns, columns, strict=True):
        values = values.cast(column.held)
        _check(values, column.target)
        if pa.types.is_float32(values.type) and column.target.type_oid == types.FLOAT8:
            values = values.cast(pa.float64())
        fields.append(Field(text_column(values), is_plain(values.type)))
    return copy_lines(fields, batch.num_rows, _LINES)


def _check(values: pa.Array, target: LakeColumn) -> None:
    """Refuse what the type would change without an error: what is cut or rounded."""
    longest = _LONGEST.get(target.type_oid)
    if longest is not None and (pc.max(pc.binary_length(values)).as_py() or 0) > longest:
        raise PenstockError(
            f'value too long for column "{target.name}", which has {longest} bytes',
            sqlstate="22001",
        )
    if target.type_oid in _TIMES and 0 <= target.typmod < 6 and pa.types.is_timestamp(values.type):
        step = 10 ** (6 - target.typmod)
        micros = values.cast(pa.int64())
        whole = pc.multiply(pc.divide(micros, step), step)
        if pc.any(pc.not_equal(whole, micros)).as_py():
            raise PenstockError(
                f'column "{target.name}" has {target.typmod} digits of a second, and would round'
                " a value",
                hint="Round it in the frame.",
                sqlstate="22008",
            )
