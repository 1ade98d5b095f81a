# SPDX-License-Identifier: Apache-2.0
"""Publications of whole schemas: tables that are made in them, moved into them, out and dropped.

After PostgreSQL's 025_rep_changes_for_schema.
"""

from __future__ import annotations

from tests.support.topology import Ends

TABLES = """
CREATE SCHEMA sch_a;
CREATE SCHEMA sch_b;
CREATE TABLE sch_a.one (a int PRIMARY KEY, b text);
CREATE TABLE sch_a.two (a int PRIMARY KEY);
CREATE TABLE sch_b.out (a int PRIMARY KEY);
CREATE TABLE sch_a.par (a int PRIMARY KEY) PARTITION BY LIST (a);
CREATE TABLE sch_b.leaf PARTITION OF sch_a.par FOR VALUES IN (1, 3, 5);
"""


def test_a_publication_of_a_schema(ends: Ends) -> None:
    """All its tables are copied and followed, with partitions that lie in another schema.

    What comes into the schema is, too, from REFRESH on; what leaves it is not any more, at once.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    ends.both(TABLES)
    publisher.psql(
        "INSERT INTO sch_a.one VALUES (1, 'a'), (2, 'b'); INSERT INTO sch_a.two VALUES (1);"
        "INSERT INTO sch_a.par VALUES (1); INSERT INTO sch_b.out VALUES (1)",
        "CREATE PUBLICATION sch FOR TABLES IN SCHEMA sch_a",
    )
    ends.subscribe("sch", "sch")
    ends.same("sch_a.one", "sch_a.two", "sch_a.par")
    assert subscriber.rows("sch_b.out") == []
    ends.sent(
        "sch",
        "INSERT INTO sch_a.one VALUES (3, 'c'); UPDATE sch_a.one SET b = 'B' WHERE a = 2;"
        "DELETE FROM sch_a.one WHERE a = 1; TRUNCATE sch_a.two; INSERT INTO sch_a.two VALUES (7);"
        "INSERT INTO sch_a.par VALUES (3); UPDATE sch_a.par SET a = 5 WHERE a = 1",
    )
    ends.same("sch_a.one", "sch_a.two", "sch_b.leaf")

    # A new table, and one that is moved in.
    ends.both("CREATE TABLE sch_a.new (a int PRIMARY KEY)")
    publisher.psql("INSERT INTO sch_a.new VALUES (1)")
    ends.both("ALTER TABLE sch_b.out SET SCHEMA sch_a")
    ends.caught_up("sch")
    assert subscriber.rows("sch_a.new") == []
    ends.refresh("sch")
    ends.sent("sch", "INSERT INTO sch_a.new VALUES (2); INSERT INTO sch_a.out VALUES (2)")
    ends.same("sch_a.new", "sch_a.out")

    # One that leaves, and comes back later: it was not followed in between.
    publisher.psql("ALTER TABLE sch_a.two SET SCHEMA public", "INSERT INTO two VALUES (8)")
    ends.caught_up("sch")
    ends.refresh("sch")
    publisher.psql("ALTER TABLE two SET SCHEMA sch_a")
    subscriber.psql("TRUNCATE sch_a.two")
    ends.refresh("sch")
    ends.sent("sch", "INSERT INTO sch_a.two VALUES (9)")
    ends.same("sch_a.two")

    # A dropped table, a table that is published beside its schema, another schema, none.
    publisher.psql("DROP TABLE sch_a.new")
    publisher.psql(
        "CREATE TABLE sch_b.more (a int PRIMARY KEY)", "INSERT INTO sch_b.more VALUES (1)"
    )
    subscriber.psql("CREATE TABLE sch_b.more (a int PRIMARY KEY)")
    publisher.psql("ALTER PUBLICATION sch ADD TABLE sch_b.more")
    ends.refresh("sch")
    ends.sent("sch", "INSERT INTO sch_b.more VALUES (2)")
    ends.same("sch_b.more")
    publisher.psql("ALTER PUBLICATION sch DROP TABLES IN SCHEMA sch_a")
    ends.sent("sch", "INSERT INTO sch_a.one VALUES (99); INSERT INTO sch_b.more VALUES (3)")
    ends.same("sch_b.more")
    assert subscriber.rows("SELECT a FROM sch_a.one") == ["2", "3"]
    ends.refresh("sch")
    synced = (
        "SELECT count(*) FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid"
    )
    assert subscriber.psql(f"{synced} WHERE subname = 'sch'") == "1"


def test_a_schema_and_column_lists_do_not_go_together(ends: Ends) -> None:
    """PostgreSQL's errors, in either order."""
    publisher = ends.publisher
    publisher.psql(TABLES, "CREATE PUBLICATION sch FOR TABLE sch_b.out (a)")
    assert publisher.refuses("ALTER PUBLICATION sch ADD TABLES IN SCHEMA sch_a") == (
        'cannot add schema to publication "sch"'
    )
    publisher.psql("ALTER PUBLICATION sch SET TABLES IN SCHEMA sch_a")
    assert publisher.refuses("ALTER PUBLICATION sch ADD TABLE sch_b.out (a)") == (
        'cannot use column list for relation "sch_b.out" in publication "sch"'
    )
