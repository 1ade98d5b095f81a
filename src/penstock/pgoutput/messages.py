# SPDX-License-Identifier: Apache-2.0
"""pgoutput's messages: their letters, and the parser of the one that is parsed in Python.

Row messages are parsed by compiled loops (scan.py).  Relation messages are rare, so plain Python
reads them.  Any bytes give a Relation or a ProtocolError.
"""

from __future__ import annotations

import struct
from typing import cast

from penstock.change.relation import Column, Relation, ReplicaIdentity
from penstock.errors import ProtocolError

BEGIN, COMMIT, ORIGIN, RELATION, TYPE, MESSAGE = (ord(letter) for letter in "BCORYM")
INSERT, UPDATE, DELETE, TRUNCATE = (ord(letter) for letter in "IUDT")

NEW_TUPLE, KEY_TUPLE, OLD_TUPLE = (ord(letter) for letter in "NKO")
NULL_VALUE, UNCHANGED_VALUE, TEXT_VALUE, BINARY_VALUE = (ord(letter) for letter in "nutb")

KEY_FLAG = 1

POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01, where PostgreSQL's timestamps start, in microseconds since 1970-01-01."""

_COMMIT_END = struct.Struct(">QQ")


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


def commit_end_lsn(message: bytes | memoryview, at: int = 0) -> int:
    """The end LSN in a Commit message that starts at ``at``; ProtocolError when it is cut off."""
    try:
        return int(_COMMIT_END.unpack_from(message, at + 2)[1])
    except struct.error as error:
        raise ProtocolError("invalid Commit message") from error


def _string(message: bytes, at: int) -> tuple[str, int]:
    end = message.find(b"\0", at)
    if end < 0:
        raise IndexError
    return message[at:end].decode(), end + 1
