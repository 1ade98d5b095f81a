# SPDX-License-Identifier: Apache-2.0
"""The way back: a table made by Spark is published from the lake to the same PostgreSQL."""

from __future__ import annotations

import time

from demo.screen import Screen
from penstock import connect
from tests.support.compare import difference
from tests.support.node import Node
from tests.support.psql import NATIVE
from tests.support.servers import PostgresServer
from tests.support.waits import wait_until

PATIENCE = 120
DATABASE = "flights"
ROLE, PASSWORD = "reader", "demo"
TABLE = """
CREATE TABLE routes (origin text, dest text, flights bigint, mean_delay numeric(6,1),
    PRIMARY KEY (origin, dest));"""
FIRST = "INSERT INTO routes VALUES ('JFK', 'SDQ', 0, NULL);  -- the first row makes its Delta table"
PUBLISH = f"""
ALTER TABLE routes REPLICA IDENTITY FULL;  -- the filter is on a column outside the key
CREATE PUBLICATION late_routes FOR TABLE routes WHERE (mean_delay > 10);
CREATE ROLE {ROLE} LOGIN REPLICATION PASSWORD '********';
GRANT SELECT ON routes TO {ROLE};"""
SPARK = """
SELECT origin, dest, count(*) AS flights, CAST(avg(arr_delay) AS decimal(6,1)) AS mean_delay
FROM flights GROUP BY origin, dest"""
MENDED = "UPDATE routes SET mean_delay = mean_delay - 10 WHERE origin = 'EWR' AND mean_delay > 15"
WORST = "SELECT * FROM routes ORDER BY mean_delay DESC, dest LIMIT 3;"


class WayBack:
    """``source`` is the server that the lake's flights came from."""

    def __init__(self, screen: Screen, node: Node, source: PostgresServer) -> None:
        self.screen = screen
        self.node = node
        self.source = source

    def run(self) -> bool:
        """Everything, in order; whether both sides are equal at the end."""
        self._make_by_spark()
        self._publish()
        self._subscribe()
        return self._change()

    def _make_by_spark(self) -> None:
        with self.screen.step("A Spark program makes a table of the lake"):
            self.screen.sql(f"{TABLE}\n{FIRST}")
            self.node.psql(TABLE + FIRST)
            lake = connect(self.node.home)
            lake.table("flights").createOrReplaceTempView("flights")
            self.screen.output(f'routes = spark.sql("""{SPARK}""")')
            self.screen.output('routes.write.format("delta").mode("append").save(…)')
            routes = lake.spark.sql(SPARK)
            routes.write.format("delta").mode("append").save(str(lake.location("routes")))
            lake.spark.stop()
            wait_until(self._is_noticed, PATIENCE, "the node to notice what Spark wrote")
            self.screen.say(f"in the lake: {self.node.psql('SELECT count(*) FROM routes')} routes")

    def _is_noticed(self) -> bool:
        return int(self.node.psql("SELECT count(*) FROM routes")) > 1

    def _publish(self) -> None:
        with self.screen.step("CREATE PUBLICATION in the lake"):
            self.screen.sql(PUBLISH)
            self.node.psql(PUBLISH.replace("********", PASSWORD))
            found = (
                "SELECT table_name, rows, columns FROM penstock.explain_publication('late_routes')"
            )
            self.screen.output(self.node.psql(f"{found};", flags=NATIVE))

    def _subscribe(self) -> None:
        with self.screen.step("The same PostgreSQL subscribes to the lake"):
            conninfo = f"host={self.node.host} port={self.node.port} dbname=lake user={ROLE}"
            statement = (
                f"CREATE SUBSCRIPTION lake CONNECTION '{conninfo} password={{}}'"
                " PUBLICATION late_routes;"
            )
            self.screen.sql(TABLE + "\n" + statement.format("********"))
            began = time.monotonic()
            self.source.psql(TABLE, DATABASE)
            self.source.psql(statement.format(PASSWORD), DATABASE)
            copied = (
                "SELECT count(*) FROM pg_subscription_rel r JOIN pg_subscription s"
                " ON s.oid = r.srsubid WHERE subname = 'lake' AND srsubstate = 'r'"
            )
            wait_until(
                lambda: self.source.psql(copied, DATABASE) == "1", PATIENCE, "the copy of routes"
            )
            self.screen.fact(
                "a PostgreSQL copied a lake table", f"{time.monotonic() - began:.1f} s"
            )
            self.screen.output(self.source.psql(WORST, DATABASE, NATIVE))

    def _change(self) -> bool:
        with self.screen.step("What changes in the lake changes there, through the filter"):
            self.screen.sql(f"{MENDED};  -- in the lake; some routes leave the filter")
            self.node.psql(MENDED)
            began = time.monotonic()
            self._wait_replayed()
            self.screen.fact(
                "COMMIT in the lake to applied in PostgreSQL", f"{time.monotonic() - began:.2f} s"
            )
            found = difference(
                self.node.psql,
                "SELECT * FROM routes WHERE mean_delay > 10",
                lambda sql, flags, timeout: self.source.psql(sql, DATABASE, flags, timeout),
                "SELECT * FROM routes",
            )
            self.screen.say(f"routes: {found}")
            return not found

    def _wait_replayed(self) -> None:
        with self.node.connect() as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            assert row is not None
            replayed = (
                "SELECT FROM pg_stat_replication"
                " WHERE application_name = 'lake' AND replay_lsn >= %s::pg_lsn"
            )
            wait_until(
                lambda: connection.execute(replayed, row).rowcount == 1, PATIENCE, "the subscriber"
            )
