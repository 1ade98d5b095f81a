# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that misbehaves when it is told to: a real network between a node and a publisher.

    cut         all connections are reset at once
    cut_after   the same when so many more bytes have gone to the clients, or have come from them:
                inside a message
    freeze      half-open: connections are accepted and stay open, and nothing goes through;
                after ``thaw`` those are still dead, and new ones work
    freeze_after    the same when so many more bytes have gone to the clients
    slow        so many bytes a second to each client
    refused     nobody listens, for a block
    retarget    another server is behind the same address

The event loop has a thread of its own; every method may be called from any thread and returns when
it is done.  How time passes in ``slow`` is bandwidth, not a wait for a result.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, TypeVar

from tests.support.fix_servers import Database
from tests.support.servers import SUPERUSER, free_port

T = TypeVar("T")

READ_BYTES = 64 * 1024
PIECES_PER_SECOND = 20  # a slow connection's bytes come in so many pieces
CALL_TIMEOUT = 20.0  # seconds for a method; each takes milliseconds
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends RST, as a lost connection would


class Proxy:
    """Use it as a context manager; ``accepted`` counts connections, ``sent`` bytes to clients."""

    def __init__(self, target_port: int) -> None:
        self.port = free_port()
        self.accepted = 0
        self.sent = 0
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._frozen = False
        self._rate: int | None = None
        self._budget: int | None = None
        self._counts_to_clients = True
        self._at_end = self._cut

    def conninfo(self, database: Database, extra: str = "") -> str:
        """libpq's connection string to a database of the target, through here."""
        name = database.name
        return f"host=127.0.0.1 port={self.port} dbname={name} user={SUPERUSER} {extra}".strip()

    def cut(self) -> None:
        """Reset all connections."""
        self._call(self._cut())

    def cut_after(self, count: int, *, to_clients: bool = True) -> None:
        """Reset all connections when ``count`` more bytes have gone to, or come from, clients."""
        self._call(self._set(_budget=count, _counts_to_clients=to_clients, _at_end=self._cut))

    def freeze_after(self, count: int) -> None:
        """Freeze when ``count`` more bytes have gone to the clients."""
        self._call(self._set(_budget=count, _counts_to_clients=True, _at_end=self._freeze))

    @property
    def waits(self) -> bool:
        """Whether ``cut_after`` or ``freeze_after`` still waits for its bytes."""
        return self._budget is not None

    @property
    def links(self) -> int:
        """How many connections there are; the last bytes of one are sent when it is gone."""
        return len(self._links)

    def freeze(self) -> None:
        """Let nothing through from now on, and close nothing."""
        self._call(self._freeze())

    def thaw(self) -> None:
        """Serve new connections again; those that were frozen stay dead."""
        self._call(self._set(_frozen=False))

    def slow(self, rate: int | None) -> None:
        """Bytes a second to each client; None for as quick as can be."""
        self._call(self._set(_rate=rate))

    def retarget(self, port: int) -> None:
        """Serve new connections from another server, and cut the old ones."""
        self._call(self._set(_target_port=port))
        self.cut()

    @contextmanager
    def refused(self) -> Iterator[None]:
        """Cut everything and refuse connections for the block."""
        self._call(self._deafen())
        self.cut()
        try:
            yield
        finally:
            self._call(self._listen())

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call(self._deafen())
        self._call(self._end_links())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT)
        self._loop.close()

    def _call(self, step: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(step, self._loop).result(CALL_TIMEOUT)

    # On the event loop from here on.

    async def _set(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _deafen(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _cut(self) -> None:
        for link in list(self._links):
            link.reset()

    async def _freeze(self) -> None:
        self._frozen = True
        for link in self._links:
            link.frozen = True

    async def _end_links(self) -> None:
        links = [link for link in self._links if link.task is not None]
        for link in links:
            link.reset()
        await asyncio.gather(*(link.task for link in links if link.task), return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = _Link(writer, frozen=self._frozen)
        link.task = asyncio.current_task()
        self._links.add(link)
        try:
            if link.frozen:
                await link.dead.wait()
                return
            with suppress(OSError):
                await self._forward(link, reader)
        finally:
            link.reset()
            self._links.discard(link)

    async def _forward(self, link: _Link, reader: asyncio.StreamReader) -> None:
        """Pump both ways until one side ends or the link is reset."""
        answers, link.server = await asyncio.open_connection("127.0.0.1", self._target_port)
        pumps = [
            asyncio.create_task(self._pump(link, reader, link.server, to_client=False)),
            asyncio.create_task(self._pump(link, answers, link.client, to_client=True)),
            asyncio.create_task(link.dead.wait()),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            if not link.dead.is_set():
                link.end()

    async def _pump(
        self,
        link: _Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        to_client: bool,
    ) -> None:
        while data := await reader.read(self._piece() if to_client else READ_BYTES):
            if link.frozen:
                await link.dead.wait()
            counts = to_client == self._counts_to_clients
            if counts:
                data = self._affordable(data)
            if to_client:
                self.sent += len(data)
            writer.write(data)
            await writer.drain()
            if counts and self._budget == 0:
                self._budget = None
                await self._at_end()
            if to_client and self._rate is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(link.dead.wait(), len(data) / self._rate)

    def _piece(self) -> int:
        rate = self._rate
        return READ_BYTES if rate is None else max(1, rate // PIECES_PER_SECOND)

    def _affordable(self, data: bytes) -> bytes:
        if self._budget is None:
            return data
        data = data[: self._budget]
        self._budget -= len(data)
        return data


class _Link:
    """One client's connection and its other half, ``server``, once there is one."""

    def __init__(self, client: asyncio.StreamWriter, *, frozen: bool) -> None:
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        self.frozen = frozen
        self.dead = asyncio.Event()
        self.task: asyncio.Task[Any] | None = None

    def end(self) -> None:
        """Close both sides in order: what was sent arrives."""
        for side in (self.client, self.server):
            if side is not None:
                side.close()

    def reset(self) -> None:
        """Close both sides at once; what is in buffers is lost."""
        self.dead.set()
        for side in (self.client, self.server):
            if side is None or side.transport.is_closing():
                continue
            connected = side.get_extra_info("socket")
            with suppress(OSError):
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            side.transport.abort()
