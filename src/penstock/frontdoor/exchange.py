# SPDX-License-Identifier: Apache-2.0
"""What the session has asked of its control connection, and which answers are still to come.

PostgreSQL answers in order, so a queue of Expected entries tells whose answer each message is: the
client's own (it is passed on) or that of an Exchange, which keeps some kinds and passes on others.

    step        its last message
    ----        ----------------
    LOGIN       ReadyForQuery
    PARSE       ParseComplete
    BIND        BindComplete
    DESCRIBE    RowDescription or NoData
    EXECUTE     CommandComplete, EmptyQueryResponse or PortalSuspended
    CLOSE       CloseComplete
    SYNC        ReadyForQuery
    QUERY       ReadyForQuery
    COPY_END    none: marks where the client ended its rows
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Any

from penstock.errors import ConnectionLostError, PenstockError
from penstock.wire import responses
from penstock.wire.framing import Message
from penstock.wire.responses import ServerError


class Step(Enum):
    """One message to the control database that is answered."""

    LOGIN = auto()
    PARSE = auto()
    BIND = auto()
    DESCRIBE = auto()
    EXECUTE = auto()
    CLOSE = auto()
    SYNC = auto()
    QUERY = auto()
    COPY_END = auto()


_READY = frozenset({responses.READY_FOR_QUERY})

LAST_MESSAGES: Mapping[Step, frozenset[int]] = MappingProxyType(
    {
        Step.LOGIN: _READY,
        Step.PARSE: frozenset({responses.PARSE_COMPLETE}),
        Step.BIND: frozenset({responses.BIND_COMPLETE}),
        Step.DESCRIBE: frozenset({responses.ROW_DESCRIPTION, responses.NO_DATA}),
        Step.EXECUTE: frozenset(
            {responses.COMMAND_COMPLETE, responses.EMPTY_QUERY, responses.PORTAL_SUSPENDED}
        ),
        Step.CLOSE: frozenset({responses.CLOSE_COMPLETE}),
        Step.SYNC: _READY,
        Step.QUERY: _READY,
        Step.COPY_END: frozenset(),
    }
)

ENDS_WITH_READY = frozenset({Step.LOGIN, Step.SYNC, Step.QUERY})
"""Steps that an error does not end: ReadyForQuery still follows."""

NOTHING: frozenset[int] = frozenset()
ROWS = frozenset(
    {
        responses.ROW_DESCRIPTION,
        responses.DATA_ROW,
        responses.COPY_IN,
        responses.COPY_OUT,
        responses.COPY_DATA,
        responses.COPY_DONE,
    }
)
"""What a statement sends before its CommandComplete."""


STREAM_AHEAD = 16 * 1024 * 1024
"""Bytes of a stream that are read before they are wanted: some 50,000 commit records."""


class PipelineFailedError(PenstockError):
    """Not asked, because an earlier message of the pipeline failed and the client knows it."""

    sqlstate = "25P02"


class Exchange:
    """One question of ours, of one or several messages, and what came back.

    ``kept`` are the messages that were not passed on to the client.  With ``blocks`` the rows are
    not among them: they are collected there, as they came, many in each.
    """

    def __init__(
        self, pass_on: frozenset[int] = NOTHING, blocks: list[bytes] | None = None
    ) -> None:
        self.pass_on = pass_on
        self.blocks = blocks
        self.kept: list[Message] = []
        self.error: ServerError | None = None
        self.refusal: PenstockError | None = None
        self.done = asyncio.Event()
        self.wants_rows = asyncio.Event()
        """Set when the statement is a COPY FROM STDIN that waits for rows."""

    def take(self, message: Message) -> bool:
        """Keep one message, or say that it is for the client."""
        if message.kind == responses.COPY_IN:
            self.wants_rows.set()
        if message.kind in self.pass_on:
            return True
        if self.blocks is not None and message.kind == responses.DATA_ROW:
            self.blocks.append(message.raw)
        else:
            self.kept.append(message)
        return False

    def give_up(self, refusal: PenstockError) -> None:
        """No answer will come."""
        if self.refusal is None:
            self.refusal = refusal
        self.done.set()

    async def wait(self) -> None:
        """Wait for the whole answer; raises the ServerError that it was."""
        await self.done.wait()
        if self.error is not None:
            raise self.error
        if self.refusal is not None:
            raise self.refusal

    def only(self, kind: int) -> Message | None:
        """The kept message of a kind that comes at most once."""
        return next((message for message in self.kept if message.kind == kind), None)

    @property
    def tag(self) -> str:
        """The command tag, when CommandComplete was kept; otherwise empty."""
        complete = self.only(responses.COMMAND_COMPLETE)
        return responses.parse_command_tag(complete) if complete else ""


class StreamExchange(Exchange):
    """A replication stream of the control database: its frames wait for who takes them.

    ``started`` is set by CopyBothResponse.  ``room`` holds up the reading of more while
    STREAM_AHEAD bytes wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.started = asyncio.Event()
        self._frames: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._changed = asyncio.Event()

    def take(self, message: Message) -> bool:
        """Keep a frame, or another message."""
        if message.kind == responses.COPY_DATA:
            frame = message.body
            self._frames.append(frame)
            self._waiting_bytes += len(frame)
            self._changed.set()
            return False
        if message.kind == responses.COPY_BOTH:
            self.started.set()
        return super().take(message)

    async def frame(self) -> bytes | None:
        """The next frame; None when the stream has ended and all were taken."""
        while not self._frames:
            if self.done.is_set():
                return None
            self._changed.clear()
            await first_of(self._changed.wait(), self.done.wait())
        frame = self._frames.popleft()
        self._waiting_bytes -= len(frame)
        self._changed.set()
        return frame

    @property
    def is_behind(self) -> bool:
        """Whether frames wait."""
        return bool(self._frames)

    async def room(self) -> None:
        """Wait until more may be read."""
        while self._waiting_bytes > STREAM_AHEAD and not self.done.is_set():
            self._changed.clear()
            await first_of(self._changed.wait(), self.done.wait())


@dataclass(slots=True)
class Expected:
    """One step whose answer is to come.

    ``exchange`` is None when the answer is the client's.  ``last`` says that it completes the
    exchange.  ``then`` is called when the step succeeded.
    """

    step: Step
    exchange: Exchange | None = None
    last: bool = True
    then: Callable[[], object] | None = None

    def skip(self) -> None:
        """The step will not be answered: an earlier one failed."""
        if self.exchange is not None:
            self.exchange.give_up(PipelineFailedError("an earlier message of the pipeline failed"))

    def lose(self) -> None:
        """The step will not be answered: the connection has ended."""
        if self.exchange is not None:
            self.exchange.give_up(ConnectionLostError("the control database ended the session"))


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of these is done; the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
