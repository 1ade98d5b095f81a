# SPDX-License-Identifier: Apache-2.0
"""A publisher with two subscribers that get the same statements: PostgreSQL itself, and a node.

What PostgreSQL's subscriber does is what the node must do: the same rows, and the same error for
the same change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.compare import difference
from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.subscribing import SYNC_TIMEOUT, drop_subscription, wait_ready
from tests.support.waits import wait_until

READY = (
    "SELECT count(*) FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid"
    " WHERE s.subname = '{}' AND r.srsubstate <> 'r'"
)

APPLIED = """SELECT FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid
    WHERE s.slot_name = ANY (%s) AND r.replay_lsn >= %s::pg_lsn"""


class Triple:
    """``publisher`` feeds ``native`` and ``node`` by a subscription ``name`` on each.

    The publisher needs a table ``{name}_mark (n int PRIMARY KEY)`` in the publication: a row in it
    is the last change that both subscribers are waited for to have applied.
    """

    def __init__(self, publisher: Database, native: Database, node: Node, name: str) -> None:
        self.publisher = publisher
        self.native = native
        self.node = node
        self.name = name
        self._marks = 0
        self._read_from = 0

    def on_both(self, sql: str) -> None:
        """Run statements on both subscribers."""
        self.native.psql(sql)
        self.node.psql(sql)

    def fails(self, message: str, change: str, native: str | None = None) -> None:
        """Run ``change`` on the publisher; both subscribers must stop with the same error.

        ``native`` is what PostgreSQL says where the node has the words of another version.
        """
        self._read_from = len(self.native.server.log_text())
        self.publisher.psql(change)
        line = f"ERROR:  {native or message}\n"
        try:
            wait_until(lambda: line in self._native_log(), SYNC_TIMEOUT, f"natively: {message}")
            wait_until(lambda: message == self._error(), SYNC_TIMEOUT, f"the node: {message}")
        except AssertionError as error:
            raise AssertionError(f"{error}\nnode: {self._error()}\n{self._native_log()}") from error

    def _error(self) -> str:
        return self.node.psql(
            "SELECT message FROM penstock.subscription_error e"
            f" JOIN pg_subscription s ON s.oid = e.subid WHERE s.subname = '{self.name}'"
        )

    def mended(self, sql: str) -> None:
        """Run statements that mend what stopped both; they try again at once, and go on."""
        self.on_both(
            f"ALTER SUBSCRIPTION {self.name} DISABLE; {sql}; ALTER SUBSCRIPTION {self.name} ENABLE"
        )

    def ready(self) -> None:
        """Wait until every table is ready on both."""
        wait_ready(self.node, self.name)
        query = READY.format(self.name)
        wait_until(lambda: self.native.psql(query) == "0", SYNC_TIMEOUT, "the native tables")

    def caught_up(self) -> None:
        """Wait until both have applied everything."""
        self._marks += 1
        slots = [f"{self.name}_native", f"{self.name}_node"]
        try:
            with self.publisher.connect() as conn:
                conn.execute(f"INSERT INTO {self.name}_mark VALUES ({self._marks})".encode())
                row = conn.execute("SELECT pg_current_wal_lsn()::text").fetchone()
                assert row is not None
                wait_until(
                    lambda: conn.execute(APPLIED, [slots, row[0]]).rowcount == len(slots),
                    SYNC_TIMEOUT,
                    "both to apply everything",
                )
        except AssertionError as error:
            raise AssertionError(
                f"{error}\nnode: {self._error()}\n{self._native_log()[-2000:]}"
            ) from error

    def same(self, *queries: str) -> None:
        """Wait until both are caught up; both must have the same rows then."""
        self.caught_up()
        for query in queries:
            found = difference(self.native.psql, query, self.node.psql, query)
            assert not found, f"{query}\n{found}"

    def _native_log(self) -> str:
        return self.native.server.log_text()[self._read_from :]


@contextmanager
def tripled(
    pair: tuple[Database, Database],
    node: Node,
    name: str,
    tables: str,
    *,
    publications: str | None = None,
) -> Iterator[Triple]:
    """Two subscriptions ``name`` for the block, ready at its begin.

    ``tables``: statements that make the tables, for both subscribers.  ``publications``: when it is
    not one of the same name.
    """
    publisher, native = pair
    triple = Triple(publisher, native, node, name)
    native.psql("ALTER SYSTEM SET wal_retrieve_retry_interval = '200ms'")
    native.psql("SELECT pg_reload_conf()")
    triple.on_both(tables)
    create = (
        f"CREATE SUBSCRIPTION {name} CONNECTION '{publisher.conninfo}'"
        f" PUBLICATION {publications or name}"
    )
    native.psql(f"{create} WITH (slot_name = '{name}_native')")
    node.psql(f"{create} WITH (slot_name = '{name}_node')")
    try:
        triple.ready()
        yield triple
    finally:
        drop_subscription(node, name)
