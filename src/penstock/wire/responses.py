# SPDX-License-Identifier: Apache-2.0
"""Messages that a server sends: those that the relay must understand, and those that it makes.

Texts are decoded with the session's client encoding where they are read for our own use; an error
that is passed on keeps every field that PostgreSQL gave it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.errors import PenstockError, ProtocolError
from penstock.wire.encodings import decode, encode
from penstock.wire.framing import Message
from penstock.wire.startup import CancelKey

BACKEND_KEY_DATA = ord("K")
PARAMETER_STATUS = ord("S")
READY_FOR_QUERY = ord("Z")
ERROR = ord("E")
NOTICE = ord("N")
NOTIFICATION = ord("A")
PARSE_COMPLETE = ord("1")
BIND_COMPLETE = ord("2")
CLOSE_COMPLETE = ord("3")
PARAMETER_DESCRIPTION = ord("t")
ROW_DESCRIPTION = ord("T")
NO_DATA = ord("n")
DATA_ROW = ord("D")
COMMAND_COMPLETE = ord("C")
EMPTY_QUERY = ord("I")
PORTAL_SUSPENDED = ord("s")
COPY_IN = ord("G")
COPY_OUT = ord("H")
COPY_BOTH = ord("W")
COPY_DATA = ord("d")
COPY_DONE = ord("c")

TransactionStatus = Literal["I", "T", "E"]
Severity = Literal["ERROR", "FATAL"]

_STATUSES: Mapping[int, TransactionStatus] = {ord("I"): "I", ord("T"): "T", ord("E"): "E"}
_FIELD = struct.Struct(">IhIhih")


class ServerError(PenstockError):
    """An ErrorResponse of the control database; ``fields`` are all that it had, by their code.

    ``fields`` may be changed before the error is passed on (a position, for example).
    """

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__(
            fields.get("M", "unknown error"),
            detail=fields.get("D"),
            hint=fields.get("H"),
            where=fields.get("W"),
            sqlstate=fields.get("C"),
        )
        self.fields = fields


@dataclass(frozen=True)
class Column:
    """One column of a RowDescription."""

    name: str
    type_oid: int
    typmod: int
    format: int


def parse_ready(message: Message) -> TransactionStatus:
    """The transaction status in a ReadyForQuery."""
    status = _STATUSES.get(message.raw[5]) if len(message.raw) == 6 else None
    if status is None:
        raise ProtocolError("invalid ReadyForQuery")
    return status


def parse_parameter_status(message: Message) -> tuple[str, str]:
    """Name and value; both are ASCII but for application_name, whose other bytes are escaped."""
    parts = message.body.split(b"\0")
    if len(parts) != 3:
        raise ProtocolError("invalid ParameterStatus")
    return parts[0].decode("utf-8", "replace"), parts[1].decode("utf-8", "replace")


def parse_backend_key(message: Message) -> CancelKey:
    """The key of a BackendKeyData: 4 bytes, up to 256 from protocol 3.2 on."""
    body = message.body
    if not 4 < len(body) <= 260:
        raise ProtocolError("invalid BackendKeyData")
    return CancelKey(int.from_bytes(body[:4], "big", signed=True), body[4:])


def parse_command_tag(message: Message) -> str:
    """The tag of a CommandComplete."""
    return message.body.rstrip(b"\0").decode("ascii", "replace")


def parse_error(message: Message, client_encoding: str) -> ServerError:
    """The error in an ErrorResponse."""
    fields = {}
    for field in message.body.split(b"\0"):
        if field:
            fields[chr(field[0])] = decode(field[1:], client_encoding)
    return ServerError(fields)


def parse_parameter_oids(message: Message) -> tuple[int, ...]:
    """The types in a ParameterDescription."""
    body = message.body
    count = int.from_bytes(body[:2], "big")
    if len(body) != 2 + 4 * count:
        raise ProtocolError("invalid ParameterDescription")
    return struct.unpack(f">{count}I", body[2:])


def parse_columns(message: Message, client_encoding: str) -> tuple[Column, ...]:
    """The columns in a RowDescription."""
    body = message.body
    columns = []
    at = 2
    for _ in range(int.from_bytes(body[:2], "big")):
        end = body.find(b"\0", at)
        if end < 0 or end + 1 + _FIELD.size > len(body):
            raise ProtocolError("invalid RowDescription")
        _, _, type_oid, _, typmod, code = _FIELD.unpack_from(body, end + 1)
        columns.append(Column(decode(body[at:end], client_encoding), type_oid, typmod, code))
        at = end + 1 + _FIELD.size
    return tuple(columns)


def parse_row(message: Message, client_encoding: str) -> tuple[str | None, ...]:
    """The values in a DataRow in text format."""
    raw = message.raw
    row: list[str | None] = []
    at = 7
    for _ in range(int.from_bytes(raw[5:7], "big")):
        size = int.from_bytes(raw[at : at + 4], "big", signed=True)
        at += 4
        if size < 0:
            row.append(None)
            continue
        row.append(decode(raw[at : at + size], client_encoding))
        at += size
    if at != len(raw):
        raise ProtocolError("invalid DataRow")
    return tuple(row)


def error_response(
    error: PenstockError, severity: Severity = "ERROR", client_encoding: str = "UTF8"
) -> bytes:
    """An ErrorResponse; that of a ServerError has all of its fields."""
    fields = error.fields if isinstance(error, ServerError) else _fields(error, severity)
    return _message(ERROR, _encoded_fields(fields, client_encoding))


def notice_response(warning: PenstockError, client_encoding: str = "UTF8") -> bytes:
    """A NoticeResponse: a warning that is not raised."""
    return _message(NOTICE, _encoded_fields(_fields(warning, "WARNING"), client_encoding))


def _fields(error: PenstockError, severity: str) -> dict[str, str]:
    given = {
        "S": severity,
        "V": severity,
        "C": error.sqlstate,
        "M": error.message,
        "D": error.detail,
        "H": error.hint,
        "W": error.where,
    }
    return {code: text for code, text in given.items() if text}


def _encoded_fields(fields: dict[str, str], client_encoding: str) -> bytes:
    parts = [
        code.encode() + _encoded(text, client_encoding).replace(b"\0", b"") + b"\0"
        for code, text in fields.items()
    ]
    return b"".join(parts) + b"\0"


def ready_for_query(status: TransactionStatus) -> bytes:
    """A ReadyForQuery."""
    return _message(READY_FOR_QUERY, status.encode())


def command_complete(tag: str) -> bytes:
    """A CommandComplete."""
    return _message(COMMAND_COMPLETE, tag.encode() + b"\0")


def backend_key_data(key: CancelKey) -> bytes:
    """A BackendKeyData."""
    return _message(BACKEND_KEY_DATA, key.pid.to_bytes(4, "big", signed=True) + key.secret)


def row_description(columns: Sequence[Column], client_encoding: str = "UTF8") -> bytes:
    """A RowDescription of columns that are not a table's."""
    parts = [len(columns).to_bytes(2, "big")]
    for column in columns:
        parts.append(encode(column.name, client_encoding) + b"\0")
        parts.append(_FIELD.pack(0, 0, column.type_oid, -1, column.typmod, column.format))
    return _message(ROW_DESCRIPTION, b"".join(parts))


def copy_both() -> bytes:
    """A CopyBothResponse of a replication stream: text, no columns."""
    return _message(COPY_BOTH, b"\0\0\0")


def portal_suspended() -> bytes:
    """A PortalSuspended: there may be more rows."""
    return _message(PORTAL_SUSPENDED, b"")


def _encoded(text: str, client_encoding: str) -> bytes:
    """A text of an error, which must not fail for a character that the client cannot read."""
    try:
        return encode(text, client_encoding)
    except PenstockError:
        return text.encode("ascii", "replace")


def _message(kind: int, body: bytes) -> bytes:
    return struct.pack(">BI", kind, len(body) + 4) + body
