# SPDX-License-Identifier: Apache-2.0
"""The initial copy reads exactly what table sync would copy; the publisher is the oracle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.client.published import published_table
from penstock.errors import (
    FeatureNotSupportedError,
    PenstockError,
    PublicationError,
    RelationMismatchError,
    ValueNotHeldError,
)
from penstock.lsn import parse_lsn
from tests.support.copying import copying, lake_table_like, one_leaf
from tests.support.fix_servers import Database

every_version = pytest.mark.parametrize("publisher", ["15", "16", "18"], indirect=True)


@every_version
def test_every_type_of_the_lake(publisher_db: Database, tmp_path: Path) -> None:
    """Values of every type come back equal: exact ones as values, the rest as PostgreSQL's text."""
    publisher_db.psql("""
        CREATE TYPE mood AS ENUM ('sad', 'ok');
        CREATE TYPE pair AS (a int, b text);
        CREATE DOMAIN short AS char(5);
        CREATE DOMAIN yes AS bool;
        CREATE TABLE t (id int PRIMARY KEY, i2 int2, i8 int8, o oid, f4 float4, f8 float8, b bool,
            n numeric, n2 numeric(12,2), n38 numeric(38,0), neg numeric(5,-2), d date,
            ts timestamp, tz timestamptz, bin bytea, tx text, vc varchar(9), ch char(6),
            one "char", nm name, u uuid, j json, jb jsonb, ti time, tt timetz, iv interval,
            m mood, p pair, s short, y yes, ip inet, net cidr, mac macaddr, mo money, bi bit(3),
            r int4range, tr tstzrange, mr int4multirange, pt point, tv tsvector, rc regclass,
            ai int[], al bigint[], an numeric(6,2)[], ab bool[], ad date[], ats timestamp[],
            atz timestamptz[], abin bytea[], atx text[], avc varchar(5)[], ach char(4)[],
            af float8[], ao oid[], aip inet[], au uuid[], iv2 int2vector);
        INSERT INTO t (id) VALUES (1);
        INSERT INTO t VALUES (2, -32768, 9223372036854775807, 4294967295, 'NaN', '-Infinity', true,
            12345678901234567890.123456789012345678, -0.10, 12345678901234567890123456789012345678,
            12300, '0001-01-01', '9999-12-31 23:59:59.999999', '2024-02-29 12:00:00.000001+05',
            '\\x00ff', E'a\\tb\\n"c''ü€𝄞', 'ab  ', 'ab', 'x', 'name', gen_random_uuid(),
            '{"a" : 1}', '{"b" : [1, null]}', '12:34:56.7', '12:00+05:30',
            '1 year 2 mons -3 days 04:05:06.7', 'ok', ROW(NULL, NULL), 'ab', false, '10.0.0.1',
            '10.1.0.0/16', '08:00:2b:01:02:03', 12.5, '101', '[1,5)',
            '[2024-01-01 00:00+05,)', '{[1,2),[5,6)}', '(1.5,2)', 'a fat cat',
            'pg_class', '{1,NULL,3}', '{}', '{1.5,NULL,2}', '{t,f}', '{2024-01-01}',
            '{2024-01-01 12:00}', '{2024-01-01 12:00+00,NULL}', '{"\\\\x00ff"}', '{a,NULL,"b c"}',
            '{abc}', '{ab}', '{1e100,-0}', '{4294967295}', '{10.0.0.1}',
            ARRAY['00000000-0000-0000-0000-000000000001']::uuid[], '1 2 3');
        CREATE PUBLICATION p FOR TABLE t""")
    query = "SELECT * FROM t"  # psql shows both sides alike, whatever the session's settings
    with copying(publisher_db, tmp_path) as copy:
        assert copy.assert_copied(copy.table_copy("t", ["p"]), query) == 2


@every_version
def test_filters_and_lists_of_all_publications(publisher_db: Database, tmp_path: Path) -> None:
    """Row filters are OR'ed whatever they publish; one without a filter wins; lists restrict."""
    publisher_db.psql("""
        CREATE TABLE t (id int PRIMARY KEY, a int, b text);
        INSERT INTO t SELECT i, i % 10, 'b' || i FROM generate_series(1, 1000) i;
        INSERT INTO t (id) VALUES (2000);
        CREATE PUBLICATION small FOR TABLE t (id, a) WHERE (a < 2) WITH (publish = 'insert');
        CREATE PUBLICATION nine FOR TABLE t (a, id) WHERE (a = 9) WITH (publish = 'delete');
        CREATE PUBLICATION other FOR TABLE t (id, b);
        CREATE PUBLICATION everything FOR TABLE t;
        CREATE PUBLICATION listed FOR TABLE t (id, a)""")
    with copying(publisher_db, tmp_path) as copy:
        both = copy.table_copy("t", ["small", "nine"])
        assert copy.assert_copied(both, "SELECT id, a FROM t WHERE a < 2 OR a = 9") == 300
        no_filter = copy.table_copy("t", ["small", "listed"])
        assert copy.assert_copied(no_filter, "SELECT id, a FROM t") == 1001
        assert copy.assert_copied(copy.table_copy("t", ["everything"]), "SELECT * FROM t") == 1001
        with pytest.raises(
            FeatureNotSupportedError,
            match=r'cannot use different column lists for table "public\.t" in different publ',
        ):
            copy.table_copy("t", ["small", "other"])


@every_version
def test_partitioned_by_root_and_by_leaf(publisher_db: Database, tmp_path: Path) -> None:
    """A root brings the rows of all leaves, sub-partitions too; a leaf only its own."""
    publisher_db.psql("""
        CREATE TABLE m (id int, r text, v int) PARTITION BY LIST (r);
        CREATE TABLE m_a PARTITION OF m FOR VALUES IN ('a');
        CREATE TABLE m_b (v int, gone int, r text, id int);
        ALTER TABLE m_b DROP COLUMN gone;
        ALTER TABLE m ATTACH PARTITION m_b FOR VALUES IN ('b');
        CREATE TABLE m_c PARTITION OF m DEFAULT PARTITION BY RANGE (id);
        CREATE TABLE m_c1 PARTITION OF m_c FOR VALUES FROM (0) TO (500);
        CREATE TABLE m_c2 PARTITION OF m_c FOR VALUES FROM (500) TO (5000);
        CREATE TABLE nothing (id int) PARTITION BY RANGE (id);
        INSERT INTO m SELECT i, chr(97 + i % 4), i % 7 FROM generate_series(1, 1000) i;
        CREATE PUBLICATION root FOR TABLE m WHERE (v > 2), nothing
            WITH (publish_via_partition_root);
        CREATE PUBLICATION leaves FOR TABLE m""")
    with copying(publisher_db, tmp_path) as copy:
        root = copy.table_copy("m", ["root"], key=("id",))
        assert len(root.published.pieces) == 4
        copy.assert_copied(root, "SELECT * FROM m WHERE v > 2")
        assert copy.assert_copied(copy.table_copy("nothing", ["root"]), "TABLE nothing") == 0
        leaf = copy.table_copy("m_b", ["leaves"])
        assert leaf.published.relation.columns[0].name == "v"
        copy.assert_copied(leaf, "SELECT * FROM m_b")
        with pytest.raises(PublicationError, match="not part of the subscribed publications"):
            copy.table_copy("m", ["leaves"])


@every_version
def test_tables_that_are_odd(publisher_db: Database, tmp_path: Path) -> None:
    """No rows, no key, dropped and generated columns, inheritance, names that need quotes."""
    publisher_db.psql("""
        CREATE TABLE empty (id int PRIMARY KEY);
        CREATE TABLE nokey (a int, b text);
        INSERT INTO nokey VALUES (1, 'x'), (1, 'x'), (NULL, NULL);
        CREATE TABLE altered (id int PRIMARY KEY, gone text, b int,
            twice int GENERATED ALWAYS AS (b * 2) STORED);
        INSERT INTO altered VALUES (1, 'x', 5);
        ALTER TABLE altered DROP COLUMN gone;
        CREATE TABLE parent (id int);
        CREATE TABLE child () INHERITS (parent);
        INSERT INTO parent VALUES (1); INSERT INTO child VALUES (2);
        CREATE SCHEMA "S 1";
        CREATE TABLE "S 1"."T ""x""; --" ("Id" int PRIMARY KEY, "v'al" text, "a.b`c" int, "%s" int);
        INSERT INTO "S 1"."T ""x""; --" VALUES (1, 'one', 2, 3);
        CREATE PUBLICATION p FOR TABLE empty, nokey, altered, parent, "S 1"."T ""x""; --"
    """)
    with copying(publisher_db, tmp_path) as copy:
        assert copy.assert_copied(copy.table_copy("empty", ["p"]), "TABLE empty") == 0
        assert copy.assert_copied(copy.table_copy("nokey", ["p"]), "TABLE nokey") == 3
        altered = copy.table_copy("altered", ["p"])
        assert copy.run(altered).rows.to_pylist() == [{"id": 1, "b": 5}]
        assert copy.run(copy.table_copy("parent", ["p"])).rows.to_pylist() == [{"id": 1}]
        odd = copy.table_copy('T "x"; --', ["p"], schema="S 1")
        assert copy.run(odd).rows.to_pylist() == [{"Id": 1, "v'al": "one", "a.b`c": 2, "%s": 3}]
        with pytest.raises(RelationMismatchError, match=r'"public\.absent" not found on publisher'):
            published_table(copy.snapshot.connection, ["p"], "public", "absent")


def test_generated_columns_of_18(publisher_db: Database, tmp_path: Path) -> None:
    """PostgreSQL 18 publishes stored generated columns when asked: by option or by a list."""
    publisher_db.psql("""
        CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED,
            virtual int GENERATED ALWAYS AS (id * 3) VIRTUAL);
        INSERT INTO t VALUES (4);
        CREATE PUBLICATION without FOR TABLE t;
        CREATE PUBLICATION stored FOR TABLE t WITH (publish_generated_columns = stored);
        CREATE PUBLICATION listed FOR TABLE t (id, twice)""")
    with copying(publisher_db, tmp_path) as copy:
        for publication, expected in (
            ("without", {"id": 4}),
            ("stored", {"id": 4, "twice": 8}),
            ("listed", {"id": 4, "twice": 8}),
        ):
            rows = copy.run(copy.table_copy("t", [publication])).rows.to_pylist()
            assert rows == [expected], publication


@every_version
def test_a_snapshot_pins_rows_and_no_log(publisher_db: Database, tmp_path: Path) -> None:
    """Rows committed after the export stay unseen in every range, and no slot keeps WAL for it."""
    publisher_db.psql("""
        CREATE TABLE t (id int PRIMARY KEY, filler text);
        INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 30000) i;
        CREATE TABLE before AS TABLE t;
        CREATE PUBLICATION p FOR TABLE t""")
    with copying(publisher_db, tmp_path) as copy:
        publisher_db.psql("""
            INSERT INTO t SELECT i, 'new' FROM generate_series(30001, 60000) i;
            UPDATE t SET filler = 'changed' WHERE id % 3 = 0; DELETE FROM t WHERE id % 3 = 1""")
        slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
        assert publisher_db.psql(slots) == "0"
        table = copy.table_copy("t", ["p"])
        copy.assert_copied(table, "TABLE before")
        assert len(copy.run(table).ranges) > 1
        assert copy.snapshot.lsn < parse_lsn(publisher_db.psql("SELECT pg_current_wal_lsn()"))


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("numeric", "NaN", "NaN"),
        ("numeric", "-Infinity", "-Infinity"),
        ("numeric", "0.1234567890123456789", "0.1234567890123456789"),
        ("numeric", "123456789012345678901", "123456789012345678901"),
        ("date", "infinity", "infinity"),
        ("date", "-infinity", "-infinity"),
        ("date", "10000-01-01", "10000-01-01"),
        ("date", "0044-03-15 BC", "0044-03-15 BC"),
        ("timestamp", "infinity", "infinity"),
        ("timestamptz", "-infinity", "-infinity"),
        ("timestamp", "294276-12-31 23:59:59", "294276-12-31"),
        ("timestamp", "0001-12-31 23:59:59 BC", "0001-12-31 BC"),
        ("int[]", "{{1,2},{3,4}}", "{{1,2},{3,4}}"),
        ("int[]", "[2:3]={1,2}", "[2:3]={1,2}"),
        ("numeric[]", "{1,NaN}", "NaN"),
        ("date[]", "{2020-01-01,infinity}", "infinity"),
    ],
)
def test_a_value_that_cannot_be_held_is_named(
    publisher_db: Database, tmp_path: Path, kind: str, value: str, shown: str
) -> None:
    """It stops the copy with table, column, value and option, and leaves no file behind."""
    publisher_db.psql(f"""
        CREATE TABLE t (id int, v {kind});
        INSERT INTO t VALUES (1, NULL), (2, '{value}');
        CREATE PUBLICATION p FOR TABLE t""")
    with copying(publisher_db, tmp_path) as copy:
        table = copy.table_copy("t", ["p"])
        with pytest.raises(ValueNotHeldError) as failed:
            copy.run(table)
        expected = f'value "{shown}" of column "v" of table "public.t" cannot be held by the lake'
        assert failed.value.message == expected
        option = "array_as" if kind.endswith("[]") else "datetime_as"
        option = "numeric_as" if kind == "numeric" else option
        assert f"SET ({option} = text)" in (failed.value.hint or "")
        assert not list(Path(table.lake.location).iterdir())


def test_trailing_zeros_are_held(publisher_db: Database, tmp_path: Path) -> None:
    """Digits beyond the lake's are no loss when they are zeros."""
    value = "1000000000000000000." + "0" * 40
    publisher_db.psql(f"""
        CREATE TABLE t (v numeric); INSERT INTO t VALUES ('{value}'), (NULL), (2.50);
        CREATE PUBLICATION p FOR TABLE t""")
    with copying(publisher_db, tmp_path) as copy:
        rows = copy.run(copy.table_copy("t", ["p"])).rows.column("v").to_pylist()
        assert [str(v) for v in rows] == [f"1{'0' * 18}.{'0' * 18}", "None", f"2.5{'0' * 17}"]


def test_columns_that_differ(publisher_db: Database, tmp_path: Path) -> None:
    """Matched by name, in any order; wider or other types as an apply worker would convert them."""
    publisher_db.psql("""
        CREATE TABLE t (id int2, f float4, n numeric(5,1), i int, tx text, tz timestamptz, d date,
                        vc varchar(3), ip inet);
        INSERT INTO t VALUES (1, 0.1, 12.3, 7, '42', '2024-01-01 12:00+00', '2024-01-02', 'abc',
                              '10.0.0.1');
        CREATE PUBLICATION p FOR TABLE t;
        CREATE SCHEMA lake;
        CREATE TABLE lake.t (extra int, ip text, vc varchar(5), d timestamp, tz text, tx int8,
                             i numeric, n numeric(10,2), f float8, id int8);
        CREATE TABLE lake.short (id int2, f float4, n numeric(5,1), i int, tx text, tz timestamptz,
                                 d date, vc varchar(2), ip inet);
        CREATE TABLE lake.lacking (id int2, f float4, i int, tx text, d date)""")
    with copying(publisher_db, tmp_path) as copy, publisher_db.connect() as connection:

        def into(name: str) -> list[dict[str, object]]:
            lake = lake_table_like(connection, "lake", name, "")
            table = copy.table_copy("t", ["p"], columns=lake.columns)
            found: list[dict[str, object]] = copy.run(table).rows.to_pylist()
            return found

        (row,) = into("t")
        assert {name: str(value) for name, value in row.items()} == {
            "id": "1",
            "f": "0.1",
            "n": "12.30",
            "i": f"7.{'0' * 18}",
            "tx": "42",
            "tz": "2024-01-01 12:00:00+00",
            "d": "2024-01-02 00:00:00",
            "vc": "abc",
            "ip": "10.0.0.1",
        }
        with pytest.raises(PenstockError, match=r"too long for type character varying\(2\)"):
            into("short")
        with pytest.raises(RelationMismatchError, match='missing replicated columns: "n", "tz"'):
            into("lacking")


def test_errors_of_the_publisher_keep_their_text(publisher_db: Database, tmp_path: Path) -> None:
    """An error while rows arrive is the publisher's own."""
    publisher_db.psql("""
        CREATE TABLE t (id int, v int);
        INSERT INTO t SELECT i, 100000 - i FROM generate_series(1, 100000) i;
        CREATE PUBLICATION p FOR TABLE t WHERE (1 / v < 2)""")
    with copying(publisher_db, tmp_path) as copy:
        table = copy.table_copy("t", ["p"])
        with pytest.raises(PenstockError, match=r"^division by zero"):
            copy.run(table)
        assert not list(Path(table.lake.location).iterdir())


def test_a_partitioned_lake_table(publisher_db: Database, tmp_path: Path) -> None:
    """Rows go to the leaf whose constraint takes them; a row that none takes is an error."""
    publisher_db.psql("""
        CREATE TABLE t (id int, r text);
        INSERT INTO t SELECT i, chr(97 + i % 3) FROM generate_series(1, 300) i;
        CREATE PUBLICATION p FOR TABLE t""")
    with copying(publisher_db, tmp_path) as copy:
        table = copy.table_copy("t", ["p"], kind="p")
        leaves = []
        for number, constraint in enumerate(["((r IS NOT NULL) AND (r = 'a'::text))", "r <> 'a'"]):
            location = tmp_path / f"leaf{number}"
            location.mkdir()
            lake = replace(table.lake, relid=10 + number, kind="r", location=str(location))
            leaves.append(one_leaf(lake, constraint))
        routed = replace(table, leaves=tuple(leaves), routed=True)
        done = copy.run(routed).ranges[0]
        assert {relid: file.rows for relid, file in done.files} == {10: 100, 11: 200}
        with pytest.raises(PenstockError, match=r'no partition of relation "public\.t" found'):
            copy.run(replace(routed, leaves=tuple(leaves[:1])))


def test_rights_on_columns_and_on_the_root_are_enough(
    publisher_db: Database, tmp_path: Path
) -> None:
    """A role that may read only some columns, or only the root, copies them without page ranges."""
    publisher_db.psql("""
        CREATE TABLE t (id int PRIMARY KEY, secret text, filler text);
        INSERT INTO t SELECT i, 's', repeat('x', 1000) FROM generate_series(1, 20000) i;
        CREATE TABLE m (id int) PARTITION BY RANGE (id);
        CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (0) TO (10);
        INSERT INTO m VALUES (1), (2);
        CREATE PUBLICATION p FOR TABLE t (id), m WITH (publish_via_partition_root);
        GRANT SELECT (id) ON t TO walreader; GRANT SELECT ON m TO walreader""")
    with copying(publisher_db, tmp_path) as copy:
        copy.snapshot.connection.execute("SET LOCAL ROLE walreader")
        columns, root = copy.table_copy("t", ["p"]), copy.table_copy("m", ["p"])
        assert [piece.size.pages for piece in columns.published.pieces] == [None]
        assert [piece.source for piece in root.published.pieces] == ['"public"."m"']
        assert copy.run(columns).rows.num_rows == 20000
        assert copy.run(root).rows.num_rows == 2
