# SPDX-License-Identifier: Apache-2.0
"""The embedded control database: a PostgreSQL server as a child of the node.

    stopped --start--> [initdb when new] --> started --> accepts connections --stop--> stopped
                 `-> an orphan (its node was killed) is stopped first

The server is a direct child, in a session of its own, so that Ctrl-C reaches the node only; the
node stops it when it is done.  ``poll`` tells whether it died.  Nothing is done about a crash: at
the next start PostgreSQL recovers by itself.

Durable: all that a COMMIT answered for (fsync and synchronous_commit are on).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from psycopg import sql

from penstock.config import Settings
from penstock.control.account import server_account
from penstock.control.address import ControlAddress
from penstock.control.cluster import (
    PORT,
    SUPERUSER,
    Cluster,
    required_settings,
    server_environment,
    wait_state,
)
from penstock.control.connect import ControlConnection, connect
from penstock.control.programs import server_programs
from penstock.errors import ConfigurationError, ConnectionLostError

START_TIMEOUT_S = 60.0
"""Crash recovery replays at most max_wal_size of WAL; that takes seconds."""
STOP_TIMEOUT_S = 8.0
"""Fast shutdown waits for walsenders; with SIGQUIT after it a node's stop stays under 15 s."""
_POLL_S = 0.02


class EmbeddedServer:
    """Starts and stops the control database of one home; the home's lock is the caller's."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._account = server_account(settings.control_user)
        self._cluster = Cluster(settings, self._account)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The postmaster's process id, or None when this object did not start one."""
        return None if self._process is None else self._process.pid

    @property
    def log_path(self) -> Path:
        """Where the server logs."""
        return self._cluster.log_path

    def start(self) -> ControlAddress:
        """Start the server and wait until it accepts connections.

        ConfigurationError when the server cannot run here, with the end of its log.
        """
        self._cluster.prepare()
        programs = server_programs(self._account)
        self._stop_orphan()
        password = self._cluster.password()
        self._cluster.create(programs, password)
        socket_folder = self._cluster.socket_folder()
        deadline = time.monotonic() + START_TIMEOUT_S
        address = ControlAddress(str(socket_folder), PORT, "postgres", SUPERUSER, password)
        while not self._start_once(programs, socket_folder, address, deadline):
            time.sleep(_POLL_S * 10)
        with connect(address) as conn:
            _create_database(conn, self._settings.database)
        return ControlAddress(
            address.host, PORT, self._settings.database, SUPERUSER, address.password
        )

    def poll(self) -> int | None:
        """The exit code when the server has ended by itself, None while it runs."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """Fast shutdown; after a deadline an immediate one, from which it recovers when started."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        for number, seconds in (
            (signal.SIGINT, STOP_TIMEOUT_S),
            (signal.SIGQUIT, STOP_TIMEOUT_S / 2),
            (signal.SIGKILL, STOP_TIMEOUT_S),
        ):
            process.send_signal(number)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                continue
            return
        raise wait_state("stop", STOP_TIMEOUT_S)

    def _start_once(
        self, programs: Path, socket_folder: Path, address: ControlAddress, deadline: float
    ) -> bool:
        """One attempt; False when processes of a killed server still hold its shared memory."""
        log_start = self._launch(programs, socket_folder)
        while time.monotonic() < deadline:
            if self.poll() is not None:
                tail = self._cluster.log_tail(log_start)
                if "shared memory block" in tail:
                    return False
                raise ConfigurationError(
                    "the control database did not start",
                    detail=tail,
                    hint=f'Its log is "{self.log_path}".',
                )
            try:
                connect(address, application_name="penstock start").close()
            except ConnectionLostError:
                time.sleep(_POLL_S)
                continue
            return True
        self.stop()
        raise wait_state("accept connections", START_TIMEOUT_S)

    def _launch(self, programs: Path, socket_folder: Path) -> int:
        """Start the process; returns where its part of the log begins."""
        flags = [
            f"--{name}={value}"
            for name, value in required_settings(self._settings, socket_folder).items()
        ]
        self._cluster.rotate_log()
        with self.log_path.open("ab") as log:
            self.log_path.chmod(0o640)
            start = log.tell()  # the child shares this file's offset, so before it writes
            self._process = subprocess.Popen(
                [str(programs / "postgres"), "-D", str(self._cluster.data_path), *flags],
                cwd=self._cluster.path,
                env=server_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._account.popen_arguments(),
            )
        return start

    def _stop_orphan(self) -> None:
        """Stop the server of this home that a killed node left behind."""
        for number in (signal.SIGINT, signal.SIGQUIT):
            pid = self._cluster.postmaster_pid()
            if pid is None:
                return
            _signal(pid, number)
            if _wait(lambda: self._cluster.postmaster_pid() is None, STOP_TIMEOUT_S):
                return
        raise wait_state("stop", STOP_TIMEOUT_S)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _create_database(conn: ControlConnection, name: str) -> None:
    """Make the node's database, and keep clients out of those where nothing watches DDL."""
    exists = conn.execute("SELECT FROM pg_database WHERE datname = %s", [name]).fetchone()
    if exists is not None:
        return
    for other in ("postgres", "template1"):
        if other != name:
            conn.execute(
                sql.SQL("REVOKE CONNECT ON DATABASE {} FROM PUBLIC").format(sql.Identifier(other))
            )
    conn.execute(
        sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'").format(
            sql.Identifier(name)
        )
    )
