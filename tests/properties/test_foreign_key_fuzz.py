# SPDX-License-Identifier: Apache-2.0
"""Random statements on small tables with foreign keys end on a node as they end on PostgreSQL.

Tables, constraints and statements are drawn from a seed.  Every answer is compared: rows, tag,
SQLSTATE, message, DETAIL and the names in the error; and all tables at the end of each round.
Defaults are keys that no statement takes away together with others: whether SET DEFAULT to such a
key fails on this or on that side depends on the places of rows.
``FUZZ=20`` tries twenty times as many rounds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from random import Random
from typing import Any

import psycopg
import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node

ROUNDS = 2 * int(os.environ.get("FUZZ", "1"))
STATEMENTS = 30
FIRST = int(os.environ.get("FUZZ_SEED", "1"))
TABLES = ("a", "b", "c", "t")

ACTIONS = ("", "CASCADE", "SET NULL", "SET DEFAULT", "RESTRICT", "NO ACTION")


def _reference(random: Random, columns: str, table: str, *, defers: bool) -> str:
    """A constraint with random actions."""
    parts = [f"FOREIGN KEY ({columns}) REFERENCES {table}"]
    for event in ("DELETE", "UPDATE"):
        action = random.choice(ACTIONS)
        parts += [f"ON {event} {action}"] if action else []
    if defers and random.random() < 0.3:
        parts.append(random.choice(("DEFERRABLE", "DEFERRABLE INITIALLY DEFERRED")))
    return " ".join(parts)


def definitions(random: Random) -> list[str]:
    """Parents, children, children of those, and a table that refers to itself."""
    full = random.choice(("", " MATCH FULL"))
    both = _reference(random, "x, y", "a (x, y)", defers=False).replace(
        "REFERENCES a (x, y)", f"REFERENCES a (x, y){full}"
    )
    return [
        "CREATE TABLE a (id int PRIMARY KEY, x int, y int, UNIQUE (x, y))",
        "CREATE TABLE b (id int PRIMARY KEY, p bigint DEFAULT 6, x int, y int DEFAULT 2, "
        f"{_reference(random, 'p', 'a', defers=False)}, {both})",
        f"CREATE TABLE c (n int, b int DEFAULT 5, {_reference(random, 'b', 'b', defers=True)})",
        "CREATE TABLE t (id int PRIMARY KEY, up int, "
        f"{_reference(random, 'up', 't', defers=True)})",
        "INSERT INTO a SELECT i, i % 3, i FROM generate_series(1, 6) i",
        "INSERT INTO b SELECT i, i % 6 + 1, NULL, NULL FROM generate_series(1, 5) i",
        "INSERT INTO c SELECT i, i FROM generate_series(1, 5) i",
        "INSERT INTO t SELECT i, nullif(i / 2, 0) FROM generate_series(1, 7) i",
    ]


def statement(random: Random) -> str:
    """One statement on one of the tables."""

    def key() -> str:
        return str(random.choice(("NULL", *"1234567")))

    def number() -> str:
        return str(random.randint(1, 9))

    kind = random.random()
    if kind < 0.3:
        return random.choice(
            (
                f"INSERT INTO a VALUES ({number()}, {key()}, {key()})",
                f"INSERT INTO b VALUES ({number()}, {key()}, {key()}, {key()})",
                f"INSERT INTO b (id, p) VALUES ({number()}, {key()})",
                f"INSERT INTO c VALUES ({number()}, {key()})",
                f"INSERT INTO t VALUES ({number()}, {key()}), ({number()}, {key()})",
                f"INSERT INTO b VALUES ({number()}, {key()}) ON CONFLICT (id) DO UPDATE"
                " SET p = excluded.p",
            )
        )
    where = random.choice((f"= {number()}", f"= {number()}", f"< {random.randint(1, 4)}"))
    table, name = random.choice((("a", "id"), ("b", "id"), ("c", "b"), ("t", "id"), ("b", "p")))
    if kind < 0.6:
        return f"DELETE FROM {table} WHERE {name} {where}"
    change = {
        "a": (f"id = {number()}", "id = id + 20", f"x = {key()}", f"y = {key()}", "x = x, y = y"),
        "b": (f"id = {number()}", f"p = {key()}", f"x = {key()}, y = {key()}", "id = id + 10"),
        "c": (f"b = {key()}", "n = n + 1"),
        "t": (f"id = {number()}", f"up = {key()}", "id = id + 10", "id = id + 10, up = up + 10"),
    }
    return f"UPDATE {table} SET {random.choice(change[table])} WHERE {name} {where}"


def statements(random: Random) -> Iterator[str]:
    """Statements, some of them in blocks with savepoints."""
    in_block = False
    for _ in range(STATEMENTS):
        if random.random() < 0.15:
            yield "COMMIT" if in_block else "BEGIN"
            in_block = not in_block
        if in_block and random.random() < 0.2:
            yield random.choice(("SAVEPOINT s", "ROLLBACK TO s", "SET CONSTRAINTS ALL DEFERRED"))
        yield statement(random)
    if in_block:
        yield "COMMIT"


def answer(conn: psycopg.Connection[Any], sql: str) -> tuple[object, ...]:
    """What a server says."""
    try:
        cursor = conn.execute(sql.encode())
    except psycopg.Error as error:
        diag = error.diag
        names = (diag.schema_name, diag.table_name, diag.constraint_name)
        return (diag.sqlstate, diag.message_primary, diag.message_detail, *names)
    rows = sorted(cursor.fetchall(), key=repr) if cursor.description else ()
    return (cursor.statusmessage, *rows)


def _without_numbers(said: tuple[object, ...]) -> tuple[object, ...]:
    """An error without the key; results as they are."""
    if said[0] in ("23503", "23001"):
        return tuple(re.sub(r"\(\d+(, \d+)*\)", "()", str(each)) for each in said)
    return said


@pytest.mark.parametrize("seed", range(FIRST, FIRST + ROUNDS))
def test_random_statements_end_as_on_postgresql(
    node: Node, publisher_db: Database, seed: int
) -> None:
    """The same answers, and the same rows."""
    random = Random(seed)
    schema = f"fkf_{seed}"
    with node.connect() as found, publisher_db.connect() as wanted:
        made = definitions(random)
        done = [f"CREATE SCHEMA {schema}", f"SET search_path = {schema}", *made]
        for sql in done:
            assert answer(found, sql) == answer(wanted, sql), sql
        for sql in statements(random):
            done.append(sql)
            mine, theirs = answer(found, sql), answer(wanted, sql)
            if "<" in sql:  # which of several rows comes first is a matter of places
                mine, theirs = _without_numbers(mine), _without_numbers(theirs)
            assert mine == theirs, ";\n".join(done)
        for table in TABLES:
            assert answer(found, f"TABLE {table}") == answer(wanted, f"TABLE {table}"), done
