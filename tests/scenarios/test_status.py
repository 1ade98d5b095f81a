# SPDX-License-Identifier: Apache-2.0
"""``penstock status`` tells the truth about a subscription, and nothing shows its password."""

from __future__ import annotations

import psycopg
import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.servers import PASSWORD, PASSWORD_ROLE
from tests.support.waits import wait_until

CANARY = PASSWORD.split()[0]


def conninfo(database: Database) -> str:
    """A connection string with the awkward password, quoted for libpq."""
    quoted = PASSWORD.replace("\\", "\\\\").replace("'", "\\'")
    return f"{database.server.conninfo(database.name, PASSWORD_ROLE)} password='{quoted}'"


def literal(connection: str) -> str:
    """A connection string as an SQL literal; backslashes stand for themselves in it."""
    return "'" + connection.replace("'", "''") + "'"


def subscribe(node: Node, name: str, connection: str, publication: str) -> None:
    """CREATE SUBSCRIPTION, with create_tables as it is by default."""
    node.psql(
        f"CREATE SUBSCRIPTION {name} CONNECTION {literal(connection)} PUBLICATION {publication}"
    )


def status(node: Node) -> str:
    """What ``penstock status`` prints without a terminal."""
    done = node.command("status")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_subscription_from_copy_to_no_lag(node: Node, publisher_db: Database) -> None:
    """State, rows copied and lag of each table, in words; then it is dropped and gone."""
    publisher_db.psql(
        "CREATE TABLE status_t (id int PRIMARY KEY);"
        "INSERT INTO status_t SELECT generate_series(1, 1000);"
        f"GRANT SELECT ON status_t TO {PASSWORD_ROLE};"
        "CREATE PUBLICATION p FOR TABLE status_t"
    )
    subscribe(node, "status_s", conninfo(publisher_db), "p")
    wait_until(lambda: "table status_t: ready" in status(node), 60, "the copy")
    lines = wait_until(
        lambda: text.splitlines() if "lag 0 bytes and 0.0 s" in (text := status(node)) else None,
        60,
        "no lag",
    )
    headline = next(line for line in lines if line.startswith("subscription status_s: "))
    assert headline.startswith("subscription status_s: streaming, lag 0 bytes and 0.0 s")
    assert any(line.startswith("  table status_t: ready, 1,000 rows copied") for line in lines)
    publisher_db.psql("INSERT INTO status_t VALUES (1001)")
    wait_until(lambda: "s, applied up to " in status(node), 60, "a position")
    assert node.psql("SELECT count(*) FROM status_t") == "1001"
    node.psql("DROP SUBSCRIPTION status_s; DROP TABLE status_t")
    assert "status_s" not in status(node)


def test_no_password_in_status_log_or_error(node: Node, publisher_db: Database) -> None:
    """A canary in the password shows nowhere: not when it works, not when it fails later."""
    publisher_db.psql(
        f"CREATE TABLE canary_t (id int PRIMARY KEY); GRANT SELECT ON canary_t TO {PASSWORD_ROLE};"
        "CREATE PUBLICATION p FOR TABLE canary_t"
    )
    subscribe(node, "canary_s", conninfo(publisher_db), "p")
    wait_until(lambda: "table canary_t: ready" in status(node), 60, "the copy")
    wrong = literal(conninfo(publisher_db).replace("dbname=", "dbname=no_such_"))
    with pytest.raises(psycopg.Error) as refused, node.connect() as connection:
        connection.execute(f"CREATE SUBSCRIPTION canary_x CONNECTION {wrong} PUBLICATION p")
    node.psql(f"ALTER SUBSCRIPTION canary_s CONNECTION {wrong}")
    shown = wait_until(
        lambda: text if "error at" in (text := status(node)) else None, 60, "the error in status"
    )
    log = (node.home / "log" / "penstock.log").read_text()
    for text in (shown, str(refused.value), node.text(), log):
        assert CANARY not in text
    node.psql(f"ALTER SUBSCRIPTION canary_s CONNECTION {literal(conninfo(publisher_db))}")
    node.psql("DROP SUBSCRIPTION canary_s; DROP TABLE canary_t")
