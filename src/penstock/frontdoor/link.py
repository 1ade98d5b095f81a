# SPDX-License-Identifier: Apache-2.0
"""One socket: bytes in, bytes out, with back-pressure both ways, and TLS.

Reading stops at READ_AHEAD bytes that nobody has taken, so a fast peer costs no memory.  Writes of
one turn of the event loop are sent together.  ``drain`` waits while the peer is slow.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

READ_AHEAD = 1024 * 1024
"""Bytes kept of a peer that sends faster than it is read; then TCP slows it down."""

LINGER = 5.0
"""Seconds that a peer has to take the last bytes of a connection that we close."""

SEND_AT = 64 * 1024
"""Bytes that are sent at once, without waiting for the end of the loop's turn."""


class Link(asyncio.Protocol):
    """One connection; ``lost`` is done when it has ended."""

    def __init__(self, opened: Callable[[Link], None] | None = None) -> None:
        """``opened`` is called with the link of a connection that was accepted."""
        self._opened = opened
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._arrived: list[bytes] = []
        self._arrived_bytes = 0
        self._ended = False
        self._reading_paused = False
        self._reader: asyncio.Future[None] | None = None
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._sending_soon = False
        self._writing_paused = False
        self._writers: list[asyncio.Future[None]] = []

    async def receive(self) -> bytes:
        """What has arrived, at least one byte; nothing at the end.  Cancelling loses no byte."""
        await self.readable()
        arrived = self._arrived[0] if len(self._arrived) == 1 else b"".join(self._arrived)
        self._arrived.clear()
        self._arrived_bytes = 0
        if self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()
        return arrived

    async def readable(self) -> None:
        """Wait until ``receive`` would not wait."""
        while not self._arrived and not self._ended:
            self._reader = self._loop.create_future()
            await self._reader

    def write(self, outgoing: bytes) -> None:
        """Send soon; what is written to a lost connection is forgotten."""
        self._outgoing.append(outgoing)
        self._outgoing_bytes += len(outgoing)
        if self._outgoing_bytes >= SEND_AT:
            self._send()
        elif not self._sending_soon:
            self._sending_soon = True
            self._loop.call_soon(self._send)

    async def drain(self) -> None:
        """Wait until the peer has taken enough that more may be written."""
        self._send()
        while self._writing_paused and not self._ended:
            writer = self._loop.create_future()
            self._writers.append(writer)
            await writer

    async def start_tls(self, context: ssl.SSLContext, answer: bytes, timeout: float) -> None:
        """Send ``answer`` in the clear and do the handshake as server.

        Nothing is read between the two, so no clear byte can be taken for an encrypted one.
        The caller has made sure that none had arrived before.
        """
        self._transport.pause_reading()
        self._transport.write(answer)
        transport = await self._loop.start_tls(
            self._transport, self, context, server_side=True, ssl_handshake_timeout=timeout
        )
        if transport is None:
            raise ConnectionResetError("the connection was lost during the TLS handshake")
        self._transport = transport

    @property
    def unread(self) -> int:
        """Bytes that arrived and were not taken yet."""
        return self._arrived_bytes

    @property
    def peer(self) -> str:
        """Who is at the other end, for the log."""
        name = self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "local"

    def close(self) -> None:
        """Close when what was written has been sent, or after LINGER seconds."""
        self._send()
        self._transport.close()
        if not self.lost.done():
            lingering = self._loop.call_later(LINGER, self.abort)
            self.lost.add_done_callback(lambda _: lingering.cancel())

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._opened is not None:
            self._opened(self)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._arrived.append(data)
        self._arrived_bytes += len(data)
        if self._arrived_bytes >= READ_AHEAD and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
        self._wake_reader()

    def eof_received(self) -> None:
        """Called by asyncio; the transport then closes by itself."""
        self._ended = True
        self._wake_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio."""
        self._ended = True
        self._wake_reader()
        self._wake_writers()
        if not self.lost.done():
            self.lost.set_result(None)

    def pause_writing(self) -> None:
        """Called by asyncio."""
        self._writing_paused = True

    def resume_writing(self) -> None:
        """Called by asyncio."""
        self._writing_paused = False
        self._wake_writers()

    def _send(self) -> None:
        self._sending_soon = False
        if not self._outgoing:
            return
        outgoing = self._outgoing[0] if len(self._outgoing) == 1 else b"".join(self._outgoing)
        self._outgoing.clear()
        self._outgoing_bytes = 0
        if not self._transport.is_closing():
            self._transport.write(outgoing)

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_writers(self) -> None:
        for writer in self._writers:
            if not writer.done():
                writer.set_result(None)
        self._writers.clear()
