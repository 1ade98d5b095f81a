# SPDX-License-Identifier: Apache-2.0
"""REPEATABLE READ: what another session has committed since is never half seen.

PostgreSQL looks names up in the newest catalogs, and checks new constraints with the newest rows.
Rows of the lake, and what queries are made of, are those of the transaction's snapshot; where the
two differ, the transaction ends with 40001.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.support.node import Node
from tests.support.psql import PsqlError
from tests.support.waits import wait_until

BROKEN = {
    "index": ("INSERT INTO sn.a VALUES (3, 1)", "CREATE UNIQUE INDEX ON sn.a (v)"),
    "foreign key": (
        "DELETE FROM sn.b WHERE id = 1",
        "ALTER TABLE sn.a ADD FOREIGN KEY (v) REFERENCES sn.b",
    ),
    "referring row": (
        "INSERT INTO sn.a VALUES (4, 9)",
        "ALTER TABLE sn.a ADD FOREIGN KEY (v) REFERENCES sn.b",
    ),
}
"""What another session does, and the definition that its rows do not keep."""

REFUSED = {
    "domain": ("INSERT INTO sn.d VALUES (5, NULL)", "ALTER DOMAIN sn.small ADD CHECK (value < 3)"),
    "null": ("INSERT INTO sn.d VALUES (NULL, NULL)", "ALTER DOMAIN sn.small SET NOT NULL"),
    "enum": ("INSERT INTO sn.d VALUES (1, 'x')", "ALTER TYPE sn.e RENAME VALUE 'x' TO 'y'"),
    "partition": (
        "INSERT INTO sn.p VALUES (2)",
        "CREATE TABLE sn.p2 PARTITION OF sn.p FOR VALUES IN (2)",
    ),
}
"""The same for definitions that are refused once there are rows."""

NEWER = {
    "view": ("CREATE VIEW sn.vv AS SELECT * FROM sn.a", "SELECT * FROM sn.vv"),
    "wider view": (
        "CREATE OR REPLACE VIEW sn.v0 AS SELECT id, v FROM sn.a",
        "SELECT * FROM sn.v0",
    ),
    "column": ("ALTER TABLE sn.a ADD COLUMN z int DEFAULT 5", "SELECT * FROM sn.a"),
    "cursor": ("ALTER TABLE sn.a ADD COLUMN q int", "DECLARE c CURSOR FOR SELECT q FROM sn.a"),
}


@pytest.fixture
def tables(node: Node) -> Node:
    """Two tables and a view, anew."""
    node.psql(
        "SET client_min_messages = error; DROP SCHEMA IF EXISTS sn CASCADE; CREATE SCHEMA sn;"
        "CREATE TABLE sn.a (id int PRIMARY KEY, v int); CREATE TABLE sn.b (id int PRIMARY KEY);"
        "INSERT INTO sn.a VALUES (1, 1), (2, 2); INSERT INTO sn.b VALUES (1), (2);"
        "CREATE VIEW sn.v0 AS SELECT id FROM sn.a;"
        "CREATE DOMAIN sn.small AS int; CREATE TYPE sn.e AS ENUM ('x');"
        "CREATE TABLE sn.d (id sn.small, e sn.e);"
        "CREATE TABLE sn.p (id int) PARTITION BY LIST (id);"
        "CREATE TABLE sn.p0 PARTITION OF sn.p DEFAULT"
    )
    return node


@pytest.mark.parametrize("name", BROKEN)
def test_a_definition_is_not_made_over_rows_that_break_it(tables: Node, name: str) -> None:
    """40001, and the next transaction has PostgreSQL's error."""
    theirs, ours = BROKEN[name]
    with tables.connect() as conn:
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT 1")  # the snapshot, without a lock on a table
        tables.psql(theirs)
        with pytest.raises(psycopg.errors.SerializationFailure):
            conn.execute(ours.encode())
        conn.execute("ROLLBACK")
        with pytest.raises(psycopg.errors.IntegrityError):
            conn.execute(ours.encode())


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_that_was_empty_is_not_taken_for_empty(tables: Node, name: str) -> None:
    """40001 for rows since the snapshot; who is just writing the first ones is waited for."""
    theirs, ours = REFUSED[name]
    with tables.connect() as conn, tables.connect() as other:
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT 1")
        other.execute("BEGIN")
        other.execute(theirs.encode())
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(tables.psql, ours)
            wait_until(lambda: _is_locked_out(tables), 30, "the definition to wait")
            other.execute("COMMIT")
            with pytest.raises(PsqlError, match="not supported"):
                waiting.result()
        with pytest.raises(psycopg.errors.SerializationFailure):
            conn.execute(ours.encode())


def _is_locked_out(node: Node) -> bool:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    return node.psql(waiting) == "1"


@pytest.mark.parametrize("name", NEWER)
def test_what_is_newer_than_the_snapshot_cannot_be_queried(tables: Node, name: str) -> None:
    """40001, never an internal error; the connection stays, and the next transaction has rows."""
    theirs, ours = NEWER[name]
    with tables.connect() as conn:
        conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT 1")  # the snapshot, without a lock on a table
        tables.psql(theirs)
        with pytest.raises(psycopg.errors.SerializationFailure, match="not visible"):
            conn.execute(ours.encode())
        conn.execute("ROLLBACK")
        conn.execute("BEGIN")
        conn.execute(ours.encode())
        conn.execute("COMMIT")
