# SPDX-License-Identifier: Apache-2.0
"""Row filters: each kind of change, several publications, publications without, partitions, TOAST.

After PostgreSQL's 028_row_filter; a lake refuses inherited tables, so they are left out.
"""

from __future__ import annotations

from tests.support.topology import Ends


def test_rows_enter_and_leave(ends: Ends) -> None:
    """An UPDATE is judged by both rows: it comes as INSERT, DELETE, UPDATE, or not at all.

    Null is not true, a filter counts for the copy whatever it publishes, and a changed filter from
    then on.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    table = "CREATE TABLE fil (a int PRIMARY KEY, b text, c int)"
    ends.both(table, table.replace("TABLE fil", "TABLE fil_only"))
    rows = "VALUES (1, 'one', 1), (990, 'x', NULL), (1002, 'in', 2), (1003, NULL, 3)"
    publisher.psql(f"INSERT INTO fil {rows}; INSERT INTO fil_only {rows}")
    publisher.psql("ALTER TABLE fil REPLICA IDENTITY FULL")
    publisher.psql(
        "CREATE PUBLICATION fil FOR TABLE fil WHERE (a > 1000 AND b <> 'out' AND c < 100)",
        "CREATE PUBLICATION fil_only FOR TABLE fil_only WHERE (a > 1000)"
        " WITH (publish = 'insert, delete')",
    )
    ends.subscribe("fil", "fil, fil_only")
    assert subscriber.rows("fil") == ["1002|in|2"]
    assert subscriber.rows("fil_only") == ["1002|in|2", r"1003|\N|3"]
    ends.sent(
        "fil",
        "INSERT INTO fil VALUES (1004, 'new', 4), (1005, 'out', 5), (5, 'small', 5);"
        "UPDATE fil SET b = 'now in' WHERE a IN (1003, 1); UPDATE fil SET c = 500 WHERE a = 1002;"
        "UPDATE fil SET b = 'still' WHERE a = 1004; UPDATE fil SET c = NULL WHERE a = 1005;"
        "DELETE FROM fil WHERE a = 990",
    )
    assert subscriber.rows("fil") == ["1003|now in|3", "1004|still|4"]
    ends.sent(
        "fil",
        "UPDATE fil SET a = 2000 WHERE a = 1; UPDATE fil SET a = 10 WHERE a = 1003;"
        "UPDATE fil_only SET b = 'not sent' WHERE a = 1002; DELETE FROM fil_only WHERE a = 1003;"
        "INSERT INTO fil_only VALUES (7, '', 7), (1007, '', 7)",
    )
    assert subscriber.rows("fil") == ["1004|still|4", "2000|now in|1"]
    assert subscriber.rows("fil_only") == ["1002|in|2", "1007||7"]

    ends.sent(
        "fil",
        "ALTER PUBLICATION fil SET TABLE fil WHERE (a < 10)",
        "UPDATE fil SET b = 'unseen' WHERE a = 1004; UPDATE fil SET b = 'seen' WHERE a = 5;"
        "INSERT INTO fil VALUES (8, 'low', 0)",
    )
    assert subscriber.rows("fil") == ["1004|still|4", "2000|now in|1", "8|low|0"]
    publisher.psql("ALTER PUBLICATION fil SET TABLE fil")
    ends.sent("fil", "UPDATE fil SET b = 'all' WHERE a IN (1004, 8)")
    assert subscriber.rows("fil") == ["1004|all|4", "2000|now in|1", "8|all|0"]


def test_filters_of_several_publications(ends: Ends) -> None:
    """One of them that is true is enough, each for the changes that it publishes.

    A publication without a filter, of the table's schema or of all tables, lets all rows pass.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    names = ("or", "none", "schema", "all")
    ends.both("CREATE SCHEMA fis")
    ends.both("; ".join(f"CREATE TABLE fis.{n} (a int PRIMARY KEY)" for n in names[:2]))
    ends.both("; ".join(f"CREATE TABLE fis_{n} (a int PRIMARY KEY)" for n in names))
    publisher.psql(
        "; ".join(f"INSERT INTO fis_{n} SELECT g FROM generate_series(1, 20) g" for n in names),
        "INSERT INTO fis.or SELECT g FROM generate_series(1, 20) g",
        "CREATE PUBLICATION fil_1 FOR TABLE fis_or WHERE (a % 2 = 0), fis_none WHERE (a > 15),"
        " fis.or WHERE (a > 18), fis_all WHERE (a > 18)",
        "CREATE PUBLICATION fil_2 FOR TABLE fis_or WHERE (a % 3 = 0), fis_none",
        "CREATE PUBLICATION fil_3 FOR TABLE fis_or WHERE (a = 17) WITH (publish = 'delete')",
        "CREATE PUBLICATION fil_schema FOR TABLES IN SCHEMA fis",
        "CREATE PUBLICATION fil_all FOR ALL TABLES",
    )
    ends.subscribe("fil", "fil_1, fil_2, fil_3, fil_schema")
    ends.same("SELECT a FROM fis_or WHERE a % 2 = 0 OR a % 3 = 0 OR a = 17", "fis_none", "fis.or")
    assert subscriber.rows("fis_all") == ["19", "20"]
    ends.sent(
        "fil",
        "INSERT INTO fis_or VALUES (25), (26), (27), (29); DELETE FROM fis_or WHERE a IN (17, 18);"
        "UPDATE fis_or SET a = a + 100 WHERE a IN (2, 3, 5, 7);"  # to 102, 103, 105, 107
        "INSERT INTO fis_none VALUES (0); INSERT INTO fis.or VALUES (0);"
        "INSERT INTO fis_all VALUES (0)",
    )
    of = "SELECT a FROM fis_or WHERE a % 2 = 0 OR a % 3 = 0"
    ends.same(of, "fis_none", "fis.or")
    assert subscriber.rows("fis_or") == publisher.rows(of)
    assert subscriber.rows("fis_all") == ["19", "20"]

    # Of all tables: the lake may have others, that are not subscribed to.
    subscriber.psql("ALTER SUBSCRIPTION fil ADD PUBLICATION fil_all WITH (refresh = false)")
    ends.sent("fil", "INSERT INTO fis_all VALUES (-1); INSERT INTO fis_or VALUES (31)")
    assert subscriber.rows("fis_all") == ["-1", "19", "20"]
    assert "31" in subscriber.rows("fis_or")


def test_a_copy_without_filter(ends: Ends) -> None:
    """Of two publications of which one is of all tables, the copy has all rows."""
    publisher, subscriber = ends.publisher, ends.subscriber
    ends.both("CREATE TABLE fil_c (a int PRIMARY KEY)")
    publisher.psql(
        "INSERT INTO fil_c VALUES (1), (2)",
        "CREATE PUBLICATION fil FOR TABLE fil_c WHERE (a > 1)",
        "CREATE PUBLICATION fil_all FOR ALL TABLES",
    )
    subscriber.subscribe(publisher, "fil", "fil", "enabled = false")
    subscriber.psql(
        "ALTER SUBSCRIPTION fil ADD PUBLICATION fil_all WITH (refresh = false)",
        "ALTER SUBSCRIPTION fil ENABLE",
    )
    subscriber.wait_in_sync("fil")
    ends.same("fil_c")


def test_filters_of_partitioned_tables(ends: Ends) -> None:
    """By the root its filter counts and not that of a leaf; a leaf's own by itself."""
    publisher, subscriber = ends.publisher, ends.subscriber
    publisher.psql(
        "CREATE TABLE fip (a int PRIMARY KEY, b int) PARTITION BY RANGE (a);"
        "CREATE TABLE fip_1 PARTITION OF fip FOR VALUES FROM (0) TO (5000);"
        "CREATE TABLE fip_2 PARTITION OF fip DEFAULT;"
        "INSERT INTO fip VALUES (1, 1), (4001, 2), (6001, 3), (9001, 4)",
        "CREATE PUBLICATION fip_root FOR TABLE fip WHERE (a < 6000), fip_1 WHERE (a > 4000)"
        " WITH (publish_via_partition_root)",
        "CREATE PUBLICATION fip_leaf FOR TABLE fip_1 WHERE (a > 4000), fip_2",
    )
    table = "(a int PRIMARY KEY, b int)"
    subscriber.psql("; ".join(f"CREATE TABLE {n} {table}" for n in ("fip", "fip_1", "fip_2")))
    ends.subscribe("fip_root", "fip_root")
    ends.subscribe("fip_leaf", "fip_leaf")
    publisher.psql(
        "INSERT INTO fip VALUES (2, 5), (4002, 6), (5999, 7), (6002, 8);"
        "UPDATE fip SET a = 5998 WHERE a = 6001; UPDATE fip SET a = 7000 WHERE a = 4001;"
        "UPDATE fip SET b = -b WHERE a IN (1, 9001)"
    )
    ends.caught_up("fip_root", "fip_leaf")
    assert subscriber.rows("fip") == ["1|-1", "2|5", "4002|6", "5998|3", "5999|7"]
    assert subscriber.rows("fip_1") == ["4002|6"]
    assert subscriber.rows("fip_2") == ["5998|3", "5999|7", "6002|8", "7000|2", "9001|-4"]


def test_values_that_are_not_sent_again(ends: Ends) -> None:
    """A large value that an UPDATE leaves alone counts in the filter, and stays at the subscriber.

    With all columns in the identity it comes, too, when the row enters the filter by such an
    UPDATE.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    table = "CREATE TABLE fit (a int NOT NULL, b text NOT NULL, c int, PRIMARY KEY (a, b))"
    full = "CREATE TABLE fit_full (a int PRIMARY KEY, b text, c int)"
    ends.both(table, full, "ALTER TABLE fit_full REPLICA IDENTITY FULL")
    large = "(SELECT string_agg(md5(g::text), '') FROM generate_series(1, 80) g)"
    publisher.psql(
        "ALTER TABLE fit ALTER b SET STORAGE EXTERNAL",
        "ALTER TABLE fit_full ALTER b SET STORAGE EXTERNAL",
        f"INSERT INTO fit SELECT 1, {large}, 0; INSERT INTO fit VALUES (2, 'short', 0);"
        f"INSERT INTO fit_full SELECT n, {large}, 0 FROM generate_series(1, 2) n",
        "CREATE PUBLICATION fit FOR TABLE fit WHERE (length(b) > 10),"
        " fit_full WHERE (c > 0 AND b LIKE 'c4ca%')",
    )
    ends.subscribe("fit", "fit")
    assert subscriber.rows("SELECT a, length(b), c FROM fit") == ["1|2560|0"]
    ends.sent(
        "fit",
        "UPDATE fit SET c = 1; UPDATE fit SET a = 3 WHERE a = 1;"
        "UPDATE fit_full SET c = 5 WHERE a = 1; UPDATE fit_full SET c = 6 WHERE a = 1",
    )
    ends.same("SELECT * FROM fit WHERE length(b) > 10", "SELECT * FROM fit_full WHERE c > 0")
    ends.sent("fit", "UPDATE fit SET b = 'now short'; UPDATE fit_full SET c = 0")
    assert subscriber.rows("fit") == []
    assert subscriber.rows("fit_full") == []
