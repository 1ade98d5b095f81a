# SPDX-License-Identifier: Apache-2.0
"""A real node: ``penstock start`` as a subprocess, in a home of its own.

``start`` returns when the ready line was printed.  ``kill`` is kill -9 of the node's process
alone: its control database and its JVM must be dealt with by the next start.  ``close`` leaves
nothing running, whatever happened before.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import psycopg

from tests.support.binaries import NEWEST, installations
from tests.support.class_archive import SMALL, java_options
from tests.support.psql import PLAIN, client_environment, run_psql
from tests.support.servers import STOP_SIGNALS
from tests.support.waits import wait_until

SUPERUSER = "penstock"
DATABASE = "lake"
READY = re.compile(r"^penstock: ready to accept connections on (\S+):(\d+)$", re.MULTILINE)
START_TIMEOUT = 240  # seconds; the first start on a machine downloads jars and compiles
STOP_TIMEOUT = 15  # seconds that a node may take to stop
SPARK: Mapping[str, str] = MappingProxyType(
    {
        "spark.master": "local[2]",
        "spark.driver.memory": "2g",
    }
)
QUIET_AND_WARM: Mapping[str, str] = MappingProxyType(
    {"PENSTOCK_LOG_LEVEL": "info", "PENSTOCK_WARM_UP": "true"}
)
"""The environment of a node as a user has it, for the demo and the bench."""

LAUNCHED: weakref.WeakSet[Node] = weakref.WeakSet()
"""The nodes of this process that were launched once."""


class Node:
    """One node; ``home`` may exist already, which is how a test restarts one.

    ``class_archive``: its JVM uses that of the tests, which takes half a minute to make.
    """

    def __init__(
        self,
        home: Path,
        *,
        flags: Sequence[str] = (),
        env: Mapping[str, str] = MappingProxyType({}),
        class_archive: bool = True,
    ) -> None:
        self.home = home
        self.flags = tuple(flags)
        self.env = dict(env)
        self.java_options = java_options() if class_archive else SMALL
        self.host = "127.0.0.1"
        self.port = 0
        self.output = home.parent / f"{home.name}.out"
        self._process: subprocess.Popen[bytes] | None = None
        self._read_from = 0
        self._armed = False

    @property
    def pid(self) -> int:
        """The node's process."""
        assert self._process is not None, "the node does not run"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process was started and not ended since by this object."""
        return self._process is not None

    def start(self, failpoint: str | None = None) -> Node:
        """Start it and wait for the ready line; ``failpoint`` arms one (``NAME`` or ``NAME:N``).

        With one armed its death is as good: a worker may get there before the ready line.
        """
        self.launch(failpoint)
        wait_until(self._is_ready, START_TIMEOUT, "the node's ready line")
        return self

    def launch(self, failpoint: str | None = None) -> None:
        """Start the process without waiting; its output goes to the file ``output``."""
        LAUNCHED.add(self)
        # A test's node has better use for the CPU than what nobody may ask for.
        quick = {"PENSTOCK_LOG_LEVEL": "debug", "PENSTOCK_WARM_UP": "false"}
        env = client_environment({**quick, **self.env})
        env.pop("PENSTOCK_FAILPOINT", None)
        self._armed = failpoint is not None
        if failpoint is not None:
            env["PENSTOCK_FAILPOINT"] = failpoint
        self._read_from = self.output.stat().st_size if self.output.exists() else 0
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [*penstock("start", self.home), *self._start_flags()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                start_new_session=True,
            )

    def wait_for_death(self, timeout: float = 120) -> int:
        """Wait until the process has ended by itself, or by a failpoint; its return code."""
        assert self._process is not None
        process = self._process
        wait_until(lambda: process.poll() is not None, timeout, "the node's process to end")
        self._process = None
        return process.returncode

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)
        self._process = None

    def terminate(self) -> int:
        """SIGTERM, and wait; the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(STOP_TIMEOUT)
        self._process = None
        return status

    def stop(self) -> None:
        """``penstock stop``."""
        done = self.command("stop")
        assert done.returncode == 0, done.stderr
        assert self._process is not None
        assert self._process.wait(STOP_TIMEOUT) == 0, self.text()[-3000:]
        self._process = None

    def command(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another ``penstock`` command on this home, without a terminal."""
        return subprocess.run(
            [*penstock(verb, self.home), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=client_environment(self.env),
            timeout=120,
            check=False,
        )

    def conninfo(self, user: str = SUPERUSER) -> str:
        """libpq's connection string; the password is in the home's ``pgpass``."""
        return (
            f"host={self.host} port={self.port} dbname={DATABASE} user={user}"
            f" passfile={self.home / 'pgpass'}"
        )

    def psql(
        self,
        sql: str,
        flags: Sequence[str] = PLAIN,
        timeout: float = 120,
        version: str = NEWEST,
        user: str = SUPERUSER,
    ) -> str:
        """Run SQL on the node with the psql of a version; PsqlError for an error."""
        program = installations()[version] / "bin" / "psql"
        return run_psql(program, self.conninfo(user), sql, flags=flags, timeout=timeout)

    def connect(self, user: str = SUPERUSER, **options: Any) -> psycopg.Connection[Any]:
        """A connection to the node in autocommit mode."""
        return psycopg.connect(self.conninfo(user), autocommit=True, **options)

    def connect_control(self) -> psycopg.Connection[Any]:
        """A superuser's connection to the embedded control database itself, past the front door."""
        lock = self.home / "control" / "data" / "postmaster.pid"
        port, folder = lock.read_text().splitlines()[3:5]
        return psycopg.connect(
            f"host={folder} port={port} dbname={DATABASE} user={SUPERUSER}"
            f" passfile={self.home / 'pgpass'}",
            autocommit=True,
        )

    def text(self) -> str:
        """What the node has printed since it was last launched, its log included."""
        with self.output.open("rb") as output:
            output.seek(self._read_from)
            return output.read().decode(errors="replace")

    def control_pid(self) -> int | None:
        """The postmaster of the embedded control database, None when there is none."""
        lock = self.home / "control" / "data" / "postmaster.pid"
        if not lock.exists():
            return None
        pid = int(lock.read_text().splitlines()[0])
        return pid if psutil.pid_exists(pid) else None

    def kill_control(self) -> None:
        """SIGKILL for the control database, the node goes on."""
        postmaster = psutil.Process(self._known_control_pid())
        family = [postmaster, *postmaster.children(recursive=True)]
        for member in family:
            member.kill()
        psutil.wait_procs(family, timeout=10)

    def close(self) -> None:
        """End the node and what it left behind; the home stays."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
            self._process = None
        pid = self.control_pid()
        if pid is not None:
            os.kill(pid, STOP_SIGNALS["immediate"])
            wait_until(lambda: self.control_pid() is None, 30, "the control database to end")

    def remove(self) -> None:
        """Close it and delete its home."""
        self.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def _known_control_pid(self) -> int:
        pid = self.control_pid()
        assert pid is not None, "the control database does not run"
        return pid

    def _start_flags(self) -> list[str]:
        spark = {**SPARK, "spark.driver.extraJavaOptions": self.java_options}
        settings = [f"--spark={name}={value}" for name, value in spark.items()]
        return ["--listen", f"{self.host}:{self.port}", *settings, *self.flags]

    def _is_ready(self) -> bool:
        process = self._process
        assert process is not None
        found = READY.search(self.text())
        if found is None and process.poll() is not None:
            if self._armed and process.returncode == -signal.SIGKILL:
                return True
            raise AssertionError(
                f"the node ended with {process.returncode}:\n{self.text()[-4000:]}"
            )
        if found is None:
            return False
        self.port = int(found[2])  # a restart listens on the same port
        return True


def penstock(verb: str, home: Path) -> list[str]:
    """The command line of ``penstock VERB --home HOME``, with this Python."""
    return [sys.executable, "-m", "penstock", verb, "--home", str(home)]
