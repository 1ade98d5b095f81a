# SPDX-License-Identifier: Apache-2.0
"""COPY TO STDOUT of lake tables: a node prints what PostgreSQL prints, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tests.support import edge_values
from tests.support.fix_servers import Database
from tests.support.node import Node
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
COPY (SELECT id, 'x' FROM t LIMIT 0) TO STDOUT;
COPY (WITH x AS (SELECT max(id) AS m FROM t) SELECT m FROM x) TO STDOUT;
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
ALTER TABLE t ADD COLUMN b int;
ALTER TABLE t RENAME COLUMN a TO c;
COPY t TO STDOUT (HEADER);
ALTER TABLE t ADD COLUMN d text DEFAULT 'd';
ALTER TABLE t ALTER COLUMN id TYPE bigint;
ALTER TABLE t DROP COLUMN b;
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
        text = messages(native, "COPY t TO STDOUT")
        with lake.cursor().copy("COPY t FROM STDIN") as copy:
            for message in text:
                copy.write(message)
        sources = [f"t ({names}, id)", f"(SELECT {names} FROM t WHERE id > 3 ORDER BY id)"]
        copies = [f"COPY {source} TO STDOUT {options}" for source in sources for options in FORMATS]
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
