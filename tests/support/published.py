# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL subscribes to a node, and is waited for as a user would wait.

The subscriber logs in as REPLICA, an ordinary role with LOGIN and REPLICATION that may read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.compare import difference
from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.subscribing import SYNC_TIMEOUT
from tests.support.waits import wait_until

REPLICA = "replica"
PASSWORD = "secret"

NOT_READY = """SELECT r.srrelid::regclass, r.srsubstate FROM pg_subscription_rel r
    JOIN pg_subscription s ON s.oid = r.srsubid
    WHERE s.subname = '{}' AND r.srsubstate NOT IN ('r', 's')"""
"""Tables of a subscription that are not copied and caught up."""


def conninfo(node: Node) -> str:
    """How a server reaches the node, as REPLICA."""
    return f"host={node.host} port={node.port} dbname=lake user={REPLICA} password={PASSWORD}"


def make_replica(node: Node) -> None:
    """Make the role, if it is not there."""
    if node.psql(f"SELECT 1 FROM pg_roles WHERE rolname = '{REPLICA}'") == "":
        node.psql(
            f"CREATE ROLE {REPLICA} LOGIN REPLICATION PASSWORD '{PASSWORD}';"
            f"GRANT pg_read_all_data TO {REPLICA}"
        )


@contextmanager
def subscribed_to(
    node: Node, database: Database, name: str, publications: str, options: str = ""
) -> Iterator[None]:
    """A subscription of ``database`` to the node for the block, in sync at its begin."""
    make_replica(node)
    with_options = f" WITH ({options})" if options else ""
    database.psql(
        f"CREATE SUBSCRIPTION {name} CONNECTION '{conninfo(node)}'"
        f" PUBLICATION {publications}{with_options}"
    )
    try:
        wait_in_sync(database, name)
        yield
    finally:
        database.psql(f"DROP SUBSCRIPTION {name}")


def wait_in_sync(database: Database, name: str) -> None:
    """Wait until every table of a subscription is copied and caught up."""
    query = NOT_READY.format(name)
    try:
        wait_until(lambda: database.psql(query) == "", SYNC_TIMEOUT, f"{name} to be in sync")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{_errors(database)}") from error


def wait_applied(node: Node, name: str) -> None:
    """Wait until the subscription ``name`` has applied all that the node has committed."""
    with node.connect() as conn:
        row = conn.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        applied = (
            "SELECT FROM pg_stat_replication WHERE application_name = %s"
            " AND replay_lsn >= %s::pg_lsn"
        )
        wait_until(
            lambda: conn.execute(applied, [name, *row]).rowcount == 1,
            SYNC_TIMEOUT,
            f"{name} to apply everything",
        )


def wait_same(node: Node, database: Database, name: str, *queries: str) -> None:
    """Once all is applied, each query must give the same rows on both sides, as texts."""
    try:
        wait_applied(node, name)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{_errors(database)}") from error
    for query in queries:
        found = difference(node.psql, query, database.psql, query)
        assert not found, f"{query}\n{found}"


def _errors(database: Database) -> str:
    lines = database.server.log_text().splitlines()
    return "\n".join(line for line in lines if "ERROR" in line or "FATAL" in line)[-2000:]
