# SPDX-License-Identifier: Apache-2.0
"""A node that subscribes with streaming: large transactions, whole or not at all in the lake."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from tests.support.binaries import NEWEST
from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.subscribing import subscribed, wait_caught_up, wait_equal
from tests.support.waits import wait_until

ROWS = "SELECT g, repeat(md5(g::text), 4) FROM generate_series({}, {}) g"


@pytest.mark.parametrize(
    ("publisher", "streaming"),
    [("15", "parallel"), ("16", "on"), ("16", "parallel"), (NEWEST, "on"), (NEWEST, "parallel")],
    indirect=["publisher"],
)
def test_large_transactions(publisher_db: Database, node: Node, streaming: str) -> None:
    """Savepoints, rollbacks, DDL and two transactions side by side give the publisher's rows."""
    name = f"ts_{publisher_db.server.version}_{streaming}"
    publisher_db.psql(f"""
        ALTER DATABASE {publisher_db.name} SET logical_decoding_work_mem = '64kB';
        CREATE TABLE {name} (id int PRIMARY KEY, v text);
        CREATE TABLE {name}_b (id int PRIMARY KEY, v text);
        INSERT INTO {name} {ROWS.format(1, 100)};
        CREATE PUBLICATION {name} FOR TABLE {name}, {name}_b;
    """)
    with subscribed(node, publisher_db, name, name, f"streaming = {streaming}"):
        publisher_db.psql(f"""
            BEGIN;
            INSERT INTO {name} {ROWS.format(1000, 3000)};
            SAVEPOINT a;
            UPDATE {name} SET v = 'lost';
            TRUNCATE {name}_b;
            ROLLBACK TO a;
            SAVEPOINT b;
            UPDATE {name} SET v = 'kept' WHERE id % 3 = 0;
            RELEASE b;
            DELETE FROM {name} WHERE id % 10 = 0;
            COMMIT;
            BEGIN;
            INSERT INTO {name}_b {ROWS.format(1, 2000)};
            ROLLBACK;
        """)
        with (
            closing(psycopg.connect(publisher_db.conninfo)) as first,
            closing(psycopg.connect(publisher_db.conninfo)) as second,
        ):
            for part in range(1, 4):
                begin = 10_000 * part
                first.execute(f"INSERT INTO {name} {ROWS.format(begin, begin + 900)}".encode())
                second.execute(f"INSERT INTO {name}_b {ROWS.format(begin, begin + 900)}".encode())
            publisher_db.psql(f"INSERT INTO {name}_b VALUES (1, 'small')")
            wait_equal(publisher_db, f"SELECT * FROM {name}_b", node)
            second.execute(f"UPDATE {name}_b SET v = 'second' WHERE id % 2 = 0".encode())
            second.commit()
            first.commit()
        publisher_db.psql(f"""
            BEGIN;
            INSERT INTO {name} {ROWS.format(50_000, 52_000)};
            ALTER TABLE {name} ADD more text;
            INSERT INTO {name} SELECT g, 'v', 'more ' || g FROM generate_series(60000, 62000) g;
            COMMIT;
        """)
        wait_equal(publisher_db, f"SELECT * FROM {name}", node)
        wait_equal(publisher_db, f"SELECT * FROM {name}_b", node)
        streamed = "SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = '{}'"
        wait_until(
            lambda: int(publisher_db.psql(streamed.format(name))) >= 4, 30, "streamed transactions"
        )


def test_origin_none(publisher_db: Database, node: Node) -> None:
    """With origin = none what the publisher itself has from elsewhere does not come here."""
    origin = f"from_elsewhere_{publisher_db.name}"
    publisher_db.psql(
        "CREATE TABLE ts_origin (id int PRIMARY KEY); INSERT INTO ts_origin VALUES (1);"
        f" CREATE PUBLICATION ts_origin FOR TABLE ts_origin;"
        f" SELECT pg_replication_origin_create('{origin}')"
    )
    with subscribed(node, publisher_db, "ts_origin", "ts_origin", "origin = none"):
        elsewhere = f"SELECT pg_replication_origin_session_setup('{origin}');"
        publisher_db.psql(f"{elsewhere} INSERT INTO ts_origin VALUES (2)")
        publisher_db.psql("INSERT INTO ts_origin VALUES (3)")
        wait_equal(publisher_db, "SELECT * FROM ts_origin WHERE id <> 2", node, "TABLE ts_origin")
        node.psql("ALTER SUBSCRIPTION ts_origin SET (origin = any)")
        wait_until(
            lambda: (
                publisher_db.psql(
                    "SELECT query LIKE '%origin ''any''%' FROM pg_stat_activity"
                    " WHERE application_name = 'ts_origin' AND backend_type = 'walsender'"
                )
                == "t"
            ),
            30,
            "the stream to begin again with the new option",
        )
        publisher_db.psql(f"{elsewhere} INSERT INTO ts_origin VALUES (4)")
        wait_caught_up(publisher_db)
        wait_equal(publisher_db, "SELECT * FROM ts_origin WHERE id <> 2", node, "TABLE ts_origin")
    publisher_db.psql(f"SELECT pg_replication_origin_drop('{origin}')")


@pytest.mark.parametrize("publisher", ["15", "16", NEWEST], indirect=True)
def test_prepared_transactions(publisher_db: Database, node: Node) -> None:
    """With two_phase = true they are visible here from COMMIT PREPARED on, not before.

    two_phase becomes enabled when the tables are ready, as in PostgreSQL.
    """
    name = f"ts_prepared_{publisher_db.server.version}"
    publisher_db.psql(
        f"CREATE TABLE {name} (id int PRIMARY KEY); INSERT INTO {name} VALUES (1);"
        f" CREATE PUBLICATION {name} FOR TABLE {name}"
    )
    with subscribed(node, publisher_db, name, name, "two_phase = true"):
        state = f"SELECT subtwophasestate FROM pg_subscription WHERE subname = '{name}'"
        wait_until(lambda: node.psql(state) == "e", 30, "two_phase to be enabled")
        slot = f"SELECT two_phase AND active FROM pg_replication_slots WHERE slot_name = '{name}'"
        wait_until(lambda: publisher_db.psql(slot) == "t", 30, "the slot to be enabled")
        publisher_db.psql(f"""
            BEGIN; INSERT INTO {name} VALUES (2); PREPARE TRANSACTION '{name}_kept';
            BEGIN; INSERT INTO {name} VALUES (3); PREPARE TRANSACTION '{name}_undone';
            INSERT INTO {name} VALUES (4);
        """)
        wait_equal(publisher_db, f"SELECT * FROM {name}", node)
        assert node.psql(f"SELECT count(*) FROM {name}") == "2"
        node.psql(f"ALTER SUBSCRIPTION {name} DISABLE")
        publisher_db.psql(f"COMMIT PREPARED '{name}_kept'; ROLLBACK PREPARED '{name}_undone'")
        node.psql(f"ALTER SUBSCRIPTION {name} ENABLE")
        wait_until(lambda: publisher_db.psql(slot) == "t", 30, "the stream to begin again")
        wait_equal(publisher_db, f"SELECT * FROM {name}", node)
        assert node.psql(f"SELECT count(*) FROM {name}") == "3"


def test_two_phase_is_disabled_while_a_transaction_is_prepared(
    publisher_db: Database, node: Node
) -> None:
    """The publisher then sends it whole at COMMIT PREPARED, and it is applied once."""
    publisher_db.psql(
        "CREATE TABLE ts_off (id int PRIMARY KEY); CREATE PUBLICATION ts_off FOR TABLE ts_off"
    )
    with subscribed(node, publisher_db, "ts_off", "ts_off", "two_phase = true"):
        state = "SELECT subtwophasestate FROM pg_subscription WHERE subname = 'ts_off'"
        wait_until(lambda: node.psql(state) == "e", 30, "two_phase to be enabled")
        publisher_db.psql("BEGIN; INSERT INTO ts_off VALUES (1); PREPARE TRANSACTION 'ts_off'")
        publisher_db.psql("INSERT INTO ts_off VALUES (2)")
        wait_equal(publisher_db, "SELECT * FROM ts_off", node)
        node.psql("ALTER SUBSCRIPTION ts_off DISABLE")
        active = "SELECT active FROM pg_replication_slots WHERE slot_name = 'ts_off'"
        wait_until(lambda: publisher_db.psql(active) == "f", 30, "the slot to be free")
        node.psql("ALTER SUBSCRIPTION ts_off SET (two_phase = false)")
        publisher_db.psql("COMMIT PREPARED 'ts_off'; INSERT INTO ts_off VALUES (3)")
        node.psql("ALTER SUBSCRIPTION ts_off ENABLE")
        wait_until(lambda: publisher_db.psql(active) == "t", 30, "the stream to begin again")
        wait_equal(publisher_db, "SELECT * FROM ts_off", node)
        assert node.psql("SELECT count(*) FROM ts_off") == "3"
