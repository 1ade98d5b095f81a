# SPDX-License-Identifier: Apache-2.0
"""UPDATE, DELETE, MERGE, ON CONFLICT, TRUNCATE of lake tables: as PostgreSQL, row by row."""

from __future__ import annotations

import random

import psycopg
import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.subscribing import SYNC_TIMEOUT, drop_subscription, wait_ready
from tests.support.waits import wait_until
from tests.support.writes import check_same

STATEMENTS = 60
"""Of a random script; a second of a node for ten."""

CHANGES = """
CREATE TABLE t (id int PRIMARY KEY, a text, n numeric(6,2) CHECK (n < 100), u text UNIQUE,
    g int GENERATED ALWAYS AS (id * 2) STORED, d date, ts timestamptz, arr int[], by bytea,
    iv interval, s serial);
INSERT INTO t VALUES
    (1, 'a "q" \\ {x,y}', 1.5, 'a', DEFAULT, '2024-01-02', '2024-01-02 03:04:05.678', '{1,NULL}',
        '\\x00ff', '-1 day 02:00'),
    (2, NULL, NULL, NULL, DEFAULT, NULL, NULL, NULL, NULL, NULL),
    (3, 'NULL', 3, '', DEFAULT, '0099-12-31', '1999-01-01', '{}', '\\x', '1 mon'),
    (4, '', 4, 'd', DEFAULT, NULL, NULL, NULL, NULL, '-1 mon +2 days -03:00');
SET IntervalStyle = 'sql_standard'; SET DateStyle = 'SQL, DMY';
UPDATE t SET n = n + 1, a = a || '!' WHERE id <> 2 RETURNING id, a, n, g, iv;
RESET IntervalStyle; RESET DateStyle;
SELECT * FROM t ORDER BY id;
UPDATE t SET a = 'nobody' WHERE id = 77 RETURNING *;
UPDATE t SET id = id + 10 WHERE id > 2 RETURNING id, g;
UPDATE t SET u = 'a' WHERE id = 2;
UPDATE t SET n = 1000;
UPDATE t SET nope = 1;
UPDATE t SET g = 1;
UPDATE t SET (a, n) = (SELECT max(x.a), count(*) FROM t x) WHERE id = 2 RETURNING a, n;
UPDATE t SET a = v.x FROM (VALUES (13, 'from'), (14, 'values')) v (id, x) WHERE t.id = v.id;
DELETE FROM t WHERE n IS NULL OR a = 'nobody' RETURNING id;
DELETE FROM t USING (VALUES (14)) v (x) WHERE t.id = v.x;
SELECT * FROM t ORDER BY id;
INSERT INTO t (id, a) VALUES (1, 'again'), (50, 'fifty')
    ON CONFLICT (id) DO UPDATE SET a = excluded.a || '/' || t.a, n = 9 RETURNING id, a, n;
INSERT INTO t (id, u) VALUES (60, 'a'), (61, 'z') ON CONFLICT DO NOTHING RETURNING id;
INSERT INTO t (id) VALUES (70), (70) ON CONFLICT (id) DO UPDATE SET a = 'twice';
INSERT INTO t (id, u) VALUES (71, 'a') ON CONFLICT (id) DO NOTHING;
CREATE TABLE source (id int, v text);
INSERT INTO source SELECT g, 'v' || g FROM generate_series(48, 55) g;
INSERT INTO source SELECT 48, 'v48';
MERGE INTO t USING (SELECT DISTINCT * FROM source) s ON t.id = s.id
    WHEN MATCHED AND s.id = 50 THEN UPDATE SET a = s.v
    WHEN NOT MATCHED AND s.id > 52 THEN INSERT (id, a) VALUES (s.id, s.v)
    WHEN NOT MATCHED BY SOURCE AND t.id = 61 THEN DELETE
    RETURNING merge_action(), t.id, t.a;
INSERT INTO t (id, a) SELECT id + 100, v FROM source WHERE id NOT IN (SELECT id FROM t) AND id < 50;
INSERT INTO t (id, a) SELECT DISTINCT id + 100, v FROM source WHERE id < 50 RETURNING id;
DELETE FROM source WHERE ctid = (SELECT max(ctid) FROM source WHERE id = 48);
WITH gone AS (DELETE FROM t WHERE id > 100 RETURNING id, a) INSERT INTO source SELECT * FROM gone;
WITH gone AS (DELETE FROM source WHERE id = 55 RETURNING v) SELECT * FROM gone;
SELECT id, a, n, u FROM t ORDER BY id; SELECT * FROM source ORDER BY id, v;
"""

BLOCKS = """
CREATE TABLE t (id int PRIMARY KEY, a text); CREATE TABLE k (x int, s serial);
INSERT INTO t SELECT g, 'a' || g FROM generate_series(1, 5) g; INSERT INTO k VALUES (1), (1), (2);
BEGIN;
DELETE FROM t WHERE id > 3;
UPDATE k SET x = x + 1;
SAVEPOINT one;
INSERT INTO t VALUES (4, 'new');
UPDATE t SET a = 'all';
DELETE FROM k;
SELECT * FROM t ORDER BY id;
SELECT count(*) FROM k;
ROLLBACK TO one;
SELECT * FROM t ORDER BY id;
UPDATE t SET a = 1 / (id - 3);
ROLLBACK TO one;
INSERT INTO t VALUES (4, 'kept') ON CONFLICT (id) DO UPDATE SET a = 'no';
COMMIT;
SELECT * FROM t ORDER BY id; SELECT * FROM k ORDER BY x, s;
UPDATE t SET a = 'b' WHERE id = 1 \\; DELETE FROM t WHERE id = 2 \\; SELECT 1/0;
UPDATE t SET a = 'b' WHERE id = 1 \\; DELETE FROM t WHERE id = 2 \\; SELECT * FROM t ORDER BY id;
UPDATE t SET a = $2 WHERE id = $1 RETURNING * \\bind 1 c \\g
UPDATE t SET a = $2 WHERE id = $1 RETURNING * \\bind x c \\g
DELETE FROM k WHERE x = 2 RETURNING s;
CREATE TABLE p (r int, v text, PRIMARY KEY (r)) PARTITION BY RANGE (r);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
INSERT INTO p VALUES (1, 'one'), (2, 'two'), (11, 'eleven');
UPDATE p SET r = r + 9 WHERE r = 1 RETURNING tableoid::regclass, r;
UPDATE p SET r = 11 WHERE r = 2;
UPDATE p SET r = 30 WHERE r = 2;
DELETE FROM p1; INSERT INTO p VALUES (10, 'x') ON CONFLICT (r) DO UPDATE SET v = excluded.v;
SELECT * FROM p ORDER BY r;
BEGIN; TRUNCATE t, k RESTART IDENTITY; SELECT count(*) FROM t;
INSERT INTO k (x) VALUES (7) RETURNING s; ROLLBACK;
SELECT count(*) FROM t; INSERT INTO k (x) VALUES (8) RETURNING s;
TRUNCATE t; TRUNCATE ONLY k RESTART IDENTITY; TRUNCATE p; TRUNCATE nope;
INSERT INTO k (x) VALUES (9) RETURNING *; INSERT INTO t VALUES (1, 'after');
SELECT count(*) FROM t; SELECT count(*) FROM p; SELECT * FROM k;
"""

SETTINGS = """
CREATE TABLE t (id int, a text, n int, named regclass, na numeric(5,2)[]);
INSERT INTO t VALUES (1, NULL, NULL, 't', '{1.5,NULL}'), (2, 'NULL', 2, 'pg_class', '{}');
SET array_nulls = off;
UPDATE t SET id = id + 10 RETURNING id, a IS NULL AS unknown, n, na;
UPDATE t SET id = id + 10 RETURNING id, named;
RESET array_nulls;
SELECT id, a IS NULL AS unknown, n, na, na IS NULL AS none FROM t ORDER BY id;
"""


@pytest.mark.parametrize(
    "script", [CHANGES, BLOCKS, SETTINGS], ids=["changes", "blocks", "settings"]
)
def test_a_node_prints_what_postgresql_prints(
    node: Node, publisher_db: Database, script: str, request: pytest.FixtureRequest
) -> None:
    """New values, RETURNING, tags, errors, what is left; in blocks, partitions, with parameters.

    Nothing depends on how the session has its values written and read.
    """
    check_same(node, publisher_db, f"chg_{request.node.callspec.id}", script)


def test_changes_of_a_subscribed_table(node: Node, publisher_db: Database) -> None:
    """What SQL changed has its time: of SQL's row and the publisher's, the later one wins."""
    publisher_db.psql(
        "CREATE TABLE chg_sub (id int PRIMARY KEY, a text);"
        "INSERT INTO chg_sub SELECT g, 'pg' FROM generate_series(1, 9) g;"
        "CREATE PUBLICATION chg_sub FOR TABLE chg_sub"
    )
    node.psql(
        f"CREATE SUBSCRIPTION chg_sub CONNECTION '{publisher_db.conninfo}' PUBLICATION chg_sub"
        " WITH (on_conflict = last_update_wins)"
    )
    try:
        wait_ready(node, "chg_sub")
        assert node.psql("DELETE FROM chg_sub WHERE id > 6 RETURNING id") == "7\n8\n9"
        node.psql("UPDATE chg_sub SET a = 'sql'")  # each row, so the whole file goes
        publisher_db.psql(
            "INSERT INTO chg_sub VALUES (10, 'pg'); DELETE FROM chg_sub WHERE id IN (6, 7, 8, 9);"
            "UPDATE chg_sub SET a = 'both' WHERE id = 1"
        )
        wanted = "1|both\n2|sql\n3|sql\n4|sql\n5|sql\n10|pg"
        query = "SELECT * FROM chg_sub ORDER BY id"
        wait_until(lambda: node.psql(query) == wanted, SYNC_TIMEOUT, wanted)
    finally:
        drop_subscription(node, "chg_sub")


def test_what_the_lake_does_not_check_is_refused(node: Node) -> None:
    """A constraint that is not valid."""
    node.psql(
        "CREATE TABLE chg_c (id int); INSERT INTO chg_c VALUES (1);"
        "ALTER TABLE chg_c ADD CHECK (id > 1) NOT VALID"
    )
    with node.connect() as conn:
        with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
            conn.execute("UPDATE chg_c SET id = 5")
        assert "not valid" in (caught.value.diag.message_detail or "")
    assert node.psql("SELECT id FROM chg_c") == "1"


def test_a_check_that_is_not_of_the_row_alone_is_refused(node: Node) -> None:
    """Rows are put in by the schema's owner: no CHECK may see that, nor rows that fail it now."""
    node.psql(
        "CREATE DOMAIN chg_d AS text CHECK (CASE WHEN current_user = 'penstock' THEN"
        " pg_cancel_backend(0) IS NOT NULL ELSE true END) CHECK (VALUE <> 'never');"
        "CREATE TYPE chg_row AS (d chg_d); CREATE TABLE chg_dom (id int, r chg_row);"
        "CREATE TABLE chg_now (id int, t timestamptz CHECK (t <= now()));"
        "CREATE TABLE chg_plain (id int CHECK (abs(id) < 100), t text CHECK (t ~ '^a'));"
        "INSERT INTO chg_dom VALUES (1, NULL); INSERT INTO chg_now VALUES (1, now());"
        "INSERT INTO chg_plain VALUES (1, 'a')"
    )
    with node.connect() as conn:
        for sql, name in (
            ("UPDATE chg_dom SET id = 2", "chg_d_check"),
            ("INSERT INTO chg_plain SELECT id, 'a' FROM chg_dom", "chg_d_check"),
            ("DELETE FROM chg_now", "chg_now_t_check"),
        ):
            with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
                conn.execute(sql.encode())
            assert f'"{name}" with a function that is not' in (
                caught.value.diag.message_detail or ""
            )
        assert conn.execute("UPDATE chg_plain SET id = 2").statusmessage == "UPDATE 1"
        conn.execute("TRUNCATE chg_now")


def test_effects_that_a_rollback_takes_back_are_refused(node: Node) -> None:
    """A notification or a lock of the statement would be lost with its savepoint."""
    node.psql("CREATE TABLE chg_lost (id int)")
    with node.connect() as conn:
        for call in ("pg_notify('chg', 'lost')", "pg_advisory_xact_lock(5)"):
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="in a statement that"):
                conn.execute(f"INSERT INTO chg_lost SELECT 1 FROM {call} x".encode())


def test_a_block_that_begins_in_a_pipeline_is_the_clients(node: Node) -> None:
    """Writes behind BEGIN, before any Sync, are not committed at the Sync."""
    node.psql("CREATE TABLE chg_pipe (id int)")
    with node.connect() as conn:
        with conn.pipeline():
            conn.execute("INSERT INTO chg_pipe VALUES (1)")
            conn.execute("BEGIN")
            conn.execute("SAVEPOINT one")
            conn.execute("ROLLBACK TO one")
            conn.execute("INSERT INTO chg_pipe VALUES (2)")
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        conn.execute("ROLLBACK")
        assert conn.execute("SELECT count(*) FROM chg_pipe").fetchall() == [(0,)]


def _random_script(seed: int, more: int = 0) -> str:
    """Statements that change two tables, some of them failing, in blocks with savepoints.

    The tables have ``more`` rows that few statements are about.
    """
    chance = random.Random(seed)
    lines = [
        "CREATE TABLE t (id int PRIMARY KEY, a int, u int UNIQUE); CREATE TABLE k (x int);",
        "INSERT INTO t SELECT g, g, g + 100 FROM generate_series(1, 9) g;",
        f"INSERT INTO t SELECT -g, -g, 5000 + 3 * g FROM generate_series(1, {more}) g;",
        f"INSERT INTO k SELECT -g % 500 FROM generate_series(1, {more}) g;",
    ]

    def number() -> int:
        return chance.randint(1, 12)

    kinds = (
        lambda: f"INSERT INTO t VALUES ({number()}, 0, {chance.choice(('NULL', number() + 100))})",
        lambda: f"INSERT INTO t VALUES ({number()}, 1) ON CONFLICT (id) DO UPDATE SET a = t.a + 1",
        lambda: (
            f"INSERT INTO t SELECT g, 2, g + 101 FROM generate_series(1, {number()}) g"
            " ON CONFLICT DO NOTHING"
        ),
        lambda: f"INSERT INTO k SELECT a FROM t WHERE id < {number()}",
        lambda: f"UPDATE t SET a = a + 1, u = -u WHERE id > {number()}",
        lambda: f"UPDATE t SET id = {number()} WHERE id = {number()}",
        lambda: f"UPDATE k SET x = x + 1 WHERE x = {number()}",
        lambda: f"DELETE FROM t WHERE id BETWEEN {number()} AND {number()}",
        lambda: f"DELETE FROM k USING t WHERE x = a AND id < {number()}",
        lambda: (
            "MERGE INTO t USING (SELECT DISTINCT x FROM k) s ON id = x WHEN MATCHED THEN"
            f" DELETE WHEN NOT MATCHED AND x > {number()} THEN INSERT VALUES (x, 2)"
        ),
        lambda: chance.choice(("BEGIN", "SAVEPOINT s", "ROLLBACK TO s", "COMMIT", "ROLLBACK")),
    )
    lines += [f"{chance.choice(kinds)()};" for _ in range(STATEMENTS)]
    return "\n".join(
        [
            *lines,
            "COMMIT;",
            "SELECT * FROM t WHERE id > 0 ORDER BY id; TABLE k ORDER BY x DESC LIMIT 30;",
            "SELECT count(*), sum(id), sum(a), sum(u) FROM t; SELECT count(*), sum(x) FROM k;",
        ]
    )


@pytest.mark.parametrize(("seed", "more"), [(7, 0), (3, 1500), (8, 1500)])
def test_random_changes_end_as_in_postgresql(
    node: Node, publisher_db: Database, seed: int, more: int
) -> None:
    """Whatever order statements, errors and savepoints come in, tags and rows are PostgreSQL's.

    In large tables, too, of which only some rows are looked at.
    """
    check_same(node, publisher_db, f"chg_random_{seed}", _random_script(seed, more))
