# SPDX-License-Identifier: Apache-2.0
"""The apply worker of one subscription: receiver, table sync, hand-over, apply, trim.

In:   the subscription's row, its tables' states, the staged changes.
Out:  lake commits; the origin's position; table states; the error that stopped it, if one did.

An attempt connects, checks the start-up contract, starts the receiver, and then goes round:

    1  tables in i or d          start a table sync (one at a time, for all of them together)
    2  a table in f              catch up to the stream's position: state s
    3  a table in s, passed      state r
    4  staged segments           apply a batch, which advances the origin
    5  segments nobody needs     trim

What is durable is durable in the control database (states, position) or in staging; an attempt
keeps nothing that the next one does not find again.  Any error ends the attempt: it is logged,
kept in penstock.subscription_error, and after a pause a new attempt begins.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from datetime import UTC, datetime

import psycopg

from penstock.client.receiver import Receiver, ReceiverState, StreamOptions
from penstock.control.catalog import (
    Subscription,
    SubscriptionRelation,
    origin_progress,
    subscription_relations,
)
from penstock.control.connect import ControlConnection, connect
from penstock.control.table_state import NEEDS_COPY, TableState
from penstock.errors import PenstockError
from penstock.lsn import format_lsn
from penstock.staging.log import StagingLog
from penstock.sync.work import catch_up_work, stream_work, take, trim_position
from penstock.workers.apply import Applier
from penstock.workers.context import WorkerContext
from penstock.workers.reporting import WorkerReport, forget_error, lsn_text, record_error
from penstock.workers.retry import Backoff
from penstock.workers.table_sync import TableSync

log = logging.getLogger(__name__)

LOOK_AGAIN = 0.5
"""Seconds between two looks at the tables' states while nothing arrives."""

SYNC_LOOK_AGAIN = 0.05
"""The same while tables are copied: one that is in should be ready soon."""


class SubscriptionWorker:
    """Runs one subscription, as its row was when the worker was made, until asked to stop."""

    def __init__(self, context: WorkerContext, subscription: Subscription) -> None:
        self.subscription = subscription
        self._context = context
        self._stopping = threading.Event()
        self._attempt: Attempt | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"apply {subscription.oid}", daemon=True
        )

    @property
    def running(self) -> bool:
        """Whether the worker's thread is alive."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the worker's thread."""
        self._thread.start()

    def request_stop(self) -> None:
        """Ask it to end after the batch that it is at."""
        self._stopping.set()

    def join(self, timeout: float | None) -> None:
        """Wait until it has ended and holds neither slot nor origin."""
        self._thread.join(timeout)

    def reports(self) -> list[WorkerReport]:
        """Its rows in pg_stat_subscription; none while there is no stream."""
        attempt = self._attempt
        return [] if attempt is None else attempt.reports()

    def _run(self) -> None:
        backoff = Backoff(self._context.settings.wal_retrieve_retry_interval)
        while not self._stopping.is_set():
            try:
                self._attempt = Attempt(self._context, self.subscription, self._stopping)
                self._attempt.run(backoff)
            except Exception as error:  # noqa: BLE001  # logged, recorded, shown in status
                self._failed(error, backoff)
            finally:
                self._attempt = None
        log.info('the apply worker of subscription "%s" has stopped', self.subscription.name)

    def _failed(self, error: Exception, backoff: Backoff) -> None:
        expected = isinstance(error, PenstockError | psycopg.Error)
        log.error(
            'subscription "%s": %s',
            self.subscription.name,
            error,
            exc_info=None if expected else error,
        )
        record_error(self._context.control, self.subscription.oid, error)
        self._stopping.wait(backoff.pause_after(error))


class Attempt:
    """One connection to the publisher, and what is done while it holds."""

    def __init__(
        self, context: WorkerContext, subscription: Subscription, stopping: threading.Event
    ) -> None:
        self._context = context
        self._subscription = subscription
        self._stopping = stopping
        self._staging = StagingLog(context.settings.staging_path / str(subscription.oid))
        self._applied = 0
        self._receiver = Receiver(
            _stream_options(context, subscription), self._staging, lambda: self._applied
        )
        self._sync: TableSync | None = None
        self._pid = threading.get_native_id()

    def run(self, backoff: Backoff) -> None:
        """Go round until asked to stop; raises what ended it."""
        name = self._subscription.name
        with connect(self._context.control, application_name=name) as connection:
            self._applied = origin_progress(connection, self._subscription.origin_name)
            applier = Applier(self._context, self._subscription, connection)
            self._receiver.start()
            try:
                backoff.reset()
                forget_error(connection, self._subscription.oid)
                while not self._stopping.is_set():
                    self._receiver.check()
                    if not self._round(connection, applier):
                        pause = LOOK_AGAIN if self._sync is None else SYNC_LOOK_AGAIN
                        self._staging.wait(self._applied, pause)
            finally:
                self._receiver.stop()
                if self._sync is not None:
                    self._sync.stop()

    def reports(self) -> list[WorkerReport]:
        """This attempt's workers; none while it connects, or when the stream has ended."""
        if self._receiver.state is not ReceiverState.STREAMING:
            return []
        status = self._receiver.status()
        waiting = self._staging.segments(self._applied)
        apply = WorkerReport(
            subid=self._subscription.oid,
            worker_type="apply",
            pid=self._pid,
            received_lsn=lsn_text(status.received_lsn),
            last_msg_send_time=status.last_msg_send_time,
            last_msg_receipt_time=status.last_msg_receipt_time,
            latest_end_lsn=lsn_text(status.latest_end_lsn),
            latest_end_time=status.latest_end_time,
            pending_since=_moment(waiting[0].commit_time_us) if waiting else None,
        )
        sync = self._sync
        return [apply] if sync is None else [apply, *sync.reports()]

    def _round(self, connection: ControlConnection, applier: Applier) -> bool:
        """Do what there is to do; whether anything was."""
        self._end_sync()  # before the states are read: they must show what it did
        states = subscription_relations(connection, self._subscription.oid)
        self._start_sync(states)
        if self._hand_over(states, applier):
            return True
        did = self._apply(states, applier)
        held = self._sync.held_position if self._sync is not None else None
        self._staging.trim(trim_position(self._applied, states, held))
        return did

    def _end_sync(self) -> None:
        """Take note of the end of a table sync; raises the error that ended it."""
        if self._sync is not None and not self._sync.running:
            sync, self._sync = self._sync, None
            sync.raise_error()

    def _start_sync(self, states: Sequence[SubscriptionRelation]) -> None:
        """Start a table sync when tables need one and none runs."""
        waiting = [table for table in states if table.state in NEEDS_COPY]
        if waiting and self._sync is None:
            self._sync = TableSync(
                self._context, self._subscription, waiting, self._staging.end_lsn
            )
            self._sync.start()

    def _hand_over(self, states: Sequence[SubscriptionRelation], applier: Applier) -> bool:
        """Move copied tables to s and r; whether one moved.

        A copied table (f, LSN C) that missed nothing becomes s at C; one that missed changes is
        caught up, and becomes s at the stream's position.  The stream has passed an s table's LSN
        when it has applied that far, or received that far with nothing left to apply.
        """
        copied = [table for table in states if table.state is TableState.FINISHEDCOPY]
        for table in copied:
            work = catch_up_work(self._staging.segments(), table, self._applied)
            if work is None:
                applier.set_state(table, TableState.SYNCDONE, max(table.lsn or 0, self._applied))
            else:
                log.info('table "%s.%s" catches up', table.schema, table.name)
                applier.catch_up(table, work, self._applied)
        idle = not self._staging.segments(self._applied)
        position = max(self._applied, self._staging.end_lsn if idle else 0)
        ready = [
            table
            for table in states
            if table.state is TableState.SYNCDONE and (table.lsn or 0) <= position
        ]
        for table in ready:
            applier.set_state(table, TableState.READY, table.lsn)
            log.info('table "%s.%s" is ready', table.schema, table.name)
        return bool(copied or ready)

    def _apply(self, states: Sequence[SubscriptionRelation], applier: Applier) -> bool:
        """Apply the next batch, if something is staged."""
        segments = take(
            self._staging.segments(self._applied), self._context.settings.apply_batch_bytes
        )
        if not segments:
            return False
        known = {(table.schema, table.name): table for table in states}
        work, unknown = stream_work(segments, known)
        applier.require_tables(unknown)
        applier.apply(work, segments[-1])
        self._applied = segments[-1].end_lsn
        self._receiver.wake()
        log.debug(
            'subscription "%s" is at %s (%d transactions in %d segments)',
            self._subscription.name,
            format_lsn(self._applied),
            sum(segment.transactions for segment in segments),
            len(segments),
        )
        return True


def _stream_options(context: WorkerContext, subscription: Subscription) -> StreamOptions:
    assert subscription.slot_name is not None  # the launcher starts no worker without a slot
    return StreamOptions(
        subscription=subscription.name,
        conninfo=subscription.conninfo,
        slot=subscription.slot_name,
        publications=subscription.publications,
        default_user=context.publisher_user,
        password_required=subscription.password_required,
        status_interval=context.settings.wal_receiver_status_interval,
        timeout=context.settings.wal_receiver_timeout,
    )


def _moment(time_us: int) -> datetime:
    return datetime.fromtimestamp(time_us / 1_000_000, UTC)
