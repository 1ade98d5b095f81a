# SPDX-License-Identifier: Apache-2.0
"""From a commit on the publisher until it is visible at a subscriber, under a steady load.

A load commits at a pace and notes each commit's time and LSN; a poller notes when the publisher
learns that a position is applied (pg_stat_replication.replay_lsn), which a node sends as soon as
its own commit is done.  Both are on one clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import psycopg

from bench.sides import DATABASE, PATIENCE, Subscriber
from penstock.lsn import parse_lsn
from tests.support.servers import PostgresServer
from tests.support.waits import hold, wait_until

RATE = 200  # transactions per second
POLL = 0.01  # seconds


@dataclass
class Latency:
    """Seconds from commit to visible."""

    workload: str
    side: str
    p50: float
    p99: float
    rate: float


def measure(
    source: PostgresServer,
    side: Subscriber,
    workload: str,
    statement: Callable[[int], str],
    seconds: float,
) -> Latency:
    """Run a load of single-statement transactions while a side streams."""
    side.enable()
    commits: list[tuple[int, float]] = []
    applied: list[tuple[int, float]] = []
    ended = threading.Event()
    poller = threading.Thread(target=_poll, args=(source, side.name, applied, ended))
    poller.start()
    try:
        with source.connect(DATABASE) as connection:
            began = time.monotonic()
            for number in range(int(RATE * seconds)):
                connection.execute(statement(number).encode())
                commits.append((_position(connection), time.monotonic()))
                hold(max(0.0, began + (number + 1) / RATE - time.monotonic()))
            rate = len(commits) / (time.monotonic() - began)
        last = commits[-1][0]
        wait_until(lambda: applied and applied[-1][0] >= last, PATIENCE, "the load to be applied")
    finally:
        ended.set()
        poller.join()
        side.disable()
    lsns, times = (np.array(each) for each in zip(*applied, strict=True))
    positions, committed = (np.array(each) for each in zip(*commits, strict=True))
    waited = times[np.searchsorted(lsns, positions)] - committed
    p50, p99 = np.percentile(waited, [50, 99])
    return Latency(workload, side.name, float(p50), float(p99), rate)


def _position(connection: psycopg.Connection[tuple[str]]) -> int:
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return parse_lsn(row[0])


def _poll(
    source: PostgresServer, name: str, applied: list[tuple[int, float]], ended: threading.Event
) -> None:
    replayed = "SELECT replay_lsn::text FROM pg_stat_replication WHERE application_name = %s"
    with source.connect(DATABASE) as connection:
        while not ended.wait(POLL):
            row = connection.execute(replayed, (name,)).fetchone()
            if row is not None and row[0] is not None:
                lsn = parse_lsn(row[0])
                if not applied or lsn > applied[-1][0]:
                    applied.append((lsn, time.monotonic()))
