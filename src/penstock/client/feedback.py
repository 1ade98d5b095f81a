# SPDX-License-Identifier: Apache-2.0
"""The replication stream's own frames, and what a subscriber may confirm; no I/O.

In:   headers of XLogData (``w``) and keepalive (``k``) frames; how far staging and apply are.
Out:  standby status updates (``r``).

    write   received          flush   durable in staging          apply   visible in the lake

With nothing under way flush and apply follow what was received, so that an idle slot advances
and the publisher can remove its write-ahead log.  Something is under way from the first message
of a transaction until its end is staged (for apply: until it is applied).  Such a confirmed
position belongs to no transaction, so it is recorded in staging before it is sent.

Of a streamed transaction nothing counts as received before its Stream Commit, and nothing as
durable before that is staged.  Between its blocks positions may advance, as in PostgreSQL's apply
worker (get_flush_position in worker.c): its commit record lies after everything that was received
before Stream Commit, the publisher sends again, whole, what commits after the confirmed position,
and keeps the write-ahead log from the begin of the oldest open transaction.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from penstock.errors import ProtocolError
from penstock.pgoutput.messages import POSTGRES_EPOCH_US

XLOG_DATA, KEEPALIVE = ord("w"), ord("k")
XLOG_HEADER_SIZE = 25

_XLOG_HEADER = struct.Struct(">xQQq")
_KEEPALIVE = struct.Struct(">xQqB")
_STATUS_UPDATE = struct.Struct(">cQQQqB")


class Keepalive(NamedTuple):
    """The publisher's position; ``reply`` when it wants a status update at once."""

    wal_end: int
    sent_us: int
    reply: bool


def parse_keepalive(frame: bytes | memoryview) -> Keepalive:
    """Read a keepalive frame; ProtocolError when it is not one."""
    try:
        wal_end, sent, reply = _KEEPALIVE.unpack(frame)
    except struct.error as error:
        raise ProtocolError("invalid keepalive message in the replication stream") from error
    return Keepalive(wal_end, sent, bool(reply))


def xlog_position(frame: bytes | memoryview) -> tuple[int, int]:
    """An XLogData frame's position (the later of its two) and its sending time."""
    start, end, sent = _XLOG_HEADER.unpack_from(frame)
    return max(start, end), sent


def status_update(write: int, flush: int, apply: int, now_us: int, reply: bool) -> bytes:
    """A standby status update; ``now_us`` in microseconds since 1970."""
    return _STATUS_UPDATE.pack(b"r", write, flush, apply, now_us - POSTGRES_EPOCH_US, reply)


def moment(sent_us: int) -> datetime:
    """A frame's time, in microseconds since 2000, as a datetime; ProtocolError beyond 9999."""
    try:
        return datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=sent_us)
    except OverflowError as error:
        raise ProtocolError("invalid time in the replication stream") from error


@dataclass
class Progress:
    """How far the stream is; positions are LSNs, 0 when not known.

    ``received`` is the publisher's position in the last frame, ``committed`` the end of the last
    transaction that was received whole, ``prepared`` the end of the last PREPARE or ROLLBACK
    PREPARED, which must be staged, too, but leaves nothing to apply, ``inside`` whether a
    transaction, or a block of one, is under way.
    """

    received: int
    committed: int = 0
    inside: bool = False
    prepared: int = 0

    def may_advance(self, staged: int) -> bool:
        """Whether nothing is under way up to ``received``, and staging does not say so yet."""
        ended = max(self.committed, self.prepared)
        return not self.inside and ended <= staged < self.received

    def positions(self, staged: int, applied: int) -> tuple[int, int, int]:
        """What to confirm as write, flush and apply.

        ``staged``: durable up to here.  ``applied``: the end of the last applied transaction.
        """
        settled = applied >= self.committed and not self.inside
        return max(self.received, staged), staged, staged if settled else min(applied, staged)
