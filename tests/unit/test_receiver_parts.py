# SPDX-License-Identifier: Apache-2.0
"""The receiver's parts without a server: cutting chunks, the queue, what is confirmed."""

from __future__ import annotations

import struct
import threading
from itertools import pairwise

import numpy as np
import pytest
from psycopg.conninfo import conninfo_to_dict

from penstock.client.chunks import BULK, Chunk, ChunkBuilder, ChunkQueue
from penstock.client.connection import publisher_conninfo
from penstock.client.feedback import (
    Keepalive,
    Progress,
    moment,
    parse_keepalive,
    status_update,
    xlog_position,
)
from penstock.errors import InvalidParameterError, ProtocolError
from tests.support import pgoutput_bytes as wire

ROW = wire.insert(5, ["1"])


def build(builder: ChunkBuilder, *messages: bytes) -> None:
    """Some one by one, some together, as reads happen to end."""
    builder.add(wire.received(*messages[:1]))
    builder.add(wire.received(*messages[1:]))


def content(chunk: Chunk | None) -> list[bytes]:
    assert chunk is not None
    buffer, offsets = chunk.framed()
    return [bytes(buffer[a:b]) for a, b in pairwise(offsets)]


def test_chunks_are_cut_at_commits() -> None:
    """A chunk ends with the last Commit that has arrived; the rest begins the next one."""
    builder = ChunkBuilder()
    first, second = wire.transaction(8, ROW, end_lsn=16), wire.transaction(24, ROW, ROW)
    build(builder, *first, *second[:2])
    assert (builder.inside, builder.committed_lsn) == (True, 16)
    assert content(builder.cut()) == first
    assert builder.cut() is None
    build(builder, *second[2:])
    assert (builder.inside, builder.committed_lsn) == (False, 32)
    assert content(builder.cut()) == second
    assert builder.cut() is None


def test_a_large_transaction_is_cut_inside() -> None:
    """A transaction that is larger than a chunk comes in pieces, none of it lost."""
    builder = ChunkBuilder(limit=60)
    messages = wire.transaction(8, *[ROW] * 10)
    pieces: list[bytes] = []
    sizes = []
    for message in messages:
        if builder.add(wire.received(message)) and (chunk := builder.cut()):
            sizes.append(len(chunk.messages))
            pieces += content(chunk)
    pieces += content(builder.cut())
    assert pieces == messages
    assert len(sizes) > 1
    assert max(sizes) < 60 + len(ROW)


def test_a_short_commit_is_a_protocol_error() -> None:
    """The receiving thread reads one field of Commit, and not beyond its end."""
    with pytest.raises(ProtocolError):
        build(ChunkBuilder(), b"C\0\0")


def test_chunks_are_cut_at_the_ends_of_stream_blocks() -> None:
    """Whole blocks of a transaction in progress are handed on; its end is its Stream Commit's."""
    builder = ChunkBuilder()
    first, second = wire.block(7, ROW, ROW, first=True), wire.block(7, ROW)
    build(builder, *first, *second[:2])
    assert (builder.inside, builder.committed_lsn) == (True, 0)
    assert content(builder.cut()) == first
    assert builder.cut() is None
    build(builder, *second[2:])
    assert (builder.inside, builder.committed_lsn) == (False, 0)
    ends = [wire.stream_abort(7, 8), wire.stream_commit(7, 16, 24), wire.stream_abort(9, 9)]
    build(builder, *ends)
    assert (builder.inside, builder.committed_lsn) == (False, 24)
    assert content(builder.cut()) == [*second, *ends]
    with pytest.raises(ProtocolError):
        build(builder, ends[1][:10])


def one(message: bytes) -> Chunk:
    builder = ChunkBuilder()
    build(builder, *wire.transaction(8, message))
    chunk = builder.cut()
    assert chunk is not None
    return chunk


def test_the_queue_joins_what_waits() -> None:
    """The stager takes everything that has arrived, in order, as one chunk."""
    queue = ChunkQueue()
    parts = [one(wire.insert(5, [str(number)])) for number in range(3)]
    for part in parts:
        queue.put(part)
    assert content(queue.take()) == [message for part in parts for message in content(part)]


def test_the_queue_says_when_it_is_full() -> None:
    """It is full from its limit on, and not any more when something was taken."""
    queue = ChunkQueue(limit=1)
    assert not queue.full
    queue.put(one(ROW))
    states = [queue.full]
    queue.take()
    states.append(queue.full)
    assert states == [True, False]


def test_what_little_there_is_waits_for_more() -> None:
    """While the stager lingers, bulk ends that once the publisher has sent all it has."""
    queue = ChunkQueue()
    little, bulk = one(ROW), one(wire.insert(5, ["x" * BULK]))
    taken: list[Chunk | None] = []
    stager = threading.Thread(target=lambda: taken.append(queue.take(lambda: 600)))
    queue.put(little)
    queue.sent_all()
    stager.start()
    queue.put(bulk)
    assert taken == []
    queue.sent_all()
    stager.join(60)
    assert [content(each) for each in taken] == [content(little) + content(bulk)]


def test_lingering_has_an_end() -> None:
    """With no more to come, and with a publisher that never says that it has sent all."""
    queue = ChunkQueue()
    for sent_all in (True, False):
        queue.put(one(ROW))
        if sent_all:
            queue.sent_all()
        assert content(queue.take(lambda: 0.01)) == content(one(ROW))


def test_the_queue_can_be_closed() -> None:
    """A waiting stager is released; what is left is not staged, since it comes again."""
    queue = ChunkQueue()
    taken: list[Chunk | None] = []
    stager = threading.Thread(target=lambda: taken.append(queue.take()))
    stager.start()
    queue.close()
    stager.join(60)
    assert taken == [None]
    queue.put(one(ROW))
    assert queue.take() is None


@pytest.mark.parametrize(
    ("progress", "staged", "applied", "confirmed", "advance"),
    [
        # received, committed, inside       staged  applied  write, flush, apply
        (Progress(90, 28, inside=False), 28, 28, (90, 28, 28), True),
        (Progress(90, 28, inside=False), 90, 28, (90, 90, 90), False),
        (Progress(90, 28, inside=False), 28, 10, (90, 28, 10), True),
        (Progress(90, 28, inside=False), 10, 10, (90, 10, 10), False),
        (Progress(90, 28, inside=True), 28, 28, (90, 28, 28), False),
        (Progress(28, 28, inside=False), 28, 28, (28, 28, 28), False),
        (Progress(10, 0, inside=False), 28, 28, (28, 28, 28), False),
    ],
)
def test_what_is_confirmed(
    progress: Progress, staged: int, applied: int, confirmed: tuple[int, ...], advance: bool
) -> None:
    """Never more than is durable (flush) or visible (apply); an idle stream follows received."""
    assert progress.positions(staged, applied) == confirmed
    assert progress.may_advance(staged) is advance


def test_frames() -> None:
    """Headers are read, status updates written, as the protocol says."""
    assert parse_keepalive(struct.pack(">cQqB", b"k", 9, 5, 1)) == Keepalive(9, 5, True)
    assert xlog_position(struct.pack(">cQQq", b"w", 7, 9, 5) + ROW) == (9, 5)
    update = status_update(3, 2, 1, 946_684_800_000_005, True)
    assert update == struct.pack(">cQQQqB", b"r", 3, 2, 1, 5, 1)
    assert moment(1_500_000).isoformat() == "2000-01-01T00:00:01.500000+00:00"


@pytest.mark.parametrize("frame", [b"k", bytes(17), bytes(19)])
def test_wrong_keepalives(frame: bytes) -> None:
    """A keepalive has one length."""
    with pytest.raises(ProtocolError):
        parse_keepalive(frame)


def test_a_time_beyond_all_years() -> None:
    """A sending time that no calendar has is the publisher's fault."""
    with pytest.raises(ProtocolError):
        moment(2**62)


def added(conninfo: str, **options: str) -> dict[str, object]:
    full = publisher_conninfo(conninfo, replication=True, **options)
    return dict(conninfo_to_dict(full))


def test_what_is_added_to_a_connection_string(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own options stand in front, so that ours win; the user's timeouts are kept."""
    monkeypatch.delenv("PGUSER", raising=False)
    given = added("host=h options='-c work_mem=1MB' connect_timeout=3", application_name="sub")
    assert str(given["options"]).startswith("-c work_mem=1MB -c datestyle=ISO")
    assert given["connect_timeout"] == "3"
    assert given["replication"] == "database"
    assert given["fallback_application_name"] == "sub"
    assert "user" not in given


@pytest.mark.parametrize(
    ("conninfo", "environment", "user"),
    [
        ("host=h", {}, "postgres"),
        ("host=h user=me", {}, "me"),
        ("postgres://me@h/db", {}, "me"),
        ("service=s", {}, None),
        ("host=h", {"PGUSER": "env"}, None),
    ],
)
def test_who_connects(
    monkeypatch: pytest.MonkeyPatch, conninfo: str, environment: dict[str, str], user: str | None
) -> None:
    """Without a user in string, service or environment it is the control database's OS user."""
    for name in ("PGUSER", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert added(conninfo, default_user="postgres").get("user") == user


def test_a_broken_connection_string() -> None:
    """libpq's own message may quote a part of it, so ours does not."""
    with pytest.raises(InvalidParameterError) as caught:
        publisher_conninfo("host=h canary", replication=False)
    assert "canary" not in str(caught.value)


def test_chunks_are_read_in_place() -> None:
    """The decoder gets the chunk's own bytes, not a copy."""
    chunk = one(ROW)
    buffer, offsets = chunk.framed()
    assert buffer.dtype == np.uint8
    assert offsets.tolist() == [0, *chunk.ends]
