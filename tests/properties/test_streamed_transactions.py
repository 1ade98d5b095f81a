# SPDX-License-Identifier: Apache-2.0
"""Streams that Hypothesis makes up, against the slow and obvious account of what must come out."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.streamed import FOLDER, StreamedTransactions
from tests.support import pgoutput_bytes as wire

XIDS = st.integers(1, 4)
SUBXIDS = st.integers(0, 3)

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("block"), XIDS, st.lists(SUBXIDS, max_size=4)),
        st.tuples(st.just("abort"), XIDS, SUBXIDS),
        st.tuples(st.just("commit"), XIDS, st.just(0)),
        st.tuples(st.just("whole"), XIDS, st.lists(st.just(0), max_size=3)),
    ),
    max_size=40,
)


class Publisher:
    """What a publisher sends for some actions, and what a subscriber must make of it."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.expected: list[bytes] = []
        self._open: dict[int, list[tuple[int, bytes]]] = {}
        self._aborted: set[int] = set()
        self._lsn = 0
        self._row = 0

    def act(self, action: str, xid: int, detail: int | list[int]) -> None:
        if isinstance(detail, list):
            rows = [(self._subxid(xid, sub), self._next_row()) for sub in detail]
            (self._block if action == "block" else self._whole)(xid, rows)
        elif xid in self._open:
            (self._abort if action == "abort" else self._commit)(xid, detail)

    def _subxid(self, xid: int, sub: int) -> int:
        """A subtransaction that was aborted never has another change."""
        subxid = 100 * xid + sub
        return subxid if sub and subxid not in self._aborted else xid

    def _next_row(self) -> bytes:
        self._row += 1
        return wire.insert(5, [str(self._row)])

    def _block(self, xid: int, rows: list[tuple[int, bytes]]) -> None:
        self.sent += wire.block(xid, *rows, first=xid not in self._open)
        self._open.setdefault(xid, []).extend(rows)

    def _whole(self, xid: int, rows: list[tuple[int, bytes]]) -> None:
        self._lsn += 16
        whole = wire.transaction(self._lsn, *[row for _, row in rows])
        self.sent += whole
        self.expected += whole

    def _abort(self, xid: int, sub: int) -> None:
        subxid = 100 * xid + sub if sub else xid
        self._aborted.add(subxid)
        self.sent.append(wire.stream_abort(xid, subxid))
        self._open[xid] = [pair for pair in self._open[xid] if pair[0] != subxid]
        if not sub:
            del self._open[xid]

    def _commit(self, xid: int, _: int) -> None:
        self._lsn += 16
        self.sent.append(wire.stream_commit(xid, self._lsn, self._lsn + 8))
        rows = [row for _, row in self._open.pop(xid)]
        self.expected += [
            wire.begin(self._lsn, xid=xid),
            *rows,
            wire.commit(self._lsn, self._lsn + 8),
        ]


@settings(max_examples=150, deadline=None)
@given(ACTIONS, st.integers(1, 50), st.integers(60, 2000))
def test_what_comes_out(
    actions: list[tuple[str, int, int | list[int]]], at_once: int, limit: int
) -> None:
    """Whatever is mixed, cut and aborted: the transactions that commit, whole, in commit order."""
    publisher = Publisher()
    for action in actions:
        publisher.act(*action)
    given_on: list[bytes] = []
    largest = limit  # what arrives at once is not cut
    with tempfile.TemporaryDirectory() as folder:
        streamed = StreamedTransactions(Path(folder), lambda lsn: None, limit)
        for begin in range(0, len(publisher.sent), at_once):
            part = publisher.sent[begin : begin + at_once]
            largest = max(largest, sum(map(len, part)))
            for buffer, offsets in streamed.whole(*wire.framed(part)):
                given_on += [bytes(buffer[a:b]) for a, b in pairwise(offsets)]
                assert len(buffer) <= largest
        streamed.forget()
        assert not (Path(folder) / FOLDER).exists()
    assert given_on == publisher.expected
