# SPDX-License-Identifier: Apache-2.0
"""kill -9 while another program's commit is registered, on top of one of ours that was aborted."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from penstock.failpoints import Failpoint
from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.subscribing import SYNC_TIMEOUT, drop_subscription, wait_caught_up, wait_ready
from tests.support.waits import wait_until

OF_OTHERS = Failpoint.EXTERNAL_BEFORE_COMMIT


def test_kill_while_another_program_s_rows_are_registered(
    fault_node: Node, publisher_db: Database
) -> None:
    """Its rows and the batch that was under way are there once, after any number of starts.

    The node dies before a batch's COMMIT; another program appends on top of what it left, and the
    node dies again, when it has put that append back.
    """
    node = fault_node
    if node.running:
        node.kill()
    node.start(Failpoint.APPLY_BEFORE_COMMIT)
    publisher_db.psql(
        "CREATE TABLE kx (id int PRIMARY KEY, note text); INSERT INTO kx VALUES (1, 'pg');"
        "CREATE PUBLICATION kx FOR TABLE kx"
    )
    node.psql(f"CREATE SUBSCRIPTION kx CONNECTION '{publisher_db.conninfo}' PUBLICATION kx")
    try:
        wait_ready(node, "kx")
        location = node.psql(
            "SELECT location FROM penstock.table_version WHERE relid = 'kx'::regclass"
        )
        publisher_db.psql(
            "INSERT INTO kx VALUES (2, 'pg'); UPDATE kx SET note = 'new' WHERE id = 1"
        )
        assert node.wait_for_death() == -9
        rows = pa.table({"id": pa.array([3, 4], pa.int32()), "note": ["other", "other"]})
        write_deltalake(str(Path(node.home, "lake", location)), rows, mode="append")
        node.launch(OF_OTHERS)
        assert node.wait_for_death() == -9
        node.start()
        wait_caught_up(publisher_db)
        wanted = "1|new\n2|pg\n3|other\n4|other"
        query = "SELECT id, note FROM kx ORDER BY id"
        wait_until(lambda: node.psql(query) == wanted, SYNC_TIMEOUT, wanted)
        record = "SELECT tables->0->>'kind', origin IS NULL FROM penstock.commit"
        record += " WHERE purpose = 'external' ORDER BY lsn DESC LIMIT 1"
        wait_until(lambda: node.psql(record) == "append|t", SYNC_TIMEOUT, "the record")
    finally:
        if not node.running:
            node.start()
        drop_subscription(node, "kx")
