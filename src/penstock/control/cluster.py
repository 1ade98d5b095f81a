# SPDX-License-Identifier: Apache-2.0
"""The files of the embedded control database: made once, checked at every start.

    HOME/pgpass        password of the superuser ``penstock``, as a libpq password file, mode 0600
    HOME/control/      0700, owned by the account that runs the server
        data/          the database cluster
        run/           the Unix socket, the only way in
    HOME/log/control.log

Order when new: the password is durable in ``pgpass`` before ``initdb`` uses it, and ``initdb``
works in ``data.new``, which becomes ``data`` by a rename.  A crash at any point leaves either
nothing or a whole cluster with a known password.

What the node's correctness rests on is on the server's command line (``required_settings``), where
neither the configuration file nor ALTER SYSTEM can change it.  The rest is in ``postgresql.conf``,
written once, and is the operator's to tune.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from penstock.config import Settings
from penstock.control.account import Account
from penstock.control.guard import write_private
from penstock.errors import ConfigurationError, WrongStateError

SUPERUSER = "penstock"
PORT = 5432
"""Only names the socket file; the server listens on no network address."""

MAX_SOCKET_FOLDER = 90
"""sun_path holds 107 bytes on Linux, 103 on macOS; /.s.PGSQL.5432 takes 14 of them."""

OWN_CONNECTIONS = 40
"""Connections beyond max_connections that are kept for the node itself (superuser_reserved)."""

SLOTS = 200
"""Slots, walsenders and origins: far more than a node has subscribers and subscriptions.
Each costs some hundred bytes of shared memory; changing them needs a restart."""

LOG_LIMIT = 16 * 1024 * 1024
"""Bytes of the server's log from which on a start puts it aside."""

_TUNABLE = """
# --- Written by Penstock when this cluster was made; yours to change. ---
shared_buffers = 64MB
max_wal_size = 512MB
min_wal_size = 64MB
jit = off
timezone = 'UTC'
log_timezone = 'UTC'
lc_messages = 'C'
log_line_prefix = '%m [%p] %q%u@%d '
log_checkpoints = off
# Statements and parameters may hold passwords, so they are never logged.
log_min_error_statement = panic
log_parameter_max_length = 0
"""

_HBA = """\
# Written by Penstock: a password for everyone, through the private Unix socket only.
local   all           all   scram-sha-256
local   replication   all   scram-sha-256
"""


def required_settings(settings: Settings, socket_folder: Path) -> dict[str, str]:
    """What the server must run with, whatever its files say."""
    return {
        "listen_addresses": "",
        "unix_socket_directories": str(socket_folder),
        "unix_socket_permissions": "0700",
        "port": str(PORT),
        "wal_level": "logical",
        "max_logical_replication_workers": "0",
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
        "track_commit_timestamp": "on",
        "password_encryption": "scram-sha-256",
        "max_connections": str(settings.max_connections + OWN_CONNECTIONS),
        "superuser_reserved_connections": str(OWN_CONNECTIONS),
        "max_replication_slots": str(SLOTS),
        "max_wal_senders": str(SLOTS),
        "max_active_replication_origins": str(SLOTS),
        "max_prepared_transactions": str(settings.max_connections),
        "logging_collector": "off",
        "log_destination": "stderr",
    }


class Cluster:
    """The folders and files of one home's control database."""

    def __init__(self, settings: Settings, account: Account) -> None:
        self.settings = settings
        self.account = account
        self.path = settings.control_path
        self.data_path = self.path / "data"
        self.log_path = settings.home / "log" / "control.log"

    def prepare(self) -> None:
        """Make the home's folders; ConfigurationError when the server could not enter them."""
        home = self.settings.home
        if not home.exists():
            home.mkdir(parents=True, mode=0o755)
            home.chmod(0o700 if self.account.name is None else 0o711)
        self.log_path.parent.mkdir(exist_ok=True, mode=0o700)
        self.path.mkdir(exist_ok=True, mode=0o700)
        self.account.own(self.path)
        unreachable = self.account.unreachable_part(self.path)
        if unreachable == home and home.stat().st_uid == os.geteuid():
            home.chmod(home.stat().st_mode | 0o011)  # enter, but not list
            unreachable = self.account.unreachable_part(self.path)
        if unreachable is not None:
            raise ConfigurationError(
                f'folder "{unreachable}" cannot be entered by the user that runs the control'
                " database",
                detail=f'PostgreSQL does not run as root, so user "{self.account.name}" runs it,'
                f' and its files are in "{self.path}".',
                hint="Choose another --home, for example below /var/lib.",
            )

    def socket_folder(self) -> Path:
        """The private folder of the socket; another one when the home's path is no good for it."""
        folder = self.path / "run"
        # A comma separates hosts in libpq, and folders in unix_socket_directories.
        if len(os.fsencode(folder)) > MAX_SOCKET_FOLDER or "," in str(folder):
            mark = hashlib.sha256(os.fsencode(self.path.resolve())).hexdigest()[:16]
            folder = Path(tempfile.gettempdir()) / f"penstock-{self.account.uid}-{mark}"
        if not folder.exists():
            folder.mkdir(mode=0o700)
            self.account.own(folder)
        found = folder.lstat()
        private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
        if not private or found.st_uid != self.account.uid:
            raise ConfigurationError(
                f'folder "{folder}" is not private',
                detail="The control database's socket must be in a folder with mode 0700 that"
                " belongs to the user that runs it.",
                hint="Remove the folder.",
            )
        return folder

    def password(self) -> str:
        """The superuser's password, from pgpass; a new home gets a new random one."""
        pgpass = self.settings.pgpass_path
        if not pgpass.exists():
            if self.data_path.exists():
                raise ConfigurationError(
                    f'file "{pgpass}" is missing',
                    detail="It holds the password of the control database's superuser.",
                    hint=f"Restore it, with mode 0600: *:*:*:{SUPERUSER}:PASSWORD",
                )
            write_private(pgpass, f"*:*:*:{SUPERUSER}:{secrets.token_urlsafe(24)}\n")
        for line in pgpass.read_text(encoding="utf-8").splitlines():
            fields = line.split(":")
            if len(fields) == 5 and fields[3] == SUPERUSER:
                return fields[4]
        raise ConfigurationError(f'file "{pgpass}" has no password for user "{SUPERUSER}"')

    def create(self, programs: Path, password: str) -> None:
        """Run initdb, unless this home has its cluster already."""
        if self.data_path.exists():
            return
        draft = self.path / "data.new"
        if draft.exists():
            shutil.rmtree(draft)
        pwfile = self.path / "pwfile"
        pwfile.unlink(missing_ok=True)
        write_private(pwfile, password + "\n")
        self.account.own(pwfile)
        try:
            self._initdb(programs, draft, pwfile)
        finally:
            pwfile.unlink()
        with (draft / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write(_TUNABLE)
        (draft / "pg_hba.conf").write_text(_HBA, encoding="utf-8")
        draft.rename(self.data_path)

    def _initdb(self, programs: Path, draft: Path, pwfile: Path) -> None:
        command = [
            str(programs / "initdb"),
            f"--pgdata={draft}",
            f"--username={SUPERUSER}",
            f"--pwfile={pwfile}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
        ]
        done = subprocess.run(
            command,
            cwd=self.path,
            env=server_environment(),
            capture_output=True,
            text=True,
            **self.account.popen_arguments(),
        )
        if done.returncode != 0:
            raise ConfigurationError(
                "could not create the control database",
                detail=(done.stderr or done.stdout).strip(),
                hint=f'Remove "{draft}" when the cause is gone; nothing else was made.',
            )

    def postmaster_pid(self) -> int | None:
        """The pid of a running server of this cluster, by postmaster.pid, or None.

        A process that only has the same number is not taken for it: the server's working folder
        (or, without /proc, its command line) names the cluster.
        """
        try:
            pid = int((self.data_path / "postmaster.pid").read_text(encoding="utf-8").split()[0])
        except (FileNotFoundError, IndexError):
            return None
        if Path("/proc/self").exists():
            try:
                ours = Path(f"/proc/{pid}/cwd").samefile(self.data_path)
            except (FileNotFoundError, PermissionError):
                ours = False
        else:
            listing = subprocess.run(
                ["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True
            )
            ours = str(self.data_path) in listing.stdout
        return pid if ours else None

    def rotate_log(self) -> None:
        """Put a log that has grown above LOG_LIMIT aside (one old file is kept)."""
        if self.log_path.exists() and self.log_path.stat().st_size > LOG_LIMIT:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))

    def log_tail(self, start: int) -> str:
        """What the server wrote to its log since offset ``start`` (at most 4,000 bytes)."""
        with self.log_path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - 4000))
            return file.read().decode(errors="replace").strip()


def server_environment() -> dict[str, str]:
    """The environment of the server's programs: nothing of the node's PG* settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def wait_state(what: str, seconds: float) -> WrongStateError:
    """The error for a server that did not get into a state in time."""
    return WrongStateError(f"the control database did not {what} within {seconds:g} seconds")
