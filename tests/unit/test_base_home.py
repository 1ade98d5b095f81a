# SPDX-License-Identifier: Apache-2.0
"""One home, one node: the lock, and what a home keeps for ever."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError, ObjectInUseError
from penstock.home import (
    Holder,
    HomeLock,
    Superuser,
    find_holder,
    keep_superuser,
    prepare_home,
    read_superuser,
)

HOLD = """
import sys, signal
from pathlib import Path
from penstock.home import HomeLock
with HomeLock.take(Path(sys.argv[1])) as lock:
    lock.record_address("127.0.0.1", 5533)
    print("held", flush=True)
    signal.pause()
"""


def hold_in_another_process(home: Path) -> subprocess.Popen[str]:
    """A process that holds the lock until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(home)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str], with_signal: signal.Signals) -> None:
    """Signal the process, wait for it, and close what it wrote to."""
    process.send_signal(with_signal)
    process.communicate(timeout=10)


def test_a_second_node_is_refused_by_the_pid_of_the_first(tmp_path: Path) -> None:
    """55006, and the detail names the process that holds the home."""
    process = hold_in_another_process(tmp_path)
    try:
        with pytest.raises(ObjectInUseError) as refused:
            HomeLock.take(tmp_path)
        assert f"PID {process.pid}." in str(refused.value)
        assert refused.value.sqlstate == "55006"
        assert find_holder(tmp_path) == Holder(process.pid, "127.0.0.1", 5533)
    finally:
        end(process, signal.SIGKILL)


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    """After kill -9 the file still names a pid, and yet nobody holds the home."""
    process = hold_in_another_process(tmp_path)
    end(process, signal.SIGKILL)
    assert str(process.pid) in (tmp_path / "penstock.pid").read_text()
    assert find_holder(tmp_path) is None
    with HomeLock.take(tmp_path):
        assert find_holder(tmp_path) == Holder(os.getpid(), None, None)
    assert find_holder(tmp_path) is None


def test_no_node_on_a_home_that_does_not_exist(tmp_path: Path) -> None:
    """Looking does not make the home."""
    assert find_holder(tmp_path / "none") is None
    assert not (tmp_path / "none").exists()


def test_a_home_is_private(tmp_path: Path) -> None:
    """Making it again changes nothing: the mode may have been opened for the server's user."""
    home = tmp_path / "home"
    prepare_home(home)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (home, *home.iterdir())}
    assert modes == {"home": 0o700, "log": 0o700, "lake": 0o700, "staging": 0o700}
    home.chmod(0o711)
    prepare_home(home)
    assert stat.S_IMODE(home.stat().st_mode) == 0o711


@pytest.mark.parametrize(
    ("database", "user", "password"),
    [("lake", "penstock", "p"), ("a:b", "c\\d", "e:\\:f"), ("d", "u", "")],
)
def test_the_superuser_is_read_from_the_password_file(
    tmp_path: Path, database: str, user: str, password: str
) -> None:
    """Whatever the names: colons and backslashes are escaped as libpq has it."""
    passfile = tmp_path / "pgpass"
    assert read_superuser(passfile) is None
    keep_superuser(passfile, database, user, password)
    assert read_superuser(passfile) == Superuser(user, database)
    assert stat.S_IMODE(passfile.stat().st_mode) == 0o600
    passfile.write_text("*:*:*:penstock:p\n")
    assert read_superuser(passfile) == Superuser("penstock", None)


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """The error names the file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="could not use"):
        prepare_home(tmp_path / "file" / "home")
