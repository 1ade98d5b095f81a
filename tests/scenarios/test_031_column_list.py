# SPDX-License-Identifier: Apache-2.0
"""Column lists: what is sent, changed lists, several publications, partitions, refusals.

After PostgreSQL's 031_column_list.
"""

from __future__ import annotations

from tests.support.topology import Ends

DIFFERENT = 'cannot use different column lists for table "public.{}" in different publications'


def test_lists_decide_what_is_sent(ends: Ends) -> None:
    """By copy and stream, with the columns in any order, with identities of all kinds.

    A list that is changed counts from then on; what was not sent before stays as it is.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    publisher.psql(
        "CREATE TABLE cl_a (a int PRIMARY KEY, b text, c int);"
        'CREATE TABLE cl_b (a int PRIMARY KEY, "B\'" text, c int, d int);'
        "CREATE TABLE cl_i (a int, b int NOT NULL, c text, d text);"
        "CREATE UNIQUE INDEX cl_i_b ON cl_i (b); ALTER TABLE cl_i REPLICA IDENTITY USING INDEX"
        " cl_i_b; CREATE TABLE cl_n (a int, b text, c int);"
        "INSERT INTO cl_a VALUES (1, 'one', 10), (2, 'two', 20);"
        "INSERT INTO cl_b VALUES (1, 'x', 10, 100); INSERT INTO cl_i VALUES (1, 2, 'c', 'd');"
        "INSERT INTO cl_n VALUES (1, 'n', 2)",
        'CREATE PUBLICATION cl FOR TABLE cl_a (a, b), cl_b (d, a, "B\'"), cl_i (c, b)',
        "CREATE PUBLICATION cl_ins FOR TABLE cl_n (c) WITH (publish = 'insert, truncate')",
    )
    subscriber.psql(
        "CREATE TABLE cl_a (b text, a int PRIMARY KEY, c int DEFAULT -1);"
        'CREATE TABLE cl_b (d int, "B\'" text, a int PRIMARY KEY);'
        "CREATE TABLE cl_i (b int PRIMARY KEY, c text); CREATE TABLE cl_n (c int, a int)"
    )
    ends.subscribe("cl", "cl, cl_ins")
    changes = (
        "INSERT INTO cl_a VALUES (3, 'three', 30); UPDATE cl_a SET c = 21 WHERE a = 2;"
        "UPDATE cl_a SET b = 'ONE', c = 11 WHERE a = 1; UPDATE cl_b SET \"B'\" = 'y', c = 1;"
        "INSERT INTO cl_b VALUES (2, 'z', 20, 200), (3, NULL, NULL, NULL); DELETE FROM cl_b"
        " WHERE a = 1; UPDATE cl_i SET a = 7, c = 'C'; UPDATE cl_i SET b = 3, d = 'D'"
    )
    ends.sent("cl", changes, "INSERT INTO cl_n VALUES (3, 'no', 4)")
    assert subscriber.rows("SELECT a, b, c FROM cl_a") == ["1|ONE|-1", "2|two|-1", "3|three|-1"]
    ends.same('SELECT a, "B\'", d FROM cl_b', "SELECT b, c FROM cl_i")
    assert subscriber.rows("cl_n") == [r"2|\N", r"4|\N"]

    # More columns, fewer, others, all.
    ends.sent(
        "cl",
        "ALTER PUBLICATION cl SET TABLE cl_a (a, c), cl_b, cl_i (b)",
        "UPDATE cl_a SET b = 'not sent', c = 22 WHERE a = 2; INSERT INTO cl_a VALUES (4, 'x', 40);"
        "INSERT INTO cl_i VALUES (1, 9, 'not sent', 'd')",
    )
    assert subscriber.rows("SELECT a, b, c FROM cl_a") == [
        "1|ONE|-1", "2|two|22", "3|three|-1", r"4|\N|40",
    ]  # fmt: skip
    assert subscriber.rows("SELECT b, c FROM cl_i") == ["3|C", r"9|\N"]
    ends.sent(
        "cl",
        'ALTER PUBLICATION cl SET TABLE cl_a, cl_b (a, "B\'")',
        "UPDATE cl_a SET b = b WHERE a IN (2, 4)",
        "UPDATE cl_b SET \"B'\" = 'last', d = -1",
    )
    assert subscriber.rows("SELECT a, b, c FROM cl_a")[1::2] == ["2|not sent|22", "4|x|40"]
    assert subscriber.rows('SELECT a, "B\'", d FROM cl_b') == ["2|last|200", r"3|last|\N"]


def test_several_publications_and_their_lists(ends: Ends) -> None:
    """The same list twice is one; all columns named are the same as no list; others are refused.

    When a subscribed publication is changed so that lists differ, the stream stops with that error.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    table = "CREATE TABLE cl_s (a int PRIMARY KEY, b int, c int)"
    ends.both(table, table.replace("cl_s", "cl_t"))
    publisher.psql(
        "INSERT INTO cl_s VALUES (1, 2, 3); INSERT INTO cl_t VALUES (1, 2, 3);"
        "CREATE PUBLICATION cl_1 FOR TABLE cl_s (a, b), cl_t;"
        "CREATE PUBLICATION cl_2 FOR TABLE cl_s (b, a), cl_t (c, b, a);"
        "CREATE PUBLICATION cl_3 FOR TABLE cl_s (a, c)"
    )
    different = DIFFERENT.format("cl_s")
    create = f"CREATE SUBSCRIPTION cl CONNECTION '{publisher.conninfo}' PUBLICATION"
    assert subscriber.refuses(f"{create} cl_1, cl_3") == different
    ends.subscribe("cl", "cl_1, cl_2")
    ends.sent("cl", "UPDATE cl_s SET b = 5, c = 6; UPDATE cl_t SET b = 5, c = 6")
    ends.same("cl_t")
    assert subscriber.rows("cl_s") == [r"1|5|\N"]
    assert subscriber.refuses("ALTER SUBSCRIPTION cl ADD PUBLICATION cl_3") == different

    publisher.psql("ALTER PUBLICATION cl_2 SET TABLE cl_s (a, c), cl_t")
    publisher.psql("INSERT INTO cl_s VALUES (2, 3, 4)")
    subscriber.wait_error("cl", different)
    publisher.psql("ALTER PUBLICATION cl_2 SET TABLE cl_t")


def test_lists_of_partitioned_tables(ends: Ends) -> None:
    """By the root its list counts, for leaves that have their columns in another order, too.

    A leaf's own list counts where it is published as itself.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    publisher.psql(
        "CREATE TABLE cl_r (a int PRIMARY KEY, b text, c int) PARTITION BY RANGE (a);"
        "CREATE TABLE cl_r1 PARTITION OF cl_r FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE cl_r2 (c int, b text, a int NOT NULL PRIMARY KEY);"
        "ALTER TABLE cl_r ATTACH PARTITION cl_r2 FOR VALUES FROM (10) TO (20);"
        "INSERT INTO cl_r VALUES (1, 'x', 2), (11, 'y', 12)",
        "CREATE PUBLICATION cl_root FOR TABLE cl_r (c, a), cl_r1 (a, b)"
        " WITH (publish_via_partition_root)",
        "CREATE PUBLICATION cl_leaf FOR TABLE cl_r1 (a, b), cl_r2",
    )
    subscriber.psql(
        "CREATE TABLE cl_r (a int PRIMARY KEY, b text, c int);"
        "CREATE TABLE cl_r1 (a int PRIMARY KEY, b text); CREATE TABLE cl_r2 (LIKE cl_r1);"
        "ALTER TABLE cl_r2 ADD PRIMARY KEY (a), ADD c int"
    )
    ends.subscribe("cl_root", "cl_root")
    ends.subscribe("cl_leaf", "cl_leaf")
    publisher.psql(
        "UPDATE cl_r SET b = b || '!', c = c + 1; UPDATE cl_r SET a = 12 WHERE a = 1;"
        "INSERT INTO cl_r VALUES (2, 'z', 5)"
    )
    ends.caught_up("cl_root", "cl_leaf")
    assert subscriber.rows("cl_r") == [r"11|\N|13", r"12|\N|3", r"2|\N|5"]
    assert subscriber.rows("cl_r1") == ["2|z"]
    assert subscriber.rows("cl_r2") == ["11|y!|13", "12|x!|3"]


def test_lists_that_leave_out_the_identity(ends: Ends) -> None:
    """They may publish inserts; an UPDATE or DELETE that they would publish is refused."""
    publisher = ends.publisher
    publisher.psql(
        "CREATE TABLE cl_k (a int, b int, c int, PRIMARY KEY (a, b))",
        "CREATE TABLE cl_full (a int); ALTER TABLE cl_full REPLICA IDENTITY FULL",
        "CREATE PUBLICATION cl FOR TABLE cl_k (a, c), cl_full (a)",
        "INSERT INTO cl_k VALUES (1, 1, 1); INSERT INTO cl_full VALUES (1)",
    )
    assert publisher.refuses("UPDATE cl_k SET c = 2") == 'cannot update table "cl_k"'
    assert publisher.refuses("DELETE FROM cl_k") == 'cannot delete from table "cl_k"'
    assert publisher.refuses("UPDATE cl_full SET a = 2") == 'cannot update table "cl_full"'
    publisher.psql("ALTER PUBLICATION cl SET (publish = 'insert')", "UPDATE cl_k SET c = 2")
    publisher.psql("ALTER PUBLICATION cl SET (publish = 'insert, update, delete')")
    publisher.psql("ALTER PUBLICATION cl SET TABLE cl_k (a, b), cl_full", "DELETE FROM cl_k")
