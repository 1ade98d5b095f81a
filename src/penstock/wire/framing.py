# SPDX-License-Identifier: Apache-2.0
"""Cut a stream of bytes into the messages of PostgreSQL's protocol 3; no I/O.

In:   bytes as they arrive, in pieces of any size.
Out:  whole messages.  ``next`` has three outcomes only: a message, None (more bytes are needed),
      or ProtocolError.

    startup packet   int32 length (counts itself)  body
    message          byte type  int32 length (counts itself, not the type)  body

A length is checked against the limit of its type before anything is kept for it, and bytes are
kept only when they have arrived: a peer that announces 1 GB and sends nothing costs nothing.
Limits are PostgreSQL's own (pqcomm.h, postgres.c SocketBackend, auth.c).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from penstock.errors import ProtocolError

STARTUP_LIMIT = 10_000
"""Bytes of a startup packet (MAX_STARTUP_PACKET_LENGTH)."""

PASSWORD_LIMIT = 65_535
"""Bytes of one answer of a client that authenticates (PG_MAX_AUTH_TOKEN_LENGTH)."""

SMALL_LIMIT = 10_000
"""Bytes of a message that only names things (PQ_SMALL_MESSAGE_LIMIT)."""

LARGE_LIMIT = 1024 * 1024 * 1024 - 2
"""Bytes of a message with a text or values in it (PQ_LARGE_MESSAGE_LIMIT)."""

STARTUP = 0
"""The type given to a startup packet, which has none."""

AUTHENTICATING_LIMITS: Mapping[int, int] = MappingProxyType({ord("p"): PASSWORD_LIMIT})

CLIENT_LIMITS: Mapping[int, int] = MappingProxyType(
    dict.fromkeys(b"QPBdF", LARGE_LIMIT) | dict.fromkeys(b"DECHScfX", SMALL_LIMIT)
)
"""What a client may send after it has authenticated."""

SERVER_LIMITS: Mapping[int, int] = MappingProxyType(
    dict.fromkeys(b"RKSAENZ123CDGHIKTVWcdnstv", 2**31 - 1)
)
"""What a server sends: it is ours, so only the form is checked."""

_HEADER = 5
_LENGTH = 4


class Message(NamedTuple):
    """One message: its type byte (STARTUP for a startup packet) and all of its bytes."""

    kind: int
    raw: bytes

    @property
    def body(self) -> bytes:
        """The bytes behind type and length."""
        return self.raw[_HEADER:] if self.kind != STARTUP else self.raw[_LENGTH:]


class Framing:
    """One direction of one connection.

    Call ``next`` until it gives None, then ``feed`` it what arrived.  ``expect`` changes what may
    come from now on, also in bytes that have been fed already.
    """

    def __init__(self, limits: Mapping[int, int] | None) -> None:
        """``limits``: type -> largest length; None for a startup packet."""
        self._limits = limits
        self._chunk = b""
        self._at = 0
        self._partial = bytearray()
        self._needed = 0

    def expect(self, limits: Mapping[int, int] | None) -> None:
        """Take messages of these types only; None for a startup packet."""
        self._limits = limits

    @property
    def buffered(self) -> int:
        """Bytes that were fed and not yet given out."""
        return len(self._partial) + len(self._chunk) - self._at

    def feed(self, arrived: bytes) -> None:
        """Take bytes that arrived."""
        if self._at < len(self._chunk):  # next() was not asked until it gave None
            self._partial += self._chunk[self._at :]
            self._chunk, self._at = b"", 0
        if not self._partial:
            self._chunk, self._at = arrived, 0
            return
        self._partial += arrived
        if len(self._partial) >= self._needed:
            self._chunk, self._at = bytes(self._partial), 0
            self._partial = bytearray()
            self._needed = 0

    def next(self) -> Message | None:
        """The next message, or None when it has not arrived completely."""
        if self._partial:
            return None
        if self._limits is None:
            return self._next_startup()
        chunk, at = self._chunk, self._at
        if len(chunk) - at < _HEADER:
            self._keep(_HEADER)
            return None
        kind = chunk[at]
        length = int.from_bytes(chunk[at + 1 : at + _HEADER], "big")
        limit = self._limits.get(kind)
        if limit is None:
            raise ProtocolError(f"invalid message type {kind}")
        if not _LENGTH <= length <= limit:
            raise ProtocolError("invalid message length")
        end = at + 1 + length
        if end > len(chunk):
            self._keep(1 + length)
            return None
        self._at = end
        return Message(kind, chunk[at:end])

    def skim(self, kind: int) -> bytes:
        """All complete messages of one type that come next, as they are; perhaps none.

        For the rows of a long result, which need no look at each.
        """
        chunk = self._chunk
        start = at = self._at
        last = len(chunk) - _HEADER
        while at <= last and chunk[at] == kind:
            length = int.from_bytes(chunk[at + 1 : at + _HEADER], "big")
            if length < _LENGTH or at + 1 + length > len(chunk):
                break  # next() judges it
            at += 1 + length
        self._at = at
        return chunk[start:at]

    def _next_startup(self) -> Message | None:
        chunk, at = self._chunk, self._at
        if len(chunk) - at < _LENGTH:
            self._keep(_LENGTH)
            return None
        length = int.from_bytes(chunk[at : at + _LENGTH], "big")
        if not 2 * _LENGTH <= length <= STARTUP_LIMIT:
            raise ProtocolError("invalid length of startup packet")
        if at + length > len(chunk):
            self._keep(length)
            return None
        self._at = at + length
        return Message(STARTUP, chunk[at : self._at])

    def _keep(self, needed: int) -> None:
        """Wait for ``needed`` bytes; those that are here begin the next message."""
        self._partial += self._chunk[self._at :]
        self._chunk, self._at = b"", 0
        self._needed = needed
