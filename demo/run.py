# SPDX-License-Identifier: Apache-2.0
"""``make demo``: a real PostgreSQL, a node, two subscriptions, load, a comparison, the way back.

    source (PostgreSQL 18)                            node
    flights  flights, a column list       --nyc-->    public.flights
             planes, a row filter         --nyc-->    public.planes
             weather, airports, airlines  --nyc-->    …
    bank     pgbench's tables             --bank->    public.pgbench_*
    flights  routes, a row filter         <-lake--    public.routes, made by Spark

Ends with status 1 when the two sides differ.  Leaves nothing running, unless KEEP=1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from demo import flights
from demo.screen import Screen
from demo.way_back import WayBack
from penstock.cli.progress import SubscriptionStatus, connect_to_node, read_status
from penstock.errors import PenstockError
from penstock.running import find_front_door
from tests.support.compare import difference
from tests.support.interrupt import end_in_order_on_sigterm
from tests.support.node import QUIET_AND_WARM, Node
from tests.support.psql import NATIVE
from tests.support.servers import PASSWORD_ROLE, PostgresServer
from tests.support.waits import wait_until

SCALE = 5  # pgbench: 500,000 accounts
PGBENCH_SECONDS = 15
PASSWORD = "demo"

FLIGHT_COLUMNS = "time_hour, carrier, flight, tailnum, origin, dest, dep_delay, arr_delay, distance"
PUBLICATIONS = {
    "flights": f"""
ALTER TABLE planes REPLICA IDENTITY FULL;  -- the filter is on a column outside the key
CREATE PUBLICATION flights_pub FOR TABLE flights ({FLIGHT_COLUMNS});
CREATE PUBLICATION boeing_pub FOR TABLE planes WHERE (manufacturer = 'BOEING');
CREATE PUBLICATION reference_pub FOR TABLE airlines, airports, weather;""",
    "bank": "CREATE PUBLICATION bank_pub FOR ALL TABLES;",
}
SUBSCRIPTIONS = {
    "flights": ("nyc", "flights_pub, boeing_pub, reference_pub"),
    "bank": ("bank", "bank_pub"),
}
WHAT_IS_PUBLISHED = {
    "flights": {
        "flights": f"SELECT {FLIGHT_COLUMNS} FROM flights",
        "planes": "SELECT * FROM planes WHERE manufacturer = 'BOEING'",
        **{table: f"SELECT * FROM {table}" for table in ("airlines", "airports", "weather")},
    },
    "bank": {
        f"pgbench_{table}": f"SELECT * FROM pgbench_{table}"
        for table in ("accounts", "branches", "tellers", "history")
    },
}
"""For each source database and table, the publisher's query that the lake must be equal to."""

LATE = """
SELECT a.name, count(*) AS flights, round(avg(f.arr_delay), 1) AS mean_delay
FROM flights f JOIN airlines a ON a.carrier = f.carrier
GROUP BY a.name ORDER BY mean_delay DESC LIMIT 5;"""


class Demo:
    """One run; ``folder`` holds the source server and the node's home."""

    def __init__(self, folder: Path, screen: Screen) -> None:
        self.folder = folder
        self.screen = screen
        self.source = PostgresServer(folder / "source", settings={"shared_buffers": "256MB"})
        self.node = Node(folder / "node", env=QUIET_AND_WARM, class_archive=False)
        self.equal = True

    def run(self) -> None:
        """Everything, in order."""
        self.start_source()
        self.start_node()
        self.subscribe()
        self.stream()
        self.cross_the_filter()
        self.compare()
        self.query()
        self.equal = WayBack(self.screen, self.node, self.source).run() and self.equal

    def start_source(self) -> None:
        """A PostgreSQL with the flights and a pgbench database, and publications in both."""
        archive = flights.source_distribution()
        with self.screen.step("A real PostgreSQL with real data"):
            self.source.start()
            self.source.psql(
                f"ALTER ROLE {PASSWORD_ROLE} PASSWORD '{PASSWORD}';"
                f" GRANT pg_read_all_data TO {PASSWORD_ROLE}"
            )
            for database in PUBLICATIONS:
                self.source.create_database(database)
            with self.source.connect("flights") as connection:
                rows = flights.load(connection, archive)
            self.pgbench("-i", "-q", "-s", str(SCALE))
            for database, statements in PUBLICATIONS.items():
                self.screen.sql(statements)
                self.source.psql(statements, database)
            self.screen.say(
                f"flights: {', '.join(f'{count:,} {name}' for name, count in rows.items())};"
                f" bank: {SCALE * 100_000:,} accounts"
            )

    def start_node(self) -> None:
        """A new node; the first one on a machine downloads Delta's jars."""
        with self.screen.step("A node, from nothing"):
            self.screen.say(f"penstock start --home {self.node.home}")
            self.node.start()
            self.screen.say(f"ready on {self.node.host}:{self.node.port}")

    def subscribe(self) -> None:
        """CREATE SUBSCRIPTION for both databases, and their initial copies."""
        with self.screen.step("CREATE SUBSCRIPTION, and the initial copy"):
            began = time.monotonic()
            for database, (name, publications) in SUBSCRIPTIONS.items():
                # The same text with a mask is printed: passwords are not for screens either.
                statement = (
                    f"CREATE SUBSCRIPTION {name} CONNECTION '{{}}' PUBLICATION {publications}"
                )
                conninfo = self.source.conninfo(database, PASSWORD_ROLE)
                self.screen.sql(statement.format(f"{conninfo} password=********"))
                self.node.psql(statement.format(f"{conninfo} password={PASSWORD}"))
            with connect_to_node(find_front_door(self.node.home)) as connection:
                self.screen.watch(lambda: read_status(connection), _all_ready)
                copied = sum(t.rows_copied or 0 for s in read_status(connection) for t in s.tables)
            seconds = time.monotonic() - began
            self.screen.fact(
                "initial copy",
                f"{copied:,} rows in {seconds:.1f} s, {copied / seconds:,.0f} rows/s",
            )
            began = time.monotonic()
            count = self.node.psql("SELECT count(*) FROM airlines")
            seconds = time.monotonic() - began
            self.screen.say(f"in the lake: {count} airlines")
            self.screen.fact("the first query, for which Spark loads its code", f"{seconds:.2f} s")

    def stream(self) -> None:
        """pgbench for some seconds while its transactions are applied, then catch up."""
        with self.screen.step(f"pgbench for {PGBENCH_SECONDS} s, streamed into the lake"):
            load = ["-n", "-c", "4", "-j", "2", "-T", str(PGBENCH_SECONDS), "-P", "5"]
            result = self.pgbench(*load)
            lines = result.stdout.splitlines()
            done = next(line for line in lines if "actually processed" in line).rsplit(": ", 1)[1]
            transactions = int(done.split("/")[0])
            self.screen.fact(
                "pgbench", f"{transactions:,} transactions, {transactions / PGBENCH_SECONDS:,.0f}/s"
            )
            self.screen.fact("caught up after", f"{self.wait_visible('bank'):.1f} s")
            seconds = self.one_row_visible()
            self.screen.fact("one INSERT, COMMIT to visible in the lake", f"{seconds:.2f} s")

    def cross_the_filter(self) -> None:
        """Rows enter and leave the row filter through UPDATE, and so do they in the lake."""
        with self.screen.step("Rows move across the row filter (manufacturer = 'BOEING')"):
            count = "SELECT count(*) FROM planes"
            self.screen.say(f"in the lake before: {self.node.psql(count)} planes")
            for statement, effect in (
                (
                    "UPDATE planes SET manufacturer = 'BOEING'"
                    " WHERE manufacturer LIKE 'MCDONNELL DOUGLAS%'",
                    "they enter: INSERT for the lake",
                ),
                (
                    "UPDATE planes SET manufacturer = 'RETIRED'"
                    " WHERE manufacturer = 'BOEING' AND year < 1990",
                    "they leave: DELETE for the lake",
                ),
            ):
                self.screen.sql(f"{statement};  -- {effect}")
                self.source.psql(statement, "flights")
                self.wait_visible("flights")
                self.screen.say(f"in the lake: {self.node.psql(count)} planes")

    def compare(self) -> None:
        """EXCEPT ALL both ways for every table, through filter and column list."""
        with self.screen.step("Row by row: the publisher, through filter and list, and the lake"):
            rows = 0
            for database, tables in WHAT_IS_PUBLISHED.items():
                for table, query in tables.items():
                    found = self.compare_table(database, table, query)
                    rows += found
            verdict = f"{rows:,} rows, all equal" if self.equal else "[red]they differ[/]"
            self.screen.fact("compared", verdict)

    def compare_table(self, database: str, table: str, query: str) -> int:
        """Print whether one table is equal on both sides; how many rows it has."""

        def publisher(sql: str, flags: Sequence[str], timeout: float) -> str:
            return self.source.psql(sql, database, flags, timeout)

        columns = FLIGHT_COLUMNS if table == "flights" else "*"
        result = difference(publisher, query, self.node.psql, f"SELECT {columns} FROM {table}")
        self.screen.say(f"{table}: {result}")
        self.equal = self.equal and not result
        return result.rows

    def query(self) -> None:
        """A join in the lake, through psql."""
        with self.screen.step("The lake answers SQL"):
            self.screen.sql(LATE)
            self.screen.output(self.node.psql(LATE, flags=NATIVE))

    def pgbench(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run pgbench on the bank."""
        return subprocess.run(
            [self.source.bin / "pgbench", *arguments, self.source.conninfo("bank")],
            capture_output=True,
            text=True,
            check=True,
        )

    def wait_visible(self, database: str) -> float:
        """Wait until all that is committed on the publisher is visible; the seconds it took."""
        began = time.monotonic()
        subscription, _ = SUBSCRIPTIONS[database]
        with self.source.connect(database) as connection:
            target = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            assert target is not None
            reached = (
                "SELECT FROM pg_stat_replication"
                " WHERE application_name = %s AND replay_lsn >= %s::pg_lsn"
            )
            wait_until(
                lambda: connection.execute(reached, (subscription, target[0])).fetchone() == (),
                300,
                f"subscription {subscription} to be up to date",
            )
        return time.monotonic() - began

    def one_row_visible(self) -> float:
        """Insert one row and wait until a query on the lake finds it; seconds since COMMIT."""
        self.source.psql("INSERT INTO airlines VALUES ('PS', 'Penstock Air')", "flights")
        began = time.monotonic()
        count = "SELECT count(*) FROM airlines WHERE carrier = 'PS'"
        with self.node.connect() as connection:
            wait_until(lambda: connection.execute(count).fetchone() == (1,), 120, "the new airline")
        return time.monotonic() - began

    def look_around(self) -> None:
        """The commands for a look at what KEEP=1 left running."""
        home = self.node.home
        location = self.node.psql(
            "SELECT location FROM penstock.table_version WHERE relid = 'flights'::regclass"
        )
        penstock = Path(sys.executable).with_name("penstock")
        for title, command in (
            ("psql on the node", f"{penstock} sql --home {home}"),
            (
                "psql on the source",
                f"{self.source.psql_program} '{self.source.conninfo('flights')}'",
            ),
            ("state and lag", f"{penstock} status --watch --home {home}"),
            ("PySpark", f"{Path(sys.executable)} -m demo.pyspark_shell {home / 'lake' / location}"),
            ("stop the node", f"{penstock} stop --home {home}"),
            ("stop the source", f"kill -INT $(head -1 {self.source.folder}/data/postmaster.pid)"),
            ("remove everything", f"rm -rf {self.folder}"),
        ):
            self.screen.console.print(f"[bold]{title}:[/] {command}", soft_wrap=True)

    def close(self) -> None:
        """Stop the node and the source."""
        self.node.close()
        self.source.remove()


def _all_ready(status: Sequence[SubscriptionStatus]) -> bool:
    tables = [table for each in status for table in each.tables]
    return len(status) == len(SUBSCRIPTIONS) and all(table.state == "r" for table in tables)


def main() -> int:
    """Run the demo; 0 when both sides are equal."""
    end_in_order_on_sigterm()
    screen = Screen()
    keep = os.environ.get("KEEP", "") not in ("", "0")
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    folder.chmod(0o711)
    with ExitStack() as at_end:
        at_end.callback(shutil.rmtree, folder, ignore_errors=True)
        demo = Demo(folder, screen)
        at_end.callback(demo.close)
        try:
            demo.run()
            screen.summary()
            if keep:
                demo.look_around()
                at_end.pop_all()
        except (PenstockError, AssertionError, subprocess.CalledProcessError) as error:
            screen.console.print(f"\n[bold red]The demo failed:[/] {error}", soft_wrap=True)
            return 1
        if not keep:
            screen.say("Nothing is left running; make demo KEEP=1 leaves everything to look at.")
    return 0 if demo.equal else 1


if __name__ == "__main__":
    sys.exit(main())
