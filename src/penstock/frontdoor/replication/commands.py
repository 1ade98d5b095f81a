# SPDX-License-Identifier: Apache-2.0
"""A replication connection: what a subscriber of the lake sends, one Query message at a time.

In:   replication commands and SQL, on a connection with ``replication=database``.
Out:  the control database's walsender's answers; a stream that is the lake's (expansion.py).

    the text is ...                          what is done
    ---------------                          ------------
    START_REPLICATION ... LOGICAL            the stream, expanded
    another replication command              passed on, unless it could show what is not the lake's
    SQL that reads no lake table             passed on
    COPY ... TO STDOUT of lake tables        carried out from Delta, at the snapshot of the session
    anything else                            0A000

A slot's snapshot (SNAPSHOT 'use') is that of the session's transaction, and versions of lake tables
are read in it like in any other: so a copy shows exactly what the slot's stream does not.
"""

from __future__ import annotations

from penstock.control.ledger_stream import LEDGER_NAME, no_publications
from penstock.errors import (
    ConnectionLostError,
    FeatureNotSupportedError,
    InsufficientPrivilegeError,
    PenstockError,
)
from penstock.frontdoor.actions import Action, CopyLake, Publisher, Relay, StreamOptions
from penstock.frontdoor.conversation import Conversation
from penstock.frontdoor.exchange import ROWS, Step, StreamExchange, first_of
from penstock.frontdoor.replication.expansion import Expansion, end_messages
from penstock.frontdoor.replication.walsender import Walsender
from penstock.frontdoor.statement import carry_out, move_position
from penstock.sql.commands import parse
from penstock.sql.replication import (
    ReplicationCommand,
    StartReplication,
    replication_command,
)
from penstock.sql.split import Statement, statements
from penstock.wire import requests, responses
from penstock.wire.framing import Message
from penstock.wire.responses import ServerError
from penstock.wire.state import Event, State

_BEFORE_STREAM = """
SELECT (SELECT plugin FROM pg_catalog.pg_replication_slots WHERE slot_name = $1),
    (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'),
    pg_catalog.current_setting('server_version_num')"""
_ANSWER = ROWS | {responses.COMMAND_COMPLETE, responses.EMPTY_QUERY}

_BLOCK_COMMANDS = frozenset(
    {
        "ABORT",
        "BEGIN",
        "COMMIT",
        "COMMIT PREPARED",
        "END",
        "PREPARE TRANSACTION",
        "RELEASE SAVEPOINT",
        "ROLLBACK",
        "ROLLBACK PREPARED",
        "ROLLBACK TO SAVEPOINT",
        "SAVEPOINT",
        "START TRANSACTION",
    }
)


class ReplicationCommands:
    """Answers the Query messages of one replication connection."""

    def __init__(self, conversation: Conversation, walsender: Walsender, publisher: Publisher):
        self._conversation = conversation
        self._walsender = walsender
        self._publisher = publisher
        self.is_streaming = False
        self._exchange: StreamExchange | None = None

    @property
    def _is_open(self) -> bool:
        return self._exchange is not None and not self._exchange.done.is_set()

    async def run(self, message: Message) -> None:
        """Answer one Query message, with ReadyForQuery at the end."""
        await self._walsender.settle()
        if self._walsender.is_unsound:
            raise ConnectionLostError(
                "terminating connection because of an error after a replication stream",
                hint="Connect again.",
            )
        try:
            text = self._conversation.text(requests.parse_query(message))
            command = replication_command(text)
            if command is not None and command.start is not None:
                _check(command)
                await self._stream(command.start)
            elif await self._passed_on(command, text, message):
                return
        except ConnectionLostError:
            raise
        except PenstockError as error:
            if self._is_open:
                raise  # the walsender still streams: the session ends
            if self._conversation.state.now is State.COPY_BOTH:
                self._conversation.state.on(Event.FAILED)  # an error ends a stream, not the session
            await self._conversation.fail(error)
        await self._walsender.release()
        await self._conversation.finish_simple()

    async def _passed_on(
        self, command: ReplicationCommand | None, text: str, message: Message
    ) -> bool:
        """Answer anything but a stream; True when ReadyForQuery is on its way too."""
        if command is not None:
            _check(command)
            self._walsender.send(Step.QUERY, message.raw)
            return True
        parts = self._parts(text)
        if len(parts) > 1:
            _check_no_block(parts)
        if self._walsender.ready_status == "E":
            self._walsender.send(
                Step.QUERY, message.raw
            )  # PostgreSQL refuses it, or ends the block
            return True
        if len(parts) > 1:
            await self._run_several(parts)
            return False
        action = await self._action(parts[0]) if parts else Relay()
        if isinstance(action, CopyLake):
            await carry_out(self._conversation, action, text)
            return False
        if self._walsender.is_holding:
            await self._walsender.run(text, _ANSWER)
            return False
        self._walsender.send(Step.QUERY, message.raw)
        return True

    async def _run_several(self, parts: list[Statement]) -> None:
        """Run statements one after the other, in one transaction, as PostgreSQL does.

        Each is looked at when the ones before have run: they may change what its names mean.
        """
        await self._walsender.hold()
        for part in parts:
            if len(self._parts(part.text)) > 1:  # a statement before has changed what quotes mean
                raise _refused()
            try:
                if isinstance(await self._action(part), CopyLake):
                    raise _refused()
                await self._walsender.run(part.text, _ANSWER)
            except ServerError as error:
                move_position(error, part.start)
                raise

    def _parts(self, text: str) -> list[Statement]:
        return statements(text, self._conversation.standard_conforming_strings)

    async def _action(self, part: Statement) -> Action:
        """What to do with a statement; 0A000 for what may not be passed on."""
        action = await self._conversation.route(part.text)
        if action != Relay() and not isinstance(action, CopyLake):
            raise _refused()
        return action

    async def _stream(self, start: StartReplication) -> None:
        timeout, version = await self._before_stream(start.slot)
        timezone = self._walsender.parameters.get("TimeZone", "UTC")
        options = StreamOptions(start.publications, start.is_on("binary"), timezone)
        raw = self._conversation.raw(start.relayed(no_publications(version)))
        exchange = self._exchange = StreamExchange()
        self._walsender.send(Step.QUERY, requests.query(raw), exchange)
        await first_of(exchange.started.wait(), exchange.done.wait())
        if exchange.started.is_set():
            self._conversation.state.on(Event.STREAM_STARTED)
            self._conversation.client.write(responses.copy_both())
            self._walsender.has_streamed = self.is_streaming = True
            published = self._publisher.stream(options)
            wants_messages = start.is_on("messages")
            try:
                await Expansion(
                    self._conversation,
                    exchange,
                    published,
                    wants_messages=wants_messages,
                    timeout=timeout,
                ).run()
            finally:
                self.is_streaming = False
        await exchange.wait()
        self._conversation.client.write(end_messages(exchange))

    async def _before_stream(self, slot: str) -> tuple[float, int]:
        """wal_sender_timeout in seconds, 0 for none; the control database's version.

        A slot of another plugin, made by a function, would show commit records (0A000).
        """
        ((plugin, timeout, version),) = await self._walsender.query(_BEFORE_STREAM, [slot])
        if plugin not in (None, "pgoutput"):
            raise FeatureNotSupportedError(
                f'replication slot "{slot}" has the output plugin "{plugin}", which is not'
                " supported",
                hint="Use a slot of pgoutput.",
            )
        return int(timeout or 0) / 1000, int(version or 0)


def _check_no_block(parts: list[Statement]) -> None:
    if any(parse(part.text).name in _BLOCK_COMMANDS for part in parts):
        raise FeatureNotSupportedError(
            "a transaction block cannot begin or end among several statements in a replication"
            " connection",
            hint="Send the statements one by one.",
        )


def _refused() -> FeatureNotSupportedError:
    return FeatureNotSupportedError(
        "this statement is not supported in a replication connection",
        detail="It reads or writes tables of the lake, or changes a definition.",
        hint="Use an ordinary connection; COPY ... TO STDOUT is supported here, alone.",
    )


def _check(command: ReplicationCommand) -> None:
    if command.slot == LEDGER_NAME:
        raise InsufficientPrivilegeError(
            f'permission denied for replication slot "{command.slot}"',
            detail="It is the node's own.",
        )
