# SPDX-License-Identifier: Apache-2.0
"""The command table and the classifier."""

from __future__ import annotations

import pytest

from penstock.change.schema import CASCADE, RESTART_IDENTITY
from penstock.errors import PenstockError
from penstock.sql.commands import (
    analyzes,
    explain_options,
    inner_statement,
    object_name,
    parse,
    truncated,
)
from penstock.sql.commands_guards import (
    check_embedded_set,
    check_functions,
    check_node_functions,
    check_set,
    check_startup,
)
from penstock.sql.commands_table import REASONS, TREATMENTS, Treatment
from penstock.sql.table_as import table_as
from penstock.sql.tokens import significant


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("SELECT 1", "SELECT"),
        ("((select 1))", "SELECT"),
        ("(VALUES (1))", "VALUES"),
        ("(INSERT INTO t VALUES (1))", ""),
        ("TABLE t", "TABLE"),
        ("WITH x AS (INSERT INTO t VALUES (1) RETURNING a) SELECT * FROM x", "WITH"),
        ("WITH x AS (SELECT 1) SELECT * INTO y FROM x", "SELECT INTO"),
        ("SELECT a.into, 1 AS into, 'into' FROM a", "SELECT"),
        ("SELECT * INTO t FROM x", "SELECT INTO"),
        ("/* c */ -- d\n begin", "BEGIN"),
        ("START TRANSACTION READ ONLY", "START TRANSACTION"),
        ("ROLLBACK", "ROLLBACK"),
        ("ROLLBACK WORK TO x", "ROLLBACK TO SAVEPOINT"),
        ("ROLLBACK TO SAVEPOINT x", "ROLLBACK TO SAVEPOINT"),
        ("ROLLBACK PREPARED 'x'", "ROLLBACK PREPARED"),
        ("RELEASE x", "RELEASE SAVEPOINT"),
        ("PREPARE TRANSACTION 'x'", "PREPARE TRANSACTION"),
        ("PREPARE transaction AS SELECT 1", "PREPARE"),
        ("PREPARE p(int) AS SELECT 1", "PREPARE"),
        ("SET x = 1", "SET"),
        ("SET LOCAL x TO 1", "SET"),
        ("SET SESSION x TO 1", "SET"),
        ("SET TIME ZONE 'UTC'", "SET"),
        ("SET ROLE x", "SET ROLE"),
        ("SET LOCAL ROLE NONE", "SET ROLE"),
        ("SET SESSION AUTHORIZATION x", "SET SESSION AUTHORIZATION"),
        ("SET LOCAL SESSION AUTHORIZATION x", "SET SESSION AUTHORIZATION"),
        ("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "SET TRANSACTION"),
        ("SET TRANSACTION SNAPSHOT 'x'", "SET TRANSACTION"),
        ("SET CONSTRAINTS ALL DEFERRED", "SET CONSTRAINTS"),
        ("CREATE TABLE t (a int)", "CREATE TABLE"),
        ("CREATE UNLOGGED TABLE IF NOT EXISTS t (a int)", "CREATE TABLE"),
        ("CREATE TABLE t (a int GENERATED ALWAYS AS (1) STORED)", "CREATE TABLE"),
        ("CREATE TABLE t (a) WITH (x = 1) AS SELECT 1", "CREATE TABLE AS"),
        ("CREATE GLOBAL TEMP TABLE t AS EXECUTE p", "CREATE TABLE AS"),
        ("CREATE OR REPLACE TEMP RECURSIVE VIEW v (a) AS SELECT 1", "CREATE VIEW"),
        ("CREATE UNIQUE INDEX ON t (a)", "CREATE INDEX"),
        ("CREATE OR REPLACE CONSTRAINT TRIGGER t AFTER INSERT ON x", "CREATE TRIGGER"),
        ("CREATE OR REPLACE TRUSTED PROCEDURAL LANGUAGE x", "CREATE LANGUAGE"),
        ("CREATE DEFAULT CONVERSION x FOR 'a' TO 'b' FROM c", "CREATE CONVERSION"),
        ("CREATE USER MAPPING FOR x SERVER y", "CREATE USER MAPPING"),
        ("CREATE USER x", "CREATE USER"),
        ("CREATE TEXT SEARCH CONFIGURATION x (COPY = y)", "CREATE TEXT SEARCH CONFIGURATION"),
        ("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO x", "ALTER DEFAULT PRIVILEGES"),
        ("ALTER OPERATOR FAMILY x USING y RENAME TO z", "ALTER OPERATOR FAMILY"),
        ("ALTER OPERATOR + (int, int) OWNER TO x", "ALTER OPERATOR"),
        ("DROP MATERIALIZED VIEW x", "DROP MATERIALIZED VIEW"),
        ("SELEC 1", ""),
        ('"select" 1', ""),
        ("CREATE NONSENSE", ""),
        ("", ""),
    ],
)
def test_a_command_is_told_by_its_keywords(sql: str, name: str) -> None:
    """Modifiers do not count, and what no command starts with is none."""
    assert parse(sql).name == name


def test_every_refusal_has_its_reason() -> None:
    """A refused command says why; no other has a reason."""
    assert {name for name, each in TREATMENTS.items() if each is Treatment.REFUSED} == set(REASONS)
    assert parse("SELEC 1").treatment is Treatment.REFUSED
    assert parse("SELEC 1").reason is None


@pytest.mark.parametrize(
    ("sql", "temporary"),
    [
        ("CREATE TEMP TABLE t AS SELECT 1", True),
        ("CREATE LOCAL TEMPORARY TABLE t AS SELECT 1", True),
        ("CREATE TABLE pg_temp.t AS SELECT 1", True),
        ('CREATE TABLE IF NOT EXISTS "pg_temp".t AS SELECT 1', True),
        ("CREATE TABLE temp AS SELECT 1", False),
        ("CREATE TABLE t AS SELECT 1", False),
    ],
)
def test_temporary_tables_are_recognised(sql: str, temporary: bool) -> None:
    """By the keyword at its place, or by the schema."""
    assert parse(sql).temporary is temporary


@pytest.mark.parametrize(
    ("sql", "inner"),
    [
        ("PREPARE p AS SELECT 1", " SELECT 1"),
        ("PREPARE p(int, text) AS SELECT $1", " SELECT $1"),
        ("EXPLAIN SELECT 1", "SELECT 1"),
        ("EXPLAIN ANALYZE VERBOSE SELECT 1", "SELECT 1"),
        ("EXPLAIN (ANALYZE, FORMAT JSON) SELECT 1", "SELECT 1"),
        ("EXPLAIN (SELECT 1)", "(SELECT 1)"),
        ("EXPLAIN ((SELECT 1))", "((SELECT 1))"),
        ("COPY (SELECT (1)) TO STDOUT", "SELECT (1)"),
        ("COPY t TO STDOUT", None),
        ("PREPARE p", None),
        ("SELECT 1", None),
    ],
)
def test_the_inner_statement_keeps_its_place(sql: str, inner: str | None) -> None:
    """So a position in it is a position in the whole."""
    found = inner_statement(parse(sql))
    if inner is None:
        assert found is None
    else:
        assert found is not None
        assert found.strip() == inner.strip()
        assert sql.startswith(
            inner, found.index(inner.strip()) - (len(inner) - len(inner.lstrip()))
        )


@pytest.mark.parametrize(
    ("sql", "options"),
    [
        ("EXPLAIN SELECT verbose", {}),
        ("EXPLAIN VERBOSE SELECT 1", {"verbose": "on"}),
        ("EXPLAIN (SELECT verbose)", {}),
        (
            "EXPLAIN (VERBOSE, costs OFF, \"format\" 'JSON') SELECT 1",
            {"verbose": "on", "costs": "off", "format": "json"},
        ),
        ("EXPLAIN (format text, verbose 0) SELECT 1", {"format": "text", "verbose": "0"}),
    ],
)
def test_options_of_explain(sql: str, options: dict[str, str]) -> None:
    """In both forms of the syntax, with and without values."""
    assert explain_options(parse(sql)) == options


@pytest.mark.parametrize(
    ("sql", "runs"),
    [
        ("EXPLAIN SELECT 1", False),
        ("EXPLAIN VERBOSE SELECT 1", False),
        ("EXPLAIN ANALYZE SELECT 1", True),
        ("EXPLAIN ANALYSE VERBOSE SELECT 1", True),
        ("EXPLAIN (VERBOSE, ANALYZE true) SELECT 1", True),
        ('EXPLAIN (VERBOSE, "analyze") SELECT 1', True),
        ("EXPLAIN (SELECT analyze FROM t)", False),
    ],
)
def test_explain_analyze_runs_its_statement(sql: str, runs: bool) -> None:
    """In both forms of the syntax."""
    assert analyzes(parse(sql)) is runs


@pytest.mark.parametrize(
    ("sql", "names", "options"),
    [
        ("TRUNCATE a", ["a"], 0),
        ("TRUNCATE TABLE ONLY a, b *, c.d CASCADE", ["a", "b", "c.d"], CASCADE),
        ("TRUNCATE ONLY (a), \"B\" RESTART IDENTITY", ["a", '"B"'], RESTART_IDENTITY),
        ("TRUNCATE a CONTINUE IDENTITY RESTRICT", ["a"], 0),
        ("TRUNCATE cascade, restart Restart Identity CASCADE;", ["cascade", "restart"], 3),
        ("TRUNCATE a, a;", ["a", "a"], 0),
        ("TRUNCATE a b", None, 0),
        ("TRUNCATE", None, 0),
    ],
)  # fmt: skip
def test_truncate_names_its_tables(sql: str, names: list[str] | None, options: int) -> None:
    """All of them and what is said behind them, or nothing when the form is unknown."""
    found = truncated(parse(sql))
    if found is None:
        assert names is None
    else:
        assert ["".join(t.text for t in name) for name in found.names] == names
        assert found.options == options


@pytest.mark.parametrize(
    ("sql", "head", "name", "temporary"),
    [
        ("SELECT 1 INTO t", "CREATE  TABLE", "t", False),
        ("SELECT 1 a INTO temp FROM x", "CREATE  TABLE", "temp", False),
        ("SELECT 1 INTO TEMP t FROM x", "CREATE temp TABLE", "t", True),
        ("SELECT 1 INTO LOCAL TEMPORARY TABLE t", "CREATE local temporary TABLE", "t", True),
        ("SELECT 1 INTO temp temp", "CREATE temp TABLE", "temp", True),
        ("SELECT 1 INTO pg_temp.t ORDER BY 1", "CREATE  TABLE", "pg_temp.t", True),
        ("SELECT 1 INTO temp.t ORDER BY 1", "CREATE  TABLE", "temp.t", False),
        ('SELECT 1 INTO UNLOGGED "T" UNION SELECT 2', "CREATE unlogged TABLE", '"T"', False),
        ("CREATE TEMP TABLE t AS TABLE x", "CREATE TEMP TABLE", "t", True),
    ],
)
def test_parts_of_a_table_made_of_a_query(sql: str, head: str, name: str, temporary: bool) -> None:
    """Words that say what kind of table it is may be its name."""
    parts = table_as(parse(sql))
    assert parts is not None
    assert (parts.head.strip(), parts.name, parts.temporary) == (head, name, temporary)


def test_names_stand_behind_existence_clauses() -> None:
    """IF [NOT] EXISTS and ONLY are no names, but tables may be called so."""
    for sql, name in (
        ("IF NOT EXISTS a.b (", "a.b"),
        ("IF EXISTS a", "a"),
        ("ONLY a", "a"),
        ("if", "if"),
        ("a . b . c x", "a.b.c"),
    ):
        assert "".join(token.text for token in object_name(significant(sql))) == name


REFUSED_SETTINGS = [
    "session_replication_role = replica",
    "SESSION event_triggers TO off",
    "LOCAL allow_system_table_mods = on",
    "\"session_replication_role\" = 'replica'",
    "synchronous_commit = off",
    "session_replication_role FROM CURRENT",
    "session_replication_role = E'replica'",
]


@pytest.mark.parametrize("setting", REFUSED_SETTINGS)
def test_settings_that_the_node_relies_on_cannot_change(setting: str) -> None:
    """In SET, ALTER ROLE, ALTER DATABASE and ALTER SYSTEM."""
    with pytest.raises(PenstockError) as caught:
        check_set(parse(f"SET {setting}").rest)
    assert caught.value.sqlstate == "0A000"
    bare = setting.removeprefix("SESSION ").removeprefix("LOCAL ")
    for sql in (f"ALTER SYSTEM SET {bare}", f"ALTER ROLE x IN DATABASE y SET {bare}"):
        with pytest.raises(PenstockError):
            check_embedded_set(parse(sql).rest)


@pytest.mark.parametrize(
    "sql",
    [
        "SET session_replication_role = origin",
        "SET session_replication_role TO DEFAULT",
        "SET synchronous_commit = remote_apply",
        "SET event_triggers = 'on'",
        "SET search_path = a, b",
        "SET TIME ZONE 'UTC'",
        "SET",
    ],
)
def test_other_settings_are_relayed(sql: str) -> None:
    """Values that the node relies on are no change."""
    check_set(parse(sql).rest)


def test_startup_packets_are_checked_too() -> None:
    """Settings may come as parameters and inside of ``options``."""
    check_startup({"user": "x", "options": "-c search_path=a -c jit=off", "DateStyle": "ISO"})
    for parameters in (
        {"session_replication_role": "replica"},
        {"options": "-c session_replication_role=replica"},
        {"options": "-csession_replication_role=replica"},
        {"options": "--session-replication-role=replica"},
        {"options": "-c jit=off -c event_triggers=o\\ff"},
    ):
        with pytest.raises(PenstockError):
            check_startup(parameters)


@pytest.mark.parametrize(
    ("sql", "sqlstate"),
    [
        ("SELECT query_to_xml('', true, true, '')", "0A000"),
        ("SELECT pg_catalog . TS_STAT /* c */ ('')", "0A000"),
        ("SELECT ('x'::text).ts_stat", "0A000"),
        ("SELECT database_to_xml_and_xmlschema(true, true, '')", "0A000"),
        ("SELECT U&\"x\"", "0A000"),
        ("SELECT set_config('event_triggers', 'off', true)", "0A000"),
        ("SELECT set_config('x' || 'y', 'off', true)", "0A000"),
        ("SELECT set_config('event_triggersx'::varchar(14), 'off', true)", "0A000"),
        ("SELECT set_config(setting_name => 'x', new_value => '', is_local => true)", "0A000"),
        ("SELECT set_config($1, 'off', true)", "0A000"),
        ("SELECT set_config(name, 'off', true) FROM pg_settings", "0A000"),
        ("SELECT set_config(name, 'a', false) FROM pg_settings WHERE name = 'x'", None),
        ("SELECT set_config(name, 'off', false) FROM pg_settings WHERE name = 'fsync'", "0A000"),
        ("SELECT set_config(name, 'a', false) FROM pg_settings WHERE name <> 'x'", "0A000"),
        ("SELECT set_config(name, 'a', false) FROM s WHERE name = 'x'", "0A000"),
        ("SELECT pg_logical_emit_message(true, 'penstock', 'x')", "42501"),
        ("SELECT set_config('search_path', $1, true)", None),
        ("SELECT set_config('search_path'::text, concat('a', ','), true)", None),
        ("SELECT ts_stat FROM t", None),
        ("SELECT 'query_to_xml('", None),
        ("SELECT pg_logical_emit_message(false, 'mine', 'x')", None),
    ],
)  # fmt: skip
def test_functions_that_read_behind_a_plan_are_found(sql: str, sqlstate: str | None) -> None:
    """As calls and as fields, whatever stands between; as plain names they are harmless."""
    tokens = significant(sql)
    if sqlstate is None:
        check_functions(tokens)
        return
    with pytest.raises(PenstockError) as caught:
        check_functions(tokens)
    assert caught.value.sqlstate == sqlstate


@pytest.mark.parametrize(
    ("sql", "refused"),
    [
        ("SELECT penstock.plan_of('x')", True),
        ('SELECT "penstock"."plan_of" (1)', True),
        ("SELECT plan_of('x')", True),
        ("SELECT * FROM analysed('x', 'y')", True),
        ("SELECT ('x'::text).plan_of", True),
        ("SELECT t.analysed FROM t", False),  # takes two arguments
        ("SELECT analysed, plan_of FROM t", False),
        ("CREATE TABLE plan_of (a int)", False),
        ("CREATE TABLE IF NOT EXISTS public.plan_of (a int)", False),
        ("INSERT INTO analysed (a) VALUES (1)", False),
        ("INSERT INTO analysed (a) VALUES (plan_of(1))", True),
        ("CREATE VIEW v AS SELECT penstock.plan_of('x')", True),
    ],
)
def test_the_nodes_functions_are_told_from_tables(sql: str, refused: bool) -> None:
    """A call of one is 42501; a relation or a column of its name is the client's own."""
    functions = {"plan_of": 1, "analysed": 2}
    if not refused:
        check_node_functions(significant(sql), functions)
        return
    with pytest.raises(PenstockError) as caught:
        check_node_functions(significant(sql), functions)
    assert caught.value.sqlstate == "42501"
