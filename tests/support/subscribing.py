# SPDX-License-Identifier: Apache-2.0
"""Subscribe a node to a publisher, and wait for what a user would wait for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.compare import difference
from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.waits import wait_until

SYNC_TIMEOUT = 60.0
"""Seconds for an initial copy or a batch; a busy machine of two cores needs ten."""


def wait_ready(node: Node, subscription: str) -> None:
    """Wait until every table of a subscription is in state r."""
    query = (
        "SELECT count(*) FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid"
        f" WHERE s.subname = '{subscription}' AND r.srsubstate <> 'r'"
    )
    try:
        wait_until(lambda: node.psql(query) == "0", SYNC_TIMEOUT, f"{subscription} to be in sync")
    except AssertionError as error:
        errors = node.psql("SELECT * FROM penstock.subscription_error")
        raise AssertionError(f"{error}\nerrors: {errors}") from error


def wait_equal(publisher: Database, query: str, node: Node, lake_query: str | None = None) -> None:
    """Wait until a query gives the same rows, as a multiset of text, on both sides."""
    found = difference(publisher.psql, query, node.psql, lake_query or query)

    def equal() -> bool:
        nonlocal found
        found = difference(publisher.psql, query, node.psql, lake_query or query)
        return not found

    try:
        wait_until(equal, SYNC_TIMEOUT, query)
    except AssertionError as error:
        raise AssertionError(f"{query}\n{found}") from error


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
