# SPDX-License-Identifier: Apache-2.0
"""Receive the stream of one subscription, and confirm what is durable.

In:   a slot on a publisher; how far apply is.
Out:  segments in the staging log; status updates to the publisher.

    STARTING --(contract holds, stream begun)--> STREAMING --(stop)----> STOPPED
        `--(an error)--> FAILED                      `--(an error)-----> FAILED

Two threads.  The receiving thread owns the connection: it reads frames, answers keepalives at
once, sends status updates, and does nothing that can take long.  The staging thread (stager.py)
decodes and writes.  A queue of bounded size is between them; while it is full the receiving thread
reads nothing, but still sends status updates, so the publisher does not drop the connection.

    trace   B C(end 0/28) received   write 0/28  flush 0/10  apply 0/10
            segment on disk          write 0/28  flush 0/28  apply 0/10
            applied                  write 0/28  flush 0/28  apply 0/28
            keepalive 0/90           write 0/90  flush 0/90  apply 0/90   (0/90 recorded first)

A receiver is one connection: after its end another is made.  What was received and not staged is
sent again by the publisher then.  Large transactions come while they are in progress when the
subscription has ``streaming``; they are spooled until their end (streamed.py).

A publication that does not exist any more ends the stream: PostgreSQL 18 only warns, inside the
stream, and goes on without its rows.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

import psycopg
from psycopg import pq

from penstock.change.mapping import TYPED, ValueMapping
from penstock.client.chunks import QUEUE_LIMIT, ChunkBuilder, ChunkQueue
from penstock.client.connection import answers_within, open_publisher
from penstock.client.contract import check_contract
from penstock.client.feedback import (
    Keepalive,
    Progress,
    moment,
    parse_keepalive,
    status_update,
)
from penstock.client.frames import Read, unframe
from penstock.client.stager import Decoding, Stager
from penstock.client.value_forms import publisher_forms
from penstock.client.walsender import (
    end_replication,
    notice_error,
    notice_text,
    start_replication,
    stream_error,
)
from penstock.errors import ConnectionLostError
from penstock.failpoints import Failpoint, reach
from penstock.lsn import format_lsn
from penstock.pgoutput.forms import Form
from penstock.staging.log import StagingLog

log = logging.getLogger(__name__)

ADVANCE_PAUSE = 0.2
"""Seconds between two recorded positions of an idle publisher, unless it asks: each is an fsync."""

PAUSED_STATUS = 0.5
"""Seconds between status updates while nothing is read, since a request for one is not seen."""

TLS_LOOK = 0.02
"""Seconds.  TLS may hold back the rest of a large message, of which poll does not know."""

FEW_FRAMES = 32
GATHER_ABOVE = 64 * 1024
GATHER = 0.002
"""A publisher sends row by row.  When a read brings few frames of a transaction of more than so
many bytes, or what was read before still waits for the stager, the receiver waits so many seconds
before the next read: a third of the CPU, same speed, and sending costs the publisher less."""


class ReceiverState(StrEnum):
    """Where a receiver is; the module's docstring has the transitions."""

    STARTING = "starting"
    STREAMING = "streaming"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class StreamOptions:
    """What a subscription's stream is; times are seconds, ``queue_limit`` bytes.

    ``origin``: any or none.  ``streaming``: off, on or parallel.  ``binary``: ask for values in
    binary form.
    """

    subscription: str
    conninfo: str = field(repr=False)
    slot: str
    publications: Sequence[str]
    origin: str = "any"
    streaming: str = "off"
    binary: bool = False
    mapping: ValueMapping = TYPED
    default_user: str | None = None
    password_required: bool = False
    status_interval: float = 10.0
    timeout: float = 60.0
    queue_limit: int = QUEUE_LIMIT


@dataclass(frozen=True)
class StreamStatus:
    """The stream in the columns of pg_stat_subscription; LSNs are 0 when not known."""

    received_lsn: int
    last_msg_send_time: datetime | None
    last_msg_receipt_time: datetime | None
    latest_end_lsn: int
    latest_end_time: datetime | None


class Receiver:
    """One connection's worth of streaming; ``start``, then ``check`` now and then, then ``stop``.

    ``applied`` gives the end LSN of the last transaction that apply has committed, 0 for none; it
    is called from the receiver's threads.
    """

    def __init__(
        self, options: StreamOptions, staging: StagingLog, applied: Callable[[], int]
    ) -> None:
        self.state = ReceiverState.STARTING
        self._options = options
        self._staging = staging
        self._applied = applied
        self._builder = ChunkBuilder()
        self._queue = ChunkQueue(options.queue_limit)
        decoding = Decoding(options.mapping, self._ask_forms)
        self._stager = Stager(self._queue, staging, applied, self.wake, self._fail, decoding)
        self._progress = Progress(0)
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._wake_lock = threading.Lock()
        self._waking: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="receiver", daemon=True)
        self._times: tuple[int, float, Keepalive | None] = (0, 0.0, None)
        self._last_sent = (0, 0, 0)
        self._sent_at = self._advanced_at = self._received_at = 0.0
        self._asked = False

    def start(self, *, enable_two_phase: bool = False) -> None:
        """Connect, check the start-up contract, begin to stream.

        ``enable_two_phase``: from now on the slot sends transactions at their PREPARE, for good.
        Raises what client.connection and client.contract raise; ObjectInUseError (55006) while
        another connection has the slot.
        """
        self.state = ReceiverState.FAILED  # until the stream has begun
        self._connection = self._open(enable_two_phase)
        self._waking, self._woken = socket.socketpair()
        self._waking.setblocking(False)
        self.state = ReceiverState.STREAMING
        self._stager.start(self._progress.received)
        self._thread.start()

    def stop(self) -> None:
        """End the stream, confirm what is staged, free the slot; returns when that is done."""
        self._stopping.set()
        self.wake()
        if self._thread.ident is not None:
            self._thread.join()

    def check(self) -> None:
        """Raise the error that ended the stream, if one did."""
        if self._error is not None:
            raise self._error

    @property
    def described(self) -> int:
        """How many Relation messages there were until what is staged now (pgoutput/decode.py)."""
        return self._stager.described

    def status(self) -> StreamStatus:
        """What pg_stat_subscription shows now."""
        send_us, receipt, answer = self._times
        return StreamStatus(
            received_lsn=self._progress.received,
            last_msg_send_time=moment(send_us) if receipt else None,
            last_msg_receipt_time=datetime.fromtimestamp(receipt, UTC) if receipt else None,
            latest_end_lsn=answer.wal_end if answer else 0,
            latest_end_time=moment(answer.sent_us) if answer else None,
        )

    def wake(self) -> None:
        """Look at once whether there is something new to confirm: apply has committed."""
        with self._wake_lock:
            if self._waking is not None:
                try:
                    self._waking.send(b"x")
                except BlockingIOError:  # it has been woken often enough
                    return

    # Starting.

    def _open(self, enable_two_phase: bool) -> pq.abc.PGconn:
        options = self._options
        with ExitStack() as on_error:
            connection = open_publisher(
                options.conninfo,
                replication=True,
                application_name=options.subscription,
                default_user=options.default_user,
                password_required=options.password_required,
            )
            on_error.callback(connection.finish)
            with answers_within(connection.socket, options.timeout):
                start = self._begin(connection, enable_two_phase)
            on_error.pop_all()
        log.info(
            'subscription "%s" streams from slot "%s" at %s',
            options.subscription,
            options.slot,
            format_lsn(start),
        )
        return connection

    def _begin(self, connection: pq.abc.PGconn, enable_two_phase: bool) -> int:
        options = self._options
        start = check_contract(
            connection,
            slot=options.slot,
            publications=options.publications,
            staging=self._staging,
            origin_lsn=self._applied(),
        )
        self._staging.forget_open()
        staged = self._staging.segments()
        self._progress = Progress(start, staged[-1].end_lsn if staged else 0)
        connection.notice_handler = self._notice
        start_replication(
            connection,
            options.slot,
            start,
            options.publications,
            options.origin,
            options.streaming,
            binary=options.binary,
            enable_two_phase=enable_two_phase,
        )
        return start

    def _ask_forms(self, oids: Collection[int]) -> Mapping[int, Form]:
        options = self._options
        return publisher_forms(
            oids,
            options.conninfo,
            application_name=options.subscription,
            default_user=options.default_user,
            password_required=options.password_required,
        )

    # The receiving thread.

    def _run(self) -> None:
        try:
            self._stream()
            self._end_stream()
        except psycopg.Error as error:
            self._fail(ConnectionLostError(f"lost the connection to the publisher: {error}"))
        except Exception as error:  # noqa: BLE001 -- check() raises it
            self._fail(error)
        finally:
            self._queue.close()
            self._stager.join()
            self._connection.finish()
            self._close_sockets()
            failed = self._error is not None
            self.state = ReceiverState.FAILED if failed else ReceiverState.STOPPED

    def _stream(self) -> None:
        connection = self._connection
        full, reading = select.poll(), select.poll()
        for poll in (full, reading):
            poll.register(self._woken, select.POLLIN)
        self._received_at = time.monotonic()
        self._send_status()
        while not self._stopping.is_set():
            if self._queue.full:
                self._wait(full, PAUSED_STATUS)
                self._received_at = time.monotonic()
                self._send_status()
                continue
            connection.consume_input()
            frames = self._drain()
            self._send_status_when_due()
            if frames > FEW_FRAMES or (frames and connection.ssl_in_use):
                continue  # TLS may hold back whole messages
            if frames and (self._builder.size >= GATHER_ABOVE or self._queue.waits):
                self._stopping.wait(GATHER)
                continue
            unsent = connection.flush() != 0
            wanted = select.POLLIN | (select.POLLOUT if unsent else 0)
            reading.register(connection.socket, wanted)
            self._wait(reading, self._pause())

    def _drain(self) -> int:
        """Take all whole frames that libpq has; how many there were."""
        get = self._connection.get_copy_data
        frames, ends = bytearray(), array("q")
        size, frame = get(1)
        while size > 0:
            frames += frame
            ends.append(len(frames))
            size, frame = get(1)
        if ends:
            self._received_at = time.monotonic()
            self._asked = False
            # The warning among these frames is about changes that the publisher left out: the
            # keepalive behind it has a position past them, which must not be recorded.
            if self._error is None:
                self._take(unframe(frames, ends))
        if size < 0:
            raise stream_error(self._connection)
        return len(ends)

    def _take(self, read: Read) -> None:
        if self._builder.add(read.messages):
            self._hand_over()
        for keepalive in read.keepalives:
            self._keepalive(keepalive)
        if read.position is not None:
            self._received(*read.position)
            self._hand_over()
        if read.ends_idle:
            self._queue.sent_all()

    def _hand_over(self) -> None:
        chunk = self._builder.cut()
        if chunk is not None:
            reach(Failpoint.STREAM_BYTES_RECEIVED)
            self._queue.put(chunk)

    def _keepalive(self, frame: bytes) -> None:
        keepalive = parse_keepalive(frame)
        self._received(keepalive.wal_end, keepalive.sent_us, keepalive)
        if keepalive.reply:
            self._advance()
            self._send_status()

    def _received(self, position: int, sent_us: int, answer: Keepalive | None = None) -> None:
        progress = self._progress
        progress.received = max(progress.received, position)
        progress.committed = max(progress.committed, self._builder.committed_lsn)
        progress.prepared = max(progress.prepared, self._builder.prepared_lsn)
        progress.inside = self._builder.inside
        self._times = (sent_us, time.time(), answer or self._times[2])

    # Feedback.

    def _send_status_when_due(self) -> None:
        now = time.monotonic()
        if now - self._advanced_at >= ADVANCE_PAUSE:
            self._advance()
        if now - self._received_at >= self._options.timeout:
            raise ConnectionLostError(
                "lost the connection to the publisher: nothing was received for"
                f" {self._options.timeout:g} s (wal_receiver_timeout)"
            )
        ask = not self._asked and now - self._received_at >= self._options.timeout / 2
        due = now - self._sent_at >= self._options.status_interval
        if ask or due or self._positions() != self._last_sent:
            self._send_status(ask=ask)
            self._asked = self._asked or ask

    def _advance(self) -> None:
        """Record an idle publisher's position, so that it may be confirmed."""
        if self._progress.may_advance(self._staging.end_lsn):
            self._staging.advance(self._progress.received)
            self._advanced_at = time.monotonic()

    def _positions(self) -> tuple[int, int, int]:
        return self._progress.positions(self._staging.end_lsn, self._applied())

    def _send_status(self, *, ask: bool = False) -> None:
        positions = self._positions()
        now_us = time.time_ns() // 1000
        self._connection.put_copy_data(status_update(*positions, now_us, ask))
        self._connection.flush()
        self._last_sent = positions
        self._sent_at = time.monotonic()

    # Waiting and ending.

    def _pause(self) -> float:
        """Seconds until there is something to do even if nothing arrives."""
        now = time.monotonic()
        options = self._options
        silence = options.timeout if self._asked else options.timeout / 2
        due = [self._sent_at + options.status_interval, self._received_at + silence]
        if self._progress.may_advance(self._staging.end_lsn):
            due.append(self._advanced_at + ADVANCE_PAUSE)
        if self._builder.inside and self._connection.ssl_in_use:
            due.append(now + TLS_LOOK)
        return max(0.0, min(due) - now)

    def _wait(self, poll: select.poll, seconds: float) -> None:
        # Rounded up: a wait of less than a millisecond would be a loop.
        for descriptor, event in poll.poll(int(seconds * 1000) + 1):
            if descriptor == self._woken.fileno():
                self._woken.recv(4096)
            elif event & select.POLLIN:
                # A part of a large row on a slow line is no silence (PostgreSQL's walreceiver
                # counts whole messages, and would never get such a row).
                self._received_at = time.monotonic()
                self._asked = False

    def _end_stream(self) -> None:
        """Confirm what is staged and end the copy mode; the walsender then leaves the slot."""
        self._queue.close()
        self._stager.join()
        self._send_status()
        end_replication(self._connection)

    def _notice(self, notice: pq.abc.PGresult) -> None:
        """A message of the publisher; libpq calls this while it reads."""
        name = self._options.subscription
        log.warning('subscription "%s": the publisher says: %s', name, notice_text(notice))
        error = notice_error(notice)
        if error is not None:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._stopping.set()
        self.wake()

    def _close_sockets(self) -> None:
        with self._wake_lock:
            if self._waking is not None:
                self._waking.close()
                self._woken.close()
                self._waking = None
