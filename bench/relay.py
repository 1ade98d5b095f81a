# SPDX-License-Identifier: Apache-2.0
"""What the front door adds to a relayed catalog query: the same connection with and without it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.support.node import DATABASE, SUPERUSER, Node

ROUNDS = 1000
QUERY = "SELECT oid, relname, relkind FROM pg_catalog.pg_class WHERE relname = 'pg_class'"
EXTENDED = "SELECT oid, relname, relkind FROM pg_catalog.pg_class WHERE relname = %s"


@dataclass(frozen=True)
class RelayCost:
    """Median milliseconds of one query, through the front door and on the control database."""

    protocol: str
    through: float
    direct: float


def measure(node: Node) -> list[RelayCost]:
    """Simple and extended query, rounds of both sides in turn so that both see the same machine."""
    control = (
        f"host={node.home / 'control' / 'run'} port=5432 dbname={DATABASE} user={SUPERUSER}"
        f" passfile={node.home / 'pgpass'}"
    )
    with node.connect() as through, psycopg.connect(control, autocommit=True) as direct:
        return [
            _compare("simple", through, direct, lambda conn: conn.execute(QUERY)),
            _compare(
                "extended",
                through,
                direct,
                lambda conn: conn.execute(EXTENDED, ("pg_class",), prepare=False),
            ),
        ]


def _compare(
    protocol: str,
    through: psycopg.Connection[Any],
    direct: psycopg.Connection[Any],
    query: Callable[[psycopg.Connection[Any]], psycopg.Cursor[Any]],
) -> RelayCost:
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for connection, found in zip((through, direct), times, strict=True):
            began = time.perf_counter()
            query(connection).fetchall()
            found.append(1000 * (time.perf_counter() - began))
    return RelayCost(protocol, statistics.median(times[0]), statistics.median(times[1]))
