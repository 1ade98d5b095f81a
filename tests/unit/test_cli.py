# SPDX-License-Identifier: Apache-2.0
"""The command line as a user types it: what it says, where, and with which exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.start import parse_spark
from penstock.errors import ConfigurationError
from penstock.home import HomeLock


def penstock(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command with this Python."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK")}
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )


@pytest.mark.parametrize("verb", ["stop", "status", "sql"])
def test_a_command_without_a_node_says_so(verb: str, tmp_path: Path) -> None:
    """Exit status 3, one line on stderr that names the home, and no traceback."""
    done = penstock(verb, "--home", str(tmp_path))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f'penstock: no node runs on home "{tmp_path}"\n'


def test_a_second_start_is_refused(tmp_path: Path) -> None:
    """Exit status 1, and the message names the pid of the node that runs."""
    with HomeLock.take(tmp_path):
        done = penstock("start", "--home", str(tmp_path), "--control", "host=/nowhere")
    assert done.returncode == 1
    assert done.stderr.startswith(f'penstock: error: home "{tmp_path}" is in use by another node\n')
    assert f"PID {os.getpid()}." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--listen", "nonsense"), 'invalid value for parameter "listen"'),
        (("--spark", "master=local"), 'invalid value for option --spark: "master=local"'),
    ],
)
def test_a_wrong_setting_is_named(flags: tuple[str, str], message: str, tmp_path: Path) -> None:
    """Exit status 1 and the name of the setting, before anything is made."""
    done = penstock("start", "--home", str(tmp_path / "home"), *flags)
    assert done.returncode == 1
    assert message in done.stderr
    assert not (tmp_path / "home").exists()


def test_help_and_version_are_quick(tmp_path: Path) -> None:
    """They import neither Spark nor numba: a shell completes and a script asks often."""
    code = (
        "import sys; import penstock.cli.main;"
        "sys.exit(any(name in sys.modules for name in ('pyspark', 'numba', 'deltalake')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert penstock("version").stdout.startswith("penstock 0.")


def test_spark_settings_are_read_as_name_and_value() -> None:
    """The value may hold equals signs; the name must be a full spark.* name."""
    given = ["spark.master=local[2]", "spark.driver.extraJavaOptions=-Da=b"]
    expected = {"spark.master": "local[2]", "spark.driver.extraJavaOptions": "-Da=b"}
    assert parse_spark(given) == expected
    assert parse_spark([]) is None
    with pytest.raises(ConfigurationError):
        parse_spark(["spark.master"])
