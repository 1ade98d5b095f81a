# SPDX-License-Identifier: Apache-2.0
"""One exported snapshot for a whole initial copy, and the LSN where the stream must go on.

In:   a publisher.
Out:  C, the consistent point, and the name of a snapshot that any connection to that database can
      take: it holds exactly the transactions whose commit record lies before C.

A temporary slot tells C and exports the snapshot, but while it exists the publisher keeps its
write-ahead log.  So the snapshot is taken over by an ordinary transaction, which exports it again
under a name of its own; then the slot's connection is closed, and the slot is gone.  What stays
is one idle transaction: it holds back VACUUM, as pg_dump does, and no log.

Nothing is durable: when the keeper's connection ends, the snapshot cannot be taken any more.
"""

from __future__ import annotations

import select
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import pq

from penstock.client.connection import (
    ANSWER_TIMEOUT,
    answers_within,
    cancel,
    cutter,
    open_publisher,
    run,
    server_error,
)
from penstock.errors import ConnectionLostError
from penstock.failpoints import Failpoint, reach
from penstock.lake.copy_range import CopyStoppedError
from penstock.lsn import parse_lsn
from penstock.names import quote_pg, quote_pg_literal

_TIMEOUTS = ("idle_in_transaction_session_timeout", "statement_timeout", "lock_timeout")
_TIMEOUTS_SINCE_17 = ("transaction_timeout",)
"""Settings of the role or the database that would end a long copy."""

LOOK_AGAIN = 0.2
"""Seconds between two looks at whether to stop, while the publisher makes us wait."""


@dataclass(frozen=True)
class Snapshot:
    """A snapshot that lives as long as ``connection``'s transaction; ``lsn`` is C.

    ``connection`` sees the snapshot itself; it may be asked about tables, by one thread at a time.
    """

    lsn: int
    name: str
    connection: psycopg.Connection[Any]


@contextmanager
def export_snapshot(
    conninfo: str,
    *,
    stopping: threading.Event,
    application_name: str,
    default_user: str | None = None,
    password_required: bool = False,
    prepared: Callable[[], None] = lambda: None,
) -> Iterator[Snapshot]:
    """Export a snapshot and keep it for the block.

    ``prepared`` is called when the connections are made; it returns when the copy may begin.
    Waits, like every creation of a slot, until the publisher's running transactions have ended;
    CopyStoppedError when ``stopping`` is set meanwhile.  ConnectionLostError, or the publisher's
    error with its SQLSTATE.
    """
    keeper = open_publisher(
        conninfo,
        application_name=application_name,
        default_user=default_user,
        password_required=password_required,
    )
    # Closed without a ROLLBACK: a publisher that is not there any more would not answer it.
    with closing(keeper), _cut_on_stop(keeper.fileno(), stopping):
        walsender = open_publisher(
            conninfo,
            replication=True,
            application_name=application_name,
            default_user=default_user,
            password_required=password_required,
        )
        try:
            with answers_within(walsender.socket, ANSWER_TIMEOUT):
                run(walsender, _no_timeouts(walsender.server_version))
            prepared()
            slot = quote_pg(f"penstock_copy_{uuid.uuid4().hex}")
            point, exported = _create_slot(
                walsender,
                f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'export')",
                stopping,
            )
            name = _take_over(keeper, exported)
        finally:
            walsender.finish()
        reach(Failpoint.COPY_SNAPSHOT_EXPORTED)
        yield Snapshot(parse_lsn(point), name, keeper)


def _no_timeouts(server_version: int) -> str:
    names = _TIMEOUTS + (_TIMEOUTS_SINCE_17 if server_version >= 170000 else ())
    calls = (f"pg_catalog.set_config('{name}', '0', false)" for name in names)
    return f"SELECT {', '.join(calls)}"


@contextmanager
def _cut_on_stop(descriptor: int, stopping: threading.Event) -> Iterator[None]:
    """Cut a connection when the copy is stopped: its thread may wait for an answer on it."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK_AGAIN):
            if stopping.is_set():
                cut()
                return

    with cutter(descriptor) as cut:
        watcher = threading.Thread(target=watch, name="copy watcher", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()


def _create_slot(
    walsender: pq.abc.PGconn, command: str, stopping: threading.Event
) -> tuple[str, str]:
    """Run the command; the slot's consistent point and the snapshot's name."""
    walsender.send_query(command.encode())
    while walsender.is_busy():
        if stopping.is_set():
            cancel(walsender)
            raise CopyStoppedError("the initial copy was stopped")
        select.select([walsender.socket], [], [], LOOK_AGAIN)
        walsender.consume_input()
    result = walsender.get_result()
    if result is None or result.status != pq.ExecStatus.TUPLES_OK:
        raise server_error(walsender, result)
    return (result.get_value(0, 1) or b"").decode(), (result.get_value(0, 2) or b"").decode()


def _take_over(keeper: psycopg.Connection[Any], exported: str) -> str:
    try:
        keeper.execute(_no_timeouts(keeper.info.server_version).encode())
        keeper.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        keeper.execute(f"SET TRANSACTION SNAPSHOT {quote_pg_literal(exported)}".encode())
        row = keeper.execute("SELECT pg_catalog.pg_export_snapshot()").fetchone()
    except psycopg.Error as error:
        raise ConnectionLostError(
            "could not keep the snapshot for the initial copy", detail=str(error)
        ) from error
    assert row is not None  # a function call without FROM has one row
    name: str = row[0]
    return name
