# SPDX-License-Identifier: Apache-2.0
"""kill -9 of the node, its control database or the subscriber, while the lake publishes.

The subscriber is an unmodified PostgreSQL that comes back by itself.  Afterwards both sides are
equal; ``kp_log`` has no key, so what is applied twice would be there twice.
"""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from penstock.failpoints import Failpoint
from tests.support.fix_servers import Database, drop_database
from tests.support.lake_load import QUERIES, TABLES, LakeLoad
from tests.support.node import Node
from tests.support.psql import PsqlError
from tests.support.published import wait_same
from tests.support.replica import STOP, Replica
from tests.support.servers import PostgresServer
from tests.support.waits import hold, wait_until

IN_PUBLISHING = [
    Failpoint.COPY_OUT_PIECE_SENT,
    Failpoint.PUBLISH_PIECE_SENT,
    Failpoint.PUBLISH_COMMIT_SENT,
]
HERE = """
CREATE TABLE kp (id int PRIMARY KEY, v text);
CREATE TABLE kp_log (id int, v text);
CREATE TABLE kp_late (id int PRIMARY KEY, v text)"""
PUBLISHED = ("SELECT * FROM kp", "SELECT * FROM kp_log")
LARGE = 70_000  # rows: more than one piece of a copy or a commit
KILLS = 2
LONGEST = 1.5  # seconds from progress to a kill


@pytest.fixture(scope="module")
def replica(fault_node: Node, replica_server: PostgresServer) -> Iterator[Replica]:
    """A database with the tables; the node runs."""
    if not fault_node.running:
        fault_node.start()
    made = Replica(fault_node, Database(replica_server, replica_server.create_database()))
    made.database.psql(HERE)
    for table in ("kp_log", "kp_late"):
        made.may_stop(table)
    yield made
    if not fault_node.running:
        fault_node.start()
    drop_database(replica_server, made.database.name)
    fault_node.psql(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        " WHERE slot_name IN ('kp', 'kp_late', 'll')"
    )


def _change(first: int, count: int, v: str = "new") -> str:
    """One transaction on both tables; ``v`` is in the first row of kp_log."""
    last = first + count - 1
    return (
        f"BEGIN; INSERT INTO kp_log VALUES ({first}, '{v}');"
        f"INSERT INTO kp_log SELECT g, 'row ' || g FROM generate_series({first + 1}, {last}) g;"
        f"UPDATE kp SET v = 'of {first}' WHERE id % 100 = {first % 100}; COMMIT"
    )


@pytest.mark.timeout(400)
def test_kill_of_the_node_while_it_copies_and_sends(replica: Replica) -> None:
    """A copy begins again, and a commit; one that the subscriber has is not sent again."""
    node = replica.node
    node.kill()
    node.start(f"{Failpoint.COPY_OUT_PIECE_SENT}:2")
    node.psql(f"{HERE}; CREATE PUBLICATION kp FOR TABLE kp, kp_log")
    node.psql(
        "INSERT INTO kp SELECT g, 'copied' FROM generate_series(1, 500) g;"
        f"INSERT INTO kp_log SELECT -g, 'copied' FROM generate_series(1, {LARGE}) g"
    )
    replica.subscribe("kp", "kp")
    assert node.wait_for_death() == -9
    node.start(Failpoint.PUBLISH_PIECE_SENT)
    replica.wait_in_sync("kp")
    with suppress(PsqlError):  # its answer may be lost
        node.psql(_change(1, LARGE))
    assert node.wait_for_death() == -9
    node.start(Failpoint.PUBLISH_COMMIT_SENT)
    assert node.wait_for_death() == -9
    node.start()
    wait_same(node, replica.database, "kp", *PUBLISHED)
    assert (
        node.psql("SELECT count(*), count(DISTINCT id) FROM kp_log") == f"{2 * LARGE}|{2 * LARGE}"
    )


@pytest.mark.timeout(400)
def test_kill_of_the_control_database_while_it_sends(replica: Replica) -> None:
    """The node ends with an error that says so; after the next start the stream goes on."""
    node = replica.node
    with replica.stopping():
        node.psql(_change(LARGE + 1, LARGE, STOP))
        replica.wait_stopped()
        node.kill_control()
        assert node.wait_for_death(60) == 1
    assert "the control database has died" in node.text()
    node.start()
    node.psql(_change(2 * LARGE + 1, 10))
    wait_same(node, replica.database, "kp", *PUBLISHED)


@pytest.mark.timeout(400)
def test_kill_of_the_subscriber_while_it_applies_and_copies(replica: Replica) -> None:
    """Whether it died or was stopped at once, it asks again for what it had not committed."""
    node, server = replica.node, replica.database.server
    with replica.stopping():
        node.psql(_change(3 * LARGE + 1, 20_000, STOP))
        replica.wait_stopped()
        server.kill()
    server.start()
    node.psql(_change(4 * LARGE + 1, 10))
    wait_same(node, replica.database, "kp", *PUBLISHED)
    node.psql(
        f"INSERT INTO kp_late VALUES (0, '{STOP}');"
        "INSERT INTO kp_late SELECT g, repeat('x', 20) FROM generate_series(1, 50000) g;"
        "CREATE PUBLICATION kp_late FOR TABLE kp_late"
    )
    with replica.stopping():
        replica.subscribe("kp_late", "kp_late")
        replica.wait_stopped()
        node.psql("INSERT INTO kp_late VALUES (-1, 'meanwhile')")
        server.stop("immediate")
    server.start()
    replica.wait_in_sync("kp_late")
    wait_same(node, replica.database, "kp_late", "SELECT * FROM kp_late")
    wait_same(node, replica.database, "kp", *PUBLISHED)


@contextmanager
def _under_load(node: Node, seed: int) -> Iterator[list[str]]:
    """Random transactions for the block, which fail while the node is down; those that did not."""
    ending, done, load = threading.Event(), [], LakeLoad(seed)

    def run() -> None:
        while not ending.is_set():
            transaction = load.transaction()
            try:
                node.psql(transaction)
                done.append(transaction)
            except PsqlError:
                ending.wait(0.1)  # the node was killed

    thread = threading.Thread(target=run, name="load", daemon=True)
    thread.start()
    try:
        yield done
    finally:
        ending.set()
        thread.join(120)


def _wait_for_more(done: list[str], count: int) -> None:
    enough = len(done) + count
    wait_until(lambda: len(done) >= enough, 120, "more transactions")


@pytest.mark.timeout(400)
def test_random_kills_of_a_publishing_node(replica: Replica) -> None:
    """Two kills at random moments of a random workload: no row is lost, doubled or torn."""
    seed = secrets.randbelow(2**31)
    print(f"seed {seed}")  # pytest shows it when the test fails
    node, moments = replica.node, random.Random(seed)
    node.psql(f"{TABLES}; CREATE PUBLICATION ll FOR TABLE ll_a, ll_b, ll_log")
    replica.database.psql(TABLES)
    replica.subscribe("ll", "ll")
    replica.wait_in_sync("ll")
    with _under_load(node, seed) as done:
        for _ in range(KILLS):
            _wait_for_more(done, 3)
            hold(moments.uniform(0, LONGEST))
            node.kill()
            node.start()
        _wait_for_more(done, 1)
    wait_same(node, replica.database, "ll", *QUERIES)
    logged = node.psql("SELECT count(*), count(DISTINCT n) FROM ll_log").split("|")
    assert logged[0] == logged[1] != "0"
