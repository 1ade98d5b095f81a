# SPDX-License-Identifier: Apache-2.0
"""kill -9 while a transaction is in progress, or prepared: it arrives once, at its commit."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from penstock.failpoints import Failpoint
from tests.support.fix_node import NewNode
from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.subscribing import wait_equal, wait_ready
from tests.support.waits import wait_until

IN_PROGRESS = [Failpoint.STREAM_TRANSACTION_SPOOLED]


def _publish(publisher: Database) -> None:
    publisher.psql(
        "CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL);"
        "CREATE TABLE ledger (id int PRIMARY KEY, account int, amount int);"
        "INSERT INTO account SELECT g, 1000 FROM generate_series(1, 2000) g;"
        "CREATE PUBLICATION kill FOR TABLE account, ledger"
    )


def _compare(node: Node, publisher: Database) -> None:
    wait_ready(node, "kill")
    for table in ("account", "ledger"):
        wait_equal(publisher, f"SELECT * FROM {table}", node)
    assert node.psql("SELECT sum(balance) FROM account") == "2000000"


@pytest.mark.timeout(400)
def test_kill_with_a_transaction_in_progress(publisher_db: Database, new_node: NewNode) -> None:
    """What was spooled of it is dropped, and it comes again from its begin, before its commit."""
    _publish(publisher_db)
    publisher_db.psql(f"ALTER DATABASE {publisher_db.name} SET logical_decoding_work_mem = '64kB'")
    node = new_node().start()
    node.psql(f"CREATE SUBSCRIPTION kill CONNECTION '{publisher_db.conninfo}' PUBLICATION kill")
    _compare(node, publisher_db)
    node.kill()
    node.start(f"{Failpoint.STREAM_TRANSACTION_SPOOLED}:3")
    with closing(psycopg.connect(publisher_db.conninfo)) as in_progress:
        for part in range(5):
            in_progress.execute(
                b"INSERT INTO ledger SELECT g, 1, 0 FROM generate_series(%s::int, %s::int) g",
                [part * 10_000, part * 10_000 + 4000],
            )
        assert node.wait_for_death() == -9
        spools = list(node.home.glob("staging/*/spool/*"))
        assert len(spools) == 1
        node.start()
        publisher_db.psql("UPDATE account SET balance = balance + 1 - 2 * (id % 2)")
        _compare(node, publisher_db)
        in_progress.commit()
    _compare(node, publisher_db)
    assert not list(node.home.glob("staging/*/spool/*"))


@pytest.mark.timeout(400)
def test_kill_with_a_prepared_transaction(publisher_db: Database, new_node: NewNode) -> None:
    """What was confirmed at PREPARE is there after kill -9, though it is not sent again."""
    _publish(publisher_db)
    node = new_node().start()
    node.psql(
        f"CREATE SUBSCRIPTION kill CONNECTION '{publisher_db.conninfo}' PUBLICATION kill"
        " WITH (two_phase = true)"
    )
    enabled = "SELECT subtwophasestate FROM pg_subscription"
    wait_until(lambda: node.psql(enabled) == "e", 60, "two_phase to be enabled")
    publisher_db.psql(
        "BEGIN; UPDATE account SET balance = balance - 5 WHERE id = 1;"
        " UPDATE account SET balance = balance + 5 WHERE id = 2;"
        f" PREPARE TRANSACTION '{publisher_db.name}_killed'"
    )
    position = publisher_db.psql("SELECT pg_current_wal_lsn()")
    slot = f"SELECT confirmed_flush_lsn >= '{position}' FROM pg_replication_slots"
    mine = f"{slot} WHERE database = '{publisher_db.name}'"
    wait_until(lambda: publisher_db.psql(mine) == "t", 30, "the PREPARE to be confirmed")
    node.kill()
    publisher_db.psql(f"COMMIT PREPARED '{publisher_db.name}_killed'")
    node.start(Failpoint.STAGING_SEGMENT_REGISTERED)
    assert node.wait_for_death() == -9
    node.start()
    _compare(node, publisher_db)
    assert node.psql("SELECT balance FROM account WHERE id < 3 ORDER BY id") == "995\n1005"
