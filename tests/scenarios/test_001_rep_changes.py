# SPDX-License-Identifier: Apache-2.0
"""Copy, then inserts, updates, deletes and truncates, for every replica identity.

After PostgreSQL's 001_rep_changes: once in every topology, then with a lake that subscribes to each
version of PostgreSQL.  After each change the subscriber must hold the publisher's rows.
"""

from __future__ import annotations

import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.subscribing import subscribed, wait_equal
from tests.support.topology import Ends

ALL_VERSIONS = pytest.mark.parametrize("publisher", ["15", "16", "18"], indirect=True)


TABLES = """
CREATE TABLE rep_ins (a int);
CREATE TABLE rep_not (a int);
CREATE TABLE rep_key (a int PRIMARY KEY, b text);
CREATE TABLE rep_full (a int, b text);
ALTER TABLE rep_full REPLICA IDENTITY FULL;
CREATE TABLE rep_two (a text, b int, c text, PRIMARY KEY (b, a));
CREATE TABLE rep_include (a int, b text, v int);
CREATE UNIQUE INDEX rep_include_a ON rep_include (a) INCLUDE (b);
ALTER TABLE rep_include ALTER a SET NOT NULL, REPLICA IDENTITY USING INDEX rep_include_a;
"""


def test_a_subscription_from_its_begin_to_its_end(ends: Ends) -> None:
    """Copied rows and all kinds of changes arrive, for each replica identity; others do not.

    What a publication publishes can change, and so can the subscription's name, connection and
    state.  A change of a row that is missing is left out.  At the end nothing of it is left.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    ends.both(TABLES)
    queries = ("rep_key", "rep_full", "rep_two", "rep_include")
    publisher.psql(
        "INSERT INTO rep_not VALUES (1);"
        "INSERT INTO rep_ins SELECT g FROM generate_series(1, 50) g;"
        "INSERT INTO rep_key SELECT g, 'row ' || g FROM generate_series(1, 50) g;"
        "INSERT INTO rep_full VALUES (1, 'x'), (1, 'x'), (2, NULL), (NULL, 'n');"
        "INSERT INTO rep_two VALUES ('a', 1, 'c'), ('b', 1, NULL);"
        "INSERT INTO rep_include VALUES (1, 'one', 1), (2, 'two', 2)",
        "CREATE PUBLICATION rep FOR TABLE rep_key, rep_full, rep_two, rep_include",
        "CREATE PUBLICATION rep_ins FOR TABLE rep_ins WITH (publish = 'insert')",
    )
    ends.subscribe("rep", "rep, rep_ins")
    ends.same(*queries, "rep_ins")
    assert subscriber.rows("rep_not") == []
    ends.sent(
        "rep",
        "INSERT INTO rep_ins SELECT g FROM generate_series(51, 60) g;"
        "INSERT INTO rep_not VALUES (2);"
        "DELETE FROM rep_key WHERE a % 3 = 0; UPDATE rep_key SET a = -a WHERE a % 5 = 0;"
        "UPDATE rep_key SET b = NULL WHERE a = 7; INSERT INTO rep_key VALUES (3, 'again');"
        "UPDATE rep_full SET b = 'y' WHERE b IS NULL; DELETE FROM rep_full WHERE a IS NULL;"
        "UPDATE rep_full SET a = 5 WHERE b = 'x'; INSERT INTO rep_full VALUES (5, 'x');"
        "UPDATE rep_two SET a = 'z', c = 'C' WHERE a = 'a'; DELETE FROM rep_two WHERE c IS NULL;"
        "UPDATE rep_include SET b = 'ONE', v = 10 WHERE a = 1; DELETE FROM rep_include WHERE a = 2",
    )
    ends.same(*queries, "rep_ins")
    assert subscriber.rows("rep_not") == []

    # Of a row that is not there, and beside others that are.
    subscriber.psql("DELETE FROM rep_key WHERE a IN (1, 2, 4)")
    ends.sent(
        "rep",
        "UPDATE rep_key SET b = 'lost' WHERE a = 1; DELETE FROM rep_key WHERE a = 2;"
        "UPDATE rep_key SET b = 'found' WHERE a = 8",
    )
    missing = "SELECT * FROM rep_key WHERE a NOT IN (1, 4)"
    assert subscriber.rows("rep_key") == publisher.rows(missing)

    # Other kinds of changes, another name, another connection, and a pause.
    publisher.psql("ALTER PUBLICATION rep_ins SET (publish = 'insert, delete')")
    publisher.psql("ALTER TABLE rep_ins REPLICA IDENTITY FULL")
    ends.sent("rep", "DELETE FROM rep_ins WHERE a > 20; TRUNCATE rep_ins")
    assert subscriber.rows("rep_ins") == sorted(map(str, range(1, 21)))
    subscriber.psql(
        "ALTER SUBSCRIPTION rep DISABLE", "ALTER SUBSCRIPTION rep RENAME TO rep_renamed"
    )
    publisher.psql("INSERT INTO rep_key VALUES (100, 'while disabled')")
    subscriber.psql(
        f"ALTER SUBSCRIPTION rep_renamed CONNECTION '{publisher.conninfo} application_name=other'",
        "ALTER SUBSCRIPTION rep_renamed ENABLE",
    )
    ends.sent("rep_renamed", "UPDATE rep_key SET b = 'and after' WHERE a = 100")
    assert "100|and after" in subscriber.rows("rep_key")
    names = "SELECT count(*) FROM pg_stat_replication WHERE application_name = 'other'"
    assert publisher.psql(names) == "1"

    subscriber.psql("DROP SUBSCRIPTION rep_renamed")
    slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'rep'"
    assert publisher.psql(slots) == "0"
    left = "SELECT count(*) FROM pg_subscription_rel r WHERE NOT EXISTS"
    assert subscriber.psql(f"{left} (SELECT FROM pg_subscription WHERE oid = r.srsubid)") == "0"
    publisher.psql("INSERT INTO rep_key VALUES (101, 'never sent')")


@ALL_VERSIONS
def test_changes_of_a_table_with_a_primary_key(publisher_db: Database, node: Node) -> None:
    """The copied rows and then every kind of change arrive; a changed key leaves no old row."""
    publisher_db.psql(
        "CREATE TABLE rc_keyed (id int PRIMARY KEY, a text, b numeric(12,2), c timestamptz);"
        "INSERT INTO rc_keyed SELECT g, 'row ' || g, g / 4.0, '2026-01-01Z'::timestamptz"
        "  + g * interval '1 min' FROM generate_series(1, 5000) g;"
        "CREATE PUBLICATION rc_keyed FOR TABLE rc_keyed"
    )
    query = "SELECT * FROM rc_keyed"
    with subscribed(node, publisher_db, "rc_keyed", "rc_keyed"):
        wait_equal(publisher_db, query, node)
        publisher_db.psql(
            "BEGIN; INSERT INTO rc_keyed SELECT g, NULL, NULL, NULL"
            " FROM generate_series(5001, 5100) g;"
            "UPDATE rc_keyed SET a = 'new ' || id WHERE id % 7 = 0;"
            "DELETE FROM rc_keyed WHERE id % 11 = 0; COMMIT;"
            "UPDATE rc_keyed SET id = id + 100000 WHERE id BETWEEN 1 AND 20;"
        )
        wait_equal(publisher_db, query, node)
        publisher_db.psql(
            "BEGIN; UPDATE rc_keyed SET id = -1 WHERE id = 21; UPDATE rc_keyed SET id = 21"
            " WHERE id = 23; UPDATE rc_keyed SET id = 23 WHERE id = -1;"
            "DELETE FROM rc_keyed WHERE id = 24; INSERT INTO rc_keyed VALUES (24, 'again');"
            "INSERT INTO rc_keyed VALUES (-5, 'gone'); DELETE FROM rc_keyed WHERE id = -5; COMMIT"
        )
        wait_equal(publisher_db, query, node)
        publisher_db.psql(
            "BEGIN; INSERT INTO rc_keyed VALUES (-7); TRUNCATE rc_keyed;"
            "INSERT INTO rc_keyed VALUES (1, 'after'); COMMIT"
        )
        wait_equal(publisher_db, query, node)


def test_replica_identity_index_full_and_nothing(publisher_db: Database, node: Node) -> None:
    """USING INDEX finds rows by its columns, FULL by the whole row, NOTHING sends inserts only."""
    publisher_db.psql(
        "CREATE TABLE rc_index (id int, code text NOT NULL, v int);"
        "CREATE UNIQUE INDEX rc_index_code ON rc_index (code);"
        "ALTER TABLE rc_index REPLICA IDENTITY USING INDEX rc_index_code;"
        "CREATE TABLE rc_full (a int, b text); ALTER TABLE rc_full REPLICA IDENTITY FULL;"
        "CREATE TABLE rc_nothing (a int);"
        "INSERT INTO rc_index VALUES (1, 'x', 1), (1, 'y', 2);"
        "INSERT INTO rc_full VALUES (1, 'a'), (1, 'a'), (1, 'a'), (NULL, 'n'), (NULL, 'n');"
        "INSERT INTO rc_full VALUES (2, NULL);"
        "INSERT INTO rc_nothing VALUES (1), (1);"
        "CREATE PUBLICATION rc_index FOR TABLE rc_index, rc_full;"
        "CREATE PUBLICATION rc_nothing FOR TABLE rc_nothing WITH (publish = 'insert')"
    )
    queries = ["SELECT * FROM rc_index", "SELECT * FROM rc_full", "SELECT * FROM rc_nothing"]
    with subscribed(node, publisher_db, "rc_index", "rc_index, rc_nothing"):
        for query in queries:
            wait_equal(publisher_db, query, node)
        publisher_db.psql(
            "UPDATE rc_index SET v = 10 WHERE code = 'x'; UPDATE rc_index SET code = 'z'"
            " WHERE code = 'y'; DELETE FROM rc_full WHERE ctid = (SELECT min(ctid) FROM rc_full"
            " WHERE a = 1); UPDATE rc_full SET b = 'm' WHERE ctid = (SELECT min(ctid) FROM rc_full"
            " WHERE a IS NULL); INSERT INTO rc_full VALUES (1, 'a'), (2, NULL);"
            "DELETE FROM rc_full WHERE a = 2; INSERT INTO rc_nothing VALUES (1), (2)"
        )
        for query in queries:
            wait_equal(publisher_db, query, node)


def test_row_filters_and_column_lists_hold_for_copy_and_stream(
    publisher_db: Database, node: Node
) -> None:
    """Rows move in and out of the filter; unpublished columns never arrive."""
    publisher_db.psql(
        "CREATE TABLE rc_filter (id int, region text, secret text, v int,"
        " PRIMARY KEY (id, region));"
        "INSERT INTO rc_filter SELECT g, (ARRAY['NSW', 'VIC'])[1 + g % 2], 'canary', g"
        " FROM generate_series(1, 1000) g;"
        "CREATE PUBLICATION rc_filter FOR TABLE rc_filter (id, region, v) WHERE (region = 'NSW')"
    )
    query = "SELECT id, region, v FROM rc_filter"
    with subscribed(node, publisher_db, "rc_filter", "rc_filter"):
        columns = node.psql(
            "SELECT string_agg(attname, ',' ORDER BY attnum) FROM pg_attribute"
            " WHERE attrelid = 'rc_filter'::regclass AND attnum > 0"
        )
        assert columns == "id,region,v"
        wait_equal(publisher_db, f"{query} WHERE region = 'NSW'", node, query)
        publisher_db.psql(
            "UPDATE rc_filter SET region = 'NSW' WHERE id BETWEEN 1 AND 9;"
            "UPDATE rc_filter SET region = 'VIC' WHERE id BETWEEN 900 AND 950;"
            "UPDATE rc_filter SET v = -v WHERE id BETWEEN 100 AND 110;"
            "DELETE FROM rc_filter WHERE id BETWEEN 200 AND 220"
        )
        wait_equal(publisher_db, f"{query} WHERE region = 'NSW'", node, query)


def test_tables_of_one_transaction_become_visible_together(
    publisher_db: Database, node: Node
) -> None:
    """A join of two tables that change together never shows one without the other."""
    publisher_db.psql(
        "CREATE TABLE rc_debit (id int PRIMARY KEY, v int);"
        "CREATE TABLE rc_credit (id int PRIMARY KEY, v int);"
        "INSERT INTO rc_debit VALUES (1, 0); INSERT INTO rc_credit VALUES (1, 0);"
        "CREATE PUBLICATION rc_pair FOR TABLE rc_debit, rc_credit"
    )
    seen = set()
    with subscribed(node, publisher_db, "rc_pair", "rc_pair"):
        for value in (1, 2, 3):
            publisher_db.psql(
                f"BEGIN; UPDATE rc_debit SET v = {value}; UPDATE rc_credit SET v = {value}; COMMIT"
            )
            pair = ""
            while pair != f"{value}|{value}":
                pair = node.psql("SELECT d.v, c.v FROM rc_debit d JOIN rc_credit c USING (id)")
                seen.add(pair)
    assert all(len(set(pair.split("|"))) == 1 for pair in seen), seen


def test_partitions_of_the_publisher(publisher_db: Database, node: Node) -> None:
    """By root the rows come as the root's, otherwise as their leaf's; empty leaves, too."""
    publisher_db.psql(
        "CREATE TABLE rc_root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE rc_root_1 PARTITION OF rc_root FOR VALUES FROM (0) TO (100);"
        "CREATE TABLE rc_root_2 PARTITION OF rc_root FOR VALUES FROM (100) TO (200);"
        "CREATE TABLE rc_root_3 PARTITION OF rc_root DEFAULT;"
        "INSERT INTO rc_root SELECT g, 'v' || g FROM generate_series(1, 150) g;"
        "CREATE PUBLICATION rc_via FOR TABLE rc_root WITH (publish_via_partition_root);"
        "CREATE PUBLICATION rc_leaf FOR TABLE rc_root"
    )
    change = (
        "UPDATE rc_root SET v = 'moved' WHERE id % 10 = 0; UPDATE rc_root SET id = id + 100"
        " WHERE id BETWEEN 61 AND 69; INSERT INTO rc_root VALUES (1000, 'far');"
        "DELETE FROM rc_root WHERE id BETWEEN 20 AND 25"
    )
    with subscribed(node, publisher_db, "rc_via", "rc_via"):
        wait_equal(publisher_db, "SELECT * FROM rc_root", node)
        publisher_db.psql(change)
        wait_equal(publisher_db, "SELECT * FROM rc_root", node)
    with subscribed(node, publisher_db, "rc_leaf", "rc_leaf"):
        for leaf in ("rc_root_1", "rc_root_2", "rc_root_3"):
            wait_equal(publisher_db, f"SELECT * FROM {leaf}", node)
        publisher_db.psql("DELETE FROM rc_root WHERE id > 900; " + change)
        for leaf in ("rc_root_1", "rc_root_2", "rc_root_3"):
            wait_equal(publisher_db, f"SELECT * FROM {leaf}", node)


def test_a_partitioned_lake_table_takes_rows_by_its_own_partitions(
    publisher_db: Database, node: Node
) -> None:
    """An unpartitioned table of the publisher is routed by the lake's ranges; moves included."""
    publisher_db.psql(
        "CREATE TABLE rc_into (id int PRIMARY KEY, v text);"
        "INSERT INTO rc_into SELECT g, 'v' || g FROM generate_series(1, 300) g;"
        "CREATE PUBLICATION rc_into FOR TABLE rc_into"
    )
    node.psql(
        "CREATE TABLE rc_into (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE rc_into_low PARTITION OF rc_into FOR VALUES FROM (MINVALUE) TO (100);"
        "CREATE TABLE rc_into_rest PARTITION OF rc_into DEFAULT;"
    )
    with subscribed(node, publisher_db, "rc_into", "rc_into"):
        wait_equal(publisher_db, "SELECT * FROM rc_into", node)
        publisher_db.psql(
            "UPDATE rc_into SET id = id + 1000 WHERE id < 10; INSERT INTO rc_into VALUES (-3, 'n');"
            "DELETE FROM rc_into WHERE id = 50; UPDATE rc_into SET v = 'w' WHERE id IN (60, 160)"
        )
        wait_equal(publisher_db, "SELECT * FROM rc_into", node)
        wait_equal(
            publisher_db,
            "SELECT * FROM rc_into WHERE id < 100",
            node,
            "SELECT * FROM rc_into_low",
        )


def test_empty_tables_and_tables_without_a_key(publisher_db: Database, node: Node) -> None:
    """An empty table is in sync at once and takes what comes; without a key inserts just add up."""
    publisher_db.psql(
        "CREATE TABLE rc_empty (id int PRIMARY KEY); CREATE TABLE rc_nokey (a int, b text);"
        "INSERT INTO rc_nokey VALUES (1, 'x'), (1, 'x');"
        "CREATE PUBLICATION rc_plain FOR TABLE rc_empty, rc_nokey"
    )
    with subscribed(node, publisher_db, "rc_plain", "rc_plain"):
        assert node.psql("SELECT count(*) FROM rc_empty") == "0"
        publisher_db.psql("INSERT INTO rc_empty VALUES (1); INSERT INTO rc_nokey VALUES (1, 'x')")
        wait_equal(publisher_db, "SELECT * FROM rc_empty", node)
        wait_equal(publisher_db, "SELECT * FROM rc_nokey", node)


def test_columns_that_only_the_lake_has_get_their_default(
    publisher_db: Database, node: Node
) -> None:
    """Copied and streamed rows have the default; an update leaves what is there."""
    publisher_db.psql(
        "CREATE TABLE rc_extra (id int PRIMARY KEY, a text); INSERT INTO rc_extra VALUES (1, 'x');"
        "CREATE PUBLICATION rc_extra FOR TABLE rc_extra"
    )
    node.psql(
        "CREATE TABLE rc_extra (note text DEFAULT 'from pub''lisher', n numeric(6,2) DEFAULT 1.5,"
        " b bytea DEFAULT '\\x0aff', a text, id int PRIMARY KEY, nothing int,"
        " day date DEFAULT '2026-02-28', ok bool DEFAULT true)"
    )
    with subscribed(node, publisher_db, "rc_extra", "rc_extra"):
        publisher_db.psql("INSERT INTO rc_extra VALUES (2, 'y'); UPDATE rc_extra SET a = 'z'")
        wait_equal(publisher_db, "SELECT id, a FROM rc_extra", node)
        extra = "SELECT DISTINCT note, n, b, nothing, day, ok FROM rc_extra"
        assert node.psql(extra) == "from pub'lisher|1.50|\\x0aff||2026-02-28|t"


def test_columns_that_the_publisher_adds_are_followed(publisher_db: Database, node: Node) -> None:
    """ADD COLUMN on the publisher reaches the lake with the value that existing rows got."""
    publisher_db.psql(
        "CREATE TABLE rc_grow (id int PRIMARY KEY); INSERT INTO rc_grow VALUES (1), (2);"
        "CREATE PUBLICATION rc_grow FOR TABLE rc_grow"
    )
    with subscribed(node, publisher_db, "rc_grow", "rc_grow"):
        publisher_db.psql(
            "ALTER TABLE rc_grow ADD COLUMN v text DEFAULT 'old', ADD COLUMN w int;"
            "INSERT INTO rc_grow VALUES (3, 'new', 7)"
        )
        wait_equal(publisher_db, "SELECT * FROM rc_grow", node)
