# SPDX-License-Identifier: Apache-2.0
"""The replication stream of one subscriber: the control database's, with its commits expanded.

In:   frames of the control database's walsender, asked for ``messages 'true'`` and no publication
      (rows of the node's own tables would be looked up in the subscriber's, when those may just be
      missing); the subscriber's status updates.
Out:  the same frames to the subscriber, with the lake's changes in place of commit records; its
      status updates to the walsender, as they are.

    from the walsender                 to the subscriber
    ------------------                 -----------------
    Begin, Origin                      kept until there is something to send
    message of prefix ``penstock``     kept: the commit record, and what DDL changed
    another message                    as it is, if it was asked for
    Commit                             the changes (expand), then Commit; nothing if there are none,
                                       but a keepalive, so that its position moves on
    Begin Prepare, Prepare             the same, before it is committed; sent even when empty, as
                                       what follows names it
    Commit or Rollback Prepared        as they are
    keepalive                          as it is

The walsender's LSNs, xids and times are the subscriber's, too, so slots, positions, synchronous
commits and pg_stat_replication are PostgreSQL's own.  Nothing is durable here: after a lost
connection the walsender begins again behind what the subscriber has confirmed.

While a commit is expanded, its frames wait, and the walsender's pings and answers with them.  So
the subscriber is pinged instead, and answered when it asks: both keep both connections alive.  Such
a keepalive names the end of what was sent before the transaction, which says nothing new.

A subscriber that says nothing for wal_sender_timeout while frames wait has gone: the walsender may
have found that out by itself, but its end is behind what is not read while too much waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from penstock.control.commits import RECORD_PREFIX, XID_PREFIX
from penstock.control.ledger_stream import LedgerEntry
from penstock.errors import ConnectionLostError, ProtocolError
from penstock.failpoints import Failpoint, reach
from penstock.frontdoor.actions import PublishedStream
from penstock.frontdoor.conversation import Conversation
from penstock.frontdoor.exchange import StreamExchange
from penstock.pgoutput import messages
from penstock.pgoutput.messages import POSTGRES_EPOCH_US
from penstock.wire import replication, requests, responses
from penstock.wire.replication import XLOG_HEADER_SIZE, XLogHeader
from penstock.wire.state import CLIENT_EVENTS, State

HEARTBEAT = 10.0
"""Seconds between pings at most, and a quarter of wal_sender_timeout; 60 by default."""

_AS_THEY_ARE = frozenset({messages.COMMIT_PREPARED, messages.ROLLBACK_PREPARED})
_OWN_PREFIXES = frozenset({RECORD_PREFIX.encode(), XID_PREFIX.encode()})
_IN_STREAM = frozenset({requests.COPY_DATA, requests.COPY_DONE, requests.TERMINATE})
_PREFIX_AT = XLOG_HEADER_SIZE + 10
"""Where a message's prefix begins, behind its letter, flags and LSN."""


class Expansion:
    """One stream; ``run`` returns when it has ended in order."""

    def __init__(
        self,
        conversation: Conversation,
        exchange: StreamExchange,
        published: PublishedStream,
        *,
        wants_messages: bool,
        timeout: float,
    ) -> None:
        """``timeout`` is wal_sender_timeout in seconds, 0 for none."""
        self._conversation = conversation
        self._client = conversation.client
        self._exchange = exchange
        self._published = published
        self._thread = ThreadPoolExecutor(1, "publish")
        self._wants_messages = wants_messages
        self._begin: list[bytes] = []
        self._commit: LedgerEntry | None = None
        self._record_lsn = 0
        self._in_transaction = False
        self._expanding = False
        self._settled_end = 0
        self._timeout = timeout
        self._sent_at = 0.0
        self._heard_at = time.monotonic()
        self._ended_by_client = False

    async def run(self) -> None:
        """Relay until one of the two ends the stream; raises what ended it otherwise."""
        feedback = asyncio.create_task(self._take_feedback())
        relaying = asyncio.create_task(self._relay())
        heartbeat = asyncio.create_task(self._keep_alive())
        tasks: set[asyncio.Task[None]] = {feedback, relaying, heartbeat}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for ended in (feedback, heartbeat):
                if ended.done():
                    ended.result()
            await asyncio.wait({relaying, heartbeat}, return_when=asyncio.FIRST_COMPLETED)
            await (relaying if relaying.done() else heartbeat)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._thread.submit(self._published.close)  # after what it may be doing
            self._thread.shutdown(wait=False)

    async def _take_feedback(self) -> None:
        """Pass on what the subscriber confirms, until it ends the stream."""
        conversation = self._conversation
        while conversation.state.now is State.COPY_BOTH:
            message = await conversation.receive()
            if message is None:
                raise ConnectionLostError("the subscriber has gone")
            if message.kind not in _IN_STREAM:  # CopyFail too (ProcessRepliesIfAny, walsender.c)
                raise ProtocolError(f'invalid standby message type "{chr(message.kind)}"')
            if conversation.state.on(CLIENT_EVENTS[message.kind]) is State.CLOSED:
                raise ConnectionLostError("the subscriber has gone")
            self._heard_at = time.monotonic()
            self._ended_by_client = message.kind != requests.COPY_DATA
            if self._is_waiting and replication.wants_reply(message.body):
                self._ping(wants_reply=False)
            conversation.backend.link.write(message.raw)
            await conversation.backend.link.drain()

    async def _relay(self) -> None:
        while (frame := await self._exchange.frame()) is not None:
            if self._ended_by_client:
                continue
            if frame[0] == replication.XLOG_DATA:
                await self._take(frame)
            elif frame[0] == replication.KEEPALIVE:
                if not self._in_transaction:
                    self._settled_end = max(self._settled_end, replication.keepalive_end(frame))
                await self._send(replication.copy_data(frame))
        await self._exchange.wait()

    async def _take(self, frame: bytes) -> None:
        """Take one message of pgoutput."""
        kind = frame[XLOG_HEADER_SIZE]
        if kind in (messages.BEGIN, messages.BEGIN_PREPARE):
            self._commit = LedgerEntry.begun(frame[XLOG_HEADER_SIZE:])
            self._begin = [replication.copy_data(frame)]
            if kind == messages.BEGIN_PREPARE:
                await self._open()
        elif kind == messages.ORIGIN:
            self._begin.append(replication.copy_data(frame))
        elif kind == messages.MESSAGE:
            await self._take_message(frame)
        elif kind in (messages.COMMIT, messages.PREPARE):
            await self._end_transaction(frame)
        elif kind in _AS_THEY_ARE:
            self._thread.submit(self._published.prepared_ended)
            await self._send(replication.copy_data(frame))

    async def _take_message(self, frame: bytes) -> None:
        transactional = frame[XLOG_HEADER_SIZE + 1] == 1
        prefix_end = frame.index(b"\0", _PREFIX_AT)
        prefix = frame[_PREFIX_AT:prefix_end]
        if prefix in _OWN_PREFIXES:
            if transactional and prefix == RECORD_PREFIX.encode() and self._commit is not None:
                self._record_lsn = replication.parse_xlog_header(frame).start
                self._commit.add(frame[prefix_end + 5 :])  # after the zero byte and the length
        elif self._wants_messages:
            if transactional:
                await self._open()
            await self._send(replication.copy_data(frame))

    async def _end_transaction(self, frame: bytes) -> None:
        header = replication.parse_xlog_header(frame)
        commit, self._commit = self._commit, None
        if commit is not None and commit.xid:  # it has a record, or changes definitions
            at = XLogHeader(self._record_lsn, self._record_lsn, header.time)
            await self._expand(self._published.expand(commit, at))
        self._settled_end = max(self._settled_end, header.end)
        if self._in_transaction:
            self._in_transaction = False
            await self._send(replication.copy_data(frame))
            reach(Failpoint.PUBLISH_COMMIT_SENT)
        elif not self._exchange.is_behind:
            await self._send(replication.keepalive(header.end, header.time))
        self._begin = []

    async def _expand(self, pieces: Iterator[bytes]) -> None:
        loop = asyncio.get_running_loop()
        self._expanding = True
        while (piece := await loop.run_in_executor(self._thread, next, pieces, None)) is not None:
            if self._ended_by_client:
                break
            await self._open()
            await self._send(piece)
            reach(Failpoint.PUBLISH_PIECE_SENT)
        self._expanding = False

    async def _open(self) -> None:
        """Send what begins the transaction, if it has not been."""
        if not self._in_transaction:
            self._in_transaction = True
            await self._send(b"".join(self._begin))

    async def _send(self, frames: bytes) -> None:
        if self._ended_by_client:
            return
        self._sent_at = time.monotonic()
        self._client.write(frames)
        await self._client.drain()

    @property
    def _is_waiting(self) -> bool:
        """Whether what the walsender says would not reach the subscriber now."""
        return self._expanding or self._exchange.is_behind

    async def _keep_alive(self) -> None:
        """Ping the subscriber while the walsender's pings wait; raises when it says nothing."""
        pause = min(HEARTBEAT, self._timeout / 4) if self._timeout else HEARTBEAT
        while True:
            await asyncio.sleep(pause)
            if not self._is_waiting or self._ended_by_client:
                continue
            now = time.monotonic()
            if self._timeout and now - self._heard_at >= self._timeout + pause:
                # WalSndCheckTimeOut, walsender.c
                raise ConnectionLostError(
                    "terminating walsender process due to replication timeout"
                )
            if now - min(self._sent_at, self._heard_at) >= pause:
                self._ping(wants_reply=True)

    def _ping(self, *, wants_reply: bool) -> None:
        now = time.time_ns() // 1000 - POSTGRES_EPOCH_US
        self._sent_at = time.monotonic()
        self._client.write(replication.keepalive(self._settled_end, now, wants_reply=wants_reply))


def end_messages(exchange: StreamExchange) -> bytes:
    """What the walsender said at the end, but for ReadyForQuery and what began the stream."""
    ending = (responses.COPY_DONE, responses.COMMAND_COMPLETE)
    return b"".join(each.raw for each in exchange.kept if each.kind in ending)
