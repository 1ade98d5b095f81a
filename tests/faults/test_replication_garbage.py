# SPDX-License-Identifier: Apache-2.0
"""A broken replication client stops nobody: a good subscriber goes on, and stays right.

Ordinary connections have their tests in scenarios/test_relay_wire.py and test_relay_startup.py.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import psycopg
import pytest

from penstock.wire.framing import Message
from tests.support.fix_servers import Database, Servers, drop_database
from tests.support.node import Node
from tests.support.published import conninfo, subscribed_to, wait_applied, wait_same
from tests.support.raw_stream import RawStream, message, status
from tests.support.waits import wait_until

STARTUP = b"\x00\x03\x00\x00user\0replica\0database\0lake\0replication\0database\0\0"
STARTUP = struct.pack(">I", len(STARTUP) + 4) + STARTUP

IN_STREAM = [
    message(b"d"),
    message(b"d", status()[5:15]),
    message(b"d", b"z123"),
    message(b"d", b"h" + b"\xff" * 24),
    message(b"Q", b"SELECT 1\0"),
    message(b"P", b"\0SELECT 1\0\0\0"),
    message(b"S"),
    message(b"H"),
    message(b"F", b"\0" * 10),
    message(b"f", b"no\0"),
    message(b"p", b"secret\0"),
    b"\x01\0\0\0\4",
    b"d\xff\xff\xff\xff",
    b"d\x7f\xff\xff\xff",
    b"d\0\0\0\3",
    message(b"c") + message(b"Q", b"START_REPLICATION SLOT\0"),
    message(b"X"),
    status(2**63 - 1) * 3 + status()[:7],
]


@pytest.fixture(scope="module")
def good(node: Node, servers: Servers) -> Iterator[Database]:
    """A PostgreSQL that subscribes to the node, from the first test to the last."""
    server = servers()
    database = Database(server, server.create_database())
    table = "CREATE TABLE rg (id int PRIMARY KEY, v text)"
    node.psql(
        f"{table}; CREATE TABLE rg_large (id int, v text); CREATE PUBLICATION rg FOR TABLE rg"
    )
    node.psql("CREATE PUBLICATION rg_large FOR TABLE rg_large")
    database.psql(table)
    with subscribed_to(node, database, "rg", "rg", "copy_data = false"):
        yield database
        errors = "SELECT apply_error_count FROM pg_stat_subscription_stats WHERE subname = 'rg'"
        assert database.psql(errors) == "0"
    drop_database(server, database.name)
    node.psql("DROP PUBLICATION rg, rg_large; DROP TABLE rg, rg_large")


def goes_on(node: Node, good: Database, note: str) -> None:
    """A commit reaches the good subscriber."""
    node.psql(f"INSERT INTO rg SELECT coalesce(max(id), 0) + 1, '{note}' FROM rg")
    wait_applied(node, "rg")
    newest = good.psql("SELECT v FROM rg ORDER BY id DESC LIMIT 1")
    assert newest == note


def test_half_open_connections(node: Node, good: Database) -> None:
    """500 that stop within their startup packet, or say random bytes, keep nobody out."""
    draw = random.Random(6)
    held = []
    for number in range(500):
        conn = socket.create_connection((node.host, node.port), timeout=20)
        half = STARTUP[: draw.randrange(len(STARTUP))]
        conn.sendall(draw.randbytes(draw.randrange(1, 60)) if number % 5 == 0 else half)
        held.append(conn)
    goes_on(node, good, "half-open")
    with RawStream(conninfo(node)) as another:
        another.start("rg_another", "rg")
        goes_on(node, good, "another")
        assert b"another" in b"".join(each.raw for each in _up_to_commit(another))
    for conn in held:
        conn.close()


def _up_to_commit(stream: RawStream) -> list[Message]:
    frames = []
    while (each := stream.receive()) is not None:
        frames.append(each)
        if each.body[25:26] == b"C":
            break
    return frames


def test_garbage_inside_of_a_stream(node: Node, good: Database) -> None:
    """Wrong types, lengths and status updates, CopyFail, Query, random bytes: that session ends."""
    draw = random.Random(7)
    randoms = [draw.randbytes(draw.randrange(5, 200)) for _ in range(6)]
    gone = "SELECT FROM pg_replication_slots WHERE slot_name = 'rg_garbage'"
    for sent in [*IN_STREAM, *randoms]:
        with RawStream(conninfo(node)) as stream:
            stream.start("rg_garbage", "rg")
            stream.socket.sendall(sent)
            stream.socket.shutdown(socket.SHUT_WR)
            stream.until(b"\0")
        wait_until(lambda: node.psql(gone) == "", 20, "the session's slot to be gone")
    goes_on(node, good, "garbage inside")
    for place in range(5):  # before a stream: a command that never ends, random bytes
        with RawStream(conninfo(node)) as stream:
            stream.socket.sendall([b"Q\x3f\xff\xff\xfeSTART_REP", draw.randbytes(90)][place % 2])
            stream.socket.shutdown(socket.SHUT_WR)
            stream.until(b"\0")
    goes_on(node, good, "garbage before")


ROWS, WIDTH = 400_000, 100
PIECES = 150_000_000  # bytes of memory for some pieces of 65,536 such rows, less than for all


def test_a_subscriber_that_stops_reading(node: Node, good: Database) -> None:
    """A large commit waits in bounded memory, others go on, and it is whole when it is read."""
    with RawStream(conninfo(node)) as slow:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        slow.start("rg_slow", "rg_large")
        node.psql(
            f"INSERT INTO rg_large SELECT g, repeat('x', {WIDTH}) FROM generate_series(1, {ROWS}) g"
        )
        process = psutil.Process(node.pid)
        before = process.memory_info().rss
        for number in range(3):
            goes_on(node, good, f"while one is slow {number}")
        assert process.memory_info().rss - before < PIECES
        inserts = 0
        while (each := slow.receive()) is not None and each.body[25:26] != b"C":
            inserts += each.body[25:26] == b"I"
        assert inserts == ROWS


def test_a_subscriber_that_says_nothing(node: Node, good: Database) -> None:
    """Without any feedback wal_sender_timeout ends the stream, and the slot stays where it was."""
    quick = f"{conninfo(node)} options='-c wal_sender_timeout=1s'"
    with RawStream(quick) as silent:
        silent.query("CREATE_REPLICATION_SLOT rg_silent LOGICAL pgoutput (SNAPSHOT 'nothing')")
        silent.until(b"Z")
        silent.resume("rg_silent", "rg")
        goes_on(node, good, "while one is silent")
        frames = [each.body for each in silent.until(b"\0")]
        assert any(b"while one is silent" in frame for frame in frames)
        assert any(frame[:1] == b"k" and frame[-1] == 1 for frame in frames), "it was not asked"
    free = "SELECT active FROM pg_replication_slots WHERE slot_name = 'rg_silent'"
    wait_until(lambda: node.psql(free) == "f", 20, "the slot to be free")
    with RawStream(conninfo(node)) as again:
        again.resume("rg_silent", "rg")
        assert b"while one is silent" in b"".join(each.raw for each in _up_to_commit(again))
    wait_until(lambda: node.psql(free) == "f", 20, "the slot to be free")
    node.psql("SELECT pg_drop_replication_slot('rg_silent')")
    wait_same(node, good, "rg", "SELECT * FROM rg")


@contextmanager
def definitions_locked(node: Node) -> Iterator[None]:
    """For the block, no stream can find out what is published of a table that it meets first."""
    lines = (node.home / "control" / "data" / "postmaster.pid").read_text().splitlines()
    control = psycopg.connect(
        host=lines[4],
        port=int(lines[3]),
        dbname="lake",
        user="penstock",
        passfile=str(node.home / "pgpass"),
    )
    with control as conn:
        conn.execute("LOCK TABLE penstock.definition IN ACCESS EXCLUSIVE MODE")
        yield


def test_both_timeouts_while_a_commit_is_expanded(node: Node, good: Database) -> None:
    """Short wal_receiver_timeout and wal_sender_timeout: the worker stays, and has the row."""
    age = (
        "SELECT FROM pg_stat_activity WHERE backend_type = 'logical replication apply worker'"
        " AND now() - backend_start > interval '5 s'"
    )
    node.psql("ALTER ROLE replica SET wal_sender_timeout = '2s'")
    good.psql("ALTER SYSTEM SET wal_receiver_timeout = '2s'")
    try:
        good.psql("SELECT pg_reload_conf(); ALTER SUBSCRIPTION rg DISABLE")
        wait_until(lambda: good.psql(age) == "" and not _is_streaming(node), 20, "it to be off")
        node.psql("INSERT INTO rg SELECT coalesce(max(id), 0) + 1, 'held up' FROM rg")
        with definitions_locked(node):
            good.psql("ALTER SUBSCRIPTION rg ENABLE")
            with good.connect() as conn:
                wait_until(lambda: conn.execute(age.encode()).rowcount == 1, 60, "5 s of a worker")
            assert good.psql("SELECT FROM rg WHERE v = 'held up'") == ""
        goes_on(node, good, "not held up")
        assert good.psql("SELECT count(*) FROM rg WHERE v = 'held up'") == "1"
    finally:
        node.psql("ALTER ROLE replica RESET wal_sender_timeout")
        good.psql("ALTER SYSTEM RESET wal_receiver_timeout")
        good.psql("SELECT pg_reload_conf()")


def _is_streaming(node: Node) -> bool:
    active = "SELECT active FROM pg_replication_slots WHERE slot_name = 'rg'"
    return node.psql(active) == "t"


def test_a_silent_subscriber_with_much_waiting(node: Node, good: Database) -> None:
    """wal_sender_timeout ends its session also while the walsender's own end cannot be read."""
    quick = f"{conninfo(node)} options='-c wal_sender_timeout=1s'"
    with RawStream(quick) as silent:
        silent.start("rg_waiting", "rg_large")
        with definitions_locked(node):
            node.psql("INSERT INTO rg_large VALUES (1, 'held up')")
            node.psql(f"""SELECT count(pg_logical_emit_message(false, 'rg', repeat('x', {1 << 20})))
                FROM generate_series(1, 24)""")
            frames = [each.body for each in silent.until(b"\0")]
        assert not any(b"held up" in frame for frame in frames)
    goes_on(node, good, "after one with much waiting")
