# SPDX-License-Identifier: Apache-2.0
"""What clients write into the lake, and what a Spark program reads of its changes.

    python -m bench.writes [--rows N]

    COPY FROM STDIN      the same rows into a PostgreSQL 18 and into a node, in turns
    INSERT by psql       one row each, by psql's own \\timing
    lake.changes         what one commit inserted, through a row filter and a column list, beside
                         Spark with filter and columns written by hand: reading Delta's change data
                         feed of the same rows, and reading the data files as such
    lake.changes         of many commits of one row

Writes bench/results/writes.md.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from delta.tables import DeltaTable
from pyspark.sql import DataFrame

import penstock
from bench.orders import COLUMNS, insert
from bench.publish import DATABASE, SETTINGS
from bench.report import RESULTS, Results
from tests.support.folders import open_folder
from tests.support.interrupt import end_in_order_on_sigterm
from tests.support.node import QUIET_AND_WARM, Node
from tests.support.servers import PostgresServer

TURNS = 3
SINGLES = 40
COMMITS = 300
PIECE = 1 << 20  # bytes of COPY data that are sent at a time

FILTER, LISTED = "id % 2 = 0", ("id", "amount", "note")
_TIME = re.compile(r"^Time: ([0-9.]+) ms", re.MULTILINE)


@dataclass
class Measured:
    """Seconds of what is measured and of what it is compared with."""

    work: str
    seconds: float
    other: str = ""
    other_seconds: float | None = None

    def line(self) -> str:
        """A row of the table."""
        other, ratio = "", ""
        if self.other_seconds is not None:
            other = f"{self.other_seconds:.3f} ({self.other})"
            ratio = f"{self.seconds / self.other_seconds:.2f}"
        return f"| {self.work} | {self.seconds:.3f} | {other} | {ratio} |"


class Bench:
    """A PostgreSQL and a node that are written to alike."""

    def __init__(self, native: PostgresServer, node: Node) -> None:
        self._server = native
        self._node = node
        self._native, self._lake = native.connect(DATABASE), node.connect()
        self.found: list[Measured] = []

    def run(self, rows: int) -> None:
        """All of it."""
        self._copies(rows)
        self._singles()
        self._changes(rows)

    def _copies(self, rows: int) -> None:
        self._native.execute(f"CREATE TABLE given {COLUMNS}".encode())
        self._native.execute(insert(1, rows, "given").encode())
        given = b"".join(_copied_out(self._native, "given"))
        best = {"native": float("inf"), "node": float("inf")}
        for _ in range(TURNS):
            for name, connection in (("native", self._native), ("node", self._lake)):
                connection.execute(f"CREATE TABLE copied {COLUMNS}".encode())
                took = _timed(partial(_copy_in, connection, "copied", given))
                best[name] = min(best[name], took)
                connection.execute(b"DROP TABLE copied")
        self._note(f"COPY FROM STDIN of {rows:,} rows", best["node"], "PostgreSQL", best["native"])

    def _singles(self) -> None:
        """By one psql session, so without its start."""
        table = f"CREATE TABLE singles {COLUMNS}"
        script = "\n".join(
            ["\\timing on", *(f"{insert(n, 1, 'singles')};" for n in range(SINGLES))]
        )
        medians = []
        for psql in (self._node.psql, lambda sql: self._server.psql(sql, DATABASE)):
            psql(table)
            told = [float(each) / 1000 for each in _TIME.findall(psql(script))]
            assert len(told) == SINGLES
            medians.append(median(told))
        self._note("one INSERT by psql, p50", medians[0], "PostgreSQL", medians[1])

    def _changes(self, rows: int) -> None:
        for name in ("changed", "small"):
            self._lake.execute(f"CREATE TABLE {name} {COLUMNS}".encode())
        listed = ", ".join(LISTED)
        self._lake.execute(
            f"CREATE PUBLICATION p FOR TABLE changed ({listed}) WHERE ({FILTER}),"
            f" small ({listed}) WHERE ({FILTER})".encode()
        )
        with penstock.connect(self._node.home) as lake:
            start = lake.lsn
            self._lake.execute(insert(1, rows, "changed").encode())
            files = [str(each) for each in lake.location("changed").glob("*.parquet")]

            def published() -> DataFrame:
                return lake.changes("p", start, table="changed")

            def files_by_hand() -> DataFrame:
                return lake.spark.read.parquet(*files).where(FILTER).select(*LISTED)

            feed = self._node.home.parent / "feed"
            _make_feed(lake.table("changed"), feed)

            def feed_by_hand() -> DataFrame:
                reader = lake.spark.read.format("delta").option("readChangeFeed", "true")
                changes = reader.option("startingVersion", 1).load(str(feed))
                return changes.where(FILTER).select("_change_type", "_commit_version", *LISTED)

            frames = (published, feed_by_hand, files_by_hand)
            assert len({frame().count() for frame in frames}) == 1
            ours, *plain = _in_turns([partial(_read_of, frame) for frame in frames])
            work = f"lake.changes of {rows:,} inserted rows, filtered and listed"
            for other, seconds in zip(("Delta's change feed", "data files"), plain, strict=True):
                self._note(work, ours, f"Spark by hand, {other}", seconds)

            start = lake.lsn
            for number in range(COMMITS):
                self._lake.execute(insert(number, 1, "small").encode())
            (took,) = _in_turns([lambda: _read_of(lambda: lake.changes("p", start, table="small"))])
            self._note(f"lake.changes of {COMMITS} commits of one row", took)

    def _note(
        self, work: str, seconds: float, other: str = "", other_seconds: float | None = None
    ) -> None:
        self.found.append(Measured(work, seconds, other, other_seconds))
        print(self.found[-1].line(), flush=True)

    def table(self) -> str:
        """What was found, as Markdown."""
        lines = Results(0).heading("Bench of writes and changes")
        lines += ["| | seconds | beside, seconds | ratio |", "|---|---|---|---|"]
        return "\n".join([*lines, *(each.line() for each in self.found)]) + "\n"


def _copied_out(connection: psycopg.Connection[Any], table: str) -> Sequence[bytes]:
    with connection.cursor().copy(f"COPY {table} TO STDOUT".encode()) as copy:
        return [bytes(each) for each in copy]


def _copy_in(connection: psycopg.Connection[Any], table: str, given: bytes) -> None:
    with connection.cursor().copy(f"COPY {table} FROM STDIN".encode()) as copy:
        for start in range(0, len(given), PIECE):
            copy.write(given[start : start + PIECE])


def _make_feed(rows: DataFrame, folder: Path) -> None:
    """A Delta table with the change data feed on; these rows are its version 1."""
    table = DeltaTable.create(rows.sparkSession).location(str(folder)).addColumns(rows.schema)
    table.property("delta.enableChangeDataFeed", "true").execute()
    rows.write.format("delta").mode("append").save(str(folder))


def _read_of(frame: Callable[[], DataFrame]) -> None:
    """Make a frame, compute all of it, and keep nothing."""
    frame().write.format("noop").mode("overwrite").save()


def _timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _in_turns(works: Sequence[Callable[[], None]]) -> list[float]:
    """The best of TURNS of each, in turns, after one that warms Spark."""
    for work in works:
        work()
    taken = [[_timed(work) for work in works] for _ in range(TURNS)]
    return [min(each) for each in zip(*taken, strict=True)]


def main() -> None:
    """Run it and print the table."""
    end_in_order_on_sigterm()
    parser = argparse.ArgumentParser(prog="python -m bench.writes", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    with open_folder("penstock-bench-") as folder:
        native = PostgresServer(folder / "source", settings=SETTINGS)
        node = Node(folder / "node", env=QUIET_AND_WARM, class_archive=False)
        try:
            native.start().create_database(DATABASE)
            bench = Bench(native, node.start())
            bench.run(rows)
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / "writes.md").write_text(bench.table())
            print(bench.table())
        finally:
            node.close()
            native.remove()


if __name__ == "__main__":
    main()
