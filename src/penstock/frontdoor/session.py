# SPDX-License-Identifier: Apache-2.0
"""One client's session: a link to the client, a link to the control database, and between them.

In:   a client's startup packet, and a new link to the control database.
Out:  PostgreSQL's protocol, until one of the two ends it.

Two tasks.  The pump passes on what the control database sends (backend.py); the other one takes
the client's messages in order.  Authentication is relayed as it is: passwords are neither seen nor
kept, and who is refused is refused by the control database.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from penstock.errors import (
    ConnectionLostError,
    FeatureNotSupportedError,
    PenstockError,
)
from penstock.frontdoor.actions import LakeQueries, Publisher, Router
from penstock.frontdoor.backend import ControlBackend, check_not_copying
from penstock.frontdoor.cancel import CancelKeys
from penstock.frontdoor.conversation import Conversation
from penstock.frontdoor.copying.copy_out import LakeCopies
from penstock.frontdoor.exchange import first_of
from penstock.frontdoor.extended import ExtendedQueries
from penstock.frontdoor.lake_answer import LakeSession
from penstock.frontdoor.link import Link
from penstock.frontdoor.negotiation import Greeting
from penstock.frontdoor.replication.commands import ReplicationCommands
from penstock.frontdoor.replication.walsender import Walsender
from penstock.frontdoor.simple import run_simple
from penstock.frontdoor.writing.writer import LakeWriter
from penstock.wire import requests, responses
from penstock.wire.framing import AUTHENTICATING_LIMITS, CLIENT_LIMITS, Message
from penstock.wire.startup import CancelKey
from penstock.wire.state import CLIENT_EVENTS, ConnectionState, Event, State

log = logging.getLogger(__name__)

LOOK_AGAIN = 0.05
"""Seconds between two looks whether a session that shall end is idle."""


@dataclass(frozen=True)
class Services:
    """What all sessions of a front door share."""

    router: Router
    queries: LakeQueries
    keys: CancelKeys
    writer: LakeWriter | None = None
    copies: LakeCopies | None = None
    publisher: Publisher | None = None


class Session:
    """One session; ``run`` returns when it has ended."""

    def __init__(
        self,
        client: Link,
        state: ConnectionState,
        greeting: Greeting,
        control: Link,
        services: Services,
    ) -> None:
        self._client = client
        self._state = state
        self._greeting = greeting
        self._keys = services.keys
        walsender = Walsender(control, self._issue_key) if greeting.replicates else None
        self._backend = walsender or ControlBackend(control, self._issue_key)
        self._lake = LakeSession(services.queries, self._backend, client)
        self._conversation = Conversation(
            client,
            greeting.framing,
            state,
            self._backend,
            services.router,
            self._lake,
            services.writer,
            services.copies,
        )
        self._extended = ExtendedQueries(self._conversation)
        self._replication: ReplicationCommands | None = None
        if walsender is not None:
            if services.publisher is None:
                raise FeatureNotSupportedError("the lake is not published here")
            self._replication = ReplicationCommands(
                self._conversation, walsender, services.publisher
            )
        self._pid: int | None = None
        self._handling = True
        self._dismissed: asyncio.Future[PenstockError] = asyncio.Future()

    async def run(self, deadline: float) -> None:
        """Serve the client.  ``deadline`` is the loop's time at which it must have logged in."""
        self._backend.send_startup(self._greeting.packet.raw)
        pump = asyncio.create_task(self._backend.pump(self._client))
        talk = asyncio.create_task(self._talk(deadline))
        try:
            watched: set[asyncio.Future[Any]] = {pump, talk, self._dismissed}
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if self._state.now is State.CLOSED and not self._client.lost.done():
                await self._finish_answers(pump)
        finally:
            ended_by_control = pump.done() and self._state.now is not State.CLOSED
            for task in (talk, pump):
                task.cancel()
            await asyncio.wait({pump, talk})
            self._say_goodbye(pump, talk, ended_by_control=ended_by_control)
            if self._pid is not None:
                self._keys.forget(self._pid)
            self._backend.link.write(requests.terminate())
            self._backend.link.close()
            self._client.close()
            await self._backend.endings.connection_ended()

    async def _finish_answers(self, pump: asyncio.Task[None]) -> None:
        """The client has said Terminate: what it sent before is still answered, if it waits."""
        self._backend.link.write(requests.terminate())
        watched: set[asyncio.Future[Any]] = {pump, self._client.lost, self._dismissed}
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)

    async def dismiss(self, reason: PenstockError) -> None:
        """End the session as soon as it is idle."""
        while not self._is_streaming and (self._handling or not self._backend.is_quiet):
            await asyncio.sleep(LOOK_AGAIN)
        self.dismiss_now(reason)

    @property
    def _is_streaming(self) -> bool:
        return self._replication is not None and self._replication.is_streaming

    def dismiss_now(self, reason: PenstockError) -> None:
        """End the session, whatever it does."""
        if not self._dismissed.done():
            self._dismissed.set_result(reason)

    def _say_goodbye(self, *tasks: asyncio.Task[None], ended_by_control: bool) -> None:
        """Tell the client why, unless the control database has or the client itself has left."""
        errors = [task.exception() for task in tasks if not task.cancelled()]
        error = next((each for each in errors if each is not None), None)
        if self._dismissed.done():
            error = self._dismissed.result()
        elif error is None and ended_by_control:
            error = ConnectionLostError("the control database ended the session")
        if error is None or self._backend.said_goodbye or self._state.now is State.CLOSED:
            return
        if not isinstance(error, PenstockError):
            log.error("a session failed", exc_info=error)
            error = PenstockError("internal error of the front door")
        encoding = self._backend.client_encoding
        self._client.write(responses.error_response(error, "FATAL", encoding))

    async def _talk(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                if not await self._log_in():
                    return
        except TimeoutError:
            raise PenstockError(
                "canceling authentication due to timeout", sqlstate="57014"
            ) from None
        while self._state.now is not State.CLOSED:
            self._handling = False
            message = await self._conversation.receive()
            self._handling = True
            if message is None:
                self._state.on(Event.LOST)
            else:
                await self._take(message)
                await self._backend.link.drain()

    async def _log_in(self) -> bool:
        """Relay what the two say to each other; False when the client has gone."""
        backend, framing = self._backend, self._greeting.framing
        framing.expect(AUTHENTICATING_LIMITS)
        while not backend.logged_in.is_set():
            message = framing.next()
            if message is not None:
                self._state.on(CLIENT_EVENTS[message.kind])
                backend.pass_on(message)
                continue
            await first_of(self._client.readable(), backend.logged_in.wait())
            if backend.logged_in.is_set():
                break
            arrived = await self._client.receive()
            if not arrived:
                return False
            framing.feed(arrived)
        self._state.on(Event.LOGGED_IN)
        framing.expect(CLIENT_LIMITS)
        return True

    async def _take(self, message: Message) -> None:
        event = CLIENT_EVENTS[message.kind]
        was_skipping = self._state.now is State.SKIPPING
        self._state.on(event)
        check_not_copying(self._backend, message)
        if was_skipping and event is not Event.SYNC:
            return
        match event:
            case Event.QUERY:
                self._extended.end_cycle()
                if self._replication is not None:
                    await self._replication.run(message)
                else:
                    await run_simple(self._conversation, message)
            case Event.EXTENDED:
                await self._take_extended(message)
            case Event.SYNC:
                await self._extended.sync(message)
            case Event.COPY_ROWS | Event.COPY_END:
                self._backend.pass_on(message)
            case Event.FUNCTION_CALL:
                await self._refuse_function_call()

    async def _take_extended(self, message: Message) -> None:
        try:
            if self._replication is not None and message.kind != requests.FLUSH:
                raise _forbidden_in_walsender("extended query protocol")
            await self._extended.handle(message)
        except ConnectionLostError:
            raise
        except PenstockError as error:
            await self._conversation.fail(error)
            self._state.on(Event.FAILED)

    async def _refuse_function_call(self) -> None:
        await self._backend.settle()
        if self._backend.skipping:
            return
        refusal: PenstockError = FeatureNotSupportedError(
            "function calls of the protocol are not supported",
            hint="Call the function in a SELECT.",
        )
        if self._replication is not None:
            refusal = _forbidden_in_walsender("fastpath function calls")
        await self._conversation.fail(refusal)
        await self._conversation.finish_simple()

    def _issue_key(self, real: CancelKey) -> CancelKey:
        self._pid = real.pid
        return self._keys.issue(real, self._cancel)

    def _cancel(self) -> bool:
        """Stop the lake's work; True when the control database has none for this session."""
        if not self._lake.is_running:
            return False
        self._lake.cancel()
        return self._backend.is_answered


def _forbidden_in_walsender(what: str) -> PenstockError:
    """PostgreSQL's error (forbidden_in_wal_sender, postgres.c)."""
    return PenstockError(f"{what} not supported in a replication connection", sqlstate="08P01")
