# SPDX-License-Identifier: Apache-2.0
"""Maintenance: compaction (lake/compact.py), and the removal of what is old (lake/vacuum.py).

In:   the tables of the lake; for compaction those whose version has moved since the last look.
Out:  commits of purpose ``optimize``, which change no data and have no rows to publish; and fewer
      files on disk.

A rewrite runs without a lock; the swap holds the table's lock for some milliseconds, as a batch of
apply does.  A crash before the swap's COMMIT leaves a file that nothing names, or a head that the
next writer restores away.

A removal holds the table's lock from the settling of its head to its end: no batch is under way,
and the committed version is the head, whose files stay.  So do those that a slot's subscriber may
yet be told of (control/retention.py), which is looked up before the lock is taken.  It runs on this
thread, so no rewrite waits for its swap; while an initial copy writes files into a table, nothing
is removed from it.  Another program's uncommitted files are safe for as long as the retention, as
Delta says.

A table that a client's transaction has locked, perhaps a prepared one for days, is left alone after
LOCK_TIMEOUT, and the others are seen to.
"""

from __future__ import annotations

import logging
import threading
import time

from psycopg.errors import LockNotAvailable

from penstock.control.catalog import committed_versions, lake_tables
from penstock.control.commits import begin_commit
from penstock.control.connect import ControlConnection, connect
from penstock.control.definitions import forget_definitions
from penstock.control.retention import forgettable, needed_by_slots
from penstock.errors import (
    ConcurrentWriteError,
    ObjectInUseError,
    PenstockError,
    TableStateError,
    WrongStateError,
)
from penstock.failpoints import Failpoint, reach
from penstock.lake.compact import discard, groups, rewrite, swap
from penstock.lake.dropped import remove_dropped
from penstock.lake.key_index import remove_unneeded
from penstock.lake.log import data_files
from penstock.lake.vacuum import clean_log, expired_files, needed_files, remove_files
from penstock.workers.context import WorkerContext
from penstock.workers.writing import lock_settled

log = logging.getLogger(__name__)

_COPIED = """
SELECT FROM pg_subscription_rel WHERE srsubstate = 'd' AND (srrelid = %(relid)s::oid
    OR srrelid IN (SELECT relid FROM pg_partition_ancestors(%(relid)s::oid::regclass) relid))"""

DEFINITIONS_KEPT_DAYS = 7.0
"""What publications and tables were is known for so long without a slot, as Delta keeps files."""

INTERVAL = 5.0
"""Seconds between two looks: at most so many batches' files wait beyond a tier's eight."""


LOCK_TIMEOUT = 5
"""Seconds that one table's lock is waited for."""


def maintain(context: WorkerContext, stopping: threading.Event) -> None:
    """Look at the tables every INTERVAL until told to stop."""
    seen: dict[int, int | None] = {}
    settings = context.settings
    look_at = time.monotonic()
    with connect(context.control, application_name="penstock maintenance") as conn:
        conn.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}s'".encode())
        while not stopping.wait(INTERVAL):
            for relid, version in committed_versions(conn).items():
                if seen.get(relid) != version and not stopping.is_set():
                    compact_table(context, conn, relid, stopping)
                    seen[relid] = version
            if time.monotonic() >= look_at:
                remove_old(context, conn, stopping)
                look_at = time.monotonic() + settings.autovacuum_naptime


def remove_old(context: WorkerContext, conn: ControlConnection, stopping: threading.Event) -> None:
    """Remove all that neither a slot nor a retention needs: files, folders, definitions."""
    try:
        needed = needed_by_slots(conn)
    except ObjectInUseError as error:
        log.warning("nothing old is removed: %s", error)
        return
    remove_dropped(conn, context.settings.lake_path, needed.dropped)
    forget_definitions(conn, forgettable(conn, needed, DEFINITIONS_KEPT_DAYS))
    if context.settings.autovacuum:
        for relid, needed_from in needed.versions.items():
            if not stopping.is_set():
                vacuum_table(context, conn, relid, needed_from)


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
        try:
            made = rewrite(table, sources)
        except OSError as error:  # another program's VACUUM
            log.warning('table "%s.%s" is not compacted: %s', table.schema, table.name, error)
            return
        try:
            with begin_commit(conn, "optimize", root) as commit:
                [now] = lock_settled(context.spark.session, commit, [relid]).values()
                version = swap(now, made, commit.metadata)
                if version is not None:
                    commit.moved(now, version, [], "optimize", now.sole_writer)
                reach(Failpoint.OPTIMIZE_BEFORE_COMMIT)
        except (
            WrongStateError,
            TableStateError,
            ObjectInUseError,
            ConcurrentWriteError,
            LockNotAvailable,
        ) as error:
            # Dropped, written or locked meanwhile, or with a head that cannot be settled: the
            # others need not wait.
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


def vacuum_table(
    context: WorkerContext, conn: ControlConnection, relid: int, needed_from: int
) -> None:
    """Remove files and log entries of one table that no version from ``needed_from`` on needs.

    Nor any that is within the table's retention.
    """
    root = context.settings.lake_path
    table = lake_tables(conn, [relid], root).get(relid)
    if table is None or table.version is None:
        return
    try:
        needed = needed_files(table.location, needed_from, table.version)
        with begin_commit(conn, "vacuum", root) as commit:
            [now] = lock_settled(context.spark.session, commit, [relid]).values()
            if conn.execute(_COPIED, {"relid": relid}).fetchone() is not None:
                log.debug('table "%s.%s" is not vacuumed: it is copied', now.schema, now.name)
                return
            assert now.version is not None  # a version is never taken away
            needed |= needed_files(now.location, table.version, now.version)
            expired = expired_files(now, needed)
            if expired:
                remove_files(now, expired)
            remove_unneeded(now)
            cleaned = clean_log(now, needed_from)
    except (PenstockError, OSError, LockNotAvailable) as error:
        log.warning('table "%s.%s" is not vacuumed: %s', table.schema, table.name, error)
        return
    if expired or cleaned:
        log.info(
            'table "%s.%s": %d files that nobody needs are removed%s',
            table.schema,
            table.name,
            len(expired),
            ", and old log entries" if cleaned else "",
        )
