# SPDX-License-Identifier: Apache-2.0
"""Who is measured: native replication, a node, and parts: pg_recvlogical, a receiver alone.

Each side copies the publication ``p`` of the source, and then drains the source's changes from a
slot of its own while no other side runs.  Times are seconds from the command that starts it until
the publisher knows that everything is applied.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import psycopg

from bench.orders import DEFINITION
from penstock.client.receiver import Receiver, StreamOptions
from penstock.lsn import parse_lsn
from penstock.staging.log import StagingLog
from tests.support.node import Node
from tests.support.psql import client_environment
from tests.support.servers import PostgresServer
from tests.support.waits import wait_until

PATIENCE = 600  # seconds
DATABASE = "bench"


class Side(Protocol):
    """One subscriber.  ``name`` is also the name of its slot."""

    name: str

    def drain(self) -> float:
        """Seconds until everything that the source has committed is applied."""
        ...


class Subscriber(Side):
    """Whatever understands CREATE SUBSCRIPTION: PostgreSQL itself, or a node."""

    def __init__(self, name: str, source: PostgresServer, execute: Callable[[str], Any]) -> None:
        self.name = name
        self._source = source
        self._execute = execute

    def copy(self, publication: str = "p", definition: str = DEFINITION) -> float:
        """From CREATE SUBSCRIPTION until the table's state is r."""
        self._execute(definition)
        began = time.monotonic()
        conninfo = self._source.conninfo(DATABASE)
        self._execute(
            f"CREATE SUBSCRIPTION {self.name} CONNECTION '{conninfo}' PUBLICATION {publication}"
        )
        wait_until(self._is_ready, PATIENCE, f"the copy of {self.name}")
        seconds = time.monotonic() - began
        self.disable()
        return seconds

    def drain(self) -> float:
        """From ENABLE until the publisher sees that all is replayed."""
        seconds = self.enable()
        self.disable()
        return seconds

    def enable(self) -> float:
        """Let it stream; seconds until the publisher sees that all of now is replayed."""
        with self._source.connect(DATABASE) as connection:
            target = current_lsn(connection)
            began = time.monotonic()
            self._execute(f"ALTER SUBSCRIPTION {self.name} ENABLE")
            wait_until(
                lambda: self.has_replayed(connection, target),
                PATIENCE,
                f"{self.name} to apply everything",
            )
            return time.monotonic() - began

    def has_replayed(self, connection: psycopg.Connection[Any], target: str) -> bool:
        """Whether the publisher knows that all up to an LSN is applied."""
        replayed = (
            "SELECT FROM pg_stat_replication"
            " WHERE application_name = %s AND replay_lsn >= %s::pg_lsn"
        )
        return connection.execute(replayed, (self.name, target)).fetchone() is not None

    def drop(self, table: str = "orders") -> None:
        """Drop subscription and table, for another copy."""
        self._execute(f"DROP SUBSCRIPTION {self.name}")
        self._execute(f"DROP TABLE {table}")

    def _is_ready(self) -> bool:
        states = self._execute("SELECT srsubstate::text FROM pg_subscription_rel")
        return bool(states) and all(state == ("r",) for state in states)

    def disable(self) -> None:
        """Let it rest, and wait until its slot is free."""
        self._execute(f"ALTER SUBSCRIPTION {self.name} DISABLE")
        with self._source.connect() as connection:
            free = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND NOT active"
            wait_until(
                lambda: connection.execute(free, (self.name,)).fetchone() is not None,
                60,
                f"{self.name} to let go of its slot",
            )


class Part(Side):
    """A part of what a subscriber does, with a slot that it makes itself."""

    def __init__(self, source: PostgresServer) -> None:
        self._source = source

    def make_slot(self) -> None:
        """Make the slot that it drains."""
        with self._source.connect(DATABASE) as connection:
            connection.execute(
                "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (self.name,)
            )


class Floor(Part):
    """pg_recvlogical: what the publisher's walsender can send at all, to /dev/null."""

    name = "recvlogical"

    def drain(self) -> float:
        """Run it up to the current end of WAL."""
        with self._source.connect(DATABASE) as connection:
            target = current_lsn(connection)
        began = time.monotonic()
        subprocess.run(
            [
                self._source.bin / "pg_recvlogical",
                *("-d", self._source.conninfo(DATABASE), "--slot", self.name, "--start"),
                *("-o", "proto_version=2", "-o", "publication_names=p"),
                *("--endpos", target, "--no-loop", "-f", "/dev/null"),
            ],
            check=True,
            env=client_environment(),
        )
        return time.monotonic() - began


class Staging(Part):
    """A receiver alone: receive, decode, stage durably; nothing is applied."""

    name = "staging"

    def __init__(self, source: PostgresServer, folder: Path) -> None:
        super().__init__(source)
        self._log = StagingLog(folder)

    def drain(self) -> float:
        """Until everything is staged; what was staged is then forgotten."""
        with self._source.connect(DATABASE) as connection:
            target = parse_lsn(current_lsn(connection))
        options = StreamOptions(self.name, self._source.conninfo(DATABASE), self.name, ["p"])
        receiver = Receiver(options, self._log, lambda: self._log.end_lsn)
        began = time.monotonic()
        receiver.start()
        try:
            wait_until(lambda: self._staged(receiver, target), PATIENCE, "everything to be staged")
            return time.monotonic() - began
        finally:
            receiver.stop()
            self._log.trim(self._log.end_lsn)

    def _staged(self, receiver: Receiver, target: int) -> bool:
        receiver.check()
        return self._log.end_lsn >= target


def native(source: PostgresServer, target: PostgresServer) -> Subscriber:
    """PostgreSQL subscribing to PostgreSQL."""
    connection = target.connect(DATABASE)
    return Subscriber("native", source, lambda sql: _rows(connection.execute(sql)))


def ours(source: PostgresServer, node: Node) -> Subscriber:
    """A node subscribing to PostgreSQL."""
    connection = node.connect()
    return Subscriber("penstock", source, lambda sql: _rows(connection.execute(sql)))


def current_lsn(connection: psycopg.Connection[Any]) -> str:
    """The publisher's end of WAL."""
    row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return str(row[0])


def _rows(cursor: psycopg.Cursor[Any]) -> list[Any]:
    return cursor.fetchall() if cursor.description is not None else []
