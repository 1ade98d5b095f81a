# SPDX-License-Identifier: Apache-2.0
"""pgoutput's messages: their letters, and the parsers of those that are parsed in Python.

Row messages are parsed by compiled loops (scan.py).  Relation messages and those that begin and
end streamed transactions are rare, so plain Python reads them.  Any bytes give what the function
says, or a ProtocolError.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, cast

from penstock.change.relation import Column, Relation, ReplicaIdentity
from penstock.errors import ProtocolError

BEGIN, COMMIT, ORIGIN, RELATION, TYPE, MESSAGE = (ord(letter) for letter in "BCORYM")
INSERT, UPDATE, DELETE, TRUNCATE = (ord(letter) for letter in "IUDT")
BEGIN_PREPARE, PREPARE, COMMIT_PREPARED, ROLLBACK_PREPARED, STREAM_PREPARE = map(ord, "bPKrp")
STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT = (ord(letter) for letter in "SEcA")

NEW_TUPLE, KEY_TUPLE, OLD_TUPLE = (ord(letter) for letter in "NKO")
NULL_VALUE, UNCHANGED_VALUE, TEXT_VALUE, BINARY_VALUE = (ord(letter) for letter in "nutb")

KEY_FLAG = 1

POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01, where PostgreSQL's timestamps start, in microseconds since 1970-01-01."""

_COMMIT_END = struct.Struct(">QQ")
_BEGIN = struct.Struct(">cQqI")
_COMMIT = struct.Struct(">cBQQq")
_STREAM_START = struct.Struct(">xIB")
_STREAM_COMMIT = struct.Struct(">xIBQQq")
_STREAM_ABORT = struct.Struct(">xII")
_BEGIN_PREPARE = struct.Struct(">xQQqI")
_PREPARE = struct.Struct(">xBQQqI")
_ROLLBACK_PREPARED = struct.Struct(">xBQQqqI")
_ABORT_SIZES = (9, 25)
"""Bytes of a Stream Abort; with ``streaming 'parallel'`` the abort's LSN and time follow."""


class LateCommit(NamedTuple):
    """The end of a streamed or prepared transaction; ``time`` in microseconds since 2000-01-01."""

    xid: int
    flags: int
    commit_lsn: int
    end_lsn: int
    time: int

    def begin(self) -> bytes:
        """The Begin message with which the transaction would have begun if it had come whole."""
        return _BEGIN.pack(b"B", self.commit_lsn, self.time, self.xid)

    def commit(self) -> bytes:
        """The Commit message with which it would have ended."""
        return _COMMIT.pack(b"C", self.flags, self.commit_lsn, self.end_lsn, self.time)


def parse_relation(message: bytes) -> Relation:
    """Read a Relation message (``R``); the empty schema name stands for pg_catalog."""
    try:
        (oid,) = struct.unpack_from(">I", message, 1)
        schema, at = _string(message, 5)
        name, at = _string(message, at)
        identity, count = struct.unpack_from(">cH", message, at)
        at += 3
        columns = []
        for _ in range(count):
            flags = message[at]
            column, at = _string(message, at + 1)
            type_oid, typmod = struct.unpack_from(">Ii", message, at)
            at += 8
            columns.append(Column(column, type_oid, typmod, bool(flags & KEY_FLAG)))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError("invalid Relation message") from error
    letter = identity.decode("latin-1")
    names = {column.name for column in columns}
    if at != len(message) or letter not in "dnfi" or len(names) != len(columns):
        raise ProtocolError("invalid Relation message")
    return Relation(
        oid, schema or "pg_catalog", name, cast(ReplicaIdentity, letter), tuple(columns)
    )


def parse_type(message: bytes) -> tuple[int, str, str]:
    """A Type message (``Y``): the type's OID, schema and name; of a domain, those below it.

    The empty schema name stands for pg_catalog.
    """
    try:
        (oid,) = struct.unpack_from(">I", message, 1)
        schema, at = _string(message, 5)
        name, at = _string(message, at)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError("invalid Type message") from error
    if at != len(message):
        raise ProtocolError("invalid Type message")
    return oid, schema, name


def parse_stream_start(message: bytes) -> tuple[int, bool]:
    """A Stream Start's transaction, and whether this is the transaction's first segment."""
    xid, first = _unpack(_STREAM_START, message, "Stream Start")
    return xid, bool(first)


def parse_stream_commit(message: bytes) -> LateCommit:
    """Read a Stream Commit message (``c``)."""
    return LateCommit(*_unpack(_STREAM_COMMIT, message, "Stream Commit"))


def parse_begin_prepare(message: bytes) -> int:
    """The xid in a Begin Prepare message (``b``)."""
    return int(_unpack_named(_BEGIN_PREPARE, message, "Begin Prepare")[3])


def parse_prepare(message: bytes) -> tuple[int, int]:
    """The xid and the end LSN in a Prepare or Stream Prepare message (``P``, ``p``)."""
    _, _, end_lsn, _, xid = _unpack_named(_PREPARE, message, "Prepare")
    return xid, end_lsn


def parse_commit_prepared(message: bytes) -> LateCommit:
    """Read a Commit Prepared message (``K``)."""
    flags, commit_lsn, end_lsn, time, xid = _unpack_named(_PREPARE, message, "Commit Prepared")
    return LateCommit(xid, flags, commit_lsn, end_lsn, time)


def parse_rollback_prepared(message: bytes) -> tuple[int, int]:
    """The xid and the end LSN of the rollback in a Rollback Prepared message (``r``)."""
    fields = _unpack_named(_ROLLBACK_PREPARED, message, "Rollback Prepared")
    return fields[5], fields[2]


def parse_stream_abort(message: bytes) -> tuple[int, int]:
    """A Stream Abort's transaction and subtransaction; the same number when all of it ended."""
    if len(message) not in _ABORT_SIZES:
        raise ProtocolError("invalid Stream Abort message")
    xid, subxid = _STREAM_ABORT.unpack_from(message)
    return xid, subxid


def _unpack(form: struct.Struct, message: bytes, name: str) -> tuple[Any, ...]:
    try:
        return form.unpack(message)
    except struct.error as error:
        raise ProtocolError(f"invalid {name} message") from error


def _unpack_named(form: struct.Struct, message: bytes, name: str) -> tuple[Any, ...]:
    """The fields in front of a transaction's name, which ends the message."""
    if message.find(b"\0", form.size) != len(message) - 1:
        raise ProtocolError(f"invalid {name} message")
    return form.unpack_from(message)


def commit_end_lsn(message: bytes | memoryview, at: int = 0) -> int:
    """The end LSN in a Commit message that starts at ``at``; ProtocolError when it is cut off.

    It has the same place in Prepare, Stream Prepare, Commit Prepared and Rollback Prepared.
    """
    try:
        return int(_COMMIT_END.unpack_from(message, at + 2)[1])
    except struct.error as error:
        raise ProtocolError("invalid Commit message") from error


def _string(message: bytes, at: int) -> tuple[str, int]:
    end = message.find(b"\0", at)
    if end < 0:
        raise IndexError
    return message[at:end].decode(), end + 1
