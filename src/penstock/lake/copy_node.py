# SPDX-License-Identifier: Apache-2.0
"""Ranges of an initial copy, read by the node itself: most copies are small.

One thread and one connection read one pack after the other.  Reading a table of some MB takes
less time than a Spark job needs to begin.

A thread cannot be killed as a task can.  So it is ended by the publisher, which is asked to cancel
the statement; a publisher that does not answer at all keeps the thread, which ends with its
connection, and nobody waits for it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc

from penstock.lake.copy import LOOK_AGAIN, Job, Pack
from penstock.lake.copy_range import copy_ranges
from penstock.lake.copy_source import Ahead, Source, reading_once
from penstock.threads import beside

CANCELS = 10
"""How often the publisher is asked to cancel before the thread is left alone, each LOOK_AGAIN."""

log = logging.getLogger(__name__)


class NodeReader:
    """One pack at a time, on a connection that was made ahead; see ``Readers``."""

    def __init__(self, source: Source, ahead: Ahead) -> None:
        self._source = source
        self._ahead = ahead
        self._ended = threading.Event()
        self._cursor: adbc.Cursor | None = None
        self._in_use = threading.Lock()
        """Held while the cursor is cancelled, so that it is not closed meanwhile."""
        self._reading: Future[None] = Future()

    def start(self, packs: Sequence[Pack], prefix: str) -> Sequence[Job]:
        """Begin to read."""
        jobs: list[Job] = [Future() for _ in packs]
        self._reading = beside(partial(self._run, packs, jobs, prefix), "copy")
        self._reading.add_done_callback(partial(_fail_next, jobs))
        return jobs

    def end(self) -> None:
        """Have the statement cancelled, again and again: it may be between two of them."""
        self._ended.set()
        for _ in range(CANCELS):
            if self._cursor is not None:
                # The request has a connection of its own, which may not be answered either.
                threading.Thread(target=self._cancel, name="copy cancel", daemon=True).start()
            if not wait([self._reading], LOOK_AGAIN).not_done:
                return
        log.info("the publisher does not let go of the initial copy's connection")

    def _run(self, packs: Sequence[Pack], jobs: Sequence[Job], prefix: str) -> None:
        with reading_once(self._source, self._ahead) as cursor:
            for pack, job in zip(packs, jobs, strict=True):
                if self._ended.is_set():
                    return
                with self._cancellable(cursor):
                    copied = copy_ranges(cursor, pack, prefix, self._source.last_change)
                job.set_result(copied)

    @contextlib.contextmanager
    def _cancellable(self, cursor: adbc.Cursor) -> Iterator[None]:
        self._cursor = cursor
        try:
            yield
        finally:
            with self._in_use:
                self._cursor = None

    def _cancel(self) -> None:
        if self._in_use.acquire(blocking=False):
            try:
                if self._cursor is not None:
                    self._cursor.adbc_cancel()
            except adbc_driver_manager.Error:  # the connection is gone: the thread sees it, too
                return
            finally:
                self._in_use.release()


def _fail_next(jobs: Sequence[Job], reading: Future[None]) -> None:
    """The error that ended the reading is that of the job which it was at."""
    error = reading.exception()
    job = next((job for job in jobs if not job.done()), None)
    if error is not None and job is not None:
        job.set_exception(error)
