# SPDX-License-Identifier: Apache-2.0
"""Names that anybody may give pass unharmed: SQL, Spark, Delta, replication both ways, status, log.

PostgreSQL with the same names is the oracle.  What the lake refuses, it refuses with 0A000.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import penstock
from penstock.names import quote_pg
from penstock.sql.tokens import truncate
from tests.properties.test_statement_fuzz import fuzz
from tests.support.fix_servers import Database, Servers, drop_database
from tests.support.node import Node
from tests.support.outcomes import Outcome, ask
from tests.support.published import conninfo, make_replica
from tests.support.subscribing import wait_ready
from tests.support.waits import wait_until

HOSTILE = (
    *(
        'a"b',
        "a'b",
        "a`b",
        "a.b",
        "..",
        "/",
        "a/../b",
        "a\\b",
        "%s %d%",
        "{0} {x}",
        "$1",
        "?",
        ":p",
    ),
    *("two words", " lead", "trail ", "new\nline", "cr\rlf\n", "tab\t", "\x1b[31mred", "\x7f", "#"),
    *("select", "table", "user", "NULL", "true", "_change_type", "_commit_version", "metadata"),
    *("file_path", "_delta_log", "__row_index", "_penstock_keys", "t123", "0", "-1", "1e5", "*"),
    *("id;DROP TABLE x", "--", "/*", "*/", "$$", "e\u0301", "\u00e9", "\u202egnp", "\u05d0\u05d1"),
    *("\U0001f600", "\u0130stanbul", "stra\u00dfe", "\ufeffbom", "\u2028", "\xa0", "[/red]", "a,b"),
    *(
        "a=b",
        "a b=c",
        "x" * 63,
        "\u00e4" * 31,
        "\U0001f600" * 15,
        "Mixed",
        "MIXED",
        "col:on",
        "(a)",
    ),
    *(
        "struct<a:int>",
        "a->b",
        "(a, b)",
        "<",
        "&amp;",
        "~",
        "!",
        "^",
        "|",
        ";",
        '"',
        "'",
        "`",
        "\\",
    ),
)
NAMES = st.sampled_from(HOSTILE) | st.text(
    alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])
    | st.sampled_from("\"'`.\\ %/"),
    min_size=1,
    max_size=12,
).map(truncate)
REFUSALS = ("differ only in case", "column name")
COLUMNS = st.lists(NAMES, min_size=3, max_size=3, unique_by=str.casefold)


@pytest.fixture(scope="module")
def postgres(servers: Servers) -> Iterator[Database]:
    """A database of PostgreSQL."""
    server = servers()
    name = server.create_database()
    yield Database(server, name)
    drop_database(server, name)


@pytest.fixture(scope="module")
def pair(
    node: Node, postgres: Database
) -> Iterator[tuple[psycopg.Connection[Any], psycopg.Connection[Any]]]:
    """A client of the node, and one of PostgreSQL."""
    with node.connect() as mine, postgres.connect() as theirs:
        yield mine, theirs


Clients = tuple[psycopg.Connection[Any], psycopg.Connection[Any]]


def same(pair: Clients, text: str) -> Outcome:
    """Run a text on both; the answers agree."""
    found, expected = (ask(conn, text.encode()) for conn in pair)
    assert found.agrees(expected), (text, found, expected)
    return found


@fuzz(3)
@given(NAMES.filter(lambda name: not name.startswith("pg_")), NAMES, NAMES, COLUMNS, NAMES)
def test_any_name_in_sql(
    pair: Clients, schema: str, table: str, other: str, columns: list[str], role: str
) -> None:
    """Definitions, writes, queries by Spark, COPY, renames: as PostgreSQL answers them."""
    s, t, o, r = (quote_pg(name) for name in (schema[:9] + "_h", table, other, role[:9] + "_h"))
    a, b, c = map(quote_pg, columns)
    found, expected = (
        ask(
            conn,
            f"CREATE SCHEMA {s} CREATE TABLE {t} ({a} int PRIMARY KEY, {b} text, {c} int)".encode(),
        )
        for conn in pair
    )
    try:
        if found.error == "0A000":
            assert any(reason in found.message for reason in REFUSALS), found
            return
        assert found.agrees(expected)
        same(pair, f"INSERT INTO {s}.{t} ({c}, {a}, {b}) VALUES (7, 1, 'x'), (8, 2, NULL)")
        same(
            pair, f"SELECT {b}, max({c}) AS {t} FROM {s}.{t} AS {o} WHERE {o}.{a} < 9 GROUP BY {b}"
        )
        same(pair, f"UPDATE {s}.{t} SET {c} = {t}.{c} + 1 WHERE {a} = 1 RETURNING {a} AS {o}, {c}")
        same(pair, f"COPY {s}.{t} ({b}, {c}) TO STDOUT (HEADER)")
        same(
            pair,
            f"CREATE ROLE {r}; GRANT SELECT ({a}) ON {s}.{t} TO {r}; DROP OWNED BY {r};"
            f"DROP ROLE {r}",
        )
        if len({name.casefold() for name in (*columns, other)}) == 4:
            same(pair, f"ALTER TABLE {s}.{t} RENAME {b} TO {o}")
            same(pair, f"UPDATE {s}.{t} SET {o} = 'y' WHERE {o} IS NULL")
            b = o
        same(pair, f"ALTER TABLE {s}.{t} RENAME TO {quote_pg('n' + other[:10])}")
        same(pair, f"DELETE FROM {s}.{quote_pg('n' + other[:10])} WHERE {a} = 2")
        same(pair, f"SET search_path = {s}; SELECT {a}, {b}, {c} FROM {quote_pg('n' + other[:10])}")
    finally:
        for conn in pair:
            ask(conn, b"RESET search_path")
            ask(conn, f"DROP SCHEMA IF EXISTS {s} CASCADE".encode())


SCHEMA = quote_pg('h."\n`s')


def definitions() -> list[str]:
    """Tables whose names and columns are of HOSTILE, and rows for them."""
    statements = [f"CREATE SCHEMA {SCHEMA}"]
    for at, name in enumerate(HOSTILE):
        table = f"{SCHEMA}.{quote_pg(name)}"
        if at % 12 == 0:
            column = quote_pg(HOSTILE[(at * 7 + 3) % len(HOSTILE)])
            statements += [
                f"CREATE TABLE {table} (k_ int PRIMARY KEY, {column} text)",
                f"INSERT INTO {table} VALUES (1, 'one'), (2, NULL)",
            ]
    columns = {name.casefold(): quote_pg(name) for name in HOSTILE}.values()
    wide = f"{SCHEMA}.{quote_pg('w%')}"
    return [
        *statements,
        f"CREATE TABLE {wide} (k_ int PRIMARY KEY, {', '.join(f'{c} int' for c in columns)})",
        f"INSERT INTO {wide} VALUES (1, {', '.join(map(str, range(len(columns))))})",
        f"INSERT INTO {wide} VALUES (2)",
    ]


def tables(statements: list[str]) -> list[str]:
    """The names of the tables, quoted."""
    return [each[13:].rpartition(" (k_ int")[0] for each in statements if " TABLE " in each[:13]]


def contents(conn: psycopg.Connection[Any], name: str) -> Outcome:
    """A table's columns and rows."""
    return ask(conn, f"COPY {name} TO STDOUT (HEADER)".encode())


PUBLICATION = 'pub\n".`%s'
SUBSCRIPTION = "sub\n\"'\x1b.\\%s [/x]"


def test_any_name_is_replicated_both_ways(
    node: Node, postgres: Database, servers: Servers, spark: SparkSession
) -> None:
    """From PostgreSQL into the lake, and from the lake into PostgreSQL; shown in one line each."""
    statements = definitions()
    names = tables(statements)
    publication, subscription = quote_pg(PUBLICATION), quote_pg(SUBSCRIPTION)
    publish = f"CREATE PUBLICATION {publication} FOR TABLE {', '.join(names)}"
    target = Database(servers("16"), servers("16").create_database())
    with postgres.connect() as source, node.connect() as lake, target.connect() as last:
        for statement in [*statements, publish]:
            source.execute(statement.encode())
        lake.execute(
            f"CREATE SUBSCRIPTION {subscription} CONNECTION '{postgres.conninfo}' PUBLICATION"
            f" {publication} WITH (slot_name = 'hostile_in')".encode()
        )
        wait_ready(node, SUBSCRIPTION)
        for name in names:
            source.execute(f"UPDATE {name} SET k_ = 3 WHERE k_ = 2".encode())
            source.execute(f"INSERT INTO {name} VALUES (4)".encode())
        wait_until(
            lambda: all(contents(lake, n) == contents(source, n) for n in names), 60, "the changes"
        )
        every = f"SELECT * FROM {names[-1]} ORDER BY k_"
        assert lake.execute(every.encode()).fetchall() == source.execute(every.encode()).fetchall()
        shown = node.command("status").stdout
        assert len([line for line in shown.splitlines() if line.startswith("  table ")]) == len(
            names
        )
        assert "subscription sub\\n\"'\\x1b.\\%s [/x]: streaming" in shown
        lake.execute(f"DROP SUBSCRIPTION {subscription}".encode())
        lake.execute(publish.encode())
        explained = "SELECT * FROM penstock.explain_publication({})".format(
            "'" + PUBLICATION.replace("'", "''") + "'"
        )
        assert lake.execute(explained.encode()).rowcount == len(names)
        with penstock.connect(node.home, spark) as reader:
            frame = reader.table(names[0])
            assert frame.count() == 3
        for statement in statements:
            if not statement.startswith("INSERT"):
                last.execute(statement.encode())
        make_replica(node)
        last.execute(
            f"CREATE SUBSCRIPTION {subscription} CONNECTION '{conninfo(node)}' PUBLICATION"
            f" {publication} WITH (slot_name = 'hostile_out')".encode()
        )
        for name in names:
            lake.execute(f"DELETE FROM {name} WHERE k_ = 1".encode())
        wait_until(
            lambda: all(contents(last, n) == contents(lake, n) for n in names), 60, "the deletes"
        )
        last.execute(f"DROP SUBSCRIPTION {subscription}".encode())
        lake.execute(f"DROP PUBLICATION {publication}".encode())
        lake.execute(f"DROP SCHEMA {SCHEMA} CASCADE".encode())
    drop_database(target.server, target.name)
    for line in (node.home / "log" / "penstock.log").read_text().split("\n"):
        assert line == "" or line[0] in "\t2", line
        assert "\x1b" not in line
