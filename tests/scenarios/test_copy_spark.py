# SPDX-License-Identifier: Apache-2.0
"""The initial copy as a node runs it, on executors and in the node itself, committed to Delta."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.change.relation import LakeTable
from penstock.client.connection import publisher_conninfo
from penstock.client.copy import Leaf, TableCopy, copy_packs
from penstock.client.published import LEAST_KEPT, published_table
from penstock.client.snapshot import Snapshot, export_snapshot
from penstock.errors import ConnectionLostError, ValueNotHeldError
from penstock.lake import tables
from penstock.lake.copy import Pack, Readers, TableCopied, run_copy
from penstock.lake.copy_node import NodeReader
from penstock.lake.copy_range import CopyStoppedError
from penstock.lake.copy_source import Ahead, Source
from penstock.lake.copy_spark import ExecutorReaders
from penstock.lake.log import physical_names
from tests.support.copying import lake_table_like
from tests.support.fix_servers import Database
from tests.support.waits import wait_until

ROWS = 200_000
MakeReaders = Callable[[Source], Readers]


@contextmanager
def node_reader(source: Source) -> Iterator[NodeReader]:
    """The node as a reader, which begins to connect at once."""
    with closing(Ahead(source.conninfo)) as ahead:
        yield NodeReader(source, ahead)


@pytest.fixture(params=["executors", "node"])
def readers(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[MakeReaders]:
    """Who reads; both must do the same."""
    with ExitStack() as at_end:

        def make(source: Source) -> Readers:
            if request.param == "executors":
                return ExecutorReaders(spark, source, 2)
            return at_end.enter_context(node_reader(source))

        yield make


@pytest.fixture
def orders(publisher_db: Database) -> Database:
    publisher_db.psql(f"""
        CREATE TABLE orders (id int PRIMARY KEY, region text, amount numeric(12,2), at timestamptz,
                             "odd name" text);
        INSERT INTO orders SELECT i, 'region ' || i % 5, i / 7.0, '2024-01-01'::timestamptz
            + i * interval '1 s', repeat('ü', i % 50) FROM generate_series(1, {ROWS}) i;
        CREATE TABLE many (id int); CREATE TABLE none (id int);
        INSERT INTO many SELECT generate_series(1, 10);
        CREATE PUBLICATION p FOR TABLE orders WHERE (id % 10 <> 0), many, none;
        CREATE PUBLICATION few FOR TABLE orders WHERE (id <= 100);
        ANALYZE""")
    return publisher_db


@pytest.fixture
def snapshot(orders: Database) -> Iterator[Snapshot]:
    stopping = threading.Event()
    with export_snapshot(
        orders.conninfo, stopping=stopping, application_name="copy test"
    ) as exported:
        yield exported


def source_of(
    database: Database, snapshot: Snapshot, application_name: str | None = None
) -> Source:
    """Where a snapshot is read, under this name."""
    conninfo = publisher_conninfo(
        database.conninfo, replication=False, application_name=application_name
    )
    return Source(conninfo, snapshot.name)


def table_copy(
    spark: SparkSession, database: Database, snapshot: Snapshot, name: str, folder: Path, relid: int
) -> TableCopy:
    """A copy into a new Delta table like the publisher's."""
    with database.connect() as connection:
        lake = lake_table_like(connection, "public", name, str(folder / str(relid)))
    lake = replace(lake, relid=relid, version=tables.create(lambda: spark, lake, "{}"))
    published = published_table(snapshot.connection, ["p"], "public", name)
    leaf = Leaf(lake, None, physical_names(lake.location))
    return TableCopy(published, lake, (leaf,))


def packs_of(copies: Iterable[TableCopy]) -> list[Pack]:
    """Several, however small the tables are."""
    return copy_packs(copies, readers=2, spread_bytes=0)


def commit(spark: SparkSession, lake: LakeTable, copied: TableCopied) -> LakeTable:
    files = copied.files.get(lake.relid, [])
    version = tables.append_files(lake, files, "{}") if files else lake.version
    return replace(lake, version=version)


def test_tables_are_copied_and_committed(
    spark: SparkSession,
    readers: MakeReaders,
    orders: Database,
    snapshot: Snapshot,
    tmp_path: Path,
) -> None:
    """Several tables in one run: every row once, progress adds up, statistics prune by key."""
    copies = {
        relid: table_copy(spark, orders, snapshot, name, tmp_path, relid)
        for relid, name in enumerate(("orders", "many", "none"), 1)
    }
    assert copies[1].published.estimated_rows == ROWS
    source = source_of(orders, snapshot)
    progress: Counter[int] = Counter()
    seen = []
    packs = packs_of(copies.values())
    for copied in run_copy(
        readers(source),
        packs,
        lambda relid, rows: progress.update({relid: rows}),
        threading.Event(),
    ):
        lake = commit(spark, copies[copied.target.relid].lake, copied)
        seen.append((lake.name, copied.rows, tables.read(spark, lake).count()))
        if lake.name == "orders":
            rows = tables.read(spark, lake)
            found = rows.selectExpr(
                "count(distinct id)", "sum(amount)", "max(at)", "sum(char_length(`odd name`))"
            ).first()
            assert found is not None
            expected = orders.psql(
                'SELECT count(id), sum(amount), max(at)::timestamp, sum(length("odd name"))'
                " FROM orders WHERE id % 10 <> 0"
            )
            assert "|".join(str(value) for value in found) == expected
            assert [row.id for row in rows.where("id in (17, 20)").collect()] == [17]
    wanted = ROWS * 9 // 10
    assert sorted(seen) == [("many", 10, 10), ("none", 0, 0), ("orders", wanted, wanted)]
    assert progress == {1: wanted, 2: 10, 3: 0}


def test_a_failure_leaves_no_files(
    spark: SparkSession,
    readers: MakeReaders,
    orders: Database,
    snapshot: Snapshot,
    tmp_path: Path,
) -> None:
    """One bad value ends the copy with its own error; files of unfinished tables are removed."""
    orders.psql("ALTER TABLE many ADD COLUMN v date; INSERT INTO many VALUES (11, 'infinity')")
    with export_snapshot(
        orders.conninfo, stopping=threading.Event(), application_name="copy test"
    ) as later:
        copies = [
            table_copy(spark, orders, later, name, tmp_path, relid)
            for relid, name in ((1, "orders"), (2, "many"))
        ]
        source = source_of(orders, later)
        with pytest.raises(ValueNotHeldError, match='"infinity" of column "v"'):
            list(run_copy(readers(source), packs_of(copies), lambda *_: None, threading.Event()))
    assert not list(tmp_path.glob("*/*.parquet"))


def test_a_copy_stops_when_asked(
    spark: SparkSession,
    readers: MakeReaders,
    orders: Database,
    snapshot: Snapshot,
    tmp_path: Path,
) -> None:
    """A stop ends the running jobs and removes what they wrote."""
    copies = [table_copy(spark, orders, snapshot, "orders", tmp_path, 1)]
    source = source_of(orders, snapshot)
    stopping = threading.Event()
    copy = run_copy(readers(source), packs_of(copies), lambda *_: stopping.set(), stopping)
    with pytest.raises(CopyStoppedError):
        list(copy)
    assert not list(tmp_path.glob("*/*.parquet"))


def test_without_its_snapshot_a_copy_ends(
    spark: SparkSession,
    readers: MakeReaders,
    orders: Database,
    snapshot: Snapshot,
    tmp_path: Path,
) -> None:
    """When the keeper's connection is gone, no other snapshot is read: the copy ends."""
    copies = [table_copy(spark, orders, snapshot, "orders", tmp_path, 1)]
    source = source_of(orders, snapshot)
    snapshot.connection.close()
    copy = run_copy(readers(source), packs_of(copies), lambda *_: None, threading.Event())
    with pytest.raises(ConnectionLostError, match="the snapshot of the initial copy is gone"):
        list(copy)


def test_a_statement_that_waits_is_cancelled(
    spark: SparkSession, orders: Database, snapshot: Snapshot, tmp_path: Path
) -> None:
    """A stop does not wait for the publisher to be done; what the node read with is gone there."""
    name = "copy that waits"
    packs = packs_of([table_copy(spark, orders, snapshot, "many", tmp_path, 1)])
    source = source_of(orders, snapshot, name)
    sessions = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'"
    stopping = threading.Event()
    with orders.connect() as other, node_reader(source) as reader:
        other.execute("BEGIN; LOCK TABLE many")
        copy = run_copy(reader, packs, lambda *_: None, stopping)

        def stop_when_it_waits() -> None:
            waits = f"{sessions} AND wait_event_type = 'Lock'"
            wait_until(lambda: orders.psql(waits) == "1", 30, "the copy to wait")
            stopping.set()

        stopper = threading.Thread(target=stop_when_it_waits)
        stopper.start()
        with pytest.raises(CopyStoppedError):
            list(copy)
        stopper.join()
        assert orders.psql(sessions) == "0"


def test_a_connection_made_ahead_may_be_gone(
    spark: SparkSession, orders: Database, snapshot: Snapshot, tmp_path: Path
) -> None:
    """A publisher may end one that does nothing while the copy waits for its snapshot."""
    name = "copy ahead"
    packs = packs_of([table_copy(spark, orders, snapshot, "many", tmp_path, 1)])
    with node_reader(source_of(orders, snapshot, name)) as reader:
        there = (
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            f" WHERE application_name = '{name}' AND state LIKE 'idle%'"
        )
        wait_until(lambda: orders.psql(there) == "t", 30, "the connection")
        (copied,) = run_copy(reader, packs, lambda *_: None, threading.Event())
    assert copied.rows == 10


def test_the_size_of_a_copy_is_what_its_filter_keeps(orders: Database, snapshot: Snapshot) -> None:
    """As far as the planner knows; but never less than a sixteenth of the table."""
    ask = snapshot.connection
    total = int(orders.psql("SELECT pg_table_size('orders')"))
    for publications, kept in ((["p"], 0.995), (["few"], LEAST_KEPT), (["p", "few"], 0.995)):
        published = published_table(ask, publications, "public", "orders")
        (piece,) = published.pieces
        assert piece.size.size == pytest.approx(total * kept, rel=0.01)
    orders.psql("ALTER TABLE orders ADD more int")  # nothing keeps a lock on it


def test_the_export_can_be_stopped(publisher_db: Database) -> None:
    """A transaction on the publisher that does not end makes the export wait, until stopped."""
    stopping = threading.Event()
    with publisher_db.connect() as writer:
        writer.execute("BEGIN; CREATE TABLE t (id int)")
        timer = threading.Timer(0.5, stopping.set)
        timer.start()
        with pytest.raises(CopyStoppedError):
            with export_snapshot(
                publisher_db.conninfo, stopping=stopping, application_name="copy test"
            ):
                raise AssertionError("the snapshot was exported")
