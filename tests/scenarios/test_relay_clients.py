# SPDX-License-Identifier: Apache-2.0
"""Real clients through the front door get what they get from PostgreSQL itself.

Each test runs with a router that relays everything and with one that asks the session questions
first: the client must not notice.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import asyncpg
import pg8000.dbapi
import psutil
import psycopg
import pytest
import sqlalchemy
from psycopg.types.json import Jsonb

from tests.support.fix_servers import Database, Servers, drop_database
from tests.support.psql import PsqlError
from tests.support.relay import AskingRouter, RelayAll, RunningRelay, next_result
from tests.support.waits import wait_until


@pytest.fixture(scope="module")
def database(servers: Servers) -> Iterator[Database]:
    """A database of this module's own."""
    server = servers()
    database = Database(server, server.create_database())
    yield database
    drop_database(server, database.name)


@pytest.fixture(scope="module", params=[RelayAll, AskingRouter])
def relay(database: Database, request: pytest.FixtureRequest) -> Iterator[RunningRelay]:
    """A front door with one of the two routers."""
    running = RunningRelay(database.server, request.param())
    yield running
    running.close()


@pytest.fixture
def conn(relay: RunningRelay, database: Database) -> Iterator[psycopg.Connection[Any]]:
    """A connection in autocommit mode through the front door."""
    with relay.connect(database.name) as connection:
        yield connection


PSQL_SCRIPTS = [
    r"\d pg_class" "\n" r"\dt pg_catalog.pg_a*" "\n" r"\du" "\n" r"\l" "\n" r"\dx" "\n" r"\dn+",
    "SELECT 1 AS a; SELECT 2 AS b\\; SELECT 3 AS c;",
    "BEGIN; CREATE TEMP TABLE x (a int PRIMARY KEY); INSERT INTO x VALUES (1), (2); COMMIT;"
    " SELECT * FROM x; TABLE x; VALUES (1, 'a'), (2, NULL);",
    "SELECT;",
    "\\set FETCH_COUNT 10\nSELECT g FROM generate_series(1, 35) g;",
    "SELECT g, repeat('x', g % 100) FROM generate_series(1, 20000) g;",
    "CREATE TEMP TABLE y (a int, b text);\nCOPY y FROM STDIN;\n1\tone\n2\ttwo\n\\.\n"
    "COPY y TO STDOUT;\n\\copy (SELECT 1) TO STDOUT\nCOPY y (a) FROM STDIN \\; SELECT * FROM y;"
    "\n3\n\\.\n",
    "SELECT $1::int + $2 \\bind 1 2 \\g\nSELECT 'a' \\parse s\n\\bind_named s \\g\n",
    "\\startpipeline\nSELECT 1 \\bind \\sendpipeline\nSELECT 2 \\bind \\sendpipeline\n"
    "\\flushrequest\n\\getresults\n\\endpipeline\n",
    "\\gdesc\nSELECT 1 AS a, 'x'::text AS b \\gdesc\n",
    "DO $$ BEGIN RAISE NOTICE 'hello'; RAISE WARNING 'careful'; END $$;",
    "LISTEN a; NOTIFY b, 'one'; SELECT 1;",
    "PREPARE p (int) AS SELECT $1 * 2; EXECUTE p (4); DEALLOCATE p; VACUUM pg_am; SHOW port;",
    "SET client_encoding TO LATIN1; SELECT 'x' AS \"y\"; RESET client_encoding; SELECT 'é';",
    "DECLARE c CURSOR WITH HOLD FOR SELECT relname FROM pg_class ORDER BY 1; FETCH 3 FROM c;",
]


@pytest.mark.parametrize("script", PSQL_SCRIPTS)
def test_psql_prints_the_same(relay: RunningRelay, database: Database, script: str) -> None:
    """A psql session prints the same through the front door and without it."""
    direct = database.psql(script, flags=("-a",))
    assert relay.psql(script, database.name, flags=("-a",)) == direct


FAILING = [
    "SELECT * FROM nosuch",
    "SELECT 1;\n  SELECT nosuch FROM pg_class WHERE true",
    "/* é */ SELECT 'é' || nosuch",
    "SELECT 1/0",
    "SELECT 1\\; SELEC 2\\; SELECT 3;",
    "SELECT 1 \\; SELECT 'é', 1/0 \\; SELECT 3;",
    "SELECT 1 \\;\n SELECT 'é', nosuch \\; SELECT 3;",
    "BEGIN; SELECT 1/0; SELECT 2;",
    "BEGIN\\; SELECT 1/0\\; COMMIT;",
    "SELECT 1 \\; VACUUM;",
    "SELECT 1 \\; CREATE DATABASE never;",
    "SELECT 1 \\; SAVEPOINT s;",
    "SAVEPOINT s;",
    "CREATE TEMP TABLE e (a int CHECK (a > 0)); \\set VERBOSITY default\n"
    "INSERT INTO e VALUES (-1);",
    "CREATE TEMP TABLE f (a int);\nCOPY f FROM STDIN;\n1\nx\n\\.\nSELECT 1;",
    "CREATE TEMP TABLE g (a int);\nSELECT 1 \\; COPY g FROM STDIN \\; SELECT 2;\nx\n\\.\nSELECT 1;",
    "SELECT 'unterminated",
    "SELECT set_config('nosuch', 'x', false)",
    "FETCH ALL FROM nosuch",
    "SELECT $1 \\bind \\g",
]


@pytest.mark.parametrize("script", FAILING)
def test_psql_reports_the_same(relay: RunningRelay, database: Database, script: str) -> None:
    """Errors are the same, with detail, hint, context and the mark under the place."""
    script = "\\set VERBOSITY verbose\n\\set SHOW_CONTEXT always\n" + script
    with pytest.raises(PsqlError) as direct:
        database.psql(script)
    with pytest.raises(PsqlError) as relayed:
        relay.psql(script, database.name)
    assert relayed.value.stderr == direct.value.stderr


def test_error_leaves_the_same_status(conn: psycopg.Connection[Any]) -> None:
    """After errors the transaction status is PostgreSQL's, in and out of a block."""
    status = psycopg.pq.TransactionStatus
    for sql, expected in [
        ("SELECT 1/0", status.IDLE),
        ("BEGIN", status.INTRANS),
        ("SELECT 1", status.INTRANS),
        ("SELECT nosuch", status.INERROR),
        ("SELECT 1", status.INERROR),
        ("ROLLBACK; SELECT 1", status.IDLE),
        ("BEGIN; SELECT 1/0; SELECT 2", status.INERROR),
        ("COMMIT; SELECT 1", status.IDLE),
        ("SELECT 1; BEGIN; SELECT 2; COMMIT; SELECT 3; BEGIN", status.INTRANS),
        ("COMMIT AND CHAIN", status.INTRANS),
        ("ROLLBACK", status.IDLE),
    ]:
        conn.pgconn.exec_(sql.encode())
        assert conn.pgconn.transaction_status == expected, sql


def test_text_of_several_statements_is_one_transaction(conn: psycopg.Connection[Any]) -> None:
    """An error undoes the statements before it, but not those before a COMMIT."""
    conn.execute("CREATE TEMP TABLE several (a int)")
    with pytest.raises(psycopg.errors.DivisionByZero):
        conn.execute("INSERT INTO several VALUES (1); SELECT 1/0; INSERT INTO several VALUES (2)")
    with pytest.raises(psycopg.errors.DivisionByZero):
        conn.execute(
            "INSERT INTO several VALUES (3); COMMIT; INSERT INTO several VALUES (4); SELECT 1/0"
        )
    assert conn.execute("SELECT a FROM several").fetchall() == [(3,)]
    conn.execute("INSERT INTO several VALUES (5); ROLLBACK; INSERT INTO several VALUES (6)")
    assert conn.execute("SELECT a FROM several ORDER BY a").fetchall() == [(3,), (6,)]


def test_results_of_several_statements(conn: psycopg.Connection[Any]) -> None:
    """Each statement's result arrives, also LOCK, which needs the implicit block."""
    cursor = conn.execute("CREATE TEMP TABLE l (a int); LOCK l; SELECT 1; SELECT 'b'")
    tags = [cursor.statusmessage]
    while cursor.nextset():
        tags.append(cursor.statusmessage)
    assert tags == ["CREATE TABLE", "LOCK TABLE", "SELECT 1", "SELECT 1"]
    assert cursor.fetchall() == [("b",)]


def test_binary_cursors(conn: psycopg.Connection[Any]) -> None:
    """FETCH from a BINARY cursor has binary values, in a text of several statements, too."""
    declare = 'BEGIN; DECLARE "b 1" BINARY CURSOR FOR SELECT 258; DECLARE t CURSOR FOR SELECT 258;'
    for text, expected in [
        (f'{declare} FETCH ALL IN "b 1"; COMMIT', (1, b"\0\0\1\2")),
        (f"{declare} FETCH t; COMMIT", (0, b"258")),
    ]:
        cursor = conn.execute(text)
        while cursor.pgresult is None or not cursor.pgresult.ntuples:
            assert cursor.nextset()
        assert (cursor.pgresult.fformat(0), cursor.pgresult.get_value(0, 0)) == expected


def test_psycopg_parameters(conn: psycopg.Connection[Any]) -> None:
    """Parameters and results in text and binary, prepared and not."""
    values = (1, "é", 2.5, True, None, b"\0\1", [1, 2], Jsonb({"a": 1}))
    query = "SELECT %s::int, %s::text, %s::float8, %s::bool, %s::text, %s::bytea, %s::int[], %s"
    expected = (1, "é", 2.5, True, None, b"\0\1", [1, 2], {"a": 1})
    for binary in (False, True):
        for prepare in (False, True, True):
            cursor = conn.cursor(binary=binary)
            assert cursor.execute(query, values, prepare=prepare).fetchone() == expected


def test_psycopg_pipeline(conn: psycopg.Connection[Any]) -> None:
    """A pipeline: many statements without waiting; an error skips up to its Sync only."""
    conn.execute("CREATE TEMP TABLE piped (a int UNIQUE)")
    with conn.pipeline():
        cursors = [conn.execute("SELECT %s::int", (n,)) for n in range(200)]
        conn.cursor().executemany("INSERT INTO piped VALUES (%s)", [(n,) for n in range(300)])
    assert [cursor.fetchone() for cursor in cursors] == [(n,) for n in range(200)]
    with pytest.raises(psycopg.errors.UniqueViolation), conn.pipeline() as pipeline:
        conn.execute("INSERT INTO piped VALUES (1000)")
        conn.execute("INSERT INTO piped VALUES (5)")
        conn.execute("INSERT INTO piped VALUES (1001)")
        pipeline.sync()
    with conn.pipeline():
        conn.execute("INSERT INTO piped VALUES (2000)")
    found = conn.execute("SELECT a FROM piped WHERE a >= 1000").fetchall()
    assert found == [(2000,)]


def test_psycopg_pipeline_with_blocks(conn: psycopg.Connection[Any]) -> None:
    """Transaction blocks inside of a pipeline end where they end in PostgreSQL."""
    conn.execute("CREATE TEMP TABLE blocks (a int)")
    with conn.pipeline():
        with conn.transaction():
            conn.execute("INSERT INTO blocks VALUES (1)")
        with pytest.raises(psycopg.errors.DivisionByZero), conn.transaction():
            conn.execute("INSERT INTO blocks VALUES (2)")
            conn.execute("SELECT 1/0").fetchone()
        with conn.transaction():
            conn.execute("INSERT INTO blocks VALUES (3)")
    assert conn.execute("SELECT a FROM blocks").fetchall() == [(1,), (3,)]


def test_psycopg_copy(conn: psycopg.Connection[Any]) -> None:
    """COPY both ways, text and binary, with and without parameters, and what fails in it."""
    conn.execute("CREATE TEMP TABLE copied (a int, b text)")
    cursor = conn.cursor()
    with cursor.copy("COPY copied FROM STDIN") as copy:
        for n in range(20_000):
            copy.write_row((n, f"row {n}"))
    with cursor.copy("COPY copied FROM STDIN (FORMAT binary)") as copy:
        copy.set_types(["int4", "text"])
        copy.write_row((-1, "binary"))
    with cursor.copy("COPY copied TO STDOUT (FORMAT binary)") as copy:
        copy.set_types(["int4", "text"])
        rows = list(copy.rows())
    assert len(rows) == 20_001
    assert rows[-1] == (-1, "binary")
    query = "COPY (SELECT a FROM generate_series(1, %s) a) TO STDOUT"
    with cursor.copy(query, (3,)) as copy:
        assert b"".join(bytes(block) for block in copy) == b"1\n2\n3\n"
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        with cursor.copy("COPY copied FROM STDIN") as copy:
            copy.write(b"x\ty\n")
    with pytest.raises(RuntimeError), cursor.copy("COPY copied FROM STDIN") as copy:
        copy.write(b"1\ty\n")
        raise RuntimeError
    assert conn.execute("SELECT count(*) FROM copied").fetchone() == (20_001,)


def test_copy_in_the_extended_protocol(conn: psycopg.Connection[Any]) -> None:
    """libpq sends Sync before the rows, which COPY ignores, and another one behind them."""
    conn.execute("CREATE TEMP TABLE ext (a int)")
    pgconn = conn.pgconn
    for rows, error in ((b"1\n2\n", None), (b"x\n", b"invalid input syntax"), (b"3\n", None)):
        pgconn.send_query_params(b"COPY ext FROM STDIN", [])
        result = next_result(pgconn)
        assert result is not None
        assert result.status == psycopg.pq.ExecStatus.COPY_IN
        pgconn.put_copy_data(rows)
        pgconn.put_copy_end()
        result = next_result(pgconn)
        assert result is not None
        assert error is None or error in result.error_message
        assert next_result(pgconn) is None
    assert conn.execute("SELECT a FROM ext").fetchall() == [(1,), (2,), (3,)]


def test_server_side_cursor(relay: RunningRelay, database: Database) -> None:
    """A named cursor, and a portal that is read in parts."""
    with psycopg.connect(relay.conninfo(database.name)) as conn:
        with conn.cursor("c") as cursor:
            cursor.itersize = 50
            cursor.execute("SELECT oid FROM pg_class ORDER BY oid")
            assert len(list(cursor)) > 100
        conn.rollback()


def test_cancel(conn: psycopg.Connection[Any]) -> None:
    """A cancel request reaches the running statement, and the session goes on."""
    cancelled = threading.Timer(0.3, conn.cancel_safe)
    cancelled.start()
    with pytest.raises(psycopg.errors.QueryCanceled):
        conn.execute("SELECT pg_sleep(30)")
    cancelled.join()
    assert conn.execute("SELECT 1").fetchone() == (1,)


def test_notify(conn: psycopg.Connection[Any], database: Database) -> None:
    """A notification of another session arrives while this one is idle."""
    conn.execute("LISTEN news")
    with database.connect() as other:
        other.execute("NOTIFY news, 'hello'")
    heard = next(conn.notifies(timeout=10, stop_after=1))
    assert heard.payload == "hello"


def test_long_values(conn: psycopg.Connection[Any]) -> None:
    """Values of many megabytes go both ways."""
    long = "é" * 5_000_000
    row = conn.execute("SELECT %s::text, repeat('y', 20000000)", (long,)).fetchone()
    assert row is not None
    assert row[0] == long
    assert len(row[1]) == 20_000_000


def test_settings_are_reported(conn: psycopg.Connection[Any]) -> None:
    """Parameter changes reach the client, and decide how its next text is read."""
    conn.execute("SET TimeZone TO 'Europe/Vienna'")
    assert conn.info.timezone.key == "Europe/Vienna"  # type: ignore[attr-defined]
    conn.execute("SET standard_conforming_strings TO off; SET escape_string_warning TO off")
    assert conn.execute(r"SELECT 'it\'s; one', 2").fetchall() == [("it's; one", 2)]
    conn.execute("SET standard_conforming_strings TO on")
    conn.execute("SET client_encoding TO LATIN1")
    assert conn.execute("SELECT 'ä'").fetchone() == ("ä",)


def test_terminated_by_the_administrator(conn: psycopg.Connection[Any], database: Database) -> None:
    """Who ends the control session ends the client's, with PostgreSQL's message."""
    with database.connect() as other:
        other.execute("SELECT pg_terminate_backend(%s)", (conn.info.backend_pid,))
    with pytest.raises(psycopg.errors.AdminShutdown):
        conn.execute("SELECT 1")


def test_asyncpg(relay: RunningRelay, database: Database) -> None:
    """asyncpg: prepared statements, binary, cursors, COPY, executemany, transactions."""

    async def use() -> None:
        conn = await asyncpg.connect(
            host=relay.host, port=relay.port, user="postgres", database=database.name
        )
        try:
            row = await conn.fetchrow("SELECT $1::int AS a, $2::text[] AS b", 1, ["x", "y"])
            assert dict(row) == {"a": 1, "b": ["x", "y"]}
            await conn.execute("CREATE TEMP TABLE a (n int, t text); SELECT 1")
            await conn.executemany("INSERT INTO a VALUES ($1, $2)", [(n, "t") for n in range(500)])
            await conn.copy_records_to_table("a", records=[(n, "c") for n in range(1000)])
            assert await conn.fetchval("SELECT count(*) FROM a") == 1500
            async with conn.transaction():
                found = [
                    r["n"] async for r in conn.cursor("SELECT n FROM a ORDER BY n", prefetch=7)
                ]
            assert len(found) == 1500
            with pytest.raises(asyncpg.UndefinedTableError):
                await conn.fetch("SELECT * FROM nosuch")
            statement = await conn.prepare("SELECT relname FROM pg_class WHERE oid = $1")
            assert await statement.fetchval(1259) == "pg_class"
            await conn.set_type_codec(
                "json", schema="pg_catalog", encoder=str, decoder=str, format="text"
            )
        finally:
            await conn.close()

    asyncio.run(use())


def test_pg8000(relay: RunningRelay, database: Database) -> None:
    """pg8000: extended protocol for all, unnamed statements."""
    with closing(
        pg8000.dbapi.connect("postgres", host=relay.host, port=relay.port, database=database.name)
    ) as conn:
        cursor = conn.cursor()
        cursor.execute("SELECT %s::int + 1, %s", (1, "x"))
        assert cursor.fetchall() == ([2, "x"],)
        with pytest.raises(pg8000.dbapi.DatabaseError):
            cursor.execute("SELECT nosuch")
        conn.rollback()
        cursor.execute("CREATE TEMP TABLE p (a int)")
        cursor.executemany("INSERT INTO p VALUES (%s)", [(n,) for n in range(20)])
        conn.commit()
        cursor.execute("SELECT count(*) FROM p")
        assert cursor.fetchone() == [20]


def test_sqlalchemy_inspector(relay: RunningRelay, database: Database) -> None:
    """SQLAlchemy's inspector reads the catalogs."""
    with database.connect() as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS inspected (id int PRIMARY KEY, note text)")
    url = f"postgresql+psycopg://postgres@{relay.host}:{relay.port}/{database.name}"
    engine = sqlalchemy.create_engine(url)
    try:
        inspector = sqlalchemy.inspect(engine)
        assert "inspected" in inspector.get_table_names()
        assert [column["name"] for column in inspector.get_columns("inspected")] == ["id", "note"]
        assert inspector.get_pk_constraint("inspected")["constrained_columns"] == ["id"]
    finally:
        engine.dispose()


def test_client_that_goes_away(relay: RunningRelay, database: Database) -> None:
    """A client that vanishes leaves no session behind."""
    conn = relay.connect(database.name)
    pid = conn.info.backend_pid
    conn.execute("BEGIN")
    conn.pgconn.finish()
    with database.connect() as other:
        query = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
        wait_until(lambda: other.execute(query, (pid,)).fetchone() is None, 10, "it to end")


def test_slow_reader_holds_up_nobody(relay: RunningRelay, database: Database) -> None:
    """A client that does not read stops its own session only, and costs little memory."""
    slow = relay.connect(database.name)
    with relay.connect(database.name) as other:
        slow.pgconn.send_query(b"SELECT repeat('x', 10000) FROM generate_series(1, 50000)")
        slow.pgconn.flush()
        before = psutil.Process().memory_info().rss
        for _ in range(200):
            assert other.execute("SELECT 1").fetchone() == (1,)
        assert psutil.Process().memory_info().rss - before < 100_000_000
    slow.close()
