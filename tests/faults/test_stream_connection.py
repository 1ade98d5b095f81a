# SPDX-License-Identifier: Apache-2.0
"""The stream over a bad network, without a node: whatever happens, every change is staged once.

Receivers are made one after the other, as a worker does; what is staged is replayed and compared
with the publisher.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.client.connection import answers_within, open_publisher, run
from penstock.errors import ConnectionLostError, PenstockError
from penstock.staging.log import StagingLog
from tests.support.fix_servers import Database
from tests.support.proxy import Proxy
from tests.support.streaming import Replay, Stream
from tests.support.waits import wait_until

TIMEOUT = 1.0  # wal_receiver_timeout of these receivers, in seconds
Fault = Callable[[Proxy, Stream, list[PenstockError]], None]


@pytest.fixture
def proxy(publisher_db: Database) -> Iterator[Proxy]:
    """A proxy in front of the publisher."""
    with Proxy(publisher_db.server.port) as made:
        yield made


@pytest.fixture
def stream(publisher_db: Database, tmp_path: Path) -> Stream:
    """A slot over one table."""
    publisher_db.psql(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t"
    )
    return Stream(publisher_db, tmp_path / "staging")


def write(stream: Stream, first: int, count: int = 20, size: int = 10) -> None:
    """Transactions of one row each, the last of which changes and deletes some of them."""
    stream.database.psql(
        "".join(
            f"INSERT INTO t VALUES ({n}, repeat('x', {size}));" for n in range(first, first + count)
        )
        + f"INSERT INTO t SELECT g, repeat(md5(g::text), {size}) FROM generate_series"
        f"({first + count}, {first + 2 * count}) g;"
        f"UPDATE t SET v = 'new' WHERE id = {first + count}; DELETE FROM t WHERE id = {first + 2}"
    )


def _cut(proxy: Proxy, stream: Stream, errors: list[PenstockError]) -> None:
    proxy.cut()
    wait_until(lambda: errors, 20, "the loss to be noticed")


def _cut_inside(proxy: Proxy, stream: Stream, errors: list[PenstockError]) -> None:
    """Ten times at a random byte; each row is larger than what may pass."""
    for number in range(10):
        proxy.cut_after(random.Random(number).randint(1, 3000))
        write(stream, 1000 + 100 * number, size=100)
        wait_until(lambda: not proxy.waits, 20, "the cut")


def _half_open(proxy: Proxy, stream: Stream, errors: list[PenstockError]) -> None:
    proxy.freeze()
    write(stream, 1000)
    found = wait_until(lambda: errors, 60, "the silence to be noticed")
    assert "wal_receiver_timeout" in found[0].message
    proxy.thaw()


def _slow(proxy: Proxy, stream: Stream, errors: list[PenstockError]) -> None:
    """Slower than the timeout for all of it, but never silent for so long."""
    proxy.slow(200_000)
    write(stream, 1000, count=40, size=300)
    stream.database.psql("INSERT INTO t VALUES (999, repeat(md5('slow'), 10000))")


def _refused(proxy: Proxy, stream: Stream, errors: list[PenstockError]) -> None:
    with proxy.refused():
        write(stream, 1000)
        wait_until(lambda: len(errors) > 3, 20, "some attempts to connect")
    assert "could not connect to the publisher" in errors[-1].message


def _publisher_crash(proxy: Proxy, stream: Stream, errors: list[PenstockError]) -> None:
    write(stream, 1000)
    stream.database.server.restart("immediate")


def _walsender_terminated(proxy: Proxy, stream: Stream, errors: list[PenstockError]) -> None:
    stream.database.psql(f"SELECT pg_terminate_backend({stream.slot('active_pid')})")
    wait_until(lambda: errors, 20, "the end to be noticed")


@pytest.mark.parametrize(
    ("fault", "lost"),
    [
        (_cut, True),
        (_cut_inside, True),
        (_half_open, True),
        (_slow, False),
        (_refused, True),
        (_publisher_crash, True),
        (_walsender_terminated, True),
    ],
)
def test_every_change_is_staged_once(
    stream: Stream, proxy: Proxy, fault: Fault, lost: bool
) -> None:
    """What was lost is a lost connection by name, and what is staged is what the publisher has."""
    log = StagingLog(stream.folder)
    # A publisher that cannot see the client's end keeps the slot for wal_sender_timeout.
    conninfo = proxy.conninfo(stream.database, "options='-c wal_sender_timeout=2s'")
    with stream.kept(log, conninfo=conninfo, timeout=TIMEOUT, status_interval=0.2) as errors:
        write(stream, 0)
        stream.await_kept(log, errors)
        fault(proxy, stream, errors)
        write(stream, 100_000)
        stream.await_kept(log, errors)
        assert bool(errors) is lost, errors
    replay = Replay().apply(log.segments())
    with stream.database.connect() as connection:
        rows = connection.execute("SELECT id, v FROM t ORDER BY id").fetchall()
    assert [(row["id"], row["v"]) for row in replay.rows("t")] == rows
    assert replay.keys == sorted(set(replay.keys))


def test_a_publisher_that_stops_answering_while_the_stream_begins(
    stream: Stream, proxy: Proxy
) -> None:
    """Wherever in the start-up it falls silent, the attempt ends by name and the next one works."""
    log = StagingLog(stream.folder)
    conninfo = proxy.conninfo(stream.database, "connect_timeout=2")
    open_publisher(conninfo, replication=True).finish()
    wait_until(lambda: not proxy.links, 20, "the end of the connection")
    connected = proxy.sent
    with stream.receiver(log, conninfo=conninfo):
        started = proxy.sent - connected
    for count in (connected + 10, (connected + started) // 2):
        wait_until(lambda: not proxy.links, 20, "the end of the connection before")
        proxy.freeze_after(count)
        with stream.kept(log, conninfo=conninfo, timeout=TIMEOUT) as errors:
            wait_until(lambda: not proxy.waits, 20, "the proxy to fall silent")
            found = wait_until(lambda: errors, 20, "the silence to be noticed")
            assert isinstance(found[0], ConnectionLostError)
            assert "did not answer within 1 s" in found[0].message
            proxy.thaw()
            write(stream, 1000 * count)
            stream.await_kept(log, errors)


def test_an_answer_that_does_not_come() -> None:
    """A block that waits for an answer ends by name; one that is in time is left alone."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(ConnectionLostError, match=r"did not answer within 0\.1 s"):
            with answers_within(ours.fileno(), 0.1):
                assert ours.recv(1) == b""
                raise ConnectionLostError("the end of the stream")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with answers_within(ours.fileno(), 60):
            theirs.send(b"x")
        assert ours.recv(1) == b"x"


def test_a_slow_publisher_is_no_lost_one(stream: Stream, proxy: Proxy) -> None:
    """Commands that come byte by byte, but in time, work as ever."""
    proxy.slow(4000)
    connection = open_publisher(proxy.conninfo(stream.database), replication=True)
    assert run(connection, "SELECT 1") == [("1",)]
    connection.finish()
