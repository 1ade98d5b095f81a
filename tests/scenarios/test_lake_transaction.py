# SPDX-License-Identifier: Apache-2.0
"""DataFrames that a Spark program writes into the lake, as one commit."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psutil
import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.errors import ConcurrentWriteError, ConnectionLostError, PenstockError
from penstock.reader import Lake
from tests.support.class_archive import java_options
from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.psql import client_environment
from tests.support.published import subscribed_to, wait_same
from tests.support.waits import wait_until

Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def lake(node: Node, spark: SparkSession) -> Iterator[Lake]:
    with penstock.connect(node.home, spark) as made:
        yield made


def rows(frame: DataFrame) -> list[Row]:
    return sorted(map(tuple, frame.collect()))


def test_one_commit_over_several_tables(node: Node, lake: Lake, publisher_db: Database) -> None:
    """All that a transaction does is one commit, for readers and for a PostgreSQL subscriber."""
    tables = (
        "CREATE TABLE {0} (id int {1}, amount numeric(9,2) CHECK (amount >= 0),"
        " note text NOT NULL DEFAULT 'none');"
        "CREATE TABLE lt_parts (id bigint, code text, PRIMARY KEY (id, code))"
        " PARTITION BY RANGE (id);"
        "CREATE TABLE lt_low PARTITION OF lt_parts FOR VALUES FROM (0) TO (1000);"
        "CREATE TABLE lt_high PARTITION OF lt_parts FOR VALUES FROM (1000) TO (100000);"
        "CREATE TABLE lt_total (day date, n float8)"
    )
    node.psql(
        tables.format("lt_orders", "GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
        + ";INSERT INTO lt_orders (amount, note)"
        " SELECT g, 'row ' || g FROM generate_series(1, 3000) g;"
        "INSERT INTO lt_parts SELECT g, 'c' || g % 3 FROM generate_series(1, 3000) g;"
        "INSERT INTO lt_total VALUES ('2020-01-01', 1);"
        "CREATE PUBLICATION lt_pub FOR TABLE lt_orders, lt_parts, lt_total"
        " WITH (publish_via_partition_root)"
    )
    publisher_db.psql(tables.format("lt_orders", "PRIMARY KEY"))
    before = lake.lsn
    sql = lake.spark.sql
    with subscribed_to(node, publisher_db, "lt_sub", "lt_pub"):
        with lake.transaction() as tx:
            assert tx.append("lt_orders", sql("SELECT CAST(7 AS smallint) amount")) == 1
            merged = sql(
                "SELECT id, CAST(id + 0.5 AS decimal(7,1)) amount FROM VALUES (2), (2999), (5000)"
                " t (id)"
            )
            assert tx.merge("public.lt_orders", merged) == 3
            gone = sql("SELECT id, concat('c', id % 3) code, 'x' more FROM range(5, 3005, 1000)")
            assert tx.delete("lt_parts", gone) == 3
            assert tx.delete("lt_orders", "amount BETWEEN 10 AND 12") == 3
            tx.append("lt_parts", sql("SELECT 500 id, 'new' code UNION ALL SELECT 50000, 'new'"))
            day = sql("SELECT 2.5D n, DATE '2026-05-05' day")
            assert tx.overwrite("lt_total", day) == 1
            assert rows(lake.table("lt_orders").where("id = 5000")) == []
        assert tx.lsn is not None
        wait_same(
            node, publisher_db, "lt_sub", *(f"SELECT * FROM lt_{t}" for t in ("parts", "total"))
        )
        wait_same(node, publisher_db, "lt_sub", "SELECT id, amount, note FROM lt_orders")
    orders = lake.table("lt_orders", at=tx.lsn)
    shown = orders.where("id IN (2, 11, 2999) OR id > 3000").selectExpr(
        "id", "string(amount)", "note"
    )
    assert rows(shown) == [
        (2, "2.50", "row 2"),
        (2999, "2999.50", "row 2999"),
        (3001, "7.00", "none"),
        (5000, "5000.50", "none"),
    ]
    assert rows(lake.table("lt_low", at=tx.lsn).where("code = 'new'")) == [(500, "new")]
    told = lake.changes("lt_pub", before, tx.lsn).select("commit_lsn", "table", "op").collect()
    assert len({each.commit_lsn for each in told}) == 1
    assert Counter((each.table, each.op) for each in told) == {
        ("lt_orders", "I"): 2,
        ("lt_orders", "U"): 2,
        ("lt_orders", "D"): 3,
        ("lt_parts", "I"): 2,
        ("lt_parts", "D"): 3,
        ("lt_total", "T"): 1,
        ("lt_total", "I"): 1,
    }


VALUES = """
CREATE TYPE lt_mood AS ENUM ('glad', 'sad');
CREATE DOMAIN lt_small AS int CHECK (VALUE < 100);
CREATE TABLE lt_v (id int8 PRIMARY KEY, a int2, b float4, c float8, d bool, e date, f bytea,
    g timestamp, h timestamptz(3), i numeric(20,5), j numeric, k text, l varchar(9), m char(5),
    n uuid, o jsonb, p interval, q lt_mood, r lt_small, s int[], t text[], u numeric(9,2)[],
    v timestamptz[], w date[], x name, y inet, "an Odd \"\"name`" int, z oid);
INSERT INTO lt_v VALUES
    (1, -32768, 'NaN', '-Infinity', true, '0001-01-01', '\\x00ff', '0001-01-01 00:00:00.000001',
     '9999-12-31 23:59:59.999+00', -123456789012345.00001, 0.000000000000000001,
     E'a\\tb\\n\\\\.', '', 'c', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a": [1, null]}',
     '1 mon -2 days 03:04:05.6', 'sad', 99, '{1,NULL,-3}', '{"a,b",NULL,"\\"q\\\\","",NULL}',
     '{1.50,NULL}', '{"1500-02-03 04:05:06+00",NULL}', '{1234-05-06}', 'n', '10.0.0.1', 5,
     4294967295),
    (2, 1, '3.4e38', 5e-324, false, '9999-12-31', '', '1582-10-10 12:00',
     '1883-01-01 00:00:00.5+00', 0, 12345678901234567890.5, 'žluť 🎈', 'x', NULL, NULL, '"s"',
     '-1 us', 'glad', -5, '{}', '{}', '{}', '{}', '{}', '', '::1/64', NULL, 0);
INSERT INTO lt_v (id) VALUES (3);
CREATE TABLE lt_w (LIKE lt_v INCLUDING ALL);
"""


def test_every_value_is_the_same_in_another_table(node: Node, lake: Lake) -> None:
    """What Spark reads of a table can be written into another, and is the same text in SQL."""
    node.psql(VALUES)
    with lake.transaction() as tx:
        assert tx.overwrite("lt_w", lake.table("lt_v").selectExpr("id + 1 id")) == 3
        assert tx.merge("lt_w", lake.table("lt_v")) == 3
        assert tx.delete("lt_w", lake.spark.range(4, 5)) == 1
        untyped = "SELECT 9 id, NULL k, array() t, array(NULL) s, array(NULL) w, NULL h"
        assert tx.append("lt_w", lake.spark.sql(untyped)) == 1
    wanted = node.psql("SELECT * FROM lt_v ORDER BY id")
    assert node.psql("SELECT * FROM lt_w WHERE id < 9 ORDER BY id") == wanted
    assert wanted.count("\n") >= 2
    assert node.psql("SELECT k, t, s, w, h FROM lt_w WHERE id = 9") == "|{}|{NULL}|{NULL}|"


def test_nothing_and_more_than_one_statement(node: Node, lake: Lake) -> None:
    """What changes nothing has no LSN; a condition is one, and cannot bring statements along."""
    node.psql("CREATE TABLE lt_n (id bigint PRIMARY KEY)")
    with lake.transaction() as tx:
        assert tx.append("lt_n", lake.spark.createDataFrame([], "id bigint")) == 0
        assert tx.delete("lt_n", "id > 0") == 0
    assert tx.lsn is None
    with pytest.raises(psycopg.errors.SyntaxError), lake.transaction() as tx:
        tx.delete("lt_n", "true; COMMIT")


RULES = """
CREATE TABLE lt_r (id int PRIMARY KEY, a varchar(3) NOT NULL, n numeric(6,2) CHECK (n > 0), u uuid,
    t timestamp(0), s serial, g int GENERATED ALWAYS AS (id + 1) STORED, x name,
    CONSTRAINT lt_a_n UNIQUE (a, n));
INSERT INTO lt_r (id, a, n) VALUES (1, 'a', 1), (2, 'b', 2);
CREATE TABLE lt_p (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE lt_p1 PARTITION OF lt_p FOR VALUES FROM (0) TO (10);
CREATE TABLE lt_k (a int); INSERT INTO lt_k VALUES (0);
CREATE TABLE lt_i (id int PRIMARY KEY, a int); ALTER TABLE lt_i REPLICA IDENTITY NOTHING;
CREATE PUBLICATION lt_ids FOR TABLE lt_i;
CREATE TABLE lt_m (id int PRIMARY KEY); INSERT INTO lt_m VALUES (1);
CREATE TABLE lt_f (id int PRIMARY KEY, m int REFERENCES lt_m); INSERT INTO lt_f VALUES (1, 1);
"""

REFUSED = {
    "append lt_r: 3 id, 'c' a, 1 b": ("42703", 'column "b" of relation "lt_r" does not exist'),
    "append lt_r: 3 id, 'c' A": ("42703", 'column "A" of relation "lt_r" does not exist'),
    "append lt_r: 3 id, 'c' a, 4 a": ("42804", 'column "a"'),
    "append lt_r: 3 id, 'c' a, 'd' a": ("42701", 'column "a" specified more than once'),
    "append lt_r: '3' id, 'c' a": ("42804", "does not take values of Spark's type string"),
    "append lt_r: 3D id, 'c' a": ("42804", "type double"),
    "append lt_r: 3 id, 'c' a, 1.125 n": ("42804", "type decimal(4,3)"),
    "append lt_r: 3 id, 'c' a, map(1, 2) n": ("42804", "type map<int,int>"),
    "append lt_r: 3 id, 'c' a, 1 n, 'no' u": ("22P02", "invalid input syntax for type uuid"),
    "append lt_r: 3000000000 id, 'c' a": ("22003", "out of range for type integer"),
    "append lt_r: 3 id, 'c' a, 10000 n": ("22003", "numeric field overflow"),
    "append lt_r: 3 id, 'long' a": ("22001", "value too long for type character varying(3)"),
    "append lt_r: 3 id, 'c' a, repeat('x', 64) x": ("22001", "value too long"),
    "append lt_r: 3 id, 'c' a, timestamp_ntz'2020-01-01 00:00:00.5' t": ("22008", "round"),
    "append lt_r: 3 id, 'c' a, 7 g": ("42P10", 'column "g" is a generated column'),
    "append lt_r: 3 id": ("23502", 'null value in column "a" of relation "lt_r"'),
    "append lt_r: 3 id, NULL a": ("23502", 'null value in column "a" of relation "lt_r"'),
    "append lt_r: 3 id, 'c' a, 0 n": ("23514", 'violates check constraint "lt_r_n_check"'),
    "append lt_r: explode(array(3, 3)) id, 'c' a": ("23505", "Key (id)=(3) already exists."),
    "append lt_r: 2 id, 'c' a": ("23505", "Key (id)=(2) already exists."),
    "append lt_r: 3 id, 'b' a, 2 n": ("23505", "Key (a, n)=(b, 2.00) already exists."),
    "append lt_p: 11 id": ("23514", 'no partition of relation "lt_p" found for row'),
    "append lt_none: 1 id": ("42P01", 'relation "public.lt_none" does not exist'),
    "merge lt_r: 'c' a": ("42703", 'column "id" of the key of table "public.lt_r" is not in'),
    "merge lt_r: explode(array(2, 2)) id, 'c' a": ("21000", "affect row a second time"),
    "merge lt_r: explode(array(3, 3)) id, 'c' a": ("23505", "Key (id)=(3) already exists."),
    "merge lt_r: 3 id": ("23502", 'null value in column "a" of relation "lt_r"'),
    "merge lt_r: 1 id, 'b' a, 2 n": ("23505", "Key (a, n)=(b, 2.00) already exists."),
    "merge lt_k: 1 a": ("55000", 'table "public.lt_k" has no key'),
    "merge lt_i: 1 id, 2 a": ("55000", 'cannot update table "lt_i"'),
    "delete lt_i: 1 id": ("55000", 'cannot delete from table "lt_i"'),
    "delete lt_k: 1 a": ("55000", 'table "public.lt_k" has no key'),
    "append lt_f: 2 id, 9 m": ("23503", 'Key (m)=(9) is not present in table "lt_m".'),
    "merge lt_f: 1 id, 9 m": ("23503", 'Key (m)=(9) is not present in table "lt_m".'),
    "delete lt_m: 1 id": ("23503", 'Key (id)=(1) is still referenced from table "lt_f".'),
    "overwrite lt_m: 2 id": ("0A000", "cannot truncate a table referenced"),
    "overwrite lt_r: 1 id": ("23502", 'null value in column "a" of relation "lt_r"'),
}
"""A method, its table, and the SELECT list of its frame: SQLSTATE and a part of the error."""


@pytest.fixture(scope="module")
def rules(node: Node) -> Iterator[None]:
    """The tables, which must be as they were after all tests."""
    node.psql(RULES)
    yield
    left = node.psql(
        "SELECT id, a, n FROM lt_r ORDER BY id; TABLE lt_p; TABLE lt_k; TABLE lt_i;"
        "TABLE lt_m; TABLE lt_f"
    )
    assert left == "1|a|1.00\n2|b|2.00\n0\n1\n1|1"


@pytest.mark.parametrize("call", REFUSED)
def test_what_breaks_a_rule_is_refused(lake: Lake, rules: None, call: str) -> None:
    """PostgreSQL's error, and all of the transaction is undone: each deletes the same row."""
    head, _, items = call.partition(": ")
    method, table = head.split()
    state, message = REFUSED[call]
    with pytest.raises((PenstockError, psycopg.Error)) as caught, lake.transaction() as tx:
        assert tx.delete("lt_k", "a < 1") == 1
        getattr(tx, method)(table, lake.spark.sql(f"SELECT {items}"))
    error = caught.value
    assert isinstance(error, PenstockError | psycopg.Error)
    text = f"{error} {error.diag.message_detail if isinstance(error, psycopg.Error) else ''}"
    assert (error.sqlstate, message in text) == (state, True), text


def test_the_rights_of_the_role_count(node: Node, lake: Lake) -> None:
    """INSERT is enough to append; each other method asks for what its statement does."""
    node.psql(
        "CREATE TABLE lt_g (id int PRIMARY KEY, a int); INSERT INTO lt_g VALUES (1, 1), (2, 2);"
        "CREATE ROLE lt_loader LOGIN PASSWORD 'let me in'; GRANT INSERT ON lt_g TO lt_loader"
    )
    frame = lake.spark.sql("SELECT 2 id, 5 a")
    more = lake.spark.sql("SELECT 3 id, 3 a")

    def refused(loader: Lake, method: str) -> None:
        with (
            pytest.raises(psycopg.errors.InsufficientPrivilege, match="for table lt_g"),
            loader.transaction() as tx,
        ):
            getattr(tx, method)("lt_g", frame)

    with penstock.connect(node.home, lake.spark, "lt_loader", "let me in") as loader:
        with loader.transaction() as tx:
            assert tx.append("lt_g", more) == 1
        for method, grant in (
            ("merge", "SELECT, UPDATE"),
            ("delete", "DELETE"),
            ("overwrite", "TRUNCATE"),
        ):
            refused(loader, method)
            node.psql(f"GRANT {grant} ON lt_g TO lt_loader")
            with loader.transaction() as tx:
                assert getattr(tx, method)("lt_g", frame) == 1
    assert node.psql("TABLE lt_g") == "2|5"


WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


def test_writers_of_one_table_wait_for_each_other(node: Node, lake: Lake) -> None:
    """The second one goes on when the first has ended, also when that is rolled back."""
    node.psql("CREATE TABLE lt_c (id int PRIMARY KEY, a text)")
    frame = lake.spark.sql("SELECT 1 id, 'first' a")
    found: list[str | None] = []

    def second() -> None:
        with penstock.connect(node.home, lake.spark) as other, other.transaction() as tx:
            tx.merge("lt_c", lake.spark.sql("SELECT 1 id, 'second' a"))
        found.append(tx.lsn)

    for error in (None, ValueError("no")):
        thread = threading.Thread(target=second)
        try:
            with lake.transaction() as tx:
                tx.merge("lt_c", frame)
                thread.start()
                wait_until(lambda: node.psql(WAITING) == "1", 60, "the second writer to wait")
                assert not found
                if error is not None:
                    raise error
        except ValueError:
            assert error is not None
        thread.join(60)
        assert found.pop() is not None
        assert node.psql("TABLE lt_c") == "1|second"
        assert (tx.lsn is None) == (error is not None)


def test_a_definition_that_changes_meanwhile(node: Node, lake: Lake) -> None:
    """What a frame was matched with is not so any more when the table is locked: 40001."""
    node.psql("CREATE TABLE lt_d (id bigint, n numeric(9,2)); INSERT INTO lt_d VALUES (1, 1)")
    found: list[Exception] = []

    def append() -> None:
        with pytest.raises(ConcurrentWriteError, match="was changed") as caught:
            with lake.transaction() as tx:
                tx.append("lt_d", lake.spark.sql("SELECT 2 id, 2.25 n"))
        found.append(caught.value)

    thread = threading.Thread(target=append)
    with node.connect() as conn:
        with conn.transaction():
            conn.execute("ALTER TABLE lt_d ADD more int")
            thread.start()
            wait_until(lambda: node.psql(WAITING) == "1", 60, "the append to wait")
        thread.join(60)
    assert [error.sqlstate for error in found if isinstance(error, PenstockError)] == ["40001"]
    assert node.psql("TABLE lt_d") == "1|1.00|"


def test_a_program_that_is_killed_leaves_no_trace(node: Node, lake: Lake) -> None:
    """kill -9 before the commit: nothing is seen, the next one goes on, its files are removed."""
    node.psql("CREATE TABLE lt_kill (id bigint PRIMARY KEY)")
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.support.lake_program", node.home, "lt_kill", java_options()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=client_environment(node.env),
    )
    assert program.stdin is not None and program.stdout is not None
    with program:
        assert b"written\n" in iter(program.stdout.readline, b"")  # the JVM may warn before
        spark = psutil.Process(program.pid).children(recursive=True)
        program.kill()
    folder = node.home / "spark" / f"local-{program.pid}"
    assert folder.exists()
    assert rows(lake.table("lt_kill")) == []
    with lake.transaction() as tx:
        tx.append("lt_kill", lake.spark.range(1))
    assert rows(lake.table("lt_kill", at=tx.lsn)) == [(0,)]
    assert psutil.wait_procs(spark, timeout=60)[1] == []
    with lake.transaction() as tx:
        tx.append("lt_kill", lake.spark.range(1, 2))
    assert not folder.exists()


WIDE_ROWS, WIDE_BYTES = 1_000_000, 400_000_000
"""Rows of a table, and about what they have as Arrow."""


def test_memory_does_not_grow_with_a_frame(node: Node, lake: Lake) -> None:
    """A million rows go through this process and the node's in pieces."""
    node.psql("CREATE TABLE lt_wide (id bigint PRIMARY KEY, t text)")
    wide = f"CAST(id AS string) || repeat(md5(CAST(id AS string)), {WIDE_BYTES // WIDE_ROWS // 32})"
    frame = lake.spark.range(WIDE_ROWS).selectExpr("id", f"{wide} t")
    watched = [psutil.Process(), psutil.Process(node.pid)]
    most = [0, 0]
    done = threading.Event()

    def anonymous() -> list[int]:
        found = (each.memory_info() for each in watched)
        return [each.rss - each.shared for each in found]

    def watch() -> None:
        while not done.wait(0.05):
            most[:] = map(max, most, anonymous())

    watcher = threading.Thread(target=watch)
    before = anonymous()
    watcher.start()
    try:
        with lake.transaction() as tx:
            assert tx.append("lt_wide", frame) == WIDE_ROWS
    finally:
        done.set()
        watcher.join()
    grown = [high - low for high, low in zip(most, before, strict=True)]
    assert max(grown) < WIDE_BYTES * 0.8, grown
    ends = WIDE_ROWS - 1
    shown = lake.table("lt_wide").selectExpr("count(t)", "sum(id)", "max(id)")
    assert rows(shown) == [(WIDE_ROWS, WIDE_ROWS * ends // 2, ends)]
    node.psql("DROP TABLE lt_wide")


def test_a_commit_whose_answer_is_lost(node: Node, lake: Lake) -> None:
    """The connection ends while COMMIT waits for a standby: the error says how to find out."""
    node.psql("CREATE TABLE lt_lost (id bigint)")
    node.psql("ALTER SYSTEM SET synchronous_standby_names = 'lt_nobody'")
    node.psql("SELECT pg_reload_conf()")
    kill = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE wait_event = 'SyncRep' AND application_name = 'penstock reader'"
    )
    killer = threading.Thread(
        target=lambda: wait_until(lambda: node.psql(kill) == "1", 60, "the COMMIT to wait")
    )
    try:
        killer.start()
        with pytest.raises(ConnectionLostError, match="lost at the commit") as caught:
            with lake.transaction() as tx:
                tx.append("lt_lost", lake.spark.range(2))
        killer.join()
    finally:
        node.psql("ALTER SYSTEM RESET synchronous_standby_names")
        node.psql("SELECT pg_reload_conf()")
    assert caught.value.sqlstate == "08007"
    assert node.psql((caught.value.hint or "").partition(" says")[0]) == "committed"
    assert node.psql("SELECT count(*) FROM lt_lost") == "2"
