# SPDX-License-Identifier: Apache-2.0
"""Transactions that arrive before they commit: spooled, and given on whole at their end.

In:   messages as they arrive (protocols 2 to 4), transactions in progress among them.
Out:  the messages of protocol 1 that a publisher without streaming would have sent: whole
      transactions in commit order, for the decoder, which knows nothing of streams.

    S(1) I1 E   S(2) I2 E   B C(16)   S(1) I3 E   c(2, 24)   A(1)
    `- spool 1  `- spool 2  given on  `- spool 1  B I2 C     spool 1 is removed

At a subtransaction's abort its xid is noted, and its messages are left out when the transaction is
given on.  That holds for its Relation messages, too: a publisher that reports an abort describes
every relation again before the transaction's next row (pgoutput_stream_abort in pgoutput.c).

A prepared transaction (protocol 3) arrives at its PREPARE.  It is kept durably (prepared.py), and
given on at COMMIT PREPARED in the same way:

    b(3) I4 P   B C(32)   K(3, 40)          b(3) I4 P   r(3)
    `- kept     given on  B I4 C            `- kept     removed

The definition of a relation that was received last counts (described.py): a transaction that is
given on late must not bring back an older one for the transactions behind it.

One thread; memory is bounded by MAX_CHUNK, whatever is in progress.
"""

from __future__ import annotations

import shutil
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from penstock.client.chunks import MAX_CHUNK
from penstock.client.described import Described, DescribedRelations, relation_oid
from penstock.client.gathered import Gathered
from penstock.client.prepared import PreparedTransactions
from penstock.client.spool import SUFFIX, Spool
from penstock.compiled import Bytes, Ints
from penstock.errors import ProtocolError
from penstock.pgoutput import messages, scan
from penstock.pgoutput.streamed import XID_SIZE, strip_xids

FOLDER = "spool"
"""Below the subscription's staging folder."""

_MARKS = np.zeros(256, np.bool_)
_MARKS[
    [
        messages.STREAM_START,
        messages.STREAM_STOP,
        messages.STREAM_COMMIT,
        messages.STREAM_ABORT,
        messages.BEGIN_PREPARE,
        messages.PREPARE,
        messages.COMMIT_PREPARED,
        messages.ROLLBACK_PREPARED,
        messages.STREAM_PREPARE,
        messages.RELATION,
    ]
] = True
"""The messages that are looked at here; there are few of them."""


class _InProgress:
    """What is known of one transaction in progress.

    ``aborted``: the subtransactions that have ended so.  ``described``: which relation was
    described in which subtransaction, with the number and the message of the last description.
    """

    def __init__(self, folder: Path, xid: int) -> None:
        self.xid = xid
        self.spool = Spool(folder / f"{xid}{SUFFIX}")
        self.aborted = array("q")
        self.described: dict[tuple[int, int], Described] = {}

    def abort(self, subxid: int) -> None:
        self.aborted.append(subxid)
        self.described = {key: known for key, known in self.described.items() if key[0] != subxid}

    def messages(self) -> Iterator[tuple[Bytes, Ints]]:
        """Its messages without xids, in pieces; ProtocolError for what cannot be among them."""
        aborted = np.sort(np.array(self.aborted, np.int64))
        for buffer, offsets in self.spool.pieces():
            fault, stripped, kept = strip_xids(buffer, offsets, aborted)
            if fault[0] != scan.OK:
                raise ProtocolError(
                    "the publisher sent invalid replication messages",
                    detail=f"{scan.FAULTS[fault[0]].capitalize()}.",
                    where=f"transaction {self.xid}, streamed while in progress",
                )
            yield stripped, kept


class StreamedTransactions:
    """Turns one connection's messages into whole transactions; ``limit`` bytes for each piece.

    ``advance`` is called with an LSN up to which everything that was given on, and everything that
    was prepared, is durable.
    """

    def __init__(
        self, staging_folder: Path, advance: Callable[[int], None], limit: int = MAX_CHUNK
    ) -> None:
        self._folder = staging_folder / FOLDER
        self._advance = advance
        self._limit = limit
        self._after_lsn = 0
        self._prepared = PreparedTransactions(staging_folder)
        self._preparing: Spool | None = None
        self._in_progress: dict[int, _InProgress] = {}
        self._current: _InProgress | None = None
        self._relations = DescribedRelations()

    def forget(self, after_lsn: int = 0) -> None:
        """Remove all that is in progress, also what another process has left.

        What was prepared stays.  Commits before ``after_lsn`` are known already.
        """
        self._after_lsn = after_lsn
        self._prepared.forget_open()
        self._preparing = None
        self._in_progress = {}
        self._current = None
        if self._folder.exists():
            shutil.rmtree(self._folder)

    def whole(self, buffer: Bytes, offsets: Ints) -> Iterator[tuple[Bytes, Ints]]:
        """Take messages; give on whole transactions, in pieces of about the limit.

        Message i is ``buffer[offsets[i]:offsets[i + 1]]``.  ProtocolError when the messages do not
        follow the protocol, DiskFullError when there is no room for a spool.
        """
        gathered = Gathered(self._limit)
        done = 0
        for index in map(int, np.flatnonzero(_MARKS[buffer[offsets[:-1]]])):
            message = bytes(buffer[offsets[index] : offsets[index + 1]])
            if message[0] == messages.RELATION:
                yield from self._describe(gathered, message)
                continue
            yield from self._pass_on(gathered, buffer, offsets[done : index + 1])
            done = index + 1
            yield from self._mark(gathered, message)
        yield from self._pass_on(gathered, buffer, offsets[done:])
        yield from gathered.take()

    def _pass_on(
        self, gathered: Gathered, buffer: Bytes, offsets: Ints
    ) -> Iterator[tuple[Bytes, Ints]]:
        """Messages between two marks: into the spool of the open block, or given on."""
        if len(offsets) < 2:
            return
        if self._current is not None:
            self._current.spool.append(buffer, offsets)
        elif self._preparing is not None:
            self._preparing.append(buffer, offsets)
        else:
            yield from gathered.add(buffer, offsets)

    def _mark(self, gathered: Gathered, message: bytes) -> Iterator[tuple[Bytes, Ints]]:
        kind = message[0]
        in_block = (self._current is not None, self._preparing is not None)
        if in_block != (kind == messages.STREAM_STOP, kind == messages.PREPARE):
            raise ProtocolError(
                "the publisher sent invalid replication messages",
                detail="The blocks of streamed or prepared transactions are not whole.",
            )
        if kind == messages.STREAM_START:
            self._start(*messages.parse_stream_start(message))
        elif kind == messages.STREAM_STOP:
            self._current = None
        elif kind == messages.STREAM_COMMIT:
            yield from self._commit(gathered, messages.parse_stream_commit(message))
        elif kind == messages.STREAM_ABORT:
            self._abort(*messages.parse_stream_abort(message))
        elif kind == messages.BEGIN_PREPARE:
            self._begin_prepare(messages.parse_begin_prepare(message))
        elif kind == messages.COMMIT_PREPARED:
            yield from self._commit_prepared(gathered, messages.parse_commit_prepared(message))
        elif kind == messages.ROLLBACK_PREPARED:
            yield from gathered.take()
            self._rollback_prepared(*messages.parse_rollback_prepared(message))
        else:
            yield from gathered.take()
            self._prepare(kind, *messages.parse_prepare(message))

    def _start(self, xid: int, first: bool) -> None:
        if first:
            self._remove(xid)
            self._in_progress[xid] = _InProgress(self._folder, xid)
        elif xid not in self._in_progress:
            raise _unknown(xid)
        self._current = self._in_progress[xid]

    def _commit(self, gathered: Gathered, end: messages.LateCommit) -> Iterator[tuple[Bytes, Ints]]:
        transaction = self._in_progress.get(end.xid)
        if transaction is None:
            raise _unknown(end.xid)
        yield from self._give_on(gathered, end, transaction.spool.bytes, transaction.messages())
        for message in self._relations.merge(transaction.described):
            yield from gathered.add_message(message)
        self._remove(end.xid)

    def _give_on(
        self,
        gathered: Gathered,
        end: messages.LateCommit,
        size: int,
        pieces: Iterator[tuple[Bytes, Ints]],
    ) -> Iterator[tuple[Bytes, Ints]]:
        if not gathered.has_room(size):
            # Whole transactions are staged by themselves, not as part of an unfinished one.
            yield from gathered.take()
        yield from gathered.add_message(end.begin())
        for buffer, offsets in pieces:
            yield from gathered.add(buffer, offsets)
        yield from gathered.add_message(end.commit())

    def _abort(self, xid: int, subxid: int) -> None:
        if xid == subxid:
            self._remove(xid)
        elif xid in self._in_progress:
            self._in_progress[xid].abort(subxid)

    def _begin_prepare(self, xid: int) -> None:
        self._preparing = self._prepared.begin(xid)
        known = self._relations.all()
        if known:  # it may be given on to a decoder that does not know them
            offsets = np.zeros(len(known) + 1, np.int64)
            np.cumsum([len(message) for message in known], out=offsets[1:])
            self._preparing.append(np.frombuffer(b"".join(known), np.uint8), offsets)

    def _prepare(self, kind: int, xid: int, end_lsn: int) -> None:
        """Keep a transaction; what was given on before has been staged."""
        self._preparing = None
        if kind == messages.STREAM_PREPARE:
            transaction = self._in_progress.get(xid)
            if transaction is None:
                raise _unknown(xid)
            spool = self._prepared.begin(xid)
            for buffer, offsets in transaction.messages():
                spool.append(buffer, offsets)
            self._remove(xid)
        self._prepared.keep(xid)
        self._advance(end_lsn)

    def _commit_prepared(
        self, gathered: Gathered, end: messages.LateCommit
    ) -> Iterator[tuple[Bytes, Ints]]:
        spool = self._prepared.get(end.xid)
        if spool is None:
            if end.commit_lsn < self._after_lsn:
                return
            raise _unknown(end.xid)
        described: set[int] = set()
        pieces = _noting_relations(spool.pieces(), described)
        yield from self._give_on(gathered, end, spool.bytes, pieces)
        for message in self._relations.known(described):
            yield from gathered.add_message(message)
        yield from gathered.take()  # the publisher does not send it again: first it is staged
        spool.remove()

    def _rollback_prepared(self, xid: int, end_lsn: int) -> None:
        """Drop a prepared transaction; what was given on before has been staged."""
        spool = self._prepared.get(xid)
        if spool is not None:
            spool.remove()
        self._advance(end_lsn)

    def _remove(self, xid: int) -> None:
        transaction = self._in_progress.pop(xid, None)
        if transaction is not None:
            transaction.spool.remove()

    def _describe(self, gathered: Gathered, message: bytes) -> Iterator[tuple[Bytes, Ints]]:
        if self._current is None:
            self._relations.learn(message)
            if self._preparing is not None:  # it holds for others before that one is given on
                yield from gathered.add_message(message)
            return
        if len(message) < 1 + XID_SIZE:
            raise ProtocolError("invalid Relation message")
        subxid = int.from_bytes(message[1 : 1 + XID_SIZE])
        plain = message[:1] + message[1 + XID_SIZE :]
        described = (self._relations.number(), plain)
        self._current.described[subxid, relation_oid(plain)] = described


def _noting_relations(
    pieces: Iterator[tuple[Bytes, Ints]], oids: set[int]
) -> Iterator[tuple[Bytes, Ints]]:
    """The same pieces; the relations that are described in them are added to ``oids``."""
    for buffer, offsets in pieces:
        for index in np.flatnonzero(buffer[offsets[:-1]] == messages.RELATION):
            oids.add(relation_oid(bytes(buffer[offsets[index] : offsets[index + 1]])))
        yield buffer, offsets


def _unknown(xid: int) -> ProtocolError:
    return ProtocolError(
        "the publisher sent invalid replication messages",
        detail=f"Transaction {xid} goes on or ends without its begin.",
    )
