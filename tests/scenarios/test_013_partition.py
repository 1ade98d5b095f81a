# SPDX-License-Identifier: Apache-2.0
"""Partitioned tables at one end, at both, cut differently, with partitions that come and go.

After PostgreSQL's 013_partition.
"""

from __future__ import annotations

from tests.support.topology import Ends

PUBLISHED = """
CREATE TABLE par (a int, b text, PRIMARY KEY (a)) PARTITION BY LIST (a);
CREATE TABLE par_1 PARTITION OF par FOR VALUES IN (1, 2, 3);
CREATE TABLE par_2 (b text, a int NOT NULL PRIMARY KEY);
ALTER TABLE par ATTACH PARTITION par_2 FOR VALUES IN (4, 5, 6);
CREATE TABLE par_rest PARTITION OF par DEFAULT PARTITION BY RANGE (a);
CREATE TABLE par_rest_low PARTITION OF par_rest FOR VALUES FROM (MINVALUE) TO (100);
CREATE TABLE par_rest_high PARTITION OF par_rest FOR VALUES FROM (100) TO (MAXVALUE);
INSERT INTO par VALUES (1, 'one'), (4, 'four'), (50, 'fifty'), (500, 'far')
"""
CHANGES = (
    "INSERT INTO par VALUES (2, 'two'), (5, 'five'), (0, 'nought');"
    "UPDATE par SET b = upper(b) WHERE a IN (1, 4, 50);"
    "UPDATE par SET a = 6 WHERE a = 2;"  # from a leaf to another
    "UPDATE par SET a = 600 WHERE a = 0;"  # from a leaf of the second level to another
    "DELETE FROM par WHERE a = 500",
    "BEGIN; UPDATE par SET a = 3 WHERE a = 5; INSERT INTO par VALUES (5, 'again');"
    "UPDATE par SET a = a + 1000 WHERE a > 40; DELETE FROM par WHERE a = 4; COMMIT",
)
LEFT = ["1050|FIFTY", "1600|nought", "1|ONE", "3|five", "5|again", "6|two"]


def test_leaves_are_published_as_themselves(ends: Ends) -> None:
    """Each leaf of the publisher goes to the table of its name, whatever that is: plain or cut.

    A leaf that is published by itself, too, is sent once.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    publisher.psql(PUBLISHED, "CREATE PUBLICATION par FOR TABLE par, par_1")
    subscriber.psql(
        "CREATE TABLE par_1 (a int PRIMARY KEY, b text, c text DEFAULT 'sub') PARTITION BY RANGE"
        " (a); CREATE TABLE par_1_a PARTITION OF par_1 FOR VALUES FROM (1) TO (2);"
        "CREATE TABLE par_1_b PARTITION OF par_1 DEFAULT;"
        "CREATE TABLE par_2 (a int PRIMARY KEY, b text);"
        "CREATE TABLE par_rest_low (a int PRIMARY KEY, b text);"
        "CREATE TABLE par_rest_high (b text, a int PRIMARY KEY)"
    )
    ends.subscribe("par", "par")
    for changes in CHANGES:
        ends.sent("par", changes)
    ends.same("SELECT a, b FROM par_1", "SELECT a, b FROM par_2", "SELECT a, b FROM par_rest_high")
    assert subscriber.rows("SELECT a FROM par_rest_low") == []
    assert subscriber.rows("SELECT a, c FROM par_1_a") == ["1|sub"]
    assert subscriber.rows("SELECT a, c FROM par_1_b") == ["3|sub"]


def test_a_root_is_published_as_one_table(ends: Ends) -> None:
    """It goes to a plain table, and to one that is cut in another way; a moved row stays one row.

    A leaf that a publication names by itself comes as the root, too, and once.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    publisher.psql(
        PUBLISHED,
        "CREATE PUBLICATION par FOR TABLE par, par_2 WITH (publish_via_partition_root)",
        "CREATE TABLE par_o (id int PRIMARY KEY, k text) PARTITION BY RANGE (id);"
        "CREATE TABLE par_o1 PARTITION OF par_o FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE par_o2 PARTITION OF par_o FOR VALUES FROM (10) TO (20);"
        "INSERT INTO par_o VALUES (1, 'a'), (11, 'b');"
        "CREATE PUBLICATION par_o FOR TABLE par_o WITH (publish_via_partition_root)",
    )
    subscriber.psql(
        "CREATE TABLE par (b text, a int PRIMARY KEY)",
        "CREATE TABLE par_o (k text, id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE par_o_low PARTITION OF par_o FOR VALUES FROM (MINVALUE) TO (5);"
        "CREATE TABLE par_o_high PARTITION OF par_o FOR VALUES FROM (5) TO (MAXVALUE)",
    )
    ends.subscribe("par", "par, par_o")
    ends.same("SELECT a, b FROM par", "SELECT id, k FROM par_o")
    for changes in CHANGES:
        ends.sent("par", changes)
    assert subscriber.rows("SELECT a, b FROM par") == LEFT
    ends.sent(
        "par",
        "UPDATE par_o SET id = 12 WHERE id = 1; UPDATE par_o SET id = 3 WHERE id = 11;"
        "INSERT INTO par_o VALUES (4, 'c'); UPDATE par_o SET k = 'C' WHERE id = 4",
    )
    assert subscriber.rows("SELECT id, k FROM par_o_low") == ["3|b", "4|C"]
    assert subscriber.rows("SELECT id, k FROM par_o_high") == ["12|a"]


def test_partitions_that_come_and_go(ends: Ends) -> None:
    """A new one is published with its root: at once by the root, after REFRESH by itself.

    One that is detached is not; what it had stays at the subscriber.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    table = "(id int PRIMARY KEY, v text)"
    publisher.psql(
        f"CREATE TABLE par_g {table} PARTITION BY RANGE (id);"
        "CREATE TABLE par_g1 PARTITION OF par_g FOR VALUES FROM (0) TO (10);"
        "INSERT INTO par_g VALUES (1, 'a');"
        "CREATE PUBLICATION par_root FOR TABLE par_g WITH (publish_via_partition_root);"
        "CREATE PUBLICATION par_leaf FOR TABLE par_g"
    )
    subscriber.psql(f"CREATE TABLE par_g {table}; CREATE TABLE par_g1 {table}")
    subscriber.psql(f"CREATE TABLE par_g2 {table}")
    ends.subscribe("par_root", "par_root")
    ends.subscribe("par_leaf", "par_leaf")
    ends.same("par_g", "par_g1")

    publisher.psql(
        f"CREATE TABLE par_g2 {table}",
        "ALTER TABLE par_g ATTACH PARTITION par_g2 FOR VALUES FROM (10) TO (20)",
        "INSERT INTO par_g VALUES (11, 'b'), (2, 'a')",
    )
    ends.caught_up("par_root", "par_leaf")
    ends.same("par_g", "par_g1")
    assert subscriber.rows("par_g2") == []
    ends.refresh("par_leaf")
    publisher.psql("UPDATE par_g SET v = 'moved', id = id + 10 WHERE id = 2")
    ends.caught_up("par_root", "par_leaf")
    ends.same("par_g", "par_g1", "par_g2")

    publisher.psql(
        "ALTER TABLE par_g DETACH PARTITION par_g1",
        "INSERT INTO par_g1 VALUES (3, 'mine')",
        "INSERT INTO par_g VALUES (13, 'c')",
    )
    ends.caught_up("par_root", "par_leaf")
    assert subscriber.rows("par_g") == ["11|b", "12|moved", "13|c", "1|a"]
    assert subscriber.rows("par_g1") == ["1|a"]
    assert subscriber.rows("par_g2") == ["11|b", "12|moved", "13|c"]
