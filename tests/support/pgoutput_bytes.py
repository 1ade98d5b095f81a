# SPDX-License-Identifier: Apache-2.0
"""Write pgoutput messages by hand, as a publisher would send them."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from types import EllipsisType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.change.relation import Relation
from penstock.client.frames import Messages as Received
from penstock.client.frames import unframe
from penstock.pgoutput.describe import Messages


class Binary(NamedTuple):
    """A value in binary form."""

    content: bytes


Value = bytes | str | Binary | EllipsisType | None
"""Text or binary, None for null, ``...`` for an unchanged TOAST value."""


def begin(commit_lsn: int, time_us: int = 0, xid: int = 7) -> bytes:
    """Begin; the time is in microseconds since 2000-01-01."""
    return b"B" + struct.pack(">QqI", commit_lsn, time_us, xid)


def commit(commit_lsn: int, end_lsn: int, time_us: int = 0) -> bytes:
    """Commit."""
    return b"C" + struct.pack(">BQQq", 0, commit_lsn, end_lsn, time_us)


def describe(relation: Relation) -> bytes:
    """Relation."""
    head = b"R" + struct.pack(">I", relation.oid) + _string(relation.schema)
    head += _string(relation.name) + relation.identity.encode()
    columns = [
        bytes([column.key])
        + _string(column.name)
        + struct.pack(">Ii", column.type_oid, column.typmod)
        for column in relation.columns
    ]
    return head + struct.pack(">H", len(columns)) + b"".join(columns)


def insert(oid: int, new: Sequence[Value]) -> bytes:
    """Insert."""
    return b"I" + struct.pack(">I", oid) + b"N" + _tuple(new)


def update(
    oid: int, new: Sequence[Value], old: Sequence[Value] | None = None, letter: bytes = b"K"
) -> bytes:
    """Update, with an old row (K the key, O the whole row) or without."""
    before = letter + _tuple(old) if old is not None else b""
    return b"U" + struct.pack(">I", oid) + before + b"N" + _tuple(new)


def delete(oid: int, old: Sequence[Value], letter: bytes = b"K") -> bytes:
    """Delete."""
    return b"D" + struct.pack(">I", oid) + letter + _tuple(old)


def truncate(*oids: int, flags: int = 0) -> bytes:
    """Truncate."""
    return (
        b"T" + struct.pack(">IB", len(oids), flags) + b"".join(struct.pack(">I", o) for o in oids)
    )


def transaction(commit_lsn: int, *changes: bytes, end_lsn: int | None = None) -> list[bytes]:
    """Begin, the changes, Commit."""
    end = commit_lsn + 8 if end_lsn is None else end_lsn
    return [begin(commit_lsn), *changes, commit(commit_lsn, end)]


def streamed(message: bytes, xid: int) -> bytes:
    """A message as it comes inside a stream block: its subtransaction follows the letter."""
    return message[:1] + struct.pack(">I", xid) + message[1:]


def block(xid: int, *changes: bytes | tuple[int, bytes], first: bool = False) -> list[bytes]:
    """Stream Start, the changes, Stream Stop; a change may come with its subtransaction's xid."""
    pairs = [(xid, change) if isinstance(change, bytes) else change for change in changes]
    start = b"S" + struct.pack(">IB", xid, first)
    return [start, *(streamed(change, subxid) for subxid, change in pairs), b"E"]


def stream_commit(xid: int, commit_lsn: int, end_lsn: int, time_us: int = 0) -> bytes:
    """Stream Commit."""
    return b"c" + struct.pack(">IBQQq", xid, 0, commit_lsn, end_lsn, time_us)


def stream_abort(xid: int, subxid: int, *, parallel: bool = False) -> bytes:
    """Stream Abort, with LSN and time as a parallel stream has it, or without."""
    return b"A" + struct.pack(">II", xid, subxid) + bytes(16 if parallel else 0)


def begin_prepare(xid: int, prepare_lsn: int, end_lsn: int) -> bytes:
    """Begin Prepare."""
    return b"b" + struct.pack(">QQqI", prepare_lsn, end_lsn, 0, xid) + b"name\0"


def prepare(xid: int, prepare_lsn: int, end_lsn: int, letter: bytes = b"P") -> bytes:
    """Prepare (P), Stream Prepare (p) or Commit Prepared (K), which have the same fields."""
    return letter + struct.pack(">BQQqI", 0, prepare_lsn, end_lsn, 0, xid) + b"name\0"


def rollback_prepared(xid: int, prepare_end_lsn: int, end_lsn: int) -> bytes:
    """Rollback Prepared."""
    return b"r" + struct.pack(">BQQqqI", 0, prepare_end_lsn, end_lsn, 0, 0, xid) + b"name\0"


def prepared(xid: int, prepare_lsn: int, *changes: bytes) -> list[bytes]:
    """Begin Prepare, the changes, Prepare."""
    end = prepare_lsn + 8
    return [begin_prepare(xid, prepare_lsn, end), *changes, prepare(xid, prepare_lsn, end)]


def framed(messages: Iterable[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The messages in one buffer, and where each begins and ends."""
    parts = list(messages)
    offsets = np.fromiter(accumulate(map(len, parts), initial=0), np.int64)
    return np.frombuffer(bytearray().join(parts), np.uint8), offsets


def xlog_data(message: bytes, start: int, end: int, sent_us: int) -> bytes:
    """The frame around a message; the time is in microseconds since 2000-01-01."""
    return struct.pack(">cQQq", b"w", start, end, sent_us) + message


def received(*messages: bytes) -> Received:
    """Messages as they come out of one read of the stream."""
    frames = [xlog_data(message, 0, 0, 0) for message in messages]
    return unframe(bytearray().join(frames), array("q", accumulate(map(len, frames)))).messages


def split(pieces: Iterable[Messages]) -> list[bytes]:
    """Messages one by one."""
    return [
        piece.content[first:last].tobytes()
        for piece in pieces
        for first, last in pairwise(piece.offsets.tolist())
    ]


def _string(text: str) -> bytes:
    return text.encode() + b"\0"


def _tuple(values: Sequence[Value]) -> bytes:
    return struct.pack(">H", len(values)) + b"".join(map(_value, values))


def _value(value: Value) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, EllipsisType):
        return b"u"
    if isinstance(value, Binary):
        return b"b" + struct.pack(">I", len(value.content)) + value.content
    raw = value.encode() if isinstance(value, str) else value
    return b"t" + struct.pack(">I", len(raw)) + raw
