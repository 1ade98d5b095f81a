# SPDX-License-Identifier: Apache-2.0
"""The example sessions of PostgreSQL's chapter "Logical Replication", in all four topologies.

A real PostgreSQL or the lake publishes, a real PostgreSQL or the lake subscribes, and both are
driven through psql.  From 18 on ``\\\\dRp+`` prints one more column than the chapter of 15 shows,
so the sessions that show it run on 15 and 16, and on the lake with psql 16.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.chapter.session import carry_out
from tests.support.fix_servers import Servers, drop_database
from tests.support.node import SUPERUSER, Node
from tests.support.published import conninfo, make_replica
from tests.support.servers import PostgresServer

TAGS = ("-v", "QUIET=off")
SESSIONS = [
    ("subscription", "15"),
    ("subscription", "16"),
    ("subscription", "18"),
    ("row_filter", "15"),
    ("row_filter", "16"),
    ("column_list", "15"),
    ("column_list", "16"),
]


@pytest.fixture
def test_pub(servers: Servers, request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """The publisher with the chapter's database ``test_pub``."""
    server = servers(request.getfixturevalue("version"))
    server.create_database("test_pub")
    yield server
    drop_database(server, "test_pub")


@pytest.mark.parametrize(("session", "version"), SESSIONS)
def test_the_lake_prints_what_the_chapter_shows(
    session: str, version: str, test_pub: PostgresServer, node: Node
) -> None:
    """Every step of the session prints the chapter's output, the subscriber's after a while."""
    try:
        steps = carry_out(
            session,
            lambda sql: test_pub.psql(sql, "test_pub", TAGS),
            lambda sql: node.psql(sql, TAGS, version="16"),
            test_pub.conninfo("test_pub"),
        )
        assert steps > 9
    finally:
        _drop_everything(node)


@pytest.mark.parametrize("session", ["subscription", "row_filter", "column_list"])
def test_postgresql_prints_what_the_chapter_shows(
    session: str, servers: Servers, test_pub: PostgresServer, version: str
) -> None:
    """The control: our reading of the chapter is right, since PostgreSQL passes it."""
    subscriber = servers("16", "subscriber")
    subscriber.create_database("test_sub")
    try:
        carry_out(
            session,
            lambda sql: test_pub.psql(sql, "test_pub", TAGS),
            lambda sql: subscriber.psql(sql, "test_sub", TAGS),
            test_pub.conninfo("test_pub"),
        )
    finally:
        drop_database(subscriber, "test_sub")


SUBSCRIBERS = [("subscription", "15"), ("row_filter", "16"), ("column_list", "18")]


@pytest.mark.parametrize(("session", "version"), SUBSCRIBERS)
def test_the_lake_publishes_what_the_chapter_shows(
    session: str, version: str, servers: Servers, node: Node
) -> None:
    """The same with the lake in the publisher's seat and PostgreSQL as its subscriber."""
    subscriber = servers(version, "subscriber")
    subscriber.create_database("test_sub")
    make_replica(node)
    try:
        carry_out(
            session,
            lambda sql: _as_postgres(node.psql(sql, TAGS, version="16")),
            lambda sql: subscriber.psql(sql, "test_sub", TAGS),
            conninfo(node),
        )
    finally:
        with subscriber.connect("test_sub") as conn:
            _drop_subscriptions(conn)
        drop_database(subscriber, "test_sub")
        _drop_everything(node)


@pytest.mark.parametrize("session", ["subscription", "row_filter", "column_list"])
def test_a_lake_subscribes_to_a_lake_as_the_chapter_shows(
    session: str, node: Node, other_node: Node
) -> None:
    """Both ends are nodes."""
    make_replica(node)
    try:
        carry_out(
            session,
            lambda sql: _as_postgres(node.psql(sql, TAGS, version="16")),
            lambda sql: other_node.psql(sql, TAGS, version="16"),
            conninfo(node),
        )
    finally:
        _drop_everything(other_node)
        _drop_everything(node)


def _as_postgres(printed: str) -> str:
    """What psql prints of a node, whose superuser has another name than the chapter's."""
    return printed.replace(SUPERUSER, "postgres")


@pytest.fixture
def version() -> str:
    """The control's version."""
    return "16"


def _drop_everything(node: Node) -> None:
    with node.connect() as conn:
        _drop_subscriptions(conn)
        for name in ("p1", "p2", "p3", "p4", "pub1", "pub2", "pub3a", "pub3b"):
            conn.execute(f"DROP PUBLICATION IF EXISTS {name}")
        for table in ("t1", "t2", "t3", "parent"):
            conn.execute(f"DROP TABLE IF EXISTS {table}")


def _drop_subscriptions(conn: psycopg.Connection[Any]) -> None:
    """Those of the connection's database, with their slots."""
    query = """SELECT subname FROM pg_subscription
        WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())"""
    for (name,) in conn.execute(query).fetchall():
        conn.execute(f'DROP SUBSCRIPTION "{name}"'.encode())
