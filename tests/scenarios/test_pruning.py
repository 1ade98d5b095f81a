# SPDX-License-Identifier: Apache-2.0
"""Statements on partitioned tables read the partitions that may have rows for them, no others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import Format

from penstock.change import types
from penstock.control.connect import ControlConnection
from penstock.control.migrate import migrate
from penstock.frontdoor.actions import Parameter
from penstock.frontdoor.reading.pruning import Asked, without_pruned
from penstock.frontdoor.reading.query import SparkQueries
from tests.support.fix_servers import Database, Servers, drop_database
from tests.support.node import Node
from tests.support.query_oracle import PsycopgBackend
from tests.support.writes import check_same

TABLES = """
CREATE TABLE days (id int, day date, note text) PARTITION BY RANGE (day);
CREATE TABLE days_1 PARTITION OF days FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
CREATE TABLE days_2 PARTITION OF days FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');
CREATE TABLE days_3 PARTITION OF days FOR VALUES FROM ('2024-03-01') TO ('2024-04-01')
    PARTITION BY LIST (note);
CREATE TABLE days_3a PARTITION OF days_3 FOR VALUES IN ('a', 'b');
CREATE TABLE days_3c PARTITION OF days_3 DEFAULT;
CREATE TABLE days_0 PARTITION OF days DEFAULT;
INSERT INTO days SELECT g, date '2024-01-01' + g, chr(97 + g % 4) FROM generate_series(0, 99) g;
INSERT INTO days VALUES (200, NULL, 'x'), (201, '1999-12-31', NULL);
CREATE TABLE hashed (id int PRIMARY KEY, at timestamptz) PARTITION BY HASH (id);
CREATE TABLE hashed_0 PARTITION OF hashed FOR VALUES WITH (MODULUS 3, REMAINDER 0);
CREATE TABLE hashed_1 PARTITION OF hashed FOR VALUES WITH (MODULUS 3, REMAINDER 1);
CREATE TABLE hashed_2 PARTITION OF hashed FOR VALUES WITH (MODULUS 3, REMAINDER 2);
INSERT INTO hashed SELECT g, timestamptz '2024-01-01 00:00+00' + g * interval '1 day'
    FROM generate_series(1, 30) g;
CREATE TABLE months (id int, day date) PARTITION BY RANGE (day);
CREATE TABLE months_1 PARTITION OF months FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
CREATE TABLE months_2 PARTITION OF months FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');
CREATE TABLE checked (k int, n int, CHECK (n >= 0)) PARTITION BY LIST (k);
CREATE TABLE checked_1 PARTITION OF checked FOR VALUES IN (1);
CREATE TABLE checked_2 PARTITION OF checked FOR VALUES IN (2);
INSERT INTO months VALUES (1, '2024-01-01'), (2, '2024-02-02');
CREATE VIEW late AS SELECT * FROM days WHERE day >= '2024-03-01';
"""

QUERIES = """
SELECT count(*), min(id) FROM days;
SELECT * FROM days WHERE day = '2024-02-03';
SELECT id FROM days WHERE day BETWEEN '2024-01-30' AND '2024-02-02' ORDER BY id;
SELECT id FROM days WHERE day IS NULL OR day < '2000-01-01' ORDER BY id;
SELECT count(*) FROM days WHERE day > '2024-03-10' AND note = 'a';
SELECT count(*) FROM days WHERE day > '2024-03-10' AND note IN ('a', 'd');
SELECT count(*) FROM days WHERE day = '2024-02-03' AND false;
SELECT count(*), sum(id) FROM days WHERE day = '2024-02-03' AND day = '2024-01-03';
SELECT count(*) FROM late WHERE note = 'c';
SELECT a.id, b.id FROM days a JOIN days b ON b.id = a.id + 31 WHERE a.day = '2024-01-05'
    AND b.day < '2024-03-01';
SELECT a.id FROM days a LEFT JOIN days b ON b.id = a.id AND b.day = '1990-01-01'
    WHERE a.day = '2024-01-09';
SELECT (SELECT max(day) FROM days WHERE day < '2024-02-01'), (SELECT min(day) FROM late);
SELECT id FROM days WHERE day = '2024-01-03' UNION ALL SELECT id FROM days WHERE id = 99;
WITH w AS (SELECT * FROM days WHERE day < '2024-01-03') SELECT count(*) FROM w, w AS v;
SELECT id FROM days_3 WHERE note = 'b' ORDER BY id;
SELECT id FROM days d WHERE EXISTS (SELECT FROM hashed h WHERE h.id = d.id AND h.id IN (3, 40));
SELECT * FROM hashed WHERE id = 7;
SELECT count(*) FROM hashed WHERE at < now();
SELECT count(*) FROM days WHERE day > current_date;
SELECT count(*) FROM days WHERE day < statement_timestamp();
COPY (SELECT id, upper(note) FROM days WHERE day = '2024-03-05') TO STDOUT;
BEGIN;
CREATE TABLE months_3 PARTITION OF months FOR VALUES FROM ('2025-01-01') TO ('2025-02-01');
INSERT INTO months VALUES (300, '2025-01-07');
SELECT * FROM months WHERE day >= '2025-01-01';
ROLLBACK;
SELECT * FROM months WHERE day >= '2025-01-01';
SELECT id / (id - 31) FROM days WHERE day = '2024-02-01';
SELECT count(*) FROM days WHERE id = 1 / 0;
"""

PARTS = "".join(
    f"CREATE TABLE m_{n} PARTITION OF m FOR VALUES FROM ({n * 10}) TO ({n * 10 + 10});\n"
    for n in range(12)
)
CHANGES = f"""
CREATE TABLE m (id int PRIMARY KEY, v text, n numeric(9,2)) PARTITION BY RANGE (id);
{PARTS}
CREATE TABLE other (id int PRIMARY KEY, m int);
INSERT INTO m SELECT g, 'v' || g, g / 4.0 FROM generate_series(0, 119, 3) g;
INSERT INTO other SELECT g, g FROM generate_series(0, 119, 15) g;
UPDATE m SET v = 'one' WHERE id = 33 RETURNING *;
UPDATE m SET v = v || '!' WHERE id BETWEEN 28 AND 42;
UPDATE m SET v = 'by another column' WHERE n = 15;
UPDATE m SET id = id + 61 WHERE id IN (3, 33) RETURNING id;
UPDATE m SET id = 200 WHERE id = 6;
UPDATE m SET id = 12 WHERE id = 9;
UPDATE m SET v = o.id::text FROM other o WHERE o.m = m.id AND o.id > 60 RETURNING m.id, m.v;
INSERT INTO m VALUES (12, 'x') ON CONFLICT DO NOTHING;
INSERT INTO m VALUES (12, 'x'), (13, 'y'), (99, 'z') ON CONFLICT (id) DO UPDATE
    SET v = excluded.v || m.v RETURNING *;
INSERT INTO m SELECT id + 1, v || '+' FROM m WHERE id > 80 ON CONFLICT (id) DO UPDATE SET v = 'c';
INSERT INTO m VALUES (15, 'twice');
MERGE INTO m USING (VALUES (18, 'u'), (19, 'i'), (21, NULL)) s (id, v) ON m.id = s.id
    WHEN MATCHED AND s.v IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v
    WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.v);
CREATE TABLE refs (id int REFERENCES m ON DELETE CASCADE, n int);
INSERT INTO refs SELECT id, id % 5 FROM m WHERE id BETWEEN 20 AND 50;
INSERT INTO refs VALUES (23, 0);
DELETE FROM m WHERE id = 30 RETURNING *;
DELETE FROM m USING other o WHERE m.id = o.m + 3 AND o.id < 40 RETURNING m.id;
DELETE FROM m WHERE id IN (SELECT m FROM other WHERE id = 45);
BEGIN;
UPDATE m SET v = 'in a block' WHERE id = 48;
DELETE FROM m WHERE v = 'in a block' RETURNING id;
ROLLBACK;
UPDATE m SET id = 1000 WHERE false;
WITH gone AS (DELETE FROM m WHERE id > 110 RETURNING *) INSERT INTO other SELECT id FROM gone;
SELECT * FROM m ORDER BY id;
SELECT * FROM other ORDER BY id;
SELECT * FROM refs ORDER BY id;
"""

LEAVES = [
    ("SELECT * FROM days", (), 5),
    ("SELECT * FROM days WHERE day = '2024-02-03'", (), 1),
    ("SELECT * FROM days WHERE day < '2024-02-03'", (), 3),
    ("SELECT * FROM days WHERE day > '2024-03-10' AND note = 'a'", (), 2),
    ("SELECT * FROM days WHERE day = $1", (date(2024, 1, 3),), 1),
    ("SELECT * FROM days WHERE day = $1::text::date", ("2024-01-03",), 1),
    ("SELECT * FROM days WHERE day = $1", (None,), 0),
    ("SELECT * FROM days WHERE note = $1", ("a",), 4),
    ("SELECT * FROM days WHERE day < statement_timestamp() AND day > '2024-03-10'", (), 3),
    ("SELECT * FROM days WHERE day > now()", (), 1),
    ("SELECT * FROM days WHERE day = $1 AND $2", (date(2024, 1, 3), True), 1),
    ("SELECT * FROM hashed WHERE id = $01 AND id = $1", (7,), 1),
    ("SELECT * FROM days WHERE note = $1", ("it''s \\ $1::",), 4),
    ("SELECT * FROM checked WHERE n < 0", (), 2),
    ("SELECT * FROM hashed WHERE id = $1", (7,), 1),
    ("SELECT * FROM hashed WHERE id = ANY ($1)", ([7],), 1),
    ("SELECT * FROM hashed WHERE id = $1 AND at > $2", (7, datetime(2024, 1, 1)), 1),
    ("SELECT * FROM hashed WHERE at > $1", (datetime(2024, 1, 1),), 3),
    ("SELECT * FROM hashed h, days d WHERE h.id = 7 AND d.day = $1", (date(2024, 1, 3),), 2),
    ("SELECT * FROM hashed a, hashed b WHERE a.id = 7 AND b.id = $1", (7,), 1),
]
"""Queries, their parameters, and how many leaves are left of the partitioned tables."""

IN_BINARY = {"SELECT * FROM hashed WHERE id = ANY ($1)": 3}
"""The same where it differs when they come in binary: an array is not read to prune."""


@pytest.fixture(scope="module")
def pruned(node: Node) -> Node:
    """A node with the tables in a schema of their own."""
    node.psql(f"CREATE SCHEMA pruned; SET search_path = pruned; {TABLES}")
    return node


@pytest.fixture(scope="module")
def control(servers: Servers) -> Iterator[ControlConnection]:
    """A control database with them, without a node."""
    server = servers("18", "control")
    name = server.create_database()
    with ControlConnection.connect(server.conninfo(name), autocommit=True) as conn:
        migrate(conn)
        conn.execute(TABLES.encode())
        yield conn
    drop_database(server, name)


def test_rows_are_those_of_postgresql(node: Node, publisher_db: Database) -> None:
    """By RANGE, LIST and HASH, below one another, in joins, views, subqueries, transactions."""
    check_same(node, publisher_db, "pruned_rows", TABLES + QUERIES)


def test_changes_are_those_of_postgresql(node: Node, publisher_db: Database) -> None:
    """Of a table with more leaves than are put in unseen: keys, moves, conflicts, foreign keys."""
    check_same(node, publisher_db, "pruned_changes", CHANGES)


@pytest.mark.parametrize("form", [PyFormat.TEXT, PyFormat.BINARY])
def test_leaves_that_are_read(control: psycopg.Connection[Any], form: PyFormat) -> None:
    """By constants, by parameters in both formats, and by what is computed from them."""
    backend, queries = PsycopgBackend(control), SparkQueries(lambda: None, Path("unused"))

    async def left(sql: str, values: Sequence[Any]) -> int:
        made = Transformer(control)
        contents = made.dump_sequence(list(values), [form] * len(values))
        columns = zip(made.types or (), made.formats or (), contents, strict=True)
        given = [
            Parameter(oid or types.TEXT, 0 if kind is Format.TEXT else 1, bytes(each))
            if each is not None
            else Parameter(types.DATE, 0, None)
            for oid, kind, each in columns
        ]
        tree = await queries.tree(backend, sql, [each.type_oid for each in given])
        facts, _ = await queries.catalog.facts(backend, tree)
        facts = await without_pruned(backend, facts, Asked(sql, given))
        return sum(len(each.leaves) for each in facts.relations.values())

    for sql, values, leaves in LEAVES:
        expected = IN_BINARY.get(sql, leaves) if form is PyFormat.BINARY else leaves
        assert asyncio.run(left(sql, values)) == expected, sql


def test_a_partition_that_is_newer_than_the_statement(pruned: Node) -> None:
    """A prepared statement reads partitions that were attached since, and not those that left."""
    query = b"SELECT id FROM months WHERE day >= %s AND day < %s ORDER BY id"
    begin = date(2026, 1, 1)
    values = (begin, begin + timedelta(days=31))
    with pruned.connect() as conn, pruned.connect() as other:
        conn.execute("SET search_path = pruned")
        other.execute("SET search_path = pruned")
        assert conn.execute(query, values, prepare=True).fetchall() == []
        other.execute(
            "CREATE TABLE months_new PARTITION OF months"
            " FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')"
        )
        other.execute("INSERT INTO months VALUES (400, '2026-01-05')")
        assert conn.execute(query, values, prepare=True).fetchall() == [(400,)]
        other.execute("ALTER TABLE months DETACH PARTITION months_new")
        assert conn.execute(query, values, prepare=True).fetchall() == []


def test_an_error_of_planning_is_the_statements(pruned: Node) -> None:
    """What PostgreSQL finds when it plans with the values is its error, for the client's text."""
    with pruned.connect() as conn:
        conn.execute("SET search_path = pruned")
        with pytest.raises(psycopg.errors.DivisionByZero) as caught:
            conn.execute("SELECT * FROM days WHERE id = 1 / %s", (0,))
    assert caught.value.diag.statement_position is None
    assert caught.value.diag.internal_query is None
