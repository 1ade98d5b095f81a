# SPDX-License-Identifier: Apache-2.0
"""The packets that open a connection: negotiation requests, cancel requests, startup.

In:   the body of a startup packet (at most STARTUP_LIMIT bytes, see framing).
Out:  what it asks for; ProtocolError for a body that does not follow the protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import ProtocolError
from penstock.wire.state import Event

CANCEL_CODE = 80877102
SSL_CODE = 80877103
GSSENC_CODE = 80877104
"""Version numbers that no protocol will have: 1234.5678 and the following ones."""

MAJOR_VERSION = 3

_CODES = {
    CANCEL_CODE: Event.CANCEL_REQUEST,
    SSL_CODE: Event.SSL_REQUEST,
    GSSENC_CODE: Event.GSSENC_REQUEST,
}
_LONGEST_KEY = 256


@dataclass(frozen=True)
class CancelKey:
    """What BackendKeyData gave a client, and a CancelRequest sends back."""

    pid: int
    secret: bytes


def request_of(body: bytes) -> Event:
    """What a startup packet asks for."""
    return _CODES.get(_code(body), Event.STARTUP_PACKET)


def parse_parameters(body: bytes) -> Mapping[str, bytes]:
    """The parameters of a StartupMessage; none when it is not protocol 3 (the server refuses it).

    Names that are not ASCII are the server's business and left out.
    """
    if _code(body) >> 16 != MAJOR_VERSION:
        return {}
    fields = body[4:].split(b"\0")
    if len(fields) < 2 or fields[-1] != b"" or fields[-2] != b"":
        raise ProtocolError("invalid startup packet layout: expected terminator as last byte")
    pairs = fields[:-2]
    if len(pairs) % 2 or b"" in pairs[::2]:
        raise ProtocolError("invalid startup packet layout: expected terminator as last byte")
    return {
        name.decode(): value
        for name, value in zip(pairs[::2], pairs[1::2], strict=True)
        if name.isascii()
    }


def parse_cancel(body: bytes) -> CancelKey:
    """The key in a CancelRequest; its secret has 4 bytes, from protocol 3.2 on up to 256."""
    if not 8 < len(body) <= 8 + _LONGEST_KEY:
        raise ProtocolError("invalid length of cancel request packet")
    return CancelKey(int.from_bytes(body[4:8], "big", signed=True), body[8:])


def cancel_request(key: CancelKey) -> bytes:
    """The CancelRequest packet for a key."""
    return struct.pack(">IIi", 12 + len(key.secret), CANCEL_CODE, key.pid) + key.secret


def _code(body: bytes) -> int:
    return int.from_bytes(body[:4], "big")
