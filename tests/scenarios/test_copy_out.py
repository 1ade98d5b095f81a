# SPDX-License-Identifier: Apache-2.0
"""COPY TO STDOUT of lake tables: a node prints what PostgreSQL prints, byte for byte."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from psycopg.pq import TransactionStatus

from tests.support import edge_values
from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.waits import wait_until
from tests.support.writes import check_same

FORMS = r"""
CREATE TABLE t (id int PRIMARY KEY, "A b" text, n numeric(6,2), g int GENERATED ALWAYS AS (id * 2)
    STORED, at timestamptz, raw bytea);
COPY t TO STDOUT;
COPY t TO STDOUT (FORMAT csv, HEADER);
INSERT INTO t VALUES (1, E'tab\t"quoted" \\ back\nnew\r\b\f\v', 1.5, DEFAULT, '2024-01-02 03:04+00',
    '\x00ff'), (2, '', NULL, DEFAULT, NULL, ''), (3, '\.', -0.05, DEFAULT, 'epoch', NULL),
    (4, '\N', 0, DEFAULT, NULL, NULL), (5, 'a,b|c', NULL, DEFAULT, NULL, 'x'),
    (6, NULL, NULL, DEFAULT, NULL, NULL);
COPY t TO STDOUT;
COPY t TO STDIN;
COPY t ("A b", id) TO STDOUT;
COPY t (at) TO STDOUT WITH (FORMAT text, HEADER, NULL '', DELIMITER '|');
COPY t TO STDOUT WITH (FORMAT csv);
COPY t ("A b") TO STDOUT CSV;
COPY t ("A b", id) TO STDOUT (FORMAT csv, FORCE_QUOTE (id), QUOTE '''', ESCAPE E'\\', NULL '1');
COPY t (id, "A b", n) TO STDOUT (FORMAT csv, FORCE_QUOTE *, HEADER true, DELIMITER E'\t');
COPY t (id, "A b") TO STDOUT (DELIMITER 'a');
COPY t (id, "A b") TO STDOUT (DELIMITER 'A', NULL '1');
COPY t (id, "A b") TO STDOUT (DELIMITER '"', ENCODING 'utf-8');
COPY t (id, "A b") TO STDOUT USING DELIMITERS '|';
COPY t (id, "A b") TO STDOUT USING DELIMITERS '|' WITH NULL AS 'none';
COPY t (id, "A b") TO STDOUT WITH DELIMITER AS $$;$$ NULL 'x' CSV HEADER QUOTE AS '"'
    FORCE QUOTE "A b", id;
COPY t (id) TO STDOUT HEADER;
COPY t (n, id) TO STDOUT DELIMITER U&'!007c' UESCAPE '!';
\copy t to stdout
\copy (SELECT id, n FROM t) to stdout csv header
SET TimeZone = 'Asia/Kolkata';
COPY t (at) TO STDOUT;
RESET TimeZone;
COPY (SELECT * FROM t) TO STDOUT;
COPY (TABLE t) TO STDOUT (HEADER);
COPY (SELECT id AS "X", id, "A b" AS "true" FROM t) TO STDOUT (FORMAT csv, HEADER,
    FORCE_QUOTE ("X", "true"));
COPY (SELECT id, n * 2 AS n FROM t WHERE id > 1 ORDER BY id DESC) TO STDOUT;
COPY (SELECT count(*), 1 / count(*) FROM t WHERE id IS NOT NULL) TO STDOUT;
COPY (SELECT id FROM t WHERE id > 100) TO STDOUT (FORMAT csv, HEADER);
CREATE TABLE numerics (id int PRIMARY KEY, n numeric, several numeric[]);
INSERT INTO numerics VALUES (1, 1.5, '{1.5,NULL,0}'), (2, 100, '{}'), (3, -0.05, NULL),
    (4, NULL, '{-7}');
COPY numerics TO STDOUT;
COPY numerics (several, n) TO STDOUT (FORMAT csv, FORCE_QUOTE *);
COPY (SELECT n, id FROM numerics WHERE n > 1) TO STDOUT;
CREATE TABLE nothing ();
COPY nothing TO STDOUT;
COPY t (id) TO STDOUT \; SELECT 1 \; COPY t (n) TO STDOUT (NULL 'null');
COPY t (id) TO STDOUT \bind \g
"""

ERRORS = r"""
CREATE TABLE t (id int PRIMARY KEY, a text, g int GENERATED ALWAYS AS (id * 2) STORED);
CREATE TABLE parts (id int, r text) PARTITION BY LIST (r);
CREATE TABLE parts_a PARTITION OF parts FOR VALUES IN ('a');
CREATE VIEW v AS SELECT id FROM t;
INSERT INTO t VALUES (1, 'x');
INSERT INTO parts VALUES (1, 'a');
COPY parts TO STDOUT;
COPY v TO STDOUT;
COPY nope TO STDOUT;
COPY t (nope) TO STDOUT;
COPY t (id, id) TO STDOUT;
COPY t (g) TO STDOUT;
COPY t (ctid) TO STDOUT;
COPY t TO STDOUT (FORMAT xml);
COPY t TO STDOUT (nope);
COPY t TO STDOUT (FORMAT csv, FORMAT csv);
COPY t TO STDOUT (DELIMITER 'ab');
COPY t TO STDOUT (DELIMITER '.');
COPY t TO STDOUT (FORMAT csv, QUOTE ',');
COPY t TO STDOUT (QUOTE '"');
COPY t TO STDOUT (FORMAT csv, FORCE_QUOTE (nope));
COPY t TO STDOUT (FORMAT csv, FORCE_NULL (a));
COPY t TO STDOUT (FREEZE);
COPY t TO STDOUT (HEADER match);
COPY t TO STDOUT WHERE id > 1;
COPY t TO STDOUT (NULL E'\n');
COPY t TO STDOUT x;
COPY (SELECT nope FROM t) TO STDOUT;
COPY (SELECT id FROM t) TO STDOUT (FORMAT nope);
COPY (SELECT id FROM t) TO STDOUT (FORMAT csv, FORCE_QUOTE (a));
COPY (SELECT id FROM t) TO STDOUT USING DELIMITERS ',';
COPY (SELECT 1 / 0 FROM t) TO STDOUT;
COPY (SELECT 1 / (id - 1) FROM t WHERE a <> '') TO STDOUT;
COPY t TO STDOUT (DELIMITER $1) \bind ',' \g
CREATE ROLE copy_reader;
GRANT USAGE ON SCHEMA errors TO copy_reader;
GRANT SELECT (id) ON t TO copy_reader;
SET ROLE copy_reader;
COPY t TO STDOUT;
COPY t (id) TO STDOUT;
COPY t (id, a) TO STDOUT;
COPY (SELECT a FROM t) TO STDOUT;
RESET ROLE;
DROP OWNED BY copy_reader;
DROP ROLE copy_reader;
BEGIN;
COPY t TO STDOUT (nope);
COPY t TO STDOUT;
ROLLBACK;
"""

BLOCKS = r"""
CREATE TABLE t (id int PRIMARY KEY, a text);
CREATE TABLE p (id int, r text) PARTITION BY LIST (r);
CREATE TABLE pa (r text, gone int, id int);
ALTER TABLE pa DROP COLUMN gone;
ALTER TABLE p ATTACH PARTITION pa FOR VALUES IN ('a');
CREATE TABLE pb PARTITION OF p DEFAULT;
INSERT INTO t VALUES (1, 'one'), (2, 'two'), (3, 'three');
INSERT INTO p VALUES (1, 'a'), (2, 'b'), (3, 'a'), (4, 'c');
COPY (SELECT * FROM p) TO STDOUT;
COPY (SELECT r, id FROM ONLY p) TO STDOUT;
COPY (SELECT id FROM p WHERE r > 'a') TO STDOUT;
COPY pa TO STDOUT;
BEGIN;
DELETE FROM t WHERE id = 2;
COPY t TO STDOUT;
SAVEPOINT s;
DELETE FROM t WHERE id = 1;
COPY (SELECT a FROM t) TO STDOUT;
ROLLBACK TO s;
INSERT INTO t VALUES (4, 'four');
COPY t (id) TO STDOUT;
COPY (SELECT a FROM t WHERE id <> 3) TO STDOUT;
ROLLBACK;
COPY t TO STDOUT;
INSERT INTO t VALUES (5, 'five') \; COPY t (id) TO STDOUT \; SELECT 1 / 0;
COPY t (id) TO STDOUT;
ALTER TABLE t RENAME COLUMN a TO c;
ALTER TABLE t ADD COLUMN b int, ADD COLUMN d text DEFAULT 'd';
ALTER TABLE t ALTER COLUMN id TYPE bigint;
COPY t TO STDOUT (HEADER);
COPY (SELECT d, id FROM t) TO STDOUT;
"""


@pytest.mark.parametrize("script", ["FORMS", "ERRORS", "BLOCKS"])
def test_as_postgresql(node: Node, publisher_db: Database, script: str) -> None:
    """Every form, option and error, and what a transaction sees, is as PostgreSQL prints it."""
    check_same(node, publisher_db, script.lower(), globals()[script])


OWN_OIDS = ("p", "am", "ap")
"""Columns whose binary form has OIDs of types of the database in it."""

FORMATS = [
    "",
    "(FORMAT csv)",
    "(FORMAT csv, FORCE_QUOTE *, NULL 'NULL', ESCAPE 'e', DELIMITER '-')",
    "(DELIMITER ':', NULL '')",
    "(FORMAT binary)",
]


CONDITIONS = r"""
i4 > 0 AND i2 <= 0
i8 >= i4 OR i4 IS NULL
NOT (i4 > 0 OR b)
b
b IS NOT NULL AND b
i8 = -9223372036854775808
5 < i2
n > 1.5
n = 1.5
(n2 < 0)
n2 <> 0::numeric
n3 >= 0.0001
n < (3)::numeric
d >= '2000-02-29'
d < '1970-01-01'::date OR d IS NULL
ts <> '2000-01-01'
tz <= '2024-07-01 00:00:00+05:30'
t = 'a\b'
t = ''
t <> 'null'
vc = 'NULL'::text
vc IN ('', 'it''s')
NOT vc IN ('', NULL)
i2 = ANY (ARRAY[0, 32767])
u = '00000000-0000-0000-0000-000000000000'
b = true
b <> false
NULL
false
true
t IS NULL AND i4 IS NOT NULL
id = 3 OR (NULL AND id > 0)
i2 > 0 AND i2 < 100000
"""
"""Plain conditions, which Spark is not needed for."""


def test_conditions(node: Node, publisher_db: Database) -> None:
    """Rows that a plain condition lets through are those that PostgreSQL lets through."""
    wanted = {"i2", "i4", "i8", "b", "n", "n2", "n3", "d", "ts", "tz", "t", "vc", "u"}
    columns = [
        replace(each, sql="numeric(38,18)") if each.sql == "numeric" else each
        for each in edge_values.COLUMNS
        if each.name in wanted
    ]
    with publisher_db.connect() as native, node.connect() as lake:
        lake.execute("CREATE SCHEMA conditions; SET search_path = conditions")
        for conn in (native, lake):
            conn.execute(edge_values.create_table("t", columns))
        native.cursor().executemany(
            edge_values.insert("t", columns), edge_values.rows(columns, 60, seed=2)
        )
        fill(lake, messages(native, "COPY t TO STDOUT"))
        for condition in CONDITIONS.split("\n")[1:-1]:
            copy_out = f"COPY (SELECT id FROM t WHERE {condition}) TO STDOUT"
            assert messages(lake, copy_out) == messages(native, copy_out), condition


def fill(conn: psycopg.Connection[Any], rows: Sequence[bytes]) -> None:
    """Copy rows into t."""
    with conn.cursor().copy("COPY t FROM STDIN") as copy:
        for row in rows:
            copy.write(row)


def test_every_type(node: Node, publisher_db: Database) -> None:
    """Values of each type, edges and random ones, are sent in PostgreSQL's own messages."""
    columns = [
        replace(each, sql="numeric(38,18)") if each.sql == "numeric" else each
        for each in [*edge_values.COLUMNS, *edge_values.OTHER_COLUMNS]
    ]
    names = ", ".join(each.name for each in columns if each.name not in OWN_OIDS)
    with publisher_db.connect() as native, node.connect() as lake:
        lake.execute("CREATE SCHEMA copied; SET search_path = copied")
        for conn in (native, lake):
            conn.execute(edge_values.TYPES)
            conn.execute(edge_values.create_table("t", columns))
        native.cursor().executemany(
            edge_values.insert("t", columns), edge_values.rows(columns, 40, seed=1)
        )
        fill(lake, messages(native, "COPY t TO STDOUT"))
        copies = [f"COPY t ({names}, id) TO STDOUT {options}" for options in FORMATS]
        query = f"SELECT {names} FROM t WHERE id > 3 ORDER BY id"
        copies += [f"COPY ({query}) TO STDOUT", f"COPY ({query}) TO STDOUT (FORMAT binary)"]
        for copy_out in ("COPY t TO STDOUT", *copies):
            wanted, found = messages(native, copy_out), messages(lake, copy_out)
            assert len(found) == len(wanted)
            for mine, theirs in zip(found, wanted, strict=True):
                assert mine == theirs, (copy_out, *differing(mine, theirs, columns))
        own = ", ".join(("id", *OWN_OIDS))
        binary = messages(lake, f"COPY t ({own}) TO STDOUT (FORMAT binary)")
        lake.execute("CREATE TABLE again (id int, p pair, am mood[], ap pair[])")
        with lake.cursor().copy(f"COPY again ({own}) FROM STDIN (FORMAT binary)") as copy:
            for message in binary:
                copy.write(message)
        text = messages(lake, f"COPY t ({own}) TO STDOUT")
        assert messages(lake, "COPY again TO STDOUT") == text


def test_a_snapshot(node: Node) -> None:
    """A copy has the versions that the session's snapshot shows, as a subscriber's session does."""
    with node.connect() as conn, node.connect() as other:
        conn.execute("CREATE TABLE copy_snapshot (id int PRIMARY KEY, v text)")
        conn.execute("INSERT INTO copy_snapshot VALUES (1, 'a'), (2, 'b')")
        plain, query = "COPY copy_snapshot TO STDOUT", "COPY (SELECT v, id FROM copy_snapshot"
        conn.execute("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
        assert messages(conn, plain) == [b"1\ta\n", b"2\tb\n"]
        other.execute("UPDATE copy_snapshot SET v = 'c' WHERE id = 1")
        other.execute("INSERT INTO copy_snapshot VALUES (3, 'd')")
        assert messages(conn, plain) == [b"1\ta\n", b"2\tb\n"]
        assert messages(conn, f"{query}) TO STDOUT") == [b"a\t1\n", b"b\t2\n"]
        assert messages(conn, f"{query} WHERE id = 1) TO STDOUT") == [b"a\t1\n"]
        conn.execute("COMMIT")
        assert sorted(messages(conn, plain)) == [b"1\tc\n", b"2\tb\n", b"3\td\n"]
        assert messages(conn, f"{query} WHERE id = 1) TO STDOUT") == [b"c\t1\n"]


def test_what_is_refused(node: Node) -> None:
    """Settings and targets under which the lake would send something else than PostgreSQL."""
    with node.connect() as conn:
        conn.execute("CREATE TABLE copy_refused (id int, d date, i interval, b bytea, f float8)")
        for setting, columns in (
            ("DateStyle = 'German'", "d"),
            ("IntervalStyle = 'iso_8601'", "i"),
            ("bytea_output = 'escape'", "b"),
            ("extra_float_digits = 0", "f"),
            ("client_encoding = 'LATIN1'", "id"),
        ):
            with conn.transaction(force_rollback=True):
                conn.execute(f"SET LOCAL {setting}")
                for source in (
                    f"copy_refused ({columns})",
                    f"(SELECT {columns} FROM copy_refused)",
                ):
                    with pytest.raises(psycopg.errors.FeatureNotSupported), conn.transaction():
                        messages(conn, f"COPY {source} TO STDOUT")
                if columns != "id":
                    assert messages(conn, "COPY copy_refused (id) TO STDOUT") == []
        for copy_out in (
            "COPY copy_refused TO '/tmp/file'",
            "COPY copy_refused TO PROGRAM 'cat'",
            "COPY (SELECT id FROM copy_refused) TO '/tmp/file'",
            "COPY copy_refused TO STDOUT (ENCODING 'LATIN1')",
        ):
            with pytest.raises(psycopg.errors.FeatureNotSupported):
                conn.execute(copy_out)


WIDE_BYTES = 128_000_000


@pytest.fixture
def wide(node: Node) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a node with copy_wide, whose texts have WIDE_BYTES."""
    with node.connect() as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS copy_wide (id int PRIMARY KEY, v text)")
        if not messages(conn, "COPY (SELECT id FROM copy_wide) TO STDOUT"):
            rows = "SELECT g, repeat(md5(g::text), 40) FROM generate_series(1, 100000) g"
            conn.execute(f"INSERT INTO copy_wide {rows}")
        yield conn


def test_memory(node: Node, wide: psycopg.Connection[Any]) -> None:
    """A table is sent in pieces: the node's memory does not grow by what is sent.

    The first copy fills the allocators' pools, by what some batches need.
    """
    assert growth(node, wide) < WIDE_BYTES
    assert growth(node, wide) < WIDE_BYTES / 4


def growth(node: Node, conn: psycopg.Connection[Any]) -> int:
    """By how many bytes the node's process grows at most while copy_wide is copied."""
    process = psutil.Process(node.pid)
    before = most = int(process.memory_info().rss)
    sent = 0
    with conn.cursor().copy("COPY copy_wide TO STDOUT (FORMAT binary)") as copy:
        for number, message in enumerate(copy):
            sent += len(message)
            if number % 5000 == 0:
                most = max(most, process.memory_info().rss)
    assert sent > WIDE_BYTES
    return most - before


def test_a_copy_that_is_stopped(wide: psycopg.Connection[Any]) -> None:
    """A cancel or a timeout ends it while the client reads nothing; the session goes on."""
    with (
        pytest.raises(psycopg.errors.QueryCanceled, match="due to user request"),
        wide.cursor().copy("COPY copy_wide TO STDOUT") as copy,
    ):
        assert copy.read()
        wide.cancel_safe()
        while copy.read():
            pass
    wide.execute("SET statement_timeout = '200ms'")
    began = time.monotonic()
    with (
        pytest.raises(psycopg.errors.QueryCanceled, match="due to statement timeout"),
        wide.cursor().copy("COPY copy_wide TO STDOUT") as copy,
    ):
        wait_until(lambda: time.monotonic() > began + 0.3, 10, "the time to pass")
        while copy.read():
            pass
    assert wide.info.transaction_status is TransactionStatus.IDLE
    wide.execute("RESET statement_timeout")
    assert messages(wide, "COPY (SELECT count(*) FROM copy_wide) TO STDOUT") == [b"100000\n"]


@pytest.mark.parametrize("how", ["cancel", "go away"])
def test_a_query_that_is_stopped(node: Node, wide: psycopg.Connection[Any], how: str) -> None:
    """What Spark does for a COPY ends with it, and leaves no file."""
    scratch = node.home / "spark"

    def written() -> list[Path]:
        return list(scratch.glob("local-*/copy-*"))

    product = "SELECT a.id FROM copy_wide a, copy_wide b WHERE a.v < b.v"
    wide.pgconn.send_query(f"COPY ({product}) TO STDOUT".encode())
    wide.pgconn.flush()
    wait_until(written, 60, "Spark to run")
    if how == "go away":
        wide.close()
    else:
        wide.cancel_safe()
        result = wide.pgconn.get_result()
        assert result is not None
        assert b"due to user request" in result.error_message
        assert wide.pgconn.get_result() is None
    wait_until(lambda: not written(), 30, "the files to be removed")


def messages(conn: psycopg.Connection[Any], sql: str) -> list[bytes]:
    """The content of each CopyData message."""
    with conn.cursor().copy(sql) as copy:
        return [bytes(message) for message in copy]


def differing(
    mine: bytes, theirs: bytes, columns: Sequence[edge_values.EdgeColumn]
) -> tuple[str, bytes, bytes]:
    """The first column in which two rows of text or binary format differ."""
    names = [each.name for each in columns if each.name not in OWN_OIDS]
    for name, one, other in zip(names, fields(mine), fields(theirs), strict=False):
        if one != other:
            return name, one, other
    return "", mine, theirs


def fields(row: bytes) -> list[bytes]:
    """The fields of a row in binary or in text format."""
    if row.endswith(b"\n"):
        return row[:-1].split(b"\t")
    found, at = [], (19 if row.startswith(b"PGCOPY") else 0) + 2
    while at < len(row):
        size = int.from_bytes(row[at : at + 4], "big", signed=True)
        found.append(row[at : at + 4 + max(size, 0)])
        at += 4 + max(size, 0)
    return found
