# SPDX-License-Identifier: Apache-2.0
"""Apply and copy act as the table's owner, or with run_as_owner as the subscription's owner.

After PostgreSQL's 027_nosuperuser: once in every topology, then what a node says of each change.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.subscribing import SYNC_TIMEOUT, drop_subscription, wait_equal, wait_ready
from tests.support.topology import Ends
from tests.support.waits import wait_until

TABLE = "SELECT id, v FROM own_t"


@pytest.fixture
def owned(publisher_db: Database, node: Node) -> Iterator[Node]:
    """A table of role own_keeper; a subscription own_s of own_reader, which may nothing."""
    publisher_db.psql(
        "CREATE TABLE own_t (id int PRIMARY KEY, v int); INSERT INTO own_t VALUES (1, 1);"
        "CREATE PUBLICATION own_p FOR TABLE own_t"
    )
    node.psql("CREATE ROLE own_keeper; CREATE ROLE own_reader")
    node.psql("CREATE TABLE own_t (id int PRIMARY KEY, v int)")
    node.psql("ALTER TABLE own_t ADD who text DEFAULT current_user")
    node.psql("ALTER TABLE own_t OWNER TO own_keeper")
    node.psql("GRANT CREATE ON DATABASE lake TO own_reader")
    node.psql(
        f"CREATE SUBSCRIPTION own_s CONNECTION '{publisher_db.conninfo}' PUBLICATION own_p"
        " WITH (enabled = false, password_required = false)"
    )
    node.psql("ALTER SUBSCRIPTION own_s OWNER TO own_reader")
    try:
        yield node
    finally:
        drop_subscription(node, "own_s")
        node.psql("DROP OWNED BY own_keeper, own_reader; DROP ROLE own_keeper, own_reader")


def wait_error(node: Node, message: str, context: str | None = None) -> None:
    """Wait until the subscription shows an error with this text, about this kind of change."""
    query = (
        "SELECT sqlstate || ' ' || message || coalesce(' ' || substring(context FROM"
        " 'message type \"([A-Z]+)\" for replication target relation \"public.own_t\"'), '')"
        " FROM penstock.subscription_error e JOIN pg_subscription s ON s.oid = e.subid"
        " WHERE subname = 'own_s'"
    )
    wanted = message if context is None else f"{message} {context}"
    try:
        wait_until(lambda: node.psql(query) == wanted, SYNC_TIMEOUT, wanted)
    except AssertionError as error:
        raise AssertionError(f"{wanted!r}, but there is {node.psql(query)!r}") from error


def mended(node: Node, *statements: str) -> None:
    """Mend what was wrong; the worker begins anew at once."""
    node.psql("ALTER SUBSCRIPTION own_s DISABLE")
    for statement in statements:
        node.psql(statement)
    node.psql("ALTER SUBSCRIPTION own_s ENABLE")


def test_as_the_owner_of_the_table(owned: Node, publisher_db: Database) -> None:
    """The subscription's owner must be able to SET ROLE to the table's, for copy and stream.

    A default is computed with the same rights.

    The owner may take privileges from itself, and row-level security that is forced on it stops
    apply, for it cannot be honoured.
    """
    owned.psql("ALTER SUBSCRIPTION own_s ENABLE")
    wait_error(owned, '42501 role "own_reader" cannot SET ROLE to "own_keeper"')
    mended(owned, "GRANT own_keeper TO own_reader WITH INHERIT FALSE, SET TRUE")
    wait_ready(owned, "own_s")
    wait_equal(publisher_db, TABLE, owned)
    assert owned.psql("SELECT who FROM own_t") == "own_keeper"

    owned.psql("REVOKE UPDATE ON own_t FROM own_keeper")
    publisher_db.psql("INSERT INTO own_t VALUES (2, 2)")
    publisher_db.psql("UPDATE own_t SET v = 3 WHERE id = 2")
    wait_error(owned, "42501 permission denied for table own_t", "UPDATE")
    assert owned.psql(f"{TABLE} ORDER BY id") == "1|1\n2|2"  # what came before is here

    mended(
        owned,
        "GRANT UPDATE ON own_t TO own_keeper",
        "ALTER TABLE own_t ENABLE ROW LEVEL SECURITY",
    )
    wait_equal(publisher_db, TABLE, owned)  # the owner is exempt

    owned.psql("ALTER TABLE own_t FORCE ROW LEVEL SECURITY")
    publisher_db.psql("DELETE FROM own_t WHERE id = 1")
    wait_error(
        owned,
        '0A000 user "own_keeper" cannot replicate into relation with row-level security enabled:'
        ' "own_t"',
        "DELETE",
    )
    mended(owned, "ALTER ROLE own_keeper BYPASSRLS")
    wait_equal(publisher_db, TABLE, owned)

    owned.psql("REVOKE own_keeper FROM own_reader")
    publisher_db.psql("TRUNCATE own_t")
    wait_error(owned, '42501 role "own_reader" cannot SET ROLE to "own_keeper"', "TRUNCATE")
    mended(owned, "ALTER ROLE own_reader SUPERUSER")
    wait_equal(publisher_db, TABLE, owned)


def test_as_the_owner_of_the_subscription(owned: Node, publisher_db: Database) -> None:
    """With run_as_owner its owner needs the privileges on the table, and SET ROLE is not asked."""
    owned.psql("ALTER SUBSCRIPTION own_s SET (run_as_owner = true)")
    owned.psql("ALTER SUBSCRIPTION own_s ENABLE")
    wait_error(owned, "42501 permission denied for table own_t")
    mended(owned, "GRANT INSERT ON own_t TO own_reader")
    wait_ready(owned, "own_s")

    publisher_db.psql("DELETE FROM own_t")
    wait_error(owned, "42501 permission denied for table own_t", "DELETE")
    mended(owned, "GRANT SELECT, DELETE ON own_t TO own_reader")
    wait_equal(publisher_db, TABLE, owned)

    owned.psql("ALTER TABLE own_t ENABLE ROW LEVEL SECURITY")
    publisher_db.psql("INSERT INTO own_t VALUES (3, 3)")
    wait_error(
        owned,
        '0A000 user "own_reader" cannot replicate into relation with row-level security enabled:'
        ' "own_t"',
        "INSERT",
    )
    mended(owned, "ALTER TABLE own_t DISABLE ROW LEVEL SECURITY")
    wait_equal(publisher_db, TABLE, owned)
    assert owned.psql("SELECT who FROM own_t") == "own_reader"


def test_whose_rights_count(ends: Ends) -> None:
    """The subscription's owner needs SET ROLE to the table's, who needs the rights for a change.

    With run_as_owner it needs these rights itself.  Row-level security that is forced on the role
    that acts stops it.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    ends.both("CREATE TABLE nos (id int PRIMARY KEY, v int)")
    publisher.psql("INSERT INTO nos VALUES (1, 1)", "CREATE PUBLICATION nos FOR TABLE nos")
    subscriber.psql("CREATE ROLE nos_keeper; CREATE ROLE nos_owner LOGIN")
    subscriber.psql("ALTER TABLE nos OWNER TO nos_keeper")
    database = subscriber.psql("SELECT current_database()")
    subscriber.psql(f"GRANT CREATE ON DATABASE {database} TO nos_owner")
    options = "enabled = false, password_required = false"
    subscriber.subscribe(publisher, "nos", "nos", options)
    subscriber.psql("ALTER SUBSCRIPTION nos OWNER TO nos_owner", "ALTER SUBSCRIPTION nos ENABLE")
    subscriber.wait_error("nos", 'role "nos_owner" cannot SET ROLE to "nos_keeper"')
    subscriber.mend("nos", "GRANT nos_keeper TO nos_owner WITH INHERIT FALSE")
    subscriber.wait_in_sync("nos")
    ends.sent("nos", "INSERT INTO nos VALUES (2, 2); UPDATE nos SET v = 3 WHERE id = 2")
    ends.same("nos")

    subscriber.psql("REVOKE DELETE ON nos FROM nos_keeper")
    publisher.psql("INSERT INTO nos VALUES (3, 3)", "DELETE FROM nos WHERE id = 1")
    subscriber.wait_error("nos", "permission denied for table nos")
    assert subscriber.rows("nos") == ["1|1", "2|3", "3|3"]
    subscriber.mend("nos", "GRANT DELETE ON nos TO nos_keeper")
    ends.caught_up("nos")
    ends.same("nos")

    secured = 'cannot replicate into relation with row-level security enabled: "nos"'
    subscriber.psql("ALTER TABLE nos ENABLE ROW LEVEL SECURITY")
    ends.sent("nos", "UPDATE nos SET v = 4 WHERE id = 3")  # its owner is exempt
    subscriber.psql("ALTER TABLE nos FORCE ROW LEVEL SECURITY")
    publisher.psql("UPDATE nos SET v = 5 WHERE id = 3")
    subscriber.wait_error("nos", f'user "nos_keeper" {secured}')
    subscriber.mend("nos", "ALTER TABLE nos NO FORCE ROW LEVEL SECURITY")
    ends.caught_up("nos")
    ends.same("nos")

    subscriber.psql("ALTER SUBSCRIPTION nos SET (run_as_owner = true)")
    publisher.psql("UPDATE nos SET v = 6 WHERE id = 3")
    subscriber.wait_error("nos", "permission denied for table nos")
    subscriber.psql("GRANT SELECT, UPDATE ON nos TO nos_owner")
    subscriber.wait_error("nos", f'user "nos_owner" {secured}')
    subscriber.mend("nos", "ALTER TABLE nos DISABLE ROW LEVEL SECURITY")
    ends.caught_up("nos")
    ends.same("nos")


def test_row_security_of_the_publisher(ends: Ends) -> None:
    """A copy by a role that policies apply to fails with row_security off; the stream has no such.

    With it on, PostgreSQL copies what the policies show, and the lake refuses to copy at all.
    """
    publisher, subscriber = ends.publisher, ends.subscriber
    ends.both(
        "CREATE TABLE sec (id int PRIMARY KEY);"
        "CREATE TABLE sec_p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE sec_p1 PARTITION OF sec_p FOR VALUES FROM (0) TO (10)"
    )
    publisher.psql(
        "INSERT INTO sec VALUES (1), (2); INSERT INTO sec_p VALUES (1), (2);"
        "CREATE ROLE sec_reader LOGIN REPLICATION PASSWORD 'secret';"
        "GRANT SELECT ON sec, sec_p TO sec_reader",
        "ALTER TABLE sec ENABLE ROW LEVEL SECURITY; CREATE POLICY sec ON sec USING (id = 1);"
        "ALTER TABLE sec_p ENABLE ROW LEVEL SECURITY; CREATE POLICY sec ON sec_p USING (id = 1);"
        "CREATE PUBLICATION sec FOR TABLE sec;"
        "CREATE PUBLICATION sec_p FOR TABLE sec_p WITH (publish_via_partition_root)",
    )
    reader = f"{publisher.conninfo} user=sec_reader password=secret"
    for name in ("sec", "sec_p"):
        subscriber.psql(
            f"CREATE SUBSCRIPTION {name} CONNECTION '{reader} options=-crow_security=off'"
            f" PUBLICATION {name}"
        )
        affected = f'query would be affected by row-level security policy for table "{name}"'
        subscriber.wait_error(name, affected)
        if publisher.is_lake:
            subscriber.mend(name, f"ALTER SUBSCRIPTION {name} CONNECTION '{reader}'")
            subscriber.wait_error(name, "row-level security on lake tables is not supported")
            subscriber.psql(f"ALTER SUBSCRIPTION {name} DISABLE")
            publisher.psql("ALTER ROLE sec_reader BYPASSRLS")
            subscriber.psql(f"ALTER SUBSCRIPTION {name} ENABLE")
            subscriber.wait_in_sync(name)
            publisher.psql("ALTER ROLE sec_reader NOBYPASSRLS")
            ends.same(name)
        else:
            subscriber.mend(name, f"ALTER SUBSCRIPTION {name} CONNECTION '{reader}'")
            subscriber.wait_in_sync(name)
            assert subscriber.rows(name) == ["1"]
        ends.sent(name, f"INSERT INTO {name} VALUES (5)")
        assert "5" in subscriber.rows(name)
