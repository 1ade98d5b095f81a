# SPDX-License-Identifier: Apache-2.0
"""Cursors over queries on lake tables, and tables made of them: as on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.support.binaries import NEWEST
from tests.support.fix_servers import Database, Servers, drop_database
from tests.support.node import Node
from tests.support.outcomes import ask

SETUP = """
CREATE SCHEMA cu;
CREATE TYPE cu.mood AS ENUM ('sad', 'it''s ok');
CREATE DOMAIN cu.few AS numeric(5,2);
CREATE TABLE cu.t (id int PRIMARY KEY, "a b" varchar(9), c char(4), n numeric(8,3), at timestamptz,
    l int[], m cu.mood, d cu.few, x bytea, j jsonb, f float4);
INSERT INTO cu.t SELECT g, nullif('v,"\\ ' || g, 'v,"\\ 3'), 'c' || g, g / 8.0,
    timestamptz '2020-02-03 04:05:06.7+00' + g * interval '1 day', ARRAY[g, NULL, -g],
    (ARRAY['sad', 'it''s ok', NULL])[1 + g % 3]::cu.mood, g / 4.0,
    decode('00ff' || g || '0', 'hex'), jsonb_build_object('k', g), g / 3.0
    FROM generate_series(1, 9) g;
CREATE VIEW cu.v AS SELECT id, "a b" FROM cu.t WHERE id > 2;
"""

SESSIONS = (
    # Rows of every kind come out as they went in, whole and in parts, forwards and backwards.
    "BEGIN; DECLARE c CURSOR FOR SELECT * FROM cu.t ORDER BY id; FETCH 2 FROM c; MOVE 3 IN c;"
    " FETCH c; FETCH ALL FROM c; FETCH BACKWARD 2 FROM c; CLOSE c; COMMIT",
    "BEGIN; DECLARE c SCROLL CURSOR FOR TABLE cu.v ORDER BY 1; FETCH LAST c; FETCH FIRST c;"
    " FETCH ABSOLUTE 3 c; FETCH RELATIVE -1 c; FETCH PRIOR c; FETCH PRIOR c; COMMIT; FETCH c",
    "BEGIN; DECLARE c NO SCROLL CURSOR FOR SELECT id FROM cu.t; FETCH 1 c; FETCH PRIOR c",
    "ROLLBACK",
    # It has the rows of the moment of DECLARE, which the transaction itself may have written.
    "BEGIN; INSERT INTO cu.t (id) VALUES (100); DECLARE c CURSOR FOR SELECT count(*), max(id) FROM"
    " cu.t; DELETE FROM cu.t WHERE id = 100; FETCH ALL c; ROLLBACK",
    "BEGIN; SAVEPOINT s; DECLARE c CURSOR FOR TABLE cu.v; ROLLBACK TO s; FETCH c",
    "ROLLBACK",
    "BEGIN; DECLARE c CURSOR FOR TABLE cu.v; DECLARE c CURSOR FOR TABLE cu.v",
    "ROLLBACK",
    # With and without a block; WITH HOLD outlives the transaction.
    "DECLARE c CURSOR FOR TABLE cu.v",
    "DECLARE c CURSOR WITHOUT HOLD FOR TABLE cu.v",
    "DECLARE hold CURSOR FOR TABLE cu.v",
    "DECLARE h CURSOR WITH HOLD FOR SELECT id, m FROM cu.t WHERE n > 0.5 ORDER BY id",
    "FETCH 2 h",
    "SELECT name, is_holdable, is_binary, is_scrollable FROM pg_cursors",
    "FETCH ALL h; CLOSE h; FETCH h",
    "BEGIN; DECLARE h CURSOR WITH HOLD FOR TABLE cu.v; ROLLBACK; FETCH h",
    "DECLARE c CURSOR FOR SELECT nope FROM cu.t",
    "DECLARE c CURSOR FOR SELECT 1 / (id - 3) FROM cu.t",
    "BEGIN; DECLARE c CURSOR FOR SELECT * FROM cu.t WHERE id = $1; COMMIT",
    "ROLLBACK",
    # Temporary tables: their columns' types, and what may be done with them.
    "CREATE TEMP TABLE copied AS SELECT * FROM cu.t WHERE id < 5",
    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attnum > 0"
    " AND attrelid = 'copied'::regclass ORDER BY attnum",
    "SELECT * FROM copied ORDER BY id",
    "UPDATE copied SET n = 0 WHERE id = 1 RETURNING id, n",
    "CREATE TEMP TABLE copied AS TABLE cu.v",
    "CREATE TEMP TABLE IF NOT EXISTS copied AS TABLE cu.v",
    "CREATE TEMPORARY TABLE named (one, two) ON COMMIT DROP AS TABLE cu.v WITH NO DATA",
    "BEGIN; CREATE LOCAL TEMP TABLE named (one, two) ON COMMIT DROP AS TABLE cu.v WITH DATA;"
    " SELECT * FROM named ORDER BY one DESC LIMIT 2; COMMIT",
    "SELECT * FROM named",
    "CREATE TEMP TABLE pg_temp.empty AS TABLE cu.v WITH NO DATA; SELECT * FROM empty",
    "CREATE TEMP TABLE bad AS SELECT nope FROM cu.t",
    "SELECT id, m INTO TEMPORARY TABLE into_temp FROM cu.t WHERE id > 7",
    "SELECT * FROM into_temp",
    "CREATE TEMP TABLE bad AS",
    "CREATE TABLE bad AS SELECT 1 FRM cu.t",
    "CREATE TABLE AS SELECT 1 FROM cu.t",
    "SELECT 1 INTO FROM cu.t",
    # Tables of the lake.
    "CREATE TABLE cu.made AS SELECT * FROM cu.t WHERE id < 5",
    "SELECT attname, format_type(atttypid, atttypmod), attcollation::regcollation, attnotnull"
    " FROM pg_attribute WHERE attnum > 0 AND attrelid = 'cu.made'::regclass ORDER BY attnum",
    "SELECT * FROM cu.made ORDER BY id",
    "UPDATE cu.made SET n = 0 WHERE id = 1 RETURNING id, n",
    "CREATE TABLE cu.made AS TABLE cu.v",
    "CREATE TABLE IF NOT EXISTS cu.made AS TABLE cu.v",
    'CREATE TABLE IF NOT EXISTS cu.rows (one, "t wo") AS TABLE cu.v WITH DATA',
    "SELECT * FROM cu.rows",
    "CREATE TABLE cu.none (one, two, three) AS TABLE cu.v",
    "CREATE TABLE cu.none AS TABLE cu.v WITH NO DATA",
    "SELECT count(*) FROM cu.none",
    "BEGIN; CREATE TABLE cu.undone AS SELECT id AS a FROM cu.rows, cu.t; SELECT count(*) FROM"
    " cu.undone; ROLLBACK",
    "SELECT * FROM cu.undone",
    "BEGIN; SELECT g AS \"G\", 'x' AS x, NULL AS nothing INTO cu.kept FROM generate_series(1, 3) g;"
    ' CREATE TABLE cu.again AS SELECT "G" + 1 AS n FROM cu.kept; COMMIT',
    "SELECT * FROM cu.kept",
    "SELECT * FROM cu.again",
    "CREATE TABLE cu.bad AS SELECT 1 AS a, 2 AS a",
    "CREATE TABLE cu.bad AS SELECT 1 / (id - 3) AS a FROM cu.t",
    "CREATE TABLE cu.bad AS SELECT 1 AS a",
    "CREATE TABLE cu.bad AS SELECT 1 AS a",
    "CREATE TABLE nowhere.t AS SELECT 1 AS a",
    "DROP TABLE cu.made, cu.rows, cu.none, cu.kept, cu.again, cu.bad",
)


@pytest.fixture(scope="module")
def native(servers: Servers) -> Iterator[Database]:
    """A PostgreSQL with the tables."""
    server = servers(NEWEST)
    database = Database(server, server.create_database())
    database.psql(SETUP)
    yield database
    drop_database(server, database.name)


@pytest.fixture(scope="module")
def lake(node: Node) -> Iterator[Node]:
    """The shared node, with the same tables."""
    node.psql(SETUP)
    yield node
    node.psql("DROP SCHEMA cu CASCADE")


@pytest.mark.parametrize("extended", [False, True], ids=["simple", "extended"])
def test_sessions(native: Database, lake: Node, extended: bool) -> None:
    """Each text, or in the extended protocol each statement, is answered alike."""
    with native.connect() as expected_by, lake.connect() as found_by:
        for session in SESSIONS:
            for text in session.split("; ") if extended else [session]:
                expected, found = (
                    ask(conn, text.encode(), extended) for conn in (expected_by, found_by)
                )
                assert found.agrees(expected), f"{text}\n{found}\n{expected}"


def test_clients_that_fetch_in_parts(lake: Node) -> None:
    """psql with FETCH_COUNT, psycopg's server-side cursors with parameters, binary ones."""
    rows = 'SELECT id, "a b" FROM cu.t WHERE id < 9 ORDER BY id'
    whole = lake.psql(rows)
    assert lake.psql(f"\\set FETCH_COUNT 3\n{rows};") == whole
    with lake.connect() as conn:
        conn.autocommit = False
        with conn.cursor("some") as cursor:
            cursor.itersize = 2
            cursor.execute(
                "SELECT id, n FROM cu.t WHERE id > %s AND m::text = %s ORDER BY 1", (3, "sad")
            )
            assert [(row[0], str(row[1])) for row in cursor] == [(6, "0.750"), (9, "1.125")]
        with conn.cursor("binary", binary=True, scrollable=True) as cursor:
            cursor.execute("SELECT id, at FROM cu.t WHERE id = ANY (%s) ORDER BY 1", ([2, 5],))
            first = cursor.fetchone()
            assert first is not None and (first[0], first[1].isoformat()[:10]) == (2, "2020-02-05")
            cursor.scroll(1, mode="absolute")
            assert [row[0] for row in cursor.fetchall()] == [5]


def test_what_is_computed_at_declare(lake: Node) -> None:
    """All of it: an error of a row comes then, not when the row is fetched."""
    with lake.connect() as conn, pytest.raises(psycopg.errors.DivisionByZero), conn.transaction():
        conn.execute("DECLARE c CURSOR FOR SELECT 1 / (id - 3) FROM cu.t")


def test_a_foreign_table(lake: Node, native: Database) -> None:
    """A PostgreSQL reads the lake through postgres_fdw, which uses cursors with parameters."""
    password = (lake.home / "pgpass").read_text().strip().rpartition(":")[2]
    options = f"host '{lake.host}', port '{lake.port}', dbname 'lake'"
    native.psql(
        "CREATE EXTENSION postgres_fdw;"
        f"CREATE SERVER lake FOREIGN DATA WRAPPER postgres_fdw OPTIONS ({options});"
        "CREATE USER MAPPING FOR CURRENT_USER SERVER lake"
        f" OPTIONS (user 'penstock', password '{password}');"
        "CREATE SCHEMA far; CREATE TYPE far.mood AS ENUM ('sad', 'it''s ok');"
        "CREATE FOREIGN TABLE far.t (id int, n numeric(8,3), at timestamptz) SERVER lake"
        " OPTIONS (schema_name 'cu', table_name 't')"
    )
    for query in (
        "SELECT id, n, at FROM {}.t WHERE n > 0.3 ORDER BY id",
        "SELECT max(at), sum(n), count(*) FROM {}.t WHERE id BETWEEN 2 AND 7",
        "SELECT g, t.n FROM generate_series(1, 3) g, LATERAL (SELECT n FROM {}.t WHERE id = g) t",
    ):
        assert native.psql(query.format("far")) == native.psql(query.format("cu"))


def test_a_result_that_is_too_large(node: Node) -> None:
    """It is refused with what to do instead, and the session goes on."""
    with node.connect() as conn:
        conn.execute("CREATE TABLE cu_large (t text)")
        conn.execute(
            "INSERT INTO cu_large SELECT repeat('x', 1000000) FROM generate_series(1, 300)"
        )
        with pytest.raises(psycopg.errors.ProgramLimitExceeded) as refused:
            conn.execute("DECLARE c CURSOR WITH HOLD FOR SELECT * FROM cu_large")
        assert "COPY" in (refused.value.diag.message_hint or "")
        conn.execute("DROP TABLE cu_large")
