# SPDX-License-Identifier: Apache-2.0
"""kill -9 of the node, or of its control database, at the danger places; then both sides are equal.

The tests take one node through all failpoints, one after the other: it starts with one armed, dies
there, starts with the next.  A ledger table makes duplicates and losses visible: ids are dense,
and the sum is invariant.  The failpoints of staging are in test_kill_receiver.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import pytest

from penstock.failpoints import Failpoint
from tests.faults.test_kill_external import OF_OTHERS
from tests.faults.test_kill_publishing import IN_PUBLISHING
from tests.faults.test_kill_receiver import IN_STAGING
from tests.faults.test_kill_transactions import IN_PROGRESS
from tests.faults.test_kill_writes import IN_WRITES
from tests.scenarios.test_maintenance import IN_MAINTENANCE
from tests.support.fix_servers import Database, Servers, drop_database
from tests.support.node import Node
from tests.support.psql import PsqlError
from tests.support.subscribing import drop_subscription, wait_equal, wait_ready

TABLES = {"account": "id, balance", "ledger": "id, account, amount"}

IN_COPY = [
    Failpoint.COPY_SNAPSHOT_EXPORTED,
    Failpoint.COPY_RANGE_READ,
    Failpoint.COPY_FILES_WRITTEN,
    Failpoint.COPY_DELTA_COMMITTED,
    Failpoint.COPY_TABLE_FINISHED,
]
IN_STREAM = [
    Failpoint.APPLY_TABLES_LOCKED,
    Failpoint.APPLY_TABLE_COMMITTED,
    Failpoint.APPLY_ALL_COMMITTED,
    Failpoint.APPLY_BEFORE_COMMIT,
    Failpoint.RESTORE_STARTED,  # of what the one before has left
    Failpoint.APPLY_AFTER_COMMIT,
]
IN_DEFINITION = [Failpoint.DDL_RELAYED]


class Victim:
    """The node, and the publisher whose tables it follows."""

    def __init__(self, node: Node, publisher: Database) -> None:
        self.node = node
        self.publisher = publisher
        self._written = 0
        self._subscribed = False
        publisher.psql(
            "CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL);"
            "CREATE TABLE ledger (id int PRIMARY KEY, account int, amount int);"
            "INSERT INTO account SELECT g, 1000 FROM generate_series(1, 2000) g;"
            "CREATE PUBLICATION kill FOR TABLE account, ledger"
        )

    def start(
        self,
        failpoint: Failpoint | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start the node; kill it first if it runs, since a failpoint is armed at the start.

        ``settings`` are environment variables for this start only.
        """
        if self.node.running:
            self.node.kill()
        usual, self.node.env = self.node.env, {**self.node.env, **settings}
        self.node.start(failpoint)
        self.node.env = usual

    def subscribe(self) -> None:
        """Make the subscription, unless it was made before.

        The node's ledger has columns more, which get a value of their own in each row.
        """
        if not self._subscribed:
            conninfo = self.publisher.conninfo
            self.node.psql(
                "CREATE TABLE ledger (n bigserial, id int PRIMARY KEY, account int, amount int,"
                " twice int NOT NULL GENERATED ALWAYS AS (amount * 2) STORED)"
            )
            self.node.psql(f"CREATE SUBSCRIPTION kill CONNECTION '{conninfo}' PUBLICATION kill")
            self._subscribed = True

    def transfer(self, count: int) -> None:
        """Transactions that each move an amount between two accounts and note it twice."""
        first, self._written = self._written, self._written + count
        self.publisher.psql(
            "".join(
                f"BEGIN; UPDATE account SET balance = balance - {n} WHERE id = {n % 2000 + 1};"
                f"UPDATE account SET balance = balance + {n} WHERE id = {(n * 7 + 13) % 2000 + 1};"
                f"INSERT INTO ledger VALUES ({2 * n}, {n % 2000 + 1}, -{n}),"
                f" ({2 * n + 1}, {(n * 7 + 13) % 2000 + 1}, {n}); COMMIT;"
                for n in range(first, self._written)
            )
        )

    def compare(self) -> None:
        """Wait until both sides are equal."""
        wait_ready(self.node, "kill")
        for table, columns in TABLES.items():
            wait_equal(self.publisher, f"SELECT {columns} FROM {table}", self.node)
        assert self.node.psql("SELECT sum(balance) FROM account") == "2000000"
        ledger = self.node.psql(
            "SELECT count(*), count(DISTINCT id), count(DISTINCT n), coalesce(sum(amount), 0),"
            " count(*) FILTER (WHERE twice <> amount * 2) FROM ledger"
        )
        rows = 2 * self._written
        assert ledger == f"{rows}|{rows}|{rows}|0|0"


@pytest.fixture(scope="module")
def victim(fault_node: Node, servers: Servers) -> Iterator[Victim]:
    """One for all tests here; the node may be in any state when a test begins."""
    server = servers()
    publisher = Database(server, server.create_database())
    made = Victim(fault_node, publisher)
    yield made
    if not fault_node.running:
        fault_node.start()
    drop_subscription(fault_node, "kill")
    drop_database(server, publisher.name)


def test_every_failpoint_has_a_kill_test() -> None:
    """A failpoint that no test kills at would prove nothing."""
    here = {*IN_COPY, *IN_STREAM, *IN_DEFINITION}
    elsewhere = {*IN_STAGING, *IN_PROGRESS, *IN_MAINTENANCE, *IN_WRITES, OF_OTHERS}
    elsewhere |= {*IN_PUBLISHING}
    assert here | elsewhere == set(Failpoint)


@pytest.mark.timeout(400)
def test_kill_during_the_copy(victim: Victim) -> None:
    """Whatever step the copy was at, a new start completes it: no row is lost or doubled.

    Once Spark's executors read when the node dies, else the node itself does.
    """
    victim.transfer(20)  # so that the ledger has rows to copy
    for point in IN_COPY:
        spread = {"PENSTOCK_COPY_SPREAD_BYTES": "0"} if point is Failpoint.COPY_RANGE_READ else {}
        victim.start(point, spread)
        victim.subscribe()
        assert victim.node.wait_for_death() == -9, point
        victim.transfer(20)


@pytest.mark.timeout(400)
def test_kill_while_the_lake_follows_a_definition(victim: Victim) -> None:
    """A statement that the lake did not follow is undone; said again, it works."""
    victim.start(Failpoint.DDL_RELAYED)
    victim.subscribe()
    victim.compare()
    alter = "ALTER TABLE account ADD note text"
    with pytest.raises(PsqlError):
        victim.node.psql(alter)
    assert victim.node.wait_for_death() == -9
    victim.transfer(20)
    victim.start()
    with pytest.raises(PsqlError, match='column "note" does not exist'):
        victim.node.psql("SELECT note FROM account")
    victim.compare()
    victim.node.psql(alter)
    victim.transfer(20)
    victim.compare()
    assert victim.node.psql("SELECT count(note) FROM account") == "0"


@pytest.mark.timeout(400)
def test_kill_during_streaming(victim: Victim) -> None:
    """Whatever step apply was at, each transaction is applied exactly once."""
    for point in IN_STREAM:
        victim.start(point)
        victim.subscribe()
        if point is not Failpoint.RESTORE_STARTED:
            victim.transfer(50)
        assert victim.node.wait_for_death() == -9, point
    victim.start()
    victim.compare()


@pytest.mark.timeout(400)
def test_kill_of_the_control_database_while_a_stream_is_applied(victim: Victim) -> None:
    """The node ends with an error that says so; the next start recovers, nothing is lost."""
    if not victim.node.running:
        victim.start()
    victim.subscribe()
    victim.compare()
    victim.transfer(200)
    victim.node.kill_control()
    victim.transfer(20)
    assert victim.node.wait_for_death(60) == 1
    assert "the control database has died" in victim.node.text()
    victim.start()
    victim.compare()
