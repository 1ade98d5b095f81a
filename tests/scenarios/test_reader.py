# SPDX-License-Identifier: Apache-2.0
"""Tables and published changes as DataFrames of a Spark program that is not the node's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.errors import PenstockError, PublicationError, WrongStateError
from penstock.reader import Lake
from penstock.running import NotRunningError
from tests.support.node import Node
from tests.support.waits import wait_until

Row = tuple[Any, ...]


class Commits:
    """Commits of a node, each seen by the ledger before the next."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def run(self, sql: str) -> str:
        """Run SQL as one transaction; the LSN of its commit."""
        with self._node.connect() as conn:
            with conn.transaction():
                conn.execute(sql.encode())
                [(xid,)] = conn.execute("SELECT pg_current_xact_id()::text").fetchall()
            query = "SELECT lsn::text FROM penstock.commit WHERE xid = %s::xid8"
            found = wait_until(lambda: conn.execute(query, [xid]).fetchone(), 20, "the ledger")
        lsn: str = found[0]
        return lsn


@pytest.fixture
def lake(node: Node, spark: SparkSession) -> Iterator[Lake]:
    with penstock.connect(node.home, spark) as made:
        yield made


def rows(frame: DataFrame) -> list[Row]:
    return sorted(map(tuple, frame.collect()))


def told(frame: DataFrame) -> list[Row]:
    """Operation, old and new row, in order."""
    ordered = frame.orderBy("commit_lsn", "seq").collect()
    return [
        (each.op, each.old and tuple(each.old), each.new and tuple(each.new)) for each in ordered
    ]


def test_tables_and_changes_as_they_were(node: Node, lake: Lake) -> None:
    """A table at an LSN, and the changes between two, by what held at each commit."""
    commits = Commits(node)
    start = commits.run(
        "CREATE TABLE rd_t (id int PRIMARY KEY, a int, note text);"
        "CREATE PUBLICATION rd_pub FOR TABLE rd_t (id, a) WHERE (id > 1)"
    )
    first = commits.run("INSERT INTO rd_t SELECT g, g * 10, 'note' FROM generate_series(1, 3) g")
    second = commits.run("UPDATE rd_t SET a = 0 WHERE id < 3")
    commits.run("ALTER PUBLICATION rd_pub SET TABLE rd_t (id, a) WHERE (id < 3)")
    third = commits.run("DELETE FROM rd_t WHERE id > 1")
    assert rows(lake.table("rd_t")) == [(1, 0, "note")]
    assert rows(lake.table("public.rd_t", at=first)) == [(n, n * 10, "note") for n in (1, 2, 3)]
    assert rows(lake.table("rd_t", at=start)) == []

    changes = lake.changes("rd_pub", start, table="rd_t")
    assert changes.columns == ["op", "commit_lsn", "seq", "old", "new", "unchanged"]
    expected = [
        ("I", None, (2, 20)), ("I", None, (3, 30)), ("U", None, (2, 0)), ("D", (2, None), None)
    ]  # fmt: skip
    assert told(changes) == expected
    assert told(lake.changes("rd_pub", start, second, "rd_t")) == expected[:3]
    assert told(lake.changes("rd_pub", second, third, "public.rd_t")) == expected[3:]
    assert told(lake.changes("rd_pub", third, table="rd_t")) == []

    commits.run("ALTER TABLE rd_t RENAME COLUMN a TO b; ALTER TABLE rd_t RENAME TO rd_u")
    fourth = commits.run("UPDATE rd_u SET b = 1; INSERT INTO rd_u VALUES (2, 2, '')")
    commits.run("DROP PUBLICATION rd_pub; ALTER TABLE rd_u RENAME TO rd_v")
    assert told(lake.changes("rd_pub", third, fourth, "rd_u")) == [
        ("U", None, (1, 1)), ("I", None, (2, 2))
    ]  # fmt: skip
    assert lake.table("rd_u", at=fourth).columns == ["id", "b", "note"]
    assert lake.table("rd_t", at=third).columns == ["id", "a", "note"]
    fifth = commits.run("DELETE FROM rd_v")
    more = lake.spark.sql("SELECT 9 id, 9 b, 'of Spark' note")
    more.write.format("delta").mode("append").save(str(lake.location("rd_v")))
    wait_until(lambda: rows(lake.table("rd_v")) == [(9, 9, "of Spark")], 20, "the append")
    with pytest.raises(PublicationError, match='"rd_pub" does not exist'):
        lake.changes("rd_pub", third, fifth)
    with pytest.raises(WrongStateError, match="does not exist"):
        lake.table("rd_u")


def test_all_tables_of_a_publication(node: Node, lake: Lake) -> None:
    """Rows are variants, whatever their columns; a partition's changes may be its root's."""
    commits = Commits(node)
    start = commits.run(
        "CREATE TABLE rd_r (id int, t text) PARTITION BY RANGE (id);"
        "CREATE TABLE rd_low PARTITION OF rd_r FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE rd_high PARTITION OF rd_r FOR VALUES FROM (10) TO (20);"
        "CREATE TABLE rd_o (n numeric(9,2));"
        "CREATE PUBLICATION rd_every FOR TABLE rd_r, rd_o WITH (publish_via_partition_root)"
    )
    middle = commits.run(
        "INSERT INTO rd_r VALUES (1, 'low'), (11, 'high'); INSERT INTO rd_o VALUES (1.50)"
    )
    commits.run("ALTER TABLE rd_o ADD more date")
    commits.run("INSERT INTO rd_o VALUES (2, '2020-02-02')")
    found = lake.changes("rd_every", start)
    shown = found.selectExpr("table", "op", "to_json(new)").collect()
    assert sorted(map(tuple, shown)) == [
        ("rd_o", "I", '{"more":"2020-02-02","n":2}'),
        ("rd_o", "I", '{"n":1.5}'),
        ("rd_r", "I", '{"id":1,"t":"low"}'),
        ("rd_r", "I", '{"id":11,"t":"high"}'),
    ]
    numbers = found.selectExpr("variant_get(new, '$.n', 'decimal(9,2)') n").where("n > 0")
    assert [str(n) for (n,) in rows(numbers)] == ["1.50", "2.00"]
    assert found.select("commit_lsn", "seq").distinct().count() == 4
    assert rows(lake.table("rd_r")) == [(1, "low"), (11, "high")]
    assert rows(lake.table("rd_r", at=middle)) == [(1, "low"), (11, "high")]
    with pytest.raises(WrongStateError, match=r"columns of table .* have changed at") as changed:
        lake.changes("rd_every", start, table="rd_o")
    assert middle in (changed.value.hint or "")
    with pytest.raises(WrongStateError, match="has no Delta table"):
        lake.location("rd_r")
    with pytest.raises(WrongStateError, match="does not publish table"):
        lake.changes("rd_every", start, table="rd_low")
    with pytest.raises(PenstockError, match="cannot end at"):
        lake.changes("rd_every", lake.lsn, start)


def test_small_commits_are_one_read(node: Node, lake: Lake) -> None:
    """Commit by commit in order, through filter and list, but one frame, and not one for each."""
    commits = Commits(node)
    start = commits.run(
        "CREATE TABLE rd_s (id int PRIMARY KEY, a numeric(9,2), at timestamptz, l int[]);"
        "CREATE PUBLICATION rd_small FOR TABLE rd_s (id, a, at) WHERE (id > 1)"
    )
    for number in range(1, 6):
        commits.run(f"INSERT INTO rd_s VALUES ({number}, {number}.50, '2020-01-01Z', '{{1}}')")
    commits.run("UPDATE rd_s SET a = 0; UPDATE rd_s SET a = 1 WHERE id = 5")
    commits.run("DELETE FROM rd_s WHERE id < 3")
    last = commits.run("TRUNCATE rd_s")
    changes = lake.changes("rd_small", start, last, "rd_s")
    shown = changes.orderBy("commit_lsn", "seq").selectExpr("op", "coalesce(new, old) AS row")
    found = [(each.op, each.row and (each.row.id, each.row.a)) for each in shown.collect()]
    assert [(op, row and (row[0], row[1] and float(row[1]))) for op, row in found] == [
        *(("I", (number, number + 0.5)) for number in range(2, 6)),
        *(("U", (number, 0.0)) for number in range(2, 6)),
        ("U", (5, 1.0)), ("D", (2, None)), ("T", None)
    ]  # fmt: skip
    assert changes.select("new.at").where("at = timestamp'2020-01-01 00:00:00 UTC'").count() == 9
    assert changes._jdf.queryExecution().optimizedPlan().collectLeaves().size() == 1


def test_a_truncated_root_is_told_of_once(node: Node, lake: Lake) -> None:
    """Where it is published as itself; a TRUNCATE of one partition is then not told (pgoutput)."""
    commits = Commits(node)
    start = commits.run(
        "CREATE TABLE rd_p (id int) PARTITION BY RANGE (id);"
        "CREATE TABLE rd_p1 PARTITION OF rd_p FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE rd_p2 PARTITION OF rd_p FOR VALUES FROM (10) TO (20);"
        "CREATE PUBLICATION rd_root FOR TABLE rd_p WITH (publish_via_partition_root);"
        "CREATE PUBLICATION rd_leaves FOR TABLE rd_p"
    )
    commits.run("INSERT INTO rd_p VALUES (1)")
    commits.run("TRUNCATE rd_p")
    commits.run("TRUNCATE rd_p2")
    last = commits.run("INSERT INTO rd_p VALUES (2)")
    of_root = lake.changes("rd_root", start, last, "rd_p")
    assert told(of_root) == [("I", None, (1,)), ("T", None, None), ("I", None, (2,))]
    ops = lake.changes("rd_leaves", start, last).orderBy("commit_lsn", "seq")
    assert [tuple(row) for row in ops.select("table", "op").collect()] == [
        ("rd_p1", "I"), ("rd_p1", "T"), ("rd_p2", "T"), ("rd_p2", "T"), ("rd_p1", "I")
    ]  # fmt: skip


def test_without_a_node_there_is_no_lake(node: Node, tmp_path: Any) -> None:
    """The error says which home it was."""
    with pytest.raises(NotRunningError, match="no node runs on home"):
        penstock.connect(tmp_path)
