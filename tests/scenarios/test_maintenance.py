# SPDX-License-Identifier: Apache-2.0
"""Small files do not pile up in a subscribed table, and compaction survives a kill."""

from __future__ import annotations

from pathlib import Path

from penstock.failpoints import Failpoint
from penstock.lake.compact import EIGHT
from penstock.lake.log import data_files
from tests.support.fix_node import NewNode
from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.subscribing import wait_caught_up, wait_equal, wait_ready
from tests.support.waits import wait_until

IN_COMPACTION = Failpoint.OPTIMIZE_BEFORE_COMMIT


def file_count(node: Node) -> int:
    """Data files of the committed version of the node's only table."""
    row = node.psql("SELECT location, version FROM penstock.table_version")
    location, version = row.split("|")
    return len(data_files(str(Path(node.home, "lake", location)), int(version)))


def test_small_files_are_joined_through_a_kill(publisher_db: Database, new_node: NewNode) -> None:
    """After a kill -9 in the middle of a compaction the next one is made; the rows are equal."""
    publisher_db.psql(
        "CREATE TABLE mt (id int PRIMARY KEY, v text); CREATE PUBLICATION mt FOR TABLE mt"
    )
    node = new_node().start(IN_COMPACTION)
    node.psql(f"CREATE SUBSCRIPTION mt CONNECTION '{publisher_db.conninfo}' PUBLICATION mt")
    wait_ready(node, "mt")
    with publisher_db.connect() as conn:
        for number in range(2 * EIGHT):
            conn.execute("INSERT INTO mt VALUES (%s, 'new')", [number])
            conn.execute("UPDATE mt SET v = 'changed' WHERE id = %s", [number // 2])
            wait_caught_up(publisher_db)
    assert node.wait_for_death() == -9
    publisher_db.psql("DELETE FROM mt WHERE id = 1")
    node.start()
    wait_equal(publisher_db, "SELECT * FROM mt", node)
    wait_until(lambda: file_count(node) < EIGHT, 30, "the files to be joined")
    publisher_db.psql("UPDATE mt SET v = 'after' WHERE id % 3 = 0; INSERT INTO mt VALUES (99, 'z')")
    wait_equal(publisher_db, "SELECT * FROM mt", node)
    assert node.psql("SELECT purpose FROM penstock.commit WHERE purpose = 'optimize' LIMIT 1")
