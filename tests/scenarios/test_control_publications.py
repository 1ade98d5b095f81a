# SPDX-License-Identifier: Apache-2.0
"""Publications in the catalog of every supported server version, and as subscribers see them."""

from __future__ import annotations

import psycopg
import pytest

from penstock.control.address import ControlAddress
from penstock.control.connect import ControlConnection, connect
from penstock.control.publications import publication_facts
from penstock.errors import PublicationError
from tests.support.fix_servers import Database

SETUP = """
    CREATE SCHEMA s;
    CREATE TABLE plain (gone int, id int PRIMARY KEY, "odd "" name" text NOT NULL,
        twice int GENERATED ALWAYS AS (id * 2) STORED);
    ALTER TABLE plain DROP COLUMN gone;
    CREATE UNIQUE INDEX plain_index ON plain ("odd "" name") INCLUDE (id);
    ALTER TABLE plain REPLICA IDENTITY USING INDEX plain_index;
    CREATE TABLE root (id int, a int) PARTITION BY RANGE (id);
    CREATE TABLE s.middle PARTITION OF root FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (id);
    CREATE TABLE leaf PARTITION OF s.middle FOR VALUES FROM (0) TO (5);
    ALTER TABLE leaf REPLICA IDENTITY FULL;
    CREATE UNLOGGED TABLE passing (id int);
    CREATE PUBLICATION filtered FOR TABLE plain (id, "odd "" name") WHERE (id > 1)
        WITH (publish = 'insert');
    CREATE PUBLICATION root FOR TABLE root WITH (publish_via_partition_root, publish = 'update');
    CREATE PUBLICATION in_schema FOR TABLES IN SCHEMA s WITH (publish = 'delete, truncate');
    CREATE PUBLICATION everything FOR ALL TABLES"""

_OIDS = "SELECT " + ", ".join(
    f"'{name}'::regclass::oid::int8" for name in ("plain", "s.middle", "leaf", "root", "passing")
)


@pytest.mark.parametrize("publisher", ["15", "16", "18"], indirect=True)
def test_facts_are_those_of_the_catalog(publisher_db: Database) -> None:
    """Publications in the order named; relations with keys, generated columns and ancestors."""
    publisher_db.psql(SETUP)
    with ControlConnection.connect(publisher_db.conninfo, autocommit=True) as conn:
        plain, middle, leaf, root, unlogged = conn.execute(_OIDS.encode()).fetchall()[0]
        (schema,) = conn.execute("SELECT 's'::regnamespace::oid::int8").fetchall()[0]
        names = ["root", "filtered", "in_schema", "everything", "root"]
        facts = publication_facts(conn, names, [plain, leaf, unlogged])
        with pytest.raises(PublicationError, match='publication "none" does not exist'):
            publication_facts(conn, ["root", "none"], [plain])
    assert [each.name for each in facts.publications] == names[:-1]
    by_root, filtered, in_schema, everything = facts.publications
    assert by_root.via_root
    assert not filtered.via_root
    actions = [sorted(each.actions) for each in facts.publications[:3]]
    assert actions == [["update"], ["insert"], ["delete", "truncate"]]
    assert everything.all_tables
    assert not filtered.all_tables
    assert facts.schemas == {(in_schema.oid, schema)}
    assert set(facts.tables) == {(by_root.oid, root), (filtered.oid, plain)}
    named = facts.tables[filtered.oid, plain]
    assert named.columns == (2, 3)
    assert named.where is not None
    assert named.where.startswith("{OPEXPR")
    assert set(facts.relations) == {plain, middle, leaf, root}
    assert facts.relations[leaf].ancestors == (middle, root)
    assert facts.relations[leaf].identity == "f"
    assert all(each.key for each in facts.relations[leaf].columns)
    assert facts.relations[middle].kind == "p"
    assert facts.relations[plain].identity == "i"
    assert [(c.column.attnum, c.key, c.generated) for c in facts.relations[plain].columns] == [
        (2, False, ""), (3, True, ""), (4, False, "s")
    ]  # fmt: skip


def test_all_tables_are_those_of_the_lake(any_control: ControlAddress) -> None:
    """However a subscriber asks for them: the node's own are not among them, lists are as ever."""
    with connect(any_control) as conn:
        conn.execute(
            "CREATE TABLE public.t (id int PRIMARY KEY, a int);"
            "CREATE TABLE public.u (id int);"
            "CREATE PUBLICATION every FOR ALL TABLES;"
            "CREATE PUBLICATION one FOR TABLE public.t (id) WHERE (id > 1);"
            "SET search_path = ''"
        )
        by_view = conn.execute(  # a subscriber of 15
            "SELECT DISTINCT t.schemaname, t.tablename, t.attnames"
            " FROM pg_catalog.pg_publication_tables t WHERE t.pubname IN ('every') ORDER BY 2"
        ).fetchall()
        assert by_view == [("public", "t", ["id", "a"]), ("public", "u", ["id"])]
        by_function = conn.execute(  # of 16 and later
            "SELECT DISTINCT n.nspname, c.relname, gpt.attrs::text FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace"
            " JOIN (SELECT (pg_get_publication_tables(VARIADIC array_agg(pubname::text))).*"
            "       FROM pg_publication WHERE pubname IN ('every', 'one')) AS gpt"
            " ON gpt.relid = c.oid"
        ).fetchall()
        assert sorted(by_function) == [
            ("public", "t", "1"), ("public", "t", "1 2"), ("public", "u", "1")
        ]  # fmt: skip
        copied = conn.execute(  # table sync: the list and the filter
            "SELECT gpt.attrs::text, pg_get_expr(gpt.qual, gpt.relid) FROM pg_publication p,"
            " LATERAL pg_get_publication_tables(p.pubname) gpt"
            " WHERE gpt.relid = 'public.t'::regclass AND p.pubname IN ('one')"
        ).fetchall()
        assert copied == [("1", "(id > 1)")]
        with pytest.raises(psycopg.errors.UndefinedObject, match='"none" does not exist'):
            conn.execute("SELECT * FROM pg_get_publication_tables('none')")
