# SPDX-License-Identifier: Apache-2.0
"""The pgoutput messages that are no rows, and all messages in the frames that they are sent in.

    message    fields
    -------    ------
    Relation   'R' int32 oid, string schema ('' is pg_catalog), string name, byte replica identity,
               int16 columns, each: byte 1 of the identity, string name, int32 type, int32 typmod
    Type       'Y' int32 oid, string schema, string name; of a domain, those of its base type
    Truncate   'T' int32 relations, byte options, int32 oid of each

Source: proto.c (logicalrep_write_rel, logicalrep_write_typ, logicalrep_write_truncate), pgoutput.c
(send_relation_and_attrs), walsender.c (WalSndPrepareWrite).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from penstock.change.relation import Relation
from penstock.compiled import Bytes, Ints
from penstock.pgoutput import encode_kernels as kernels
from penstock.pgoutput.messages import KEY_FLAG

FIRST_GENBKI_OID = 10_000
"""FirstGenbkiObjectId (transam.h): types from here on have Type messages."""

TypeNames = Mapping[int, tuple[str, str]]
"""Schema and name of types by OID; of a domain, those of the type below all domains."""

_FRAME = struct.Struct(">cIcQQq")


class Messages(NamedTuple):
    """Messages one behind the other: number i is ``content[offsets[i] : offsets[i + 1]]``.

    ``content`` is uint8, ``offsets`` int64 [messages + 1], which begins with 0.
    """

    content: Bytes
    offsets: Ints

    def __bool__(self) -> bool:
        """Whether there are any."""
        return len(self.offsets) > 1

    @classmethod
    def of(cls, parts: Iterable[bytes]) -> Messages:
        """Some messages that exist one by one."""
        each = list(parts)
        offsets = np.fromiter(accumulate(map(len, each), initial=0), np.int64, len(each) + 1)
        return cls(np.frombuffer(b"".join(each), np.uint8), offsets)


def relation_message(relation: Relation) -> bytes:
    """The Relation message."""
    schema = "" if relation.schema == "pg_catalog" else relation.schema
    parts = [b"R", struct.pack(">I", relation.oid), _string(schema), _string(relation.name)]
    parts += [relation.identity.encode(), struct.pack(">H", len(relation.columns))]
    for column in relation.columns:
        parts += [bytes([KEY_FLAG if column.key else 0]), _string(column.name)]
        parts.append(struct.pack(">Ii", column.type_oid, column.typmod))
    return b"".join(parts)


def type_message(oid: int, schema: str, name: str) -> bytes:
    """The Type message."""
    shown = "" if schema == "pg_catalog" else schema
    return b"Y" + struct.pack(">I", oid) + _string(shown) + _string(name)


def truncate_message(oids: Sequence[int], options: int = 0) -> bytes:
    """The Truncate message of relations that were emptied together.

    ``options`` are those of the statement (change/schema.py).
    """
    return b"T" + struct.pack(f">IB{len(oids)}I", len(oids), options, *oids)


def description(relations: Iterable[Relation], type_names: TypeNames) -> Messages:
    """What is sent before the first change of relations: of each, its columns' types, then itself.

    A type whose name is not known is left out; a subscriber knows it by its OID all the same.
    """
    parts: list[bytes] = []
    for relation in relations:
        for column in relation.columns:
            if column.type_oid >= FIRST_GENBKI_OID and column.type_oid in type_names:
                parts.append(type_message(column.type_oid, *type_names[column.type_oid]))
        parts.append(relation_message(relation))
    return Messages.of(parts)


def frame_messages(messages: Messages, start_lsn: int, end_lsn: int, time_us: int) -> bytes:
    """Each message in an XLogData in a CopyData message, ready to be sent to a subscriber.

    LSNs and time (microseconds since 2000-01-01) are the same for all of them.
    """
    head = np.frombuffer(_FRAME.pack(b"d", 0, b"w", start_lsn, end_lsn, time_us), np.uint8)
    count = len(messages.offsets) - 1
    out = np.empty(len(messages.content) + count * len(head), np.uint8)
    kernels.frame(*messages, head, out)
    return out.tobytes()


def _string(text: str) -> bytes:
    return text.encode() + b"\0"
