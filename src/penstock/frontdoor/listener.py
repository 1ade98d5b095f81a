# SPDX-License-Identifier: Apache-2.0
"""The front door: the only socket on which clients reach a node.

Each connection is a task of its own, so a slow or silent one holds up nobody.  Before a client has
authenticated, it costs one task, and time and number of such connections are limited:

* ``authentication_timeout`` seconds for everything from the first byte to the first ReadyForQuery;
* MAX_NEWCOMERS connections that have not sent their startup packet: one more closes the oldest, so
  connections that are opened and left silent cannot keep others out;
* ``max_connections`` sessions, authenticated or not: one more is refused with 53300.
"""

from __future__ import annotations

import asyncio
import logging
import ssl

from penstock.config import Settings
from penstock.control.address import ControlAddress
from penstock.errors import ConfigurationError, ConnectionLostError, PenstockError
from penstock.frontdoor.actions import LakeQueries, Publisher, Router
from penstock.frontdoor.cancel import CancelKeys
from penstock.frontdoor.copying.copy_out import LakeCopies
from penstock.frontdoor.link import Link
from penstock.frontdoor.negotiation import Greeting, negotiate, tls_context
from penstock.frontdoor.session import Services, Session
from penstock.frontdoor.writing.writer import LakeWriter
from penstock.wire import responses
from penstock.wire.startup import CancelKey, cancel_request
from penstock.wire.state import ConnectionState

log = logging.getLogger(__name__)

MAX_NEWCOMERS = 256
"""Connections without a startup packet: enough for a burst of clients, few file descriptors."""

BACKLOG = 1024
"""Connections that the kernel keeps for us while we are busy."""

FAREWELL = 2.0
"""Seconds that sessions have to end once they have been told to."""

_ENCRYPTED_MODES = frozenset({"require", "verify-ca", "verify-full"})


class FrontDoor:
    """Accepts clients and serves each with a session of its own."""

    def __init__(
        self,
        settings: Settings,
        control: ControlAddress,
        router: Router,
        queries: LakeQueries,
        writer: LakeWriter | None = None,
        copies: LakeCopies | None = None,
        publisher: Publisher | None = None,
    ) -> None:
        self._settings = settings
        self._control = control
        self._services = Services(router, queries, CancelKeys(), writer, copies, publisher)
        self._tls: ssl.SSLContext | None = None
        self._server: asyncio.Server | None = None
        self._newcomers: dict[Link, None] = {}
        self._sessions: set[Session] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def start(self) -> None:
        """Listen.  ConfigurationError when the address or the certificate cannot be used."""
        if dict(self._control.options).get("sslmode") in _ENCRYPTED_MODES:
            raise ConfigurationError(
                "the front door cannot reach the control database by TLS",
                detail="It relays its clients' authentication, which TLS may be bound to.",
                hint="Reach it by a Unix socket or a private network, without sslmode.",
            )
        self._tls = tls_context(self._settings)
        host, port = self._settings.listen_address
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: Link(self._accepted), host, port, backlog=BACKLOG
            )
        except OSError as error:
            raise ConfigurationError(
                f"could not listen on {self._settings.listen}", detail=f"{error.strerror}."
            ) from error

    @property
    def address(self) -> tuple[str, int]:
        """Host and port on which it listens."""
        assert self._server is not None, "the front door is not open"
        name = self._server.sockets[0].getsockname()
        return name[0], name[1]

    async def stop(self, drain: float) -> None:
        """Accept nobody, end idle sessions now and the others when idle; all after ``drain`` s."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        for newcomer in list(self._newcomers):
            newcomer.abort()
        reason = PenstockError(
            "terminating connection due to administrator command", sqlstate="57P01"
        )
        if self._sessions:
            waits = {asyncio.create_task(each.dismiss(reason)) for each in self._sessions}
            _, late = await asyncio.wait(waits, timeout=drain)
            for wait in late:
                wait.cancel()
        for session in self._sessions:
            session.dismiss_now(reason)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FAREWELL)

    def _accepted(self, link: Link) -> None:
        if self._stopping:
            link.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(link))
        self._tasks.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a connection failed", exc_info=error)

    async def _serve(self, link: Link) -> None:
        state = ConnectionState()
        deadline = asyncio.get_running_loop().time() + self._settings.authentication_timeout
        try:
            greeting = await self._greet(link, state, deadline)
            if isinstance(greeting, CancelKey):
                await self._cancel(greeting)
            elif greeting is not None:
                await self._serve_session(link, state, greeting, deadline)
        except PenstockError as error:
            log.info("connection from %s refused: %s", link.peer, error.message)
            link.write(responses.error_response(error, "FATAL"))
        except (TimeoutError, OSError) as error:  # also a TLS handshake that failed
            log.info("connection from %s closed before it began: %s", link.peer, error)
        finally:
            link.close()

    async def _greet(
        self, link: Link, state: ConnectionState, deadline: float
    ) -> Greeting | CancelKey | None:
        if len(self._newcomers) >= MAX_NEWCOMERS:
            oldest = next(iter(self._newcomers))
            del self._newcomers[oldest]
            oldest.abort()
        self._newcomers[link] = None
        try:
            async with asyncio.timeout_at(deadline):
                timeout = self._settings.authentication_timeout
                return await negotiate(link, state, self._tls, timeout)
        finally:
            self._newcomers.pop(link, None)

    async def _serve_session(
        self, link: Link, state: ConnectionState, greeting: Greeting, deadline: float
    ) -> None:
        if len(self._sessions) >= self._settings.max_connections:
            raise PenstockError("sorry, too many clients already", sqlstate="53300")
        control = await self._reach_control()
        session = Session(link, state, greeting, control, self._services)
        self._sessions.add(session)
        try:
            await session.run(deadline)
        finally:
            self._sessions.discard(session)

    async def _cancel(self, key: CancelKey) -> None:
        real = self._services.keys.cancel(key)
        if real is None:
            return
        control = await self._reach_control()
        control.write(cancel_request(real))
        await control.receive()  # PostgreSQL closes the connection when it has sent the signal
        control.close()

    async def _reach_control(self) -> Link:
        loop = asyncio.get_running_loop()
        path = self._control.socket_path
        try:
            if path is not None:
                _, link = await loop.create_unix_connection(Link, path)
            else:
                _, link = await loop.create_connection(Link, self._control.host, self._control.port)
        except OSError as error:
            raise ConnectionLostError(
                "the control database does not answer",
                hint="It may be starting up; try again.",
                sqlstate="57P03",
            ) from error
        return link
