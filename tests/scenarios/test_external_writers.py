# SPDX-License-Identifier: Apache-2.0
"""A PySpark job that knows nothing of the node writes a subscribed table, while its stream runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.lake.log import head_version
from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.subscribing import SYNC_TIMEOUT, subscribed, wait_caught_up
from tests.support.waits import wait_until

ERRORS = "SELECT message, detail, hint FROM penstock.subscription_error"


@dataclass(frozen=True)
class Written:
    """A subscribed table and a PySpark job that has its folder."""

    node: Node
    publisher: Database
    spark: SparkSession
    folder: str

    def append(self, *ids: int, mode: str = "append") -> None:
        """Rows from Spark: their note is ``spark``, their moments are in Spark's own form."""
        text = ", ".join(map(str, ids))
        rows = self.spark.range(1).selectExpr(
            f"explode(array({text})) AS id", "'spark' AS note", "timestamp_seconds(1) AS at"
        )
        rows.coalesce(1).write.format("delta").mode(mode).save(self.folder)

    def append_quickly(self, number: int) -> None:
        """A row from another writer of Delta Lake."""
        schema = pa.schema(
            [("id", pa.int32()), ("note", pa.string()), ("at", pa.timestamp("us", "UTC"))]
        )
        rows = pa.table([[number], ["rust"], [None]], schema=schema)
        write_deltalake(self.folder, rows, mode="append")

    def sql(self, statement: str) -> None:
        """A statement from Spark; {} is the table.

        Again when Delta says that the node, which compacts in the background, was quicker.
        """

        def done() -> bool:
            try:
                self.spark.sql(statement.format(f"delta.`{self.folder}`"))
            except (PySparkException, Py4JJavaError) as error:
                if "concurrent" in str(error).lower():
                    return False
                raise
            return True

        wait_until(done, SYNC_TIMEOUT, statement)

    def insert(self, *ids: int) -> None:
        """Rows from the publisher, each in a transaction of its own."""
        self.publisher.psql("".join(f"INSERT INTO ext VALUES ({n}, 'pg', now());" for n in ids))

    def rows(self) -> str:
        """What a client of the node sees."""
        return self.node.psql("SELECT string_agg(id::text, ' ' ORDER BY id) FROM ext")

    def wait_rows(self, *ids: int) -> None:
        """Wait until the node has exactly these rows, each once."""
        text = " ".join(map(str, ids))
        try:
            wait_until(lambda: self.rows() == text, SYNC_TIMEOUT, f"the rows {text}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.rows()}\n{self.node.text()[-5000:]}") from error


@pytest.fixture
def written(node: Node, publisher_db: Database, spark_worker: SparkSession) -> Iterator[Written]:
    """The table with rows 1 to 3 and a running stream."""
    spark_worker.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    publisher_db.psql(
        "CREATE TABLE ext (id int PRIMARY KEY, note text, at timestamptz);"
        "INSERT INTO ext SELECT g, 'pg', now() FROM generate_series(1, 3) g;"
        "CREATE PUBLICATION ext FOR TABLE ext"
    )
    with subscribed(node, publisher_db, "ext", "ext"):
        location = node.psql(
            "SELECT location FROM penstock.table_version WHERE relid = 'ext'::regclass"
        )
        folder = str(Path(node.home, "lake", location))
        yield Written(node, publisher_db, spark_worker, folder)


def external_commits(node: Node) -> list[tuple[str | None, dict[str, object]]]:
    """Origin and table entry of the ledger's rows of external commits, in order."""
    query = (
        "SELECT coalesce(origin, ''), tables->0 FROM penstock.commit"
        " WHERE purpose = 'external' ORDER BY lsn"
    )
    with node.connect() as conn:
        rows = conn.execute(query).fetchall()
    return [
        (origin, entry if isinstance(entry, dict) else json.loads(entry)) for origin, entry in rows
    ]


def test_a_spark_job_writes_a_subscribed_table(written: Written) -> None:
    """Its commits are registered without an origin; nothing of either side is lost or doubled.

    Then: a key that Spark has written and the publisher inserts is a conflict; what the node does
    not know of a table stops it, visibly, until it is taken back.
    """
    node = written.node
    before = len(external_commits(node))
    written.append(101, 102)
    written.wait_rows(1, 2, 3, 101, 102)
    wait_until(lambda: len(external_commits(node)) > before, 10, "the ledger's row")
    origin, entry = external_commits(node)[-1]
    version = head_version(written.folder)
    assert (origin, entry["kind"], entry["version"]) == ("", "append", version)
    assert entry["ranges"] == [[version, version]]

    # Both at once: whoever is second settles again.
    for number in range(4, 10):
        written.insert(number)
        written.append_quickly(100 * number)
    written.publisher.psql(
        "UPDATE ext SET note = 'changed' WHERE id = 2; DELETE FROM ext WHERE id = 3"
    )
    written.sql("DELETE FROM {} WHERE id = 102")
    wait_caught_up(written.publisher)
    both = [1, 2, *range(4, 10), 101, *range(400, 1000, 100)]
    written.wait_rows(*both)
    assert node.psql("SELECT note FROM ext WHERE id = 2") == "changed"
    assert node.psql("SELECT count(*) FROM ext WHERE at = 'epoch'::timestamptz + '1 s'") == "1"

    written.insert(101)
    conflict = (
        "SELECT confl_insert_exists > 0 FROM pg_stat_subscription_stats WHERE subname = 'ext'"
    )
    wait_until(lambda: node.psql(conflict) == "t", SYNC_TIMEOUT, "the conflict to be counted")
    error = node.psql(ERRORS)
    assert 'duplicate key value violates unique constraint "ext_pkey"' in error
    assert "Key (id)=(101) already exists." in error
    written.sql("DELETE FROM {} WHERE id = 101")
    written.wait_rows(*both)
    wait_until(
        lambda: node.psql("SELECT note FROM ext WHERE id = 101") == "pg", SYNC_TIMEOUT, "the row"
    )

    written.sql("ALTER TABLE {} ADD COLUMN extra int")
    table_error = "SELECT message FROM penstock.subscription_error WHERE relid = 'ext'::regclass"
    wait_until(
        lambda: "changed by another program" in node.psql(table_error), 30, "the table's error"
    )
    assert "changed by another program" in node.command("status").stdout
    written.wait_rows(*both)
    written.insert(10)
    committed = node.psql(
        "SELECT version FROM penstock.table_version WHERE relid = 'ext'::regclass"
    )
    written.sql(f"RESTORE TABLE {{}} TO VERSION AS OF {committed}")
    written.wait_rows(*sorted([*both, 10]))
    wait_until(lambda: not node.psql(ERRORS), 30, "the errors to go")

    written.append(1, 2, 7000, mode="overwrite")
    written.wait_rows(1, 2, 7000)
    assert external_commits(node)[-1][1]["kind"] == "merge"
    written.publisher.psql("UPDATE ext SET note = 'again' WHERE id IN (1, 4)")
    wait_caught_up(written.publisher)
    assert node.psql("SELECT id, note FROM ext ORDER BY id") == "1|again\n2|spark\n7000|spark"


def test_a_copy_into_a_table_that_has_rows(written: Written) -> None:
    """A key that is there already is PostgreSQL's error; no row is doubled, no file is left."""
    node = written.node
    node.psql(
        "DROP SUBSCRIPTION ext;"
        f"CREATE SUBSCRIPTION ext CONNECTION '{written.publisher.conninfo}' PUBLICATION ext"
    )
    wait_until(lambda: "already exists" in node.psql(ERRORS), SYNC_TIMEOUT, "the error")
    assert 'duplicate key value violates unique constraint "ext_pkey"' in node.psql(ERRORS)
    written.wait_rows(1, 2, 3)
    written.sql("DELETE FROM {}")
    written.insert(4)
    written.wait_rows(1, 2, 3, 4)
