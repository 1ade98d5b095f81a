# SPDX-License-Identifier: Apache-2.0
"""Prepared transactions: kept at PREPARE over every restart, given on at COMMIT PREPARED."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.change.relation import Column, Relation
from penstock.client.chunks import ChunkBuilder
from penstock.client.feedback import Progress
from penstock.client.prepared import FOLDER
from penstock.client.streamed import StreamedTransactions
from penstock.errors import ProtocolError
from penstock.pgoutput.decode import Decoder
from tests.support import pgoutput_bytes as wire

TABLE = Relation(5, "s", "t", "d", (Column("a", 23, -1, True),))
WIDER = Relation(5, "s", "t", "d", (*TABLE.columns, Column("b", 25, -1, False)))
DESCRIBED, DESCRIBED_WIDER = wire.describe(TABLE), wire.describe(WIDER)


def row(number: int) -> bytes:
    return wire.insert(5, [str(number)])


class Subscriber:
    """One connection after the other on one folder; ``events`` are what was staged, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[bytes | int] = []
        self.connect()

    def connect(self, after_lsn: int = 0) -> None:
        self._streamed = StreamedTransactions(self.folder, self.events.append)
        self._streamed.forget(after_lsn)

    def give(self, *messages: bytes) -> None:
        for buffer, offsets in self._streamed.whole(*wire.framed(messages)):
            self.events += [bytes(buffer[a:b]) for a, b in pairwise(offsets)]

    @property
    def kept(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob(f"{FOLDER}/*"))


@pytest.fixture
def subscriber(tmp_path: Path) -> Subscriber:
    return Subscriber(tmp_path)


def ended(xid: int, commit_lsn: int, *changes: bytes) -> list[bytes]:
    return [wire.begin(commit_lsn, xid=xid), *changes, wire.commit(commit_lsn, commit_lsn + 8)]


def test_it_comes_at_commit_prepared(subscriber: Subscriber) -> None:
    """The position of the PREPARE is told when it is kept; its rows come with the commit's LSN."""
    before = wire.transaction(8, DESCRIBED, row(1))
    subscriber.give(*before, *wire.prepared(3, 24, row(2)), *wire.transaction(40, row(3)))
    assert subscriber.events == [*before, 32, *wire.transaction(40, row(3))]
    assert subscriber.kept == ["3.spool"]
    subscriber.events.clear()
    subscriber.give(wire.prepare(3, 56, 64, b"K"))
    # Its definitions are its own, and then those of the connection hold again.
    assert subscriber.events == [*ended(3, 56, DESCRIBED, row(2)), DESCRIBED]
    assert subscriber.kept == []


def test_it_survives_a_restart(subscriber: Subscriber) -> None:
    """Another connection, which has described nothing, gets it whole, with its definition."""
    subscriber.give(*wire.transaction(8, DESCRIBED, row(1)), *wire.prepared(3, 24, row(2)))
    subscriber.connect(32)
    subscriber.events.clear()
    later = wire.transaction(40, DESCRIBED_WIDER, wire.insert(5, ["3", "x"]))
    subscriber.give(*later, wire.prepare(3, 56, 64, b"K"))
    last = wire.transaction(72, wire.insert(5, ["4", "y"]))
    subscriber.give(*last)
    messages = [event for event in subscriber.events if isinstance(event, bytes)]
    decoded = Decoder(32).feed(*wire.framed(messages))
    found = [
        (relation, [record["new"] for record in table.to_pylist()])
        for relation, table in decoded.tables
    ]
    # In the order of the commits, so under the wider definition twice.
    assert found == [
        (WIDER, [{"a": 3, "b": "x"}]),
        (TABLE, [{"a": 2}]),
        (WIDER, [{"a": 4, "b": "y"}]),
    ]


def test_a_relation_that_it_describes_is_known_to_others(subscriber: Subscriber) -> None:
    """A publisher describes a relation once, and be it in a prepared transaction."""
    subscriber.give(*wire.prepared(3, 24, DESCRIBED, row(2)), *wire.transaction(40, row(3)))
    assert subscriber.events == [DESCRIBED, 32, *wire.transaction(40, row(3))]


def test_rollback_prepared(subscriber: Subscriber) -> None:
    """Nothing comes and nothing is left; the rollback's position is told."""
    subscriber.give(*wire.prepared(3, 24, DESCRIBED, row(2)), wire.rollback_prepared(3, 32, 48))
    assert subscriber.events == [DESCRIBED, 32, 48]
    assert subscriber.kept == []
    subscriber.give(wire.rollback_prepared(3, 32, 48))  # sent twice after a crash


def test_a_streamed_transaction_is_prepared(subscriber: Subscriber) -> None:
    """It is kept without its aborted subtransactions."""
    subscriber.give(
        *wire.block(3, DESCRIBED, row(1), (31, row(2)), first=True),
        wire.stream_abort(3, 31),
        *wire.block(3, row(4)),
        wire.prepare(3, 24, 32, b"p"),
    )
    assert subscriber.events == [32]
    assert subscriber.kept == ["3.spool"]
    subscriber.connect(32)
    subscriber.give(wire.prepare(3, 56, 64, b"K"))
    assert subscriber.events == [32, *ended(3, 56, DESCRIBED, row(1), row(4))]


def test_an_empty_one(subscriber: Subscriber) -> None:
    """Without messages it is kept and comes empty."""
    subscriber.give(*wire.prepared(3, 24), wire.prepare(3, 56, 64, b"K"))
    assert subscriber.events == [32, *ended(3, 56)]


def test_what_was_not_prepared_is_dropped(subscriber: Subscriber) -> None:
    """A connection that ends before PREPARE leaves nothing, and it comes again."""
    first, *rest = wire.prepared(3, 24, DESCRIBED, row(2), row(3))
    subscriber.give(first, *rest[:2])
    assert subscriber.kept == ["3.open"]
    subscriber.connect()
    assert subscriber.kept == []
    subscriber.give(first, *rest, first, *rest, wire.prepare(3, 56, 64, b"K"))
    given = [*ended(3, 56, DESCRIBED, DESCRIBED, row(2), row(3)), DESCRIBED]
    assert subscriber.events[-len(given) :] == given


def test_a_commit_that_is_staged_already(subscriber: Subscriber) -> None:
    """It is passed over; a later one of an unknown transaction is the publisher's fault."""
    subscriber.connect(after_lsn=60)
    subscriber.give(wire.prepare(3, 56, 64, b"K"))
    assert subscriber.events == []
    with pytest.raises(ProtocolError):
        subscriber.give(wire.prepare(4, 60, 68, b"K"))


@pytest.mark.parametrize(
    "messages",
    [
        wire.prepared(3, 8)[:1] * 2,
        wire.prepared(3, 8)[1:],
        [*wire.prepared(3, 8)[:1], b"E"],
        [*wire.prepared(3, 8)[:1], wire.prepare(3, 8, 16, b"K")],
        [*wire.block(3, first=True)[:1], wire.prepare(3, 8, 16, b"p")],
        [wire.prepare(3, 8, 16, b"p")],
        [wire.begin_prepare(3, 8, 16)[:-1]],
        [wire.begin_prepare(3, 8, 16) + b"more\0"],
        [b"b\0"],
        [wire.rollback_prepared(3, 8, 16)[:20]],
    ],
)
def test_wrong_messages(subscriber: Subscriber, messages: Sequence[bytes]) -> None:
    """Blocks that are not whole and messages cut short are named."""
    with pytest.raises(ProtocolError):
        subscriber.give(*messages)


def test_what_is_confirmed_after_a_prepare() -> None:
    """A position behind it must be durable, but there is nothing of it to apply."""
    builder = ChunkBuilder()
    for message in [*wire.transaction(8, row(1)), *wire.prepared(3, 24, row(2))]:
        builder.add(wire.received(message))
    assert (builder.inside, builder.committed_lsn, builder.prepared_lsn) == (False, 16, 32)
    progress = Progress(90, builder.committed_lsn, inside=False, prepared=builder.prepared_lsn)
    assert not progress.may_advance(16)
    assert progress.may_advance(32)
    assert progress.positions(32, 16) == (90, 32, 32)
    builder.add(wire.received(wire.rollback_prepared(3, 32, 48)))
    assert (builder.committed_lsn, builder.prepared_lsn) == (16, 48)
    builder.add(wire.received(wire.prepare(4, 56, 64, b"K")))
    assert builder.committed_lsn == 64
