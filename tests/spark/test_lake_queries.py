# SPDX-License-Identifier: Apache-2.0
"""Queries on the lake beside their rows: parameters, snapshots, cancel, styles, read-only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from penstock.change import types
from penstock.errors import PenstockError, TableStateError
from penstock.frontdoor.actions import Parameter, RunOnLake
from penstock.lake.query import cancel_query, run_query, warm
from penstock.sql.translate.query import Translation
from tests.support.query_oracle import Oracle
from tests.support.waits import wait_until

SLOW = """
    SELECT count(*) FROM sales a, sales b, sales c, sales d, sales e, sales f
    WHERE a.id + b.id + c.id + d.id + e.id + f.id = 7"""


@contextmanager
def settings(oracle: Oracle, *statements: str) -> Iterator[None]:
    """Statements in the session, taken back at the end."""
    for statement in statements:
        oracle.conn.execute(statement.encode())
    try:
        yield
    finally:
        oracle.conn.execute("ROLLBACK")
        oracle.conn.execute("RESET ALL")
        oracle.conn.execute("RESET SESSION AUTHORIZATION")


@pytest.mark.parametrize(
    ("sql", "values", "oids"),
    [
        ("SELECT id FROM people WHERE id = $1", [b"3"], [types.INT4]),
        ("SELECT id FROM people WHERE id = $1", [None], [types.INT4]),
        ("SELECT id, $2 FROM people WHERE name = $1", [b"bob", b"it's $1"], [types.TEXT] * 2),
        ("SELECT id, $1 + salary FROM people", [b"1.250"], [types.NUMERIC]),
        ("SELECT id FROM people WHERE born >= $1", [b"31 Dec 1999"], [types.DATE]),
        ("SELECT id FROM people WHERE logged < $1", [b"2024-01-01 UTC"], [types.TIMESTAMPTZ]),
        ("SELECT id FROM people WHERE id = ANY ($1)", [b"{1,3,NULL}"], [1007]),
        ("SELECT id FROM people WHERE name = ANY ($1)", [b'{bob,"a_b%c\\\\d"}'], [1009]),
        ("SELECT id FROM people ORDER BY id LIMIT $1", [b"2"], [types.INT8]),
        ("SELECT id FROM people WHERE score > $1", [b"1e-1"], [types.FLOAT8]),
        ("SELECT id FROM people WHERE ok = $1", [b"yes"], [types.BOOL]),
        ("SELECT id FROM people WHERE photo = $1", [b"\\x61"], [types.BYTEA]),
        ("SELECT id FROM people WHERE u = $1", [b"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"], [2950]),
        ("SELECT id, seen + $1 FROM people WHERE id = 1", [b"1 mon -02:00"], [1186]),
        ("SELECT id FROM people WHERE id = $1", [b"x"], [types.INT4]),
    ],
)
def test_parameters_in_text(
    oracle: Oracle, sql: str, values: list[bytes | None], oids: list[int]
) -> None:
    """A parameter's text means what PostgreSQL reads in it, also when it reads an error."""
    assert oracle.compare(sql, values, oids) is None


def test_parameters_in_binary(oracle: Oracle) -> None:
    """Binary parameters are read by their types' binary formats."""
    given = [
        Parameter(types.INT4, 1, b"\0\0\0\x03"),
        Parameter(types.NUMERIC, 1, bytes.fromhex("0002000000000002000113880000")[:12]),
        Parameter(types.DATE, 1, b"\0\0\0\0"),
        Parameter(types.TEXT, 1, b"x"),
    ]
    sql = "SELECT id + $1, salary + $2, born - $3, name || $4 FROM people WHERE id = 1"
    result = asyncio.run(
        oracle.queries.run(oracle.backend, RunOnLake(sql, ()), given, "binary parameters")
    )
    row = [column[0].as_py() for column in result.rows.columns]
    assert [row[0], str(row[1]), row[2], row[3]] == [4, "1002.00", -7246, "Annx"]
    assert result.tag == "SELECT 1"


def test_a_transaction_reads_the_versions_of_its_snapshot(oracle: Oracle, tmp_path: object) -> None:
    """In REPEATABLE READ a table keeps its version; after the transaction the new one is read."""
    oracle.conn.execute("CREATE TABLE moving (n int)")
    oracle.conn.execute("INSERT INTO moving VALUES (1)")
    relid = oracle.load("moving")
    location = str(oracle.lake / f"d{relid}")
    with settings(oracle, "BEGIN ISOLATION LEVEL REPEATABLE READ"):
        assert oracle.translated("SELECT n FROM moving") == [[b"1"]]
        write_deltalake(location, pa.table({"n": pa.array([2], pa.int32())}), mode="append")
        with oracle.again() as other:
            other.execute(f"UPDATE penstock.table_version SET version = 1 WHERE relid = {relid}")
        assert oracle.translated("SELECT n FROM moving") == [[b"1"]]
    assert sorted(oracle.translated("SELECT n FROM moving")) == [[b"1"], [b"2"]]


def test_a_read_only_transaction_can_read(oracle: Oracle) -> None:
    """The statement is analysed elsewhere, with the session's role and search path."""
    conn = oracle.conn
    conn.execute("CREATE SCHEMA other")
    conn.execute("CREATE TABLE other.people (only_here int)")
    conn.execute("INSERT INTO other.people VALUES (5)")
    oracle.load("other.people")
    with settings(oracle, "SET search_path = other, public", "BEGIN READ ONLY"):
        assert oracle.translated("SELECT only_here FROM people") == [[b"5"]]
    with settings(oracle, "BEGIN READ ONLY"):
        assert oracle.compare("SELECT id, born < '01.02.1990', now() = now() FROM people") is None
    with settings(oracle, "CREATE TEMP TABLE people (id int)", "BEGIN READ ONLY"):
        with pytest.raises(PenstockError, match="read-only transaction") as refused:
            oracle.translated("SELECT id FROM people")
    oracle.conn.execute("DROP TABLE pg_temp.people")
    assert refused.value.sqlstate == "0A000"


def test_definitions_of_the_open_transaction_are_seen(oracle: Oracle) -> None:
    """A table and a view that are not committed yet can be read."""
    with settings(oracle, "BEGIN", "CREATE TABLE fresh (a int)",
                  "INSERT INTO penstock.table_version VALUES ('fresh'::regclass, 'none', NULL)",
                  "CREATE VIEW counted AS SELECT count(*) n FROM fresh"):  # fmt: skip
        assert oracle.translated("SELECT n FROM counted") == [[b"0"]]


@pytest.mark.parametrize(
    ("setting", "sql"),
    [
        ("SET DateStyle = 'SQL'", "SELECT born FROM people"),
        ("SET bytea_output = 'escape'", "SELECT photo FROM people"),
        ("SET IntervalStyle = 'iso_8601'", "SELECT i FROM odd"),
        ("SET extra_float_digits = 0", "SELECT score FROM people"),
        ("SET TimeZone = 'Europe/Berlin'", "SELECT date_trunc('day', logged) FROM people"),
        ("SET TimeZone = 'Europe/Berlin'", "SELECT logged::date FROM people"),
    ],
)
def test_settings_that_change_results_are_refused(oracle: Oracle, setting: str, sql: str) -> None:
    """What would be written, or computed, in another way than asked is refused, with a hint."""
    with settings(oracle, setting), pytest.raises(PenstockError) as refused:
        oracle.translated(sql)
    assert refused.value.sqlstate == "0A000"
    assert "SET " in (refused.value.hint or "")


def test_instants_in_another_time_zone(oracle: Oracle) -> None:
    """Constants are read, and instants compared, whatever the session's time zone is."""
    with settings(oracle, "SET TimeZone = 'Europe/Berlin'"):
        sql = "SELECT id FROM people WHERE logged >= '2024-07-01 02:00' ORDER BY logged"
        assert oracle.compare(sql) is None


def test_a_running_query_can_be_cancelled(oracle: Oracle) -> None:
    """57014 soon after ``cancel``, and the next query runs."""

    async def cancelled() -> PenstockError:
        running = asyncio.ensure_future(
            oracle.queries.run(oracle.backend, RunOnLake(SLOW, ()), [], "to be cancelled")
        )
        while not running.done():
            await asyncio.wait([running], timeout=0.2)
            oracle.queries.cancel("to be cancelled")
        error = running.exception()
        assert isinstance(error, PenstockError)
        return error

    error = asyncio.run(asyncio.wait_for(cancelled(), 60))
    assert (error.sqlstate, error.message) == (
        "57014",
        "canceling statement due to user request",
    )
    assert oracle.compare("SELECT count(*) FROM people") is None


def test_a_cancel_ends_with_its_query(spark: SparkSession) -> None:
    """The thread that ran a cancelled query runs other jobs after it."""
    slow = Translation(
        "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.id * b.id = -1",
        variables=(), alone=frozenset(), unions={}, type_oids=(types.INT8,), typmods=(-1,),
    )  # fmt: skip
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run_query, spark, slow, [], "cancelled in its thread")
        while not running.done():
            wait([running], timeout=0.2)
            cancel_query(spark, "cancelled in its thread")
        error = running.exception()
        assert isinstance(error, PenstockError)
        assert error.sqlstate == "57014"
        assert thread.submit(lambda: spark.range(3).count()).result(30) == 3


@pytest.mark.parametrize("timeout", ["60ms", "700ms"])
def test_statement_timeout_ends_a_query(oracle: Oracle, timeout: str) -> None:
    """57014 when the session's statement_timeout is over, also before Spark has a job of it."""
    with settings(oracle, f"SET statement_timeout = '{timeout}'"):
        with pytest.raises(PenstockError, match="statement timeout") as ended:
            oracle.translated(SLOW)
    assert ended.value.sqlstate == "57014"


@pytest.mark.parametrize("condition", ["WHERE", "LEFT JOIN people p ON p.id < f.id WHERE"])
def test_a_cancelled_nested_loop_gives_its_cores_back(
    oracle: Oracle, spark: SparkSession, condition: str
) -> None:
    """No task of it goes on: the cores are free for replication at once."""
    slow = SLOW.replace("WHERE", condition)
    with settings(oracle, "SET statement_timeout = '700ms'"):
        for _ in range(2):
            with pytest.raises(PenstockError, match="statement timeout"):
                oracle.translated(slow)
    wait_until(lambda: not running_tasks(spark), 10, "Spark's tasks to end")


def running_tasks(spark: SparkSession) -> list[str]:
    """The names of the JVM's threads that run a task."""
    jvm = spark._jvm
    assert jvm is not None
    threads = jvm.java.lang.Thread.getAllStackTraces().keySet()
    return [t.getName() for t in threads if t.getName().startswith("Executor task launch worker")]


def test_a_column_that_the_delta_table_has_not_is_an_error(oracle: Oracle) -> None:
    """A definition that differs from the Delta table's is told, never read as something else."""
    with settings(oracle, "BEGIN", "ALTER TABLE sales ALTER qty TYPE bigint"):
        with pytest.raises(TableStateError, match='column "qty"') as wrong:
            oracle.translated("SELECT qty FROM sales")
    assert wrong.value.sqlstate == "XX001"


def test_warming_up_leaves_nothing(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The query before the first query runs without an error, and its table is removed."""
    with caplog.at_level("INFO", logger="penstock.lake.query"):
        warm(spark, tmp_path / "warm")
    assert caplog.messages == []
    assert list(tmp_path.iterdir()) == []
