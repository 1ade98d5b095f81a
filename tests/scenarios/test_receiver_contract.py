# SPDX-License-Identifier: Apache-2.0
"""The start-up contract and the connection: each broken line is a named error with a hint."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from penstock.client.connection import open_publisher, run
from penstock.client.contract import IDENTITY_FILE
from penstock.client.receiver import Receiver, ReceiverState
from penstock.errors import (
    ConnectionLostError,
    PenstockError,
    PublicationError,
    SlotError,
)
from penstock.staging.log import StagingLog
from tests.support.binaries import NEWEST
from tests.support.fix_servers import Database, Servers, drop_database
from tests.support.proxy import Proxy
from tests.support.servers import PASSWORD, PASSWORD_ROLE, PostgresServer
from tests.support.slots import lose, small_slots
from tests.support.streaming import Replay, Stream

VERSIONS = pytest.mark.parametrize("publisher", ["15", "16", NEWEST], indirect=True)


@pytest.fixture
def stream(publisher_db: Database, tmp_path: Path) -> Stream:
    """A slot over one table."""
    publisher_db.psql("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    return Stream(publisher_db, tmp_path / "staging")


def refused(stream: Stream, log: StagingLog, applied: int = 0) -> PenstockError:
    """The error with which a receiver does not start."""
    receiver = Receiver(stream.options, log, lambda: applied)
    with pytest.raises(PenstockError) as caught:
        receiver.start()
    receiver.stop()
    assert receiver.state is ReceiverState.FAILED
    assert caught.value.hint
    return caught.value


def staged_once(stream: Stream) -> StagingLog:
    """A log that has followed the slot once."""
    log = StagingLog(stream.folder)
    with stream.receiver(log) as receiver:
        stream.database.psql("INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t")
        stream.await_staged(log, receiver)
    return log


def test_the_first_start_remembers_the_publisher(stream: Stream) -> None:
    """System and database are kept; the slot's position becomes ours."""
    log = StagingLog(stream.folder)
    confirmed = stream.slot("(confirmed_flush_lsn - '0/0')::bigint")
    with stream.receiver(log):
        assert log.end_lsn >= confirmed
    identity = json.loads((stream.folder / IDENTITY_FILE).read_text())
    assert identity["database"] == stream.database.name
    assert identity["system_identifier"] == stream.database.psql(
        "SELECT system_identifier FROM pg_control_system()"
    )


def test_another_publisher(stream: Stream) -> None:
    """A server that is not the one of the first start is refused."""
    log = staged_once(stream)
    path = stream.folder / IDENTITY_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "system_identifier": "1"}))
    error = refused(stream, log)
    assert isinstance(error, SlotError)
    assert "not the one" in error.message


def test_another_server_behind_the_same_address(
    stream: Stream, servers: Servers, tmp_path: Path
) -> None:
    """A server that took over the address is not followed, even with database, slot and table."""
    other = servers("16", "other")  # of one version all would be copies of one cluster
    database = Database(other, other.create_database(stream.database.name))
    database.psql("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    Stream(database, tmp_path / "other")
    with Proxy(stream.database.server.port) as proxy:
        conninfo = proxy.conninfo(stream.database)
        stream.options = replace(stream.options, conninfo=conninfo)
        log = staged_once(stream)
        proxy.retarget(other.port)
        error = refused(stream, log)
    drop_database(other, database.name)
    assert isinstance(error, SlotError)
    assert "not the one" in error.message
    for server in (stream.database.server, other):
        system = server.psql("SELECT system_identifier FROM pg_control_system()")
        assert f"of system {system}" in (error.detail or "")


@VERSIONS
def test_a_lost_slot(stream: Stream, publisher: PostgresServer) -> None:
    """A slot whose log the publisher has removed is named with the reason, and stays as it is."""
    log = staged_once(stream)
    with small_slots(publisher):
        lose(stream.options.slot, publisher)
        error = refused(stream, log)
    assert isinstance(error, SlotError)
    assert "is lost" in error.message
    assert "wal_removed" in (error.detail or "")
    assert stream.slot("wal_status") == "lost"


def test_a_missing_slot(stream: Stream) -> None:
    """A dropped slot is not created again: its changes are lost, and that is said."""
    log = staged_once(stream)
    stream.database.psql(f"SELECT pg_drop_replication_slot('{stream.options.slot}')")
    error = refused(stream, log)
    assert isinstance(error, SlotError)
    assert error.sqlstate == "42704"
    assert "does not exist" in error.message


def test_a_slot_of_another_plugin(stream: Stream) -> None:
    """Only pgoutput's messages are understood."""
    stream.database.psql(f"""
        SELECT pg_drop_replication_slot('{stream.options.slot}');
        SELECT pg_create_physical_replication_slot('{stream.options.slot}')
    """)
    assert "not a logical slot" in refused(stream, StagingLog(stream.folder)).message
    stream.database.psql(f"SELECT pg_drop_replication_slot('{stream.options.slot}')")


@pytest.mark.parametrize("how", ["advanced", "created again"])
def test_a_slot_that_is_ahead(stream: Stream, how: str) -> None:
    """PostgreSQL would skip the changes in between without a word."""
    log, slot = staged_once(stream), stream.options.slot
    stream.database.psql("INSERT INTO t VALUES (100)")
    if how == "advanced":
        move = f"pg_replication_slot_advance('{slot}', pg_current_wal_lsn())"
    else:
        stream.database.psql(f"SELECT pg_drop_replication_slot('{slot}')")
        move = f"pg_create_logical_replication_slot('{slot}', 'pgoutput')"
    stream.database.psql(f"SELECT {move}")
    error = refused(stream, log)
    assert isinstance(error, SlotError)
    assert "is ahead of" in error.message
    # The way out: the user accepts the gap by advancing the origin.
    position = stream.wal_position()
    with stream.receiver(log, lambda: position):
        assert log.end_lsn >= position


def test_lost_staging_is_found_out(stream: Stream, tmp_path: Path) -> None:
    """Confirmed changes that are neither staged nor applied are missing, and that is said."""
    staged_once(stream)
    error = refused(stream, StagingLog(tmp_path / "empty"), applied=1)
    assert "is ahead of" in error.message


def test_a_publisher_that_went_back(stream: Stream) -> None:
    """PostgreSQL would skip what the restored publisher writes next."""
    log = staged_once(stream)
    log.advance(stream.wal_position() + 2**40)
    error = refused(stream, log)
    assert isinstance(error, SlotError)
    assert "publisher is behind" in error.message


@VERSIONS
def test_a_missing_publication(stream: Stream) -> None:
    """Every subscribed publication must exist; the missing ones are named."""
    stream.options = replace(stream.options, publications=("p", "p2", "Q 3"))
    error = refused(stream, StagingLog(stream.folder))
    assert isinstance(error, PublicationError)
    assert '"p2", "Q 3"' in error.message


@VERSIONS
def test_awkward_publication_names(stream: Stream) -> None:
    """Quotes, commas, backslashes and letters of any script reach the publisher as they are."""
    name = """a"b'c, \\d Ž"""
    quoted = name.replace('"', '""')
    stream.database.psql(f'CREATE PUBLICATION "{quoted}" FOR TABLE t')
    stream.options = replace(stream.options, publications=(name,))
    log = staged_once(stream)
    assert Replay().apply(log.segments()).rows("t") == [{"id": 1}]


@VERSIONS
def test_values_have_one_form(stream: Stream) -> None:
    """The publisher's own settings, and the user's options, do not change how values look."""
    database = stream.database
    database.psql(
        f"ALTER DATABASE {database.name} SET datestyle = 'German';"
        f" ALTER DATABASE {database.name} SET bytea_output = 'escape';"
        f" ALTER DATABASE {database.name} SET timezone = 'Asia/Tokyo'"
    )
    conninfo = make_conninfo(database.conninfo, options="-c work_mem=1MB -c datestyle=SQL")
    query = "SELECT timestamptz '2000-01-01 00:00:00Z', '\\x00'::bytea, current_setting('work_mem')"
    connection = open_publisher(conninfo, replication=True)
    assert run(connection, query) == [("2000-01-01 00:00:00+00", "\\x00", "1MB")]
    assert run(connection, "SHOW search_path") == [("",)]
    connection.finish()
    with open_publisher(conninfo, application_name="me") as session:
        assert session.execute("SHOW application_name").fetchone() == ("me",)
        assert session.execute("SHOW search_path").fetchone() == ("",)
        assert session.execute("SHOW timezone").fetchone() == ("UTC",)


def test_errors_have_no_password(stream: Stream) -> None:
    """Wrong passwords, wrong options and broken strings are reported without the secret."""
    given = {"user": PASSWORD_ROLE, "password": PASSWORD}
    right = make_conninfo(stream.database.conninfo, **given)
    with open_publisher(right, password_required=True) as session:
        assert session.execute("SELECT current_user").fetchone() == (PASSWORD_ROLE,)
    strings = [
        make_conninfo(right, password=PASSWORD + "x"),
        make_conninfo(right, port="1"),
        make_conninfo(right, dbname="missing"),
        f"host=x nonsense {PASSWORD}",
        f"postgres://u:{PASSWORD}@[::1",
    ]
    for conninfo in strings:
        for replication in (True, False):
            with pytest.raises(PenstockError) as caught:
                open_publisher(conninfo, replication=replication)
            assert PASSWORD.split()[0] not in str(caught.value)
            assert caught.value.__cause__ is None


def test_a_password_may_be_required(stream: Stream) -> None:
    """A subscription of an ordinary user must not use the node's own rights."""
    with pytest.raises(PenstockError, match="password is required") as caught:
        open_publisher(stream.database.conninfo, password_required=True)
    assert caught.value.sqlstate == "2F003"


def test_errors_of_the_server_keep_their_sqlstate(stream: Stream) -> None:
    """An SQL error has the publisher's SQLSTATE; a dead connection is a lost connection."""
    connection = open_publisher(stream.database.conninfo, replication=True)
    with pytest.raises(PenstockError, match="division by zero") as caught:
        run(connection, "SELECT 1/0")
    assert caught.value.sqlstate == "22012"
    with pytest.raises(ConnectionLostError):
        run(connection, "SELECT pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(ConnectionLostError):
        run(connection, "SELECT 1")
    connection.finish()
