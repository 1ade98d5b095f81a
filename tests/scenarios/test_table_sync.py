# SPDX-License-Identifier: Apache-2.0
"""Tables that cannot be copied into the lake."""

from __future__ import annotations

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.subscribing import drop_subscription, wait_equal
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
