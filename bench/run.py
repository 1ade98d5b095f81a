# SPDX-License-Identifier: Apache-2.0
"""``make bench``: copy, stream, memory and relay of a node, beside native replication.

Everything runs on this machine, one side at a time: source and native target are PostgreSQL 18
with their default durability.  Not a test: it fails only when something breaks.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from bench import decode, latency, relay, sizes
from bench.memory import MemorySampler
from bench.orders import DEFINITION, TURNS, Workload, insert, workloads
from bench.report import Drained, Results
from bench.sides import DATABASE, Floor, Side, Staging, Subscriber, native, ours
from tests.support.folders import open_folder
from tests.support.interrupt import end_in_order_on_sigterm
from tests.support.node import QUIET_AND_WARM, Node
from tests.support.servers import PostgresServer

LOAD_SECONDS = 20.0
COPIES = {"p": "all rows", "one_percent": "a filter that keeps 1 %"}

SETTINGS = {"fsync": "on", "max_wal_size": "8GB", "shared_buffers": "512MB"}


class Bench:
    """One run; the servers and the node live as long as it does."""

    def __init__(self, folder: Path, scale: float, copies: int) -> None:
        self.folder = folder
        self.rows = int(2_000_000 * scale)
        self.scale = scale
        self.copies = copies
        self.source = PostgresServer(folder / "source", settings=SETTINGS)
        self.target = PostgresServer(folder / "target", settings=SETTINGS)
        self.node = Node(folder / "node", env=QUIET_AND_WARM, class_archive=False)
        self.results = Results(self.rows)

    def start(self) -> None:
        """Both servers with the table, and the node."""
        for server in (self.source, self.target):
            server.start()
            server.create_database(DATABASE)
        print(f"loading {self.rows:,} rows")
        self.source.psql(f"{DEFINITION}; {insert(1, self.rows)};", DATABASE, timeout=600)
        self.source.psql(
            "VACUUM ANALYZE; CREATE PUBLICATION p FOR TABLE orders;"
            "CREATE PUBLICATION one_percent FOR TABLE orders WHERE (id % 100 = 0)",
            DATABASE,
        )
        self.node.start()

    def run(self) -> None:
        """Measure everything."""
        self.results.relay = relay.measure(self.node)
        print("relay:", self.results.relay)
        began = time.monotonic()
        self.source.psql("COPY orders TO '/dev/null'", DATABASE, timeout=600)
        self.results.copy_floor = time.monotonic() - began
        sides = native(self.source, self.target), ours(self.source, self.node)
        for publication in ("one_percent", "p"):
            for turn in range(self.copies):
                for side in sides:
                    if turn or publication == "p":
                        side.drop()
                    self.copy(side, publication)
        parts = Floor(self.source), Staging(self.source, self.folder / "staging")
        for part in parts:
            part.make_slot()
        for turn in range(TURNS):
            for workload in workloads(self.rows, self.scale, turn):
                self.source.psql(workload.sql, DATABASE, timeout=600)
                if self.results.decode is None:
                    self.results.decode = decode.measure(self.source, parts[0].name)
                    print(self.results.decode)
                # What one side leaves to be written back disturbs the next: they take turns.
                self.drain((*parts, *(sides if turn % 2 == 0 else sides[::-1])), workload)
        self.latencies(sides)
        self.sizes(sides)

    def latencies(self, sides: tuple[Subscriber, ...]) -> None:
        """From commit to visible, for inserts and for updates of random keys."""
        ids = count(10 * self.rows)
        loads = {
            "inserts": lambda n: insert(next(ids), 1),
            "updates of random keys": lambda n: (
                "UPDATE orders SET amount = amount + 1"
                f" WHERE id = {n * 104_729 % (self.rows // 4) + 1}"
            ),
        }
        for name, statement in loads.items():
            for side in sides:
                found = latency.measure(self.source, side, name, statement, LOAD_SECONDS)
                print(found)
                self.results.latencies.append(found)

    def sizes(self, sides: tuple[Subscriber, ...]) -> None:
        """The same batch on tables of two sizes."""
        for side in sides:
            side.drop()
        for rows in (self.rows // 2, self.rows * 5):
            name = sizes.load(self.source, rows)
            for side in sides:
                found = sizes.measure(self.source, side, name, rows)
                print(found)
                self.results.batches.append(found)

    def copy(self, side: Subscriber, publication: str) -> None:
        """One initial copy; the node's memory is sampled."""
        with MemorySampler(self.node.pid) as sampler:
            seconds = side.copy(publication)
        name = COPIES[publication]
        if side.name == "penstock":
            self.results.memory[name] = sampler.peak
        print(f"{name}, {side.name}: {seconds:.1f} s")
        self.results.copy_seconds.setdefault(name, {}).setdefault(side.name, []).append(seconds)

    def drain(self, sides: Sequence[Side], workload: Workload) -> None:
        """Let all drain one workload; the node's memory is sampled once, as that takes time."""
        known = Drained(workload.name, workload.changes, workload.goal)
        found = self.results.drained.setdefault(workload.name, known)
        for side in sides:
            if side.name == "penstock" and workload.name not in self.results.memory:
                with MemorySampler(self.node.pid) as sampler:
                    found.add(side.name, side.drain())
                self.results.memory[workload.name] = sampler.peak
            else:
                found.add(side.name, side.drain())
        print(found)

    def close(self) -> None:
        """Stop everything."""
        self.node.close()
        self.target.remove()
        self.source.remove()


def main() -> None:
    """Run it and write the results."""
    end_in_order_on_sigterm()
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="1 is 2 million rows")
    parser.add_argument("--copies", type=int, default=3, help="initial copies of each side")
    arguments = parser.parse_args()
    with open_folder("penstock-bench-") as folder:
        bench = Bench(folder, arguments.scale, arguments.copies)
        try:
            bench.start()
            bench.run()
        finally:
            bench.close()
    path = bench.results.write()
    print(path.read_text())
    print(f"written to {path} and {path.with_suffix('.json')}")


if __name__ == "__main__":
    main()
