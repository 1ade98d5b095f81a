# SPDX-License-Identifier: Apache-2.0
r"""Columns of values as the CopyData messages of COPY TO: text, csv and binary format.

In:   for each column its values as they are to be sent: texts by ``rows_text``, or binary forms by
      ``rows_binary``.  How a text is escaped or quoted is decided here.
Out:  one CopyData message for each row, as PostgreSQL sends them, made a column at a time.

    text     fields apart by the delimiter, a newline; \b \f \n \r \t \v \\ and delimiter escaped
    csv      the same, but fields that need it in quotes
    binary   int16 fields  { int32 size or -1, bytes }*     int16 -1 behind the last row
             before the first row: PGCOPY\n\377\r\n\0, int32 flags, int32 size of an extension

Source: copyto.c.  The line of HEADER is not made here: the control database sends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.change.copy_format import CopyFormat
from penstock.compiled import Bytes, Ints
from penstock.wire import copy_kernels as kernels
from penstock.wire.rows_kernels import place
from penstock.wire.rows_text import binary_parts

BINARY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
BINARY_TRAILER = b"\xff\xff"

_FRAME = 5
"""Bytes of a message's type and length."""

_SAFE_DELIMITERS = frozenset(b"\t,;|")
"""Delimiters that no number, date or time has in it."""

_NEWLINE = ord("\n")


@dataclass(frozen=True)
class Field:
    """A column of texts or of binary forms; null is NULL.

    ``is_plain``: digits, letters and ``+-.: `` alone.  ``forced``: always in quotes (csv).
    """

    values: Any
    is_plain: bool = False
    forced: bool = False


def is_plain(kind: pa.DataType) -> bool:
    """Whether the texts of an Arrow type need no escaping, see ``Field``."""
    return bool(
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
    )


def copy_rows(
    fields: Sequence[Field], rows: int, form: CopyFormat, *, first: bool = False
) -> bytes:
    """The messages of some rows; ``first``: the first row is that of the whole copy."""
    if rows == 0:
        return b""
    if form.kind == "binary":
        return _binary(fields, rows, BINARY_HEADER if first else b"")
    return _texts(fields, rows, form, _FRAME)


def copy_lines(fields: Sequence[Field], rows: int, form: CopyFormat) -> bytes:
    """Some rows in text or csv format, without messages around them: what COPY FROM reads."""
    return _texts(fields, rows, form, 0) if rows else b""


def _texts(fields: Sequence[Field], rows: int, form: CopyFormat, room: int) -> bytes:
    columns = [_Text(field, form, len(fields) == 1) for field in fields]
    sizes = np.zeros(rows, np.int64)
    for column in columns:
        column.add_sizes(sizes)
    if not columns:
        sizes += 1  # a row of no columns is an empty line
    starts, at, out = _messages(sizes, room)
    if not columns:
        out[at] = _NEWLINE
    for number, column in enumerate(columns, 1):
        end = _NEWLINE if number == len(columns) else form.delimiter[0]
        column.place(end, at, out)
    assert (at == starts[1:]).all() or not columns
    return out.tobytes()


def end_of_copy(form: CopyFormat, rows: int) -> bytes:
    """What follows the last of ``rows`` rows; CopyDone comes behind it."""
    if form.kind != "binary":
        return b""
    return _message(BINARY_TRAILER if rows else BINARY_HEADER + BINARY_TRAILER)


class _Text:
    """One column of texts, as the text or the csv format has them."""

    def __init__(self, field: Field, form: CopyFormat, alone: bool) -> None:
        self._offsets, self._data, self._valid = binary_parts(field.values)
        self._null = np.frombuffer(form.null, np.uint8)
        self._is_csv = form.kind == "csv"
        self._escapes = _escapes(form.delimiter[0])
        self._is_plain = field.is_plain and _keeps_plain(form, field.forced)
        if form.kind == "text" and not self._is_plain:
            self._is_plain = not kernels.has_any(self._data, self._escapes)
        letters = (form.delimiter[0], form.quote[0], form.escape[0])
        self._style = (*letters, field.forced, alone)
        self._quoted = np.zeros(0, np.bool_)

    def add_sizes(self, sizes: Ints) -> None:
        offsets, data, valid = self._offsets, self._data, self._valid
        if self._is_plain:
            kernels.plain_sizes(offsets, valid, len(self._null), sizes)
        elif self._is_csv:
            self._quoted = np.zeros(len(sizes), np.bool_)
            args = (self._style, self._null, self._quoted)
            kernels.csv_sizes(offsets, data, valid, *args, sizes)
        else:
            kernels.text_sizes(offsets, data, valid, self._escapes, len(self._null), sizes)

    def place(self, end: int, at: Ints, out: Bytes) -> None:
        offsets, data, valid = self._offsets, self._data, self._valid
        if self._is_plain:
            kernels.place_plain(offsets, data, valid, self._null, end, at, out)
        elif self._is_csv:
            args = (self._style, self._null, self._quoted)
            kernels.place_csv(offsets, data, valid, *args, end, at, out)
        else:
            kernels.place_text(offsets, data, valid, self._escapes, self._null, end, at, out)


def _keeps_plain(form: CopyFormat, forced: bool) -> bool:
    """Whether what is plain stays as it is under these options."""
    if form.delimiter[0] not in _SAFE_DELIMITERS:
        return False
    if form.kind == "text":
        return True
    # In csv a text that looks like NULL is quoted, and a quote may be any letter.
    odd_null = form.null not in (b"", b"\\N")
    return not (forced or odd_null or form.quote != b'"' or form.escape not in (b'"', b"\\"))


def _escapes(delimiter: int) -> Bytes:
    """For each byte what is written behind a backslash in its place; 0: it stays as it is."""
    escapes = np.zeros(256, np.uint8)
    escapes[delimiter] = delimiter
    for letter, written in zip(b"\b\f\n\r\t\v\\", b"bfnrtv\\", strict=True):
        escapes[letter] = written
    return escapes


def _binary(fields: Sequence[Field], rows: int, header: bytes) -> bytes:
    parts = [binary_parts(field.values) for field in fields]
    sizes = np.full(rows, 2 + 4 * len(fields), np.int64)
    sizes[0] += len(header)
    for offsets, _, valid in parts:
        sizes += np.where(valid, np.diff(offsets), 0)
    _, at, out = _messages(sizes)
    out[at[0] : at[0] + len(header)] = np.frombuffer(header, np.uint8)
    at[0] += len(header)
    out[at], out[at + 1] = divmod(len(fields), 256)
    at += 2
    for offsets, data, valid in parts:
        place(out, at, offsets, data, valid)
    return out.tobytes()


def _messages(sizes: Ints, room: int = _FRAME) -> tuple[Ints, Ints, Bytes]:
    """Where messages of these sizes begin, where their content does, and the room for them.

    With ``room`` 0 instead of that for type and length there is the content alone.
    """
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes + room, out=starts[1:])
    out = np.empty(starts[-1], np.uint8)
    if room:
        kernels.frame(starts, out)
    return starts, starts[:-1] + room, out


def _message(content: bytes) -> bytes:
    return b"d" + (len(content) + 4).to_bytes(4, "big") + content
