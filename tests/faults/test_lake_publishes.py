# SPDX-License-Identifier: Apache-2.0
"""What goes wrong between a lake and its subscribers, and how it is mended, as with PostgreSQL.

``near`` and ``far`` subscribe to the same tables, ``far`` through a proxy.  What happens to one of
them does not concern the other; in the end both have the lake's rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.scenarios.test_maintenance import keep_no_old_files
from tests.support.fix_servers import Database, drop_database
from tests.support.node import Node
from tests.support.proxy import Proxy
from tests.support.psql import PsqlError
from tests.support.published import make_replica, wait_applied, wait_same
from tests.support.replica import Replica
from tests.support.servers import PostgresServer
from tests.support.subscribing import SYNC_TIMEOUT
from tests.support.waits import wait_until

HERE = """
CREATE TABLE lf (id int PRIMARY KEY, v text);
CREATE TABLE lf_log (id int, v text);
CREATE TABLE lf_ratio (id int PRIMARY KEY, k int)"""
SLOTS = ("near", "far", "lf_filtered", "lf_late")
PUBLISHED = ("SELECT * FROM lf", "SELECT * FROM lf_log")
QUICK = {"PENSTOCK_AUTOVACUUM_NAPTIME": "1"}


@pytest.fixture(scope="module")
def lake(fault_node: Node) -> Iterator[Node]:
    """The node, which looks for old files each second."""
    if fault_node.running:
        fault_node.kill()
    usual, fault_node.env = fault_node.env, {**fault_node.env, **QUICK}
    fault_node.start()
    fault_node.env = usual
    make_replica(fault_node)
    fault_node.psql(
        f"{HERE}; INSERT INTO lf SELECT g, 'copied' FROM generate_series(1, 200) g;"
        "CREATE PUBLICATION lf FOR TABLE lf, lf_log;"
        "CREATE PUBLICATION lf_plain FOR TABLE lf_ratio;"
        "CREATE PUBLICATION lf_filtered FOR TABLE lf_ratio WHERE (100 / k > 0);"
        "ALTER ROLE replica SET wal_sender_timeout = '3s'"
    )
    yield fault_node
    fault_node.psql("ALTER ROLE replica RESET wal_sender_timeout")
    names = ", ".join(f"'{name}'" for name in SLOTS)
    fault_node.psql(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        f" WHERE slot_name IN ({names})"
    )


@pytest.fixture(scope="module")
def proxy(lake: Node) -> Iterator[Proxy]:
    """What is between the node and ``far``."""
    with Proxy(lake.port) as made:
        yield made


def _replica(lake: Node, server: PostgresServer, name: str, port: int = 0) -> Iterator[Replica]:
    made = Replica(lake, Database(server, server.create_database()))
    made.database.psql(HERE)
    made.subscribe(name, "lf", "disable_on_error = true" if port == 0 else "", port)
    made.wait_in_sync(name)
    yield made
    drop_database(server, made.database.name)


@pytest.fixture(scope="module")
def near(lake: Node, replica_server: PostgresServer) -> Iterator[Replica]:
    """A subscriber; its subscription ``near`` is disabled by an error."""
    yield from _replica(lake, replica_server, "near")


@pytest.fixture(scope="module")
def far(lake: Node, proxy: Proxy, replica_server: PostgresServer) -> Iterator[Replica]:
    """A subscriber whose subscription ``far`` is behind the proxy."""
    yield from _replica(lake, replica_server, "far", proxy.port)


def _write(lake: Node, number: int) -> None:
    """Two transactions, whose rows name ``number``."""
    lake.psql(
        f"BEGIN; INSERT INTO lf_log SELECT {number}, repeat('x', g) FROM generate_series(1, 40) g;"
        f"UPDATE lf SET v = '{number}' WHERE id % 9 = {number % 9}; COMMIT;"
        f"INSERT INTO lf_log VALUES ({number}, 'after')"
    )


def _same(lake: Node, near: Replica, far: Replica) -> None:
    wait_same(lake, near.database, "near", *PUBLISHED)
    wait_same(lake, far.database, "far", *PUBLISHED)


@pytest.mark.timeout(400)
def test_connections_that_are_cut_anywhere(
    lake: Node, proxy: Proxy, near: Replica, far: Replica
) -> None:
    """Cut inside of a message, to or from the subscriber, in the stream or before it begins."""
    chance = random.Random(11)
    for number in range(4):
        proxy.cut_after(chance.randint(1, 4000))
        _write(lake, number)
        wait_until(lambda: not proxy.waits, SYNC_TIMEOUT, "the cut of what is sent")
        proxy.cut_after(chance.randint(1, 900), to_clients=False)
        proxy.cut()  # so that they are the first bytes of the next connection
        wait_until(lambda: not proxy.waits, SYNC_TIMEOUT, "the cut of what comes back")
    _same(lake, near, far)


@pytest.mark.timeout(400)
def test_a_half_open_connection(lake: Node, proxy: Proxy, near: Replica, far: Replica) -> None:
    """Both ends find out by their timeouts; then the slot is free, and nothing was lost."""
    proxy.freeze()
    _write(lake, 100)
    wait_same(lake, near.database, "near", *PUBLISHED)
    freed = "SELECT NOT active FROM pg_replication_slots WHERE slot_name = 'far'"
    wait_until(lambda: lake.psql(freed) == "t", 60, "the slot of the lost subscriber to be free")
    proxy.thaw()
    _write(lake, 101)
    _same(lake, near, far)


@pytest.mark.timeout(400)
def test_a_slow_subscriber_holds_up_nobody(
    lake: Node, proxy: Proxy, near: Replica, far: Replica
) -> None:
    """While one takes a large commit byte by byte, another one has it and what came after it."""
    proxy.slow(20_000)
    lake.psql("INSERT INTO lf_log SELECT 200, repeat('y', 90) FROM generate_series(1, 50000)")
    _write(lake, 201)
    wait_same(lake, near.database, "near", *PUBLISHED)
    assert far.database.psql("SELECT count(*) FROM lf_log WHERE id >= 200") == "0"
    proxy.slow(None)
    _same(lake, near, far)


@pytest.mark.timeout(400)
def test_a_change_that_cannot_be_applied_is_skipped(
    lake: Node, near: Replica, far: Replica
) -> None:
    """disable_on_error stops it; SKIP with the LSN in PostgreSQL's log leaves out one commit."""
    near.database.psql("INSERT INTO lf VALUES (1000, 'in the way')")
    lake.psql(
        "INSERT INTO lf_log VALUES (300, 'before');"
        "BEGIN; INSERT INTO lf VALUES (1000, 'lake'); INSERT INTO lf_log VALUES (300, 'with it');"
        "COMMIT; INSERT INTO lf_log VALUES (300, 'after')"
    )
    enabled = "SELECT subenabled FROM pg_subscription WHERE subname = 'near'"
    wait_until(lambda: near.database.psql(enabled) == "f", SYNC_TIMEOUT, "it to be disabled")
    assert near.database.psql("SELECT v FROM lf_log WHERE id = 300") == "before"
    kind, lsn = near.failed_at("lf")
    assert kind == "INSERT"
    near.alter("near", f"SKIP (lsn = '{lsn}')", "ENABLE")
    wait_applied(lake, "near")
    assert near.database.psql("SELECT v FROM lf_log WHERE id = 300") == "before\nafter"
    assert near.database.psql("SELECT v FROM lf WHERE id = 1000") == "in the way"
    lake.psql("UPDATE lf SET v = 'again' WHERE id = 1000; TRUNCATE lf_log")
    _same(lake, near, far)


@pytest.mark.timeout(400)
def test_a_row_filter_that_fails_on_a_row(lake: Node, near: Replica, far: Replica) -> None:
    """PostgreSQL's error ends that stream, and no other, until the commit is not to be sent.

    Either the subscription names another publication, or the slot goes past the commit.
    """
    with near.logging("division by zero"):
        near.subscribe("lf_filtered", "lf_filtered")
        near.wait_in_sync("lf_filtered")
        lake.psql(
            "INSERT INTO lf_ratio VALUES (1, 50), (2, 500);"
            "INSERT INTO lf_ratio VALUES (3, 0); INSERT INTO lf_ratio VALUES (4, 4)"
        )
        _write(lake, 400)
        _same(lake, near, far)
    assert near.database.psql("SELECT id FROM lf_ratio") == "1"
    near.alter("lf_filtered", "SET PUBLICATION lf_plain")
    wait_applied(lake, "lf_filtered")
    assert near.database.psql("SELECT id FROM lf_ratio ORDER BY id") == "1\n3\n4"
    near.alter("lf_filtered", "SET PUBLICATION lf_filtered")
    with near.logging("division by zero"):
        lake.psql("INSERT INTO lf_ratio VALUES (5, 0)")
    near.disable("lf_filtered")
    lake.psql("SELECT pg_replication_slot_advance('lf_filtered', pg_current_wal_lsn())")
    near.alter("lf_filtered", "ENABLE")
    lake.psql("INSERT INTO lf_ratio VALUES (6, 6)")
    wait_applied(lake, "lf_filtered")
    assert near.database.psql("SELECT id FROM lf_ratio ORDER BY id") == "1\n3\n4\n6"
    near.database.psql("DROP SUBSCRIPTION lf_filtered")


@pytest.mark.timeout(400)
def test_a_slot_that_is_advanced_or_dropped(lake: Node, near: Replica, far: Replica) -> None:
    """What an advanced slot has passed is not sent; a dropped one is missed until it is made."""
    near.disable("near")
    lake.psql(
        "INSERT INTO lf_log VALUES (500, 'passed');"
        "SELECT pg_replication_slot_advance('near', pg_current_wal_lsn());"
        "INSERT INTO lf_log VALUES (500, 'sent')"
    )
    near.alter("near", "ENABLE")
    wait_applied(lake, "near")
    assert near.database.psql("SELECT v FROM lf_log WHERE id = 500") == "sent"
    lake.psql("TRUNCATE lf_log")
    _same(lake, near, far)
    near.disable("near")
    lake.psql("SELECT pg_drop_replication_slot('near')")
    with near.logging('replication slot "near" does not exist'):
        near.alter("near", "SET (disable_on_error = false)", "ENABLE")
    lake.psql("SELECT FROM pg_create_logical_replication_slot('near', 'pgoutput')")
    _write(lake, 501)
    _same(lake, near, far)


@pytest.mark.timeout(400)
def test_a_publication_that_is_dropped_and_made_again(
    lake: Node, near: Replica, far: Replica
) -> None:
    """A commit between the two cannot be sent, as PostgreSQL has it; the others are.

    What the node itself writes between the two, as the ledger's row of the DROP, is no such commit.
    """
    far.disable("far")
    lake.psql("INSERT INTO lf_log VALUES (600, 'before'); DROP PUBLICATION lf")
    held = """SELECT count(*) FROM (SELECT DISTINCT ON (objid) facts FROM penstock.definition
        WHERE kind = 'publication' ORDER BY objid, lsn DESC) last WHERE facts->>'name' = 'lf'"""
    wait_until(lambda: lake.psql(held) == "0", 30, "the ledger to have the DROP")
    logged = len(far.database.server.log_text())
    lake.psql(
        "CREATE PUBLICATION lf FOR TABLE lf, lf_log; INSERT INTO lf_log VALUES (600, 'after')"
    )
    far.alter("far", "ENABLE")
    _same(lake, near, far)
    assert "loading publication" not in far.database.server.log_text()[logged:]
    far.disable("far")
    with far.logging('publication "lf" does not exist'):
        lake.psql("DROP PUBLICATION lf; INSERT INTO lf_ratio VALUES (-1, 1)")
        far.alter("far", "ENABLE")
    far.disable("far")
    near.disable("near")
    lake.psql(
        "CREATE PUBLICATION lf FOR TABLE lf, lf_log; SELECT"
        " pg_replication_slot_advance(name, pg_current_wal_lsn()) FROM unnest('{near,far}'::name[])"
        " AS name"
    )
    near.alter("near", "ENABLE")
    far.alter("far", "ENABLE")
    _write(lake, 601)
    _same(lake, near, far)


@pytest.mark.timeout(400)
def test_what_a_late_subscriber_needs_is_kept(lake: Node, near: Replica) -> None:
    """Old files of a table, and a dropped table's folder, stay until their commits were sent."""
    tables = "CREATE TABLE lf_old (id int, v int); CREATE TABLE lf_dropped (id int, v int)"
    lake.psql(f"{tables}; CREATE PUBLICATION lf_late FOR TABLE lf_old, lf_dropped")
    near.database.psql(tables)
    near.subscribe("lf_late", "lf_late")
    near.wait_in_sync("lf_late")
    near.disable("lf_late")
    lake.psql("INSERT INTO lf_old VALUES (0, 0); INSERT INTO lf_dropped VALUES (0, 0)")
    folder = _folder(lake, "lf_dropped")
    keep_no_old_files(_folder(lake, "lf_old"))
    for number in range(3):
        change = f"INSERT INTO lf_old VALUES ({number}, 1); TRUNCATE lf_old"
        # Another program's commit is to be registered before the next one.
        wait_until(partial(_works, lake, change), SYNC_TIMEOUT, change)
    lake.psql("INSERT INTO lf_old VALUES (9, 9); INSERT INTO lf_dropped VALUES (9, 9)")
    lake.psql("DROP TABLE lf_dropped")
    old_files = set(Path(_folder(lake, "lf_old")).glob("*.parquet"))
    _two_passes(lake)
    assert Path(folder).exists()
    assert old_files <= set(Path(_folder(lake, "lf_old")).glob("*.parquet"))
    near.alter("lf_late", "ENABLE")
    wait_applied(lake, "lf_late")
    assert near.database.psql("SELECT * FROM lf_old") == "9|9"
    assert near.database.psql("SELECT * FROM lf_dropped ORDER BY id") == "0|0\n9|9"
    wait_until(lambda: not Path(folder).exists(), 60, "the dropped table's folder to go")
    near.database.psql("DROP SUBSCRIPTION lf_late")


def _folder(lake: Node, table: str) -> str:
    location = lake.psql(
        f"SELECT location FROM penstock.table_version WHERE relid = '{table}'::regclass"
    )
    return str(Path(lake.home, "lake", location))


def _works(lake: Node, statements: str) -> bool:
    try:
        lake.psql(f"BEGIN; {statements}; COMMIT")
    except PsqlError:
        return False
    return True


def _two_passes(lake: Node) -> None:
    """Wait until what may go was looked for twice, with a slot that needs something."""
    passes = "SELECT count(*) FROM penstock.commit WHERE purpose = 'retention'"
    enough = int(lake.psql(passes)) + 2
    try:
        wait_until(lambda: int(lake.psql(passes)) >= enough, 60, "two passes")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{lake.text()[-6000:]}") from error
