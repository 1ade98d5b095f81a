# SPDX-License-Identifier: Apache-2.0
"""The four scenarios of the chapter's "Replication Slot Management", with the lake subscribing."""

from __future__ import annotations

import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.psql import PsqlError
from tests.support.subscribing import drop_subscription, wait_equal, wait_ready
from tests.support.waits import wait_until


def _published(publisher: Database, name: str) -> None:
    publisher.psql(
        f"CREATE TABLE {name} (id int PRIMARY KEY); INSERT INTO {name} VALUES (1), (2);"
        f"CREATE PUBLICATION {name} FOR TABLE {name}"
    )


def _slots(publisher: Database) -> str:
    return publisher.psql(
        "SELECT string_agg(slot_name, ',' ORDER BY slot_name) FROM pg_replication_slots"
        " WHERE database = current_database()"
    )


def test_the_slot_exists_already(publisher_db: Database, node: Node) -> None:
    """create_slot = false takes an existing slot, and what was written since it was made."""
    _published(publisher_db, "sm_existing")
    publisher_db.psql("SELECT pg_create_logical_replication_slot('sm_mine', 'pgoutput')")
    publisher_db.psql("INSERT INTO sm_existing VALUES (3)")
    node.psql("CREATE TABLE sm_existing (id int PRIMARY KEY)")
    node.psql(
        f"CREATE SUBSCRIPTION sm_existing CONNECTION '{publisher_db.conninfo}'"
        " PUBLICATION sm_existing WITH (create_slot = false, slot_name = 'sm_mine',"
        " copy_data = false)"
    )
    wait_equal(publisher_db, "SELECT * FROM sm_existing WHERE id > 2", node, "TABLE sm_existing")
    drop_subscription(node, "sm_existing")
    assert _slots(publisher_db) == ""


def test_the_remote_host_is_not_to_be_contacted(publisher_db: Database, node: Node) -> None:
    """connect = false contacts nobody; the slot is made by hand, then enabled and refreshed."""
    _published(publisher_db, "sm_offline")
    node.psql("CREATE TABLE sm_offline (id int PRIMARY KEY)")
    node.psql(
        f"CREATE SUBSCRIPTION sm_offline CONNECTION '{publisher_db.conninfo}'"
        " PUBLICATION sm_offline WITH (connect = false)"
    )
    assert _slots(publisher_db) == ""
    assert node.psql("SELECT subenabled FROM pg_subscription WHERE subname = 'sm_offline'") == "f"
    publisher_db.psql("SELECT pg_create_logical_replication_slot('sm_offline', 'pgoutput')")
    node.psql("ALTER SUBSCRIPTION sm_offline ENABLE")
    node.psql("ALTER SUBSCRIPTION sm_offline REFRESH PUBLICATION")
    wait_ready(node, "sm_offline")
    wait_equal(publisher_db, "SELECT * FROM sm_offline", node)
    publisher_db.psql("INSERT INTO sm_offline VALUES (7)")
    wait_equal(publisher_db, "SELECT * FROM sm_offline", node)
    drop_subscription(node, "sm_offline")


def test_the_slot_is_kept_when_the_subscription_is_dropped(
    publisher_db: Database, node: Node
) -> None:
    """A disassociated slot survives DROP SUBSCRIPTION, and another subscription goes on with it."""
    _published(publisher_db, "sm_kept")
    node.psql(
        f"CREATE SUBSCRIPTION sm_kept CONNECTION '{publisher_db.conninfo}' PUBLICATION sm_kept"
    )
    wait_ready(node, "sm_kept")
    node.psql("ALTER SUBSCRIPTION sm_kept DISABLE")
    node.psql("ALTER SUBSCRIPTION sm_kept SET (slot_name = NONE)")
    node.psql("DROP SUBSCRIPTION sm_kept")
    assert _slots(publisher_db) == "sm_kept"
    publisher_db.psql("INSERT INTO sm_kept VALUES (3)")
    node.psql(
        f"CREATE SUBSCRIPTION sm_moved CONNECTION '{publisher_db.conninfo}' PUBLICATION sm_kept"
        " WITH (create_slot = false, slot_name = 'sm_kept', copy_data = false)"
    )
    wait_equal(publisher_db, "SELECT * FROM sm_kept", node)
    drop_subscription(node, "sm_moved")


def test_the_remote_host_is_not_reachable_at_drop(publisher_db: Database, node: Node) -> None:
    """DROP SUBSCRIPTION needs the publisher, unless the slot was disassociated before."""
    _published(publisher_db, "sm_gone")
    node.psql(
        f"CREATE SUBSCRIPTION sm_gone CONNECTION '{publisher_db.conninfo}' PUBLICATION sm_gone"
    )
    wait_ready(node, "sm_gone")
    nowhere = publisher_db.conninfo.replace(f"port={publisher_db.server.port}", "port=1")
    assert nowhere != publisher_db.conninfo
    node.psql(f"ALTER SUBSCRIPTION sm_gone CONNECTION '{nowhere}'")
    with pytest.raises(PsqlError, match="could not connect to publisher"):
        node.psql("DROP SUBSCRIPTION sm_gone")
    node.psql("ALTER SUBSCRIPTION sm_gone DISABLE")
    node.psql("ALTER SUBSCRIPTION sm_gone SET (slot_name = NONE)")
    node.psql("DROP SUBSCRIPTION sm_gone")
    node.psql("DROP TABLE sm_gone")
    assert _slots(publisher_db) == "sm_gone"
    wait_until(
        lambda: publisher_db.psql("SELECT active FROM pg_replication_slots") == "f", 30, "the slot"
    )
    publisher_db.psql("SELECT pg_drop_replication_slot('sm_gone')")


def test_tables_are_added_and_removed_by_refresh(publisher_db: Database, node: Node) -> None:
    """REFRESH copies what is new while the rest streams; what left the publication stays."""
    _published(publisher_db, "sm_first")
    publisher_db.psql("CREATE TABLE sm_second (id int PRIMARY KEY, v text)")
    publisher_db.psql("INSERT INTO sm_second SELECT g, 'v' FROM generate_series(1, 1000) g")
    node.psql(
        f"CREATE SUBSCRIPTION sm_refresh CONNECTION '{publisher_db.conninfo}' PUBLICATION sm_first"
    )
    wait_ready(node, "sm_refresh")
    publisher_db.psql("ALTER PUBLICATION sm_first ADD TABLE sm_second")
    node.psql("ALTER SUBSCRIPTION sm_refresh REFRESH PUBLICATION")
    publisher_db.psql("UPDATE sm_second SET v = 'w' WHERE id < 10; INSERT INTO sm_first VALUES (3)")
    wait_ready(node, "sm_refresh")
    wait_equal(publisher_db, "SELECT * FROM sm_second", node)
    wait_equal(publisher_db, "SELECT * FROM sm_first", node)
    publisher_db.psql("ALTER PUBLICATION sm_first DROP TABLE sm_first")
    node.psql("ALTER SUBSCRIPTION sm_refresh REFRESH PUBLICATION")
    publisher_db.psql("INSERT INTO sm_first VALUES (4); INSERT INTO sm_second VALUES (0, 'x')")
    wait_equal(publisher_db, "SELECT * FROM sm_second", node)
    assert node.psql("SELECT count(*) FROM sm_first") == "3"
    drop_subscription(node, "sm_refresh")
    node.psql("DROP TABLE sm_first")


def test_a_disabled_subscription_rests_and_goes_on(publisher_db: Database, node: Node) -> None:
    """DISABLE frees the slot; ENABLE brings what was written meanwhile, exactly once."""
    _published(publisher_db, "sm_rest")
    node.psql(
        f"CREATE SUBSCRIPTION sm_rest CONNECTION '{publisher_db.conninfo}' PUBLICATION sm_rest"
    )
    wait_ready(node, "sm_rest")
    node.psql("ALTER SUBSCRIPTION sm_rest DISABLE")
    wait_until(
        lambda: publisher_db.psql("SELECT active FROM pg_replication_slots") == "f", 30, "the slot"
    )
    publisher_db.psql("INSERT INTO sm_rest VALUES (3), (4); DELETE FROM sm_rest WHERE id = 1")
    node.psql("ALTER SUBSCRIPTION sm_rest ENABLE")
    wait_equal(publisher_db, "SELECT * FROM sm_rest", node)
    drop_subscription(node, "sm_rest")


@pytest.mark.parametrize(
    "option",
    ["retain_dead_tuples = true"],
)
def test_options_that_the_workers_do_not_honour_are_refused(
    option: str, publisher_db: Database, node: Node
) -> None:
    """Nothing is created, here or there, and the error says why."""
    _published(publisher_db, "sm_option")
    with pytest.raises(PsqlError, match="not supported"):
        node.psql(
            f"CREATE SUBSCRIPTION sm_option CONNECTION '{publisher_db.conninfo}'"
            f" PUBLICATION sm_option WITH ({option})"
        )
    assert _slots(publisher_db) == ""
    assert node.psql("SELECT to_regclass('sm_option') IS NULL") == "t"
