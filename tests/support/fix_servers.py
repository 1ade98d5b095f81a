# SPDX-License-Identifier: Apache-2.0
"""Fixtures with real PostgreSQL servers, each started once for a session when first asked for.

servers("16")                  the shared server of that version
servers("18", "subscriber")    another one of the same version
publisher                      the shared publisher, 18.6; parametrize it indirectly with labels
publisher_db                   a new, empty database on it, as a Database
replica_server                 a PostgreSQL 16 to subscribe to a node, which tests may kill
control_pair                   two servers, for PostgreSQL to PostgreSQL as the control
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.binaries import NEWEST, installations
from tests.support.folders import open_folder
from tests.support.psql import PLAIN
from tests.support.servers import PostgresServer
from tests.support.waits import wait_until

Servers = Callable[..., PostgresServer]


@dataclass(frozen=True)
class Database:
    """One database of one server."""

    server: PostgresServer
    name: str

    @property
    def conninfo(self) -> str:
        """libpq's connection string, as superuser."""
        return self.server.conninfo(self.name)

    def psql(self, sql: str, flags: tuple[str, ...] = PLAIN, timeout: float = 120) -> str:
        """Run SQL in it through psql."""
        return self.server.psql(sql, self.name, flags, timeout)

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """A connection to it in autocommit mode."""
        return self.server.connect(self.name, **options)


@pytest.fixture(scope="session")
def server_folder() -> Iterator[Path]:
    """The folder below which every server of the session lives."""
    with open_folder("pstest-") as folder:
        yield folder


@pytest.fixture(scope="session")
def servers(server_folder: Path) -> Iterator[Servers]:
    """Start, or find, the server of a version and a name; skips when the version is not here."""
    running: dict[tuple[str, str], PostgresServer] = {}

    def server(version: str = NEWEST, name: str = "publisher") -> PostgresServer:
        if version not in installations():
            pytest.skip(f"this machine has no PostgreSQL {version}")
        if (version, name) not in running:
            folder = server_folder / f"{name}-{version}"
            running[version, name] = PostgresServer(folder, version).start()
        return running[version, name]

    yield server
    for each in running.values():
        each.remove()


@pytest.fixture
def publisher(servers: Servers, request: pytest.FixtureRequest) -> PostgresServer:
    """The shared publisher; ``parametrize("publisher", ["15", "16", "18"], indirect=True)``."""
    return servers(getattr(request, "param", NEWEST))


@pytest.fixture
def publisher_db(publisher: PostgresServer) -> Iterator[Database]:
    """A new, empty database on the publisher; dropped at the end, with the slots in it."""
    name = publisher.create_database()
    yield Database(publisher, name)
    drop_database(publisher, name)


@pytest.fixture(scope="session")
def replica_server(server_folder: Path) -> Iterator[PostgresServer]:
    """A subscriber that finds out soon what it has lost, and soon comes back; it runs.

    A test may kill it, and has to start it again.
    """
    if "16" not in installations():
        pytest.skip("this machine has no PostgreSQL 16")
    quick = {
        "wal_retrieve_retry_interval": "200ms",
        "wal_receiver_status_interval": "1s",
        "wal_receiver_timeout": "4s",
    }
    server = PostgresServer(server_folder / "replica-16", "16", quick).start()
    yield server
    server.remove()


@pytest.fixture
def control_pair(servers: Servers) -> Iterator[tuple[Database, Database]]:
    """A publisher's and a subscriber's new database, both PostgreSQL."""
    source, target = servers(NEWEST), servers(NEWEST, "subscriber")
    pair = Database(source, source.create_database()), Database(target, target.create_database())
    yield pair
    for database in reversed(pair):
        drop_database(database.server, database.name)


def drop_database(server: PostgresServer, name: str) -> None:
    """Drop a database with its subscriptions and its slots, whoever still uses them."""
    with server.connect(name) as conn:
        names = conn.execute(
            "SELECT quote_ident(subname) FROM pg_subscription JOIN pg_database d ON d.oid = subdbid"
            " WHERE datname = current_database()"
        ).fetchall()
        for (subscription,) in names:
            conn.execute(f"ALTER SUBSCRIPTION {subscription} DISABLE")
            conn.execute(f"ALTER SUBSCRIPTION {subscription} SET (slot_name = NONE)")
            conn.execute(f"DROP SUBSCRIPTION {subscription}")
    with server.connect() as conn:
        # A subscriber may reconnect between the two steps, so this is repeated until it worked.
        wait_until(lambda: _drop_slots(conn, name), 60, f"the slots of {name} to be dropped")
        conn.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _drop_slots(conn: psycopg.Connection[Any], database: str) -> bool:
    conn.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
        " WHERE database = %s AND active_pid IS NOT NULL",
        (database,),
    )
    try:
        conn.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE database = %s",
            (database,),
        )
    except psycopg.errors.ObjectInUse:
        return False
    return True
