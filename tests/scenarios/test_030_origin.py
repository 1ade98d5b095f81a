# SPDX-License-Identifier: Apache-2.0
"""Replication both ways, and between three: ``origin = none`` sends on only what is one's own.

After PostgreSQL's 030_origin.
"""

from __future__ import annotations

import pytest

from tests.support.fix_ends import Seats
from tests.support.topology import End, Ends

TABLE = "CREATE TABLE org (a int PRIMARY KEY, who text)"
OWN = "origin = none, copy_data = false"


def test_both_ways(ends: Ends) -> None:
    """Each gets the other's rows once, and nothing comes back; with ``any`` all is sent on."""
    one, other = ends.publisher, ends.subscriber
    ends.both(TABLE, "CREATE PUBLICATION org FOR TABLE org")
    other.subscribe(one, "org_to_other", "org", OWN)
    one.subscribe(other, "org_to_one", "org", OWN)
    one.wait_in_sync("org_to_one")
    other.wait_in_sync("org_to_other")

    def settled() -> None:
        one.wait_sent((other, "org_to_other"))
        other.wait_sent((one, "org_to_one"))
        one.wait_sent((other, "org_to_other"))

    one.psql("INSERT INTO org VALUES (1, 'one'), (2, 'one')")
    other.psql("INSERT INTO org VALUES (3, 'other'), (4, 'other')")
    settled()
    assert one.rows("org") == other.rows("org") == ["1|one", "2|one", "3|other", "4|other"]
    one.psql("UPDATE org SET who = 'changed by one' WHERE a = 3; DELETE FROM org WHERE a = 1")
    other.psql("UPDATE org SET who = 'changed by other' WHERE a = 2; DELETE FROM org WHERE a = 4")
    settled()
    assert one.rows("org") == other.rows("org") == ["2|changed by other", "3|changed by one"]
    for end in (one, other):
        errors = "SELECT sum(apply_error_count) FROM pg_stat_subscription_stats WHERE subname"
        assert end.psql(f"{errors} LIKE 'org_to_%'") == "0"
    origin = "SELECT suborigin FROM pg_subscription WHERE subname = 'org_to_other'"
    assert other.psql(origin) == "none"
    one.psql("TRUNCATE org")
    settled()
    assert other.rows("org") == []


CHAINS = [
    ("publisher", "subscriber", "lake"),
    ("publisher", "lake", "subscriber"),
    ("lake", "publisher", "other lake"),
]
"""Who writes, who is between, who is at the end."""


@pytest.mark.parametrize("names", CHAINS, ids=["-".join(names) for names in CHAINS])
def test_a_chain_of_three(seats: Seats, names: tuple[str, str, str]) -> None:
    """What the second has from the first goes on to a third only with ``origin = any``.

    The second, asked for its own rows with a copy, is known to have others': a warning says so,
    and a table of it that is copied has them.  RESTART IDENTITY of a TRUNCATE goes on, too.
    """
    first, second, third = ends = [seats(name) for name in names]
    both = f"{TABLE}; {TABLE.replace('TABLE org', 'TABLE org_any')}"
    for end in ends:
        end.psql(both)
    for end in (first, second):
        end.psql(
            "CREATE PUBLICATION org FOR TABLE org; CREATE PUBLICATION org_any FOR TABLE org_any"
        )
    second.subscribe(first, "org_2", "org, org_any")
    third.subscribe(second, "org_3", "org", OWN)
    third.subscribe(second, "org_any_3", "org_any", "origin = any")
    _in_sync((second, "org_2"), (third, "org_3"), (third, "org_any_3"))
    first.psql("INSERT INTO org VALUES (1, 'first'); INSERT INTO org_any VALUES (1, 'first')")
    first.wait_sent((second, "org_2"))
    second.psql("INSERT INTO org VALUES (2, 'second'); INSERT INTO org_any VALUES (2, 'second')")
    second.wait_sent((third, "org_3"), (third, "org_any_3"))
    assert second.rows("org") == ["1|first", "2|second"]
    assert third.rows("org") == ["2|second"]
    assert third.rows("org_any") == ["1|first", "2|second"]

    third.psql("DROP SUBSCRIPTION org_3", "TRUNCATE org")
    third.subscribe(second, "org_3", "org", "origin = none, copy_data = true")
    third.wait_in_sync("org_3")
    assert third.rows("org") == ["1|first", "2|second"]
    first.psql("INSERT INTO org VALUES (3, 'first')")
    first.wait_sent((second, "org_2"))
    second.psql("UPDATE org SET who = 'second, too' WHERE a = 2")
    second.wait_sent((third, "org_3"))
    assert second.rows("org") == ["1|first", "2|second, too", "3|first"]
    assert third.rows("org") == ["1|first", "2|second, too"]

    third.psql("CREATE SEQUENCE org_seq OWNED BY org_any.a", "SELECT setval('org_seq', 9)")
    first.psql("TRUNCATE org_any RESTART IDENTITY")
    first.wait_sent((second, "org_2"))
    second.wait_sent((third, "org_any_3"))
    assert third.rows("org_any") == []
    assert third.psql("SELECT last_value, is_called FROM org_seq") == "1|f"


def _in_sync(*subscriptions: tuple[End, str]) -> None:
    for end, name in subscriptions:
        end.wait_in_sync(name)
