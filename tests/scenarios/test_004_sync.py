# SPDX-License-Identifier: Apache-2.0
"""Table synchronization: copies that fail and are mended, tables that come later, slots that go.

After PostgreSQL's 004_sync.
"""

from __future__ import annotations

from tests.support.topology import Ends
from tests.support.waits import wait_until

STATE = """SELECT string_agg(DISTINCT r.srsubstate::text, '' ORDER BY r.srsubstate::text)
    FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid
    WHERE s.subname = 'syn'"""


def test_copies_that_fail_and_tables_that_come_later(ends: Ends) -> None:
    """A copy that meets a row with its key stops, alone: another table is copied, and followed.

    It goes on when the row has gone.

    A subscription that is dropped meanwhile, or that is made again over the rows that are there,
    leaves neither slot nor origin behind.  A table that is made at both ends, or gets published
    later, is copied by REFRESH and followed from then on.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    ends.both("CREATE TABLE syn_t (id int PRIMARY KEY, v text); CREATE TABLE syn_u (id int)")
    publisher.psql(
        "INSERT INTO syn_t SELECT g, 'first' FROM generate_series(1, 10) g;"
        "INSERT INTO syn_u VALUES (1); CREATE PUBLICATION syn FOR TABLE syn_t, syn_u"
    )
    ends.subscribe("syn", "syn")
    ends.same("syn_t", "syn_u")
    slots = set(publisher.psql("SELECT slot_name FROM pg_replication_slots").split())
    assert "syn" in slots
    assert not any("_sync_" in each for each in slots)

    # Once more: the rows are there already.
    subscriber.psql("DROP SUBSCRIPTION syn")
    assert "syn" not in publisher.psql("SELECT slot_name FROM pg_replication_slots").split()
    subscriber.subscribe(publisher, "syn", "syn")
    subscriber.wait_error("syn", 'duplicate key value violates unique constraint "syn_t_pkey"')
    wait_until(lambda: subscriber.psql(STATE) in ("dr", "ds"), 30, "the other table to be ready")
    assert subscriber.rows("syn_u") == ["1", "1"]  # it has no key: what is copied twice is twice
    publisher.psql("INSERT INTO syn_u VALUES (2)")
    wait_until(lambda: len(subscriber.rows("syn_u")) == 3, 30, "its stream, while the copy fails")
    subscriber.psql("DROP SUBSCRIPTION syn")  # while its copy fails again and again
    left = publisher.psql("SELECT slot_name FROM pg_replication_slots").split()
    assert not [each for each in left if each == "syn" or "_sync_" in each]
    origins = "SELECT count(*) FROM pg_replication_origin o WHERE NOT EXISTS (SELECT FROM"
    origins += " pg_subscription s WHERE o.roname = 'pg_' || s.oid) AND o.roname LIKE 'pg\\_%'"
    assert subscriber.psql(origins) == "0"

    # And mended.
    subscriber.subscribe(publisher, "syn", "syn")
    subscriber.wait_error("syn", 'duplicate key value violates unique constraint "syn_t_pkey"')
    publisher.psql("INSERT INTO syn_t VALUES (11, 'meanwhile')")
    subscriber.mend("syn", "DELETE FROM syn_t", "DELETE FROM syn_u")
    subscriber.wait_in_sync("syn")
    ends.sent("syn", "INSERT INTO syn_t VALUES (12, 'later')")
    ends.same("syn_t")

    # The publisher has a table before the subscriber has.
    publisher.psql("CREATE TABLE syn_new (a int PRIMARY KEY)", "INSERT INTO syn_new VALUES (1)")
    publisher.psql("ALTER PUBLICATION syn ADD TABLE syn_new")
    subscriber.psql("CREATE TABLE syn_new (a int PRIMARY KEY)")
    ends.sent("syn", "INSERT INTO syn_new VALUES (2)")
    assert subscriber.rows("syn_new") == []  # not before REFRESH
    ends.refresh("syn")
    ends.same("syn_new")
    ends.sent("syn", "INSERT INTO syn_new VALUES (3); DELETE FROM syn_new WHERE a = 1")
    ends.same("syn_new")

    # One that goes and comes back is copied anew, and one that is taken without is not.
    publisher.psql("ALTER PUBLICATION syn DROP TABLE syn_new")
    ends.refresh("syn")
    ends.sent("syn", "INSERT INTO syn_new VALUES (4)")
    assert subscriber.rows("syn_new") == ["2", "3"]
    subscriber.psql("TRUNCATE syn_new")
    publisher.psql("ALTER PUBLICATION syn ADD TABLE syn_new")
    ends.refresh("syn")
    ends.same("syn_new")
    publisher.psql("CREATE TABLE syn_not (a int)", "INSERT INTO syn_not VALUES (1)")
    subscriber.psql("CREATE TABLE syn_not (a int)")
    publisher.psql("ALTER PUBLICATION syn ADD TABLE syn_not")
    ends.refresh("syn", "copy_data = false")
    ends.sent("syn", "INSERT INTO syn_not VALUES (2)")
    assert subscriber.rows("syn_not") == ["2"]


def test_a_role_without_rights_on_the_publisher(ends: Ends) -> None:
    """The copy says whose right is missing, and begins once it is granted."""
    publisher, subscriber = ends.publisher, ends.subscriber
    publisher.psql("CREATE ROLE syn_reader LOGIN REPLICATION PASSWORD 'secret'")
    ends.both("CREATE TABLE syn_p (id int PRIMARY KEY)")
    publisher.psql("INSERT INTO syn_p VALUES (1)", "CREATE PUBLICATION syn FOR TABLE syn_p")
    user = "replica" if publisher.is_lake else "postgres"
    conninfo = publisher.conninfo.replace(f"user={user}", "user=syn_reader")
    subscriber.psql(f"CREATE SUBSCRIPTION syn CONNECTION '{conninfo}' PUBLICATION syn")
    subscriber.wait_error("syn", "permission denied for table syn_p")
    publisher.psql("GRANT SELECT ON syn_p TO syn_reader")
    subscriber.wait_in_sync("syn")
    ends.same("syn_p")
