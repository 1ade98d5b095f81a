# SPDX-License-Identifier: Apache-2.0
"""Maintenance: keeps small files and deletion vectors from piling up (lake/compact.py).

In:   the tables of the lake whose version has moved since the last look.
Out:  commits of purpose ``optimize``, which change no data and have no rows to publish.

A rewrite runs without a lock; the swap holds the table's lock for some milliseconds, as a batch of
apply does.  A crash before the swap's COMMIT leaves a file that nothing names, or a head that the
next writer restores away.
"""

from __future__ import annotations

import logging
import threading

from penstock.control.catalog import committed_versions, lake_tables
from penstock.control.commits import begin_commit
from penstock.control.connect import ControlConnection, connect
from penstock.errors import ObjectInUseError, TableStateError, WrongStateError
from penstock.failpoints import Failpoint, reach
from penstock.lake.compact import discard, groups, rewrite, swap
from penstock.lake.log import data_files
from penstock.workers.context import WorkerContext
from penstock.workers.writing import lock_settled

log = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between two looks: at most so many batches' files wait beyond a tier's eight."""


def maintain(context: WorkerContext, stopping: threading.Event) -> None:
    """Look at the tables every INTERVAL until told to stop."""
    seen: dict[int, int | None] = {}
    with connect(context.control, application_name="penstock maintenance") as conn:
        while not stopping.wait(INTERVAL):
            for relid, version in committed_versions(conn).items():
                if seen.get(relid) != version and not stopping.is_set():
                    compact_table(context, conn, relid, stopping)
                    seen[relid] = version


def compact_table(
    context: WorkerContext, conn: ControlConnection, relid: int, stopping: threading.Event
) -> None:
    """Write anew what is worth it in one table."""
    root = context.settings.lake_path
    table = lake_tables(conn, [relid], root).get(relid)
    if table is None or table.version is None:
        return
    for sources in groups(data_files(table.location, table.version).values()):
        if stopping.is_set():
            return
        made = rewrite(table, sources)
        try:
            with begin_commit(conn, "optimize", root) as commit:
                [now] = lock_settled(context.spark.session, commit, [relid]).values()
                version = swap(now, made, commit.metadata)
                if version is not None:
                    commit.moved(now, version, [], "optimize", now.sole_writer)
                reach(Failpoint.OPTIMIZE_BEFORE_COMMIT)
        except (WrongStateError, TableStateError, ObjectInUseError) as error:
            # Dropped meanwhile, or with a head that cannot be settled: the others need not wait.
            log.info('table "%s.%s" is not compacted: %s', table.schema, table.name, error)
            discard(table, made)
            return
        log.debug(
            'table "%s.%s": %d files became one of %d rows',
            table.schema,
            table.name,
            len(sources),
            len(made.row),
        )
