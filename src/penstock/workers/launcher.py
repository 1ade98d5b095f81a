# SPDX-License-Identifier: Apache-2.0
"""The launcher: one apply worker for each enabled subscription, as pg_subscription says.

It looks at pg_subscription when the front door wakes it, and once a second anyway.  A
subscription whose row changed gets a new worker, as in PostgreSQL (maybe_reread_subscription).
``stop`` holds a subscription's workers stopped until ``wake``: DROP and ALTER SUBSCRIPTION need
the slot and the origin free.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
import time
from pathlib import Path

import psycopg

from penstock.control.catalog import Subscription, subscriptions
from penstock.control.connect import connect
from penstock.errors import ConnectionLostError
from penstock.workers.context import WorkerContext
from penstock.workers.reporting import WorkerReport
from penstock.workers.subscription import SubscriptionWorker

log = logging.getLogger(__name__)

LOOK_AGAIN = 1.0
"""Seconds between two looks at pg_subscription without a wake: what other sessions changed."""


class Launcher:
    """Starts and stops apply workers; the front door's ``Subscriptions``."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._workers: dict[int, SubscriptionWorker] = {}
        self._held: set[str] = set()
        self._unremoved: set[Path] = set()
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="launcher", daemon=True)

    def start(self) -> None:
        """Begin to look at pg_subscription."""
        self._thread.start()

    def shut_down(self, timeout: float) -> bool:
        """Stop the launcher and its workers; whether all had ended after ``timeout`` seconds."""
        self._stopping.set()
        self._changed.set()
        self._thread.join()
        with self._lock:
            workers = list(self._workers.values())
        for worker in workers:
            worker.request_stop()
        deadline = time.monotonic() + timeout
        for worker in workers:
            worker.join(max(0.0, deadline - time.monotonic()))
        return not any(worker.running for worker in workers)

    async def stop(self, name: str) -> None:
        """Stop the workers of a subscription and keep them stopped until ``wake``."""
        await asyncio.to_thread(self._stop_and_hold, name)

    def wake(self, name: str) -> None:
        """Look at pg_subscription again; this subscription is held stopped no longer."""
        with self._lock:
            self._held.discard(name)
        self._changed.set()

    def reports(self) -> list[WorkerReport]:
        """What the workers are doing, for pg_stat_subscription."""
        with self._lock:
            workers = list(self._workers.values())
        return [report for worker in workers for report in worker.reports()]

    def _stop_and_hold(self, name: str) -> None:
        with self._lock:
            self._held.add(name)
            workers = [w for w in self._workers.values() if w.subscription.name == name]
        for worker in workers:
            worker.request_stop()
        for worker in workers:
            worker.join(None)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._look()
            except (ConnectionLostError, psycopg.OperationalError) as error:
                log.warning("the launcher lost the control database: %s", error)
                self._stopping.wait(LOOK_AGAIN)

    def _look(self) -> None:
        with connect(self._context.control, application_name="penstock launcher") as connection:
            while not self._stopping.is_set():
                self._changed.clear()
                self._reconcile(subscriptions(connection))
                self._changed.wait(LOOK_AGAIN)

    def _reconcile(self, wanted: list[Subscription]) -> None:
        enabled = {s.oid: s for s in wanted if s.enabled and s.slot_name is not None}
        with self._lock:
            for oid, worker in list(self._workers.items()):
                if enabled.get(oid) != worker.subscription:
                    worker.request_stop()
                if not worker.running:
                    del self._workers[oid]
            kept = {s.oid for s in wanted} | self._workers.keys()
            remove_staging(self._context.settings.staging_path, kept, self._unremoved)
            for oid, subscription in enabled.items():
                if oid not in self._workers and subscription.name not in self._held:
                    log.info('starting the apply worker of subscription "%s"', subscription.name)
                    self._workers[oid] = SubscriptionWorker(self._context, subscription)
                    self._workers[oid].start()


def remove_staging(staging: Path, kept: set[int], reported: set[Path]) -> None:
    """Remove what was staged for subscriptions other than these, which do not exist any more.

    A folder that cannot be removed is logged, once: ``reported`` keeps it; the next look tries it
    again.
    """
    for folder in staging.iterdir():
        if folder.name.isdecimal() and int(folder.name) not in kept:
            try:
                shutil.rmtree(folder)
            except OSError as error:
                if folder not in reported:
                    reported.add(folder)
                    log.warning("could not remove the staging folder %s: %s", folder, error)
