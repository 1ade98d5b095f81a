# SPDX-License-Identifier: Apache-2.0
"""penstock.explain_publication: what a publication publishes now, and what is wrong with it."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.node import Node
from tests.support.psql import PsqlError

COLUMNS = "table_name, rows, bytes > 0, columns, row_filter"


def explained(node: Node, columns: str, publication: str) -> list[list[str]]:
    """Rows of the function, by table."""
    query = f"SELECT {columns} FROM penstock.explain_publication('{publication}') ORDER BY 1"
    return [line.split("|") for line in node.psql(query).splitlines()]


def test_rows_bytes_and_columns(node: Node) -> None:
    """Of plain and partitioned tables, with deleted rows, through filters; wherever it stands."""
    node.psql(
        "CREATE TABLE ep_t (id int PRIMARY KEY, a int, note text);"
        "CREATE TABLE ep_r (id int, a int) PARTITION BY RANGE (id);"
        "CREATE TABLE ep_low PARTITION OF ep_r FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE ep_high (a int, id int); CREATE TABLE ep_empty (id int);"
        "ALTER TABLE ep_r ATTACH PARTITION ep_high FOR VALUES FROM (10) TO (20);"
        "INSERT INTO ep_t SELECT g, g % 10, 'n' FROM generate_series(1, 100) g;"
        "INSERT INTO ep_r SELECT g, g % 5 FROM generate_series(0, 19) g;"
        "DELETE FROM ep_t WHERE id <= 10;"
        'CREATE PUBLICATION "ep p\'" FOR TABLE ep_t (id, a) WHERE (id > 50 AND a <> 3), ep_empty,'
        " ep_r WHERE (a = 1) WITH (publish_via_partition_root);"
        "CREATE PUBLICATION ep_leaves FOR TABLE ep_r"
    )
    assert explained(node, COLUMNS, "ep p''") == [
        ["ep_empty", "0", "f", "{id}", ""],
        ["ep_r", "4", "t", "{id,a}", "(a = 1)"],
        ["ep_t", "45", "t", "{id,a}", "((id > 50) AND (a <> 3))"],
    ]
    assert explained(node, COLUMNS, "ep_leaves") == [
        ["ep_high", "10", "t", "{a,id}", ""],
        ["ep_low", "10", "t", "{id,a}", ""],
    ]
    with node.connect() as conn:
        total = "SELECT sum(rows) FROM penstock.explain_publication('ep_leaves') WHERE rows > %s"
        assert conn.execute(total, [1]).fetchall() == [(20,)]
        with conn.transaction():
            conn.execute("INSERT INTO ep_r VALUES (19, 1)")
            assert conn.execute(total, [1]).fetchall() == [(21,)]
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="must be a string constant"):
            conn.execute("SELECT * FROM penstock.explain_publication(%s)", ["ep_leaves"])
    with pytest.raises(PsqlError, match='publication "none" does not exist'):
        explained(node, "1", "none")
    node.psql("CREATE ROLE ep_nobody LOGIN PASSWORD 'x'")
    with pytest.raises(PsqlError, match="permission denied for table ep_"):
        node.psql("SET ROLE ep_nobody; SELECT * FROM penstock.explain_publication('ep_leaves')")


def test_identity_problems_and_what_mends_them(node: Node) -> None:
    """PostgreSQL refuses an UPDATE with that reason; after the statement it does not."""
    node.psql(
        "CREATE TABLE ei_none (id int); CREATE TABLE ei_index (id int, a int NOT NULL);"
        "CREATE UNIQUE INDEX ei_by_a ON ei_index (a);"
        "CREATE TABLE ei_filter (id int PRIMARY KEY, a int);"
        "CREATE TABLE ei_wide (id int PRIMARY KEY, a int NOT NULL);"
        "CREATE UNIQUE INDEX ei_by_both ON ei_wide (a, id);"
        "CREATE TABLE ei_list (id int PRIMARY KEY, a int, b int);"
        "CREATE TABLE ei_full (id int PRIMARY KEY, a int);"
        "ALTER TABLE ei_full REPLICA IDENTITY FULL;"
        "CREATE TABLE ei_good (id int PRIMARY KEY);"
        "CREATE PUBLICATION ei FOR TABLE ei_none, ei_index, ei_filter WHERE (a > 1), ei_good,"
        " ei_wide WHERE (a > 1), ei_list (a) WHERE (b > 1), ei_full (id);"
        "CREATE PUBLICATION ei_inserts FOR TABLE ei_none WITH (publish = 'insert')"
    )
    found = explained(node, "table_name, problem, solution", "ei")
    where = "Column used in the publication WHERE expression is not part of the replica identity."
    listed = "Column list used by the publication does not cover the replica identity."
    none = "The table does not have a replica identity."
    assert found == [
        ["ei_filter", where, "ALTER TABLE public.ei_filter REPLICA IDENTITY FULL;"],
        ["ei_full", listed, "ALTER TABLE public.ei_full REPLICA IDENTITY DEFAULT;"],
        ["ei_good", "", ""],
        ["ei_index", none, "ALTER TABLE public.ei_index REPLICA IDENTITY USING INDEX ei_by_a;"],
        [
            "ei_list",
            where,
            "ALTER PUBLICATION ei DROP TABLE public.ei_list;"
            " ALTER PUBLICATION ei ADD TABLE public.ei_list WHERE (b > 1);"
            " ALTER TABLE public.ei_list REPLICA IDENTITY FULL;",
        ],
        ["ei_none", none, "ALTER TABLE public.ei_none REPLICA IDENTITY FULL;"],
        ["ei_wide", where, "ALTER TABLE public.ei_wide REPLICA IDENTITY USING INDEX ei_by_both;"],
    ]
    assert explained(node, "table_name, problem", "ei_inserts") == [["ei_none", ""]]
    node.psql("DROP PUBLICATION ei_inserts")
    for name, problem, solution in found:
        update = f"UPDATE {name} SET {'a = 1' if name in ('ei_list', 'ei_full') else 'id = 1'}"
        if problem:
            with pytest.raises(PsqlError, match=f'cannot update table "{name}"'):
                node.psql(update)
            node.psql(solution)
        node.psql(update)
    assert {row[1] for row in explained(node, "table_name, problem", "ei")} == {""}
