# SPDX-License-Identifier: Apache-2.0
"""What the parts of one session share: both connections, the client's state, errors.

An error of a statement is reported once, and the transaction fails as PostgreSQL's would:

    where the error came from              the control database ...          so we
    -------------------------              ------------------------          -----
    its answer to the client's message     has failed, the client knows      say nothing
    its answer to a question of ours       has failed                        report it
    the router, a hook, the lake           does not know                     report it, and make its
                                                                             transaction fail
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from penstock.errors import ConnectionLostError, FeatureNotSupportedError, PenstockError
from penstock.frontdoor.actions import Action, CopyLake, Router, WriteLake
from penstock.frontdoor.backend import ControlBackend, check_not_copying, raise_unreported
from penstock.frontdoor.blocks import commit_own_block, end_pipeline, judge_block_command
from penstock.frontdoor.copying.copy_out import LakeCopies
from penstock.frontdoor.exchange import Exchange, PipelineFailedError, first_of
from penstock.frontdoor.lake_answer import LakeSession
from penstock.frontdoor.link import Link
from penstock.frontdoor.writing.writer import Execute, LakeWriter, Parameters
from penstock.sql.tokens import significant
from penstock.wire import requests, responses
from penstock.wire.encodings import decode, encode
from penstock.wire.framing import Framing, Message
from penstock.wire.state import CLIENT_EVENTS, COPYING_IN, ConnectionState, Event, State

_REPORTED = ("client_encoding", "standard_conforming_strings")
"""Settings by which a text of the client is read."""


class Conversation:
    """One client, its control connection, and the state between them."""

    def __init__(
        self,
        client: Link,
        framing: Framing,
        state: ConnectionState,
        backend: ControlBackend,
        router: Router,
        lake: LakeSession,
        writer: LakeWriter | None,
        copies: LakeCopies | None,
    ) -> None:
        self.client = client
        self.framing = framing
        self.state = state
        self.backend = backend
        self.lake = lake
        self._router = router
        self._writer = writer
        self._copies = copies
        self.write_portals: Callable[[], Collection[str]] = tuple
        """Names of the client's portals that write the lake."""

    async def receive(self) -> Message | None:
        """The client's next message; None when it has gone.  ProtocolError is FATAL."""
        while (message := self.framing.next()) is None:
            arrived = await self.client.receive()
            if not arrived:
                return None
            self.framing.feed(arrived)
        return message

    async def settled(self) -> None:
        """Wait for the answers to all that was sent; raises when one of them was an error.

        Only then are the session's parameters known, and may we write to the client.
        """
        await self.backend.settle()
        if self.backend.ended:
            raise ConnectionLostError("the control database ended the session")
        raise_unreported(self.backend)
        if self.backend.settings_stale and self.backend.block_ended:
            await self.backend.sync()  # a question would begin a transaction
        elif self.backend.settings_stale:
            await self.backend.ask_settings(_REPORTED)

    async def route(self, sql: str, parameter_oids: Sequence[int] = ()) -> Action:
        """Ask the router about one statement.  The session is settled.

        Outside of a block its questions leave the transaction open, for the statement to follow.
        """
        backend = self.backend
        _refuse_fetch(sql, self.write_portals())
        backend.hold_open = backend.ready_status == "I"
        try:
            action = await self._router.route(backend, sql, parameter_oids)
        finally:
            backend.hold_open = False
        raise_unreported(backend)
        return action

    async def before_relayed(self, sql: str) -> None:
        """Raise PostgreSQL's error for a statement that ends what is no block of the client."""
        await judge_block_command(self.backend, self.client, sql)

    async def write(self, write: WriteLake, execute: Execute, parameters: Parameters) -> Exchange:
        """Carry out a statement that writes the lake; see LakeWriter."""
        if self._writer is None:
            raise FeatureNotSupportedError("writing to lake tables is not supported here")
        answer = await self._writer.run(self.backend, write, execute, parameters)
        raise_unreported(self.backend)
        return answer

    async def copy(self, copy: CopyLake) -> None:
        """Answer a COPY TO STDOUT of lake tables, in the client's transaction; see LakeCopies."""
        if self._copies is None:
            raise FeatureNotSupportedError("COPY of lake tables is not supported here")
        backend = self.backend
        backend.executed = True
        held, backend.hold_open = backend.hold_open, True
        try:
            answered = self._copies.run(backend, copy, backend.copy_out, self.client)
            await self.lake.watch(answered)
        finally:
            backend.hold_open = held
        raise_unreported(backend)

    @property
    def standard_conforming_strings(self) -> bool:
        """The session's setting, once it is settled."""
        return self.backend.parameters.get("standard_conforming_strings", "on") == "on"

    def text(self, raw: bytes) -> str:
        """Text from the client."""
        return decode(raw, self.backend.client_encoding)

    def raw(self, text: str) -> bytes:
        """Text as the client would send it."""
        return encode(text, self.backend.client_encoding)

    async def fail(self, error: PenstockError) -> None:
        """Report the error of a statement and let the transaction fail; see the module's table."""
        backend = self.backend
        await backend.settle()
        backend.endings.on_error()
        if isinstance(error, PipelineFailedError) or (
            backend.skipping and backend.unreported is None
        ):
            return
        self.client.write(responses.error_response(error, "ERROR", backend.client_encoding))
        backend.unreported = None
        in_block = backend.ready_status == "T"
        if not backend.skipping and (in_block or backend.executed) and not backend.ended:
            await backend.fail_transaction()

    async def finish_simple(self) -> None:
        """End a simple query that we carried out: what is open ends, and the client is told."""
        backend = self.backend
        if not backend.synced:
            await self.end_transaction()
        backend.endings.on_ready(backend.ready_status)
        await backend.endings.run_due()
        self.client.write(responses.ready_for_query(backend.ready_status))

    async def end_transaction(self) -> None:
        """End an open pipeline, and with it an implicit transaction; the client is not told."""
        try:
            await commit_own_block(self.backend)
        except responses.ServerError as error:
            await self.fail(error)
        await end_pipeline(self.backend)

    async def feed_copy(self, exchange: Exchange) -> None:
        """When a statement that we carry out wants the client's rows, pass them on."""
        await first_of(exchange.wants_rows.wait(), exchange.done.wait())
        if not exchange.wants_rows.is_set() or exchange.done.is_set():
            return
        self.state.on(Event.COPY_STARTED)
        while self.state.now in COPYING_IN:
            if exchange.done.is_set():
                self.state.on(Event.FAILED)
            elif (message := self.framing.next()) is not None:
                await self._feed_copy_message(message)
            else:
                await first_of(self.client.readable(), exchange.done.wait())
                await self._feed_copy_framing(exchange)

    async def _feed_copy_framing(self, exchange: Exchange) -> None:
        if exchange.done.is_set():
            return
        arrived = await self.client.receive()
        if not arrived:
            raise ConnectionLostError("the client has gone")
        self.framing.feed(arrived)

    async def _feed_copy_message(self, message: Message) -> None:
        check_not_copying(self.backend, message)
        if self.state.on(CLIENT_EVENTS[message.kind]) is State.CLOSED:
            raise ConnectionLostError("the client has gone")
        if message.kind in (requests.FLUSH, requests.SYNC):
            return  # COPY ignores them
        self.backend.pass_on(message)
        if self.state.now not in COPYING_IN:
            self.backend.link.write(requests.flush())  # COPY has ignored the one before its rows
        await self.backend.link.drain()


def _refuse_fetch(sql: str, portals: Collection[str]) -> None:
    """Refuse FETCH and MOVE in a portal that writes the lake (0A000).

    PostgreSQL would run the portal's statement on the empty relation, and keep the rows there.
    """
    tokens = significant(sql) if portals else []
    if not tokens or tokens[0].word not in ("fetch", "move"):
        return
    for token in tokens:
        if token.name in portals:
            raise FeatureNotSupportedError(
                f'portal "{token.name}" cannot be used by {tokens[0].word.upper()}',
                detail="Its statement writes a table of the lake.",
                hint="Execute the portal by the protocol, as drivers do.",
            )
