# SPDX-License-Identifier: Apache-2.0
"""Real PostgreSQL servers for tests, demo and bench: one class, any installed version.

A cluster is initialised once for each version and then copied, which is several times quicker.
Servers listen on 127.0.0.1 and on a socket in their own folder; everybody is trusted but the role
PASSWORD_ROLE, which has to give its password (SCRAM), for tests of secrets.
"""

from __future__ import annotations

import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import psycopg
from psycopg import sql as pgsql

from tests.support.binaries import NEWEST, readable_installation, server_user
from tests.support.psql import PLAIN, client_environment, run_psql
from tests.support.waits import wait_until

SUPERUSER = "postgres"
PASSWORD_ROLE = "walreader"
PASSWORD = "canary-7f3a secret'\\"
"""Awkward on purpose: a space, a quote and a backslash; tests grep logs for its first word."""

SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "wal_level": "logical",
        "max_wal_senders": "40",
        "max_replication_slots": "40",
        "max_connections": "200",
        "max_prepared_transactions": "20",
        "max_worker_processes": "24",
        "max_logical_replication_workers": "12",
        "max_sync_workers_per_subscription": "2",
        "shared_buffers": "128MB",
        "fsync": "off",  # only processes are killed here, never the machine
        "timezone": "UTC",
        "log_min_messages": "info",
        "listen_addresses": "127.0.0.1",
    }
)

HBA = f"""\
local all all trust
local replication all trust
host all {PASSWORD_ROLE} 127.0.0.1/32 scram-sha-256
host replication {PASSWORD_ROLE} 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
host replication all 127.0.0.1/32 trust
"""

STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class PostgresServer:
    """One server.  ``folder`` is its own, below a base that every user may enter.

    ``version`` is a label of tests.support.binaries.  The server does not run until ``start``.
    """

    def __init__(
        self,
        folder: Path,
        version: str = NEWEST,
        settings: Mapping[str, str] = MappingProxyType({}),
        port: int | None = None,
    ) -> None:
        self.version = version
        self.folder = folder
        self.port = port if port is not None else free_port()
        self.bin = readable_installation(version, folder.parent) / "bin"
        self.log = folder / "log"
        self._settings = {**SETTINGS, **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self._names = count(1)

    def start(self) -> PostgresServer:
        """Start the server, with a new cluster when there is none; returns when it answers."""
        if not (self.folder / "data").exists():
            self._make_cluster()
        options = [f"-c{name}={value}" for name, value in self._settings.items()]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self.bin / "postgres",
                    *("-D", self.folder / "data"),
                    *("-k", self.folder),
                    *("-p", str(self.port)),
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=client_environment(),
                start_new_session=True,  # Ctrl-C in the terminal is the test run's, not ours
                **_as_server_user(),
            )
        wait_until(self._answers, 60, f"PostgreSQL {self.version} on port {self.port} to answer")
        return self

    def stop(self, mode: str = "fast") -> None:
        """Stop the server (smart, fast or immediate) and wait until it is gone."""
        process = self._process
        if process is None:
            return
        process.send_signal(STOP_SIGNALS[mode])
        process.wait(60)
        self._process = None

    def kill(self) -> None:
        """SIGKILL for the postmaster and every one of its processes, as in a power cut."""
        assert self._process is not None, "the server does not run"
        postmaster = psutil.Process(self._process.pid)
        family = [postmaster, *postmaster.children(recursive=True)]
        for member in family:
            member.kill()
        self._process.wait(10)
        psutil.wait_procs(family, timeout=10)
        self._process = None

    def restart(self, mode: str = "fast") -> None:
        """Stop and start again, on the same port."""
        self.stop(mode)
        self.start()

    def conninfo(self, db: str = "postgres", user: str = SUPERUSER) -> str:
        """libpq's connection string to one database, over TCP."""
        return f"host=127.0.0.1 port={self.port} dbname={db} user={user}"

    def connect(self, db: str = "postgres", **options: Any) -> psycopg.Connection[Any]:
        """A connection in autocommit mode, as superuser."""
        return psycopg.connect(self.conninfo(db), autocommit=True, **options)

    def psql(
        self, sql: str, db: str = "postgres", flags: Sequence[str] = PLAIN, timeout: float = 120
    ) -> str:
        """Run SQL with this version's psql; PsqlError for an error."""
        return run_psql(self.psql_program, self.conninfo(db), sql, flags=flags, timeout=timeout)

    @property
    def psql_program(self) -> Path:
        """This version's psql."""
        return self.bin / "psql"

    def create_database(self, name: str | None = None) -> str:
        """A new, empty database; its name is made up when none is given."""
        name = name or f"db_{next(self._names)}"
        with self.connect() as conn:
            conn.execute(pgsql.SQL("CREATE DATABASE {}").format(pgsql.Identifier(name)))
        return name

    def log_text(self) -> str:
        """Everything that the server has logged."""
        return self.log.read_text(errors="replace")

    def remove(self) -> None:
        """Stop at once and delete everything."""
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        process = self._process
        assert process is not None
        if process.poll() is not None:
            raise AssertionError(f"PostgreSQL {self.version} ended:\n{self.log_text()[-2000:]}")
        try:
            self.connect(connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _make_cluster(self) -> None:
        template = self.folder.parent / f"template-{self.version}"
        if not template.exists():
            make_owned_folder(template)
            self._initdb(template / "data")
        make_owned_folder(self.folder)
        # cp as the server's own user keeps owner and mode, whoever we are.
        subprocess.run(
            ["cp", "-a", template / "data", self.folder / "data"], check=True, **_as_server_user()
        )
        (self.folder / "data" / "pg_hba.conf").write_text(HBA)

    def _initdb(self, data: Path) -> None:
        initdb: list[str | Path] = [self.bin / "initdb", "-D", data, "-U", SUPERUSER, "--no-sync"]
        options = ["--encoding=UTF8", "--locale=C", "--auth=trust"]
        subprocess.run(
            [*initdb, *options],
            check=True,
            stdout=subprocess.DEVNULL,
            env=client_environment(),
            **_as_server_user(),
        )
        password = PASSWORD.replace("'", "''")
        subprocess.run(
            [self.bin / "postgres", "--single", "-D", data, "postgres"],
            input=f"CREATE ROLE {PASSWORD_ROLE} LOGIN REPLICATION PASSWORD '{password}'\n",
            text=True,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=client_environment(),
            **_as_server_user(),
        )


def make_owned_folder(folder: Path) -> None:
    """Make a folder that belongs to the servers' user."""
    folder.mkdir(mode=0o755, parents=True)
    user = server_user()
    if user is not None:
        shutil.chown(folder, user)


def _as_server_user() -> dict[str, Any]:
    user = server_user()
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
