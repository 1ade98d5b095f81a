# SPDX-License-Identifier: Apache-2.0
"""A change that cannot be applied: what is said about it, how to go on, and how to stop for good.

A conflict needs a key that the lake has and the publisher has not: a first subscription copies it,
the row is deleted on the publisher while nobody follows, and a second subscription goes on without
a copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.subscribing import (
    SYNC_TIMEOUT,
    drop_subscription,
    subscribed,
    wait_equal,
    wait_ready,
)
from tests.support.waits import wait_until

CONTEXT = re.compile(
    r'processing remote data for replication origin "(?P<origin>pg_\d+)" during message type'
    r' "(?P<type>[A-Z]+)" for replication target relation "(?P<relation>[^"]+)"'
    r'(?: column "(?P<column>[^"]+)")? in transaction (?P<xid>\d+), finished at (?P<lsn>\S+)$'
)


def log_of(node: Node) -> str:
    """What the node has logged."""
    return (node.home / "log" / "penstock.log").read_text()


def subid(node: Node, name: str) -> str:
    """The OID of a subscription."""
    return node.psql(f"SELECT oid FROM pg_subscription WHERE subname = '{name}'")


def wait_rows(node: Node, query: str, rows: str) -> None:
    """Wait until a query gives these rows; the stream may not even run yet."""
    wait_until(lambda: node.psql(query) == rows, SYNC_TIMEOUT, f"{query} to give {rows}")


def transaction(publisher: Database, statements: str) -> str:
    """Run statements in one transaction; its xid."""
    with publisher.connect() as conn, conn.transaction():
        conn.execute(statements.encode())
        row = conn.execute("SELECT pg_current_xact_id()::xid::text").fetchone()
    assert row is not None
    return str(row[0])


def wait_error(node: Node, name: str) -> tuple[str, re.Match[str]]:
    """Wait for a subscription's error: its SQLSTATE and message, and its context, taken apart."""
    query = "SELECT sqlstate || ' ' || message, context FROM penstock.subscription_error"
    with node.connect() as conn:
        message, context = wait_until(
            lambda: conn.execute(query + f" WHERE subid = {subid(node, name)}").fetchone(),
            SYNC_TIMEOUT,
            f"an error of {name}",
        )
    found = CONTEXT.match(context or "")
    assert found is not None, f"{message}, context {context}"
    return message, found


def next_finish_lsn(publisher: Database) -> str:
    """The finish LSN of the next transaction in the only slot, which nobody uses."""
    return publisher.psql(
        "SELECT '0/0'::pg_lsn + ('x' || encode(substr(data, 2, 8), 'hex'))::bit(64)::bigint"
        " FROM pg_replication_slots s CROSS JOIN pg_publication p"
        " CROSS JOIN LATERAL pg_logical_slot_peek_binary_changes("
        "  s.slot_name, NULL, 1, 'proto_version', '1', 'publication_names', p.pubname)"
        " WHERE substr(data, 1, 1) = 'B'"
    )


@contextmanager
def conflicting(node: Node, publisher: Database, name: str, options: str) -> Iterator[None]:
    """Table and subscription ``name``; the lake has a row c = 1 that the publisher has not.

    The subscription is disabled, so that what comes next is one batch.
    """
    publisher.psql(
        f"CREATE TABLE {name} (c int PRIMARY KEY, v text); INSERT INTO {name} VALUES (1, 'old');"
        f"CREATE TABLE {name}_other (id int PRIMARY KEY);"
        f"CREATE PUBLICATION {name} FOR TABLE {name}, {name}_other"
    )
    create = f"CREATE SUBSCRIPTION {name} CONNECTION '{publisher.conninfo}' PUBLICATION {name}"
    node.psql(create)
    wait_ready(node, name)
    node.psql(f"DROP SUBSCRIPTION {name}")
    publisher.psql(f"DELETE FROM {name}")
    node.psql(f"{create} WITH (copy_data = false, {options})")
    try:
        wait_ready(node, name)
        node.psql(f"ALTER SUBSCRIPTION {name} DISABLE")
        yield
    finally:
        drop_subscription(node, name)


@pytest.mark.parametrize("publisher", ["15", "18"], indirect=True)
def test_the_story_of_a_conflict(publisher_db: Database, node: Node) -> None:
    """The chapter's section Conflicts: error, its LSN, SKIP, and everything else arrives.

    Of a batch of five transactions the third has a duplicate key as its second change.  What
    comes before it is applied, the error names exactly it, and SKIP leaves out only it.
    """
    name = "oe_story"
    with conflicting(node, publisher_db, name, "disable_on_error = false"):
        transaction(publisher_db, f"INSERT INTO {name} VALUES (2, 'two')")
        transaction(publisher_db, f"INSERT INTO {name}_other VALUES (1)")
        bad = transaction(
            publisher_db,
            f"INSERT INTO {name} VALUES (3, 'never'); INSERT INTO {name} VALUES (1, 'new');"
            f"INSERT INTO {name}_other VALUES (2)",
        )
        transaction(publisher_db, f"UPDATE {name} SET v = 'TWO' WHERE c = 2")
        transaction(publisher_db, f"INSERT INTO {name} VALUES (4, 'four')")
        node.psql(f"ALTER SUBSCRIPTION {name} ENABLE")
        message, context = wait_error(node, name)
        assert message == f'23505 duplicate key value violates unique constraint "{name}_pkey"'
        oid = subid(node, name)
        assert context.groupdict() == {
            "origin": f"pg_{oid}",
            "type": "INSERT",
            "relation": f"public.{name}",
            "column": None,
            "xid": bad,
            "lsn": context["lsn"],
        }
        assert node.psql(f"SELECT c, v FROM {name} ORDER BY c") == "1|old\n2|two"
        assert node.psql(f"SELECT id FROM {name}_other") == "1"
        shown = node.command("status").stdout
        assert f"  CONTEXT:  {context[0]}" in shown and "  DETAIL:  Key (c)=(1)" in shown
        assert f"CONTEXT:  {context[0]}" in log_of(node)
        conflict = f'conflict detected on relation "public.{name}": conflict=insert_exists'
        assert conflict in log_of(node)
        node.psql(f"ALTER SUBSCRIPTION {name} SKIP (lsn = '{context['lsn']}')")
        wait_rows(node, f"SELECT c, v FROM {name} ORDER BY c", "1|old\n2|TWO\n4|four")
        assert node.psql(f"SELECT id FROM {name}_other") == "1"
        assert node.psql(f"SELECT subskiplsn FROM pg_subscription WHERE oid = {oid}") == "0/0"
        for doing in ("starts", "completed"):
            line = f"logical replication {doing} skipping transaction at LSN {context['lsn']}"
            assert line in log_of(node)
        publisher_db.psql(f"INSERT INTO {name}_other VALUES (9)")
        wait_rows(node, f"SELECT max(id) FROM {name}_other", "9")
        assert "error at" not in node.command("status").stdout


def test_disable_on_error_and_advance_the_origin(publisher_db: Database, node: Node) -> None:
    """The chapter's other way: the subscription is disabled, its origin advanced, and it goes on.

    The position lies in the middle of what is staged by then: what comes after it arrives.
    """
    name = "oe_disable"
    with conflicting(node, publisher_db, name, "disable_on_error"):
        transaction(publisher_db, f"INSERT INTO {name} VALUES (2, 'two')")
        transaction(publisher_db, f"INSERT INTO {name} VALUES (1, 'new'), (3, 'never')")
        transaction(publisher_db, f"INSERT INTO {name} VALUES (4, 'four')")
        node.psql(f"ALTER SUBSCRIPTION {name} ENABLE")
        enabled = f"SELECT subenabled FROM pg_subscription WHERE subname = '{name}'"
        wait_until(lambda: node.psql(enabled) == "f", SYNC_TIMEOUT, "it to be disabled")
        _, context = wait_error(node, name)
        line = f'subscription "{name}" has been disabled because of an error'
        wait_until(lambda: line in log_of(node), 10, "the line in the log")
        shown = node.command("status").stdout
        assert f"subscription {name}: disabled" in shown
        assert f"  CONTEXT:  {context[0]}" in shown
        assert node.psql(f"SELECT c, v FROM {name} ORDER BY c") == "1|old\n2|two"
        wait_until(
            lambda: publisher_db.psql("SELECT active FROM pg_replication_slots") == "f",
            30,
            "the worker to end",
        )
        with node.connect() as conn:
            conn.execute(
                "SELECT pg_replication_origin_advance(%s, (%s::pg_lsn + 1)::pg_lsn)",
                [context["origin"], context["lsn"]],
            )
            conn.execute(f"ALTER SUBSCRIPTION {name} ENABLE")
        wait_rows(node, f"SELECT c FROM {name} ORDER BY c", "1\n2\n4")
        assert node.psql(enabled) == "t"


@pytest.mark.parametrize("way", ["skip", "advance"])
def test_a_key_whose_delete_was_left_out_is_looked_for(
    publisher_db: Database, node: Node, way: str
) -> None:
    """After a transaction was left out, the lake may have rows that the publisher has not.

    Inserting such a key again is an error, although nobody but the subscription wrote the table.
    """
    name = f"oe_{way}"
    publisher_db.psql(
        f"CREATE TABLE {name} (id int PRIMARY KEY); INSERT INTO {name} VALUES (1), (2);"
        f"CREATE PUBLICATION {name} FOR TABLE {name}"
    )
    with subscribed(node, publisher_db, name, name):
        node.psql(f"ALTER SUBSCRIPTION {name} DISABLE")
        wait_until(
            lambda: publisher_db.psql("SELECT active FROM pg_replication_slots") == "f",
            30,
            "the worker to end",
        )
        publisher_db.psql(f"DELETE FROM {name} WHERE id = 1")
        if way == "skip":
            node.psql(f"ALTER SUBSCRIPTION {name} SKIP (lsn = '{next_finish_lsn(publisher_db)}')")
        else:
            end = publisher_db.psql("SELECT pg_current_wal_flush_lsn()")
            node.psql(f"SELECT pg_replication_origin_advance('pg_{subid(node, name)}', '{end}')")
        node.psql(f"ALTER SUBSCRIPTION {name} ENABLE")
        publisher_db.psql(f"INSERT INTO {name} VALUES (3)")
        wait_rows(node, f"SELECT id FROM {name} ORDER BY id", "1\n2\n3")
        publisher_db.psql(f"INSERT INTO {name} VALUES (1)")
        message, context = wait_error(node, name)
        assert message.startswith("23505 duplicate key value")
        assert context["relation"] == f"public.{name}"


def test_a_key_whose_delete_is_not_published_is_looked_for(
    publisher_db: Database, node: Node
) -> None:
    """With publish = 'insert' a key can be inserted twice: in one batch, and much later."""
    publisher_db.psql(
        "CREATE TABLE oe_only (id int PRIMARY KEY);"
        "CREATE PUBLICATION oe_only FOR TABLE oe_only WITH (publish = 'insert')"
    )
    again = "DELETE FROM oe_only WHERE id = 1; INSERT INTO oe_only VALUES (1)"
    with subscribed(node, publisher_db, "oe_only", "oe_only"):
        first = transaction(publisher_db, f"INSERT INTO oe_only VALUES (1), (2); {again}")
        message, context = wait_error(node, "oe_only")
        assert message.startswith("23505 duplicate key value")
        assert context["xid"] == first
        node.psql(f"ALTER SUBSCRIPTION oe_only SKIP (lsn = '{context['lsn']}')")
        publisher_db.psql("DELETE FROM oe_only; INSERT INTO oe_only VALUES (1)")
        wait_rows(node, "SELECT id FROM oe_only", "1")
        node.psql("ALTER SUBSCRIPTION oe_only DISABLE; ALTER SUBSCRIPTION oe_only ENABLE")
        second = transaction(publisher_db, again)
        wait_until(
            lambda: wait_error(node, "oe_only")[1]["xid"] == second, SYNC_TIMEOUT, "the second"
        )
        assert node.psql("SELECT id FROM oe_only") == "1"


def test_a_skip_lsn_that_does_not_match_is_cleared(publisher_db: Database, node: Node) -> None:
    """The next transaction with changes clears it, with PostgreSQL's warning, and is applied.

    NONE clears it, and an LSN that the stream has passed is PostgreSQL's error.
    """
    publisher_db.psql(
        "CREATE TABLE oe_next (id int PRIMARY KEY); CREATE PUBLICATION oe_next FOR TABLE oe_next"
    )
    skip = "SELECT subskiplsn FROM pg_subscription WHERE subname = 'oe_next'"
    with subscribed(node, publisher_db, "oe_next", "oe_next"):
        publisher_db.psql("INSERT INTO oe_next VALUES (1)")
        wait_equal(publisher_db, "SELECT * FROM oe_next", node)
        node.psql("ALTER SUBSCRIPTION oe_next SKIP (lsn = 'FF/1')")
        assert node.psql(skip) == "FF/1"
        node.psql("ALTER SUBSCRIPTION oe_next SKIP (lsn = NONE)")
        assert node.psql(skip) == "0/0"
        with pytest.raises(psycopg.Error, match="must be greater than origin LSN"):
            with node.connect() as conn:
                conn.execute("ALTER SUBSCRIPTION oe_next SKIP (lsn = '0/1')")
        node.psql("ALTER SUBSCRIPTION oe_next SKIP (lsn = 'FF/1')")
        publisher_db.psql("INSERT INTO oe_next VALUES (2)")
        wait_equal(publisher_db, "SELECT * FROM oe_next", node)
        assert node.psql(skip) == "0/0"
        log = log_of(node)
        assert 'skip-LSN of subscription "oe_next" cleared' in log
        assert "did not match skip-LSN FF/1." in log


def test_a_value_that_does_not_fit_names_its_change(publisher_db: Database, node: Node) -> None:
    """Of many transactions the one with the value is named, with the column; the rest waits."""
    publisher_db.psql(
        "CREATE TABLE oe_value (id int PRIMARY KEY, v int); CREATE PUBLICATION oe_value"
        " FOR TABLE oe_value"
    )
    node.psql("CREATE TABLE oe_value (id int PRIMARY KEY, v smallint)")
    with subscribed(node, publisher_db, "oe_value", "oe_value", "create_tables = false"):
        node.psql("ALTER SUBSCRIPTION oe_value DISABLE")
        for number in range(1, 8):
            transaction(publisher_db, f"INSERT INTO oe_value VALUES ({number}, {number})")
        bad = transaction(
            publisher_db,
            "UPDATE oe_value SET v = 0 WHERE id = 1; UPDATE oe_value SET v = 70000 WHERE id = 2",
        )
        transaction(publisher_db, "INSERT INTO oe_value VALUES (99, 99)")
        node.psql("ALTER SUBSCRIPTION oe_value ENABLE")
        message, context = wait_error(node, "oe_value")
        assert message == '22003 value "70000" is out of range for type smallint'
        assert (context["type"], context["column"], context["xid"]) == ("UPDATE", "v", bad)
        assert node.psql("SELECT count(*), sum(v) FROM oe_value") == "7|28"
        node.psql(f"ALTER SUBSCRIPTION oe_value SKIP (lsn = '{context['lsn']}')")
        wait_rows(node, "SELECT count(*), sum(v) FROM oe_value", "8|127")


def test_a_table_that_is_not_here_names_the_first_change(
    publisher_db: Database, node: Node
) -> None:
    """The error of a missing target relation has a context to skip by, too."""
    publisher_db.psql(
        "CREATE TABLE oe_here (id int PRIMARY KEY); CREATE TABLE oe_missing (id int PRIMARY KEY);"
        "CREATE PUBLICATION oe_here FOR TABLE oe_here"
    )
    with subscribed(node, publisher_db, "oe_here", "oe_here"):
        node.psql("ALTER SUBSCRIPTION oe_here DISABLE")
        publisher_db.psql("ALTER PUBLICATION oe_here ADD TABLE oe_missing")
        transaction(publisher_db, "INSERT INTO oe_here VALUES (1)")
        bad = transaction(publisher_db, "INSERT INTO oe_missing VALUES (1)")
        node.psql("ALTER SUBSCRIPTION oe_here ENABLE")
        message, context = wait_error(node, "oe_here")
        assert message == (
            '55000 logical replication target relation "public.oe_missing" does not exist'
        )
        assert (context["relation"], context["xid"]) == ("public.oe_missing", bad)
        assert node.psql("SELECT id FROM oe_here") == "1"


def test_an_error_of_table_sync_disables(publisher_db: Database, node: Node) -> None:
    """The copy counts as the workers' data replication, too; a lost connection does not."""
    publisher_db.psql(
        "CREATE TABLE oe_sync (id int PRIMARY KEY, v text); INSERT INTO oe_sync VALUES (1, 'x');"
        "CREATE PUBLICATION oe_sync FOR TABLE oe_sync"
    )
    node.psql("CREATE TABLE oe_sync (id int PRIMARY KEY)")
    node.psql(
        f"CREATE SUBSCRIPTION oe_sync CONNECTION '{publisher_db.conninfo}' PUBLICATION oe_sync"
        " WITH (create_tables = false, schema_changes = error, disable_on_error = true)"
    )
    try:
        enabled = "SELECT subenabled FROM pg_subscription WHERE subname = 'oe_sync'"
        wait_until(lambda: node.psql(enabled) == "f", SYNC_TIMEOUT, "it to be disabled")
        counts = (
            "SELECT apply_error_count, sync_error_count FROM pg_stat_subscription_stats"
            " WHERE subname = 'oe_sync'"
        )
        assert node.psql(counts) == "0|1"
        assert "missing replicated column" in node.command("status").stdout
        node.psql("ALTER TABLE oe_sync ADD COLUMN v text; ALTER SUBSCRIPTION oe_sync ENABLE")
        wait_ready(node, "oe_sync")
        wait_equal(publisher_db, "SELECT * FROM oe_sync", node)
        publisher_db.psql("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
        publisher_db.psql("INSERT INTO oe_sync VALUES (2, 'y')")
        wait_rows(node, "SELECT count(*) FROM oe_sync", "2")
        assert (node.psql(enabled), node.psql(counts)) == ("t", "0|1")
    finally:
        drop_subscription(node, "oe_sync")
