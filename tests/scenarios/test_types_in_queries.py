# SPDX-License-Identifier: Apache-2.0
"""Types in queries of lake tables, as drivers use them: parameters and binary results, enums.

What a PostgreSQL answers, the node must answer or refuse.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node

SETUP = """
CREATE TYPE en_mood AS ENUM ('sad', 'ok', 'happy', 'OK', 'très bien');
CREATE TABLE en_days (id int PRIMARY KEY, m en_mood, n int);
INSERT INTO en_days VALUES (1, 'sad', 1), (2, 'happy', 2), (3, 'ok', 3), (4, NULL, 4), (5, 'OK', 5),
    (6, 'sad', 6), (7, NULL, 7), (8, 'très bien', 8)"""

ANSWERED: list[tuple[str, tuple[str, ...]]] = [
    ("SELECT id FROM en_days WHERE m = 'sad' OR m IN ('OK', 'très bien') OR m <> 'ok'", ()),
    ("SELECT 'happy'::en_mood, coalesce(m, 'ok'), m::text FROM en_days", ()),
    ("SELECT m, count(*), CASE m WHEN 'sad' THEN 1 END FROM en_days GROUP BY m", ()),
    ("SELECT DISTINCT m, mod(n, 2) FROM en_days", ()),
    ("SELECT m, n > 4, sum(n) FROM en_days GROUP BY ROLLUP (m, n > 4)", ()),
    ("SELECT id FROM en_days WHERE m = %s OR m = %s::en_mood", ("très bien", "OK")),
]
REFUSED = [
    "SELECT m FROM en_days ORDER BY m",
    "SELECT id FROM en_days WHERE m > 'sad'",
    "SELECT DISTINCT ON (m) m, id FROM en_days ORDER BY m, id",
    "SELECT max(m) FROM en_days",
]


def _rows(conn: psycopg.Connection[Any], binary: bool) -> list[list[tuple[Any, ...]]]:
    found = [conn.execute(sql, each, binary=binary).fetchall() for sql, each in ANSWERED]
    return [sorted(rows, key=repr) for rows in found]


def test_labels_are_compared_and_grouped(node: Node, publisher_db: Database) -> None:
    """Equality of enums is that of their labels, as constants and as parameters, grouped, too.

    Their order is not that of the text, so what needs it is refused.
    """
    with node.connect() as lake, publisher_db.connect() as native:
        for conn in (lake, native):
            conn.execute(SETUP)
        for binary in (False, True):
            assert _rows(lake, binary) == _rows(native, binary)
        for conn in (lake, native):
            conn.execute("CREATE TEMP TABLE kept AS SELECT m FROM en_days WHERE id = 1")
            kept = conn.execute("SELECT m, pg_typeof(m)::text FROM kept").fetchall()
            assert kept == [("sad", "en_mood")]
        for sql in REFUSED:
            with pytest.raises(psycopg.errors.FeatureNotSupported):
                lake.execute(sql)


BINARY = """
CREATE TYPE bf_hue AS ENUM ('red', 'deep blue'); CREATE TYPE bf_pair AS (x int, y text);
CREATE DOMAIN bf_small AS int CHECK (VALUE < 10);
CREATE TABLE bf (id int PRIMARY KEY, ti time, iv interval, ip inet, r int4range, bi bit(3), p point,
    hs bf_hue[], c bf_pair, d bf_small, h bf_hue);
INSERT INTO bf VALUES (1, '01:02:03.5', '1 day -5 s', '10.0.0.1/8', '[1,5)', '101', '(1,2)',
    '{red,"deep blue",NULL}', '(1,"a,b")', 5, 'red');
INSERT INTO bf VALUES (2);
INSERT INTO bf (id, iv, hs, c) VALUES (3, '0', '{}', '(,)')"""


def test_results_in_binary(node: Node, publisher_db: Database) -> None:
    """Drivers like asyncpg ask for nothing else; types have the forms of their send functions.

    Those of enums begin an array with the type's OID, which two servers do not share.
    """
    found = []
    for end in (node, publisher_db):
        with end.connect() as conn:
            conn.execute(BINARY)
            (oid,) = conn.execute("SELECT 'bf_hue'::regtype::oid").fetchone() or (0,)
            result = conn.execute("SELECT * FROM bf ORDER BY id", binary=True).pgresult
            assert result is not None
            values = [
                [result.get_value(row, column) for column in range(result.nfields)]
                for row in range(result.ntuples)
            ]
            code = oid.to_bytes(4, "big")
            found.append([[each and each.replace(code, b"hue") for each in row] for row in values])
    assert found[0] == found[1]


def test_parameters_in_another_encoding(node: Node) -> None:
    """Text that is not UTF-8 is read as the session's encoding says; it once ended the session."""
    node.psql("CREATE TABLE en_text (a text); INSERT INTO en_text VALUES ('é')")
    with node.connect(client_encoding="latin1") as conn:
        for sql in ("SELECT 1 FROM en_text WHERE a = %s", "SELECT 1 FROM en_text WHERE a = %b"):
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="client_encoding"):
                conn.execute(sql, ["é"])
        assert conn.execute("SELECT 1").fetchall() == [(1,)]


ARRAYS = """
CREATE TABLE na_rows (id int PRIMARY KEY, plain numeric[], scaled numeric(6,2)[]);
INSERT INTO na_rows VALUES (1, '{1.5,NULL,-20,0.000001}', '{1.5,2}'), (2, '{}', NULL),
    (3, NULL, '{}')"""


def test_arrays_of_numerics(node: Node, publisher_db: Database) -> None:
    """Without a scale each element has its own, as a numeric has; in text and in binary."""
    queries = (
        "SELECT id, plain, scaled FROM na_rows ORDER BY id",
        "SELECT plain FROM (SELECT plain FROM na_rows WHERE id = 1 UNION ALL"
        " SELECT scaled FROM na_rows WHERE id > 1) u",
        "SELECT plain FROM na_rows WHERE id > 5",
    )
    with node.connect() as lake, publisher_db.connect() as native:
        for conn in (lake, native):
            conn.execute(ARRAYS)
        for binary in (False, True):
            for sql in queries:
                found, expected = (
                    sorted(map(repr, conn.execute(sql, binary=binary).fetchall()))
                    for conn in (lake, native)
                )
                assert found == expected, sql
        copied = []
        for conn in (lake, native):
            copy = "COPY (SELECT plain, scaled FROM na_rows ORDER BY id) TO STDOUT"
            with conn.cursor() as cursor, cursor.copy(copy) as rows:
                copied.append([bytes(each) for each in rows])
        assert copied[0] == copied[1]
        for conn in (lake, native):
            conn.execute(
                "BEGIN; DECLARE na_cursor CURSOR FOR SELECT plain FROM na_rows ORDER BY id"
            )
        fetched = [conn.execute("FETCH ALL na_cursor").fetchall() for conn in (lake, native)]
        assert repr(fetched[0]) == repr(fetched[1])


def test_texts_in_a_query_have_the_sessions_style(node: Node) -> None:
    """Where that is not the default one, text that is made of a value in a query is refused."""
    with node.connect() as conn:
        conn.execute("CREATE TABLE ts_rows (id int, d date, i interval, b bytea)")
        conn.execute("INSERT INTO ts_rows VALUES (1, '2024-02-01', '1 day', '\\x80')")
        for setting, text in (
            ("DateStyle = 'German'", "d::text"),
            ("DateStyle = 'SQL, DMY'", "concat(d)"),
            ("DateStyle = 'German'", "d || 'x'"),
            ("IntervalStyle = 'iso_8601'", "i::text"),
            ("bytea_output = 'escape'", "length(concat(b))"),
        ):
            query = f"SELECT {text} FROM ts_rows".encode()
            assert conn.execute(query).fetchone() is not None
            with conn.transaction(force_rollback=True):
                conn.execute(f"SET LOCAL {setting}")
                assert conn.execute("SELECT id FROM ts_rows WHERE d > '2024-01-01'").fetchall()
                with pytest.raises(psycopg.errors.FeatureNotSupported, match="text form"):
                    conn.execute(query)
