# SPDX-License-Identifier: Apache-2.0
"""Transactions that come in progress: what is given on is what would have come at their commits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.change.mapping import TYPED
from penstock.change.relation import Column, Relation
from penstock.client.chunks import ChunkBuilder, ChunkQueue
from penstock.client.stager import Decoding, Stager
from penstock.client.streamed import FOLDER, StreamedTransactions
from penstock.errors import DiskFullError, ProtocolError
from penstock.pgoutput.decode import Decoded, Decoder
from penstock.pgoutput.forms import ask_nobody
from penstock.staging.log import StagingLog
from penstock.staging.segment import Segment
from tests.support import pgoutput_bytes as wire

TABLE = Relation(5, "s", "t", "d", (Column("a", 23, -1, True),))
WIDER = Relation(5, "s", "t", "d", (*TABLE.columns, Column("b", 25, -1, False)))
DESCRIBED, DESCRIBED_WIDER = wire.describe(TABLE), wire.describe(WIDER)


def ignore(_: int) -> None:
    """Nobody waits for a position here."""


def row(number: int) -> bytes:
    return wire.insert(5, [str(number)])


def give(streamed: StreamedTransactions, messages: Sequence[bytes]) -> list[list[bytes]]:
    """What is given on for some messages, piece by piece."""
    if not messages:
        return []
    return [
        [bytes(buffer[a:b]) for a, b in pairwise(offsets)]
        for buffer, offsets in streamed.whole(*wire.framed(messages))
    ]


def whole(folder: Path, messages: Sequence[bytes], at_once: int = 1000) -> list[bytes]:
    """What is given on in all, when so many messages arrive at once; no spool may be left."""
    streamed = StreamedTransactions(folder, ignore)
    given: list[bytes] = []
    for begin in range(0, len(messages), at_once):
        for piece in give(streamed, messages[begin : begin + at_once]):
            given += piece
    assert list(folder.glob(f"{FOLDER}/*")) == []
    return given


def ended(xid: int, commit_lsn: int, *changes: bytes) -> list[bytes]:
    """A whole transaction as a publisher without streaming sends it."""
    return [
        wire.begin(commit_lsn, xid=xid),
        *changes,
        wire.commit(commit_lsn, commit_lsn + 8),
    ]


@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 1000])
def test_interleaved_transactions_come_in_commit_order(tmp_path: Path, at_once: int) -> None:
    """Each comes whole at its commit, behind what has committed before, however it arrives."""
    messages = [
        *wire.block(1, DESCRIBED, row(10), first=True),
        *wire.block(2, DESCRIBED, row(20), row(21), first=True),
        *wire.transaction(16, DESCRIBED, row(30)),
        *wire.block(1, row(11)),
        wire.stream_commit(2, 32, 40),
        *wire.transaction(48, row(31)),
        *wire.block(1, wire.truncate(5), wire.delete(5, ["1"]), row(12)),
        wire.stream_commit(1, 64, 72),
    ]
    assert whole(tmp_path, messages, at_once) == [
        *wire.transaction(16, DESCRIBED, row(30)),
        *ended(2, 32, DESCRIBED, row(20), row(21)),
        *wire.transaction(48, row(31)),
        *ended(
            1, 64, DESCRIBED, row(10), row(11), wire.truncate(5), wire.delete(5, ["1"]), row(12)
        ),
    ]


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("at_once", [1, 4, 1000])
def test_an_aborted_subtransaction_leaves_no_trace(
    tmp_path: Path, at_once: int, parallel: bool
) -> None:
    """Its rows and descriptions are left out wherever they stand; all others are kept in order."""
    messages = [
        *wire.block(
            1, DESCRIBED, row(1), (101, row(2)), (102, row(3)), (101, row(4)), row(5), first=True
        ),
        *wire.block(2, (201, DESCRIBED), (201, row(90)), first=True),
        *wire.block(1, (101, DESCRIBED_WIDER), (103, row(6)), (101, row(7))),
        wire.stream_abort(1, 103, parallel=parallel),
        wire.stream_abort(1, 101, parallel=parallel),
        *wire.block(1, DESCRIBED, row(8), (104, row(9))),
        wire.stream_commit(1, 64, 72),
        wire.stream_commit(2, 80, 88),
    ]
    assert whole(tmp_path, messages, at_once) == [
        *ended(1, 64, DESCRIBED, row(1), row(3), row(5), DESCRIBED, row(8), row(9)),
        *ended(2, 80, DESCRIBED, row(90)),
    ]


def test_an_aborted_transaction_leaves_no_trace(tmp_path: Path) -> None:
    """Nothing of it is given on and its spool is gone; another's abort is nothing to others."""
    messages = [
        *wire.block(1, DESCRIBED, row(1), (101, row(2)), first=True),
        *wire.block(2, DESCRIBED, row(3), first=True),
        wire.stream_abort(1, 101),
        wire.stream_abort(1, 1),
        wire.stream_abort(7, 7),
        wire.stream_abort(7, 8),
        wire.stream_commit(2, 32, 40),
    ]
    assert whole(tmp_path, messages) == ended(2, 32, DESCRIBED, row(3))


def test_a_transaction_without_published_rows(tmp_path: Path) -> None:
    """A streamed transaction is announced although nothing of it is published: it comes empty."""
    messages = [*wire.block(1, first=True), *wire.block(1), wire.stream_commit(1, 16, 24)]
    assert whole(tmp_path, messages) == ended(1, 16)
    only_aborted = [
        *wire.block(1, (101, row(1)), first=True),
        wire.stream_abort(1, 101),
        wire.stream_commit(1, 16, 24),
    ]
    assert whole(tmp_path, only_aborted) == ended(1, 16)


def test_an_origin_message_inside_a_block(tmp_path: Path) -> None:
    """It has no xid, unlike all others, and is not needed."""
    origin = b"O" + bytes(8) + b"other\0"
    start, *rest = wire.block(1, DESCRIBED, row(1), first=True)
    messages = [start, origin, *rest, wire.stream_commit(1, 16, 24)]
    assert whole(tmp_path, messages) == ended(1, 16, DESCRIBED, row(1))


def test_a_large_transaction_comes_in_pieces(tmp_path: Path) -> None:
    """No piece is much larger than the limit, and what committed before is not held up by it."""
    streamed = StreamedTransactions(tmp_path, ignore, limit=200)
    for first in range(10):
        assert not give(streamed, wire.block(1, *[row(first)] * 10, first=first == 0))
    before = wire.transaction(16, DESCRIBED, row(1))
    pieces = give(streamed, [*before, wire.stream_commit(1, 32, 40), *wire.transaction(48, row(2))])
    assert pieces[0] == before
    assert len(pieces) > 5
    assert max(sum(map(len, piece)) for piece in pieces) <= 200 + len(wire.begin(0))
    rows = [row(first) for first in range(10) for _ in range(10)]
    given = [message for piece in pieces[1:] for message in piece]
    assert given == [*ended(1, 32, *rows), *wire.transaction(48, row(2))]


def test_small_transactions_come_together(tmp_path: Path) -> None:
    """Commits that arrived together are decoded and staged together."""
    messages = [
        *wire.block(1, DESCRIBED, row(1), first=True),
        *wire.block(2, DESCRIBED, row(2), first=True),
        wire.stream_commit(1, 16, 24),
        *wire.transaction(32, DESCRIBED, row(3)),
        wire.stream_commit(2, 48, 56),
    ]
    assert len(give(StreamedTransactions(tmp_path, ignore), messages)) == 1


def test_the_definition_that_was_received_last_counts(tmp_path: Path) -> None:
    """A late commit with an older definition does not misguide the transactions behind it.

    The publisher counts the later description as known, so it does not repeat it.
    """
    messages = [
        *wire.block(1, DESCRIBED, row(1), first=True),
        *wire.transaction(16, DESCRIBED_WIDER, wire.insert(5, ["2", "x"])),
        wire.stream_commit(1, 32, 40),
        *wire.transaction(48, wire.insert(5, ["3", "y"])),
    ]
    given = whole(tmp_path, messages)
    decoded = Decoder().feed(*wire.framed(given))
    found = [
        (relation, [record["new"] for record in table.to_pylist()])
        for relation, table in decoded.tables
    ]
    # In the order of the commits, so under the wider definition twice.
    assert found == [
        (WIDER, [{"a": 2, "b": "x"}]),
        (TABLE, [{"a": 1}]),
        (WIDER, [{"a": 3, "b": "y"}]),
    ]


def test_the_last_definition_may_be_a_streamed_one(tmp_path: Path) -> None:
    """Of two streamed transactions the later description counts, whichever commits last."""
    messages = [
        *wire.block(1, DESCRIBED, row(1), first=True),
        *wire.block(2, (201, DESCRIBED_WIDER), (202, DESCRIBED), first=True),
        wire.stream_abort(2, 202),
        wire.stream_commit(2, 16, 24),
        wire.stream_commit(1, 32, 40),
    ]
    assert whole(tmp_path, messages) == [
        *ended(2, 16, DESCRIBED_WIDER),
        *ended(1, 32, DESCRIBED, row(1)),
        DESCRIBED_WIDER,
    ]
    late = [*messages[:-2], messages[-1], messages[-2]]
    assert whole(tmp_path, late) == [
        *ended(1, 32, DESCRIBED, row(1)),
        *ended(2, 16, DESCRIBED_WIDER),
    ]


def test_what_a_crash_left_is_removed(tmp_path: Path) -> None:
    """Spools do not outlive their connection: the publisher sends from the begin again."""
    crashed = StreamedTransactions(tmp_path, ignore)
    give(crashed, wire.block(1, DESCRIBED, row(1), first=True))
    give(crashed, wire.block(2, row(2), first=True)[:2])
    assert len(list(tmp_path.glob(f"{FOLDER}/*"))) == 2
    again = StreamedTransactions(tmp_path, ignore)
    again.forget()
    assert not (tmp_path / FOLDER).exists()
    messages = [*wire.block(1, DESCRIBED, row(1), first=True), wire.stream_commit(1, 16, 24)]
    assert give(again, messages) == [ended(1, 16, DESCRIBED, row(1))]


def test_no_room_for_a_spool(tmp_path: Path) -> None:
    """A full disk is a named error."""
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "1.spool").symlink_to("/dev/full")
    with pytest.raises(DiskFullError):
        give(StreamedTransactions(tmp_path, ignore), wire.block(1, DESCRIBED, row(1), first=True))


class ClosingLog(StagingLog):
    """A log that ends the stream when the first piece of a transaction is written."""

    queue: ChunkQueue
    appended = 0

    def append(self, decoded: Decoded) -> Segment | None:
        self.appended += 1
        self.queue.close()
        return super().append(decoded)


def test_the_end_of_the_stream_does_not_wait_for_a_large_transaction(tmp_path: Path) -> None:
    """A transaction of several pieces is left where it is: it comes again whole."""
    log = ClosingLog(tmp_path)
    log.queue = ChunkQueue()
    failed: list[Exception] = []
    stager = Stager(
        log.queue, log, lambda: 0, lambda: None, failed.append, Decoding(TYPED, ask_nobody)
    )
    builder = ChunkBuilder()
    wide = wire.insert(5, ["1", "x" * 1024 * 1024])
    for message in [
        *wire.block(1, DESCRIBED_WIDER, *[wide] * 80, first=True),
        wire.stream_commit(1, 16, 24),
    ]:
        builder.add(wire.received(message))
    chunk = builder.cut()
    assert chunk is not None
    log.queue.put(chunk)
    stager.start(0)
    stager.join()
    assert failed == []
    assert log.appended == 1
    assert log.segments() == ()
    assert not (tmp_path / FOLDER).exists()


@pytest.mark.parametrize(
    "messages",
    [
        [b"E"],
        [*wire.block(1, row(1), first=False)],
        [wire.stream_commit(1, 16, 24)],
        [b"S\0\0"],
        [*wire.block(1, first=True)[:1], *wire.block(2, first=True)],
        [*wire.block(1, first=True)[:1], wire.stream_commit(1, 16, 24)],
        [*wire.block(1, first=True), wire.stream_commit(1, 16, 24)[:-1]],
        [*wire.block(1, first=True), wire.stream_abort(1, 1)[:-1]],
        [*wire.block(1, first=True)[:1], b"R\0\0", b"E"],
        [*wire.block(1, first=True)[:1], b"I\0\0", b"E", wire.stream_commit(1, 16, 24)],
        [
            *wire.block(1, first=True)[:1],
            wire.begin(16) + bytes(4),
            b"E",
            wire.stream_commit(1, 16, 24),
        ],
    ],
)
def test_wrong_streams_are_refused(tmp_path: Path, messages: list[bytes]) -> None:
    """Blocks that are not whole, unknown transactions and messages cut short are named."""
    with pytest.raises(ProtocolError):
        give(StreamedTransactions(tmp_path, ignore), messages)
