# SPDX-License-Identifier: Apache-2.0
"""The embedded control database: made, started, stopped, killed, found again."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from penstock.config import load_settings
from penstock.control.account import Account, server_account
from penstock.control.cluster import Cluster
from penstock.control.connect import ControlConnection, connect
from penstock.control.programs import packaged_programs, server_programs
from penstock.control.server import EmbeddedServer
from penstock.errors import ConfigurationError, ConnectionLostError
from tests.support.control import copy_home, one
from tests.support.folders import open_folder
from tests.support.waits import wait_until

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs it as another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder("pst-control-") as made:
        yield made


@pytest.fixture
def home(folder: Path) -> Path:
    return folder / "home"


@pytest.fixture
def new_server(home: Path) -> Iterator[EmbeddedServer]:
    """A server, not started, of a home that does not exist yet."""
    made = EmbeddedServer(load_settings(home=home))
    yield made
    made.stop()


@pytest.fixture
def server(control_home: Path, new_server: EmbeddedServer, home: Path) -> EmbeddedServer:
    """A server, not started, of a home that was used before."""
    copy_home(control_home, home)
    return new_server


def test_new_home_gets_a_server_as_designed(new_server: EmbeddedServer, home: Path) -> None:
    """Encoding, collation, time zone, durability, no network, no apply workers of its own."""
    address = new_server.start()
    expected = {
        "wal_level": "logical",
        "max_logical_replication_workers": "0",
        "listen_addresses": "",
        "fsync": "on",
        "synchronous_commit": "on",
        "TimeZone": "UTC",
        "track_commit_timestamp": "on",
        "server_encoding": "UTF8",
        "password_encryption": "scram-sha-256",
    }
    with ControlConnection.connect(address.conninfo()) as conn:  # as a client has it
        assert {name: one(conn, f"SHOW {name}") for name in expected} == expected
    with connect(address) as conn:
        assert one(conn, "SHOW synchronous_commit") == "local"
        collation = "SELECT datcollate, datctype FROM pg_database WHERE datname = %s"
        assert one(conn, collation, "lake") == ("C", "C")
        assert one(conn, "SELECT version()").startswith("PostgreSQL 18")
        assert one(conn, "SELECT current_user || ' ' || current_database()") == "penstock lake"
    assert stat.S_IMODE((home / "pgpass").stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(address.host).stat().st_mode) == 0o700
    assert "ready to accept connections" in new_server.log_path.read_text()


def test_every_connection_needs_the_password(server: EmbeddedServer, home: Path) -> None:
    """A wrong or missing password is refused; the file pgpass opens the door for libpq."""
    address = server.start()
    for wrong in ("wrong", ""):
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(address.conninfo(password=wrong), passfile="/nonexistent")
    without = f"host={address.host} dbname=lake user=penstock passfile={home / 'pgpass'}"
    with psycopg.connect(without) as conn:
        assert conn.info.user == "penstock"


def test_wrong_password_in_pgpass_is_named(server: EmbeddedServer, home: Path) -> None:
    """A node whose pgpass no longer fits says so, instead of waiting for the server."""
    (home / "pgpass").write_text("*:*:*:penstock:changed\n")
    with pytest.raises(ConfigurationError, match="refused the node's password"):
        server.start()


def test_lost_pgpass_is_named(server: EmbeddedServer, home: Path) -> None:
    """Without the file nobody knows the password, so no new one is invented."""
    (home / "pgpass").unlink()
    with pytest.raises(ConfigurationError, match=r"pgpass.* is missing"):
        server.start()


def test_stop_and_start_keep_what_was_committed(server: EmbeddedServer) -> None:
    """A second start finds the database, the password and the data."""
    first = server.start()
    with connect(first) as conn:
        conn.execute("CREATE TABLE public.kept (answer int)")
        conn.execute("INSERT INTO public.kept VALUES (42)")
    server.stop()
    assert server.pid is None
    with pytest.raises(ConnectionLostError):
        connect(first)
    assert server.start() == first
    with connect(first) as conn:
        assert one(conn, "SELECT answer FROM public.kept") == 42


def test_kill_of_the_server_is_seen_and_recovered(server: EmbeddedServer) -> None:
    """After kill -9 of all its processes ``poll`` tells, and the next start recovers."""
    address = server.start()
    with connect(address) as conn:
        conn.execute("CREATE TABLE public.kept (answer int)")
        conn.execute("INSERT INTO public.kept VALUES (42)")
    assert server.poll() is None
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)  # its backends notice by themselves, a little later
    wait_until(lambda: server.poll() is not None, 10, "the server's death to be seen")
    with connect(server.start()) as conn:
        assert one(conn, "SELECT answer FROM public.kept") == 42
    assert "automatic recovery in progress" in server.log_path.read_text()


def test_orphan_of_a_killed_node_is_stopped_first(server: EmbeddedServer, home: Path) -> None:
    """A server that its node left behind is shut down cleanly, then a new one is started."""
    server.start()
    orphan = psutil.Process(server.pid)
    successor = EmbeddedServer(load_settings(home=home))
    address = successor.start()
    try:
        assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE
        assert successor.pid != orphan.pid
        with connect(address) as conn:
            assert one(conn, "SELECT 1") == 1
        assert "recovery" not in successor.log_path.read_text()
    finally:
        successor.stop()


def test_a_stranger_with_the_orphans_pid_is_left_alone(server: EmbeddedServer, home: Path) -> None:
    """After a crash of the machine another process may have the number in postmaster.pid."""
    settings = load_settings(home=home)
    cluster = Cluster(settings, server_account(None))
    with subprocess.Popen(["sleep", "60"]) as stranger:
        (home / "control" / "data" / "postmaster.pid").write_text(f"{stranger.pid}\n")
        assert cluster.postmaster_pid() is None
        assert stranger.poll() is None
        stranger.kill()


def test_interrupted_initdb_leaves_no_trace(new_server: EmbeddedServer, home: Path) -> None:
    """Half a cluster of a killed first start is thrown away by the next."""
    home.mkdir(mode=0o711)
    draft = home / "control" / "data.new"
    draft.mkdir(parents=True)
    (draft / "PG_VERSION").write_text("18\n")
    new_server.start()
    assert not draft.exists()


def test_server_that_cannot_start_says_why(server: EmbeddedServer, home: Path) -> None:
    """The error carries the end of the server's log and the log's name."""
    with (home / "control" / "data" / "postgresql.conf").open("a") as conf:
        conf.write("shared_buffers = 'nonsense'\n")
    with pytest.raises(ConfigurationError, match="did not start") as caught:
        server.start()
    assert "nonsense" in (caught.value.detail or "")
    assert str(server.log_path) in (caught.value.hint or "")


def test_neither_files_nor_alter_system_undo_what_is_required(server: EmbeddedServer) -> None:
    """Settings on which correctness rests are on the command line."""
    address = server.start()
    with connect(address) as conn:
        conn.execute("ALTER SYSTEM SET fsync = off")
        conn.execute("ALTER SYSTEM SET max_logical_replication_workers = 4")
    server.stop()
    with connect(server.start()) as conn:
        assert one(conn, "SHOW fsync") == "on"
        assert one(conn, "SHOW max_logical_replication_workers") == "0"


@pytest.mark.parametrize("name", ["long" * 30, "with, comma and space's"])
def test_home_that_fits_no_socket_gets_a_private_folder(
    folder: Path, control_home: Path, name: str
) -> None:
    """A socket's path is limited to about a hundred bytes without commas; a home's is not."""
    copy_home(control_home, folder / name)
    server = EmbeddedServer(load_settings(home=folder / name))
    address = server.start()
    try:
        assert not Path(address.host).is_relative_to(folder)
        assert stat.S_IMODE(Path(address.host).stat().st_mode) == 0o700
    finally:
        server.stop()
        Path(address.host).rmdir()


def test_no_statement_with_a_password_is_logged(server: EmbeddedServer) -> None:
    """Failed statements are logged without their text, whatever level they fail at."""
    with connect(server.start()) as conn:
        with pytest.raises(psycopg.errors.DuplicateObject):
            conn.execute("CREATE ROLE penstock PASSWORD 'canary'")
        with pytest.raises(psycopg.OperationalError):
            conn.execute(
                "CREATE SUBSCRIPTION s"
                " CONNECTION 'host=/nonexistent dbname=x password=canary' PUBLICATION p"
            )
    log = server.log_path.read_text()
    assert "already exists" in log
    assert "canary" not in log


def test_ctrl_c_does_not_reach_the_server(server: EmbeddedServer) -> None:
    """The server has a session of its own; the node decides when it stops."""
    server.start()
    assert server.pid is not None
    assert os.getsid(server.pid) == server.pid


@as_root
def test_root_runs_it_as_an_unprivileged_user(new_server: EmbeddedServer, home: Path) -> None:
    """Processes and data belong to the unprivileged user; the home's secrets do not."""
    new_server.start()
    assert psutil.Process(new_server.pid).uids().real != 0
    assert (home / "control" / "data").stat().st_uid == psutil.Process(new_server.pid).uids().real
    assert (home / "pgpass").stat().st_uid == 0


@as_root
def test_private_parent_of_the_home_is_named(folder: Path) -> None:
    """A home below a folder that the server's user cannot enter is refused with a hint."""
    (folder / "private").mkdir(mode=0o700)
    server = EmbeddedServer(load_settings(home=folder / "private" / "home"))
    with pytest.raises(ConfigurationError, match=re.escape(str(folder / "private"))) as caught:
        server.start()
    assert "--home" in (caught.value.hint or "")


@as_root
def test_home_of_mode_0700_is_opened_for_passing_through(folder: Path) -> None:
    """The home itself is the node's own: the server's user may pass, not list."""
    home = folder / "home"
    home.mkdir(mode=0o700)
    server = EmbeddedServer(load_settings(home=home))
    server.start()
    server.stop()
    assert stat.S_IMODE(home.stat().st_mode) == 0o711


@as_root
def test_unreadable_programs_are_copied_once(folder: Path) -> None:
    """A virtual environment below a private folder is of no use to the server's user."""
    hidden = folder / "hidden"
    hidden.mkdir(mode=0o700)
    (hidden / "pginstall").symlink_to(packaged_programs().parent)
    packaged, cache = hidden / "pginstall" / "bin", folder / "cache"
    account = server_account(None)
    programs = server_programs(account, packaged, cache)
    assert programs.is_relative_to(cache)
    done = subprocess.run(
        [programs / "postgres", "--version"],
        capture_output=True,
        text=True,
        **account.popen_arguments(),
    )
    assert "18" in done.stdout
    before = (programs / "postgres").stat().st_ino
    assert server_programs(account, packaged, cache) == programs
    assert (programs / "postgres").stat().st_ino == before


@as_root
@pytest.mark.parametrize("name", ["root", "nobody-has-this-name"])
def test_useless_control_user_is_refused(name: str) -> None:
    """control_user must exist and must not be root."""
    with pytest.raises(ConfigurationError, match=name):
        server_account(name)


def test_account_of_the_node_itself_needs_no_switch() -> None:
    """A node that is not root starts the server as it is."""
    assert Account(None, 1000, 1000).popen_arguments() == {}


def test_socket_folder_of_somebody_else_is_not_used(folder: Path, control_home: Path) -> None:
    """Whoever makes the predictable folder first does not get the node's connections."""
    copy_home(control_home, folder / "a,b")
    settings = load_settings(home=folder / "a,b")
    squatted = Cluster(settings, server_account(None)).socket_folder()
    squatted.chmod(0o777)
    try:
        with pytest.raises(ConfigurationError, match="is not private"):
            EmbeddedServer(settings).start()
    finally:
        squatted.rmdir()
