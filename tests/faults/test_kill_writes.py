# SPDX-License-Identifier: Apache-2.0
"""kill -9 while a client's statement writes the lake: nothing of it is ever seen."""

from __future__ import annotations

import psycopg
import pytest

from penstock.failpoints import Failpoint
from tests.support.fix_servers import Database, drop_database
from tests.support.node import Node
from tests.support.psql import PsqlError
from tests.support.published import wait_same
from tests.support.replica import Replica
from tests.support.servers import PostgresServer
from tests.support.subscribing import SYNC_TIMEOUT
from tests.support.waits import wait_until

IN_WRITES = [Failpoint.WRITE_DELTA_COMMITTED, Failpoint.WRITE_BEFORE_COMMIT]


def test_kill_between_delta_and_commit(fault_node: Node) -> None:
    """A statement whose Delta commit is done and whose transaction is not leaves no trace.

    The first one dies with a new Delta table, the second one with everything but its COMMIT.
    """
    node = fault_node
    if node.running:
        node.kill()
    node.start(IN_WRITES[0])
    node.psql("CREATE TABLE kw (id int PRIMARY KEY, s serial)")
    for failpoint in (*IN_WRITES[1:], None):
        with pytest.raises(psycopg.OperationalError), node.connect() as conn:
            conn.execute("INSERT INTO kw VALUES (1), (2)")
        assert node.wait_for_death() == -9
        node.start(failpoint)
        assert node.psql("SELECT count(*) FROM kw") == "0"
    node.psql("INSERT INTO kw VALUES (1)")
    assert node.psql("SELECT id FROM kw") == "1"
    node.psql("DROP TABLE kw")


def test_kill_with_prepared_transactions(fault_node: Node, replica_server: PostgresServer) -> None:
    """What is prepared stays so, unseen and in the way of writers, whoever is killed, to its end.

    A table that one of them makes is known as the lake's once it is committed, though the node
    that saw it made is gone.  A subscriber with two_phase that has prepared it commits it then.
    """
    node = fault_node
    if not node.running:
        node.start()

    def rows(table: str) -> list[str]:
        return sorted(node.psql(f"COPY {table} TO STDOUT").splitlines())

    node.psql(
        "CREATE TABLE wp (id int PRIMARY KEY); CREATE TABLE wp_b (id int);"
        "INSERT INTO wp VALUES (1); INSERT INTO wp_b VALUES (1); CREATE PUBLICATION wp FOR TABLE wp"
    )
    replica = Replica(node, Database(replica_server, replica_server.create_database()))
    replica.database.psql("CREATE TABLE wp (id int PRIMARY KEY)")
    replica.subscribe("wp", "wp", "two_phase = true")
    state = "SELECT subtwophasestate FROM pg_subscription WHERE subname = 'wp'"
    wait_until(lambda: replica.database.psql(state) == "e", SYNC_TIMEOUT, "two_phase")
    node.psql(
        "BEGIN; UPDATE wp SET id = 2; INSERT INTO wp VALUES (3); PREPARE TRANSACTION 'wp';"
        "BEGIN; INSERT INTO wp_b VALUES (2); PREPARE TRANSACTION 'wp_b';"
        "BEGIN; CREATE TABLE wp_made (id int); INSERT INTO wp_made VALUES (7);"
        "PREPARE TRANSACTION 'wp_made'"
    )
    prepared = "SELECT count(*) FROM pg_prepared_xacts"
    wait_until(
        lambda: replica.database.psql(prepared) == "3", SYNC_TIMEOUT, "all, two of them empty"
    )
    node.kill()
    node.start()
    assert rows("wp") == rows("wp_b") == ["1"]
    with pytest.raises(PsqlError, match="lock timeout"):
        node.psql("SET lock_timeout = '100ms'; INSERT INTO wp VALUES (4)")
    node.kill_control()
    assert node.wait_for_death() != 0
    node.start()
    assert rows("wp") == rows("wp_b") == ["1"]
    node.psql("COMMIT PREPARED 'wp_made'; COMMIT PREPARED 'wp'; ROLLBACK PREPARED 'wp_b'")
    with pytest.raises(PsqlError, match="locking rows of lake tables is not supported"):
        node.psql("SELECT FROM wp_made FOR UPDATE")
    assert (rows("wp"), rows("wp_b"), rows("wp_made")) == (["2", "3"], ["1"], ["7"])
    node.psql("INSERT INTO wp VALUES (5); INSERT INTO wp_b VALUES (3); DELETE FROM wp_made")
    assert (rows("wp"), rows("wp_b"), rows("wp_made")) == (["2", "3", "5"], ["1", "3"], [])
    wait_same(node, replica.database, "wp", "COPY wp TO STDOUT")
    assert replica.database.psql(prepared) == "0"
    drop_database(replica_server, replica.database.name)
    node.psql(
        "SELECT pg_drop_replication_slot('wp'); DROP PUBLICATION wp; DROP TABLE wp, wp_b, wp_made"
    )


def test_a_statement_that_needs_too_many_rows_is_refused(fault_node: Node) -> None:
    """More than statement_rows is 0A000, and nothing is done; what needs fewer goes on."""
    node = fault_node
    if not node.running:
        node.start()
    node.psql(
        "CREATE TABLE many (id int PRIMARY KEY, a text);"
        "INSERT INTO many SELECT g, 'a' FROM generate_series(1, 20001) g"
    )
    with node.connect() as conn:
        for sql in (
            "UPDATE many SET a = 'b'",
            "DELETE FROM many WHERE a > ''",
            "INSERT INTO many SELECT id + 1, a FROM many",
        ):
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="so many rows") as caught:
                conn.execute(sql.encode())
            assert "20001 rows" in (caught.value.diag.message_detail or "")
        assert conn.execute("UPDATE many SET a = 'b' WHERE id > 2").statusmessage == "UPDATE 19999"
        assert conn.execute("SELECT count(*) FROM many WHERE a = 'a'").fetchall() == [(2,)]
        conn.execute("CREATE TEMP TABLE few AS SELECT g AS id FROM generate_series(1, 3) g")
        joined = "UPDATE many SET a = 'c' FROM few WHERE few.id = many.id"
        assert conn.execute(joined).statusmessage == "UPDATE 3"
        conn.execute("TRUNCATE many")
    node.psql("DROP TABLE many")
