# SPDX-License-Identifier: Apache-2.0
"""A column of values as they were sent, in text or in binary form, becomes an Arrow array.

A publisher sends binary values when it is asked to, for types that have a send function.  One
buffer can have both forms of a column: what was prepared or spooled on an earlier connection
comes in the form that was asked for then.

    length in ``Cells``      form
    -------------------      ----
    0 and more               text
    below 0                  binary, of -1 - length bytes
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.change import types
from penstock.compiled import Positions
from penstock.errors import FeatureNotSupportedError
from penstock.pgoutput import binary_columns, columns
from penstock.pgoutput.columns import Cells, UnreadableValue
from penstock.pgoutput.forms import Form, Forms


class ValueType(NamedTuple):
    """How a column's values come and what they become.

    ``sent_oid`` is the publisher's type, whose binary form ``forms`` knows.  ``type_oid`` and
    ``typmod`` are those of the staged column, text where the subscription says so.  ``clamp``:
    infinite dates and times become the first and the last that the lake holds.
    """

    forms: Forms
    sent_oid: int
    type_oid: int
    typmod: int
    clamp: bool


def to_array(cells: Cells, kind: ValueType) -> pa.Array:
    """Convert values to ``arrow_type`` of their type; UnreadableValue for the first bad one.

    FeatureNotSupportedError for binary values of a type whose binary form is not known.
    """
    binary = cells.lengths < 0
    if not binary.any():
        return columns.to_array(cells, kind.type_oid, kind.typmod, kind.clamp)
    form = _form(kind)
    if (binary | (cells.starts < 0)).all():
        return binary_columns.to_array(_sent(cells), form, *kind[2:])
    as_binary = Cells(cells.buffer, _where(binary, cells.starts, -1), cells.lengths)
    as_text = Cells(
        cells.buffer,
        _where(~binary, cells.starts, -1),
        _where(~binary, cells.lengths, 0),
    )
    return pc.if_else(
        pa.array(binary),
        binary_columns.to_array(_sent(as_binary), form, *kind[2:]),
        columns.to_array(as_text, *kind[2:]),
    )


def shown(cells: Cells, index: int, kind: ValueType) -> str:
    """One value in text form, for messages; the bytes in hexadecimal when it has none."""
    if cells.lengths[index] >= 0:
        return cells.text(index)
    here = slice(index, index + 1)
    one = _sent(Cells(cells.buffer, cells.starts[here], cells.lengths[here]))
    try:
        return binary_columns.text_cells(one, _form(kind)).text(0)
    except UnreadableValue:
        at = int(one.starts[0])
        return "\\x" + bytes(cells.buffer[at : at + int(one.lengths[0])]).hex()


def _where(mask: NDArray[np.bool_], positions: Positions, other: int) -> Positions:
    return np.where(mask, positions, other).astype(np.int32)


def _form(kind: ValueType) -> Form:
    form = kind.forms.get(kind.sent_oid)
    if form is None:
        raise FeatureNotSupportedError(
            f"the binary form of {types.type_name(kind.sent_oid)} is not supported",
            detail="The publisher sends this type's values as only its own send function knows.",
            hint="ALTER SUBSCRIPTION ... SET (binary = false): nothing is lost by that.",
        )
    return form


def _sent(cells: Cells) -> Cells:
    """Binary values with their real lengths, nulls with 0."""
    lengths = _where(cells.lengths < 0, -1 - cells.lengths, 0)
    return Cells(cells.buffer, cells.starts, lengths)
