# SPDX-License-Identifier: Apache-2.0
"""What pg_stat_subscription and ``penstock status`` show: written once a second while it changes.

In:   the reports of all workers.
Out:  penstock.subscription_worker, exactly one row for each running worker.  The table is
      unlogged: after a crash there are no workers, and it is empty.

What becomes of workers' errors is in failures.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import datetime

from penstock.control.address import ControlAddress
from penstock.control.connect import ControlConnection, connect
from penstock.lsn import format_lsn

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


def lsn_text(lsn: int | None) -> str | None:
    """PostgreSQL's text form; None for a position that is not known."""
    return format_lsn(lsn) if lsn else None
