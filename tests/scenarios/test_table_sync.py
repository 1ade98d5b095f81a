# SPDX-License-Identifier: Apache-2.0
"""Copies beside what fails: other tables, and the stream."""

from __future__ import annotations

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.subscribing import drop_subscription, wait_equal, wait_ready
from tests.support.waits import wait_until

STATES = """SELECT srrelid::regclass::text, srsubstate FROM pg_subscription_rel
WHERE srrelid IN ('tsy_empty'::regclass, 'tsy_other'::regclass) ORDER BY 1"""


def test_a_table_without_columns_holds_up_no_other(publisher_db: Database, node: Node) -> None:
    """It is refused, again and again; the other one is copied, and followed."""
    tables = "CREATE TABLE tsy_empty (); CREATE TABLE tsy_other (id int PRIMARY KEY)"
    publisher_db.psql(f"{tables}; INSERT INTO tsy_other VALUES (1)")
    publisher_db.psql("CREATE PUBLICATION tsy FOR TABLE tsy_empty, tsy_other")
    node.psql(tables)
    node.psql(f"CREATE SUBSCRIPTION tsy CONNECTION '{publisher_db.conninfo}' PUBLICATION tsy")
    wait_until(lambda: "tsy_other|r" in node.psql(STATES), 60, "the table with columns")
    publisher_db.psql("INSERT INTO tsy_other VALUES (2)")
    wait_equal(publisher_db, "SELECT * FROM tsy_other", node)
    assert "tsy_empty|r" not in node.psql(STATES)
    drop_subscription(node, "tsy")


def test_a_change_that_cannot_be_applied_holds_up_no_copy(
    publisher_db: Database, node: Node
) -> None:
    """The stream fails at once, again and again; a table that is new is copied, as by PostgreSQL.

    When the table that the stream lacks is made, it goes on, and both are as on the publisher.
    """
    table = "CREATE TABLE tsc_{} (id int PRIMARY KEY)"
    publisher_db.psql(f"{table.format('t')}; INSERT INTO tsc_t VALUES (1)")
    publisher_db.psql("CREATE PUBLICATION tsc FOR ALL TABLES")
    node.psql(f"{table.format('t')}; {table.format('old')}")
    node.psql(f"CREATE SUBSCRIPTION tsc CONNECTION '{publisher_db.conninfo}' PUBLICATION tsc")
    wait_ready(node, "tsc")
    publisher_db.psql(
        f"BEGIN; {table.format('new')}; INSERT INTO tsc_new SELECT * FROM tsc_t;"
        "ALTER TABLE tsc_t RENAME TO tsc_old; ALTER TABLE tsc_new RENAME TO tsc_t; COMMIT"
    )
    error = "SELECT message FROM penstock.subscription_error"
    wait_until(lambda: "tsc_new" in node.psql(error), 30, "the stream to fail")
    node.psql("ALTER SUBSCRIPTION tsc REFRESH PUBLICATION")
    copied = "SELECT count(*) FROM tsc_old"
    wait_until(lambda: node.psql(copied) == "1", 60, "the copy")
    node.psql(table.format("new"))
    publisher_db.psql("INSERT INTO tsc_old VALUES (7)")
    wait_equal(publisher_db, "SELECT * FROM tsc_old", node)
    drop_subscription(node, "tsc")
