# SPDX-License-Identifier: Apache-2.0
"""Statements that the front door runs on the lake, refuses, or surrounds with hooks.

lake_numbers is empty in PostgreSQL and has NUMBERS rows in the lake (tests/support/relay.py): a
count of 0 anywhere would be the one unforgivable answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.pq import TransactionStatus

from tests.support.fix_servers import Database, Servers, drop_database
from tests.support.psql import PLAIN, PsqlError
from tests.support.relay import (
    LAKE_TABLE,
    NUMBERS,
    AskingRouter,
    RunningRelay,
    parameters_of,
    prepare,
    run_prepared,
)
from tests.support.waits import wait_until


@pytest.fixture(scope="module")
def database(servers: Servers) -> Iterator[Database]:
    """A database with the empty relation of a lake table."""
    server = servers()
    database = Database(server, server.create_database())
    with database.connect() as conn:
        conn.execute(LAKE_TABLE)
        conn.execute("CREATE TABLE plain (a int)")
    yield database
    drop_database(server, database.name)


@pytest.fixture
def router() -> AskingRouter:
    """The router, which records what hooks saw."""
    return AskingRouter()


@pytest.fixture
def relay(database: Database, router: AskingRouter) -> Iterator[RunningRelay]:
    """A front door with a lake."""
    running = RunningRelay(database.server, router)
    yield running
    running.close()


@pytest.fixture
def conn(relay: RunningRelay, database: Database) -> Iterator[psycopg.Connection[Any]]:
    """A connection in autocommit mode through the front door."""
    with relay.connect(database.name) as connection:
        yield connection


@pytest.fixture
def plain(database: Database) -> Iterator[psycopg.Connection[Any]]:
    """A connection past the front door, to look at what came out."""
    with database.connect() as connection:
        connection.execute("TRUNCATE plain")
        yield connection


def test_psql(relay: RunningRelay, database: Database) -> None:
    """Rows of the lake look like PostgreSQL's."""
    printed = relay.psql("SELECT n, label FROM lake_numbers LIMIT 3", database.name)
    assert printed.splitlines() == [
        " n |  label  ",
        "---+---------",
        " 1 | label 1",
        " 2 | label 2",
        " 3 | label 3",
        "(3 rows)",
    ]
    everything = relay.psql("SELECT n, label FROM lake_numbers", database.name, PLAIN).splitlines()
    assert len(everything) == NUMBERS
    assert everything[6] == "7|"
    described = relay.psql("SELECT n, label AS x FROM lake_numbers \\gdesc", database.name, PLAIN)
    assert described == "n|integer\nx|text"


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("prepare", [False, True])
def test_extended(conn: psycopg.Connection[Any], binary: bool, prepare: bool) -> None:
    """Parameters and results in both formats, prepared and not, again and again."""
    cursor = conn.cursor(binary=binary)
    for lowest in (NUMBERS - 1, 1, NUMBERS + 1):
        query = "SELECT n, label FROM lake_numbers WHERE n >= %s::int4"
        rows = cursor.execute(query, (lowest,), prepare=prepare).fetchall()
        assert len(rows) == NUMBERS - lowest + 1
        assert cursor.statusmessage == f"SELECT {len(rows)}"
        if rows:
            assert rows[0] == (lowest, f"label {lowest}")


def test_pipeline(conn: psycopg.Connection[Any], plain: psycopg.Connection[Any]) -> None:
    """In a pipeline, lake and relayed statements keep their order and share a transaction."""
    lake = "SELECT n, label FROM lake_numbers WHERE n >= %s::int4 LIMIT 3"
    with conn.pipeline():
        first = conn.execute("SELECT 'first'")
        cursors = [conn.execute(lake, (n,)) for n in (1, 100, 1000)]
        inserted = conn.execute("INSERT INTO plain VALUES (1) RETURNING a")
        last = conn.execute(lake, (NUMBERS,))
    assert first.fetchone() == ("first",)
    assert [[row[0] for row in cursor] for cursor in cursors] == [
        [1, 2, 3],
        [100, 101, 102],
        [1000, 1001, 1002],
    ]
    assert inserted.fetchone() == (1,)
    assert last.fetchall() == [(NUMBERS, f"label {NUMBERS}")]
    with pytest.raises(psycopg.errors.DataCorrupted), conn.pipeline() as pipeline:
        conn.execute("INSERT INTO plain VALUES (2)")
        conn.execute("SELECT n, label FROM lake_numbers /* broken */")
        conn.execute("INSERT INTO plain VALUES (3)")
        pipeline.sync()
    assert plain.execute("SELECT a FROM plain").fetchall() == [(1,)]
    assert conn.execute("SELECT 1").fetchone() == (1,)


def test_portal_in_parts(relay: RunningRelay, database: Database) -> None:
    """Execute with a row limit suspends the portal; asyncpg's cursors use that."""

    async def use() -> None:
        conn = await asyncpg.connect(
            host=relay.host, port=relay.port, user="postgres", database=database.name
        )
        try:
            query = "SELECT n, label FROM lake_numbers WHERE n >= $1"
            async with conn.transaction():
                found = [row["n"] async for row in conn.cursor(query, NUMBERS - 99, prefetch=7)]
                cursor = await conn.cursor(query, NUMBERS - 9)
                assert len(await cursor.fetch(10)) == 10
                assert await cursor.fetch(10) == []
            assert found == list(range(NUMBERS - 99, NUMBERS + 1))
            statement = await conn.prepare("SELECT n, label FROM lake_numbers")
            assert len(await statement.fetch()) == NUMBERS
            assert [each.name for each in statement.get_attributes()] == ["n", "label"]
        finally:
            await conn.close()

    asyncio.run(use())


def test_portal_is_no_cursor(conn: psycopg.Connection[Any]) -> None:
    """FETCH must not find the empty relation in the portal of a lake statement."""
    pgconn = conn.pgconn
    conn.execute("BEGIN")
    conn.execute("SELECT n, label FROM lake_numbers", prepare=True)
    assert conn.execute("SELECT name FROM pg_cursors").fetchall() == []
    names = conn.execute("SELECT name, statement FROM pg_prepared_statements").fetchall()
    assert all("penstock" not in name for name, _ in names)
    conn.execute("ROLLBACK")
    assert pgconn.transaction_status == TransactionStatus.IDLE


def test_statement_means_another_table_later(
    conn: psycopg.Connection[Any], plain: psycopg.Connection[Any]
) -> None:
    """A prepared statement is judged again: what it names may have become a lake table."""
    conn.execute("CREATE VIEW shown AS SELECT a AS n, ''::text AS label FROM plain")
    query = "SELECT n, label FROM shown"
    try:
        assert conn.execute(query, prepare=True).fetchall() == []
        conn.execute("ALTER VIEW shown RENAME TO lake_shown; CREATE VIEW shown AS TABLE lake_shown")
        conn.execute("SET search_path TO public")
        assert conn.execute("SELECT n, label FROM lake_shown LIMIT 3").fetchall()
    finally:
        plain.execute("DROP VIEW shown, lake_shown")


def test_text_of_several_statements(
    relay: RunningRelay, database: Database, plain: psycopg.Connection[Any]
) -> None:
    """Relayed and lake statements in one text are one transaction."""
    lake = "SELECT n, label FROM lake_numbers LIMIT 3"
    text = f"INSERT INTO plain VALUES (1)\\; {lake}\\; SELECT count(*) FROM plain;"
    assert relay.psql(text, database.name, PLAIN) == "1|label 1\n2|label 2\n3|label 3\n1"
    broken = f"INSERT INTO plain VALUES (2)\\; {lake} /* broken */\\; INSERT INTO plain VALUES (3);"
    with pytest.raises(PsqlError, match="the lake is broken"):
        relay.psql(broken, database.name)
    refused = "INSERT INTO plain VALUES (2)\\; SELECT refused_()\\; INSERT INTO plain VALUES (3);"
    with pytest.raises(PsqlError, match=r"refused\s+HINT:  Do not\."):
        relay.psql(refused, database.name)
    assert plain.execute("SELECT a FROM plain").fetchall() == [(1,)]
    with pytest.raises(PsqlError, match=r'"nosuch" does not exist\s+LINE 2:  SELECT nosuch'):
        relay.psql(f"{lake}\\;\n SELECT nosuch FROM lake_numbers\\; SELECT 1;", database.name)


@pytest.mark.parametrize("parameters", [None, ()])
def test_errors_fail_the_block(conn: psycopg.Connection[Any], parameters: tuple[()] | None) -> None:
    """An error of the router or of the lake fails a transaction block, as PostgreSQL's would."""
    status = conn.pgconn
    for sql, error in [
        ("SELECT refused_()", psycopg.errors.FeatureNotSupported),
        ("SELECT n, label FROM lake_numbers /* broken */", psycopg.errors.DataCorrupted),
        ("SELECT nosuch FROM lake_numbers", psycopg.errors.UndefinedColumn),
    ]:
        with pytest.raises(error):
            conn.execute(sql, parameters)
        assert status.transaction_status == TransactionStatus.IDLE
        conn.execute("BEGIN")
        with pytest.raises(error):
            conn.execute(sql, parameters)
        assert status.transaction_status == TransactionStatus.INERROR
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            conn.execute("SELECT n, label FROM lake_numbers", parameters)
        conn.execute("ROLLBACK")
        assert len(conn.execute("SELECT n, label FROM lake_numbers", parameters).fetchall())


def test_savepoint_after_an_error(conn: psycopg.Connection[Any]) -> None:
    """ROLLBACK TO SAVEPOINT undoes an error of ours too."""
    with conn.transaction():
        with pytest.raises(psycopg.errors.FeatureNotSupported), conn.transaction():
            conn.execute("SELECT refused_()")
        assert len(conn.execute("SELECT n, label FROM lake_numbers LIMIT 3").fetchall()) == 3


@pytest.mark.parametrize("parameters", [None, ()])
def test_cancel(
    conn: psycopg.Connection[Any], relay: RunningRelay, parameters: tuple[()] | None
) -> None:
    """A cancel request stops Spark's work, in both protocols."""
    cancel = threading.Timer(0.2, conn.cancel_safe)
    cancel.start()
    with pytest.raises(psycopg.errors.QueryCanceled, match="due to user request"):
        conn.execute("SELECT n, label FROM lake_numbers /* slow */", parameters)
    cancel.join()
    assert relay.queries.cancelled
    assert conn.execute("SELECT n, label FROM lake_numbers LIMIT 3", parameters).fetchall()


def test_client_that_goes_away(relay: RunningRelay, database: Database) -> None:
    """When the client vanishes, Spark's work for it is stopped."""
    conn = relay.connect(database.name)
    conn.pgconn.send_query(b"SELECT n, label FROM lake_numbers /* slow */")
    conn.pgconn.flush()
    wait_until(lambda: relay.queries.jobs, 10, "the query to run")
    conn.close()
    wait_until(lambda: relay.queries.cancelled, 10, "the query to be stopped")


@pytest.mark.parametrize("parameters", [None, ()])
def test_hooks(
    conn: psycopg.Connection[Any],
    router: AskingRouter,
    plain: psycopg.Connection[Any],
    parameters: tuple[()] | None,
) -> None:
    """Hooks run around the statement in its transaction; what ends it is told how it ended."""
    events = router.events
    conn.execute("CREATE TABLE hooked_a (a int)", parameters)
    assert events == ["before 0", "after 1", "committed"]
    events.clear()
    with pytest.raises(psycopg.errors.DuplicateTable):
        conn.execute("CREATE TABLE hooked_a (a int)", parameters)
    assert events == ["before 1", "rolled back"]
    events.clear()
    conn.execute("BEGIN")
    conn.execute("CREATE TABLE hooked_b (a int)", parameters)
    assert events == ["before 1", "after 2"]
    conn.execute("ROLLBACK", parameters)
    assert events == ["before 1", "after 2", "rolled back"]
    events.clear()
    conn.execute("BEGIN", parameters)
    conn.execute("DROP TABLE hooked_a", parameters)
    conn.execute("COMMIT", parameters)
    assert events == ["before 1", "after 0", "committed"]
    assert plain.execute("SELECT 1 FROM pg_class WHERE relname ~ '^hooked_'").fetchall() == []


@pytest.mark.parametrize("parameters", [None, ()])
@pytest.mark.parametrize("hook", ["before", "after"])
def test_hook_that_fails(
    conn: psycopg.Connection[Any],
    router: AskingRouter,
    plain: psycopg.Connection[Any],
    hook: str,
    parameters: tuple[()] | None,
) -> None:
    """An error of a hook is the statement's: nothing is left of it, and no success was told."""
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=f"{hook} fails"):
        conn.execute(f"CREATE TABLE bad_{hook}_x (a int)", parameters)
    assert router.events[-1] == "rolled back"
    assert plain.execute("SELECT 1 FROM pg_class WHERE relname ~ '^bad_'").fetchall() == []
    assert conn.pgconn.transaction_status == TransactionStatus.IDLE
    conn.execute("BEGIN")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        conn.execute(f"CREATE TABLE bad_{hook}_x (a int)", parameters)
    assert conn.pgconn.transaction_status == TransactionStatus.INERROR
    conn.execute("ROLLBACK")
    assert router.events[-1] == "rolled back"


@pytest.mark.parametrize("parameters", [None, ()])
def test_statement_that_must_be_alone(
    conn: psycopg.Connection[Any], router: AskingRouter, parameters: tuple[()] | None
) -> None:
    """A statement that cannot follow others in its transaction works with hooks around it."""
    try:
        conn.execute("CREATE DATABASE hooked_alone", parameters)
        assert router.events == ["before 0", "after 0", "committed"]
        with pytest.raises(psycopg.errors.ActiveSqlTransaction):
            conn.execute("BEGIN; CREATE DATABASE hooked_inside")
        conn.execute("ROLLBACK")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            conn.execute("CREATE DATABASE bad_before_never", parameters)
        assert conn.pgconn.transaction_status == TransactionStatus.IDLE
        assert router.events[-1] == "rolled back"
    finally:
        conn.execute("DROP DATABASE IF EXISTS hooked_alone")


def test_ended_before_the_client_goes(
    relay: RunningRelay, database: Database, router: AskingRouter
) -> None:
    """A client that leaves inside of a block has rolled back."""
    conn = relay.connect(database.name)
    conn.execute("BEGIN; CREATE TABLE hooked_c (a int)")
    conn.close()
    wait_until(lambda: router.events[-1:] == ["rolled back"], 10, "the end to be told")


def test_own_statements_stay_out_of_sight(conn: psycopg.Connection[Any]) -> None:
    """Questions of ours leave the client's unnamed statement alone, and nothing behind."""
    assert prepare(conn, b"", b"SELECT $1::int + 1") == b""
    assert prepare(conn, b"other", b"SELECT n, label FROM lake_numbers") == b""
    assert parameters_of(conn, b"") == 1
    names = conn.execute("SELECT name FROM pg_prepared_statements WHERE name <> ''").fetchall()
    assert names == [("other",)]


def test_name_that_is_taken(conn: psycopg.Connection[Any]) -> None:
    """A Parse that PostgreSQL refuses does not change what the name stands for."""
    lake = b"SELECT n, label FROM lake_numbers LIMIT 3"
    assert prepare(conn, b"s", lake) == b""
    assert b"already exists" in prepare(conn, b"s", b"SELECT 1")
    assert run_prepared(conn, b"s") == (3, b"")
    conn.execute("DEALLOCATE s")
    assert b"does not exist" in run_prepared(conn, b"s")[1]
    assert prepare(conn, b"s", b"SELECT 1") == b""
    assert run_prepared(conn, b"s") == (1, b"")
    conn.execute("DEALLOCATE ALL")
    assert prepare(conn, b"s", lake) == b""
    assert run_prepared(conn, b"s") == (3, b"")


def test_statement_of_sql_prepare_cannot_be_bound(conn: psycopg.Connection[Any]) -> None:
    """What PREPARE made was not judged for a Bind of the protocol."""
    conn.execute("PREPARE p AS SELECT 1")
    assert b"cannot be bound" in run_prepared(conn, b"p")[1]
    assert conn.execute("EXECUTE p").fetchone() == (1,)


def test_stop(relay: RunningRelay, database: Database) -> None:
    """Stopping ends idle sessions with PostgreSQL's message and lets a running one finish."""
    idle, busy = relay.connect(database.name), relay.connect(database.name)
    found: list[Any] = []

    thread = threading.Thread(
        target=lambda: found.extend(busy.execute("SELECT pg_sleep(1)").fetchall())
    )
    thread.start()
    with database.connect() as other:
        sleeping = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        wait_until(lambda: other.execute(sleeping).fetchone(), 10, "the query to run")
    relay.close(drain=10)
    thread.join()
    assert len(found) == 1
    for conn in (idle, busy):
        with pytest.raises(psycopg.errors.AdminShutdown, match="administrator command"):
            conn.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        relay.connect(database.name)


def test_stop_does_not_wait_for_ever(relay: RunningRelay, database: Database) -> None:
    """After the drain time a running query is ended, in the lake too."""
    conn = relay.connect(database.name)
    conn.pgconn.send_query(b"SELECT n, label FROM lake_numbers /* slow */")
    conn.pgconn.flush()
    wait_until(lambda: relay.queries.jobs, 10, "the query to run")
    relay.close(drain=0.2)
    assert relay.queries.cancelled
