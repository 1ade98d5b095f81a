# SPDX-License-Identifier: Apache-2.0
"""INSERT and COPY into lake tables: a node prints what PostgreSQL prints, and keeps its rows."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.psql import PsqlError
from tests.support.subscribing import drop_subscription, wait_caught_up, wait_ready
from tests.support.waits import wait_until
from tests.support.writes import check_same

ROWS = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE t (id int PRIMARY KEY, a text NOT NULL DEFAULT 'x', n numeric(6,2) CHECK (n > 0),
    s serial, g int GENERATED ALWAYS AS (id * 2) STORED, v varchar(3), u text UNIQUE);
INSERT INTO t (id, n) VALUES (1, 1.236), (2, 5) RETURNING id, upper(a) AS "A", n, s, g + 1;
INSERT INTO t (id, n, u) VALUES (1, 3, 'new');
INSERT INTO t (id, n) VALUES (7, -3);
INSERT INTO t (id, u) VALUES (8, 'same'), (9, 'same');
INSERT INTO t (id, u) VALUES (8, 'same');
INSERT INTO t (id, u) VALUES (9, 'same');
INSERT INTO t (id, a) VALUES (10, NULL);
INSERT INTO t (id) VALUES ('x');
INSERT INTO t (id, v) VALUES (11, 'long');
INSERT INTO t (id, n) VALUES (11, 123456);
INSERT INTO t (id, nope) VALUES (11, 1);
INSERT INTO t (id) SELECT 11 WHERE false;
INSERT INTO t (id, u) SELECT g, 'n' || g FROM generate_series(100, 5099) g;
INSERT INTO t VALUES (12, DEFAULT, DEFAULT, DEFAULT, DEFAULT, 'abc', NULL);
SELECT count(*), sum(s), min(g), max(u) FROM t;
SELECT * FROM t WHERE id < 100 ORDER BY id;
CREATE TABLE every (b bool, i2 int2, i8 int8, f4 float4, f8 float8, d date, ts timestamp(3),
    tz timestamptz, by bytea, c char(5), nm name, u uuid, j json, jb jsonb, t time, iv interval,
    ip inet, r int4range, m mood, ia int[], ta text[], bits bit(3),
    o oid, dr daterange, mr nummultirange, pt point);
SET DateStyle = 'German, DMY'; SET TimeZone = 'Asia/Tokyo'; SET IntervalStyle = 'sql_standard';
INSERT INTO every VALUES (true, 1, 2, 1.5, 'NaN', '2.1.2024', '3.1.2024 4:05:06.7891',
    '3.1.2024 4:05', '\\xff00', 'ab', 'n', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '{"a" :1}',
    '{"a" :1}', '4:05', '1 day 2 hours', '10.0.0.1/8', '[1,5]', 'ok', '{1,NULL}', '{a,"b c"}',
    B'101', 4000000000, '[1.1.2024,5.1.2024]', '{[1,2),[3,4)}', '(1,2)');
INSERT INTO every DEFAULT VALUES;
RESET DateStyle; RESET TimeZone; RESET IntervalStyle;
SELECT * FROM every ORDER BY i2 \\gx
"""

BLOCKS = """
CREATE TABLE t (id int PRIMARY KEY, s serial);
CREATE TABLE other (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, of int);
BEGIN;
INSERT INTO t VALUES (1);
SAVEPOINT one;
INSERT INTO t VALUES (2) RETURNING *;
INSERT INTO t VALUES (1);
SELECT 1;
ROLLBACK TO one;
INSERT INTO t VALUES (3) RETURNING *;
SAVEPOINT two;
INSERT INTO t VALUES (4);
RELEASE two;
INSERT INTO other (of) SELECT generate_series(1, 3) RETURNING id;
SELECT * FROM t ORDER BY id;
COMMIT;
BEGIN;
INSERT INTO t VALUES (5);
INSERT INTO other (of) VALUES (9);
ROLLBACK;
INSERT INTO t VALUES (6) \\; INSERT INTO t VALUES (7) \\; SELECT 1/0;
INSERT INTO t VALUES (6) \\; INSERT INTO t VALUES (7) \\; SELECT count(*) FROM t;
INSERT INTO t VALUES (8) \\; SAVEPOINT three;
INSERT INTO t VALUES (8) \\; INSERT INTO t VALUES (8);
WITH a AS (INSERT INTO t VALUES (8), (9) RETURNING id), b AS (
    INSERT INTO other (of) SELECT id FROM a RETURNING of) SELECT * FROM b ORDER BY of;
BEGIN READ ONLY;
INSERT INTO t VALUES (10);
ROLLBACK;
INSERT INTO t VALUES ($1), ($1 + 1) RETURNING id \\bind 20 \\g
INSERT INTO t VALUES ($1) \\bind 20 \\g
INSERT INTO t VALUES ($1) \\bind x \\g
SELECT * FROM t ORDER BY id;
SELECT * FROM other ORDER BY id;
"""

PARTS = """
CREATE TABLE p (r text, id int, n int DEFAULT 7, PRIMARY KEY (id, r)) PARTITION BY LIST (r);
CREATE TABLE pa (n int, id int NOT NULL, r text NOT NULL);
ALTER TABLE p ATTACH PARTITION pa FOR VALUES IN ('a');
CREATE TABLE pb PARTITION OF p FOR VALUES IN ('b') PARTITION BY RANGE (id);
CREATE TABLE pb1 PARTITION OF pb FOR VALUES FROM (0) TO (10);
CREATE VIEW few AS SELECT id, r FROM p WHERE id < 10 WITH CHECK OPTION;
INSERT INTO p VALUES ('a', 1), ('b', 1), ('b', 2) RETURNING tableoid::regclass, *;
INSERT INTO p VALUES ('b', 3), ('b', 1);
INSERT INTO p VALUES ('c', 1);
INSERT INTO pb1 VALUES ('a', 3);
INSERT INTO few VALUES (4, 'b');
INSERT INTO few VALUES (14, 'a');
SELECT * FROM p ORDER BY r, id;
"""

COPIES = """
CREATE TABLE c (id int PRIMARY KEY, a text DEFAULT 'd', n numeric(6,2) CHECK (n < 100), s serial);
CREATE TABLE cp (id int, r text) PARTITION BY LIST (r);
CREATE TABLE cpa PARTITION OF cp FOR VALUES IN ('a');
CREATE TABLE cpb PARTITION OF cp DEFAULT;
COPY c (id, a, n) FROM STDIN;
1	tab\\tbed	1.5
2	\\N	2
\\.
COPY c (id, n) FROM STDIN (FORMAT csv, HEADER match);
id,n
3,"3.25"
4,
\\.
COPY c (id, a) FROM STDIN;
9	new
9	again
\\.
COPY c (id, n) FROM STDIN;
9	1
10	abc
\\.
COPY c (id, n) FROM STDIN;
9	1000
\\.
COPY c (id, a) FROM STDIN;
9
\\.
COPY nope FROM STDIN;
COPY c (nope) FROM STDIN;
BEGIN;
COPY c (id) FROM STDIN WHERE id > 20;
20
21
22
\\.
SAVEPOINT a;
COPY c (id) FROM STDIN;
23
21
\\.
ROLLBACK TO a;
INSERT INTO c (id) VALUES (24);
COMMIT;
COPY cp FROM STDIN;
1	a
2	b
3	c
\\.
COPY c (id) FROM STDIN \\; SELECT count(*) FROM c;
30
\\.
SELECT * FROM c ORDER BY id;
SELECT * FROM cp ORDER BY id; SELECT * FROM cpb ORDER BY id;
""".replace("\\\\", "\\")

REFUSED = {
    "INSERT INTO {0}.f VALUES (1, NULL)": "foreign key",
    "INSERT INTO {0}.e VALUES (1)": "unique index",
    "INSERT INTO {0}.l VALUES (1, 1)": "unique index",
    "INSERT INTO {0}.t SELECT set_config('a.b', '1', false)::int": "set_config",
    "EXPLAIN INSERT INTO {0}.t VALUES (1)": "EXPLAIN",
    "COPY {0}.t FROM '/nowhere'": "COPY into lake tables",
    "COPY {0}.f FROM STDIN": "foreign key",
    "PREPARE s AS INSERT INTO {0}.t VALUES (1)": "PREPARE",
}


@pytest.mark.parametrize(
    "script", [ROWS, BLOCKS, PARTS, COPIES], ids=["rows", "blocks", "parts", "copies"]
)
def test_a_node_prints_what_postgresql_prints(
    node: Node, publisher_db: Database, script: str, request: pytest.FixtureRequest
) -> None:
    """Rows, RETURNING, tags, errors with all their fields, sequences, savepoints, partitions."""
    name = f"ins_{request.node.callspec.id}"
    check_same(node, publisher_db, name, script)


def _both(node: Node, postgres: Database, work: Any) -> None:
    """Run Python code on a connection to each; it must see the same."""
    with postgres.connect() as wanted, node.connect() as found:
        assert work(found) == work(wanted)


def test_drivers_insert_with_parameters(node: Node, publisher_db: Database) -> None:
    """Binary and text parameters, prepared statements, pipelines, and errors inside of them."""

    def work(conn: psycopg.Connection[Any]) -> list[object]:
        seen: list[object] = []
        conn.execute("CREATE SCHEMA ins_driver")
        conn.execute("CREATE TABLE ins_driver.t (id int PRIMARY KEY, n numeric(9,2), b bytea)")
        insert = "INSERT INTO ins_driver.t VALUES (%b, %s, %b) RETURNING id, n, b"
        for at in range(7):  # psycopg prepares from the fifth time on
            row = conn.execute(insert, [at, at / 4, bytes([at])], binary=at % 2 == 0).fetchall()
            seen.append(row)
        seen.append(conn.execute("SELECT count(*), sum(n) FROM ins_driver.t").fetchall())
        with pytest.raises(psycopg.errors.UniqueViolation) as caught:
            conn.execute(insert, [3, 0, b""])
        diag = caught.value.diag
        seen.append((diag.message_primary, diag.message_detail, diag.constraint_name))
        with pytest.raises(psycopg.errors.UniqueViolation), conn.pipeline():
            conn.execute(insert, [10, 0, b""])
            conn.execute(insert, [3, 0, b""])
        with conn.pipeline(), conn.transaction():
            conn.execute(insert, [20, 0, b""])
            conn.execute(insert, [21, 0, None])
        with conn.cursor() as cursor:
            cursor.executemany("INSERT INTO ins_driver.t (id) VALUES (%s)", [[30], [31]])
            seen.append(cursor.rowcount)
        seen.append(conn.execute("SELECT id FROM ins_driver.t ORDER BY id").fetchall())
        return seen

    _both(node, publisher_db, work)


def test_copy_freeze(node: Node, publisher_db: Database) -> None:
    """FREEZE, with which pgbench -i loads its tables, behind a TRUNCATE in the same transaction."""
    rows = "COPY ins_frozen FROM STDIN"
    script = (
        "CREATE TABLE ins_frozen (id int);\nBEGIN;\nTRUNCATE ins_frozen;\n"
        f"{rows} WITH (FREEZE on);\n1\n2\n\\.\n{rows} WITH FREEZE;\n3\n\\.\nCOMMIT;\n"
        "SELECT * FROM ins_frozen ORDER BY id; DROP TABLE ins_frozen"
    )
    assert node.psql(script) == publisher_db.psql(script) == "1\n2\n3"


def test_drivers_copy(node: Node, publisher_db: Database) -> None:
    """Binary rows, a client that gives up in the middle, and many rows at once."""

    def work(conn: psycopg.Connection[Any]) -> list[object]:
        conn.execute("CREATE SCHEMA ins_copy")
        conn.execute("CREATE TABLE ins_copy.t (id int PRIMARY KEY, a text)")
        copy = "COPY ins_copy.t FROM STDIN"
        with conn.cursor() as cursor:
            with cursor.copy(f"{copy} (FORMAT binary)") as rows:
                rows.set_types(["int4", "text"])
                rows.write_row((1, "one"))
                rows.write_row((2, None))
            with pytest.raises(ZeroDivisionError), cursor.copy(copy) as rows:
                rows.write_row((3, "three"))
                raise ZeroDivisionError
            with pytest.raises(psycopg.errors.UniqueViolation) as caught:
                with cursor.copy(copy) as rows:
                    rows.write("9\tnew\n1\told\n")
            with cursor.copy(copy) as rows:
                rows.write("".join(f"{n}\t{'x' * (n % 50)}\n" for n in range(10, 25_000)))
        sums = "SELECT count(*), sum(id), sum(length(a)), min(a) FROM ins_copy.t"
        diag = caught.value.diag  # its context, the line, is not known here
        return [conn.execute(sums).fetchall(), diag.message_primary, diag.message_detail]

    _both(node, publisher_db, work)
    with node.connect() as conn:
        empty = "SELECT pg_relation_size('ins_copy.t') = 0"
        wait_until(lambda: conn.execute(empty).fetchall() == [(True,)], 60, "the rows to be gone")
        conn.execute("CREATE ROLE ins_copier")
        conn.execute("GRANT USAGE ON SCHEMA ins_copy TO ins_copier")
        conn.execute("SET ROLE ins_copier")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("COPY ins_copy.t FROM STDIN")


def test_columns_of_domains(node: Node, publisher_db: Database) -> None:
    """They are described as the type that the domain is over, and checked by the domain."""

    def work(conn: psycopg.Connection[Any]) -> list[object]:
        conn.execute("CREATE DOMAIN ins_price AS numeric(9,2) CHECK (VALUE > 0)")
        conn.execute("CREATE DOMAIN ins_low AS ins_price CHECK (VALUE < 100)")
        conn.execute("CREATE TABLE ins_domains (id int PRIMARY KEY, p ins_price, l ins_low)")
        conn.execute("INSERT INTO ins_domains VALUES (1, 1.5, 99.99), (2, NULL, NULL)")
        with pytest.raises(psycopg.errors.CheckViolation):
            conn.execute("INSERT INTO ins_domains VALUES (3, 1, 100)")
        cursor = conn.execute("SELECT * FROM ins_domains ORDER BY id")
        kinds = [column.type_code for column in cursor.description or ()]
        return [kinds, cursor.fetchall()]

    _both(node, publisher_db, work)


def test_what_is_not_supported_is_refused(node: Node) -> None:
    """0A000 with the reason, before anything was changed."""
    node.psql(
        "CREATE SCHEMA ins_no;"
        "CREATE TABLE ins_no.t (id int PRIMARY KEY, a text);"
        "CREATE TABLE ins_no.n (id numeric PRIMARY KEY);"
        "CREATE TABLE ins_no.f (id int PRIMARY KEY, t int REFERENCES ins_no.n);"
        "CREATE TABLE ins_no.e (x float8 PRIMARY KEY);"
        "CREATE TABLE ins_no.l (id int, a int UNIQUE DEFERRABLE)"
    )
    with node.connect() as conn:
        for sql, reason in REFUSED.items():
            with pytest.raises(psycopg.errors.FeatureNotSupported, match=reason):
                conn.execute(sql.format("ins_no").encode())
    for table in "tfel":
        assert node.psql(f"SELECT count(*) FROM ins_no.{table}") == "0"
    value = "INSERT INTO ins_no.{} VALUES ('infinity', '{{{{1}},{{2}}}}')"
    node.psql("CREATE TABLE ins_no.v (d date, a int[])")
    with pytest.raises(PsqlError, match=r'value "infinity" of column "d"'):
        node.psql(value.format("v"))
    node.psql("CREATE TABLE ins_no.none ()")
    with pytest.raises(PsqlError, match="which has no columns"):
        node.psql("INSERT INTO ins_no.none DEFAULT VALUES")


def test_readers_see_what_their_snapshot_shows(node: Node) -> None:
    """Nothing before COMMIT; a REPEATABLE READ transaction what was there when it began."""
    node.psql("CREATE TABLE ins_seen (id int PRIMARY KEY); INSERT INTO ins_seen VALUES (1)")
    count = "SELECT count(*) FROM ins_seen"
    with node.connect() as writer, node.connect() as reader:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        assert reader.execute(count).fetchall() == [(1,)]
        writer.execute("BEGIN")
        writer.execute("INSERT INTO ins_seen VALUES (2)")
        assert writer.execute(count).fetchall() == [(2,)]
        assert node.psql(count) == "1"
        writer.execute("COMMIT")
        assert node.psql(count) == "2"
        assert reader.execute(count).fetchall() == [(1,)]
        with pytest.raises(psycopg.errors.SerializationFailure):
            reader.execute("INSERT INTO ins_seen VALUES (3)")


def _waiting(node: Node, conn: psycopg.Connection[Any]) -> bool:
    pid = conn.info.backend_pid
    sql = f"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = {pid}"
    return node.psql(sql) == "t"


def test_writers_wait_for_each_other_and_deadlocks_end(node: Node) -> None:
    """The second writer waits, then finds the first one's key; a deadlock is 40P01 for one."""
    node.psql("CREATE TABLE ins_a (id int PRIMARY KEY); CREATE TABLE ins_b (id int PRIMARY KEY)")
    errors: list[str | None] = []

    def insert(conn: psycopg.Connection[Any], sql: bytes) -> None:
        try:
            conn.execute(sql)
        except psycopg.Error as error:
            errors.append(error.sqlstate)

    with node.connect() as first, node.connect() as second:
        first.execute("BEGIN")
        first.execute("INSERT INTO ins_a VALUES (1)")
        same = threading.Thread(target=insert, args=(second, b"INSERT INTO ins_a VALUES (1)"))
        same.start()
        wait_until(lambda: _waiting(node, second), 30, "the second writer to wait")
        first.execute("COMMIT")
        same.join(60)
        assert errors == ["23505"]
        first.execute("BEGIN")
        first.execute("INSERT INTO ins_a VALUES (2)")
        second.execute("BEGIN")
        second.execute("INSERT INTO ins_b VALUES (2)")
        cross = threading.Thread(target=insert, args=(second, b"INSERT INTO ins_a VALUES (3)"))
        cross.start()
        wait_until(lambda: _waiting(node, second), 30, "the second writer to wait")
        insert(first, b"INSERT INTO ins_b VALUES (3)")
        cross.join(60)
        assert errors == ["23505", "40P01"]
        first.execute("ROLLBACK")
        second.execute("ROLLBACK")
    assert node.psql("SELECT count(*) FROM ins_a, ins_b") == "0"


def test_a_subscribed_table_that_sql_writes_has_two_writers(
    node: Node, publisher_db: Database
) -> None:
    """A key that SQL has put there is a conflict when the publisher inserts it."""
    publisher_db.psql(
        "CREATE TABLE ins_sub (id int PRIMARY KEY, a text); INSERT INTO ins_sub VALUES (1, 'pg');"
        "CREATE PUBLICATION ins_sub FOR TABLE ins_sub"
    )
    node.psql(
        f"CREATE SUBSCRIPTION ins_sub CONNECTION '{publisher_db.conninfo}' PUBLICATION ins_sub"
        " WITH (on_conflict = keep_local)"
    )
    try:
        wait_ready(node, "ins_sub")
        node.psql("INSERT INTO ins_sub VALUES (2, 'sql')")
        publisher_db.psql("INSERT INTO ins_sub VALUES (2, 'pg'), (3, 'pg')")
        wait_caught_up(publisher_db)
        assert node.psql("SELECT * FROM ins_sub ORDER BY id") == "1|pg\n2|sql\n3|pg"
        owner = "SELECT sole_writer IS NULL FROM penstock.table_version"
        assert node.psql(f"{owner} WHERE relid = 'ins_sub'::regclass") == "t"
        node.psql("INSERT INTO ins_sub VALUES (4, 'sql')")
    finally:
        drop_subscription(node, "ins_sub")


def test_who_may_insert_need_not_read(node: Node) -> None:
    """INSERT alone is enough for the statement; an error does not show a key that is not theirs."""
    node.psql(
        "CREATE ROLE ins_blind LOGIN PASSWORD 'x'; CREATE TABLE ins_blind (id int PRIMARY KEY);"
        "GRANT INSERT ON ins_blind TO ins_blind; CREATE TABLE ins_shut (id int)"
    )
    with node.connect() as conn:
        conn.execute("SET ROLE ins_blind")
        conn.execute("INSERT INTO ins_blind VALUES (1)")
        with pytest.raises(psycopg.errors.UniqueViolation) as caught:
            conn.execute("INSERT INTO ins_blind VALUES (1)")
        assert caught.value.diag.message_detail is None
        for denied in ("INSERT INTO ins_shut VALUES (1)", "SELECT * FROM ins_blind"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(denied.encode())
