# SPDX-License-Identifier: Apache-2.0
"""The apply worker of one subscription: receiver, table sync, hand-over, apply, trim.

In:   the subscription's row, its tables' states, the staged changes.
Out:  lake commits; the origin's position; table states; the error that stopped it, if one did.

An attempt connects, checks the start-up contract, starts the receiver, and then goes round:

    1  tables in i or d          start a table sync (table_syncs.py)
    2  a table in f              catch up to the stream's position: state s
    3  a table in s, passed      state r
    4  staged segments           apply a batch, which advances the origin
    5  segments nobody needs     trim

What is durable is durable in the control database (states, position) or in staging; an attempt
keeps nothing that the next one does not find again.  An error ends the attempt: it is logged and
recorded (failures.py), and after a pause a new attempt begins, unless it disabled the subscription.
Only a table that cannot be copied is no reason to end it (table_syncs.py), and a change that cannot
be applied is no reason to end a copy: that goes on while attempts fail.

When a change of a batch cannot be applied, the transactions before its own are, as PostgreSQL would
have; the next attempt tries that transaction alone, not together with all that waits behind it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime

from penstock.apply.batch import TableBatch
from penstock.apply.failing import CHANGE_ERRORS, FailedChangeError, first_commit
from penstock.client.receiver import Receiver, ReceiverState, StreamOptions
from penstock.control.catalog import (
    Subscription,
    SubscriptionRelation,
    origin_progress,
    skip_lsn,
    subscription_relations,
    two_phase_enabled,
)
from penstock.control.connect import ControlConnection, connect
from penstock.control.table_state import TableState
from penstock.lsn import format_lsn
from penstock.staging.log import StagingLog
from penstock.sync.work import (
    Batch,
    QualifiedName,
    catch_up_work,
    stream_work,
    take,
    trim_position,
)
from penstock.workers.apply import Applier
from penstock.workers.conflicts import log_conflict
from penstock.workers.context import WorkerContext
from penstock.workers.failures import (
    Stage,
    add_context,
    forget_error,
    report_error,
)
from penstock.workers.reporting import WorkerReport, lsn_text
from penstock.workers.retry import Backoff
from penstock.workers.row_values import RowValues
from penstock.workers.table_syncs import TableSyncs

log = logging.getLogger(__name__)

LOOK_AGAIN = 0.5
"""Seconds between two looks at the tables' states while nothing arrives and nobody wakes us."""

PASSING = 0.02
"""The same while a copied table waits for the stream to pass its LSN: keepalives bring that."""

STREAMING = {"f": "off", "t": "on", "p": "parallel"}
"""What pg_subscription.substream stands for."""


class SubscriptionWorker:
    """Runs one subscription, as its row was when the worker was made, until asked to stop."""

    def __init__(self, context: WorkerContext, subscription: Subscription) -> None:
        self.subscription = subscription
        self._context = context
        self._stopping = threading.Event()
        self._attempt: Attempt | None = None
        self._syncs = TableSyncs(context, subscription, self._wake)
        self._suspect_lsn = 0
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
        self._wake()

    def join(self, timeout: float | None) -> None:
        """Wait until it has ended and holds neither slot nor origin."""
        self._thread.join(timeout)

    def reports(self) -> list[WorkerReport]:
        """Its rows in pg_stat_subscription; none while there is no stream."""
        attempt = self._attempt
        return [] if attempt is None else attempt.reports()

    def _wake(self) -> None:
        attempt = self._attempt
        if attempt is not None:
            attempt.wake()

    def _run(self) -> None:
        backoff = Backoff(self._context.settings.wal_retrieve_retry_interval)
        while not self._stopping.is_set():
            try:
                self._attempt = Attempt(
                    self._context,
                    self.subscription,
                    self._stopping,
                    self._syncs,
                    self._suspect_lsn,
                )
                self._attempt.run(backoff)
            except Exception as error:  # noqa: BLE001  # logged, recorded, shown in status
                if not isinstance(error, (FailedChangeError, *CHANGE_ERRORS)):
                    self._syncs.stop()
                self._failed(error, backoff)
            finally:
                self._attempt = None
        self._syncs.stop()
        log.info('the apply worker of subscription "%s" has stopped', self.subscription.name)

    def _failed(self, error: Exception, backoff: Backoff) -> None:
        stage = Stage.CONNECT if self._attempt is None else self._attempt.stage
        if isinstance(error, FailedChangeError):
            if error.conflict is not None:
                log_conflict(self.subscription.origin_name, *error.conflict)
            self._suspect_lsn = error.change.commit_lsn
        if report_error(self._context.control, self.subscription, error, stage):
            log.info(
                'subscription "%s" has been disabled because of an error', self.subscription.name
            )
            self._stopping.set()
            return
        self._stopping.wait(backoff.pause_after(error))


class Attempt:
    """One connection to the publisher, and what is done while it holds.

    ``stage`` is what it is at.  ``syncs`` may have a run that an earlier attempt has begun.
    ``suspect_lsn`` is the commit LSN of the transaction that the last one could not apply, or 0.
    """

    def __init__(
        self,
        context: WorkerContext,
        subscription: Subscription,
        stopping: threading.Event,
        syncs: TableSyncs,
        suspect_lsn: int,
    ) -> None:
        self.stage = Stage.CONNECT
        self._suspect_lsn = suspect_lsn
        self._context = context
        self._subscription = subscription
        self._stopping = stopping
        self._staging = StagingLog(context.settings.staging_path / str(subscription.oid))
        self._applied = 0
        self._receiver = Receiver(
            _stream_options(context, subscription), self._staging, lambda: self._applied
        )
        self._syncs = syncs
        self._failed_before = True
        self._passing = False
        self._pid = threading.get_native_id()

    def run(self, backoff: Backoff) -> None:
        """Go round until asked to stop; raises what ended it."""
        name = self._subscription.name
        with (
            connect(self._context.control, application_name=name) as connection,
            closing(RowValues(self._context.control)) as values,
        ):
            self._applied = origin_progress(connection, self._subscription.origin_name)
            applier = Applier(
                self._context,
                self._subscription,
                connection,
                values,
                lambda: self._receiver.described,
            )
            enable_two_phase = self._may_enable_two_phase(connection)
            self._receiver.start(enable_two_phase=enable_two_phase)
            try:
                backoff.reset()
                applier.begin()
                if enable_two_phase:
                    two_phase_enabled(connection, self._subscription.oid)
                while not self._stopping.is_set():
                    self._check_receiver()
                    if not enable_two_phase and self._may_enable_two_phase(connection):
                        log.info('the stream of "%s" begins again to enable two_phase', name)
                        return
                    did = self._round(connection, applier)
                    if self._failed_before and self._syncs.idle:
                        forget_error(connection, self._subscription.oid)
                        self._failed_before = False
                    if not did:
                        pause = PASSING if self._passing else LOOK_AGAIN
                        self._staging.wait(self._applied, pause)
            finally:
                self._receiver.stop()

    def wake(self) -> None:
        """Look at once at the tables' states, and at whether to stop."""
        self._staging.wake()

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
        return [apply, *self._syncs.reports()]

    def _check_receiver(self) -> None:
        """Raise what ended the stream; a value that cannot be held is an error of apply."""
        self.stage = Stage.CONNECT
        try:
            self._receiver.check()
        except CHANGE_ERRORS:
            self.stage = Stage.APPLY
            raise

    def _may_enable_two_phase(self, connection: ControlConnection) -> bool:
        """Whether two_phase is pending and every table is ready, as in PostgreSQL (worker.c)."""
        if self._subscription.two_phase != "p":
            return False
        states = subscription_relations(connection, self._subscription.oid)
        return bool(states) and all(table.state is TableState.READY for table in states)

    def _round(self, connection: ControlConnection, applier: Applier) -> bool:
        """Do what there is to do; whether anything was."""
        self._end_sync()  # before the states are read: they must show what it did
        states = subscription_relations(connection, self._subscription.oid)
        self._syncs.start(states, self._staging.end_lsn)
        if self._hand_over(states, applier):
            return True
        did = self._apply(connection, states, applier)
        self._staging.trim(trim_position(self._applied, states, self._syncs.held_position))
        return did

    def _end_sync(self) -> None:
        """Take note of the end of a table sync; its error ends the attempt only if it disables."""
        error = self._syncs.end()
        if error is None:
            return
        self.stage = Stage.SYNC
        if self._subscription.disable_on_error:
            raise error
        report_error(self._context.control, self._subscription, error, self.stage)
        self._failed_before = True

    def _hand_over(self, states: Sequence[SubscriptionRelation], applier: Applier) -> bool:
        """Move copied tables to s and r; whether one moved.

        A copied table (f, LSN C) that missed nothing becomes s at C; one that missed changes is
        caught up, and becomes s at the stream's position.  The stream has passed an s table's LSN
        when it has applied that far, or received that far with nothing left to apply.
        """
        self.stage = Stage.SYNC
        copied = [table for table in states if table.state is TableState.FINISHEDCOPY]
        for table in copied:
            self._catch_up(table, applier)
        idle = not self._staging.segments(self._applied)
        position = max(self._applied, self._staging.end_lsn if idle else 0)
        passing = [table for table in states if table.state is TableState.SYNCDONE]
        ready = [table for table in passing if (table.lsn or 0) <= position]
        self._passing = len(ready) < len(passing)
        for table in ready:
            applier.set_state(table, TableState.READY, table.lsn)
            log.info('table "%s.%s" is ready', table.schema, table.name)
        return bool(copied or ready)

    def _catch_up(self, table: SubscriptionRelation, applier: Applier) -> None:
        missed = catch_up_work(self._staging.segments(), table, self._applied)
        if missed is None:
            applier.set_state(table, TableState.SYNCDONE, max(table.lsn or 0, self._applied))
            return
        work, batch = missed
        log.info('table "%s.%s" catches up', table.schema, table.name)
        try:
            applier.catch_up(table, work, batch, self._applied)
        except FailedChangeError as error:
            self._add_context(error, batch)
            raise

    def _apply(
        self,
        connection: ControlConnection,
        states: Sequence[SubscriptionRelation],
        applier: Applier,
    ) -> bool:
        """Apply or skip what is next, if something is staged."""
        self.stage = Stage.APPLY
        limit = self._context.settings.apply_batch_bytes
        batch = take(self._staging.segments(self._applied), limit, self._applied)
        if batch is None:
            return False
        if self._suspect_lsn >= batch.from_lsn:
            batch = batch.before(self._suspect_lsn + 1) or batch
        skip = skip_lsn(connection, self._subscription.oid)
        if skip and _first_commit(batch) == skip:
            self._skip(batch, skip, applier)
            return True
        known = {(table.schema, table.name): table for table in states}
        self._apply_batch(batch, known, applier, skip)
        return True

    def _skip(self, batch: Batch, lsn: int, applier: Applier) -> None:
        """Leave out the transaction that ALTER SUBSCRIPTION ... SKIP names; it is the next."""
        log.info("logical replication starts skipping transaction at LSN %s", format_lsn(lsn))
        transaction = batch.transaction(lsn)
        applier.skip(transaction)
        self._moved_to(transaction.end_lsn)
        log.info("logical replication completed skipping transaction at LSN %s", format_lsn(lsn))

    def _apply_batch(
        self,
        batch: Batch,
        known: Mapping[QualifiedName, SubscriptionRelation],
        applier: Applier,
        skip: int,
    ) -> None:
        """Apply a batch, or what comes before a change of it that fails.

        As in PostgreSQL, any transaction with a change clears the LSN of ALTER SUBSCRIPTION ...
        SKIP (``skip``, or 0) that is not its own.
        """
        work, unknown = stream_work(batch, known)
        first = _first_commit(batch) if skip else None
        try:
            applier.require_tables(unknown)
            cleared = applier.apply(work, batch, 0 if first is None else skip)
        except FailedChangeError as error:
            self._add_context(error, batch)
            good = batch.before(error.change.commit_lsn)
            if good is not None:
                self._apply_batch(good, known, applier, skip)
            raise
        self._moved_to(batch.position)
        if cleared:
            log.warning(
                'skip-LSN of subscription "%s" cleared\n'
                "DETAIL:  Remote transaction's finish WAL location (LSN) %s did not match"
                " skip-LSN %s.",
                self._subscription.name,
                format_lsn(first or 0),
                format_lsn(skip),
            )
        log.debug(
            'subscription "%s" is at %s (%d segments)',
            self._subscription.name,
            format_lsn(self._applied),
            len(batch.segments),
        )

    def _moved_to(self, position: int) -> None:
        self._applied = position
        self._receiver.wake()

    def _add_context(self, error: FailedChangeError, batch: Batch) -> None:
        transaction = batch.transaction(error.change.commit_lsn)
        add_context(error, self._subscription.origin_name, transaction)


def _first_commit(batch: Batch) -> int | None:
    """The first commit of a batch that has a change; nothing is said about the others."""
    for segment in batch.segments:
        first = first_commit(TableBatch(segment.files, batch.from_lsn, batch.to_lsn))
        if first is not None:
            return first
    return None


def _stream_options(context: WorkerContext, subscription: Subscription) -> StreamOptions:
    assert subscription.slot_name is not None  # the launcher starts no worker without a slot
    return StreamOptions(
        subscription=subscription.name,
        conninfo=subscription.conninfo,
        slot=subscription.slot_name,
        publications=subscription.publications,
        origin=subscription.origin,
        streaming=STREAMING[subscription.streaming],
        binary=subscription.binary,
        mapping=subscription.mapping,
        default_user=context.publisher_user,
        password_required=subscription.password_required,
        status_interval=context.settings.wal_receiver_status_interval,
        timeout=context.settings.wal_receiver_timeout,
    )


def _moment(time_us: int) -> datetime:
    return datetime.fromtimestamp(time_us / 1_000_000, UTC)
