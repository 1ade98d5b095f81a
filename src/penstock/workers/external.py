# SPDX-License-Identifier: Apache-2.0
"""Other programs write the lake's Delta tables, too: their commits are noticed and registered.

In:   Delta logs that are ahead of table_version by commits that are not this node's.
Out:  one control transaction for each such table, with purpose ``external`` and no origin: the
      version, the record of the ranges; the table has no sole writer from then on, so that keys
      that a subscription inserts are looked for.

Until then nobody sees those commits through the node, and no worker writes on top of them: who
finds one while it writes gets ConcurrentWriteError, rolls back, has it registered, and tries again
(``retried``).  Otherwise a loop looks at every table's log each INTERVAL: one file's name a table.

What cannot be registered stops the table (lake/external.py): the loop logs it once, and each
subscription of the table shows it in penstock.subscription_error, until it is mended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

import psycopg

from penstock.change.relation import LakeTable
from penstock.control.catalog import committed_places, lake_tables
from penstock.control.commits import begin_commit, xact_status
from penstock.control.connect import ControlConnection, connect
from penstock.errors import ConcurrentWriteError, ObjectInUseError, PenstockError, WrongStateError
from penstock.failpoints import Failpoint, reach
from penstock.lake.external import register, written_by_another
from penstock.workers.context import WorkerContext

log = logging.getLogger(__name__)

INTERVAL = 2.0
"""Seconds between two looks at the tables' logs."""

LOCK_TIMEOUT = 5
"""Seconds that the loop waits for a table that a client's open transaction has altered."""

ATTEMPTS = 20
"""Attempts of a writer that another program gets in the way of, each time with a commit."""

T = TypeVar("T")

_TABLE_ERROR = """
INSERT INTO penstock.subscription_error (subid, relid, sqlstate, message, detail, hint)
SELECT srsubid, srrelid, %(sqlstate)s, %(message)s, %(detail)s, %(hint)s
FROM pg_subscription_rel WHERE srrelid = %(relid)s::oid
ON CONFLICT (subid, relid) DO UPDATE SET
    (time, sqlstate, message, detail, hint) =
    (clock_timestamp(), excluded.sqlstate, excluded.message, excluded.detail, excluded.hint)"""
_TABLE_WORKS = "DELETE FROM penstock.subscription_error WHERE relid = %s::oid"
_BEGIN = "DELETE FROM penstock.subscription_error WHERE relid <> 0"


def watch(context: WorkerContext, stopping: threading.Event) -> None:
    """Look at all tables every INTERVAL until told to stop."""
    stopped: dict[int, str] = {}
    with connect(context.control, application_name="penstock external writers") as conn:
        conn.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}s'".encode())
        conn.execute(_BEGIN)
        while not stopping.wait(INTERVAL):
            written = written_tables(context, conn)
            for relid in stopped.keys() - {table.relid for table in written}:
                _forget(conn, relid, stopped)  # a writer was quicker to register what mended it
            for table in written:
                if not stopping.is_set():
                    _take_note(context, conn, table, stopped)


def _take_note(
    context: WorkerContext, conn: ControlConnection, table: LakeTable, stopped: dict[int, str]
) -> None:
    """Register one table's commits; ``stopped`` has what was logged about tables that cannot."""
    try:
        register_table(context, conn, table.relid)
    except (ConcurrentWriteError, ObjectInUseError, psycopg.errors.LockNotAvailable) as error:
        log.debug('table "%s.%s" is looked at again: %s', table.schema, table.name, error)
    except PenstockError as error:
        if stopped.get(table.relid) != str(error):
            stopped[table.relid] = str(error)
            log.error('table "%s.%s" has stopped: %s', table.schema, table.name, error)
            shown = {"relid": table.relid, "sqlstate": error.sqlstate, "message": error.message}
            conn.execute(_TABLE_ERROR, {**shown, "detail": error.detail, "hint": error.hint})
    else:
        _forget(conn, table.relid, stopped)


def _forget(conn: ControlConnection, relid: int, stopped: dict[int, str]) -> None:
    if stopped.pop(relid, None) is not None:
        conn.execute(_TABLE_WORKS, [relid])


def written_tables(context: WorkerContext, conn: ControlConnection) -> list[LakeTable]:
    """The tables whose log has commits of other programs that are not registered."""
    row = conn.execute("SELECT id::text FROM penstock.node").fetchone()
    assert row is not None  # the schema's first step inserts it
    root = context.settings.lake_path
    places = committed_places(conn, root)
    written = [relid for relid, place in places.items() if _is_written(*place, row[0])]
    return list(lake_tables(conn, written, root).values())


def _is_written(location: str, version: int, node: str) -> bool:
    try:
        return written_by_another(location, version, node)
    except (PenstockError, OSError) as error:  # dropped meanwhile, or its writers will say so
        log.debug("the Delta log in %s: %s", location, error)
        return False


def register_table(context: WorkerContext, conn: ControlConnection, relid: int) -> None:
    """Register what other programs have committed to a table, if there is anything.

    TableStateError when the table must stop; ``conn`` is idle.
    """
    try:
        with begin_commit(conn, "external", context.settings.lake_path) as commit:
            [table] = commit.lock([relid]).values()
            found = register(
                context.spark.session, table, lambda xid: xact_status(conn, xid), commit.metadata
            )
            if found is None:
                return
            assert found.table.version is not None
            commit.moved(
                found.table, found.table.version, found.ranges, found.kind, found.table.sole_writer
            )
            reach(Failpoint.EXTERNAL_BEFORE_COMMIT)
    except WrongStateError as error:
        log.info("a table that another program wrote is gone: %s", error)
        return
    log.info(
        'table "%s.%s": what another program wrote is registered as version %d (%s)',
        table.schema,
        table.name,
        found.table.version,
        found.kind,
    )


def retried(context: WorkerContext, conn: ControlConnection, write: Callable[[], T]) -> T:
    """Do a write, and do it again whenever another program got in its way.

    ``write`` makes a commit on ``conn``, which is idle before, and has no effect when it fails.
    TableStateError when what the other program did cannot be registered; ConcurrentWriteError
    after ATTEMPTS.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return write()
        except ConcurrentWriteError as error:
            log.info("trying again: %s", error)
            for table in written_tables(context, conn):
                register_table(context, conn, table.relid)
    return write()
