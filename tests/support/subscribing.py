# SPDX-License-Identifier: Apache-2.0
"""Subscribe a node to a publisher, and wait for what a user would wait for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.compare import difference
from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.waits import wait_until

SYNC_TIMEOUT = 180  # seconds; a busy machine needs a minute for a copy by executors
"""Seconds for an initial copy or a batch; a busy machine of two cores needs ten."""


def wait_ready(node: Node, subscription: str) -> None:
    """Wait until every table of a subscription is in state r."""
    waiting = (
        "SELECT FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid"
        " WHERE s.subname = %s AND r.srsubstate <> 'r'"
    )
    with node.connect() as conn:
        try:
            wait_until(
                lambda: conn.execute(waiting, [subscription]).rowcount == 0,
                SYNC_TIMEOUT,
                f"{subscription} to be in sync",
            )
        except AssertionError as error:
            errors = conn.execute("SELECT * FROM penstock.subscription_error").fetchall()
            raise AssertionError(f"{error}\nerrors: {errors}") from error


def wait_equal(publisher: Database, query: str, node: Node, lake_query: str | None = None) -> None:
    """Wait until a query gives the same rows, as a multiset of text, on both sides.

    Rows are compared once the publisher knows that all is applied: a comparison costs Spark more
    than a small batch does.
    """
    wait_caught_up(publisher)
    found = difference(publisher.psql, query, node.psql, lake_query or query)

    def equal() -> bool:
        nonlocal found
        found = difference(publisher.psql, query, node.psql, lake_query or query)
        return not found

    try:
        if found:
            wait_until(equal, SYNC_TIMEOUT, query)
    except AssertionError as error:
        raise AssertionError(f"{query}\n{found}") from error


def wait_caught_up(publisher: Database) -> None:
    """Wait until every subscriber that streams from a database has applied all of it."""
    behind = (
        "SELECT FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid"
        " WHERE s.database = current_database() AND NOT s.temporary AND"
        " (r.replay_lsn IS NULL OR r.replay_lsn < %s::pg_lsn)"
    )
    with publisher.connect() as conn:
        row = conn.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        wait_until(
            lambda: conn.execute(behind, row).rowcount == 0,
            SYNC_TIMEOUT,
            f"the subscribers of {publisher.name} to apply everything",
        )


@contextmanager
def subscribed(
    node: Node, publisher: Database, name: str, publications: str, options: str = ""
) -> Iterator[None]:
    """A subscription for the block, in sync at its begin; dropped with its tables at the end."""
    with_options = f" WITH ({options})" if options else ""
    node.psql(
        f"CREATE SUBSCRIPTION {name} CONNECTION '{publisher.conninfo}'"
        f" PUBLICATION {publications}{with_options}"
    )
    try:
        wait_ready(node, name)
        yield
    finally:
        drop_subscription(node, name)


def drop_subscription(node: Node, name: str) -> None:
    """Drop a subscription and the lake tables that it fed."""
    with node.connect() as conn:
        tables = conn.execute(
            "SELECT r.srrelid::regclass::text FROM pg_subscription_rel r"
            " JOIN pg_subscription s ON s.oid = r.srsubid WHERE s.subname = %s",
            [name],
        ).fetchall()
        conn.execute(f"DROP SUBSCRIPTION {name}")
        for (table,) in tables:
            conn.execute(f"DROP TABLE IF EXISTS {table} CASCADE")
