# SPDX-License-Identifier: Apache-2.0
"""Messages that a client sends: bytes to records, and records of ours to bytes.

Names and statement texts stay bytes here: they are in the session's client encoding.  A parser
has two outcomes only: a record, or ProtocolError.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import ProtocolError
from penstock.wire.framing import Message

QUERY = ord("Q")
PARSE = ord("P")
BIND = ord("B")
DESCRIBE = ord("D")
EXECUTE = ord("E")
CLOSE = ord("C")
FLUSH = ord("H")
SYNC = ord("S")
COPY_DATA = ord("d")
COPY_DONE = ord("c")
COPY_FAIL = ord("f")
FUNCTION_CALL = ord("F")
TERMINATE = ord("X")
PASSWORD = ord("p")

STATEMENT = ord("S")
PORTAL = ord("P")


@dataclass(frozen=True)
class Parse:
    """Prepare a statement; ``oids`` are the parameter types that the client gave, 0 for none."""

    name: bytes
    sql: bytes
    oids: tuple[int, ...]


@dataclass(frozen=True)
class Bind:
    """Make a portal.  ``formats`` has one code for each parameter; None is NULL.

    ``result_formats`` is as sent: none (all text), one for all columns, or one for each.
    """

    portal: bytes
    statement: bytes
    formats: tuple[int, ...]
    values: tuple[bytes | None, ...]
    result_formats: tuple[int, ...]


@dataclass(frozen=True)
class Named:
    """Describe or Close of a statement or portal: ``kind`` is STATEMENT or PORTAL."""

    kind: int
    name: bytes


@dataclass(frozen=True)
class Execute:
    """Run a portal; ``max_rows`` is 0 for no limit."""

    portal: bytes
    max_rows: int


def parse_query(message: Message) -> bytes:
    """The text of a Query."""
    reader = _Reader(message)
    text = reader.string()
    reader.end()
    return text


def parse_parse(message: Message) -> Parse:
    """Read a Parse."""
    reader = _Reader(message)
    name, sql = reader.string(), reader.string()
    oids = tuple(reader.uint32() for _ in range(reader.count()))
    reader.end()
    return Parse(name, sql, oids)


def parse_bind_names(message: Message) -> tuple[bytes, bytes]:
    """Portal and statement of a Bind, without a look at its values."""
    reader = _Reader(message)
    return reader.string(), reader.string()


def parse_bind(message: Message) -> Bind:
    """Read a Bind."""
    reader = _Reader(message)
    portal, statement = reader.string(), reader.string()
    given = tuple(reader.format() for _ in range(reader.count()))
    values = tuple(reader.value() for _ in range(reader.count()))
    result_formats = tuple(reader.format() for _ in range(reader.count()))
    reader.end()
    if len(given) > 1 and len(given) != len(values):
        raise ProtocolError(
            f"bind message has {len(given)} parameter formats but {len(values)} parameters"
        )
    formats = given * len(values) if len(given) == 1 else given or (0,) * len(values)
    return Bind(portal, statement, formats, values, result_formats)


def parse_named(message: Message) -> Named:
    """Read a Describe or a Close."""
    reader = _Reader(message)
    kind = reader.byte()
    if kind not in (STATEMENT, PORTAL):
        command = "DESCRIBE" if message.kind == DESCRIBE else "CLOSE"
        raise ProtocolError(f"invalid {command} message subtype {kind}")
    name = reader.string()
    reader.end()
    return Named(kind, name)


def parse_execute(message: Message) -> Execute:
    """Read an Execute."""
    reader = _Reader(message)
    portal, max_rows = reader.string(), reader.int32()
    reader.end()
    return Execute(portal, max(max_rows, 0))


def query(sql: bytes) -> bytes:
    """A Query."""
    return _message(QUERY, sql + b"\0")


def parse(name: bytes, sql: bytes, oids: Sequence[int] = ()) -> bytes:
    """A Parse."""
    types = struct.pack(f">H{len(oids)}I", len(oids), *oids)
    return _message(PARSE, name + b"\0" + sql + b"\0" + types)


def bind(
    portal: bytes,
    statement: bytes,
    values: Sequence[bytes | None] = (),
    *,
    binary_results: bool = False,
) -> bytes:
    """A Bind with parameters in text format, and results in text or in binary format."""
    parts = [portal, b"\0", statement, b"\0\0\0", len(values).to_bytes(2, "big")]
    for value in values:
        parts += [b"\xff\xff\xff\xff"] if value is None else [len(value).to_bytes(4, "big"), value]
    formats = b"\0\1\0\1" if binary_results else b"\0\0"
    return _message(BIND, b"".join([*parts, formats]))


def describe(kind: int, name: bytes) -> bytes:
    """A Describe of a STATEMENT or a PORTAL."""
    return _message(DESCRIBE, bytes([kind]) + name + b"\0")


def execute(portal: bytes) -> bytes:
    """An Execute of all rows."""
    return _message(EXECUTE, portal + b"\0\0\0\0\0")


def close(kind: int, name: bytes) -> bytes:
    """A Close of a STATEMENT or a PORTAL; no error when there is none of that name."""
    return _message(CLOSE, bytes([kind]) + name + b"\0")


def flush() -> bytes:
    """A Flush: send what you have."""
    return _message(FLUSH, b"")


def sync() -> bytes:
    """A Sync: the end of a pipeline."""
    return _message(SYNC, b"")


def terminate() -> bytes:
    """A Terminate."""
    return _message(TERMINATE, b"")


def _message(kind: int, body: bytes) -> bytes:
    return struct.pack(">BI", kind, len(body) + 4) + body


class _Reader:
    """Reads the body of one message from its start to its end."""

    def __init__(self, message: Message) -> None:
        self._raw = message.raw
        self._at = 5

    def string(self) -> bytes:
        end = self._raw.find(b"\0", self._at)
        if end < 0:
            raise ProtocolError("invalid string in message")
        start, self._at = self._at, end + 1
        return self._raw[start:end]

    def byte(self) -> int:
        return self._take(1)[0]

    def count(self) -> int:
        return int.from_bytes(self._take(2), "big")

    def format(self) -> int:
        code = int.from_bytes(self._take(2), "big")
        if code not in (0, 1):
            raise ProtocolError(f"unsupported format code: {code}")
        return code

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def uint32(self) -> int:
        return int.from_bytes(self._take(4), "big")

    def value(self) -> bytes | None:
        size = self.int32()
        if size == -1:
            return None
        if size < 0:
            raise ProtocolError("invalid message format")
        return self._take(size)

    def end(self) -> None:
        if self._at != len(self._raw):
            raise ProtocolError("invalid message format")

    def _take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if self._at > len(self._raw):
            raise ProtocolError("insufficient data left in message")
        return self._raw[start : self._at]
