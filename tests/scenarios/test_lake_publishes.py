# SPDX-License-Identifier: Apache-2.0
"""An unmodified PostgreSQL subscribes to the lake: copy, then every kind of change.

The lake is written through SQL; after each step the subscriber must hold its rows.
"""

from __future__ import annotations

import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.psql import PsqlError
from tests.support.published import subscribed_to, wait_same

ALL_VERSIONS = pytest.mark.parametrize("publisher", ["15", "16", "18"], indirect=True)
"""Of the subscriber: the fixture ``publisher_db`` is one new database of a server."""


@ALL_VERSIONS
def test_copied_rows_and_every_kind_of_change(publisher_db: Database, node: Node) -> None:
    """Rows that were there are copied; inserts, updates, deletes and TRUNCATE follow, in order."""
    name = f"lp_{publisher_db.server.version}"
    table = f"CREATE TABLE {name} (id int PRIMARY KEY, a text, b numeric(12,2), c timestamptz)"
    node.psql(
        f"{table}; INSERT INTO {name} SELECT g, 'row ' || g, g / 4.0,"
        " '2026-01-01Z'::timestamptz + g * interval '1 min' FROM generate_series(1, 5000) g;"
        f"CREATE PUBLICATION {name} FOR TABLE {name}"
    )
    publisher_db.psql(table)
    query = f"SELECT * FROM {name}"
    with subscribed_to(node, publisher_db, name, name):
        wait_same(node, publisher_db, name, query)
        node.psql(
            f"BEGIN; INSERT INTO {name} SELECT g, NULL, NULL, NULL"
            " FROM generate_series(5001, 5100) g;"
            f"UPDATE {name} SET a = 'new ' || id WHERE id % 7 = 0;"
            f"DELETE FROM {name} WHERE id % 11 = 0; COMMIT;"
            f"UPDATE {name} SET id = id + 100000 WHERE id BETWEEN 1 AND 20"
        )
        wait_same(node, publisher_db, name, query)
        node.psql(
            f"BEGIN; INSERT INTO {name} VALUES (-1, 'a'); SAVEPOINT s;"
            f"INSERT INTO {name} VALUES (-2, 'b'); ROLLBACK TO s;"
            f"DELETE FROM {name} WHERE id = 24; INSERT INTO {name} VALUES (24, 'again'); COMMIT;"
            f"BEGIN; DELETE FROM {name}; ROLLBACK"
        )
        wait_same(node, publisher_db, name, query)
        node.psql(
            f"BEGIN; INSERT INTO {name} VALUES (-7); TRUNCATE {name};"
            f"INSERT INTO {name} VALUES (1, 'after'); COMMIT"
        )
        wait_same(node, publisher_db, name, query)
    assert node.psql(f"SELECT FROM pg_replication_slots WHERE slot_name LIKE '%{name}%'") == ""


def test_replica_identities(publisher_db: Database, node: Node) -> None:
    """USING INDEX names rows by its columns, FULL by all; without one there is no UPDATE."""
    tables = (
        "CREATE TABLE lp_index (id int, code text NOT NULL, v int);"
        "CREATE UNIQUE INDEX lp_index_code ON lp_index (code);"
        "ALTER TABLE lp_index REPLICA IDENTITY USING INDEX lp_index_code;"
        "CREATE TABLE lp_full (a int, b text); ALTER TABLE lp_full REPLICA IDENTITY FULL;"
        "CREATE TABLE lp_none (a int)"
    )
    node.psql(
        f"{tables}; INSERT INTO lp_index VALUES (1, 'x', 1), (1, 'y', 2);"
        "INSERT INTO lp_full VALUES (1, 'a'), (1, 'a'), (NULL, 'n'), (2, NULL);"
        "CREATE PUBLICATION lp_ids FOR TABLE lp_index, lp_full, lp_none"
    )
    publisher_db.psql(tables)
    queries = ["SELECT * FROM lp_index", "SELECT * FROM lp_full", "SELECT * FROM lp_none"]
    with subscribed_to(node, publisher_db, "lp_ids", "lp_ids"):
        node.psql(
            "UPDATE lp_index SET v = 10 WHERE code = 'x'; UPDATE lp_index SET code = 'z'"
            " WHERE code = 'y'; UPDATE lp_full SET b = 'm' WHERE a IS NULL;"
            "DELETE FROM lp_full WHERE a = 2; INSERT INTO lp_none VALUES (1), (1)"
        )
        wait_same(node, publisher_db, "lp_ids", *queries)
        with pytest.raises(PsqlError, match="does not have a replica identity"):
            node.psql("UPDATE lp_none SET a = 2")


def test_row_filters_and_column_lists(publisher_db: Database, node: Node) -> None:
    """Rows enter and leave a filter as inserts and deletes; unlisted columns are not sent."""
    node.psql(
        "CREATE TABLE lp_filtered (id int, k int, v text, w text, PRIMARY KEY (id, k));"
        "INSERT INTO lp_filtered SELECT g, g % 20, 'v' || g, 'secret' FROM"
        " generate_series(1, 100) g;"
        "CREATE PUBLICATION lp_filtered FOR TABLE lp_filtered (id, k, v) WHERE (k > 10)"
    )
    publisher_db.psql(
        "CREATE TABLE lp_filtered (v text, extra int DEFAULT 7, k int, id int, PRIMARY KEY (id, k))"
    )
    lake = "SELECT id, k, v, 7 FROM lp_filtered WHERE k > 10"
    native = "SELECT id, k, v, extra FROM lp_filtered"
    with subscribed_to(node, publisher_db, "lp_filtered", "lp_filtered"):
        _wait_for(node, publisher_db, "lp_filtered", lake, native)
        node.psql(
            "UPDATE lp_filtered SET k = k + 5 WHERE id BETWEEN 1 AND 30;"  # in and out
            "UPDATE lp_filtered SET v = v || '!', w = 'other' WHERE id > 50;"
            "DELETE FROM lp_filtered WHERE id % 3 = 0;"
            "INSERT INTO lp_filtered VALUES (1000, 10, 'out', NULL), (1001, 11, 'in', NULL);"
            "UPDATE lp_filtered SET k = 30 - k WHERE id > 999"
        )
        _wait_for(node, publisher_db, "lp_filtered", lake, native)


def test_truncates_of_several_and_of_partitioned_tables(publisher_db: Database, node: Node) -> None:
    """As one: so foreign keys allow it there, and one of a published root is the root's."""
    tables = "CREATE TABLE lp_to (id int PRIMARY KEY); CREATE TABLE lp_from (id int PRIMARY KEY"
    root = "CREATE TABLE lp_tree (id int PRIMARY KEY, v text)"
    node.psql(
        f"{tables}, at int); {root} PARTITION BY RANGE (id);"
        "CREATE TABLE lp_tree_low PARTITION OF lp_tree FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE lp_tree_high PARTITION OF lp_tree FOR VALUES FROM (10) TO (20);"
        "INSERT INTO lp_to VALUES (1), (2); INSERT INTO lp_from VALUES (1, 1), (2, 2);"
        "INSERT INTO lp_tree VALUES (1, 'low'), (11, 'high');"
        "CREATE PUBLICATION lp_emptied FOR TABLE lp_to, lp_from, lp_tree"
        " WITH (publish_via_partition_root)"
    )
    publisher_db.psql(f"{tables}, at int REFERENCES lp_to); {root}")
    queries = ["SELECT * FROM lp_to", "SELECT * FROM lp_from", "SELECT * FROM lp_tree"]
    with subscribed_to(node, publisher_db, "lp_emptied", "lp_emptied"):
        wait_same(node, publisher_db, "lp_emptied", *queries)
        node.psql(
            "UPDATE lp_tree SET id = id + 11 WHERE id = 1; INSERT INTO lp_tree VALUES (2, 'low')"
        )
        wait_same(node, publisher_db, "lp_emptied", *queries)
        node.psql(
            "BEGIN; INSERT INTO lp_tree VALUES (3, 'gone'); TRUNCATE lp_tree, lp_from, lp_to;"
            "INSERT INTO lp_tree VALUES (13, 'new'), (4, 'new'); INSERT INTO lp_to VALUES (3);"
            "INSERT INTO lp_from VALUES (7, 3); COMMIT"
        )
        wait_same(node, publisher_db, "lp_emptied", *queries)


def _wait_for(node: Node, database: Database, name: str, lake: str, native: str) -> None:
    """The lake's rows of one query are the subscriber's of another, once all is applied."""
    wait_same(node, database, name)
    rows = sorted(node.psql(lake).splitlines())
    assert rows == sorted(database.psql(native).splitlines())
    assert rows
