# SPDX-License-Identifier: Apache-2.0
"""Streams of the lake with each version and option of the protocol, and streams with nothing."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from itertools import product

import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.published import conninfo, make_replica, subscribed_to, wait_same
from tests.support.reference_decoder import Reference
from tests.support.waits import wait_until
from tests.support.walsender import Walsender


@pytest.fixture(scope="module")
def lake(node: Node) -> Iterator[Node]:
    """The node with a published table."""
    make_replica(node)
    node.psql(
        "CREATE TABLE st (id int PRIMARY KEY, a text, n numeric(9,2)); CREATE TABLE st_no (a int)"
    )
    node.psql("CREATE PUBLICATION st FOR TABLE st; CREATE PUBLICATION st_empty")
    yield node
    node.psql("DROP PUBLICATION st, st_empty; DROP TABLE st, st_no")


def open_slot(node: Node, slot: str, *options: str) -> Walsender:
    """A connection with a temporary slot."""
    connection = Walsender(conninfo(node))
    made = ", ".join(["SNAPSHOT 'nothing'", *options])
    connection.rows(f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput ({made})")
    return connection


def first_transaction(connection: Walsender, slot: str, options: str) -> list[bytes]:
    """The messages of the slot's first transaction; the connection is closed."""
    command = f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (publication_names 'st', {options})"
    frames = connection.frames(command, b"C")
    connection.close()
    return frames


def test_every_version_and_form(lake: Node) -> None:
    """proto_version 1 to 4, text and binary, streamed or not: the same rows in one transaction."""
    forms = {
        f"st_{version}_{binary}": f"proto_version '{version}', binary '{binary}'"
        for version, binary in product("1234", ("true", "false"))
    }
    forms["st_streaming"] = "proto_version '2', streaming 'on', origin 'any'"
    forms["st_parallel"] = "proto_version '4', streaming 'parallel', origin 'none', two_phase 'off'"
    opened = {slot: open_slot(lake, slot) for slot in forms}
    two_phase = open_slot(lake, "st_two_phase", "TWO_PHASE")
    lake.psql("INSERT INTO st VALUES (1, 'one', 1.5), (2, NULL, NULL)")
    expected = [
        {"id": 1, "a": "one", "n": Decimal("1.50")},
        {"id": 2, "a": None, "n": None},
    ]
    opened["st_two_phase"] = two_phase
    forms["st_two_phase"] = "proto_version '3', two_phase 'on'"
    for slot, options in forms.items():
        decoded = Reference().feed(first_transaction(opened[slot], slot, options))
        ((relation, rows),) = decoded.rows.items()
        assert (relation.name, [row[4] for row in rows]) == ("st", expected), options
        assert [row[0] for row in rows] == ["I", "I"]
        assert len(decoded.transactions) == 1


def test_a_subscription_with_two_phase(lake: Node, publisher_db: Database) -> None:
    """It becomes enabled once the tables are in sync, and follows; nothing is prepared yet."""
    publisher_db.psql("CREATE TABLE st (id int PRIMARY KEY, a text, n numeric(9,2))")
    options = "two_phase = true, binary = true, origin = none"
    with subscribed_to(lake, publisher_db, "st_two", "st", options):
        state = "SELECT subtwophasestate FROM pg_subscription WHERE subname = 'st_two'"
        wait_until(lambda: publisher_db.psql(state) == "e", 30, "two_phase to be enabled")
        lake.psql("BEGIN; INSERT INTO st VALUES (10, 'ten', 10); UPDATE st SET a = 'x'; COMMIT")
        wait_same(lake, publisher_db, "st_two", "SELECT * FROM st")


def test_origins(lake: Node) -> None:
    """What a session wrote as an origin's is left out with ``none``; with ``any`` it is named."""
    opened = {origin: open_slot(lake, f"st_{origin}") for origin in ("any", "none")}
    lake.psql(
        "SELECT pg_replication_origin_create('st_origin');"
        "SELECT pg_replication_origin_session_setup('st_origin');"
        "INSERT INTO st VALUES (20, 'from elsewhere');"
        "SELECT pg_replication_origin_session_reset(); INSERT INTO st VALUES (21, 'own')"
    )
    found = {
        origin: first_transaction(
            connection, f"st_{origin}", f"proto_version '4', origin '{origin}'"
        )
        for origin, connection in opened.items()
    }
    assert b"".join(frame[:1] for frame in found["any"]) == b"BORIC"
    assert b"st_origin" in found["any"][1]
    assert b"".join(frame[:1] for frame in found["none"]) == b"BRIC"
    assert b"own" in found["none"][2]
    lake.psql("SELECT pg_replication_origin_drop('st_origin')")


def test_commits_that_publish_nothing_move_the_slot(lake: Node, publisher_db: Database) -> None:
    """A subscriber that is sent nothing confirms what the lake has written: it holds no WAL."""
    with subscribed_to(lake, publisher_db, "st_idle", "st_empty"):
        behind = (
            "SELECT pg_wal_lsn_diff('{}', confirmed_flush_lsn) > 0 FROM pg_replication_slots"
            " WHERE slot_name = 'st_idle'"
        )
        for number in range(3):
            lake.psql(f"INSERT INTO st_no VALUES ({number}); INSERT INTO st VALUES (3{number})")
            wait_moved(lake, behind.format(lake.psql("SELECT pg_current_wal_lsn()")))


def wait_moved(node: Node, behind: str) -> None:
    wait_until(lambda: node.psql(behind) == "f", 30, "the slot to move on")
