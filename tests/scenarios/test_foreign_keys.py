# SPDX-License-Identifier: Apache-2.0
"""Foreign keys of lake tables hold for what SQL writes, as PostgreSQL keeps them.

The same scripts are run by psql on a plain PostgreSQL and on a node: rows, tags, and errors with
all their fields must be the same.
"""

from __future__ import annotations

import threading

import psycopg
import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.psql import PsqlError
from tests.support.subscribing import drop_subscription, wait_caught_up, wait_ready
from tests.support.waits import wait_until
from tests.support.writes import check_same

BOTH_SIDES = r"""
CREATE TABLE p (id int PRIMARY KEY, v text);
CREATE TABLE c (id int PRIMARY KEY, p bigint REFERENCES p, note text);
INSERT INTO c VALUES (1, 1);
INSERT INTO p VALUES (1, 'a'), (2, 'b'), (3, 'c');
INSERT INTO c VALUES (1, 1), (2, NULL), (3, 9), (4, 8);
INSERT INTO c VALUES (1, 1), (2, NULL), (3, 2);
INSERT INTO c VALUES (1, 9);
INSERT INTO c SELECT 10, 3000000000;
COPY c FROM STDIN;
4	3	x
5	7	y
\.
COPY c FROM STDIN;
4	3	x
\.
UPDATE c SET p = 9 WHERE id = 1;
UPDATE c SET p = 2 WHERE id = 1 RETURNING *;
UPDATE c SET note = 'n' WHERE p = 2;
DELETE FROM p WHERE id = 2;
DELETE FROM p WHERE id = 1 RETURNING *;
UPDATE p SET id = 4 WHERE id = 3;
UPDATE p SET v = 'z';
UPDATE p SET id = CASE id WHEN 2 THEN 12 ELSE id END;
WITH gone AS (DELETE FROM c WHERE p = 2 RETURNING p) DELETE FROM p WHERE id IN (SELECT p FROM gone);
DELETE FROM p WHERE id = 2;
INSERT INTO c VALUES (1, 5) ON CONFLICT (id) DO UPDATE SET p = excluded.p;
INSERT INTO c VALUES (4, 5) ON CONFLICT (id) DO UPDATE SET p = excluded.p;
INSERT INTO p VALUES (5, 'e');
INSERT INTO c VALUES (4, 5) ON CONFLICT (id) DO UPDATE SET p = excluded.p;
MERGE INTO p USING (VALUES (5)) x (id) ON p.id = x.id WHEN MATCHED THEN DELETE;
BEGIN;
INSERT INTO p VALUES (20, 'new');
INSERT INTO c VALUES (20, 20);
SAVEPOINT s;
DELETE FROM p WHERE id = 20;
ROLLBACK TO s;
DELETE FROM c WHERE id = 20;
DELETE FROM p WHERE id = 20;
INSERT INTO c VALUES (20, 20);
ROLLBACK;
TRUNCATE p;
TRUNCATE p, c;
INSERT INTO p VALUES (1);
INSERT INTO c VALUES (1, 1);
TRUNCATE p CASCADE;
INSERT INTO c VALUES (1, 1);
TABLE p;
TABLE c;
ALTER TABLE c DROP CONSTRAINT c_p_fkey;
INSERT INTO c VALUES (1, 1);
TABLE c;
"""

KEYS = r"""
CREATE TABLE p (a int, b text, n numeric(9,2) UNIQUE, PRIMARY KEY (a, b));
CREATE TABLE simple (id int PRIMARY KEY, a int, b varchar, FOREIGN KEY (a, b) REFERENCES p);
CREATE TABLE whole (id int, a int, b text, CONSTRAINT "the whole" FOREIGN KEY (b, a)
    REFERENCES p (b, a) MATCH FULL ON DELETE RESTRICT ON UPDATE RESTRICT);
CREATE TABLE num (id int, n numeric(9,2) REFERENCES p (n) ON UPDATE RESTRICT);
CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree, name text);
INSERT INTO p VALUES (1, 'x', 1.5), (1, 'y', 2), (2, 'x', NULL);
INSERT INTO simple VALUES (1, 1, NULL), (2, NULL, 'q'), (3, 1, 'x'), (4, 7, NULL);
INSERT INTO simple VALUES (5, 2, 'y');
INSERT INTO whole VALUES (1, NULL, NULL), (2, 1, 'x'), (3, 1, NULL);
INSERT INTO whole VALUES (1, NULL, NULL), (2, 1, 'y');
INSERT INTO whole VALUES (3, 3, 'x');
INSERT INTO num VALUES (1, 1.5), (2, NULL);
INSERT INTO num VALUES (1, 1.51);
DELETE FROM p WHERE b = 'x';
DELETE FROM p WHERE b = 'y';
UPDATE p SET b = 'z' WHERE a = 2;
UPDATE p SET n = n + 1;
UPDATE p SET a = a WHERE b = 'y';
UPDATE p SET b = b || 'y' WHERE b = 'y';
INSERT INTO tree VALUES (1, NULL, 'root'), (2, 1, 'a'), (3, 2, 'b');
INSERT INTO tree VALUES (5, 6, 'x'), (6, 5, 'y'), (7, 7, 'z');
INSERT INTO tree VALUES (8, 9, 'x');
DELETE FROM tree WHERE id = 7;
DELETE FROM tree WHERE id = 2;
DELETE FROM tree WHERE id IN (2, 3);
UPDATE tree SET id = id + 10, up = up + 10 WHERE id > 4;
UPDATE tree SET id = 4 WHERE id = 1;
DELETE FROM tree WHERE id IN (15, 1);
TABLE tree;
CREATE TABLE lone (id int PRIMARY KEY);
CREATE TABLE on_lone (id int REFERENCES lone);
INSERT INTO lone VALUES (1); INSERT INTO on_lone VALUES (1);
CREATE ROLE fk_blind;
GRANT USAGE ON SCHEMA fk_keys TO fk_blind;
GRANT INSERT ON on_lone TO fk_blind; GRANT DELETE ON lone TO fk_blind;
SET ROLE fk_blind;
INSERT INTO on_lone VALUES (77);
DELETE FROM lone;
RESET ROLE;
REVOKE ALL ON lone, on_lone FROM fk_blind; REVOKE ALL ON SCHEMA fk_keys FROM fk_blind;
DROP ROLE fk_blind;
ALTER TABLE tree DISABLE TRIGGER ALL;
INSERT INTO tree VALUES (99, 98, 'orphan');
ALTER TABLE tree ENABLE TRIGGER ALL;
UPDATE tree SET name = 'kept' WHERE id = 99;
UPDATE tree SET up = 97 WHERE id = 99;
ALTER TABLE num DISABLE TRIGGER ALL;
INSERT INTO num VALUES (5, 5);
ALTER TABLE num ENABLE TRIGGER ALL;
INSERT INTO num VALUES (5, 6);
SELECT * FROM tree ORDER BY id;
SELECT * FROM p ORDER BY a, b;
CREATE TABLE bare (n numeric, t text, PRIMARY KEY (n, t));
CREATE TABLE on_bare (n numeric, t text, m int NOT NULL DEFAULT 1,
    FOREIGN KEY (n, t) REFERENCES bare ON UPDATE CASCADE);
INSERT INTO bare VALUES (1.5, '1.0'), (-20, '2'), (0, '0.0'), (0.000001, 'q');
INSERT INTO bare SELECT n, t FROM bare WHERE t = '1.0';
INSERT INTO bare VALUES (-20, '2');
INSERT INTO on_bare VALUES (0, '0.0'), (-20, '2'), (7.25, 'x');
INSERT INTO on_bare VALUES (0, '0.0'), (-20, '2');
UPDATE bare SET n = -20, t = '2' WHERE t = 'q';
UPDATE on_bare SET n = n + 0.5;
UPDATE on_bare SET m = NULL WHERE n < 0;
DELETE FROM bare WHERE n < 0;
DELETE FROM bare WHERE n = 0;
UPDATE bare SET n = n + 0.5;
TABLE on_bare ORDER BY n;
"""

PARTS = r"""
CREATE TABLE p (id int, v int, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
CREATE TABLE c (k int, p int REFERENCES p) PARTITION BY LIST (k);
CREATE TABLE c1 PARTITION OF c FOR VALUES IN (1);
CREATE TABLE c2 PARTITION OF c DEFAULT;
INSERT INTO p VALUES (1, 1), (11, 1), (12, 1);
INSERT INTO c VALUES (1, 1), (2, 11);
INSERT INTO c VALUES (1, 2);
INSERT INTO c2 VALUES (3, 12), (4, 13);
DELETE FROM p WHERE id = 11;
DELETE FROM p1;
DELETE FROM p WHERE id = 12;
UPDATE c SET k = 1 WHERE p = 11;
UPDATE c SET p = 3 WHERE k = 1 AND p = 11;
TRUNCATE p1;
TRUNCATE p1 CASCADE;
SELECT * FROM c;
SELECT * FROM p ORDER BY id;
"""

ACTIONS = r"""
CREATE TABLE p (id int PRIMARY KEY, u int UNIQUE, v text);
CREATE TABLE cas (id int PRIMARY KEY, p int REFERENCES p ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE nul (id int, p int CONSTRAINT n REFERENCES p ON DELETE SET NULL ON UPDATE SET NULL);
CREATE TABLE def (id int, p int DEFAULT 7 REFERENCES p ON DELETE SET DEFAULT ON UPDATE SET DEFAULT);
CREATE TABLE part (id int, u int NOT NULL REFERENCES p (u) ON DELETE SET NULL ON UPDATE RESTRICT);
CREATE TABLE grand (id int, c int REFERENCES cas ON DELETE CASCADE, note text);
INSERT INTO p SELECT i, i * 10, 'v' || i FROM generate_series(1, 8) i;
INSERT INTO cas SELECT i * 100, i FROM generate_series(1, 8) i;
INSERT INTO nul SELECT i, i FROM generate_series(1, 8) i;
INSERT INTO def SELECT i, i FROM generate_series(1, 8) i;
INSERT INTO grand SELECT i, i / 2 * 100, 'g' FROM generate_series(2, 9) i;
DELETE FROM p WHERE id = 1 RETURNING *;
UPDATE p SET id = id + 20 WHERE id IN (2, 3);
DELETE FROM p WHERE id = 7;
DELETE FROM def WHERE p = 7;
DELETE FROM p WHERE id = 7;
INSERT INTO part VALUES (1, 40);
DELETE FROM p WHERE id = 4;
UPDATE p SET u = 41 WHERE id = 4;
UPDATE p SET v = 'w' WHERE id = 4;
WITH c AS (INSERT INTO cas VALUES (999, 5) RETURNING p) DELETE FROM p USING c WHERE p.id = c.p;
MERGE INTO p USING (VALUES (8, 88), (6, NULL)) x (id, new) ON p.id = x.id
    WHEN MATCHED AND new IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET id = new;
SELECT * FROM p ORDER BY id;
SELECT * FROM cas ORDER BY id;
SELECT * FROM nul ORDER BY id;
SELECT * FROM def ORDER BY id;
SELECT * FROM grand ORDER BY id;
CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree ON DELETE CASCADE ON UPDATE CASCADE);
INSERT INTO tree SELECT i, nullif(i / 2, 0) FROM generate_series(1, 40) i;
BEGIN;
DELETE FROM tree WHERE id = 4;
SELECT count(*) FROM tree;
ROLLBACK;
UPDATE tree SET id = 500 WHERE id = 5;
DELETE FROM tree WHERE id = 2;
SELECT * FROM tree ORDER BY id;
CREATE TABLE a (x int, y int, z text, PRIMARY KEY (x, y));
CREATE TABLE b (x int, y int DEFAULT 3, n int, PRIMARY KEY (x, n),
    FOREIGN KEY (x, y) REFERENCES a ON UPDATE CASCADE ON DELETE SET NULL (y));
CREATE TABLE d (x int, n int, FOREIGN KEY (x, n) REFERENCES b ON UPDATE CASCADE ON DELETE CASCADE);
INSERT INTO a VALUES (1, 1, 'a'), (2, 2, 'b');
INSERT INTO b VALUES (1, 1, 5), (2, 2, 6), (2, 2, 7);
INSERT INTO d VALUES (1, 5), (2, 6), (2, 7), (2, 7);
UPDATE a SET x = 30, y = 40 WHERE x = 2;
DELETE FROM a WHERE x = 1;
TABLE a; SELECT * FROM b ORDER BY n; SELECT * FROM d ORDER BY n;
CREATE TABLE pt (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE pt1 PARTITION OF pt FOR VALUES FROM (0) TO (10);
CREATE TABLE pt2 PARTITION OF pt FOR VALUES FROM (10) TO (20);
CREATE TABLE ct (k int, p int REFERENCES pt ON DELETE CASCADE ON UPDATE CASCADE)
    PARTITION BY RANGE (p);
CREATE TABLE ct1 PARTITION OF ct FOR VALUES FROM (0) TO (5);
CREATE TABLE ct2 PARTITION OF ct DEFAULT;
INSERT INTO pt VALUES (1), (2), (11);
INSERT INTO ct VALUES (1, 1), (2, 2), (3, 11);
DELETE FROM pt WHERE id = 2;
UPDATE pt SET id = 7 WHERE id = 1;
SELECT * FROM ct1; SELECT * FROM ct2 ORDER BY k;
"""

ADDED = r"""
CREATE TABLE p (id int PRIMARY KEY, t timestamptz UNIQUE);
CREATE TABLE c (id int, p int, q int, at timestamptz);
INSERT INTO p VALUES (1, '2024-01-01'), (2, '2024-01-02');
INSERT INTO c VALUES (1, 1, NULL, '2024-01-01'), (2, 9, 2, '2024-01-03'), (3, NULL, 1, NULL);
ALTER TABLE c ADD FOREIGN KEY (p) REFERENCES p;
ALTER TABLE c ADD CONSTRAINT c_at FOREIGN KEY (at) REFERENCES p (t);
ALTER TABLE c ADD CONSTRAINT full_key FOREIGN KEY (q) REFERENCES p MATCH FULL;
ALTER TABLE c ADD CONSTRAINT later FOREIGN KEY (p) REFERENCES p NOT VALID;
INSERT INTO c VALUES (4, 9, NULL);
UPDATE c SET q = 1 WHERE id = 2;
UPDATE c SET p = 8 WHERE id = 2;
ALTER TABLE c VALIDATE CONSTRAINT later;
UPDATE c SET p = 2 WHERE id = 2;
ALTER TABLE c VALIDATE CONSTRAINT later;
DELETE FROM p WHERE id = 1;
CREATE TABLE two (a int, b int, UNIQUE (a, b));
ALTER TABLE c ADD CONSTRAINT mixed FOREIGN KEY (p, q) REFERENCES two (a, b) MATCH FULL;
BEGIN;
INSERT INTO p VALUES (3);
CREATE TABLE late (p int);
INSERT INTO late VALUES (3), (3), (NULL);
ALTER TABLE late ADD FOREIGN KEY (p) REFERENCES p;
DELETE FROM p WHERE id = 3;
ROLLBACK;
CREATE TABLE self (id int PRIMARY KEY, up int);
INSERT INTO self VALUES (1, 2), (2, NULL);
ALTER TABLE self ADD FOREIGN KEY (up) REFERENCES self;
DELETE FROM self WHERE id = 2;
ALTER TABLE self DROP CONSTRAINT self_up_fkey;
DELETE FROM self WHERE id = 2;
ALTER TABLE self ADD FOREIGN KEY (up) REFERENCES self;
"""

DEFERRED = r"""
CREATE TABLE p (id int PRIMARY KEY, v text);
CREATE TABLE c (id int PRIMARY KEY, p int REFERENCES p DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE i (id int, p int REFERENCES p ON DELETE CASCADE DEFERRABLE);
\set SHOW_CONTEXT never
INSERT INTO c VALUES (1, 1);
BEGIN; INSERT INTO c VALUES (1, 1); INSERT INTO p VALUES (1, 'a'); COMMIT;
BEGIN; INSERT INTO c VALUES (2, 2), (3, 3); INSERT INTO p VALUES (3, 'c'); COMMIT;
BEGIN; INSERT INTO c VALUES (2, 2), (3, 3); INSERT INTO p VALUES (3, 'c'), (2, 'b'); COMMIT;
INSERT INTO c VALUES (4, 4)\; INSERT INTO p VALUES (4, 'd');
INSERT INTO c VALUES (5, 5)\; SELECT count(*) FROM c;
BEGIN;
DELETE FROM p WHERE id IN (1, 2);
INSERT INTO p VALUES (1, 'again');
SAVEPOINT s;
INSERT INTO p VALUES (2, 'again');
ROLLBACK TO s;
COMMIT;
BEGIN;
DELETE FROM p WHERE id IN (1, 2);
SAVEPOINT s;
INSERT INTO c VALUES (9, 99);
ROLLBACK TO s;
DELETE FROM c WHERE p = 1;
UPDATE c SET p = 3 WHERE p = 2;
COMMIT;
BEGIN; INSERT INTO c VALUES (6, 6); SET CONSTRAINTS ALL IMMEDIATE;
ROLLBACK;
BEGIN; SET CONSTRAINTS ALL IMMEDIATE; INSERT INTO c VALUES (6, 6);
ROLLBACK;
INSERT INTO i VALUES (1, 77);
BEGIN; INSERT INTO i VALUES (1, 77); COMMIT;
BEGIN; SET CONSTRAINTS ALL DEFERRED; INSERT INTO i VALUES (1, 8); INSERT INTO p VALUES (8); COMMIT;
BEGIN; SET CONSTRAINTS ALL DEFERRED; INSERT INTO i VALUES (1, 9); COMMIT;
DELETE FROM p WHERE id = 8;
BEGIN; INSERT INTO c VALUES (7, 7); TRUNCATE c; COMMIT;
BEGIN; INSERT INTO c VALUES (1, 1); PREPARE TRANSACTION 'fk_deferred';
SELECT * FROM p ORDER BY id; SELECT * FROM c ORDER BY id; TABLE i;
"""


@pytest.mark.parametrize(
    "script",
    [BOTH_SIDES, KEYS, PARTS, ACTIONS, ADDED, DEFERRED],
    ids=["both", "keys", "parts", "actions", "added", "deferred"],
)
def test_a_node_prints_what_postgresql_prints(
    node: Node, publisher_db: Database, script: str, request: pytest.FixtureRequest
) -> None:
    """Both sides of a foreign key, its kinds of match, self references, partitions, TRUNCATE."""
    name = f"fk_{request.node.callspec.id}"
    check_same(node, publisher_db, name, script)


class Client:
    """A session that runs a statement in a thread of its own, and tells what came of it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.conn = node.connect()
        self._error: str | None = None
        self._thread = threading.Thread()

    def start(self, sql: str) -> None:
        """Run a statement."""
        self._thread = threading.Thread(target=self._run, args=(sql.encode(),))
        self._thread.start()

    def waits(self) -> None:
        """It waits for a lock."""
        wait = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = {}"
        sql = wait.format(self.conn.info.backend_pid)
        wait_until(lambda: self._node.psql(sql) == "t", 30, "the second writer to wait")

    def error(self) -> str | None:
        """Its SQLSTATE, at its end."""
        self._thread.join(60)
        return self._error

    def _run(self, sql: bytes) -> None:
        self._error = None
        try:
            self.conn.execute(sql)
        except psycopg.Error as error:
            self._error = error.sqlstate


def test_a_row_and_what_it_refers_to_are_not_both_written(node: Node) -> None:
    """Who comes second waits, and meets what the first has left; other writers do not wait."""
    node.psql(
        "CREATE TABLE fk_p (id int PRIMARY KEY, v int);"
        "CREATE TABLE fk_c (id int, p int REFERENCES fk_p);"
        "CREATE TABLE fk_d (id int, p int REFERENCES fk_p ON DELETE CASCADE);"
        "INSERT INTO fk_p SELECT i FROM generate_series(1, 9) i"
    )
    second = Client(node)
    with node.connect() as first, second.conn:

        def both(one: str, other: str, ends: str = "COMMIT") -> str | None:
            first.execute("BEGIN")
            first.execute(one.encode())
            second.start(other)
            second.waits()
            first.execute(ends.encode())
            return second.error()

        row, end = "INSERT INTO fk_c VALUES (1, {})", "DELETE FROM fk_p WHERE id = {}"
        assert both(row.format(1), end.format(1)) == "23503"
        assert both(end.format(2), row.format(2)) == "23503"
        assert both(end.format(3), row.format(3), "ROLLBACK") is None
        assert both(row.format(4), end.format(4), "ROLLBACK") is None
        assert both("UPDATE fk_p SET id = 20 WHERE id = 5", row.format(5)) == "23503"
        assert both("INSERT INTO fk_d VALUES (1, 6)", end.format(6)) is None
        assert both(end.format(7), "INSERT INTO fk_d VALUES (1, 7)") == "23503"
        first.execute("BEGIN")
        first.execute("INSERT INTO fk_c VALUES (8, 8)")
        for free in ("INSERT INTO fk_p VALUES (30)", "UPDATE fk_p SET v = 1",
                     "INSERT INTO fk_d VALUES (8, 8)"):  # fmt: skip
            second.start(free)
            assert second.error() is None
        first.execute("COMMIT")
        # The third comes between the second's actions and its commit, which sees to it.
        third = Client(node)
        with third.conn:
            first.execute("BEGIN")
            first.execute("LOCK TABLE fk_d IN EXCLUSIVE MODE")
            second.start(end.format(9))
            second.waits()
            third.start("INSERT INTO fk_d VALUES (10, 9)")
            third.waits()
            first.execute("COMMIT")
            assert second.error() is None
            assert third.error() in (None, "23503")
    left = "SELECT c.p FROM fk_c c LEFT JOIN fk_p p ON p.id = c.p WHERE p.id IS NULL"
    assert node.psql(f"{left} UNION ALL {left.replace('fk_c', 'fk_d')}") == ""
    assert node.psql("SELECT id FROM fk_d") == "8"


def test_a_subscription_checks_none(node: Node, publisher_db: Database) -> None:
    """As PostgreSQL's apply; what it has left is an error once SQL gives the row another key."""
    publisher_db.psql(
        "CREATE TABLE fk_sub (id int PRIMARY KEY, p int, v text);"
        "INSERT INTO fk_sub VALUES (1, 7, 'a'); CREATE PUBLICATION fk_sub FOR TABLE fk_sub"
    )
    node.psql(
        "CREATE TABLE fk_sub_p (id int PRIMARY KEY);"
        "CREATE TABLE fk_sub (id int PRIMARY KEY, p int REFERENCES fk_sub_p, v text);"
        f"CREATE SUBSCRIPTION fk_sub CONNECTION '{publisher_db.conninfo}' PUBLICATION fk_sub"
    )
    try:
        wait_ready(node, "fk_sub")
        publisher_db.psql("INSERT INTO fk_sub VALUES (2, 8, 'b')")
        wait_caught_up(publisher_db)
        assert node.psql("SELECT * FROM fk_sub ORDER BY id") == "1|7|a\n2|8|b"
        node.psql("UPDATE fk_sub SET v = 'c' WHERE id = 2")
        with pytest.raises(PsqlError, match="is not present"):
            node.psql("UPDATE fk_sub SET p = 9 WHERE id = 2")
        assert node.psql("SELECT * FROM fk_sub ORDER BY id") == "1|7|a\n2|8|c"
    finally:
        drop_subscription(node, "fk_sub")


def test_what_cannot_be_followed_is_refused(node: Node) -> None:
    """0A000 with the constraint, and nothing is done."""
    node.psql(
        "CREATE TABLE fk_part (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE fk_part1 PARTITION OF fk_part FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE fk_part2 PARTITION OF fk_part DEFAULT;"
        "CREATE TABLE fk_of (p int DEFAULT floor(random())"
        " REFERENCES fk_part ON UPDATE CASCADE ON DELETE SET DEFAULT);"
        "INSERT INTO fk_part VALUES (1), (2); INSERT INTO fk_of VALUES (1);"
        "CREATE TABLE fk_other (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE fk_late (p int REFERENCES fk_other DEFERRABLE)"
    )
    refused = {
        "UPDATE fk_part SET id = 11 WHERE id = 1": "change their partition",
        "DELETE FROM fk_part WHERE id = 1": "default depends",
        "INSERT INTO fk_late VALUES (1)": "DEFERRABLE and partitions",
        "ALTER TABLE fk_part DETACH PARTITION fk_part1": "fk_of_p_fkey",
        "SET CONSTRAINTS fk_late_p_fkey DEFERRED": "deferred together",
    }
    with node.connect() as conn:
        for sql, reason in refused.items():
            with pytest.raises(psycopg.errors.FeatureNotSupported, match=reason):
                conn.execute(sql.encode())
    assert node.psql("SELECT count(*), min(id) FROM fk_part, fk_of") == "2|1"
