# SPDX-License-Identifier: Apache-2.0
"""No text makes lake data be read as empty, be written past the lake, or end a session.

The same texts go to a node and to a PostgreSQL with the same rows.  The node gives the same answer
or refuses; its tables' relations in the control database stay empty.  ``FUZZ=20`` tries twenty
times as many, and others each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.fix_servers import Servers, drop_database
from tests.support.node import Node
from tests.support.outcomes import REFUSED, Outcome, ask

TIMES = int(os.environ.get("FUZZ", "1"))

TABLES = """
CREATE TABLE fz_lake (id int PRIMARY KEY, v text);
INSERT INTO fz_lake VALUES (1, 'a'), (2, NULL), (3, 'c');
CREATE TABLE fz_part (id int, v text) PARTITION BY RANGE (id);
CREATE TABLE fz_part_1 PARTITION OF fz_part FOR VALUES FROM (0) TO (3);
CREATE TABLE fz_part_2 PARTITION OF fz_part FOR VALUES FROM (3) TO (9);
INSERT INTO fz_part SELECT * FROM fz_lake;
CREATE VIEW fz_view AS SELECT id FROM fz_lake WHERE id > 1;
CREATE VIEW fz_views AS SELECT count(*)::int AS id FROM fz_view;
CREATE SCHEMA fz_other;
CREATE TABLE fz_other.fz_lake (id int, v text);
INSERT INTO fz_other.fz_lake VALUES (70, 'other');
CREATE TABLE fz_w (id int PRIMARY KEY, v text);
INSERT INTO fz_w VALUES (1, 'a'), (2, 'b'), (3, NULL);
CREATE VIEW fz_wview AS SELECT id, v FROM fz_w WHERE id < 100;
"""
DROPS = """DROP VIEW IF EXISTS fz_views, fz_view, fz_wview;
DROP TABLE IF EXISTS fz_lake, fz_part, fz_w;
DROP SCHEMA IF EXISTS fz_other CASCADE"""
SHADOWS = "CREATE TEMP TABLE fz_mine (n bigint); INSERT INTO fz_mine VALUES (1)"
RELATIONS = ("fz_lake", "fz_part_1", "fz_part_2", "fz_other.fz_lake", "fz_w")


def fuzz(examples: int) -> Callable[[Any], Any]:
    """How many examples are tried; the same ones unless more are asked for."""
    return settings(
        max_examples=examples * TIMES,
        derandomize=TIMES == 1,
        suppress_health_check=list(HealthCheck),
    )


@dataclass
class Pair:
    """A client of the node, one of PostgreSQL, and one of the node's control database."""

    node: psycopg.Connection[Any]
    postgres: psycopg.Connection[Any]
    control: psycopg.Connection[Any]

    def ask(self, text: str | bytes, extended: bool = False) -> tuple[Outcome, Outcome]:
        """The node's answer and PostgreSQL's."""
        raw = text.encode() if isinstance(text, str) else text
        return ask(self.node, raw, extended), ask(self.postgres, raw, extended)

    def check(self, text: str | bytes, extended: bool = False) -> tuple[Outcome, Outcome]:
        """Both answer alike, or the node refuses, and says so; plans are anybody's own."""
        found, expected = self.ask(text, extended)
        planned = "EXPLAIN" in str(text) and found.error is None and expected.error is None
        assert planned or found.agrees(expected) or found.refuses(expected), (text, found, expected)
        assert found.error != "XX000", text
        return found, expected

    def reset(self) -> None:
        """End transactions and forget what the sessions have."""
        for conn in (self.node, self.postgres):
            for command in (b"ROLLBACK", b"DISCARD ALL"):
                assert ask(conn, command).error is None
        self.ask("SET escape_string_warning = off")

    def check_nothing_is_past_the_lake(self) -> None:
        """All relations of the lake's tables are empty."""
        for relation in RELATIONS:
            rows = self.control.execute(f"TABLE {relation}".encode()).fetchall()
            assert rows == [], relation


@pytest.fixture(scope="module")
def pair(node: Node, servers: Servers) -> Iterator[Pair]:
    """Both with the same tables."""
    server = servers()
    name = server.create_database()
    with node.connect() as client, server.connect(name) as postgres, node.connect_control() as own:
        for conn in (client, postgres):
            for statement in TABLES.split(";\n"):
                conn.execute(statement.encode())
        made = Pair(client, postgres, own)
        yield made
        made.reset()
        client.execute(DROPS.encode())
    drop_database(server, name)


# Splitting

STATEMENTS = st.sampled_from(
    (
        *("SELECT 1", "select 'a;b', 2", "VALUES (1), (2)", "SELECT 1/0", "SELECT nope", "SELEC 1"),
        *("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT s", "ROLLBACK TO s", "RELEASE s", "END"),
        *("START TRANSACTION READ ONLY", "COMMIT AND CHAIN", "SET TRANSACTION READ ONLY"),
        *("SET standard_conforming_strings = off", "SET standard_conforming_strings = on"),
        *("RESET standard_conforming_strings", "SHOW standard_conforming_strings"),
        *(
            "SELECT 'a\\'",
            "SELECT 'a\\';'",
            "SELECT E'a\\';'",
            "SELECT E'\\x3b'",
            "SELECT U&'\\003b'",
        ),
        *("SELECT $$;$$", "SELECT $a$;$$;$a$", "SELECT $a$", 'SELECT 1 AS ";"', "SELECT B'1;'"),
        *("SELECT 'a'\n';b'", "SELECT 'a' -- ;\n'b'", "SELECT N'a''b;'", "SELECT 1 AS a$b$, 2"),
        *("CREATE TEMP TABLE fz (a int)", "INSERT INTO fz VALUES (1) RETURNING a", "TABLE fz"),
        *("DROP TABLE fz", "PREPARE p AS SELECT 7", "EXECUTE p", "DEALLOCATE p", "DEALLOCATE ALL"),
        *("DECLARE c CURSOR FOR VALUES (1), (2)", "FETCH c", "CLOSE c", "MOVE c", "LISTEN x"),
        *("EXPLAIN (COSTS OFF) SELECT 1", "DISCARD TEMP", "SET client_encoding = LATIN1"),
        *("SET client_encoding = UTF8", "SELECT length('é')", "COPY (SELECT 1) TO STDOUT"),
        "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE 1 WHEN 2 THEN 3 END; END",
        "CREATE RULE r AS ON INSERT TO fz DO (SELECT 1; SELECT 2)",
        *(
            "/* only a comment; */",
            "-- x\n",
            "",
            " \f\v ",
            "(SELECT 1",
            "SELECT 1)",
            "COMMIT; BEGIN",
        ),
    )
)
BORDERS = st.sampled_from(
    (
        ";",
        ";;",
        " ; ",
        "; -- c;\n",
        " /* ; /* ; */ */ ;",
        "\n;\r\n",
        ";/**/",
        "\\;",
        " ",
        "--\r;",
        "*/;",
    )
)
SCRIPTS = st.lists(st.tuples(STATEMENTS, BORDERS), min_size=1, max_size=6).map(
    lambda parts: "".join(statement + border for statement, border in parts)
)


@fuzz(250)
@given(st.lists(SCRIPTS, min_size=1, max_size=3))
@example(["SELECT 1; SELEC 2"])
@example(["SET standard_conforming_strings = off; SELECT 'a\\';'"])
@example(["BEGIN; SELECT 1/0", "COMMIT; SELECT 1; SELEC"])
@example(["BEGIN; SET client_encoding = LATIN1; ROLLBACK; SELECT length('é')"])
def test_scripts_are_split_and_answered_as_postgresql_does(pair: Pair, scripts: list[str]) -> None:
    """Texts of several statements: the same results, the same error, the same status."""
    try:
        for script in scripts:
            found, expected = pair.check(script)
            if not found.agrees(expected):
                break  # what was refused is missing in what follows
    finally:
        pair.reset()


TOKENS = st.sampled_from(
    (
        *(
            "SELECT",
            "1",
            "'",
            "''",
            '"',
            "\\",
            "E'",
            "U&'",
            'U&"',
            "$$",
            "$a$",
            "$1",
            "--",
            "/*",
            "*/",
        ),
        *(
            ";",
            "(",
            ")",
            "\n",
            " ",
            ",",
            "::",
            "INTO",
            "FROM",
            "pg_class",
            "é",
            "\x01",
            "COPY",
            "SET",
        ),
        *(
            "BEGIN",
            "END",
            "ATOMIC",
            "CASE",
            "CREATE",
            "FUNCTION",
            "EXPLAIN",
            "AS",
            "[",
            ".",
            "TABLE",
        ),
        *("fz_lake", "*", "INSERT", "DELETE", "WITH", "VALUES", "PREPARE", "x", "TEMP", "UPDATE"),
    )
)
UNDEFINED = frozenset({"42703", "42P01", "42883", "42P02"})
NOISE = (
    st.binary(max_size=40).map(lambda raw: raw.replace(b"\0", b""))
    | st.text(max_size=30).map(lambda text: text.encode(errors="replace").replace(b"\0", b""))
    | st.lists(TOKENS, max_size=12).map(lambda parts: " ".join(parts).encode())
)


@fuzz(250)
@given(NOISE, st.booleans())
def test_noise_is_refused_as_postgresql_does(pair: Pair, raw: bytes, extended: bool) -> None:
    """Any bytes: PostgreSQL's SQLSTATE or a refusal, and the session goes on."""
    found, expected = pair.ask(raw, extended)
    assert found.error != "XX000", found
    if expected.error is not None:
        # What PREPARE or EXPLAIN contains is planned before the syntax around it is looked at.
        allowed = {expected.error, *REFUSED, *(UNDEFINED if expected.error == "42601" else ())}
        assert found.error in allowed, (found, expected)
    if pair.node.pgconn.transaction_status or pair.postgres.pgconn.transaction_status:
        pair.reset()
    assert ask(pair.node, b"SELECT 1").results == (("SELECT 1", frozenset({((b"1",), 1)})),)


# Reading

SOURCES = st.sampled_from(
    (
        *("fz_lake", "public.fz_lake", 'public . "fz_lake"', "FZ_LAKE", "ONLY fz_lake", "fz_part"),
        *("fz_part_1", "fz_view", "fz_views", "fz_lake/* */", "fz_lake *", 'U&"fz\\005flake"'),
        *("fz_other.fz_lake", "fz_mine AS m(id)", "fz_lake TABLESAMPLE SYSTEM (100)", "fz_w"),
    )
)
READS = st.builds(
    lambda form, source: form.format(source),
    st.sampled_from(
        (
            *("SELECT id FROM {}", "SELECT count(*) AS id FROM {}", "SELECT max(id) AS id FROM {}"),
            *(
                "SELECT id FROM {} WHERE id <> 2",
                "SELECT id FROM {} WHERE false",
                "(SELECT id FROM {})",
            ),
            *("SELECT id FROM {} ORDER BY id LIMIT 1", "SELECT DISTINCT 1 AS id FROM {}"),
            "SELECT id FROM {} FOR UPDATE",
        )
    ),
    SOURCES,
)
AROUND = (
    *("SELECT * FROM ({}) x", "WITH x AS ({}) SELECT * FROM x", "(({}))", "({}) UNION ALL ({})"),
    "WITH x AS MATERIALIZED ({}) SELECT id FROM x, LATERAL (SELECT 1) y",
    *(
        "SELECT EXISTS ({}) AS id",
        "SELECT (SELECT count(*) FROM ({}) y) AS id",
        "({}) EXCEPT SELECT 1",
    ),
    "SELECT cardinality(ARRAY({})) AS id",
    "SELECT CASE WHEN EXISTS ({}) THEN 1 ELSE 0 END AS id",
    "SELECT g AS id FROM generate_series(1, (SELECT count(*)::int FROM ({}) y)) g",
    "SELECT 1 AS id FROM pg_class WHERE relname = 'fz_lake' AND EXISTS ({}) LIMIT 1",
    "SELECT n AS id FROM fz_mine WHERE n IN ({})",
    "WITH RECURSIVE r(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM r WHERE id < (SELECT count(*)"
    " FROM ({}) y)) SELECT id FROM r",
    "SELECT count(*) OVER () AS id FROM ({}) x",
    "SELECT 1 AS id WHERE 3 > ALL ({})",
    "SELECT coalesce((SELECT max(id) FROM ({}) y), 0) AS id",
)
QUERIES = st.recursive(
    READS,
    lambda inner: st.builds(
        lambda form, query: form.replace("{}", query), st.sampled_from(AROUND), inner
    ),
    max_leaves=3,
)
READERS = st.sampled_from(
    (
        *("{}", "-- c\n{};", "SELECT 1; {}; SELECT 2", "BEGIN; {}; COMMIT", "EXPLAIN ANALYZE {}"),
        "BEGIN ISOLATION LEVEL REPEATABLE READ; {}; COMMIT",
        "BEGIN READ ONLY; {}; COMMIT",
        *(
            "PREPARE p AS {}; EXECUTE p",
            "PREPARE p AS {}; CREATE TEMP TABLE t AS EXECUTE p; TABLE t",
        ),
        "PREPARE p AS {}; EXPLAIN (ANALYZE) EXECUTE p",
        "BEGIN; DECLARE c CURSOR FOR {}; FETCH ALL FROM c; COMMIT",
        "BEGIN; DECLARE c SCROLL CURSOR WITH HOLD FOR {}; COMMIT; FETCH ALL c",
        *("COPY ({}) TO STDOUT", "CREATE TEMP TABLE t AS {}; TABLE t", "CREATE TABLE t AS {}"),
        *("SELECT * INTO TEMP t FROM ({}) x; TABLE t", "SELECT * INTO t FROM ({}) x"),
        *("SELECT 1 AS a INTO temp FROM ({}) x", "SELECT 1 AS a INTO temporary WHERE EXISTS ({})"),
        "CREATE TEMP VIEW w AS {}; SELECT * FROM w",
        "CREATE TEMP VIEW w AS SELECT 0 AS id; PREPARE p AS TABLE w;"
        " CREATE OR REPLACE TEMP VIEW w AS SELECT id::int FROM ({}) x; EXECUTE p",
        "CREATE MATERIALIZED VIEW t AS {}",
        *("INSERT INTO fz_mine SELECT id FROM ({}) x; TABLE fz_mine", "INSERT INTO fz_mine {}"),
        "UPDATE fz_mine SET n = (SELECT count(*) FROM ({}) x); TABLE fz_mine",
        "DELETE FROM fz_mine WHERE n IN ({}); TABLE fz_mine",
        "MERGE INTO fz_mine USING ({}) x ON n = x.id WHEN MATCHED THEN DELETE; TABLE fz_mine",
        "WITH x AS (INSERT INTO fz_mine {} RETURNING n) SELECT * FROM x",
        "SET search_path = fz_other, public; {}",
        "SET LOCAL search_path = fz_other; {}",
        "CREATE TEMP TABLE fz_lake AS SELECT 7 AS id, ''::text AS v; {}",
        "CREATE TEMP VIEW fz_lake AS SELECT id, v FROM public.fz_lake WHERE id = 1; {}",
        "BEGIN; ALTER TABLE fz_lake RENAME TO fz_gone; CREATE VIEW fz_lake AS TABLE fz_gone; {};"
        " ROLLBACK",
        "BEGIN; ALTER VIEW fz_view RENAME TO fz_seen; SELECT * FROM fz_seen; {}; ROLLBACK",
        "SET standard_conforming_strings = off; {}",
        "SET quote_all_identifiers = on; {}",
        "SET plan_cache_mode = force_generic_plan; {}",
        "DO $$ BEGIN PERFORM 1; {}; END $$",
        "CREATE FUNCTION pg_temp.f() RETURNS SETOF bigint LANGUAGE sql AS $f$ {} $f$;"
        " SELECT pg_temp.f()",
        "CREATE TEMP TABLE t (a bigint); ALTER TABLE t ENABLE ROW LEVEL SECURITY;"
        " CREATE POLICY p ON t USING (EXISTS ({}))",
        "CREATE RULE r AS ON INSERT TO fz_mine DO ALSO {}",
        "SELECT query_to_xml($q${}$q$, true, false, '')",
        "SELECT \"query_to_xml\" /**/ ($q${}$q$, true, false, '')",
        "SELECT * FROM ts_stat($q$SELECT to_tsvector(id::text) FROM ({}) x$q$)",
        "SELECT cursor_to_xml('c', 1, true, false, '')",
        "SELECT table_to_xml('fz_lake', true, false, '') FROM ({}) x",
        "CREATE TEMP TABLE t (a bigint DEFAULT 1); CREATE INDEX ON t ((a + 1)); INSERT INTO t {}",
        "SAVEPOINT s; {}",
        "BEGIN; SAVEPOINT s; SELECT 1/0; ROLLBACK TO s; {}; COMMIT",
        "BEGIN; SELECT 1/0; {}",
        "LOCK fz_lake; {}",
        "BEGIN; LOCK fz_lake IN SHARE MODE; {}; COMMIT",
        "ANALYZE fz_lake; {}",
    )
)
READING = st.builds(lambda form, query: form.replace("{}", query), READERS, QUERIES)


@fuzz(60)
@given(READING, st.booleans())
def test_reads_are_answered_as_postgresql_does_or_refused(
    pair: Pair, text: str, extended: bool
) -> None:
    """However a text reads a lake table, it is never read as empty."""
    try:
        pair.ask(SHADOWS)
        pair.check(text, extended)
    finally:
        pair.reset()
        pair.ask("DROP TABLE IF EXISTS t, temp, temporary; DROP MATERIALIZED VIEW IF EXISTS t")


# Writing

START_AGAIN = "TRUNCATE public.fz_w; INSERT INTO public.fz_w VALUES (1, 'a'), (2, 'b'), (3, NULL)"
WRITTEN = "COPY public.fz_w TO STDOUT"
"""The lake answers it without Spark."""
ROWS = frozenset((row, 1) for row in (b"1\ta\n", b"2\tb\n", b"3\t\\N\n"))
BEFORE: tuple[Any, ...] = (("COPY OUT", ROWS), ("COPY 3", frozenset()))

NUMBERS = st.integers(0, 9)
WRITES = st.builds(
    lambda form, number: form.replace("{n}", str(number)),
    st.sampled_from(
        (
            *("INSERT INTO fz_w VALUES ({n}, 'n')", "INSERT INTO fz_wview VALUES ({n})"),
            "INSERT INTO fz_w SELECT id + {n}, v FROM fz_w",
            "INSERT INTO fz_w SELECT id + {n}, v FROM fz_lake",
            "INSERT INTO fz_w VALUES ({n}) ON CONFLICT (id) DO UPDATE SET v = excluded.id || 'u'",
            "INSERT INTO public . fz_w (id) VALUES ({n}) ON CONFLICT DO NOTHING",
            *("UPDATE fz_w SET v = {n} WHERE id > {n}", "UPDATE fz_wview SET id = id + {n}"),
            *(
                "UPDATE fz_w SET v = (SELECT max(v) FROM fz_lake)",
                "DELETE FROM fz_w WHERE id = {n}",
            ),
            "DELETE FROM fz_w USING fz_lake l WHERE l.id = fz_w.id AND l.id = {n}",
            "MERGE INTO fz_w USING (VALUES ({n})) x(n) ON id = n"
            " WHEN MATCHED THEN UPDATE SET v = 'm' WHEN NOT MATCHED THEN INSERT VALUES (n, 'i')",
        )
    ),
    NUMBERS,
)
WRITERS = st.sampled_from(
    (
        *(
            "{}",
            "{} RETURNING *",
            "SELECT 1; {}; SELECT 2",
            "BEGIN; {}; COMMIT",
            "BEGIN; {}; ROLLBACK",
        ),
        *(
            "EXPLAIN {}",
            "EXPLAIN ANALYZE {}",
            "EXPLAIN (ANALYZE false) {}",
            "PREPARE p AS {}; EXECUTE p",
        ),
        "BEGIN; SAVEPOINT s; {}; ROLLBACK TO s; COMMIT",
        "WITH x AS ({} RETURNING 1) SELECT * FROM x",
        "WITH x AS ({} RETURNING 1) SELECT count(*) FROM x, fz_lake",
        "WITH x AS ({} RETURNING 1) INSERT INTO fz_mine SELECT * FROM x",
        "INSERT INTO fz_mine WITH x AS ({} RETURNING 1) SELECT * FROM x",
        *("COPY ({} RETURNING 1) TO STDOUT", "CREATE TEMP VIEW w AS {} RETURNING 1"),
        "CREATE TEMP TABLE t AS WITH x AS ({} RETURNING 1) TABLE x",
        "BEGIN; DECLARE c CURSOR FOR WITH x AS ({} RETURNING 1) TABLE x; FETCH ALL c; COMMIT",
        "DO $$ BEGIN {}; END $$",
        "CREATE FUNCTION pg_temp.f() RETURNS void LANGUAGE sql AS $f$ {} $f$; SELECT pg_temp.f()",
        "CREATE RULE r AS ON INSERT TO fz_mine DO ALSO {}; INSERT INTO fz_mine VALUES (1)",
        "SELECT query_to_xml($q${} RETURNING 1$q$, true, false, '')",
        "BEGIN; TRUNCATE fz_w; {}; COMMIT",
        "BEGIN; {}; TABLE fz_w; ROLLBACK",
        "{}; COPY fz_w TO STDOUT",
        "SET search_path = fz_other, public; {}",
        "CREATE TEMP TABLE fz_w (id int, v text); {}",
        "CREATE TEMP VIEW fz_w AS SELECT * FROM public.fz_w; {}",
        "BEGIN; SELECT 1/0; {}",
        "BEGIN READ ONLY; {}",
    )
)
WRITING = st.builds(lambda form, write: form.replace("{}", write), WRITERS, WRITES)


@fuzz(40)
@given(WRITING, st.booleans())
def test_writes_are_postgresqls_or_nothing(pair: Pair, text: str, extended: bool) -> None:
    """After any text the lake has PostgreSQL's rows, or after a refusal those of before."""
    try:
        pair.ask(SHADOWS)
        found, expected = pair.check(text, extended)
        pair.reset()
        mine, theirs = pair.ask(WRITTEN)
        rows = theirs.results if found.error == expected.error else BEFORE
        assert mine.results == rows, text
        pair.check_nothing_is_past_the_lake()
    finally:
        pair.reset()
        for conn in (pair.node, pair.postgres):
            if ask(conn, WRITTEN.encode()).results != BEFORE:
                assert ask(conn, START_AGAIN.encode()).error is None
