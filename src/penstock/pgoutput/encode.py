# SPDX-License-Identifier: Apache-2.0
"""Changes of one relation as pgoutput messages; no Python object for a row or a value.

In:   rows in the change schema (``change/schema.py``) of the relation as it is published.
Out:  Messages: Insert, Update, Delete, Truncate, one for each change, in the order of the rows.

    message   fields
    -------   ------
    Insert    'I' int32 oid, 'N' new
    Update    'U' int32 oid, old if there is one, 'N' new
    Delete    'D' int32 oid, old
    old       'O' under REPLICA IDENTITY FULL, else 'K', and a tuple
    tuple     int16 columns, each: 'n' null, 'u' unchanged TOAST, or 't' (text) or 'b' (binary),
              int32 length and the value

Values are those of PostgreSQL's output functions for what a subscriber sets (DateStyle ISO,
extra_float_digits 3).  With ``binary`` they are those of the send functions where the type's is
written here (``wire/rows_binary.py``), and text for other types, which a subscriber takes as well.

Sizes are computed a column at a time, then compiled loops write each column's values to their
places.  Source: proto.c (logicalrep_write_insert and its neighbours, logicalrep_write_tuple).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.change.relation import Column, Relation
from penstock.compiled import Bytes, Ints
from penstock.errors import PenstockError
from penstock.pgoutput import encode_kernels as kernels
from penstock.pgoutput.describe import Messages
from penstock.pgoutput.messages import (
    BINARY_VALUE,
    DELETE,
    KEY_TUPLE,
    NEW_TUPLE,
    OLD_TUPLE,
    TEXT_VALUE,
    TRUNCATE,
)
from penstock.wire.rows_binary import binary_column, has_binary_form
from penstock.wire.rows_text import binary_parts, shown_numerics, text_column, validity

CHUNK_ROWS = 65_536
"""Changes that are encoded at a time: bounds memory."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Encoding:
    """How a stream wants values: its option ``binary``, and its session's TimeZone."""

    binary: bool = False
    timezone: str = "UTC"


AS_TEXT = Encoding()


def encode_changes(
    changes: pa.Table, relation: Relation, encoding: Encoding = AS_TEXT
) -> Iterator[Messages]:
    """The messages of changes, in pieces of CHUNK_ROWS; nothing when there are none.

    FeatureNotSupportedError (0A000) for a time zone that tzdata does not know.
    """
    for start in range(0, changes.num_rows, CHUNK_ROWS):
        yield _encode(changes.slice(start, CHUNK_ROWS).combine_chunks(), relation, encoding)


class _Values(NamedTuple):
    """A column's values in their form; ``absent`` marks those that are unchanged."""

    offsets: Ints
    content: Bytes
    valid: Mask
    absent: Mask
    letter: int

    @property
    def sizes(self) -> Ints:
        """Bytes of each value with what stands before it."""
        sent = self.valid & ~self.absent
        sizes: Ints = np.where(sent, np.diff(self.offsets) + kernels.VALUE_HEAD, 1)
        return sizes


class _Tuples(NamedTuple):
    """The old, or the new, rows of those changes that have one."""

    rows: Ints
    letter: int
    columns: list[_Values]

    def add_sizes(self, sizes: Ints) -> None:
        """Add what these take to the sizes of their messages."""
        own = np.full(len(self.rows), kernels.TUPLE_HEAD, np.int64)
        for column in self.columns:
            own += column.sizes
        sizes[self.rows] += own

    def place(self, out: Bytes, at: Ints) -> None:
        """Write these to their messages."""
        here = at[self.rows]
        kernels.place_tuple_heads(out, here, self.letter, len(self.columns))
        for column in self.columns:
            kernels.place_values(out, here, *column)
        at[self.rows] = here


def _encode(changes: pa.Table, relation: Relation, encoding: Encoding) -> Messages:
    count = changes.num_rows
    ops = binary_parts(_one_array(changes.column("op")))[1]
    letter = OLD_TUPLE if relation.identity == "f" else KEY_TUPLE
    old, new, unchanged = (_one_array(changes.column(name)) for name in ("old", "new", "unchanged"))
    tuples = [
        _tuples(old, None, letter, relation, encoding),
        _tuples(new, unchanged, NEW_TUPLE, relation, encoding),
    ]
    if np.isin(np.flatnonzero(ops == DELETE), tuples[0].rows, invert=True).any():
        raise PenstockError("a DELETE without an old row cannot be sent")
    sizes = np.where(ops == TRUNCATE, kernels.TRUNCATE_SIZE, kernels.HEAD)
    for each in tuples:
        each.add_sizes(sizes)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    out = np.empty(offsets[-1], np.uint8)
    at = offsets[:-1].copy()
    kernels.place_heads(out, at, ops, relation.oid)
    for each in tuples:
        each.place(out, at)
    return Messages(out, offsets)


def _tuples(
    rows: Any, unchanged: Any, letter: int, relation: Relation, encoding: Encoding
) -> _Tuples:
    there = validity(rows)
    places = np.flatnonzero(there)
    if not len(places):
        return _Tuples(places, letter, [])
    if len(places) < len(there):
        rows = rows.take(pa.array(places))
        unchanged = None if unchanged is None else unchanged.take(pa.array(places))
    if unchanged is not None and unchanged.null_count == len(unchanged):
        unchanged = None
    nothing = np.zeros(len(places), np.bool_)
    columns = [
        _values(
            array,
            column,
            nothing if unchanged is None else _absent(unchanged, column.name),
            encoding,
        )
        for array, column in zip(rows.flatten(), relation.columns, strict=True)
    ]
    return _Tuples(places, letter, columns)


def _values(array: Any, column: Column, absent: Mask, encoding: Encoding) -> _Values:
    shown = shown_numerics(array, column.type_oid, column.typmod)
    if encoding.binary and has_binary_form(column.type_oid):
        return _Values(*binary_parts(binary_column(shown, column.type_oid)), absent, BINARY_VALUE)
    return _Values(*binary_parts(text_column(shown, encoding.timezone)), absent, TEXT_VALUE)


def _absent(unchanged: Any, name: str) -> Mask:
    """The rows whose list of unchanged columns has a name."""
    found: Mask = np.zeros(len(unchanged), np.bool_)
    parents = pc.list_parent_indices(unchanged).to_numpy()
    named = pc.equal(unchanged.flatten(), name).to_numpy(zero_copy_only=False)
    found[parents[named]] = True
    return found


def _one_array(column: Any) -> Any:
    joined = column.combine_chunks()
    return joined if isinstance(joined, pa.Array) else joined.chunk(0)
