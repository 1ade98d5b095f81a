# SPDX-License-Identifier: Apache-2.0
"""kill -9 of the node at the danger places; afterwards publisher and lake are equal.

Each test starts a node with a failpoint armed, lets it die there, starts it again, and compares.
A ledger table makes duplicates and losses visible: ids are dense, and the sum is invariant.
"""

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

TABLES = ("account", "ledger")

IN_COPY = [Failpoint.COPY_RANGE_READ, Failpoint.COPY_DELTA_COMMITTED]
IN_STREAM = [
    Failpoint.STAGING_SEGMENT_REGISTERED,
    Failpoint.APPLY_TABLE_COMMITTED,
    Failpoint.APPLY_BEFORE_COMMIT,
]


def _publish(publisher: Database) -> None:
    publisher.psql(
        "CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL);"
        "CREATE TABLE ledger (id int PRIMARY KEY, account int, amount int);"
        "INSERT INTO account SELECT g, 1000 FROM generate_series(1, 2000) g;"
        "CREATE PUBLICATION kill FOR TABLE account, ledger"
    )


def _transfers(publisher: Database, first: int, count: int) -> None:
    """Transactions that each move an amount between two accounts and note it twice."""
    publisher.psql(
        "".join(
            f"BEGIN; UPDATE account SET balance = balance - {n} WHERE id = {n % 2000 + 1};"
            f"UPDATE account SET balance = balance + {n} WHERE id = {(n * 7 + 13) % 2000 + 1};"
            f"INSERT INTO ledger VALUES ({2 * n}, {n % 2000 + 1}, -{n}),"
            f" ({2 * n + 1}, {(n * 7 + 13) % 2000 + 1}, {n}); COMMIT;"
            for n in range(first, first + count)
        )
    )


def _subscribe(node: Node, publisher: Database) -> None:
    node.psql(f"CREATE SUBSCRIPTION kill CONNECTION '{publisher.conninfo}' PUBLICATION kill")


def _compare(node: Node, publisher: Database) -> None:
    wait_ready(node, "kill")
    for table in TABLES:
        wait_equal(publisher, f"SELECT * FROM {table}", node)
    assert node.psql("SELECT sum(balance) FROM account") == "2000000"


@pytest.mark.timeout(400)
def test_kill_during_the_copy(publisher_db: Database, new_node: NewNode) -> None:
    """Whatever step the copy was at, a new start completes it: no row is lost or doubled."""
    _publish(publisher_db)
    node = new_node()
    for number, point in enumerate(IN_COPY):
        node.start(point)
        if number == 0:
            _subscribe(node, publisher_db)
        assert node.wait_for_death() == -9, point
        _transfers(publisher_db, 100 * number, 20)
    node.start()
    _compare(node, publisher_db)


@pytest.mark.timeout(400)
def test_kill_during_streaming(publisher_db: Database, new_node: NewNode) -> None:
    """Whatever step staging or apply was at, each transaction is applied exactly once."""
    _publish(publisher_db)
    node = new_node().start()
    _subscribe(node, publisher_db)
    _compare(node, publisher_db)
    node.kill()
    for number, point in enumerate(IN_STREAM):
        node.start(point)
        _transfers(publisher_db, 1000 + 100 * number, 50)
        assert node.wait_for_death() == -9, point
    node.start()
    _compare(node, publisher_db)


@pytest.mark.timeout(400)
def test_kill_with_a_transaction_in_progress(publisher_db: Database, new_node: NewNode) -> None:
    """What was spooled of it is dropped, and it comes again from its begin, before its commit."""
    _publish(publisher_db)
    publisher_db.psql(f"ALTER DATABASE {publisher_db.name} SET logical_decoding_work_mem = '64kB'")
    node = new_node().start()
    _subscribe(node, publisher_db)
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
        _transfers(publisher_db, 100_000, 20)
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
