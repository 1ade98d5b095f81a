# SPDX-License-Identifier: Apache-2.0
"""The table syncs of a subscription: one at a time, and what fails alone.

In:   the states of the subscription's tables, again and again.
Out:  runs of the copy (workers/table_sync.py), and the errors that ended them.

All tables that need a copy are copied by one run, under one snapshot.  In PostgreSQL each has a
worker of its own, so one that fails holds up neither the others nor the stream; therefore

    tables of a run that failed         get a run of their own each, as it may be anybody's error
    a table whose own run failed        is tried again after wal_retrieve_retry_interval

and only a lost connection is the attempt's error, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import psycopg

from penstock.control.catalog import Subscription, SubscriptionRelation
from penstock.control.table_state import NEEDS_COPY
from penstock.errors import ConnectionLostError, PenstockError
from penstock.workers.context import WorkerContext
from penstock.workers.reporting import WorkerReport
from penstock.workers.table_sync import TableSync


class TableSyncs:
    """Starts runs and takes note of their ends; ``moved`` is called when a table is in."""

    def __init__(
        self, context: WorkerContext, subscription: Subscription, moved: Callable[[], None]
    ) -> None:
        self._context = context
        self._subscription = subscription
        self._moved = moved
        self._run: TableSync | None = None
        self._alone: dict[int, float] = {}  # when to try again, in time.monotonic()

    @property
    def idle(self) -> bool:
        """Whether nothing is copied, and nothing waits to be tried again."""
        return self._run is None and not self._alone

    @property
    def held_position(self) -> int | None:
        """Staging is needed from here on by the run; None without one."""
        return None if self._run is None else self._run.held_position

    def end(self) -> PenstockError | psycopg.Error | None:
        """Take note of a run that has ended; its error, if one of a table ended it.

        ConnectionLostError and psycopg.OperationalError are raised.
        """
        run = self._run
        if run is None or run.running:
            return None
        self._run = None
        try:
            run.raise_error()
        except (ConnectionLostError, psycopg.OperationalError):
            raise
        except (PenstockError, psycopg.Error) as error:
            left = run.relids
            pause = self._context.settings.wal_retrieve_retry_interval if len(left) == 1 else 0
            self._alone |= dict.fromkeys(left, time.monotonic() + pause)
            return error
        return None

    def start(self, states: Sequence[SubscriptionRelation], held_position: int) -> None:
        """Start a run when tables need one and none runs."""
        if self._run is not None:
            return
        waiting = [table for table in states if table.state in NEEDS_COPY]
        relids = {table.relid for table in waiting}
        self._alone = {relid: at for relid, at in self._alone.items() if relid in relids}
        tables = [table for table in waiting if table.relid not in self._alone]
        if not tables:
            now = time.monotonic()
            tables = [table for table in waiting if self._alone[table.relid] <= now][:1]
        if tables:
            self._run = TableSync(
                self._context, self._subscription, tables, held_position, self._moved
            )
            self._run.start()

    def stop(self) -> None:
        """Cancel what runs, if it does; tables that are not in stay in state d."""
        if self._run is not None:
            self._run.stop()
            self._run = None

    def reports(self) -> list[WorkerReport]:
        """A row for each table that is copied now."""
        run = self._run
        return [] if run is None else run.reports()
