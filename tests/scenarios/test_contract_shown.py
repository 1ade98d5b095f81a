# SPDX-License-Identifier: Apache-2.0
"""What a user sees when a line of the start-up contract is broken.

Every line is broken for a subscription of its own, all of them at once; then ``penstock status``
and penstock.subscription_error must name each one, with a way out, and a subscription beside them
goes on.  The rules themselves are in test_receiver_contract.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pytest

from penstock.client.connection import open_publisher
from penstock.client.walsender import start_replication
from tests.support.fix_servers import Database, Servers, drop_database
from tests.support.node import Node
from tests.support.proxy import Proxy
from tests.support.slots import lose, small_slots
from tests.support.subscribing import wait_caught_up, wait_equal, wait_ready
from tests.support.waits import wait_until


@dataclass(frozen=True)
class Shown:
    """What the error of a broken line has: SQLSTATE, and texts of message, detail and hint."""

    sqlstate: str
    message: str
    detail: str
    hint: str


SHOWN = {
    "missing": Shown("42704", 'replication slot "missing" does not exist', "", "new copy"),
    "lost": Shown("55000", 'replication slot "lost" is lost', "wal_removed", "new copy"),
    "advanced": Shown("55000", '"advanced" is ahead of', "was advanced", "advance"),
    "recreated": Shown("55000", '"recreated" is ahead of', "created again", "new copy"),
    "dropped": Shown(
        "42704", 'publications do not exist on the publisher: "dropped"', "", "DROP PUBLICATION"
    ),
    "moved": Shown("55000", "the publisher is not the one", "of system", "Correct the connection"),
    "shared": Shown("55006", 'replication slot "shared" is active for PID', "", ""),
}


@pytest.fixture
def other(servers: Servers, publisher_db: Database) -> Iterator[Database]:
    """A database of the same name on another server; the slot "lost" is there."""
    server = servers("16", "other")  # of one version all would be copies of one cluster
    made = Database(server, server.create_database(publisher_db.name))
    yield made
    drop_database(server, made.name)


def subscribe(node: Node, publisher: Database, name: str, conninfo: str) -> None:
    """A table, a publication, a slot and a subscription, each with this name."""
    publisher.psql(
        f"CREATE TABLE cs_{name} (id int PRIMARY KEY);CREATE PUBLICATION {name} FOR TABLE cs_{name}"
    )
    node.psql(
        f"CREATE SUBSCRIPTION {name} CONNECTION '{conninfo}' PUBLICATION {name}"
        " WITH (copy_data = false)"
    )


def errors(node: Node, name: str) -> list[tuple[str, ...]]:
    """The subscription's rows in penstock.subscription_error."""
    with node.connect() as connection:
        return connection.execute(
            "SELECT e.sqlstate, e.message, e.detail, e.hint FROM penstock.subscription_error e"
            " JOIN pg_subscription s ON s.oid = e.subid WHERE s.subname = %s",
            [name],
        ).fetchall()


@pytest.fixture
def proxy(publisher_db: Database) -> Iterator[Proxy]:
    """A proxy in front of the publisher; only the subscription "moved" goes through it."""
    with Proxy(publisher_db.server.port) as made:
        yield made


@pytest.fixture
def followed(node: Node, publisher_db: Database, proxy: Proxy, other: Database) -> Iterator[Node]:
    """The node with one subscription for each line, and one more; each has applied a row."""
    names = [*SHOWN, "works"]
    for name in names:
        publisher = other if name == "lost" else publisher_db
        conninfo = proxy.conninfo(publisher_db) if name == "moved" else publisher.conninfo
        subscribe(node, publisher, name, conninfo)
        publisher.psql(f"INSERT INTO cs_{name} VALUES (1)")
    for name in names:
        wait_ready(node, name)
    for publisher in (publisher_db, other):
        wait_caught_up(publisher)
    yield node
    for name in names:
        node.psql(
            f"ALTER SUBSCRIPTION {name} DISABLE;"
            f"ALTER SUBSCRIPTION {name} SET (slot_name = NONE);"
            f"DROP SUBSCRIPTION {name}; DROP TABLE cs_{name}"
        )


def break_each(publisher: Database, proxy: Proxy, other: Database) -> None:
    """Break one line for each subscription; all of them are disabled."""
    with small_slots(other.server):
        lose("lost", other.server)
    # What is behind the proxy from now on has all that the subscription needs by name.
    other.psql("CREATE TABLE cs_moved (id int PRIMARY KEY)")
    other.psql("CREATE PUBLICATION moved FOR TABLE cs_moved")
    other.psql("SELECT pg_create_logical_replication_slot('moved', 'pgoutput')")
    proxy.retarget(other.server.port)
    publisher.psql("DROP PUBLICATION dropped")
    for name in ("missing", "recreated"):
        publisher.psql(f"SELECT pg_drop_replication_slot('{name}')")
    publisher.psql("INSERT INTO cs_advanced VALUES (2); INSERT INTO cs_recreated VALUES (2)")
    publisher.psql("SELECT pg_replication_slot_advance('advanced', pg_current_wal_lsn())")
    publisher.psql("SELECT pg_create_logical_replication_slot('recreated', 'pgoutput')")


@pytest.mark.timeout(200)
def test_each_broken_line_is_shown(
    followed: Node, publisher_db: Database, proxy: Proxy, other: Database
) -> None:
    """SQLSTATE, message, detail and hint of each; the subscription beside them goes on."""
    for name in SHOWN:
        followed.psql(f"ALTER SUBSCRIPTION {name} DISABLE")
    break_each(publisher_db, proxy, other)
    with another_node(publisher_db, "shared"):
        for name in SHOWN:
            followed.psql(f"ALTER SUBSCRIPTION {name} ENABLE")
        for name, expected in SHOWN.items():
            found = wait_until(partial(errors, followed, name), 30, f"the error of {name}")
            [(sqlstate, message, detail, hint)] = found
            assert sqlstate == expected.sqlstate, found
            assert expected.message in message, found
            assert expected.detail in (detail or ""), found
            assert expected.hint in (hint or ""), found
        status = wait_until(partial(settled_status, followed), 30, "all to be shown")
    for name, expected in SHOWN.items():
        part = status.partition(f"subscription {name}: ")[2].partition("\nsubscription ")[0]
        assert f"{expected.message}" in part
        assert f"(SQLSTATE {expected.sqlstate})" in part
    assert "subscription works: streaming" in status
    publisher_db.psql("INSERT INTO cs_works VALUES (2); INSERT INTO cs_shared VALUES (2)")
    for name in ("works", "shared"):  # the other subscriber has left the slot
        wait_equal(publisher_db, f"SELECT * FROM cs_{name}", followed)
    assert errors(followed, "shared") == []


def settled_status(node: Node) -> str:
    """``penstock status`` once it says of each broken one that it is not connected."""
    done = node.command("status")
    assert done.returncode == 0, done.stderr
    settled = all(f"subscription {name}: not connected" in done.stdout for name in SHOWN)
    return done.stdout if settled else ""


@contextmanager
def another_node(publisher: Database, slot: str) -> Iterator[None]:
    """Another subscriber streams from the slot for the block, and has confirmed nothing."""
    connection = open_publisher(publisher.conninfo, replication=True)
    try:
        start_replication(connection, slot, 0, (slot,))
        yield
    finally:
        connection.finish()
