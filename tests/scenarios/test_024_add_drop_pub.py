# SPDX-License-Identifier: Apache-2.0
"""ALTER SUBSCRIPTION … ADD, DROP and SET PUBLICATION, and publications that are not there.

After PostgreSQL's 024_add_drop_pub.
"""

from __future__ import annotations

from tests.support.topology import Ends


def test_publications_come_and_go(ends: Ends) -> None:
    """Tables of a publication that is added are copied, those of one that goes are not followed.

    Only what the publications no longer have in common is affected, and what was wrong with the
    names is PostgreSQL's error.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    ends.both("; ".join(f"CREATE TABLE adp_{n} (a int PRIMARY KEY)" for n in (1, 2, 3)))
    publisher.psql(
        "INSERT INTO adp_1 VALUES (1); INSERT INTO adp_2 VALUES (1); INSERT INTO adp_3 VALUES (1);"
        "CREATE PUBLICATION adp_1 FOR TABLE adp_1; CREATE PUBLICATION adp_2"
    )
    ends.subscribe("adp", "adp_1, adp_2")
    ends.same("adp_1")

    publisher.psql(
        "CREATE PUBLICATION adp_3; ALTER PUBLICATION adp_3 ADD TABLE adp_3, adp_1",
        "ALTER PUBLICATION adp_2 ADD TABLE adp_2",
    )
    assert subscriber.rows("adp_2") == []
    subscriber.psql("ALTER SUBSCRIPTION adp DROP PUBLICATION adp_1")  # and refreshes
    subscriber.wait_in_sync("adp")
    ends.same("adp_2")
    ends.sent("adp", "INSERT INTO adp_1 VALUES (2); INSERT INTO adp_2 VALUES (2)")
    ends.same("adp_2")
    assert subscriber.rows("adp_1") == ["1"]

    subscriber.psql("ALTER SUBSCRIPTION adp ADD PUBLICATION adp_3 WITH (refresh = false)")
    assert subscriber.publications_of("adp") == "adp_2,adp_3"
    assert subscriber.rows("adp_3") == []
    ends.refresh("adp", "copy_data = false")
    ends.sent("adp", "INSERT INTO adp_1 VALUES (3); INSERT INTO adp_3 VALUES (3)")
    assert subscriber.rows("adp_1") == ["1", "3"]
    assert subscriber.rows("adp_3") == ["3"]

    subscriber.psql("DELETE FROM adp_1; DELETE FROM adp_3")
    subscriber.psql("ALTER SUBSCRIPTION adp SET PUBLICATION adp_2")
    subscriber.psql("ALTER SUBSCRIPTION adp SET PUBLICATION adp_3, adp_2")
    subscriber.wait_in_sync("adp")
    ends.same("adp_1", "adp_2", "adp_3")
    ends.sent("adp", "DELETE FROM adp_1 WHERE a = 1; UPDATE adp_3 SET a = 4 WHERE a = 3")
    ends.same("adp_1", "adp_2", "adp_3")

    for command, error in (
        ("ADD PUBLICATION adp_2", 'publication "adp_2" is already in subscription "adp"'),
        ("ADD PUBLICATION new, new", 'publication name "new" used more than once'),
        ("DROP PUBLICATION adp_1", 'publication "adp_1" is not in subscription "adp"'),
        ("DROP PUBLICATION adp_2, adp_3", "cannot drop all the publications from a subscription"),
        (
            "ADD PUBLICATION new WITH (enabled = false)",
            'unrecognized subscription parameter: "enabled"',
        ),
    ):
        assert subscriber.refuses(f"ALTER SUBSCRIPTION adp {command}") == error
    assert subscriber.publications_of("adp") == "adp_2,adp_3"


def test_a_publication_that_is_made_later(ends: Ends) -> None:
    """A subscription may name it before; once it is there, REFRESH takes up its tables.

    Nothing of what the others publish is lost meanwhile.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    ends.both("CREATE TABLE adp_n (a int PRIMARY KEY)", "CREATE TABLE adp_o (a int PRIMARY KEY)")
    publisher.psql(
        "INSERT INTO adp_n VALUES (1)", "INSERT INTO adp_o VALUES (1)",
        "CREATE PUBLICATION adp_o FOR TABLE adp_o",
    )  # fmt: skip
    ends.subscribe("adp", "adp_o")
    subscriber.psql("ALTER SUBSCRIPTION adp ADD PUBLICATION adp_n WITH (refresh = false)")
    publisher.psql("CREATE PUBLICATION adp_n FOR TABLE adp_n")
    publisher.psql("INSERT INTO adp_n VALUES (2)", "INSERT INTO adp_o VALUES (2)")
    ends.refresh("adp")
    ends.caught_up("adp")
    ends.same("adp_n", "adp_o")
