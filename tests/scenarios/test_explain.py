# SPDX-License-Identifier: Apache-2.0
"""EXPLAIN of queries on lake tables: Spark's plan, under PostgreSQL's rules for the statement."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.support.node import Node

SETUP = """
CREATE SCHEMA ex;
CREATE TABLE ex.t (id int PRIMARY KEY, v text);
INSERT INTO ex.t SELECT g, 'v' || g FROM generate_series(1, 9) g;
CREATE VIEW ex.v AS SELECT v, count(*) FROM ex.t GROUP BY v;
CREATE ROLE ex_nobody LOGIN PASSWORD 'x'"""


@pytest.fixture(scope="module")
def lake(node: Node) -> Iterator[Node]:
    """The node with a table and a view."""
    node.psql(SETUP)
    yield node
    node.psql("DROP SCHEMA ex CASCADE; DROP ROLE ex_nobody")


@pytest.mark.parametrize(
    "sql",
    [
        "EXPLAIN SELECT * FROM ex.t WHERE id > 3",
        "EXPLAIN (COSTS OFF, FORMAT 'text') TABLE ex.v",
        "EXPLAIN VERBOSE WITH x AS (SELECT * FROM ex.t) SELECT x.v FROM x JOIN ex.v USING (v)",
        "EXPLAIN (VERBOSE true) (SELECT 1 / (id - id) FROM ex.t)",
    ],
)
def test_the_plan_is_shown_and_nothing_is_run(lake: Node, sql: str) -> None:
    """One column of lines, as PostgreSQL's; what would fail when it runs does not."""
    with lake.connect() as connection:
        cursor = connection.execute(sql.encode())
        assert cursor.description is not None
        assert [column.name for column in cursor.description] == ["QUERY PLAN"]
        lines = [line for (line,) in cursor.fetchall()]
        assert cursor.statusmessage == "EXPLAIN"
    assert lines[0] == "== Physical Plan =="
    assert any("Scan" in line for line in lines)
    assert any(line.startswith("(1) ") for line in lines) == ("VERBOSE" in sql)


def test_parameters_and_prepared_statements(lake: Node) -> None:
    """In the extended protocol, with a value in the plan, and again for another value."""
    with lake.connect() as connection:
        for value in (3, 4):
            rows = connection.execute(
                "EXPLAIN SELECT v FROM ex.t WHERE id = %s", [value], prepare=True
            ).fetchall()
            assert any(f"= {value}" in line for (line,) in rows)


@pytest.mark.parametrize(
    ("sql", "sqlstate", "message"),
    [
        ("EXPLAIN (NONSENSE) SELECT * FROM ex.t", "42601", 'EXPLAIN option "nonsense"'),
        ("EXPLAIN (FORMAT pdf) SELECT * FROM ex.t", "22023", 'EXPLAIN option "format": "pdf"'),
        ("EXPLAIN (FORMAT json) SELECT * FROM ex.t", "0A000", "format"),
        ("EXPLAIN ANALYZE SELECT * FROM ex.t", "0A000", "EXPLAIN ANALYZE"),
        ("EXPLAIN DELETE FROM ex.t", "0A000", "than queries"),
        ("EXPLAIN SELECT nope FROM ex.t", "42703", 'column "nope" does not exist'),
        ("EXPLAIN SELECT FROM ex.nope", "42P01", 'relation "ex.nope" does not exist'),
        ("EXPLAIN SELECT * FROM ex.t, pg_class", "0A000", "together with other relations"),
    ],
)
def test_what_is_refused(lake: Node, sql: str, sqlstate: str, message: str) -> None:
    """In PostgreSQL's words where they are its errors."""
    with lake.connect() as connection:
        with pytest.raises(psycopg.Error, match=message) as caught:
            connection.execute(sql.encode())
        assert caught.value.sqlstate == sqlstate


def test_rights_and_blocks(lake: Node) -> None:
    """Who may not read is not shown a plan; a failed block shows none."""
    with lake.connect() as connection:
        connection.execute("SET ROLE ex_nobody")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="for schema ex"):
            connection.execute("EXPLAIN SELECT * FROM ex.t")
        connection.execute("RESET ROLE; BEGIN; CREATE TABLE ex.new (id int)")
        assert connection.execute("EXPLAIN TABLE ex.new").fetchall()
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT nope")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("EXPLAIN TABLE ex.t")
        connection.execute("ROLLBACK")
