# SPDX-License-Identifier: Apache-2.0
"""The example sessions of PostgreSQL's chapter "Logical Replication", with the lake subscribing.

The publisher is a real PostgreSQL, the subscriber is a node, and both are driven through psql.
From 18 on ``\\\\dRp+`` prints one more column than the chapter of 15 shows, so the sessions that
show it run on 15 and 16.  The control is the same session from PostgreSQL to PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chapter.session import carry_out
from tests.support.fix_servers import Servers, drop_database
from tests.support.node import Node
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


@pytest.fixture
def version() -> str:
    """The control's version."""
    return "16"


def _drop_everything(node: Node) -> None:
    with node.connect() as conn:
        for (name,) in conn.execute("SELECT subname FROM pg_subscription").fetchall():
            conn.execute(f'DROP SUBSCRIPTION "{name}"')
        for table in ("t1", "t2", "t3", "parent"):
            conn.execute(f"DROP TABLE IF EXISTS {table}")
