# SPDX-License-Identifier: Apache-2.0
"""Prepared transactions that write the lake: in its own sessions, and in those who subscribe to it.

What a PostgreSQL says and sends is the oracle: the same steps run on one, with the same results.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.support.binaries import NEWEST
from tests.support.fix_servers import Database, Servers, drop_database
from tests.support.node import Node
from tests.support.psql import PsqlError
from tests.support.published import conninfo, make_replica, wait_applied, wait_in_sync
from tests.support.subscribing import SYNC_TIMEOUT, wait_caught_up
from tests.support.topology import Ends, topologies
from tests.support.waits import wait_until

SAID = (
    "PREPARE TRANSACTION 'p_none'",
    "ROLLBACK PREPARED 'p_unknown'",
    "COMMIT PREPARED 'p_unknown'",
    "BEGIN",
    "INSERT INTO p_said VALUES (1)",
    "COMMIT PREPARED 'p_unknown'",
    "PREPARE TRANSACTION 'p_failed'",
    "BEGIN",
    "INSERT INTO p_said VALUES (1), (2)",
    "PREPARE TRANSACTION 'p_kept'",
    "SELECT count(*) FROM p_said",
    "BEGIN",
    "PREPARE TRANSACTION 'p_kept'",
    "BEGIN",
    "PREPARE TRANSACTION 'p_" + "x" * 200 + "'",
    "BEGIN",
    "NOTIFY p_said",
    "PREPARE TRANSACTION 'p_notified'",
    "COMMIT PREPARED 'p_kept'",
    "COMMIT PREPARED 'p_kept'",
    "SELECT count(*) FROM p_said",
)
IN_A_PIPELINE = (
    "BEGIN",
    "INSERT INTO p_said VALUES (3)",
    "PREPARE TRANSACTION 'p_pipeline'",
    "COMMIT PREPARED 'p_pipeline'",
    "SELECT count(*) FROM p_said",
)


def _said(conn: psycopg.Connection[Any], statement: str) -> tuple[object, ...]:
    """What a server says to a statement: tag or error, rows, warnings, and the block's state."""
    notices: list[tuple[str | None, str | None]] = []
    conn.add_notice_handler(lambda each: notices.append((each.sqlstate, each.message_primary)))
    try:
        cursor = conn.execute(statement.encode())
    except psycopg.Error as error:
        shown: tuple[object, ...] = (error.sqlstate, error.diag.message_primary)
    else:
        rows = cursor.fetchall() if cursor.description else []
        shown = (cursor.statusmessage, rows)
    return (*shown, notices[:], conn.info.transaction_status.name)


def test_what_is_said(node: Node, publisher_db: Database) -> None:
    """Tags, errors, warnings and the state of the block are PostgreSQL's, step by step."""
    for psql in (node.psql, publisher_db.psql):
        psql("CREATE TABLE p_said (id int PRIMARY KEY)")
    with node.connect() as lake, publisher_db.connect() as native:
        for statement in SAID:
            assert _said(lake, statement) == _said(native, statement), statement
        for conn in (lake, native):
            with conn.pipeline():
                cursors = [conn.execute(each.encode()) for each in IN_A_PIPELINE]
            tags = ["BEGIN", "INSERT 0 1", "PREPARE TRANSACTION", "COMMIT PREPARED", "SELECT 1"]
            assert [each.statusmessage for each in cursors] == tags
            assert cursors[-1].fetchall() == [(3,)]
    node.psql("DROP TABLE p_said")


def test_who_sees_what_and_who_waits(node: Node) -> None:
    """Nobody sees it before COMMIT PREPARED, nor after ROLLBACK PREPARED; writers wait for its end.

    Statements that are analysed, copied, put in and undone at a savepoint may all be in it, and
    another session, even a later one, ends it.
    """
    node.psql(
        "CREATE TABLE p_seen (id int PRIMARY KEY, v text); CREATE TABLE p_other (id int);"
        "INSERT INTO p_seen SELECT g, 'old' FROM generate_series(1, 3000) g;"
        "BEGIN; UPDATE p_seen SET v = 'new' WHERE id IN (SELECT g FROM generate_series(1, 9) g);"
        "SELECT max(v) FROM p_seen; SAVEPOINT s; DELETE FROM p_seen; ROLLBACK TO s;"
        "INSERT INTO p_other SELECT count(*) FROM p_seen WHERE v = 'new';"
        "PREPARE TRANSACTION 'p_seen'"
    )
    count = "SELECT count(*) FROM p_seen WHERE v = 'new'"
    change = b"INSERT INTO p_seen VALUES (0, 'waits')"
    with node.connect() as writer:
        assert node.psql(f"{count}; SELECT count(*) FROM p_other") == "0\n0"
        writer.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            writer.execute(change)
        node.psql("COMMIT PREPARED 'p_seen'")
        assert node.psql(f"{count}; SELECT id FROM p_other") == "9\n9"
        writer.execute(change)
        for rows in (4, 2000):
            node.psql(
                f"BEGIN; DELETE FROM p_seen WHERE id <= {rows}; TRUNCATE p_other;"
                "PREPARE TRANSACTION 'p_undone'"
            )
            node.psql("ROLLBACK PREPARED 'p_undone'")
            assert node.psql("SELECT count(*) FROM p_seen; TABLE p_other") == "3001\n9"
            writer.execute(b"UPDATE p_seen SET v = 'after' WHERE id = 1")
            assert node.psql("SELECT v FROM p_seen WHERE id < 3 ORDER BY id") == "waits\nafter\nnew"
    node.psql("DROP TABLE p_seen, p_other")


def test_definitions_in_it(node: Node) -> None:
    """CREATE, ALTER and DROP TABLE hold from COMMIT PREPARED on; what no relay can undo is refused.

    A subscription's commands have effects of the node around them when the session's transaction
    ends, so a transaction with one is not prepared.
    """
    node.psql(
        "CREATE TABLE p_altered (id int PRIMARY KEY); INSERT INTO p_altered VALUES (1);"
        "CREATE TABLE p_dropped (id int); INSERT INTO p_dropped VALUES (1);"
        "BEGIN; CREATE TABLE p_made (id int); INSERT INTO p_made VALUES (7);"
        "ALTER TABLE p_altered ADD v text; UPDATE p_altered SET v = 'x'; DROP TABLE p_dropped;"
        "PREPARE TRANSACTION 'p_defined'"
    )
    with pytest.raises(PsqlError, match='relation "p_made" does not exist'):
        node.psql("SELECT * FROM p_made")
    node.psql("COMMIT PREPARED 'p_defined'")
    assert node.psql("TABLE p_made; TABLE p_altered") == "7\n1|x"
    with pytest.raises(PsqlError, match='relation "p_dropped" does not exist'):
        node.psql("SELECT * FROM p_dropped")
    with pytest.raises(PsqlError, match="that has changed a subscription is not supported"):
        node.psql(
            "BEGIN; CREATE SUBSCRIPTION p CONNECTION '' PUBLICATION p WITH (connect = false);"
            "PREPARE TRANSACTION 'p_subscription'"
        )
    assert node.psql("SELECT count(*) FROM pg_prepared_xacts") == "0"
    node.psql("DROP TABLE p_made, p_altered")


HERE = "CREATE TABLE {0} (id int PRIMARY KEY, v text); CREATE TABLE {0}_log (n int, v text)"
GIDS = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
QUERIES = (
    f"SELECT count(*) FROM ({GIDS}) x",
    "SELECT id, v, w FROM {0} ORDER BY id",
    "SELECT n, v FROM {0}_log ORDER BY n, v",
)


class Pair:
    """A publisher of tables ``name``, and a PostgreSQL with the subscription ``name`` to it.

    The subscriber's table has a column ``w``, which the publisher may add.
    """

    def __init__(self, publisher: Node | Database, subscriber: Database, name: str) -> None:
        self.publisher = publisher
        self.subscriber = subscriber
        self.name = name

    def run(self, *statements: str) -> None:
        """Run statements on the publisher; {0} is ``name``."""
        self.publisher.psql("; ".join(statements).format(self.name))

    def shows(self) -> list[list[str]]:
        """Once all is applied: how many prepared transactions, and the rows of both tables."""
        if isinstance(self.publisher, Node):
            wait_applied(self.publisher, self.name)
        else:
            wait_caught_up(self.publisher)
        shown = [self.subscriber.psql(each.format(self.name)) for each in QUERIES]
        return [each.splitlines() for each in shown]

    def alter(self, action: str) -> None:
        """ALTER SUBSCRIPTION DISABLE or ENABLE; the stream has ended then, or has begun."""
        self.subscriber.psql(f"ALTER SUBSCRIPTION {self.name} {action}")
        query = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{self.name}'"
        wanted = "t" if action == "ENABLE" else "f"
        wait_until(lambda: self.publisher.psql(query) == wanted, SYNC_TIMEOUT, action)


@contextmanager
def paired(
    publisher: Node | Database, subscriber: Database, name: str, two_phase: str
) -> Iterator[Pair]:
    """The pair for the block, in sync; two_phase is enabled when it is wanted."""
    pair = Pair(publisher, subscriber, name)
    pair.run(
        HERE, "INSERT INTO {0} VALUES (1, 'one')", "CREATE PUBLICATION {0} FOR TABLE {0}, {0}_log"
    )
    subscriber.psql(f"{HERE.format(name)}; ALTER TABLE {name} ADD w int")
    if isinstance(publisher, Node):
        make_replica(publisher)
    target = conninfo(publisher) if isinstance(publisher, Node) else publisher.conninfo
    subscriber.psql(
        f"CREATE SUBSCRIPTION {name} CONNECTION '{target}' PUBLICATION {name}"
        f" WITH (two_phase = {two_phase})"
    )
    try:
        wait_in_sync(subscriber, name)
        state = f"SELECT subtwophasestate FROM pg_subscription WHERE subname = '{name}'"
        wanted = "e" if two_phase == "on" else "d"
        wait_until(lambda: subscriber.psql(state) == wanted, SYNC_TIMEOUT, "two_phase")
        yield pair
    finally:
        for gid in subscriber.psql(GIDS).splitlines():
            subscriber.psql(f"ROLLBACK PREPARED '{gid}'")
        subscriber.psql(f"DROP SUBSCRIPTION {name}")


@pytest.fixture
def subscriber_db(servers: Servers, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A new database of a server of the version in the parameter."""
    server = servers(request.param, "subscriber")
    database = Database(server, server.create_database())
    yield database
    drop_database(server, database.name)


def _is_sent_at_prepare(pair: Pair) -> None:
    """The steps; what the subscriber shows after each is what a PostgreSQL would have sent it."""
    pair.run(
        "BEGIN; INSERT INTO {0} VALUES (2, 'two'); UPDATE {0} SET v = 'ONE' WHERE id = 1",
        "SAVEPOINT s; DELETE FROM {0}; ROLLBACK TO s; PREPARE TRANSACTION '{0}_a'",
        "INSERT INTO {0}_log VALUES (1, 'plain')",
    )
    assert pair.shows() == [["1"], ["1|one|"], ["1|plain"]]
    pair.run("COMMIT PREPARED '{0}_a'")
    assert pair.shows() == [["0"], ["1|ONE|", "2|two|"], ["1|plain"]]
    pair.run(
        "BEGIN; INSERT INTO {0}_log SELECT g, 'never' FROM generate_series(10, 1000) g",
        "PREPARE TRANSACTION '{0}_b'; INSERT INTO {0} VALUES (3, 'three')",
    )
    assert pair.shows() == [["1"], ["1|ONE|", "2|two|", "3|three|"], ["1|plain"]]
    pair.run("ROLLBACK PREPARED '{0}_b'; INSERT INTO {0}_log VALUES (3, 'after')")
    assert pair.shows()[::2] == [["0"], ["1|plain", "3|after"]]


def _definitions_in_it(pair: Pair) -> None:
    """A column of it is sent with its rows, and with nobody else's before COMMIT PREPARED."""
    pair.run(
        "BEGIN; ALTER TABLE {0} ADD w int; UPDATE {0} SET w = 7 WHERE id = 1",
        "INSERT INTO {0} VALUES (4, 'four', 4); PREPARE TRANSACTION '{0}_c'",
        "INSERT INTO {0}_log VALUES (4, 'meanwhile')",
    )
    assert pair.shows()[0] == ["1"]
    pair.run("COMMIT PREPARED '{0}_c'; INSERT INTO {0} VALUES (5, 'five', 5)")
    rows = ["1|ONE|7", "2|two|", "3|three|", "4|four|4", "5|five|5"]
    assert pair.shows() == [["0"], rows, ["1|plain", "3|after", "4|meanwhile"]]
    pair.run(
        "BEGIN; ALTER PUBLICATION {0} SET TABLE {0} WHERE (id > 2), {0}_log",
        "INSERT INTO {0} VALUES (-6, 'not sent'), (6, 'six'); PREPARE TRANSACTION '{0}_d'",
        "COMMIT PREPARED '{0}_d'; ALTER PUBLICATION {0} SET TABLE {0}, {0}_log",
    )
    assert pair.shows()[1] == [*rows, "6|six|"]


def _while_nobody_follows(pair: Pair) -> None:
    """What is prepared, and ended, while the subscriber is away comes in the order of the WAL."""
    pair.run("BEGIN; INSERT INTO {0}_log VALUES (5, 'kept'); PREPARE TRANSACTION '{0}_e'")
    assert pair.shows()[0] == ["1"]
    pair.alter("DISABLE")
    pair.run(
        "COMMIT PREPARED '{0}_e'; BEGIN; DELETE FROM {0}; TRUNCATE {0}_log",
        "PREPARE TRANSACTION '{0}_f'; ROLLBACK PREPARED '{0}_f'",
        "INSERT INTO {0}_log VALUES (6, 'again'); INSERT INTO {0} VALUES (7, 'seven')",
        "BEGIN; DELETE FROM {0} WHERE id < 7; PREPARE TRANSACTION '{0}_g'; COMMIT PREPARED '{0}_g'",
    )
    pair.alter("ENABLE")
    log = ["1|plain", "3|after", "4|meanwhile", "5|kept", "6|again"]
    assert pair.shows() == [["0"], ["7|seven|"], log]


@pytest.mark.parametrize("subscriber_db", ["15", "16", NEWEST], indirect=True)
def test_sent_at_prepare(subscriber_db: Database, node: Node) -> None:
    """With two_phase a PostgreSQL has a transaction of the lake prepared, too, until its end."""
    name = f"tp_{subscriber_db.server.version}"
    with paired(node, subscriber_db, name, "on") as pair:
        _is_sent_at_prepare(pair)
        _definitions_in_it(pair)
        _while_nobody_follows(pair)


@pytest.mark.parametrize("subscriber_db", [NEWEST], indirect=True)
def test_sent_at_prepare_by_postgresql(subscriber_db: Database, publisher_db: Database) -> None:
    """The oracle of the test above: what a PostgreSQL's subscriber shows."""
    name = f"tp_{publisher_db.name}"  # a server's prepared transactions share their names
    with paired(publisher_db, subscriber_db, name, "on") as pair:
        _is_sent_at_prepare(pair)
        _definitions_in_it(pair)
        _while_nobody_follows(pair)


def test_sent_at_commit_prepared(node: Node, servers: Servers, publisher_db: Database) -> None:
    """Without two_phase a subscriber gets it at COMMIT PREPARED, as any other transaction."""
    server = servers("16", "subscriber")
    database = Database(server, server.create_database())
    for publisher, name in ((node, "tp_off"), (publisher_db, f"tp_{publisher_db.name}_off")):
        with paired(publisher, database, name, "off") as pair:
            pair.run(
                "BEGIN; INSERT INTO {0} VALUES (2, 'two'); PREPARE TRANSACTION '{0}_a'",
                "BEGIN; INSERT INTO {0}_log VALUES (1, 'never'); PREPARE TRANSACTION '{0}_b'",
                "ROLLBACK PREPARED '{0}_b'; INSERT INTO {0}_log VALUES (2, 'plain')",
            )
            assert pair.shows() == [["0"], ["1|one|"], ["2|plain"]]
            pair.run("COMMIT PREPARED '{0}_a'")
            assert pair.shows() == [["0"], ["1|one|", "2|two|"], ["2|plain"]]
    drop_database(server, database.name)


@topologies("postgres_to_lake", "lake_to_lake")
def test_into_a_lake(ends: Ends) -> None:
    """A node that subscribes keeps it from PREPARE on, and shows it from COMMIT PREPARED on."""
    publisher, subscriber = ends.publisher, ends.subscriber
    publisher.psql(
        "CREATE TABLE tp_lake (id int PRIMARY KEY, v text); INSERT INTO tp_lake VALUES (1, 'one');"
        "CREATE PUBLICATION tp_lake FOR TABLE tp_lake"
    )
    ends.subscribe("tp_lake", "tp_lake", "two_phase = true")
    state = "SELECT subtwophasestate FROM pg_subscription WHERE subname = 'tp_lake'"
    wait_until(lambda: subscriber.psql(state) == "e", SYNC_TIMEOUT, "two_phase to be enabled")
    slot = "SELECT active AND two_phase FROM pg_replication_slots WHERE slot_name = 'tp_lake'"
    wait_until(lambda: publisher.psql(slot) == "t", SYNC_TIMEOUT, "the slot with two_phase")
    ends.sent(
        "tp_lake",
        "BEGIN; UPDATE tp_lake SET v = 'ONE'; INSERT INTO tp_lake VALUES (2, 'two');"
        "PREPARE TRANSACTION 'tp_lake_a'",
    )
    ends.same("tp_lake")
    assert subscriber.rows("tp_lake") == ["1|one"]
    assert isinstance(subscriber.at, Node)
    assert list(subscriber.at.home.glob("staging/*/prepared/*"))
    ends.sent(
        "tp_lake",
        "COMMIT PREPARED 'tp_lake_a'; BEGIN; DELETE FROM tp_lake; PREPARE TRANSACTION 'tp_lake_b';"
        "ROLLBACK PREPARED 'tp_lake_b'; INSERT INTO tp_lake VALUES (3, 'three')",
    )
    ends.same("tp_lake")
    assert subscriber.rows("tp_lake") == ["1|ONE", "2|two", "3|three"]
    assert not list(subscriber.at.home.glob("staging/*/prepared/*"))
