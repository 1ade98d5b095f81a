# SPDX-License-Identifier: Apache-2.0
"""Neither small files nor old ones pile up in a subscribed table; a kill in between harms nothing.

One node for all of it: it is killed in a compaction, then in a removal of old files.
"""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest

from penstock.failpoints import Failpoint
from penstock.lake.compact import EIGHT
from penstock.lake.durable import deletion_vector_path
from penstock.lake.key_index import FOLDER
from penstock.lake.log import commit, data_files, head_version, latest_action
from penstock.lake.vacuum import FILES_KEPT
from tests.support.fix_node import NewNode
from tests.support.fix_servers import Database
from tests.support.node import DATABASE, SUPERUSER, Node
from tests.support.subscribing import wait_caught_up, wait_equal, wait_ready
from tests.support.waits import wait_until

IN_MAINTENANCE = [Failpoint.OPTIMIZE_BEFORE_COMMIT, Failpoint.VACUUM_FILES_REMOVED]
QUICK = {"PENSTOCK_AUTOVACUUM_NAPTIME": "1"}
NOT_VACUUMED = 'table "public.mt" is not vacuumed: it is copied'


def committed(node: Node) -> tuple[str, int]:
    """Folder and version of the node's only table."""
    row = node.psql("SELECT location, version FROM penstock.table_version")
    location, version = row.split("|")
    return str(Path(node.home, "lake", location)), int(version)


def file_count(node: Node) -> int:
    """Data files of its committed version."""
    return len(data_files(*committed(node)))


def needed(node: Node) -> set[str]:
    """Files that its committed version has: data files and deletion vectors."""
    files = data_files(*committed(node)).values()
    vectors = [file.vector["pathOrInlineDv"] for file in files if file.vector is not None]
    return {file.path for file in files} | {deletion_vector_path(each) for each in vectors}


def there(node: Node) -> set[str]:
    """Files that lie in its folder."""
    return {path.name for path in Path(committed(node)[0]).iterdir() if path.is_file()}


def in_control(node: Node, statement: str, *parameters: object) -> None:
    """Run a statement in the control database itself: through the node it may be refused."""
    lock = Path(node.home, "control", "data", "postmaster.pid").read_text().splitlines()
    password = (node.home / "pgpass").read_text().split()[0].rpartition(":")[2]
    with psycopg.connect(
        host=lock[4], port=lock[3], dbname=DATABASE, user=SUPERUSER, password=password
    ) as conn:
        conn.execute(statement.encode(), parameters)


def keep_no_old_files(folder: str) -> None:
    """Another program sets the retention of the table in a folder to nothing."""
    head = head_version(folder)
    assert head is not None
    metadata = json.loads(json.dumps(latest_action(folder, head, "metaData")))
    metadata["configuration"][FILES_KEPT[0]] = "interval 0 hours"
    commit(folder, head + 1, [{"metaData": metadata}], "SET TBLPROPERTIES", "")


@pytest.mark.timeout(400)
def test_files_do_not_pile_up(publisher_db: Database, new_node: NewNode) -> None:
    """After a kill -9 in the middle of a compaction the next one is made; the rows are equal.

    What it replaced, and what crashed batches left, is removed when the retention is over, down to
    the files and deletion vectors that count, with indexes that no file needs; but nothing while
    the table is copied, nor what a slot's subscriber is still to be told of.
    """
    publisher_db.psql(
        "CREATE TABLE mt (id int PRIMARY KEY, v text); CREATE PUBLICATION mt FOR TABLE mt"
    )
    compaction, removal = IN_MAINTENANCE
    node = new_node(env=QUICK).start(compaction)
    node.psql(f"CREATE SUBSCRIPTION mt CONNECTION '{publisher_db.conninfo}' PUBLICATION mt")
    wait_ready(node, "mt")
    with publisher_db.connect() as conn:
        for number in range(2 * EIGHT):
            conn.execute("INSERT INTO mt VALUES (%s, 'new')", [number])
            conn.execute("UPDATE mt SET v = 'changed' WHERE id = %s", [number // 2])
            wait_caught_up(publisher_db)
    assert node.wait_for_death() == -9
    publisher_db.psql("DELETE FROM mt WHERE id = 1")
    node.start(removal)
    wait_equal(publisher_db, "SELECT * FROM mt", node)
    wait_until(lambda: file_count(node) < EIGHT, 30, "the files to be joined")
    publisher_db.psql("UPDATE mt SET v = 'after' WHERE id % 3 = 0; INSERT INTO mt VALUES (99, 'z')")
    wait_equal(publisher_db, "SELECT * FROM mt", node)
    assert node.psql("SELECT purpose FROM penstock.commit WHERE purpose = 'optimize' LIMIT 1")

    assert there(node) > needed(node)
    index = Path(committed(node)[0], FOLDER, "removed.parquet.1.arrow")
    index.parent.mkdir(exist_ok=True)
    index.touch()
    keep_no_old_files(committed(node)[0])
    assert node.wait_for_death() == -9
    node.start()
    wait_until(lambda: there(node) == needed(node), 60, "the old files to go")
    wait_until(lambda: not index.exists(), 60, "an index of none of the files to go")
    wait_equal(publisher_db, "SELECT * FROM mt", node)

    node.psql("ALTER SUBSCRIPTION mt DISABLE")
    set_state = "UPDATE pg_subscription_rel SET srsubstate = %s"
    in_control(node, set_state, "d")
    copied = Path(committed(node)[0], "copy-of-a-range.parquet")
    copied.touch()
    before = node.text().count(NOT_VACUUMED)
    wait_until(lambda: node.text().count(NOT_VACUUMED) > before + 1, 60, "two passes")
    assert copied.exists()
    in_control(node, set_state, "r")
    wait_until(lambda: not copied.exists(), 60, "the file without a commit to go")

    in_control(node, "SELECT pg_create_logical_replication_slot('mt', 'pgoutput')")
    held = there(node)
    node.psql("UPDATE mt SET v = 'again'")
    passes = "SELECT count(*) > 1 FROM penstock.commit WHERE purpose = 'retention'"
    wait_until(lambda: node.psql(passes) == "t", 60, "two passes")
    assert there(node) >= held
    assert there(node) > needed(node)
    in_control(node, "SELECT pg_drop_replication_slot('mt')")
    wait_until(lambda: there(node) == needed(node), 60, "the old files to go")
