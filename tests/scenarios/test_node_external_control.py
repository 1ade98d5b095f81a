# SPDX-License-Identifier: Apache-2.0
"""A node whose control database is a PostgreSQL of one's own, given by ``--control``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.compare import difference
from tests.support.fix_node import NewNode
from tests.support.fix_servers import Database
from tests.support.servers import PostgresServer
from tests.support.waits import wait_until


@pytest.fixture
def control_server(server_folder: Path) -> Iterator[PostgresServer]:
    """A PostgreSQL 16 with the settings that a control database needs."""
    settings = {"max_logical_replication_workers": "0", "fsync": "on"}
    server = PostgresServer(server_folder / "external-16", "16", settings)
    yield server.start()
    server.remove()


def test_all_commands_work_on_an_external_control_database(
    new_node: NewNode, control_server: PostgresServer, publisher_db: Database
) -> None:
    """start, a subscription, status, sql, stop and a second start; the server is never stopped."""
    control_server.psql(
        "CREATE ROLE boss SUPERUSER LOGIN REPLICATION PASSWORD 'a:b\\c';"
        "CREATE DATABASE penstock_control"
    )
    (control_server.folder / "data" / "pg_hba.conf").write_text(
        "host all boss 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"
        "host replication boss 127.0.0.1/32 scram-sha-256\nlocal all all trust\n"
    )
    control_server.psql("SELECT pg_reload_conf()")
    conninfo = f"{control_server.conninfo('penstock_control', 'boss')} password='a:b\\\\c'"
    publisher_db.psql(
        "CREATE TABLE ext_t (id int PRIMARY KEY, t text);"
        "INSERT INTO ext_t SELECT g, 'row ' || g FROM generate_series(1, 500) g;"
        "CREATE PUBLICATION p FOR TABLE ext_t"
    )
    node = new_node(flags=["--control", conninfo]).start()

    def sql(query: str, flags: tuple[str, ...] = ("-At",), timeout: float = 60) -> str:
        done = node.command("sql", "-X", "-q", *flags, "-c", query)
        assert done.returncode == 0, done.stderr
        return done.stdout.removesuffix("\n")

    assert sql("SELECT current_user, current_database()") == "boss|penstock_control"
    sql(f"CREATE SUBSCRIPTION ext_s CONNECTION '{publisher_db.conninfo}' PUBLICATION p")
    wait_until(lambda: "table ext_t: ready" in node.command("status").stdout, 60, "the copy")
    publisher_db.psql("DELETE FROM ext_t WHERE id < 10; UPDATE ext_t SET t = 'new' WHERE id = 100")
    table = "TABLE ext_t"
    wait_until(
        lambda: not difference(publisher_db.psql, table, sql, table), 60, "both sides to be equal"
    )
    sql("CREATE TABLE ext_w (id serial PRIMARY KEY, t text); INSERT INTO ext_w (t) VALUES ('a')")
    assert sql("UPDATE ext_w SET t = t || 'b' RETURNING id, t") == "1|ab"
    node.stop()
    node.start()
    assert sql("TABLE ext_w") == "1|ab"
    assert not difference(publisher_db.psql, table, sql, table)
    assert "a:b" not in node.text()
    assert "a:b" not in (node.home / "log" / "penstock.log").read_text()
    sql("DROP SUBSCRIPTION ext_s")


def test_a_home_with_a_control_database_refuses_another(
    new_node: NewNode, control_server: PostgresServer
) -> None:
    """The lake belongs to the control database that knows its versions."""
    node = new_node()
    (node.home / "control").mkdir(parents=True)
    done = node.command("start", "--control", control_server.conninfo())
    assert done.returncode == 1
    assert "has a control database of its own" in done.stderr
