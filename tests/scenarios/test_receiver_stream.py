# SPDX-License-Identifier: Apache-2.0
"""The receiver against real publishers: what it stages is what they hold, whatever happens."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client.receiver import Receiver, ReceiverState
from penstock.errors import (
    ConnectionLostError,
    ObjectInUseError,
    PublicationError,
    ValueNotHeldError,
)
from penstock.pgoutput.decode import Decoded
from penstock.staging.log import StagingLog
from penstock.staging.segment import Segment
from tests.support.binaries import NEWEST, installations
from tests.support.fix_servers import Database
from tests.support.servers import PostgresServer
from tests.support.streaming import Replay, Stream
from tests.support.waits import wait_until

VERSIONS = pytest.mark.parametrize("publisher", ["15", "16", NEWEST], indirect=True)

SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE typed (id bigint PRIMARY KEY, small smallint, whole int, r real, d double precision,
    n numeric(12,2), bare numeric, b boolean, t text, v varchar(10), c char(4), raw bytea,
    day date, at timestamp, atz timestamptz, u uuid, j jsonb, m mood, clock time, span interval,
    ints int[], texts text[], ip inet);
CREATE TABLE whole_rows (id int NOT NULL, note text);
ALTER TABLE whole_rows REPLICA IDENTITY FULL;
CREATE TABLE big (id int PRIMARY KEY, small int, huge text);
ALTER TABLE big ALTER huge SET STORAGE EXTERNAL;
CREATE TABLE logs (id int PRIMARY KEY);
CREATE TABLE unpublished (id int);
CREATE PUBLICATION p FOR TABLE typed, whole_rows, big, logs;
"""

TYPED = """id, small, whole, r::float8, d, n, bare, b, t, v, c, raw, day, at, atz, u::text, j::text,
    m::text, clock::text, span::text, ints, texts, host(ip) AS ip"""
"""The columns of ``typed`` in the form in which the lake holds them."""


CHANGES = """
INSERT INTO typed SELECT g, g % 300, g * 1000, g / 3.0, 1 / g::float8, g / 7.0, g / 8.0,
    g % 2 = 0, 'text ' || g || E' \\t "ž" \\\\', 'v' || g % 9, 'c',
        decode(md5(g::text), 'hex'),
    date '1900-01-01' + g, timestamp '1969-12-31 23:00' + g * interval '1.000001 min',
    timestamptz '2000-01-01 00:00:00+02' - g * interval '1 day 1.5 s',
    md5(g::text)::uuid, jsonb_build_object('g', g), 'happy',
        time '10:00' + g * interval '1 s',
    g * interval '1 day 1 s', array[g, null, -g],
        array['a b', null, '', 'NULL', 'q"\\{,}'],
    '10.0.0.1'::inet + g
  FROM generate_series(1, 500) g;
INSERT INTO typed (id) VALUES (0);
INSERT INTO typed (id, r, d, n) VALUES (-1, 'NaN', 'Infinity', -0.01);
UPDATE typed SET t = NULL, whole = whole + 1 WHERE id % 3 = 0;
UPDATE typed SET id = id + 10000 WHERE id % 5 = 1;
DELETE FROM typed WHERE id % 7 = 2;
INSERT INTO whole_rows SELECT g, 'note ' || g FROM generate_series(1, 50) g;
UPDATE whole_rows SET note = note || '!' WHERE id % 2 = 0;
DELETE FROM whole_rows WHERE id % 3 = 0;
INSERT INTO big SELECT g, g, repeat(md5(g::text), 400) FROM generate_series(1, 20) g;
UPDATE big SET small = -small;
UPDATE big SET huge = 'short' WHERE id = 3;
INSERT INTO logs SELECT generate_series(1, 100);
INSERT INTO unpublished VALUES (1);
BEGIN;
INSERT INTO logs VALUES (101);
TRUNCATE logs;
INSERT INTO logs VALUES (7);
INSERT INTO big VALUES (100, 1, NULL);
SAVEPOINT s; INSERT INTO logs VALUES (8); ROLLBACK TO s;
COMMIT;
"""


@pytest.fixture
def stream(publisher_db: Database, tmp_path: Path) -> Stream:
    """A slot over tables of all kinds."""
    publisher_db.psql(SCHEMA)
    return Stream(publisher_db, tmp_path / "staging")


def select(database: Database, table: str) -> list[dict[str, Any]]:
    with database.connect() as connection:
        cursor = connection.execute(f"SELECT * FROM {table} ORDER BY id")
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@pytest.mark.parametrize("streaming", ["off", "on"])
@VERSIONS
def test_what_is_staged_is_what_the_publisher_holds(stream: Stream, streaming: str) -> None:
    """Every operation, type, identity and TOAST case gives the publisher's rows.

    It does so, too, when the larger transactions come while they are in progress.
    """
    log = StagingLog(stream.folder)
    with stream.receiver(log, conninfo=stream.eager(), streaming=streaming) as receiver:
        stream.database.psql(CHANGES)
        stream.await_staged(log, receiver)
    replay = Replay().apply(log.segments())
    typed = {row["id"]: row for row in replay.rows("typed")}
    assert str(typed[-1]["r"]) == "nan"
    typed[-1]["r"] = None
    stream.database.psql("UPDATE typed SET r = NULL WHERE id = -1")
    assert list(typed.values()) == select(stream.database, f"(SELECT {TYPED} FROM typed) t")
    for table in ("big", "logs", "whole_rows"):
        assert replay.rows(table) == select(stream.database, table)
    assert "unpublished" not in replay.tables
    assert replay.keys == sorted(set(replay.keys))


def test_a_transaction_larger_than_a_chunk(stream: Stream) -> None:
    """It is staged in pieces, as one segment, and visible only when it is complete."""
    log = StagingLog(stream.folder)
    with stream.receiver(log) as receiver:
        stream.database.psql(
            "INSERT INTO big SELECT g, g, repeat(md5(g::text), 32768) FROM generate_series(1, 70) g"
        )
        stream.await_staged(log, receiver)
    (segment,) = log.segments()
    assert len(segment.files) > 1
    assert segment.transactions == 1
    assert Replay().apply([segment]).rows("big") == select(stream.database, "big")


@VERSIONS
def test_a_lost_connection(stream: Stream) -> None:
    """It is a named error; the next receiver goes on, and every change is staged once."""
    log = StagingLog(stream.folder)
    with stream.receiver(log) as receiver:
        stream.database.psql("INSERT INTO logs SELECT generate_series(1, 10)")
        stream.await_staged(log, receiver)
        stream.database.psql("INSERT INTO logs SELECT generate_series(11, 20)")
        stream.database.psql(f"SELECT pg_terminate_backend({stream.slot('active_pid')})")
        stream.database.psql("INSERT INTO logs SELECT generate_series(21, 30)")
        wait_until(lambda: receiver.state is ReceiverState.FAILED, 20, "the receiver to end")
        with pytest.raises(ConnectionLostError):
            receiver.check()
    again = StagingLog(stream.folder)
    with stream.receiver(again) as receiver:
        stream.await_staged(again, receiver)
    replay = Replay().apply(again.segments())
    assert replay.rows("logs") == select(stream.database, "logs")
    assert replay.keys == sorted(set(replay.keys))


def test_a_connection_lost_inside_a_transaction(stream: Stream) -> None:
    """What came of the transaction is forgotten; it is staged whole after the reconnect."""
    gate = GatedLog(stream.folder)
    with stream.receiver(gate) as receiver:
        stream.database.psql(
            "INSERT INTO big SELECT g, g, repeat(md5(g::text), 32768) FROM generate_series(1, 70) g"
        )
        wait_until(gate.waiting.is_set, 20, "the first piece to arrive")
        stream.database.psql(f"SELECT pg_terminate_backend({stream.slot('active_pid')})")
        gate.opened.set()
        wait_until(lambda: receiver.state is ReceiverState.FAILED, 20, "the receiver to end")
    log = StagingLog(stream.folder)
    assert log.segments() == ()
    with stream.receiver(log) as receiver:
        stream.await_staged(log, receiver)
    replay = Replay().apply(log.segments())
    assert replay.rows("big") == select(stream.database, "big")
    assert replay.keys == sorted(set(replay.keys))


class GatedLog(StagingLog):
    """A log whose disk is stuck until ``opened`` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.waiting = threading.Event()
        self.opened = threading.Event()

    def append(self, decoded: Decoded) -> Segment | None:
        self.waiting.set()
        self.opened.wait(60)
        return super().append(decoded)


@pytest.mark.parametrize("queue_limit", [1, 256 * 1024 * 1024])
def test_keepalives_are_answered_while_staging_is_stuck(stream: Stream, queue_limit: int) -> None:
    """The publisher keeps the connection although nothing is staged, also with a full queue."""
    log = GatedLog(stream.folder)
    conninfo = f"{stream.database.conninfo} options='-c wal_sender_timeout=2s'"
    with stream.receiver(log, conninfo=conninfo, queue_limit=queue_limit) as receiver:
        stream.database.psql("INSERT INTO logs SELECT generate_series(1, 10)")
        wait_until(log.waiting.is_set, 20, "the stager to be stuck")
        stream.database.psql("INSERT INTO logs SELECT generate_series(11, 20)")
        pid = stream.slot("active_pid")
        replies = (
            "SELECT count(*) FROM pg_stat_replication JOIN pg_stat_activity USING (pid)"
            f" WHERE pid = {pid} AND reply_time > pg_stat_activity.backend_start + interval '4 s'"
        )
        wait_until(lambda: stream.database.psql(replies) == "1", 20, "replies after 4 seconds")
        receiver.check()
        assert log.segments() == ()
        log.opened.set()
        stream.await_staged(log, receiver)
        assert stream.slot("active_pid") == pid
    assert Replay().apply(log.segments()).rows("logs") == select(stream.database, "logs")


@VERSIONS
def test_an_idle_slot_advances(stream: Stream) -> None:
    """Traffic that is not published does not hold back the slot, and a restart goes on."""
    log = StagingLog(stream.folder)
    with stream.receiver(log):
        stream.database.psql("INSERT INTO unpublished SELECT generate_series(1, 1000)")
        position = stream.database.psql("SELECT pg_current_wal_lsn()")
        flushed = f"confirmed_flush_lsn >= '{position}'"
        wait_until(lambda: stream.slot(flushed), 20, "the slot to advance")
    assert log.segments() == ()
    again = StagingLog(stream.folder)
    with stream.receiver(again) as receiver:
        stream.database.psql("INSERT INTO logs VALUES (1)")
        stream.await_staged(again, receiver)
    assert Replay().apply(again.segments()).rows("logs") == [{"id": 1}]


def test_what_is_confirmed(stream: Stream) -> None:
    """flush is what is staged, apply what is applied; the publisher's view shows both."""
    log = StagingLog(stream.folder)
    applied = [0]
    with stream.receiver(log, lambda: applied[0]) as receiver:
        stream.database.psql("INSERT INTO logs VALUES (1)")
        stream.await_staged(log, receiver)
        end = log.segments()[-1].end_lsn
        shown = "SELECT flush_lsn - '0/0', replay_lsn - '0/0' FROM pg_stat_replication WHERE pid = "
        shown += str(stream.slot("active_pid"))

        def positions() -> tuple[int, ...]:
            return tuple(int(value) for value in stream.database.psql(shown).split("|") if value)

        wait_until(lambda: positions()[0] >= end, 20, "flush to be confirmed")
        assert positions()[1:] in ((), (0,)) or positions()[1] < end
        applied[0] = end
        receiver.wake()
        wait_until(lambda: positions()[1] >= end, 20, "apply to be confirmed")
        status = receiver.status()
        assert status.received_lsn >= end
        assert status.last_msg_send_time is not None
        assert status.last_msg_receipt_time is not None
        assert status.last_msg_receipt_time >= status.last_msg_send_time


@VERSIONS
def test_a_publication_dropped_while_streaming(stream: Stream) -> None:
    """Every version stops the stream by name: 18 only warns, and would go on without rows."""
    log = StagingLog(stream.folder)
    with stream.receiver(log) as receiver:
        stream.database.psql("INSERT INTO logs VALUES (1)")
        stream.await_staged(log, receiver)
        stream.database.psql("DROP PUBLICATION p; INSERT INTO logs VALUES (2)")
        wait_until(lambda: receiver.state is ReceiverState.FAILED, 20, "the stream to stop")
        with pytest.raises(PublicationError, match='"p"'):
            receiver.check()
    stream.database.psql("CREATE PUBLICATION p FOR TABLE logs")
    with stream.receiver(log) as receiver:
        wait_until(lambda: receiver.state is ReceiverState.FAILED, 20, "the same gap to be met")
        with pytest.raises(PublicationError) as caught:
            receiver.check()
    assert "pg_replication_origin_advance" in (caught.value.hint or "")
    position = stream.wal_position()
    with stream.receiver(log, lambda: position) as receiver:
        stream.database.psql("INSERT INTO logs VALUES (3)")
        stream.await_staged(log, receiver)
    assert Replay().apply(log.segments(position)).rows("logs") == [{"id": 3}]


@VERSIONS
def test_what_was_left_out_is_not_confirmed(stream: Stream) -> None:
    """18 warns that it leaves changes out, and goes on past them: read in one go, it is a gap."""
    log = StagingLog(stream.folder)
    reading = threading.Event()
    reading.set()

    def applied() -> int:
        assert reading.wait(60)
        return log.end_lsn

    with stream.receiver(log, applied) as receiver:
        stream.database.psql("INSERT INTO logs VALUES (1)")
        stream.await_staged(log, receiver)
        reading.clear()
        receiver.wake()
        stream.database.psql("DROP PUBLICATION p; INSERT INTO logs VALUES (2)")
        position = stream.wal_position()
        stream.await_sent(position)
        reading.set()
        wait_until(lambda: receiver.state is ReceiverState.FAILED, 20, "the stream to stop")
        with pytest.raises(PublicationError, match='"p"'):
            receiver.check()
    assert log.end_lsn < position
    assert stream.slot("(confirmed_flush_lsn - '0/0')::bigint") < position


def test_a_value_that_the_lake_cannot_hold(stream: Stream) -> None:
    """The stream stops before the transaction; nothing of it is confirmed."""
    log = StagingLog(stream.folder)
    with stream.receiver(log) as receiver:
        stream.database.psql("INSERT INTO logs VALUES (1)")
        stream.await_staged(log, receiver)
        before = stream.wal_position()
        stream.database.psql(
            "BEGIN; INSERT INTO logs VALUES (2);"
            " INSERT INTO typed (id, day) VALUES (5, 'infinity'); COMMIT"
        )
        wait_until(lambda: receiver.state is ReceiverState.FAILED, 20, "the stream to stop")
        with pytest.raises(ValueNotHeldError, match='"infinity" of column "day"'):
            receiver.check()
    assert log.end_lsn <= before
    assert stream.slot("(confirmed_flush_lsn - '0/0')::bigint") <= before
    assert Replay().apply(log.segments()).rows("logs") == [{"id": 1}]


def test_two_receivers_on_one_slot(stream: Stream, tmp_path: Path) -> None:
    """The second one is refused by name and disturbs nothing."""
    log = StagingLog(stream.folder)
    with stream.receiver(log) as receiver:
        second = Receiver(stream.options, StagingLog(tmp_path / "other"), lambda: 0)
        with pytest.raises(ObjectInUseError, match="is active for PID"):
            second.start()
        second.stop()
        stream.database.psql("INSERT INTO logs VALUES (1)")
        stream.await_staged(log, receiver)


def test_stop_frees_the_slot(stream: Stream) -> None:
    """When stop returns, the slot can be dropped at once, and what is staged is confirmed."""
    log = StagingLog(stream.folder)
    with stream.receiver(log) as receiver:
        stream.database.psql("INSERT INTO logs VALUES (1)")
        stream.await_staged(log, receiver)
    assert receiver.state is ReceiverState.STOPPED
    assert stream.slot("(confirmed_flush_lsn - '0/0')::bigint") >= log.segments()[-1].end_lsn
    assert stream.slot("active") is False


def test_a_table_that_changes_while_streaming(stream: Stream) -> None:
    """Each definition has its own file, in the order of the changes."""
    log = StagingLog(stream.folder)
    with stream.receiver(log) as receiver:
        stream.database.psql("""
            INSERT INTO logs VALUES (1);
            BEGIN;
            INSERT INTO logs VALUES (2);
            ALTER TABLE logs ADD more text DEFAULT 'x';
            INSERT INTO logs VALUES (3, 'y');
            COMMIT;
            ALTER TABLE logs DROP more;
            INSERT INTO logs VALUES (4);
        """)
        stream.await_staged(log, receiver)
    rows = Replay().apply(log.segments()).rows("logs")
    assert rows == [{"id": 1}, {"id": 2}, {"id": 3, "more": "y"}, {"id": 4}]


def test_silence_is_found_out(stream: Stream) -> None:
    """A publisher that sends nothing for wal_receiver_timeout is given up by name."""
    log = StagingLog(stream.folder)
    with stream.receiver(log, timeout=1.0) as receiver:
        pid = stream.slot("active_pid")
        wait_until(lambda: receiver.status().latest_end_lsn > 0, 20, "an answer to the question")
        receiver.check()
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: receiver.state is ReceiverState.FAILED, 20, "the stream to stop")
        finally:
            os.kill(pid, signal.SIGCONT)
        with pytest.raises(ConnectionLostError, match="wal_receiver_timeout"):
            receiver.check()


@pytest.fixture
def tls_database(server_folder: Path) -> Iterator[Database]:
    """A database of a server with TLS; needs the openssl program and Debian's server."""
    openssl = shutil.which("openssl")
    if openssl is None or "15" not in installations():
        pytest.skip("no openssl program, or no server with TLS")
    server = PostgresServer(server_folder / "tls-15", "15").start()
    request = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout server.key"
    files = server.folder / "data"
    subprocess.run([openssl, *request.split(), "-out", "server.crt"], cwd=files, check=True)
    for name in ("server.key", "server.crt"):
        owner = (files / "PG_VERSION").stat()
        os.chown(files / name, owner.st_uid, owner.st_gid)
        (files / name).chmod(0o600)
    server.psql("ALTER SYSTEM SET ssl = on")
    server.psql("SELECT pg_reload_conf()")
    yield Database(server, server.create_database())
    server.remove()


def test_over_tls(tls_database: Database, tmp_path: Path) -> None:
    """Small commits and rows larger than any buffer arrive at once, although TLS reads ahead."""
    tls_database.psql(SCHEMA)
    stream = Stream(tls_database, tmp_path / "staging")
    log = StagingLog(stream.folder)
    conninfo = f"{tls_database.conninfo} sslmode=require"
    with stream.receiver(log, conninfo=conninfo) as receiver:
        for number in range(1, 11):
            tls_database.psql(
                f"INSERT INTO big SELECT {number}, 1, repeat(md5('x'), 1000 * {number} * {number})"
            )
            stream.await_staged(log, receiver, timeout=5)
    assert Replay().apply(log.segments()).rows("big") == select(tls_database, "big")
