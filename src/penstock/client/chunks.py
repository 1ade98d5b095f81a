# SPDX-License-Identifier: Apache-2.0
"""Messages on their way from the connection to staging: cut at commits, bounded in size.

In:   pgoutput messages, those of one read at a time, from the receiving thread.
Out:  chunks of whole transactions and whole blocks of transactions in progress (Stream Start to
      Stream Stop) for the staging thread; what is larger than MAX_CHUNK comes as several chunks,
      of which only the last ends with its Commit or Stream Stop.

The queue has a limit in bytes.  It never refuses a chunk: the receiving thread stops reading
while the queue is ``full``, so it holds at most the limit and what libpq had read already.
"""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from penstock.client.frames import Messages
from penstock.compiled import Bytes, Ints

MAX_CHUNK = 32 * 1024 * 1024
"""Bytes.  Some 300,000 rows: large enough that the cost of a segment is nothing beside them,
small enough that decoding it needs some 100 MB."""

BULK = 64 * 1024
"""Bytes that are worth a segment as soon as the publisher has nothing more to send."""

BEHIND = 3
"""How many times as long ``take`` lingers while the publisher has more to send."""

QUEUE_LIMIT = 256 * 1024 * 1024
"""Bytes that wait for staging before the receiver stops reading."""


@dataclass
class Chunk:
    """Messages one after the other; message i ends at ``ends[i]`` and begins where i-1 ends."""

    messages: bytearray = field(default_factory=bytearray)
    ends: array[int] = field(default_factory=lambda: array("q"))

    def framed(self) -> tuple[Bytes, Ints]:
        """The buffer and the n + 1 offsets that the decoder takes."""
        offsets = np.zeros(len(self.ends) + 1, np.int64)
        offsets[1:] = self.ends
        return np.frombuffer(self.messages, np.uint8), offsets


class ChunkBuilder:
    """Collects messages and cuts chunks; one thread.

    ``inside``: a transaction, or a block of one in progress, has begun and not ended.
    ``committed_lsn``: the end of the last transaction that has committed, 0 before the first one.
    ``prepared_lsn``: the end of the last PREPARE or ROLLBACK PREPARED, the same.
    """

    def __init__(self, limit: int = MAX_CHUNK) -> None:
        self._limit = limit
        self.inside = False
        self.committed_lsn = 0
        self.prepared_lsn = 0
        self._chunk = Chunk()
        self._whole_bytes = 0
        self._whole_messages = 0

    def add(self, messages: Messages) -> bool:
        """Add messages at the end; whether it is time to cut."""
        chunk, before = self._chunk, len(self._chunk.messages)
        if messages.whole:
            self._whole_messages = len(chunk.ends) + messages.whole
            self._whole_bytes = before + int(messages.ends[messages.whole - 1])
        if messages.inside is not None:
            self.inside = messages.inside
        self.committed_lsn = messages.committed_lsn or self.committed_lsn
        self.prepared_lsn = messages.prepared_lsn or self.prepared_lsn
        chunk.messages += messages.buffer
        chunk.ends.frombytes((messages.ends + before).tobytes())
        return len(chunk.messages) >= self._limit

    @property
    def size(self) -> int:
        """Bytes that were added and not cut."""
        return len(self._chunk.messages)

    def cut(self) -> Chunk | None:
        """The messages up to the last end, or all of them when they are too many; else None."""
        chunk = self._chunk
        if not self._whole_messages:
            if len(chunk.messages) < self._limit:
                return None
            self._chunk = Chunk()
            return chunk
        rest = Chunk(
            chunk.messages[self._whole_bytes :],
            array("q", [end - self._whole_bytes for end in chunk.ends[self._whole_messages :]]),
        )
        del chunk.messages[self._whole_bytes :]
        del chunk.ends[self._whole_messages :]
        self._chunk = rest
        self._whole_bytes = self._whole_messages = 0
        return chunk


class ChunkQueue:
    """Chunks in order, from one thread to another."""

    def __init__(self, limit: int = QUEUE_LIMIT) -> None:
        self._limit = limit
        self._chunks: deque[Chunk] = deque()
        self._size = 0
        self._closed = False
        self._sent_all = True
        self._changed = threading.Condition()

    @property
    def full(self) -> bool:
        """Whether nothing more should be put in for now."""
        with self._changed:
            return self._size >= self._limit

    @property
    def waits(self) -> bool:
        """Whether there is something that nobody has taken yet."""
        with self._changed:
            return bool(self._chunks)

    @property
    def closed(self) -> bool:
        """Whether ``take`` gives nothing any more."""
        with self._changed:
            return self._closed

    def put(self, chunk: Chunk) -> None:
        """Add a chunk at the end."""
        with self._changed:
            self._chunks.append(chunk)
            self._size += len(chunk.messages)
            self._sent_all = False
            self._changed.notify_all()

    def sent_all(self) -> None:
        """Take note that the publisher has nothing more to send for now."""
        with self._changed:
            self._sent_all = True
            self._changed.notify_all()

    def close(self) -> None:
        """Let ``take`` return None, also when chunks are left: their transactions come again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self, linger: Callable[[], float] = lambda: 0.0) -> Chunk | None:
        """Wait for chunks and take those that are there as one, up to about MAX_CHUNK bytes.

        ``linger`` is asked when there is one: so many seconds it waits for more, BEHIND times as
        long while the publisher has more to send, and no longer when it has sent BULK bytes and
        has no more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or bool(self._chunks))
            seconds = linger()
            if not self._changed.wait_for(self._is_enough, seconds):
                longer = (BEHIND - 1) * seconds
                self._changed.wait_for(lambda: self._sent_all or self._is_enough(), longer)
            if self._closed:
                return None
            taken = [self._chunks.popleft()]
            size = len(taken[0].messages)
            while self._chunks and size + len(self._chunks[0].messages) <= MAX_CHUNK:
                taken.append(self._chunks.popleft())
                size += len(taken[-1].messages)
            self._size -= size
        return taken[0] if len(taken) == 1 else _joined(taken)

    def _is_enough(self) -> bool:
        least = BULK if self._sent_all else MAX_CHUNK
        return self._closed or self._size >= least


def _joined(chunks: list[Chunk]) -> Chunk:
    whole = Chunk()
    for chunk in chunks:
        begin = len(whole.messages)
        whole.messages += chunk.messages
        whole.ends.extend((np.frombuffer(chunk.ends, np.int64) + begin).tolist())
    return whole
