# SPDX-License-Identifier: Apache-2.0
"""What the same batch costs on a small and on a large table: updates of keys all over it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

from bench.orders import COLUMNS, insert
from bench.sides import DATABASE, PATIENCE, Subscriber, current_lsn
from tests.support.servers import PostgresServer
from tests.support.waits import wait_until

KEYS = 10_000
BATCHES = 7


@dataclass(frozen=True)
class BatchCost:
    """Median seconds from the publisher's commit until it knows that a batch is applied.

    ``first`` is that of the first batch after the copy, which indexes the table's keys.
    """

    side: str
    rows: int
    keys: int
    first: float
    seconds: float


def load(source: PostgresServer, rows: int) -> str:
    """A table of so many orders, in a publication of the same name; the name."""
    name = f"orders_{rows}"
    source.psql(
        f"CREATE TABLE {name} {COLUMNS}; {insert(1, rows, name)}; VACUUM ANALYZE {name};"
        f"CREATE PUBLICATION {name} FOR TABLE {name}",
        DATABASE,
        timeout=PATIENCE,
    )
    return name


def measure(source: PostgresServer, side: Subscriber, name: str, rows: int) -> BatchCost:
    """Copy the table, apply some batches one by one, drop it."""
    side.copy(name, f"CREATE TABLE {name} {COLUMNS}")
    side.enable()
    with source.connect(DATABASE) as connection:
        seconds = []
        for number in range(1, BATCHES + 1):
            connection.execute(
                f"UPDATE {name} SET amount = amount + 1 WHERE id IN (SELECT"
                f" (g::bigint * 104729 * {number}) % {rows} + 1 FROM generate_series(1, {KEYS}) g)"
            )
            began, target = time.monotonic(), current_lsn(connection)
            wait_until(lambda: side.has_replayed(connection, target), PATIENCE, "a batch")  # noqa: B023  # at once
            seconds.append(time.monotonic() - began)
    side.disable()
    side.drop(name)
    return BatchCost(side.name, rows, KEYS, seconds[0], median(seconds))
