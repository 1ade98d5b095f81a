# SPDX-License-Identifier: Apache-2.0
"""Texts and protocols that once read lake tables as empty, or wrote past the lake.

Each is found by a fuzz (tests/properties/test_statement_fuzz.py) or by looking for such; the table
bad_rows has two rows in the lake, and its relation in the control database none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest

from tests.support.node import DATABASE, SUPERUSER, Node

ROWS = [(1, "a"), (2, "b")]
REFUSED = psycopg.errors.FeatureNotSupported


@pytest.fixture(scope="module")
def bad_rows(node: Node) -> Iterator[Node]:
    """The node, with the table."""
    with node.connect() as conn:
        conn.execute("CREATE TABLE bad_rows (id int PRIMARY KEY, v text)")
        conn.execute("INSERT INTO bad_rows VALUES (1, 'a'), (2, 'b')")
        conn.execute("CREATE ROLE bad_client LOGIN; GRANT ALL ON bad_rows TO bad_client")
        yield node
        conn.execute("DROP TABLE bad_rows; DROP ROLE bad_client")


@pytest.fixture
def conn(bad_rows: Node) -> Iterator[psycopg.Connection[Any]]:
    """A client; at the end the lake has the rows, and the control database's relation none."""
    with bad_rows.connect() as client:
        yield client
    with bad_rows.connect_control() as control, bad_rows.connect() as client:
        assert control.execute("SELECT * FROM bad_rows").fetchall() == []
        assert client.execute("SELECT * FROM bad_rows ORDER BY id").fetchall() == ROWS


def test_policies_of_temporary_tables_cannot_read_the_lake(conn: psycopg.Connection[Any]) -> None:
    """A query of a temporary table is not planned first, so its policies must not name others."""
    conn.execute("SET ROLE bad_client")
    conn.execute("CREATE TEMP TABLE mine AS SELECT 1 AS a")
    for command in (
        "CREATE POLICY p ON mine USING (NOT EXISTS (SELECT FROM bad_rows))",
        "CREATE POLICY p ON pg_temp.mine WITH CHECK (NOT EXISTS (SELECT FROM bad_rows))",
    ):
        with pytest.raises(REFUSED, match="policies of temporary tables are not supported"):
            conn.execute(command)


def test_a_table_that_the_snapshot_does_not_show_is_not_written_past_the_lake(
    bad_rows: Node, conn: psycopg.Connection[Any]
) -> None:
    """40001 for COPY and TRUNCATE of a table that is younger than a transaction's snapshot."""
    with bad_rows.connect() as other:
        for name, command in (("bad_copied", "COPY {} FROM STDIN"), ("bad_cut", "TRUNCATE {}")):
            conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
            other.execute(f"CREATE TABLE {name} (id int); INSERT INTO {name} VALUES (1)")
            with pytest.raises(psycopg.errors.SerializationFailure, match="not visible"):
                conn.execute(command.format(name))
            conn.execute("ROLLBACK")
            assert other.execute(f"TABLE {name}").fetchall() == [(1,)]
            with bad_rows.connect_control() as control:
                assert control.execute(f"TABLE {name}").fetchall() == []
            other.execute(f"DROP TABLE {name}")


def test_sql_cannot_take_the_name_of_a_drivers_statement(conn: psycopg.Connection[Any]) -> None:
    """After DEALLOCATE and PREPARE a Bind of the name is refused: the text is another one."""
    conn.execute("CREATE TEMP VIEW counted AS SELECT 0::bigint AS n")
    assert conn.pgconn.prepare(b"taken", b"SELECT 1::bigint").error_message == b""
    assert conn.pgconn.prepare(b"kept", b"SELECT 2::bigint").error_message == b""
    conn.execute("DEALLOCATE taken; PREPARE taken AS SELECT n FROM counted")
    conn.execute("PREPARE first AS SELECT n FROM counted")
    assert b"already exists" in conn.pgconn.prepare(b"first", b"SELECT 1::bigint").error_message
    conn.execute("CREATE OR REPLACE TEMP VIEW counted AS SELECT count(*) AS n FROM bad_rows")
    for name in (b"taken", b"first"):
        assert b"cannot be bound" in conn.pgconn.exec_prepared(name, []).error_message
        with pytest.raises(REFUSED, match="of queries on lake tables is not supported"):
            conn.execute(b"EXECUTE " + name)
    assert conn.pgconn.exec_prepared(b"kept", []).get_value(0, 0) == b"2"
    conn.execute("DEALLOCATE kept")
    gone = conn.pgconn.exec_prepared(b"kept", [])
    assert gone.error_field(67) == b"26000"
    conn.execute("DROP VIEW counted")


def test_fetch_does_not_run_a_portal_that_writes_the_lake(
    bad_rows: Node, conn: psycopg.Connection[Any]
) -> None:
    """FETCH and MOVE in such a portal get 0A000; PostgreSQL would fill the empty relation."""

    async def use() -> None:
        client = await asyncpg.connect(
            host=bad_rows.host,
            port=bad_rows.port,
            user=SUPERUSER,
            database=DATABASE,
            passfile=bad_rows.home / "pgpass",
        )
        for verb in ("FETCH ALL FROM", "MOVE FORWARD ALL IN"):
            transaction = client.transaction()
            await transaction.start()
            await client.cursor("INSERT INTO bad_rows VALUES (3, 'c') RETURNING id")
            cursors = await client.fetch("SELECT name FROM pg_cursors WHERE name <> ''")
            with pytest.raises(asyncpg.FeatureNotSupportedError, match="cannot be used by"):
                await client.execute(f'{verb} "{cursors[0][0]}"')
            await transaction.rollback()
        await client.close()

    asyncio.run(use())


def test_a_text_is_read_in_one_encoding_whatever_it_sets(conn: psycopg.Connection[Any]) -> None:
    """SET client_encoding within a query, or a pipeline, changes none of its other statements."""
    text = "SET client_encoding = LATIN1; SELECT length('é'); SET client_encoding = UTF8"
    cursor = conn.execute(text)
    assert cursor.nextset()
    assert cursor.fetchall() == [(1,)]
    hidden = "SET backslash_quote = on; SET client_encoding = SJIS;"
    with pytest.raises(psycopg.errors.UntranslatableCharacter):
        conn.execute(f"{hidden} SELECT E'é\\' || (SELECT count(*) FROM bad_rows) --'")
    assert conn.execute("SELECT 'é', length('é')").fetchall() == [("é", 1)]
    with conn.pipeline():
        conn.execute("SET client_encoding = LATIN1")
        shown = conn.execute("SELECT length('é')")
        conn.execute("SET client_encoding = UTF8")
    assert shown.fetchall() == [(2,)]  # psycopg sends what is UTF-8 until it has heard of it
    with pytest.raises(REFUSED, match="cannot be changed by set_config"):
        conn.execute("SELECT set_config('client_encoding', 'SJIS', false)")


def test_strings_are_read_as_when_the_text_came(conn: psycopg.Connection[Any]) -> None:
    """A backslash behind SET standard_conforming_strings, in one query, is refused."""
    setting = "SET standard_conforming_strings = off;"
    with pytest.raises(REFUSED, match="changed by an earlier statement"):
        conn.execute(f"{setting} SELECT 'a\\nb'")
    assert conn.execute("SELECT 'a\\nb'").fetchall() == [("a\\nb",)]
    conn.execute(f"{setting} SELECT 'ab'; RESET standard_conforming_strings")


def test_a_text_that_cannot_be_parsed_runs_nothing(conn: psycopg.Connection[Any]) -> None:
    """A syntax error in the last statement is found before the first, with its place."""
    conn.execute("CREATE TEMP TABLE mine (a int)")
    text = "INSERT INTO mine VALUES (1); COMMIT; SELECT 'ü', a b c"
    with pytest.raises(psycopg.errors.SyntaxError, match='at or near "c"') as caught:
        conn.execute(text)
    assert caught.value.diag.statement_position == str(len(text))
    assert caught.value.diag.context is None
    assert conn.execute("TABLE mine").fetchall() == []
    with pytest.raises(psycopg.errors.SyntaxError), conn.transaction():
        conn.execute("INSERT INTO mine VALUES (1)")
        conn.execute("SELECT 1; SELEC 2")
    assert conn.execute("TABLE mine").fetchall() == []


def test_a_driver_may_prepare_a_statement_behind_a_semicolon(
    conn: psycopg.Connection[Any],
) -> None:
    """Semicolons around one statement are nothing."""
    query = ";; SELECT count(*) FROM bad_rows WHERE id > %s;"
    assert conn.execute(query, [1], prepare=True).fetchall() == [(1,)]


UNCHECKED = {
    "a unique index made concurrently": (
        "CREATE TABLE bad_t (a int); INSERT INTO bad_t VALUES (1), (1)",
        "CREATE UNIQUE INDEX CONCURRENTLY ON bad_t (a)",
        [(1,), (1,)],
    ),
    "a domain's new CHECK": (
        "CREATE DOMAIN bad_d AS int; CREATE TABLE bad_t (a bad_d); INSERT INTO bad_t VALUES (1)",
        "ALTER DOMAIN bad_d ADD CHECK (VALUE > 5)",
        [(1,)],
    ),
    "NOT NULL of a domain below another": (
        "CREATE DOMAIN bad_d AS int; CREATE DOMAIN bad_e AS bad_d;"
        "CREATE TABLE bad_t (a bad_e); INSERT INTO bad_t VALUES (NULL)",
        "ALTER DOMAIN bad_d SET NOT NULL",
        [(None,)],
    ),
    "a renamed value of an enum in an array": (
        "CREATE TYPE bad_y AS ENUM ('x', 'y'); CREATE TABLE bad_t (a bad_y[]);"
        "INSERT INTO bad_t VALUES ('{x}')",
        "ALTER TYPE bad_y RENAME VALUE 'x' TO 'z'",
        [("{x}",)],
    ),
    "another attribute of a composite type": (
        "CREATE TYPE bad_y AS (i int); CREATE TABLE bad_t (a bad_y);"
        "INSERT INTO bad_t VALUES ('(1)')",
        "ALTER TYPE bad_y ADD ATTRIBUTE j int",
        [("(1)",)],
    ),
    "another generation expression": (
        "CREATE TABLE bad_t (a int GENERATED ALWAYS AS (b * 2) STORED, b int);"
        "INSERT INTO bad_t (b) VALUES (1)",
        "ALTER TABLE bad_t ALTER a SET EXPRESSION AS (b * 3)",
        [(2,)],
    ),
    "a partition beside a default one": (
        "CREATE TABLE bad_t (a int) PARTITION BY LIST (a);"
        "CREATE TABLE bad_t_d PARTITION OF bad_t DEFAULT; INSERT INTO bad_t VALUES (1)",
        "CREATE TABLE bad_t_1 PARTITION OF bad_t FOR VALUES IN (1)",
        [(1,)],
    ),
}


@pytest.mark.parametrize("what", UNCHECKED)
def test_definitions_that_need_the_rows_are_refused(
    what: str, conn: psycopg.Connection[Any]
) -> None:
    """PostgreSQL would find its empty relation in order, and the lake's rows would not be."""
    before, definition, rows = UNCHECKED[what]
    try:
        conn.execute(before)
        with pytest.raises(REFUSED):
            conn.execute(definition)
        assert conn.execute("SELECT a FROM bad_t").fetchall() == rows
        conn.execute("DELETE FROM bad_t")
    finally:
        conn.execute("DROP TABLE IF EXISTS bad_t; DROP DOMAIN IF EXISTS bad_d CASCADE")
        conn.execute("DROP TYPE IF EXISTS bad_y")


def test_columns_that_spark_takes_for_one_are_refused(conn: psycopg.Connection[Any]) -> None:
    """Case of any alphabet, as Java compares it; other likenesses are none."""
    for names in (("é", "É"), ("k", "\u212a"), ("i", "İ"), ("I", "ı"), ("σ", "ς"), ("a", "A")):
        with pytest.raises(REFUSED, match="differ only in case"):
            conn.execute('CREATE TABLE bad_t ("{}" int, "{}" int)'.format(*names))
    conn.execute('CREATE TABLE bad_t ("ß" int, ss int, "é" int, "e\u0301" int)')
    conn.execute("INSERT INTO bad_t VALUES (1, 2, 3, 4)")
    assert conn.execute('SELECT "e\u0301", "é", ss, "ß" FROM bad_t').fetchall() == [(4, 3, 2, 1)]
    conn.execute("DROP TABLE bad_t")


def test_columns_that_delta_has_itself_are_refused(conn: psycopg.Connection[Any]) -> None:
    """Delta reads its own _metadata where a file has a deletion vector; tables may be called so."""
    for name in ("_metadata", "_Metadata", "__delta_internal_is_row_deleted"):
        with pytest.raises(REFUSED, match=f'column name "{name}" is not supported'):
            conn.execute(f'CREATE TABLE bad_t ("{name}" int)')
    conn.execute("CREATE TABLE _metadata (_change_type int); INSERT INTO _metadata VALUES (1), (2)")
    conn.execute("DELETE FROM _metadata WHERE _change_type = 1")
    assert conn.execute("SELECT _change_type FROM _metadata").fetchall() == [(2,)]
    conn.execute("DROP TABLE _metadata")


def test_types_may_change_where_no_rows_depend_on_them(conn: psycopg.Connection[Any]) -> None:
    """New values, renames of the type and defaults are no matter of the rows that there are."""
    conn.execute("CREATE TYPE bad_y AS ENUM ('x'); CREATE DOMAIN bad_d AS int NOT NULL")
    conn.execute("CREATE TABLE bad_t (a bad_y, b bad_d); INSERT INTO bad_t VALUES ('x', 1)")
    try:
        for definition in (
            "ALTER TYPE bad_y ADD VALUE 'y' BEFORE 'x'",
            "ALTER TYPE bad_y RENAME TO bad_z",
            "ALTER DOMAIN bad_d SET DEFAULT 5",
            "ALTER DOMAIN bad_d ADD CHECK (VALUE > 5) NOT VALID",
            "ALTER DOMAIN bad_d DROP NOT NULL",
        ):
            conn.execute(definition)
    finally:
        conn.execute("DROP TABLE bad_t; DROP DOMAIN bad_d; DROP TYPE IF EXISTS bad_y, bad_z")


def test_the_nodes_functions_are_not_the_clients(conn: psycopg.Connection[Any]) -> None:
    """Every function of the schema but the public ones is 42501, for superusers, too."""
    functions = conn.execute(
        "SELECT proname, coalesce((SELECT string_agg(format('NULL::%s', t::regtype), ', ')"
        " FROM unnest(proargtypes::oid[]) t), '') FROM pg_proc"
        " WHERE pronamespace = 'penstock'::regnamespace"
        " AND proname NOT IN ('explain_publication', 'facts_at')"
    ).fetchall()
    assert len(functions) > 30
    calls = [f"penstock.{name}({arguments})" for name, arguments in functions]
    calls += ['"penstock" . "plan_of" (\'SELECT 1\')', "plan_of('SELECT 1')"]
    calls += ["('SELECT 1'::text).plan_of"]
    conn.execute("SET search_path = penstock")
    for role in (SUPERUSER, "bad_client"):
        conn.execute(f"SET ROLE {role}")
        for call in calls:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(f"SELECT {call}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute("SELECT penstock.facts_at('table', 1, '0/0')")
    with pytest.raises(REFUSED, match="must be a string constant"):
        conn.execute("SELECT penstock.explain_publication('none' || '')")


def test_names_of_guarded_functions_may_be_those_of_tables(conn: psycopg.Connection[Any]) -> None:
    """A table, or a column, with such a name is no call."""
    conn.execute("CREATE TABLE crosstab (analysed int, refuse text)")
    conn.execute("CREATE TABLE IF NOT EXISTS plan_of (crosstab int)")
    conn.execute(
        "INSERT INTO crosstab (analysed) VALUES (1); INSERT INTO public.plan_of (crosstab)"
        " VALUES (2)"
    )
    assert conn.execute("SELECT c.analysed FROM crosstab c").fetchall() == [(1,)]
    assert conn.execute("SELECT crosstab FROM plan_of").fetchall() == [(2,)]
    conn.execute("DROP TABLE crosstab, plan_of")
