# SPDX-License-Identifier: Apache-2.0
"""A node from outside: start, stop, a second one, crashes of it and of its control database."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import psutil
import psycopg
import pytest

from penstock.home import find_holder
from tests.support.fix_node import NewNode
from tests.support.node import STOP_TIMEOUT, Node
from tests.support.waits import wait_until

WARM = {"PENSTOCK_WARM_UP": "true"}


def test_start_ends_with_the_ready_line_and_answers(node: Node) -> None:
    """After the ready line a client gets in at once, as superuser of database lake."""
    assert node.psql("SELECT current_user, current_database()") == "penstock|lake"
    assert node.text().count("penstock: ready to accept connections on ") == 1


def test_nobody_gets_in_without_a_password(node: Node) -> None:
    """There is no trust authentication, not even on loopback."""
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(host=node.host, port=node.port, dbname="lake", user="penstock", passfile="")


def test_secrets_in_the_home_are_private(node: Node) -> None:
    """Password file, secret, lock and log are for their owner only."""
    for name in ("pgpass", "secret", "penstock.pid", "log/penstock.log"):
        assert stat.S_IMODE((node.home / name).stat().st_mode) == 0o600, name


def test_a_second_node_on_the_home_is_refused(node: Node) -> None:
    """It ends at once with status 1 and names the first one's pid; the first one goes on."""
    done = node.command("start", "--listen", "127.0.0.1:0")
    assert done.returncode == 1
    assert f"PID {node.pid}." in done.stderr
    assert node.psql("SELECT 1") == "1"


def test_sql_is_psql_on_the_node(node: Node) -> None:
    """Arguments after the options are psql's."""
    done = node.command("sql", "-XAt", "-c", "SELECT 40 + 2")
    assert (done.returncode, done.stdout) == (0, "42\n")


def test_status_without_a_terminal_is_plain_lines(node: Node) -> None:
    """The node's line comes first: pid and address."""
    done = node.command("status")
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first == f"node: running, PID {node.pid}, listening on {node.host}:{node.port}"


@pytest.mark.parametrize("how", ["SIGTERM", "penstock stop"])
def test_a_stop_drains_within_its_time(new_node: NewNode, how: str) -> None:
    """The node ends with status 0, and with it its control database, JVM and lock."""
    node = new_node(env=WARM).start()
    family = psutil.Process(node.pid).children(recursive=True)
    assert "java" in {member.name() for member in family}
    with node.connect() as open_session:
        open_session.execute("SELECT 1")
        began = time.monotonic()
        if how == "SIGTERM":
            assert node.terminate() == 0, node.text()[-3000:]
        else:
            node.stop()
        assert time.monotonic() - began < STOP_TIMEOUT
    assert find_holder(node.home) is None
    assert node.control_pid() is None
    _, alive = psutil.wait_procs(family, timeout=5)
    assert alive == []


def test_a_spark_that_does_not_start_ends_the_start(new_node: NewNode) -> None:
    """A wrong setting of Spark's is known at the start, not at the first query."""
    node = new_node(env=WARM, flags=("--spark=spark.master=nowhere",))
    node.launch()
    assert node.wait_for_death() == 1
    assert "penstock: error: Spark does not start" in node.text()
    assert node.control_pid() is None


def test_what_was_committed_survives_kill_9(new_node: NewNode) -> None:
    """The next start deals with the control database that was left, and has everything."""
    node = new_node().start()
    node.psql("CREATE TABLE kept (id int PRIMARY KEY)")
    node.kill()
    assert find_holder(node.home) is None
    node.start()
    assert node.psql("SELECT relname FROM pg_class WHERE relname = 'kept'") == "kept"
    assert node.psql("SELECT count(*) FROM kept") == "0"


def test_a_node_without_its_control_database_ends_and_recovers(new_node: NewNode) -> None:
    """A killed control database ends the node with an error; the next start recovers both."""
    node = new_node().start()
    node.psql("CREATE TABLE kept (id int PRIMARY KEY)")
    node.kill_control()
    assert node.wait_for_death(60) == 1
    assert "the control database has died" in node.text()
    node.start()
    assert node.psql("SELECT relname FROM pg_class WHERE relname = 'kept'") == "kept"


def test_a_node_that_is_killed_while_it_starts_can_start(new_node: NewNode) -> None:
    """kill -9 before the ready line leaves a home that the next start can use."""
    node = new_node()
    node.launch()
    pid_file = Path(node.home / "control" / "data" / "postmaster.pid")
    wait_until(pid_file.exists, 120, "the control database to be on its way")
    node.kill()
    node.start()
    assert node.psql("SELECT 1") == "1"


def test_the_log_goes_to_the_home_and_to_stderr(node: Node) -> None:
    """Both have the same lines, and the process that wrote them."""
    logged = node.home / "log" / "penstock.log"
    line = wait_until(lambda: logged.read_text().splitlines()[:1], 10, "a line in the log")[0]
    assert f"[{node.pid}]" in line
    assert line in node.text()
