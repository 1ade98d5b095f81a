# SPDX-License-Identifier: Apache-2.0
"""A subscription over a bad network, from copy to lake: both sides are equal afterwards.

The stream's own faults are in test_stream_connection.py, without a node; here are those that the
copy has to survive, and that a user sees nothing but a delay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.proxy import Proxy
from tests.support.psql import PsqlError
from tests.support.subscribing import drop_subscription, wait_equal, wait_ready
from tests.support.waits import wait_until

ROWS = 10_000  # 1 MB: its copy is long enough to be cut, and short enough to be done again
COPIED_BYTES = 200_000  # what goes through before a fault; less than one table's bytes
Fault = Callable[[Proxy, "Subscribed"], None]


class Subscribed:
    """A subscription through the proxy; tables come into it one after the other."""

    def __init__(self, node: Node, publisher: Database, proxy: Proxy, name: str) -> None:
        self.node = node
        self.publisher = publisher
        self.name = name
        conninfo = proxy.conninfo(publisher, "options=''-c wal_sender_timeout=2s''")
        publisher.psql(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text); CREATE PUBLICATION {name}"
            f" FOR TABLE {name}"
        )
        node.psql(f"CREATE SUBSCRIPTION {name} CONNECTION '{conninfo}' PUBLICATION {name}")
        wait_ready(node, name)

    def add(self, table: str) -> None:
        """Publish a table with rows in it, and begin to copy it."""
        self.publisher.psql(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text);"
            f"INSERT INTO {table} SELECT g, repeat(md5(g::text), 3)"
            f" FROM generate_series(1, {ROWS}) g;"
            f"ALTER PUBLICATION {self.name} ADD TABLE {table}"
        )
        self.node.psql(f"ALTER SUBSCRIPTION {self.name} REFRESH PUBLICATION")

    def write(self, first: int) -> None:
        """Some transactions."""
        self.publisher.psql(
            "".join(f"INSERT INTO {self.name} VALUES ({first + n}, '{n}');" for n in range(20))
            + f"UPDATE {self.name} SET v = 'new' WHERE id % 5 = 0;"
            f"DELETE FROM {self.name} WHERE id % 7 = 0"
        )

    def error(self) -> str:
        """The message in penstock.subscription_error, empty when there is none."""
        return self.node.psql(
            "SELECT e.message FROM penstock.subscription_error e JOIN pg_subscription s"
            f" ON s.oid = e.subid WHERE s.subname = '{self.name}'"
        )

    def wait_error(self, text: str) -> None:
        """Wait until the error has this text."""
        wait_until(lambda: text in self.error(), 30, f"the error {text}")


@pytest.fixture(scope="module")
def running(fault_node: Node) -> Node:
    """The node for faults, running."""
    return fault_node if fault_node.running else fault_node.start()


@pytest.fixture
def proxy(publisher_db: Database) -> Iterator[Proxy]:
    """A proxy in front of the publisher."""
    with Proxy(publisher_db.server.port) as made:
        yield made


@pytest.fixture
def subscribed(running: Node, publisher_db: Database, proxy: Proxy) -> Iterator[Subscribed]:
    """A subscription through the proxy, with one table, in sync."""
    made = Subscribed(running, publisher_db, proxy, "through_proxy")
    yield made
    drop_subscription(running, made.name)


def _half_open(proxy: Proxy, subscribed: Subscribed) -> None:
    proxy.freeze_after(COPIED_BYTES)
    wait_until(lambda: not proxy.waits, 30, "the proxy to fall silent")
    subscribed.wait_error("publisher")
    proxy.thaw()


def _cut_and_refused(proxy: Proxy, subscribed: Subscribed) -> None:
    proxy.cut_after(COPIED_BYTES)
    wait_until(lambda: not proxy.waits, 30, "the cut")
    with proxy.refused():
        subscribed.wait_error("could not connect to the publisher")


def _slow(proxy: Proxy, subscribed: Subscribed) -> None:
    proxy.slow(2_000_000)


@pytest.mark.timeout(200)
def test_a_copy_survives_the_network(subscribed: Subscribed, proxy: Proxy) -> None:
    """Cut inside a range and refused, half-open, or slow: what was lost is copied again."""
    faults: list[Fault] = [_cut_and_refused, _half_open, _slow]
    for number, fault in enumerate(faults):
        table = f"{subscribed.name}_{number}"
        proxy.slow(1_000_000)  # so that the fault comes while rows are being read
        subscribed.add(table)
        fault(proxy, subscribed)
        subscribed.write(1000 * number)
        proxy.slow(None)
        wait_ready(subscribed.node, subscribed.name)
        wait_equal(subscribed.publisher, f"SELECT * FROM {table}", subscribed.node)
    wait_equal(subscribed.publisher, f"SELECT * FROM {subscribed.name}", subscribed.node)
    assert subscribed.error() == ""


@pytest.mark.timeout(200)
def test_a_subscription_survives_the_network(subscribed: Subscribed, proxy: Proxy) -> None:
    """Every fault in turn while transactions are applied: nothing is lost, nothing is doubled."""
    query = f"SELECT * FROM {subscribed.name}"
    for number, fault in enumerate(("cut", "inside", "half-open", "refused", "crash")):
        subscribed.write(1000 * number)
        if fault == "cut":
            proxy.cut()
        elif fault == "inside":
            proxy.cut_after(300)
        elif fault == "half-open":
            proxy.freeze()
            subscribed.wait_error("publisher")
            proxy.thaw()
        elif fault == "refused":
            with proxy.refused():
                subscribed.wait_error("could not connect to the publisher")
        else:
            subscribed.publisher.server.restart("immediate")
        subscribed.write(1000 * number + 500)
        if fault in ("half-open", "crash"):
            wait_equal(subscribed.publisher, query, subscribed.node)
    wait_equal(subscribed.publisher, query, subscribed.node)


def test_commands_end_when_the_publisher_is_silent(
    running: Node, publisher_db: Database, proxy: Proxy
) -> None:
    """A publisher that accepts and says nothing: each command that connects ends, and undoes all.

    PostgreSQL's own would wait until somebody cancels them.
    """
    conninfo = proxy.conninfo(publisher_db, "connect_timeout=2")
    create = f"CREATE SUBSCRIPTION silent CONNECTION '{conninfo}' PUBLICATION silent"
    publisher_db.psql("CREATE TABLE silent (id int PRIMARY KEY); CREATE PUBLICATION silent")
    no_answer = 'subscription "silent" could not connect to the publisher: '
    for options in ("", " WITH (create_tables = false)"):
        proxy.freeze()
        with pytest.raises(PsqlError, match=no_answer):
            running.psql(create + options)
        assert running.psql("SELECT count(*) FROM pg_subscription WHERE subname = 'silent'") == "0"
        proxy.thaw()
    running.psql(create)
    publisher_db.psql("ALTER PUBLICATION silent ADD TABLE silent")
    proxy.freeze()
    with pytest.raises(PsqlError, match=no_answer):
        running.psql("ALTER SUBSCRIPTION silent REFRESH PUBLICATION")
    with pytest.raises(PsqlError, match="when attempting to drop replication slot"):
        running.psql("DROP SUBSCRIPTION silent")
    proxy.thaw()
    running.psql("ALTER SUBSCRIPTION silent REFRESH PUBLICATION")
    wait_ready(running, "silent")
    drop_subscription(running, "silent")


def test_an_apply_that_takes_longer_than_wal_sender_timeout(
    subscribed: Subscribed, running: Node
) -> None:
    """Keepalives are answered meanwhile: the walsender, with a timeout of 2 s, stays the same."""
    publisher = subscribed.publisher
    query = f"SELECT pid FROM pg_stat_replication WHERE application_name = '{subscribed.name}'"
    pid = wait_until(lambda: publisher.psql(query), 20, "the walsender")
    with running.connect() as client:
        client.execute("BEGIN")
        # Whoever alters the table holds up apply, as a long Spark job does.
        client.execute(f"ALTER TABLE {subscribed.name} ALTER COLUMN v SET DEFAULT 'held'")
        began = publisher.psql(
            f"INSERT INTO {subscribed.name} SELECT g, 'long' FROM generate_series(1, 100000) g;"
            "SELECT clock_timestamp()"
        )
        behind = (
            "SELECT coalesce(replay_lsn, '0/0') < flush_lsn FROM pg_stat_replication"
            f" WHERE pid = {pid} AND reply_time > timestamptz '{began}' + interval '5 s'"
        )
        wait_until(lambda: publisher.psql(behind) == "t", 30, "replies after five seconds")
        client.execute("ROLLBACK")
    wait_equal(publisher, f"SELECT count(*), sum(id) FROM {subscribed.name}", running)
    assert publisher.psql(query) == pid
