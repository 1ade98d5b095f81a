# SPDX-License-Identifier: Apache-2.0
"""Policies for conflicts on a real stream: rows, statistics, penstock.conflict_log, the log.

Two subscriptions follow one table.  The first copies it and stops, so its rows are another's to the
second.  Rows differ after changes of a kind that is not published for a while.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.subscribing import (
    SYNC_TIMEOUT,
    drop_subscription,
    wait_caught_up,
    wait_equal,
    wait_ready,
)
from tests.support.waits import wait_until

TABLE = "SELECT * FROM conf_t"
ROWS = f"{TABLE} ORDER BY id"
LOGGED = (
    "SELECT conflict, resolution, key->>'id', local_row->>'v', remote_row->>'v',"
    " local_origin = (SELECT oid FROM pg_subscription WHERE subname = 'conf_first') AS first"
    " FROM penstock.conflict_log l JOIN pg_subscription s ON s.oid = l.subid"
    " WHERE subname = 'conf_s' AND l.id > {after} ORDER BY l.id"
)


@pytest.fixture
def shared(publisher_db: Database, node: Node) -> Iterator[Node]:
    """Table conf_t with rows 1 to 6, all copied by conf_first; conf_s goes on, and is disabled."""
    publisher_db.psql(
        "CREATE TABLE conf_t (id int PRIMARY KEY, v text);"
        "INSERT INTO conf_t SELECT g, 'copied' FROM generate_series(1, 6) g;"
        "CREATE PUBLICATION conf_p FOR TABLE conf_t"
    )
    connection = f"CONNECTION '{publisher_db.conninfo}' PUBLICATION conf_p"
    node.psql(f"CREATE SUBSCRIPTION conf_first {connection}")
    wait_ready(node, "conf_first")
    node.psql("ALTER SUBSCRIPTION conf_first DISABLE")
    node.psql(f"CREATE SUBSCRIPTION conf_s {connection} WITH (copy_data = false)")
    wait_ready(node, "conf_s")
    node.psql("ALTER SUBSCRIPTION conf_s DISABLE")
    try:
        yield node
    finally:
        node.psql("DROP SUBSCRIPTION conf_first")
        drop_subscription(node, "conf_s")


def unpublished(publisher: Database, kinds: str, statement: str) -> None:
    """Run a statement while only these kinds of changes are published."""
    publisher.psql(f"ALTER PUBLICATION conf_p SET (publish = '{kinds}')")
    publisher.psql(statement)
    publisher.psql("ALTER PUBLICATION conf_p SET (publish = 'insert, update, delete, truncate')")


def every_kind(publisher: Database) -> None:
    """Changes that conflict in every way with a lake that has the publisher's rows of before."""
    unpublished(publisher, "update", "DELETE FROM conf_t WHERE id IN (1, 2)")
    unpublished(publisher, "update", "INSERT INTO conf_t VALUES (10, 'new'), (11, 'new')")
    publisher.psql(
        "BEGIN; INSERT INTO conf_t VALUES (1, 'inserted'); UPDATE conf_t SET id = 2, v = 'moved'"
        " WHERE id = 1; UPDATE conf_t SET v = 'updated' WHERE id IN (3, 10);"
        " DELETE FROM conf_t WHERE id IN (4, 11); COMMIT"
    )


def run_through(node: Node, publisher: Database) -> None:
    """Let conf_s apply all that there is."""
    node.psql("ALTER SUBSCRIPTION conf_s ENABLE")
    # A walsender that has not taken its slot yet is not among those that are waited for.
    streams = (
        "SELECT count(*) FROM pg_replication_slots s JOIN pg_stat_replication r"
        " ON r.pid = s.active_pid WHERE s.database = current_database()"
    )
    wait_until(lambda: publisher.psql(streams) == "1", SYNC_TIMEOUT, "the stream")
    wait_caught_up(publisher)


def log_of(node: Node) -> str:
    """What the node has logged."""
    return (node.home / "log" / "penstock.log").read_text()


def last_logged(node: Node) -> str:
    """The newest row of the conflict log."""
    return node.psql("SELECT coalesce(max(id), 0) FROM penstock.conflict_log")


def counters(node: Node) -> str:
    """The subscription's counters of conflicts."""
    return node.psql(
        "SELECT confl_insert_exists, confl_update_origin_differs, confl_update_exists,"
        " confl_update_missing, confl_delete_origin_differs, confl_delete_missing"
        " FROM pg_stat_subscription_stats WHERE subname = 'conf_s'"
    )


def test_apply_remote_ends_with_the_publisher_s_rows(shared: Node, publisher_db: Database) -> None:
    """An error is logged once; apply_remote then takes all, shown with both rows, all counted."""
    every_kind(publisher_db)
    shared.psql("ALTER SUBSCRIPTION conf_s ENABLE")
    errors = "SELECT apply_error_count > 1 FROM pg_stat_subscription_stats WHERE subname = 'conf_s'"
    wait_until(lambda: shared.psql(errors) == "t", SYNC_TIMEOUT, "two attempts")
    assert shared.psql(LOGGED.format(after=0)) == "insert_exists|error|1|copied|inserted|t"
    after = last_logged(shared)
    shared.psql("ALTER SUBSCRIPTION conf_s SET (on_conflict = apply_remote)")
    shared.psql(
        "SELECT pg_stat_reset_subscription_stats(oid) FROM pg_subscription WHERE subname = 'conf_s'"
    )
    wait_equal(publisher_db, TABLE, shared)
    assert shared.psql(LOGGED.format(after=after)).splitlines() == [
        "insert_exists|apply_remote|1|copied|inserted|t",
        "update_exists|apply_remote|2|copied|moved|t",
        "update_origin_differs|apply_remote|3|copied|updated|t",
        "update_missing|apply_remote|10||updated|",
        "delete_origin_differs|apply_remote|4|copied||t",
        "delete_missing|skip|11|||",
    ]
    assert counters(shared) == "1|1|1|1|1|1"
    same = shared.psql(
        "SELECT count(DISTINCT (remote_xid, remote_lsn, remote_commit_time)),"
        " bool_and(remote_commit_time > local_commit_time), min(relation)"
        f" FROM penstock.conflict_log WHERE id > {after}"
    )
    assert same == "1|t|public.conf_t", "all of one remote transaction, after the copy"
    log = log_of(shared)
    assert re.search(
        r'conflict detected on relation "public.conf_t": conflict=update_exists\n\t'
        r'DETAIL:  Key already exists in unique index "conf_t_pkey", modified by origin "pg_\d+" at'
        r" \d{4}-.*\n\tKey \(id\)=\(2\); existing local row \(2, copied\);"
        r" remote row \(2, moved\)\.",
        log,
    )


def test_keep_local_and_the_last_update(shared: Node, publisher_db: Database) -> None:
    """keep_local changes no row of another; last_update_wins compares the transactions' times.

    The other subscription has applied both updates of row 5 when this one gets the first of them.
    """
    before = shared.psql(ROWS)
    shared.psql("ALTER SUBSCRIPTION conf_s SET (on_conflict = keep_local)")
    every_kind(publisher_db)
    run_through(shared, publisher_db)
    assert shared.psql(ROWS) == before
    assert counters(shared) == "1|2|0|1|1|1", "row 1 was another's still when it was to move"
    shared.psql("ALTER SUBSCRIPTION conf_s DISABLE")

    after = last_logged(shared)
    shared.psql("ALTER SUBSCRIPTION conf_s SET (on_conflict = last_update_wins)")
    publisher_db.psql("UPDATE conf_t SET v = 'first' WHERE id = 5")
    publisher_db.psql("UPDATE conf_t SET v = 'second' WHERE id = 5")
    shared.psql("ALTER SUBSCRIPTION conf_first SET (on_conflict = apply_remote)")
    shared.psql("ALTER SUBSCRIPTION conf_first ENABLE")
    wait_until(
        lambda: shared.psql("SELECT v FROM conf_t WHERE id = 5") == "second",
        SYNC_TIMEOUT,
        "the first subscription",
    )
    shared.psql("ALTER SUBSCRIPTION conf_first DISABLE")
    wait_until(
        lambda: publisher_db.psql("SELECT count(*) FROM pg_stat_replication") == "0",
        SYNC_TIMEOUT,
        "the first subscription to stop",
    )
    run_through(shared, publisher_db)
    assert shared.psql(LOGGED.format(after=after)).splitlines()[-2:] == [
        "update_origin_differs|keep_local|5|second|first|t",
        "update_origin_differs|apply_remote|5|second|second|t",
    ]
    wait_equal(publisher_db, TABLE, shared)


def test_error_says_what_postgresql_says(
    control_pair: tuple[Database, Database], node: Node
) -> None:
    """Under error, the default, changes of missing rows are skipped, in the words of native 18."""
    publisher, native = control_pair
    table = "CREATE TABLE conf_n (a int, b text, v int, PRIMARY KEY (b, a))"
    publisher.psql(
        f"{table}; INSERT INTO conf_n SELECT g, 'b', g FROM generate_series(1, 4) g;"
        "CREATE PUBLICATION conf_n FOR TABLE conf_n"
    )
    native.psql(table)
    for name, subscriber in (("conf_n", node), ("conf_native", native)):
        subscriber.psql(
            f"CREATE SUBSCRIPTION {name} CONNECTION '{publisher.conninfo}' PUBLICATION conf_n"
            " WITH (copy_data = false)"
        )
    publisher.psql(
        "UPDATE conf_n SET v = NULL WHERE a = 1; UPDATE conf_n SET a = 20 WHERE a = 2;"
        "DELETE FROM conf_n WHERE a = 3; INSERT INTO conf_n VALUES (9, 'b', 9)"
    )
    try:
        wait_equal(publisher, "SELECT * FROM conf_n WHERE a = 9", node)
        assert told(log_of(node)) == told(native.server.log_text())
        assert [kind for kind, _ in told(log_of(node))] == [
            "update_missing",
            "update_missing",
            "delete_missing",
        ]
        logged = "SELECT conflict, resolution, key, remote_row FROM penstock.conflict_log l JOIN"
        assert node.psql(
            f"{logged} pg_subscription s ON s.oid = l.subid WHERE subname = 'conf_n' ORDER BY id"
        ).splitlines() == [
            'update_missing|skip|{"a": "1", "b": "b"}|{"a": "1", "b": "b", "v": null}',
            'update_missing|skip|{"a": "2", "b": "b"}|{"a": "20", "b": "b", "v": "2"}',
            'delete_missing|skip|{"a": "3", "b": "b"}|',
        ]
    finally:
        drop_subscription(node, "conf_n")
    assert node.psql("SELECT count(*) FROM penstock.conflict_log WHERE relation ~ 'conf_n'") == "0"


def told(log: str) -> list[tuple[str, str]]:
    """The conflicts with table conf_n in a server's or node's log: kind, DETAIL and CONTEXT."""
    found = re.findall(
        r'conflict detected on relation "public.conf_n": conflict=(\w+)\n'
        r"(.*DETAIL: .*\n\t.*\n.*CONTEXT: .*)",
        log,
    )
    # What differs: time and pid of each line there, the tab before each line here, the origin.
    start = re.compile(r"^(?:\d.*? \w+ \[\d+\] |\t)", re.MULTILINE)
    return [(kind, re.sub('"pg_\\d+"', "", start.sub("", lines))) for kind, lines in found]
