# SPDX-License-Identifier: Apache-2.0
"""What a lake's publications publish to a real PostgreSQL, and when a change of them counts."""

from __future__ import annotations

from tests.support.fix_node import NewNode
from tests.support.fix_servers import Database, Servers
from tests.support.node import Node
from tests.support.published import (
    make_replica,
    subscribed_to,
    wait_applied,
    wait_in_sync,
    wait_same,
)
from tests.support.subscribing import SYNC_TIMEOUT, subscribed, wait_caught_up
from tests.support.waits import wait_until


def test_a_change_of_a_publication_counts_from_its_commit_on(
    publisher_db: Database, node: Node
) -> None:
    """What was committed before ALTER PUBLICATION or ALTER TABLE is published as it was then.

    The subscription is disabled meanwhile, so that everything is read late.
    """
    node.psql(
        "CREATE TABLE lp_then (a int PRIMARY KEY, b text); CREATE TABLE lp_late (a int);"
        "CREATE PUBLICATION lp_then FOR TABLE lp_then"
    )
    publisher_db.psql(
        "CREATE TABLE lp_then (a int PRIMARY KEY, b text, c int); CREATE TABLE lp_late (a int)"
    )
    with subscribed_to(node, publisher_db, "lp_then", "lp_then"):
        publisher_db.psql("ALTER SUBSCRIPTION lp_then DISABLE")
        node.psql(
            "INSERT INTO lp_then VALUES (1, 'sent');"
            "ALTER PUBLICATION lp_then SET (publish = 'update');"
            "INSERT INTO lp_then VALUES (2, 'not sent');"
            "ALTER PUBLICATION lp_then SET (publish = 'insert');"
            "ALTER PUBLICATION lp_then SET TABLE lp_then WHERE (a > 3);"
            "INSERT INTO lp_then VALUES (3, 'filtered'), (4, 'sent');"
            "ALTER TABLE lp_then ADD c int DEFAULT 5; INSERT INTO lp_then VALUES (5, 'sent', 6);"
            "ALTER TABLE lp_then DROP b; INSERT INTO lp_then VALUES (6, 7);"
            "ALTER PUBLICATION lp_then SET TABLE lp_late; INSERT INTO lp_then VALUES (7, 8);"
            "INSERT INTO lp_late VALUES (9); DROP TABLE lp_then"
        )
        publisher_db.psql("ALTER SUBSCRIPTION lp_then ENABLE")
        wait_applied(node, "lp_then")
        expected = ["1|sent|", "4|sent|", "5|sent|6", "6||7"]
        assert publisher_db.psql("SELECT * FROM lp_then ORDER BY a").splitlines() == expected
        assert publisher_db.psql("SELECT * FROM lp_late") == ""  # not subscribed before REFRESH
        publisher_db.psql("ALTER SUBSCRIPTION lp_then REFRESH PUBLICATION")
        wait_in_sync(publisher_db, "lp_then")
        assert publisher_db.psql("SELECT * FROM lp_late") == "9"
        node.psql("INSERT INTO lp_late VALUES (10)")
        wait_same(node, publisher_db, "lp_then", "SELECT * FROM lp_late")


def test_all_tables_and_schemas(publisher_db: Database, node: Node) -> None:
    """FOR ALL TABLES has the lake's tables and not the node's own; a schema has those in it."""
    tables = "CREATE SCHEMA lp_s; CREATE TABLE lp_s.one (a int); CREATE TABLE lp_s.two (a int)"
    node.psql(
        f"{tables}; INSERT INTO lp_s.one VALUES (1); CREATE PUBLICATION lp_all FOR ALL TABLES;"
        "CREATE PUBLICATION lp_schema FOR TABLES IN SCHEMA lp_s"
    )
    listed = "SELECT DISTINCT schemaname FROM pg_publication_tables WHERE pubname = 'lp_all'"
    assert "penstock" not in node.psql(listed).split()
    publisher_db.psql(tables)
    queries = ("SELECT * FROM lp_s.one", "SELECT * FROM lp_s.two")
    with subscribed_to(node, publisher_db, "lp_schema", "lp_schema"):
        node.psql("INSERT INTO lp_s.one VALUES (2); INSERT INTO lp_s.two VALUES (3)")
        wait_same(node, publisher_db, "lp_schema", *queries)
        both = "CREATE TABLE lp_s.three (a int)"
        node.psql(f"{both}; INSERT INTO lp_s.three VALUES (4)")
        publisher_db.psql(f"{both}; ALTER SUBSCRIPTION lp_schema REFRESH PUBLICATION")
        wait_in_sync(publisher_db, "lp_schema")
        wait_same(node, publisher_db, "lp_schema", "SELECT * FROM lp_s.three")
    node.psql("DROP PUBLICATION lp_all, lp_schema; DROP SCHEMA lp_s CASCADE")


def test_truncate_of_tables_that_refer_to_each_other(publisher_db: Database, node: Node) -> None:
    """One TRUNCATE of several tables is one at the subscriber, too; unpublished, it is none."""
    tables = "CREATE TABLE lp_a (id int PRIMARY KEY); CREATE TABLE lp_b (id int{})"
    node.psql(
        f"{tables.format('')}; INSERT INTO lp_a VALUES (1), (2); INSERT INTO lp_b VALUES (1);"
        "CREATE PUBLICATION lp_truncate FOR TABLE lp_a, lp_b"
    )
    publisher_db.psql(tables.format(" REFERENCES lp_a"))
    queries = ("SELECT * FROM lp_a", "SELECT * FROM lp_b")
    with subscribed_to(node, publisher_db, "lp_truncate", "lp_truncate"):
        wait_same(node, publisher_db, "lp_truncate", *queries)
        node.psql("BEGIN; TRUNCATE lp_a, lp_b; INSERT INTO lp_a VALUES (7); COMMIT")
        wait_same(node, publisher_db, "lp_truncate", *queries)
        node.psql(
            "ALTER PUBLICATION lp_truncate SET (publish = 'insert, update, delete');"
            "TRUNCATE lp_a; INSERT INTO lp_a VALUES (8)"
        )
        wait_applied(node, "lp_truncate")
        assert publisher_db.psql("SELECT * FROM lp_a ORDER BY 1").split() == ["7", "8"]


def test_partitions_by_leaf_and_by_root(publisher_db: Database, node: Node) -> None:
    """Through the root the subscriber has one plain table, otherwise the same partitions."""
    node.psql(
        "CREATE TABLE lp_root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE lp_low PARTITION OF lp_root FOR VALUES FROM (0) TO (100);"
        "CREATE TABLE lp_high PARTITION OF lp_root FOR VALUES FROM (100) TO (200);"
        "INSERT INTO lp_root SELECT g, 'v' || g FROM generate_series(0, 190, 10) g;"
        "CREATE PUBLICATION lp_root FOR TABLE lp_root WITH (publish_via_partition_root);"
        "CREATE PUBLICATION lp_leaves FOR TABLE lp_root"
    )
    changes = (
        "UPDATE lp_root SET id = 199 - id, v = v || '!' WHERE id % 20 = 0;"
        "DELETE FROM lp_root WHERE id IN (10, 110); INSERT INTO lp_root VALUES (1, 'a'), (101, 'b')"
    )
    publisher_db.psql("CREATE TABLE lp_root (id int PRIMARY KEY, v text)")
    with subscribed_to(node, publisher_db, "lp_root", "lp_root"):
        wait_same(node, publisher_db, "lp_root", "SELECT * FROM lp_root")
        node.psql(changes)
        wait_same(node, publisher_db, "lp_root", "SELECT * FROM lp_root")
    publisher_db.psql(
        "DROP TABLE lp_root; CREATE TABLE lp_low (v text, id int PRIMARY KEY);"
        "CREATE TABLE lp_high (id int PRIMARY KEY, v text)"
    )
    with subscribed_to(node, publisher_db, "lp_leaves", "lp_leaves"):
        node.psql("UPDATE lp_root SET id = 199 - id; TRUNCATE lp_low")
        wait_same(
            node, publisher_db, "lp_leaves",
            "SELECT id, v FROM lp_low", "SELECT id, v FROM lp_high",
        )  # fmt: skip


def test_two_way_replication_does_not_loop(publisher_db: Database, node: Node) -> None:
    """With origin = none on both sides each gets what the other has written, and nothing else."""
    table = "CREATE TABLE lp_two (id int PRIMARY KEY, at text)"
    node.psql(f"{table}; CREATE PUBLICATION lp_two FOR TABLE lp_two")
    publisher_db.psql(f"{table}; CREATE PUBLICATION lp_two FOR TABLE lp_two")
    options = "origin = none, copy_data = false"
    with (
        subscribed(node, publisher_db, "lp_two_in", "lp_two", options),
        subscribed_to(node, publisher_db, "lp_two_out", "lp_two", options),
    ):
        node.psql("INSERT INTO lp_two VALUES (1, 'lake'), (2, 'lake')")
        wait_applied(node, "lp_two_out")
        publisher_db.psql(
            "INSERT INTO lp_two VALUES (3, 'server'); UPDATE lp_two SET at = 'both' WHERE id = 1;"
            "DELETE FROM lp_two WHERE id = 2"
        )
        wait_caught_up(publisher_db)
        node.psql("UPDATE lp_two SET at = 'lake again' WHERE id = 3")
        wait_same(node, publisher_db, "lp_two_out", "SELECT * FROM lp_two")
        assert node.psql("SELECT * FROM lp_two ORDER BY id") == "1|both\n3|lake again"
        stats = "SELECT apply_error_count FROM pg_stat_subscription_stats WHERE subname = '{}'"
        assert publisher_db.psql(stats.format("lp_two_out")) == "0"
        assert node.psql(stats.format("lp_two_in")) == "0"


def test_a_cascade_filters_at_both_hops(
    publisher_db: Database, servers: Servers, node: Node
) -> None:
    """PostgreSQL to the lake to another PostgreSQL; each publication's filter counts."""
    last = servers("18", "subscriber")
    database = Database(last, last.create_database())
    table = "CREATE TABLE lp_chain (id int PRIMARY KEY, v text)"
    publisher_db.psql(
        f"{table}; INSERT INTO lp_chain SELECT g, 'v' FROM generate_series(1, 40) g;"
        "CREATE PUBLICATION lp_chain FOR TABLE lp_chain WHERE (id > 10)"
    )
    database.psql(table)
    node.psql("CREATE TABLE lp_chain (id int PRIMARY KEY, v text)")
    node.psql("CREATE PUBLICATION lp_chain FOR TABLE lp_chain WHERE (id % 2 = 0)")
    with (
        subscribed(node, publisher_db, "lp_chain", "lp_chain"),
        subscribed_to(node, database, "lp_chain_out", "lp_chain"),
    ):
        publisher_db.psql(
            "UPDATE lp_chain SET id = id + 101 WHERE id >= 30; UPDATE lp_chain SET v = 'w'"
            " WHERE id < 20; DELETE FROM lp_chain WHERE id IN (20, 21)"
        )
        wait_caught_up(publisher_db)
        wait_applied(node, "lp_chain_out")
        expected = publisher_db.psql(
            "SELECT * FROM lp_chain WHERE id > 10 AND id % 2 = 0 ORDER BY id"
        )
        assert database.psql("SELECT * FROM lp_chain ORDER BY id") == expected
        assert expected


def test_a_synchronous_subscriber_is_waited_for(publisher_db: Database, new_node: NewNode) -> None:
    """With synchronous_standby_names a client's COMMIT returns when the subscriber has the row."""
    node = new_node().start()
    table = "CREATE TABLE lp_sync (id int PRIMARY KEY)"
    node.psql(f"{table}; CREATE PUBLICATION lp_sync FOR TABLE lp_sync")
    publisher_db.psql(table)
    make_replica(node)
    with subscribed_to(node, publisher_db, "lp_sync", "lp_sync"):
        node.psql("ALTER SYSTEM SET synchronous_standby_names = 'lp_sync'")
        node.psql("SELECT pg_reload_conf()")
        state = "SELECT sync_state FROM pg_stat_replication WHERE application_name = 'lp_sync'"
        wait_until(lambda: node.psql(state) == "sync", SYNC_TIMEOUT, "the synchronous standby")
        for number in range(3):
            node.psql(
                f"SET synchronous_commit = remote_apply; INSERT INTO lp_sync VALUES ({number})"
            )
            assert publisher_db.psql("SELECT max(id) FROM lp_sync") == str(number)
        node.psql("ALTER SYSTEM RESET synchronous_standby_names")
        node.psql("SELECT pg_reload_conf()")
