# SPDX-License-Identifier: Apache-2.0
"""The home: one node's folder and its lock.

    HOME/penstock.toml    settings, the user's
    HOME/penstock.pid     the lock; line 1 the node's pid, line 2 HOST:PORT once it listens
    HOME/secret           what proves to the control database that a call comes from the node
    HOME/pgpass           libpq password file with the superuser's name and password
    HOME/log  HOME/lake  HOME/staging  HOME/control

The lock is an flock on an open file: it ends with the process, however that ends, and a JVM that
outlives the node does not hold it.  A free lock means that no node runs, whatever the file says.

Everything in it is private; when the node is root, the control database's own user is let through
to ``control`` (penstock.control.cluster).
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from penstock.errors import ConfigurationError, ObjectInUseError

LOCK_NAME = "penstock.pid"
_PRIVATE = 0o600
_FIELD = re.compile(r"(?:^|(?<=:))((?:\\.|[^:\\])*)(?=:|$)")
"""One field of a line of a libpq password file; in it \\: and \\\\ are escaped."""
_UNESCAPE = re.compile(r"\\(.)")
_PROBE_PATIENCE = 0.5  # seconds; longer than anybody holds the lock only to look at it


@dataclass(frozen=True)
class Holder:
    """The node that runs on a home; host and port are None until it listens."""

    pid: int
    host: str | None
    port: int | None


class HomeLock:
    """Held by the one node of a home; released at the end of ``with`` or of the process."""

    def __init__(self, home: Path, descriptor: int) -> None:
        self.home = home
        self._descriptor = descriptor

    @classmethod
    def take(cls, home: Path) -> HomeLock:
        """Take the lock of an existing home; ObjectInUseError names the pid of the node there."""
        path = home / LOCK_NAME
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
        if not _lock_patiently(descriptor):
            holder = _read(path)
            os.close(descriptor)
            raise ObjectInUseError(
                f'home "{home}" is in use by another node',
                detail=f"The other node's process has PID {holder.pid}." if holder else None,
                hint="Stop it with penstock stop, or give this node another --home.",
            )
        lock = cls(home, descriptor)
        lock._write(f"{os.getpid()}\n")
        return lock

    def record_address(self, host: str, port: int) -> None:
        """Say where the node listens, for the other commands on this home."""
        self._write(f"{os.getpid()}\n{host}:{port}\n")

    def release(self) -> None:
        """Empty the file and let go of the lock."""
        self._write("")
        os.close(self._descriptor)

    def _write(self, text: str) -> None:
        # In this order a reader never sees an empty file while the address is added.
        os.pwrite(self._descriptor, text.encode(), 0)
        os.ftruncate(self._descriptor, len(text.encode()))

    def __enter__(self) -> HomeLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def find_holder(home: Path) -> Holder | None:
    """The node that runs on this home, None when none does."""
    path = home / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(path)
    finally:
        os.close(descriptor)
    return None


def prepare_home(home: Path) -> None:
    """Make the home and its folders, private; ConfigurationError when it cannot be used."""
    try:
        if not home.exists():
            home.mkdir(mode=0o755, parents=True)
            home.chmod(0o700)
        for name in ("log", "lake", "staging"):
            (home / name).mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f'could not use "{home}" as home: {error.strerror}',
            detail=f'The file in question is "{error.filename}".',
            hint="Choose another folder with --home.",
        ) from error


@dataclass(frozen=True)
class Superuser:
    """Who the other commands connect as; ``database`` is None for the setting's."""

    name: str
    database: str | None


def keep_superuser(passfile: Path, database: str, user: str, password: str) -> None:
    """Write the password file for the superuser of an external control database."""
    fields = [text.replace("\\", "\\\\").replace(":", "\\:") for text in (database, user, password)]
    draft = passfile.with_name(f"{passfile.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE), "w") as file:
        file.write(f"*:*:{':'.join(fields)}\n")
    draft.replace(passfile)


def read_superuser(passfile: Path) -> Superuser | None:
    """The superuser of the password file's first entry; None when there is no such file."""
    if not passfile.exists():
        return None
    first = passfile.read_text(encoding="utf-8").split("\n", 1)[0]
    fields = [_UNESCAPE.sub(r"\1", text) for text in _FIELD.findall(first)]
    if len(fields) != 5:
        return None
    return Superuser(fields[3], None if fields[2] == "*" else fields[2])


def _lock_patiently(descriptor: int) -> bool:
    """Try for a moment: another command may be looking at the lock just now."""
    deadline = time.monotonic() + _PROBE_PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        else:
            return True


def _read(path: Path) -> Holder | None:
    pid, _, rest = path.read_text().partition("\n")
    host, _, port = rest.strip().rpartition(":")
    if not pid.strip().isdecimal():
        return None
    return Holder(int(pid), host or None, int(port) if port.isdecimal() else None)
