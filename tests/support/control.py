# SPDX-License-Identifier: Apache-2.0
"""An embedded control database of a test's own, without a node around it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.config import Settings, load_settings
from penstock.control.address import ControlAddress
from penstock.control.connect import ControlConnection, connect
from penstock.control.guard import Guard, node_secret, register_secret
from penstock.control.ledger import Ledger
from penstock.control.migrate import migrate
from penstock.control.server import EmbeddedServer
from penstock.errors import PenstockError
from tests.support.folders import open_folder


@dataclass(frozen=True)
class Control:
    """A running control database with its schema."""

    settings: Settings
    server: EmbeddedServer
    address: ControlAddress
    guard: Guard

    @property
    def lake(self) -> Path:
        """Where the Delta tables would be."""
        return self.settings.lake_path

    def connect(self) -> ControlConnection:
        """A superuser's connection in autocommit mode."""
        return connect(self.address, application_name="test")


def make_home(home: Path) -> None:
    """A home whose control database has its schema and does not run."""
    settings = load_settings(home=home)
    server = EmbeddedServer(settings)
    with connect(server.start()) as conn:
        migrate(conn)
        register_secret(conn, node_secret(home / "secret"))
    server.stop()


def copy_home(template: Path, home: Path) -> None:
    """Copy a home that does not run; several times quicker than to make one."""
    # cp keeps owner and mode, whoever we are.
    subprocess.run(["cp", "-a", template, home], check=True)


@contextmanager
def open_control(template: Path) -> Iterator[Control]:
    """Start the control database of a copied home, and remove both at the end."""
    with open_folder("pst-control-") as folder:
        settings = load_settings(home=folder / "home")
        copy_home(template, settings.home)
        server = EmbeddedServer(settings)
        try:
            guard = Guard(node_secret(settings.home / "secret"))
            yield Control(settings, server, server.start(), guard)
        finally:
            server.stop()


@contextmanager
def following(address: ControlAddress) -> Iterator[None]:
    """A ledger at work; it is stopped as a node stops it."""
    stop = threading.Event()
    errors: list[PenstockError] = []

    def run() -> None:
        try:
            Ledger(address, feedback_interval=0.2).run(stop)
        except PenstockError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)
    assert not thread.is_alive()
    assert errors == []


def one(conn: ControlConnection, query: str, *parameters: object) -> Any:
    """The only row of a query; its only value when it has one column."""
    rows = conn.execute(query.encode(), parameters or None).fetchall()
    assert len(rows) == 1, f"{len(rows)} rows from: {query}"
    return rows[0][0] if len(rows[0]) == 1 else rows[0]


def relid(conn: ControlConnection, name: str) -> int:
    """OID of a relation, by its qualified name."""
    oid: int = one(conn, "SELECT %s::regclass::oid::bigint", name)
    return oid
