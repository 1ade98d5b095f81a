# SPDX-License-Identifier: Apache-2.0
"""Kill a node at random moments under pgbench's load, while a reader watches an invariant.

    python -m tests.faults.soak --minutes 10 --seed 7        (make soak MINUTES=10 SEED=7)

Each of pgbench's transactions adds one amount to an account, a teller, a branch and the history,
so at every commit the sums over the four tables are equal.  A reader asks for all four in one
SELECT through the front door, all the time: it must never see one table without the others,
whatever was killed.  At the end all tables are equal to the publisher's, and so are those of a
PostgreSQL that subscribes to the node: the bank's own server has a second database for that.

The moments come from the seed, which is printed; what happens at them is up to the machine.
"""

from __future__ import annotations

import argparse
import random
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tests.support.fix_servers import Database
from tests.support.folders import open_folder
from tests.support.interrupt import end_in_order_on_sigterm
from tests.support.node import Node
from tests.support.published import wait_in_sync, wait_same
from tests.support.replica import Replica
from tests.support.servers import PostgresServer
from tests.support.subscribing import drop_subscription, wait_equal, wait_ready
from tests.support.waits import hold, wait_until

CONTENTS = (
    # Of the accounts, 100,000, those that a transaction has changed, and all of the others as one.
    "SELECT * FROM pgbench_accounts WHERE abalance <> 0",
    "SELECT count(*), sum(aid), sum(bid), sum(length(filler)) FROM pgbench_accounts",
    "SELECT * FROM pgbench_branches",
    "SELECT * FROM pgbench_tellers",
    "SELECT * FROM pgbench_history",
)
SUMS = """SELECT (SELECT coalesce(sum(abalance), 0) FROM pgbench_accounts),
    (SELECT coalesce(sum(tbalance), 0) FROM pgbench_tellers),
    (SELECT coalesce(sum(bbalance), 0) FROM pgbench_branches),
    (SELECT coalesce(sum(delta), 0) FROM pgbench_history)"""
LONGEST = 5.0  # seconds from visible progress to a kill
STARTING = 8.0  # seconds from a launch to a kill that may come before the node is ready
RATE = 100  # pgbench's transactions a second: the node shall come by between two kills
MORE_ANSWERS = 3  # of the reader, after the last start and under load
BETWEEN_READS = 0.5  # seconds; the reader is not there to be the load


@dataclass
class Seen:
    """What the reader has seen: how often it got an answer, and every answer that is wrong."""

    answers: int = 0
    different: set[int] = field(default_factory=set)
    torn: list[tuple[int, ...]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Soak:
    """A node that follows a pgbench database; the caller owns both.

    ``rate`` is pgbench's, in transactions a second.
    """

    def __init__(self, node: Node, bank: Database, seed: int, rate: int = RATE) -> None:
        self.node = node
        self.bank = bank
        self.seen = Seen()
        self.kills = 0
        self._replica: Replica | None = None
        self._rate = rate
        self._random = random.Random(seed)

    def prepare(self) -> None:
        """pgbench's tables on both sides, in sync; the node runs."""
        self._pgbench("-i", "-q", "-s", "1").communicate()
        self.bank.psql("CREATE PUBLICATION bank FOR ALL TABLES")
        if not self.node.running:
            self.node.start()
        self.node.psql(
            f"CREATE SUBSCRIPTION bank CONNECTION '{self.bank.conninfo}' PUBLICATION bank"
        )
        wait_ready(self.node, "bank")

    def follow(self) -> None:
        """Let a second database of the bank's server subscribe to the node, in sync."""
        server = self.bank.server
        replica = self._replica = Replica(self.node, Database(server, server.create_database()))
        self._pgbench("-i", "-q", "-I", "dtp", database=replica.database).communicate()
        self.node.psql(
            "CREATE PUBLICATION soak FOR TABLE pgbench_accounts, pgbench_branches, pgbench_tellers,"
            " pgbench_history"
        )
        replica.subscribe("soak", "soak")
        replica.wait_in_sync("soak")

    def kill_once(self, *, starting: bool = False) -> None:
        """kill -9 at a random moment of its work, and perhaps of the start, and start again."""
        before = len(self.seen.different)
        wait_until(
            lambda: len(self.seen.different) > before or self.seen.errors,
            120,
            "the reader to see progress",
        )
        hold(self._random.uniform(0, LONGEST))
        self.node.kill()
        self.kills += 1
        if starting:
            self.node.launch()
            hold(self._random.uniform(0, STARTING))
            self.node.kill()
            self.kills += 1
        self.node.start()

    @contextmanager
    def under_load(self) -> Iterator[None]:
        """pgbench and the reader run during the block, and for some more answers after it."""
        stopping = threading.Event()
        reader = threading.Thread(target=self._read, args=[stopping], name="reader", daemon=True)
        load = self._pgbench("-n", "-c", "2", "-T", "1000000", "-R", str(self._rate))
        reader.start()
        try:
            yield
            enough = self.seen.answers + MORE_ANSWERS
            wait_until(
                lambda: self.seen.answers >= enough or self.seen.errors, 120, "the reader's answers"
            )
        finally:
            load.terminate()
            load.communicate()
            stopping.set()
            reader.join(120)

    def check(self) -> None:
        """Both sides are equal, and the reader saw nothing else; AssertionError if not."""
        wait_ready(self.node, "bank")
        for query in CONTENTS:
            wait_equal(self.bank, query, self.node)
        if self._replica is not None:
            wait_in_sync(self._replica.database, "soak")
            wait_same(self.node, self._replica.database, "soak", *CONTENTS)
        assert not self.seen.errors, self.seen.errors
        assert not self.seen.torn, f"sums that differ: {self.seen.torn}"

    def close(self) -> None:
        """Drop the subscription and its tables."""
        if not self.node.running:
            self.node.start()
        drop_subscription(self.node, "bank")

    def _read(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                with self.node.connect(connect_timeout=10) as connection:
                    while not stopping.wait(BETWEEN_READS):
                        self._look(connection)
            except psycopg.OperationalError:
                stopping.wait(BETWEEN_READS)  # the node was killed
            except psycopg.Error as error:
                self.seen.errors.append(f"{error.sqlstate} {error}")
                return

    def _look(self, connection: psycopg.Connection[tuple[int, ...]]) -> None:
        row = connection.execute(SUMS).fetchone()
        assert row is not None
        self.seen.answers += 1
        self.seen.different.add(int(row[0]))
        if len(set(row)) != 1:
            self.seen.torn.append(row)

    def _pgbench(
        self, *arguments: str, database: Database | None = None
    ) -> subprocess.Popen[bytes]:
        conninfo = (database or self.bank).conninfo
        return subprocess.Popen(
            [self.bank.server.bin / "pgbench", *arguments, conninfo],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def main() -> int:
    """Run for some minutes; 0 when nothing was lost, doubled or torn."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="made up when it is not given")
    given = parser.parse_args()
    seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    print(f"soak: {given.minutes:g} minutes, seed {seed}", flush=True)
    end_in_order_on_sigterm()
    with open_folder("pst-soak-") as folder:
        return _run(folder, given.minutes, seed)


def _run(folder: Path, minutes: float, seed: int) -> int:
    server = PostgresServer(folder / "bank", settings={"wal_retrieve_retry_interval": "1s"})
    node = Node(folder / "node", env={"PENSTOCK_WAL_RETRIEVE_RETRY_INTERVAL": "1"})
    try:
        server.start()
        soak = Soak(node, Database(server, server.create_database("bank")), seed)
        soak.prepare()
        soak.follow()
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            with soak.under_load():
                for number in range(4):
                    soak.kill_once(starting=number == 3)
            soak.check()
            done = soak.bank.psql("SELECT count(*) FROM pgbench_history")
            print(
                f"soak: {soak.kills} kills, {soak.seen.answers} answers of the reader,"
                f" {done} transactions, all equal",
                flush=True,
            )
    except AssertionError as error:
        print(f"soak: failed with seed {seed}: {error}", file=sys.stderr)
        return 1
    finally:
        node.close()
        server.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
