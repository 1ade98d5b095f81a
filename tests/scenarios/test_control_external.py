# SPDX-License-Identifier: Apache-2.0
"""An external control database: accepted when it fits, otherwise each misfit is named."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.control.connect import connect
from penstock.control.external import MIN_SLOTS, check_external
from penstock.control.ledger_stream import LEDGER_NAME
from penstock.control.migrate import migrate
from penstock.errors import ConfigurationError, ConnectionLostError
from tests.support.binaries import installations
from tests.support.control import one
from tests.support.fix_servers import Servers
from tests.support.folders import open_folder
from tests.support.servers import PostgresServer, free_port

FITTING = {
    "max_logical_replication_workers": "0",
    "fsync": "on",
    "max_connections": "30",
}
WRONG = {
    "wal_level": ("replica", "logical"),
    "max_logical_replication_workers": ("3", "0"),
    "max_replication_slots": ("4", str(MIN_SLOTS)),
    "max_wal_senders": ("5", str(MIN_SLOTS)),
    "max_active_replication_origins": ("6", str(MIN_SLOTS)),
    "fsync": ("off", "on"),
    "full_page_writes": ("off", "on"),
    "synchronous_commit": ("off", "on"),
    "event_triggers": ("off", "on"),
    "TimeZone": ("Europe/Rome", "UTC"),
}


def skip_without(version: str) -> None:
    if version not in installations():
        pytest.skip(f"this machine has no PostgreSQL {version}")


@pytest.fixture(scope="module", params=["16", "18"])
def fitting(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server as an operator would set it up."""
    skip_without(request.param)
    with open_folder("pst-external-") as folder:
        server = PostgresServer(folder / "fitting", request.param, FITTING).start()
        yield server
        server.remove()


def test_fitting_server_is_accepted_and_migrated(fitting: PostgresServer) -> None:
    """The address leads to the database, and the schema can be made there, on 16 too."""
    name = fitting.create_database()
    address = check_external(fitting.conninfo(name) + " sslmode=disable password=unused")
    assert (address.host, address.port, address.dbname) == ("127.0.0.1", fitting.port, name)
    assert ("sslmode", "disable") in address.options
    assert address.socket_path is None
    with connect(address) as conn:
        assert migrate(conn)
        conn.execute("CREATE TABLE public.t (a int)")
        registered = "SELECT count(*) FROM penstock.table_version WHERE location <> ''"
        assert one(conn, registered) == 1
        assert conn.execute("SELECT * FROM pg_stat_subscription").fetchall() == []
        conn.execute("DROP PUBLICATION IF EXISTS " + LEDGER_NAME)  # before 18
        conn.execute("SELECT pg_drop_replication_slot(%s)", [LEDGER_NAME])


def test_every_wrong_setting_is_named_with_its_value() -> None:
    """One error lists them all, found and needed, and the statements that mend them."""
    skip_without("18")
    with open_folder("pst-external-") as folder:
        settings = {name: wrong for name, (wrong, _) in WRONG.items()}
        server = PostgresServer(folder / "wrong", "18", settings).start()
        try:
            with pytest.raises(ConfigurationError) as caught:
                check_external(server.conninfo())
        finally:
            server.remove()
    for name, (wrong, needed) in WRONG.items():
        assert f'"{name}" is "{wrong}"; needed is "{needed}"' in (caught.value.detail or "")
        assert f"ALTER SYSTEM SET {name} = '{needed}';" in (caught.value.hint or "")
    assert (caught.value.detail or "").count("\n") == len(WRONG) - 1
    assert "restart" in (caught.value.hint or "")


def test_wrong_database_and_role_are_named(fitting: PostgresServer) -> None:
    """Encoding, collation and the missing superuser, together with what to do."""
    with fitting.connect() as conn:
        conn.execute("DROP DATABASE IF EXISTS latin")
        conn.execute(
            "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'"
            " LOCALE_PROVIDER libc LC_COLLATE 'C' LC_CTYPE 'C'"
        )
        conn.execute("DROP ROLE IF EXISTS plain")
        conn.execute("CREATE ROLE plain LOGIN")
    with pytest.raises(ConfigurationError) as caught:
        check_external(fitting.conninfo("latin", "plain"))
    assert 'Role "plain" is not a superuser.' in (caught.value.detail or "")
    assert "encoding LATIN1; needed is UTF8" in (caught.value.detail or "")
    assert "ENCODING 'UTF8' LOCALE 'C'" in (caught.value.hint or "")


def test_old_server_is_refused(servers: Servers) -> None:
    """15 lacks what the control database needs of 16."""
    with pytest.raises(ConfigurationError, match="too old") as caught:
        check_external(servers("15").conninfo())
    assert "PostgreSQL 15" in (caught.value.detail or "")


def test_unreachable_server_is_a_lost_connection() -> None:
    """Trying again may help, so it is not a wrong setting."""
    with pytest.raises(ConnectionLostError):
        check_external(f"host=127.0.0.1 port={free_port()} dbname=x user=y")


def test_unreadable_connection_string_is_named() -> None:
    """A typing error in --control is the operator's to mend."""
    with pytest.raises(ConfigurationError, match="connection string"):
        check_external("host=127.0.0.1 prot=5432")
