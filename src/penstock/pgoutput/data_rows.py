# SPDX-License-Identifier: Apache-2.0
"""DataRow messages with binary values become an Arrow table; no Python object per row.

In:   blocks of DataRow messages as they came, and the columns that they have.
Out:  a table in the lake's types (change/types.py).

    DataRow    'D'  int32 length (counts itself)  int16 columns  for each: int32 length, bytes
               a length of -1 is a null

Source: protocol.sgml, "Message Formats".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.change.relation import LakeColumn
from penstock.change.types import arrow_type
from penstock.compiled import Bytes, compiled
from penstock.errors import ProtocolError, ValueNotHeldError
from penstock.pgoutput import binary_columns
from penstock.pgoutput.binary_text import TEXT
from penstock.pgoutput.columns import Cells, UnreadableValue
from penstock.pgoutput.forms import BUILT_IN, Form
from penstock.pgoutput.scan import be16, be32

_TEXT_FORM = Form(TEXT)

NULL = 2**32 - 1
"""The length of a null, -1, read without a sign."""

MAX_BLOCKS = 2**31 - 1
"""Bytes: positions are 32 bits."""


def is_binary(type_oid: int) -> bool:
    """Whether values of a type are read in their binary form, not as text in PostgreSQL's form."""
    return type_oid in BUILT_IN


def read_rows(blocks: Sequence[bytes], columns: Sequence[LakeColumn], table: str) -> pa.Table:
    """The rows of some blocks; ``table`` is the qualified name for errors.

    Each column comes in its binary form, or as text where ``is_binary`` is false.
    ValueNotHeldError (22003) for a value that the lake cannot hold.
    """
    buffer = np.frombuffer(bytearray().join(blocks), np.uint8)
    if len(buffer) > MAX_BLOCKS:
        raise ValueNotHeldError(f'rows of table "{table}" are too large to be read together')
    rows = _count(buffer)
    starts = np.empty((len(columns), max(rows, 0)), np.int32)
    lengths = np.empty((len(columns), max(rows, 0)), np.int32)
    if rows < 0 or not _scan(buffer, starts, lengths):
        raise ProtocolError("invalid DataRow")
    arrays = [
        _array(Cells(buffer, starts[number], lengths[number]), column, table)
        for number, column in enumerate(columns)
    ]
    schema = pa.schema([pa.field(c.name, arrow_type(c.type_oid, c.typmod)) for c in columns])
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(cells: Cells, column: LakeColumn, table: str) -> pa.Array:
    form = BUILT_IN.get(column.type_oid, _TEXT_FORM)
    try:
        return binary_columns.to_array(cells, form, column.type_oid, column.typmod, False)
    except UnreadableValue as error:
        raise ValueNotHeldError(
            f'value "{_shown(cells, form, error.index)}" of column "{column.name}" of table'
            f' "{table}" cannot be held by the lake',
            detail="The lake holds numerics of up to 38 digits (18 of them fractional where the"
            " column declares none) without NaN and infinity, dates from year 1 to 9999, and"
            " arrays of one dimension that begin at 1.",
            hint="A column of type text holds it.",
        ) from None


def _shown(cells: Cells, form: Form, index: int) -> str:
    here = slice(index, index + 1)
    one = Cells(cells.buffer, cells.starts[here], cells.lengths[here])
    try:
        return binary_columns.text_cells(one, form).text(0)
    except UnreadableValue:
        return "?"


@compiled
def _count(buffer: Bytes) -> int:
    """How many messages there are; -1 when they are not whole ones."""
    at, count = 0, 0
    while at + 7 <= len(buffer):
        at += 1 + be32(buffer, at + 1)
        count += 1
    return count if at == len(buffer) else -1


@compiled
def _scan(buffer: Bytes, starts: NDArray[np.int32], lengths: NDArray[np.int32]) -> bool:
    """Where each value is, -1 for a null; False when a message does not have these columns."""
    columns, rows = starts.shape
    at = 0
    for row in range(rows):
        end = at + 1 + be32(buffer, at + 1)
        if be16(buffer, at + 5) != columns:
            return False
        at += 7
        for column in range(columns):
            if at + 4 > end:
                return False
            length = be32(buffer, at)
            at += 4
            starts[column, row] = at
            lengths[column, row] = length
            if length == NULL:
                starts[column, row] = -1
                lengths[column, row] = 0
                length = 0
            at += length
        if at != end:
            return False
    return True
