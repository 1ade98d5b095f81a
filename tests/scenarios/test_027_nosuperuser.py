# SPDX-License-Identifier: Apache-2.0
"""Apply and copy act as the table's owner, or with run_as_owner as the subscription's owner."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.subscribing import SYNC_TIMEOUT, drop_subscription, wait_equal, wait_ready
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
