# SPDX-License-Identifier: Apache-2.0
"""What pg_stat_subscription and ``penstock status`` show: written once a second while it changes.

In:   the reports of all workers.
Out:  penstock.subscription_worker, exactly one row for each running worker.  The table is
      unlogged: after a crash there are no workers, and it is empty.

Errors of workers go to penstock.subscription_error at once, and stay until the subscription makes
progress again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime

import psycopg

from penstock.control.address import ControlAddress
from penstock.control.connect import ControlConnection, connect
from penstock.errors import PenstockError
from penstock.lsn import format_lsn

log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two reports; psql's \\watch has about the same pace."""


@dataclass(frozen=True)
class WorkerReport:
    """One worker's row of penstock.subscription_worker; LSNs in PostgreSQL's text form."""

    subid: int
    worker_type: str
    pid: int
    relid: int | None = None
    received_lsn: str | None = None
    last_msg_send_time: datetime | None = None
    last_msg_receipt_time: datetime | None = None
    latest_end_lsn: str | None = None
    latest_end_time: datetime | None = None
    rows_copied: int | None = None
    rows_total: int | None = None
    pending_since: datetime | None = None


def report(
    address: ControlAddress,
    reports: Callable[[], Sequence[WorkerReport]],
    stopping: threading.Event,
) -> None:
    """Write the reports until told to stop; then an empty one, since no worker runs any more."""
    with connect(address, application_name="penstock reporter") as connection:
        written: Sequence[WorkerReport] | None = None
        while not stopping.wait(INTERVAL):
            current = reports()
            if current != written:
                write_reports(connection, current)
                written = current
        write_reports(connection, [])


def write_reports(connection: ControlConnection, reports: Sequence[WorkerReport]) -> None:
    """Replace what penstock.subscription_worker says."""
    names = [field.name for field in fields(WorkerReport)]
    marks = ", ".join(["%s"] * len(names))
    insert = f"INSERT INTO penstock.subscription_worker ({', '.join(names)}) VALUES ({marks})"
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM penstock.subscription_worker")
        cursor.executemany(insert.encode(), [astuple(report) for report in reports])


def record_error(address: ControlAddress, subid: int, error: Exception) -> None:
    """Keep a subscription's error for ``penstock status``; logged instead when that fails."""
    known = error if isinstance(error, PenstockError) else PenstockError(str(error))
    try:
        with connect(address, application_name="penstock worker") as connection:
            connection.execute(
                "INSERT INTO penstock.subscription_error"
                " (subid, sqlstate, message, detail, hint, context)"
                " VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (subid, relid) DO UPDATE SET"
                " (time, sqlstate, message, detail, hint, context) = (clock_timestamp(),"
                " excluded.sqlstate, excluded.message, excluded.detail, excluded.hint,"
                " excluded.context)",
                [subid, known.sqlstate, known.message, known.detail, known.hint, known.where],
            )
    except (PenstockError, psycopg.Error) as lost:
        log.warning("the error is not in penstock.subscription_error: %s", lost)


def forget_error(connection: ControlConnection, subid: int) -> None:
    """The subscription works again."""
    connection.execute("DELETE FROM penstock.subscription_error WHERE subid = %s::oid", [subid])


def lsn_text(lsn: int | None) -> str | None:
    """PostgreSQL's text form; None for a position that is not known."""
    return format_lsn(lsn) if lsn else None
