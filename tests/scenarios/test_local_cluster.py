# SPDX-License-Identifier: Apache-2.0
"""A node whose Spark is a small cluster: executors are processes of their own.

Nothing on a data path may need the driver's memory or its own folders: what executors cannot see,
they would not find here.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from penstock.lake.compact import EIGHT
from penstock.lake.log import data_files
from tests.support.fix_node import NewNode
from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.subscribing import wait_caught_up, wait_equal, wait_ready
from tests.support.waits import wait_until

ROWS = 20_000
WORK = Path(pyspark.__file__).parent / "work"  # the workers' folders, whatever is set
OLD = 8 * 86400  # seconds, beyond Delta's retention


@pytest.fixture
def cluster_node(new_node: NewNode) -> Iterator[Node]:
    """Two workers with one core and 2 GB each; executors do whatever they can, however small."""
    env = {
        "PENSTOCK_COPY_SPREAD_BYTES": "0",
        "PENSTOCK_SEARCH_SPREAD_ROWS": "0",
        "PENSTOCK_AUTOVACUUM_NAPTIME": "2",
    }
    shutil.rmtree(WORK, ignore_errors=True)
    yield new_node(flags=["--spark=spark.master=local-cluster[2,1,2048]"], env=env).start()
    shutil.rmtree(WORK, ignore_errors=True)


def whole_table(node: Node) -> tuple[str, int]:
    """The folder and the committed version of the larger table."""
    row = node.psql(
        "SELECT location, version FROM penstock.table_version WHERE relid = 'whole'::regclass"
    )
    location, version = row.split("|")
    return str(Path(node.home, "lake", location)), int(version)


@pytest.mark.timeout(400)
def test_everything_that_executors_do(publisher_db: Database, cluster_node: Node) -> None:
    """Copies, a batch, routing to partitions, queries, compaction, VACUUM: both sides are equal."""
    node = cluster_node
    publisher_db.psql(
        "CREATE TABLE whole (id int PRIMARY KEY, v text, n numeric(10,2));"
        "CREATE TABLE part (id int PRIMARY KEY, v text);"
        f"INSERT INTO whole SELECT g, 'v' || g, g FROM generate_series(1, {ROWS}) g;"
        f"INSERT INTO part SELECT g, 'v' || g FROM generate_series(1, {ROWS}) g;"
        "CREATE PUBLICATION pw FOR TABLE whole;"
        "CREATE PUBLICATION pp FOR TABLE part WHERE (id % 10 = 0)"
    )
    node.psql(
        "CREATE TABLE part (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (MINVALUE) TO (10000);"
        "CREATE TABLE part2 PARTITION OF part FOR VALUES FROM (10000) TO (MAXVALUE);"
        f"CREATE SUBSCRIPTION lc CONNECTION '{publisher_db.conninfo}' PUBLICATION pw, pp"
    )
    wait_ready(node, "lc")
    wait_equal(publisher_db, "SELECT * FROM whole", node)

    orphan = Path(whole_table(node)[0], "of-a-crashed-batch.parquet")
    orphan.touch()
    os.utime(orphan, (time.time() - OLD,) * 2)
    publisher_db.psql(
        "UPDATE whole SET v = v || '!' WHERE id % 3 = 0; DELETE FROM whole WHERE id % 7 = 0;"
        f"INSERT INTO whole VALUES ({ROWS + 1}, 'new', 1);"
        "UPDATE part SET v = 'new' WHERE id % 20 = 0; UPDATE part SET id = -10 WHERE id = 15000"
    )
    for number in range(EIGHT):
        publisher_db.psql(f"INSERT INTO whole VALUES ({ROWS + 2 + number}, 'small', 0)")
        wait_caught_up(publisher_db)
    wait_equal(publisher_db, "SELECT * FROM whole", node)
    wait_equal(publisher_db, "SELECT * FROM part WHERE id % 10 = 0", node, "SELECT * FROM part")
    joined = "SELECT count(*), sum(w.n) FROM whole w JOIN part p ON p.id = w.id WHERE p.v = 'new'"
    assert node.psql(joined) == publisher_db.psql(joined + " AND p.id % 10 = 0")
    wait_until(lambda: len(data_files(*whole_table(node))) < EIGHT, 60, "small files to be joined")
    wait_until(lambda: not orphan.exists(), 60, "the old file to be removed")
    wait_equal(publisher_db, "SELECT * FROM whole", node)
    assert "executors look through" in node.text()
    assert len(list(WORK.glob("app-*/[01]"))) == 2
