# SPDX-License-Identifier: Apache-2.0
"""A connection as a bare socket, logged in: to send what no client would send."""

from __future__ import annotations

import os
import socket
import struct
from types import TracebackType

from psycopg import pq

from penstock.wire.framing import SERVER_LIMITS, Framing, Message


def message(kind: bytes, body: bytes = b"") -> bytes:
    """A message of a client."""
    return kind + struct.pack(">I", len(body) + 4) + body


def status(lsn: int = 1) -> bytes:
    """A standby status update, as CopyData."""
    return message(b"d", b"r" + struct.pack(">QQQqB", lsn, lsn, lsn, 0, 0))


class RawStream:
    """libpq logs in; from then on the bytes are the test's."""

    def __init__(self, info: str, options: str = "replication=database") -> None:
        self._login = pq.PGconn.connect(f"{info} {options}".encode())
        assert self._login.status == pq.ConnStatus.OK, self._login.error_message
        self.socket = socket.socket(fileno=os.dup(self._login.socket))
        self.socket.settimeout(60)
        self._framing = Framing(SERVER_LIMITS)

    def __enter__(self) -> RawStream:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.socket.close()
        self._login.finish()

    def query(self, text: str) -> None:
        """Send a Query."""
        self.socket.sendall(message(b"Q", text.encode() + b"\0"))

    def receive(self) -> Message | None:
        """The next message; None at the end of the connection."""
        while (found := self._framing.next()) is None:
            try:
                arrived = self.socket.recv(1 << 20)
            except ConnectionError:
                return None
            if not arrived:
                return None
            self._framing.feed(arrived)
        return found

    def until(self, kinds: bytes) -> list[Message]:
        """The messages up to the first of some kinds, or to the end of the connection."""
        found: list[Message] = []
        while (each := self.receive()) is not None:
            found.append(each)
            if each.kind in kinds:
                break
        return found

    def start(self, slot: str, publication: str) -> None:
        """Make a temporary slot and begin its stream."""
        self.query(
            f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing')"
        )
        self.until(b"Z")
        self.resume(slot, publication)

    def resume(self, slot: str, publication: str) -> None:
        """Begin the stream of a slot."""
        options = f"proto_version '1', publication_names '{publication}'"
        self.query(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 ({options})")
        answer = self.until(b"WE")
        assert answer[-1].kind == ord("W"), answer
