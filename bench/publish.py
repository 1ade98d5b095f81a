# SPDX-License-Identifier: Apache-2.0
"""What it costs a PostgreSQL to subscribe to the lake, beside subscribing to a PostgreSQL.

``python -m bench.publish`` writes ``results/publish.md``.  The subscriber is the same server for
both, with its default durability; both publishers have the same rows.  One publisher at a time, in
turns, and what was written before is on disk before a clock starts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import psycopg

from bench.memory import MemorySampler
from bench.orders import DEFINITION, insert
from bench.report import RESULTS, Results
from bench.sides import PATIENCE, current_lsn
from tests.support.folders import open_folder
from tests.support.interrupt import end_in_order_on_sigterm
from tests.support.node import QUIET_AND_WARM, Node
from tests.support.published import conninfo, make_replica
from tests.support.servers import PostgresServer
from tests.support.waits import wait_until

SETTINGS = {"fsync": "on", "max_wal_size": "8GB", "shared_buffers": "512MB"}
DATABASE = "bench"
SINGLES = 50
TURNS = 3

FILTERED = "CREATE PUBLICATION filtered FOR TABLE orders (id, amount, note) WHERE (id % 2 = 0)"


@dataclass(frozen=True)
class Source:
    """A publisher: how it is driven, and how the subscriber reaches it."""

    name: str
    connection: psycopg.Connection[Any]
    conninfo: str


@dataclass
class Measured:
    """Seconds of each source for one kind of work, of each turn."""

    work: str
    seconds: dict[str, list[float]]


class Bench:
    """A native publisher, a node that publishes, and the server that subscribes to each."""

    def __init__(self, native: PostgresServer, node: Node, target: PostgresServer) -> None:
        self.node = node
        self.target = target.connect(DATABASE)
        make_replica(node)
        self.sources = (
            Source("native", native.connect(DATABASE), native.conninfo(DATABASE)),
            Source("penstock", node.connect(), conninfo(node)),
        )
        self.found: dict[str, Measured] = {}

    def run(self, rows: int) -> None:
        """Copies of ``rows`` rows, then half as many in one commit, then single rows.

        All rows come first: what the node then joins of its files it does beside the native copy.
        """
        for source in self.sources:
            source.connection.execute(DEFINITION.encode())
            source.connection.execute(insert(1, rows).encode())
            source.connection.execute(b"CREATE PUBLICATION p FOR TABLE orders")
            source.connection.execute(FILTERED.encode())
        first = rows + 1
        for publication in ("p", "filtered"):
            for turn in range(TURNS - 1):
                for source in self._in_turn(turn):
                    self._subscribe(source, publication)
                    self._unsubscribe()
            for source in self._in_turn(TURNS - 1):
                self._subscribe(source, publication)
                for turn in range(TURNS):
                    rows_of_turn = insert(first + turn * (rows // 2), rows // 2)
                    self._drain(source, publication, rows_of_turn, rows // 2)
                if publication == "p":
                    self._singles(source, 100 * rows)
                self._unsubscribe()
            first += TURNS * (rows // 2)

    def _in_turn(self, turn: int) -> tuple[Source, ...]:
        return self.sources if turn % 2 == 0 else self.sources[::-1]

    def _settle(self) -> None:
        """Also where slots begin to read: behind what was confirmed, as after a while."""
        for each in (*(source.connection for source in self.sources), self.target):
            each.execute(b"CHECKPOINT")

    def _subscribe(self, source: Source, publication: str) -> None:
        self.target.execute(DEFINITION.encode())
        self._settle()
        began = time.monotonic()
        command = f"CREATE SUBSCRIPTION s CONNECTION '{source.conninfo}' PUBLICATION {publication}"
        self.target.execute(command.encode())
        wait_until(self._is_ready, PATIENCE, "the copy")
        self._note(f"copy, publication {publication}", source, time.monotonic() - began)

    def _is_ready(self) -> bool:
        states = self.target.execute("SELECT srsubstate::text FROM pg_subscription_rel").fetchall()
        return states == [("r",)]

    def _drain(self, source: Source, publication: str, statement: str, rows: int) -> None:
        """From ENABLE until one commit that waits is applied; the node's memory is sampled."""
        self.target.execute(b"ALTER SUBSCRIPTION s DISABLE")
        source.connection.execute(statement.encode())
        target = current_lsn(source.connection)
        self._settle()
        with MemorySampler(self.node.pid) as sampler:
            began = time.monotonic()
            self.target.execute(b"ALTER SUBSCRIPTION s ENABLE")
            wait_until(lambda: _replayed(source, target), PATIENCE, "the commit to be applied")
            self._note(
                f"{rows:,} inserts, publication {publication}", source, time.monotonic() - began
            )
        print(f"{source.name}: the node's memory {sampler.peak}")

    def _singles(self, source: Source, first: int) -> None:
        """From before an INSERT until the subscriber has its row; and of the INSERT alone."""
        inserting, visible = [], []
        for number in range(first, first + SINGLES):
            began = time.monotonic()
            source.connection.execute(insert(number, 1).encode())
            inserting.append(time.monotonic() - began)
            wait_until(self._has_row(number), PATIENCE, "the row")
            visible.append(time.monotonic() - began)
        self._note("one INSERT, p50", source, median(inserting))
        self._note("one INSERT until the subscriber has it, p50", source, median(visible))

    def _has_row(self, number: int) -> Callable[[], bool]:
        query = f"SELECT FROM orders WHERE id = {number}".encode()
        return lambda: self.target.execute(query).rowcount == 1

    def _unsubscribe(self) -> None:
        self.target.execute(b"DROP SUBSCRIPTION s")
        self.target.execute(b"DROP TABLE orders")

    def _note(self, work: str, source: Source, seconds: float) -> None:
        print(f"{work}, {source.name}: {seconds:.3f} s")
        measured = self.found.setdefault(work, Measured(work, {}))
        measured.seconds.setdefault(source.name, []).append(seconds)

    def table(self) -> str:
        """What was found, as Markdown."""
        lines = Results(0).heading("Bench of publishing")
        lines += [
            f"Seconds, medians of {TURNS} turns.",
            "",
            "| | native | penstock | times native's seconds |",
            "|---|---|---|---|",
        ]
        for each in self.found.values():
            native, ours = (median(each.seconds[source.name]) for source in self.sources)
            lines.append(f"| {each.work} | {native:.3f} | {ours:.3f} | {ours / native:.2f} |")
        return "\n".join(lines) + "\n"


def _replayed(source: Source, lsn: str) -> bool:
    query = b"SELECT FROM pg_stat_replication WHERE application_name = 's' AND replay_lsn >= %s"
    return source.connection.execute(query, [lsn]).rowcount == 1


def main() -> None:
    """Run it and print the table."""
    end_in_order_on_sigterm()
    parser = argparse.ArgumentParser(prog="python -m bench.publish", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    rows = parser.parse_args().rows
    with open_folder("penstock-bench-") as folder:
        native = PostgresServer(folder / "source", settings=SETTINGS)
        target = PostgresServer(folder / "target", settings=SETTINGS)
        node = Node(folder / "node", env=QUIET_AND_WARM, class_archive=False)
        try:
            for server in (native, target):
                server.start().create_database(DATABASE)
            bench = Bench(native, node.start(), target)
            bench.run(rows)
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / "publish.md").write_text(bench.table())
            print(bench.table())
        finally:
            node.close()
            target.remove()
            native.remove()


if __name__ == "__main__":
    main()
