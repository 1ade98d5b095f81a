# SPDX-License-Identifier: Apache-2.0
"""What one read of the replication stream brought: frames into messages, compiled.

In:   XLogData and keepalive frames one after the other, and where each ends.
Out:  pgoutput's messages without the frames around them, which of them begin or end something, the
      position of the last of them, and the keepalives.

A read of a busy stream brings hundreds of frames, three for each small transaction.  So Python does
nothing for each but fetch it from libpq.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np

from penstock.client.feedback import KEEPALIVE, XLOG_DATA, XLOG_HEADER_SIZE, xlog_position
from penstock.compiled import Bytes, Ints, compiled
from penstock.errors import ProtocolError
from penstock.pgoutput.messages import (
    BEGIN,
    BEGIN_PREPARE,
    COMMIT,
    COMMIT_PREPARED,
    PREPARE,
    ROLLBACK_PREPARED,
    STREAM_ABORT,
    STREAM_COMMIT,
    STREAM_PREPARE,
    STREAM_START,
    STREAM_STOP,
    commit_end_lsn,
)

_BEGINS, _ENDS, _COMMITS, _PREPARES = range(1, 5)

_LIMITS = np.zeros(256, np.uint8)
"""By letter, what a message begins or ends, 0 for nothing."""
_LIMITS[[BEGIN, BEGIN_PREPARE, STREAM_START]] = _BEGINS
_LIMITS[[STREAM_STOP, STREAM_ABORT]] = _ENDS
_LIMITS[[COMMIT, COMMIT_PREPARED, STREAM_COMMIT]] = _COMMITS
_LIMITS[[PREPARE, STREAM_PREPARE, ROLLBACK_PREPARED]] = _PREPARES

# Fields of ``found``: counts, and indexes of messages or frames, -1 for none.
_MESSAGES, _SIZE, _KEEPALIVES, _LAST, _FAULT, _LIMIT, _END, _COMMIT, _PREPARE = range(9)
_FIELDS = 9


class Messages(NamedTuple):
    """Messages of pgoutput; message i of ``buffer`` ends at ``ends[i]``, where i + 1 begins.

    ``whole``: how many there are up to the last end of a transaction, or of a block of one.
    ``inside``: whether one has begun behind that; None when none begins or ends here.
    ``committed_lsn``, ``prepared_lsn``: the end of the last transaction that commits here, and of
    the last PREPARE or ROLLBACK PREPARED, 0 for none.
    """

    buffer: memoryview
    ends: Ints
    whole: int
    inside: bool | None
    committed_lsn: int
    prepared_lsn: int


class Read(NamedTuple):
    """What was read; ``position`` is that of its last message, as ``xlog_position`` has it.

    ``ends_idle``: the last frame is a keepalive, which a walsender sends when it has sent all.
    """

    messages: Messages
    position: tuple[int, int] | None
    keepalives: list[bytes]
    ends_idle: bool


def unframe(frames: bytearray, ends: array[int]) -> Read:
    """Take frames apart; frame i ends at ``ends[i]``.

    ProtocolError for a frame of another kind, and for a Commit that is cut off.
    """
    count = len(ends)
    offsets = np.zeros(count + 1, np.int64)
    offsets[1:] = ends
    buffer, message_ends = np.empty(len(frames), np.uint8), np.empty(count, np.int64)
    keepalives, found = np.empty(count, np.int64), np.full(_FIELDS, -1, np.int64)
    source = np.frombuffer(frames, np.uint8)
    _unframe(source, offsets, _LIMITS, buffer, message_ends, keepalives, found)
    if found[_FAULT] >= 0:
        raise ProtocolError("unknown message in the replication stream")
    view, last = memoryview(frames), found[_LAST]
    position = None if last < 0 else xlog_position(view[offsets[last] :])
    answers = [bytes(view[offsets[i] : ends[i]]) for i in keepalives[: found[_KEEPALIVES]]]
    messages = _messages(buffer.data, message_ends, found)
    return Read(messages, position, answers, ends_idle=bool(last < count - 1))


def _messages(buffer: memoryview, ends: Ints, found: Ints) -> Messages:
    def end_lsn(index: int) -> int:
        if index < 0:
            return 0
        message = buffer[ends[index - 1] if index else 0 : ends[index]]
        # Stream Commit has the same fields as Commit, after an xid of four bytes.
        return commit_end_lsn(message, 4 if message[0] == STREAM_COMMIT else 0)

    limit, end = found[_LIMIT], found[_END]
    return Messages(
        buffer[: found[_SIZE]],
        ends[: found[_MESSAGES]],
        int(end) + 1,
        None if limit < 0 else bool(limit > end),
        end_lsn(found[_COMMIT]),
        end_lsn(found[_PREPARE]),
    )


@compiled
def _unframe(
    frames: Bytes,
    offsets: Ints,
    limits: Bytes,
    buffer: Bytes,
    ends: Ints,
    keepalives: Ints,
    found: Ints,
) -> None:
    messages = size = answers = 0
    for frame in range(len(offsets) - 1):
        begin, end = offsets[frame], offsets[frame + 1]
        if frames[begin] == KEEPALIVE:
            keepalives[answers] = frame
            answers += 1
            continue
        begin += XLOG_HEADER_SIZE
        if frames[offsets[frame]] != XLOG_DATA or begin >= end:
            found[_FAULT] = frame
            return
        limit = limits[frames[begin]]
        if limit:
            found[_LIMIT] = messages
            if limit != _BEGINS:
                found[_END] = messages
            if limit == _COMMITS:
                found[_COMMIT] = messages
            elif limit == _PREPARES:
                found[_PREPARE] = messages
        for at in range(begin, end):
            buffer[size] = frames[at]
            size += 1
        ends[messages] = size
        messages += 1
        found[_LAST] = frame
    found[_MESSAGES], found[_SIZE], found[_KEEPALIVES] = messages, size, answers
