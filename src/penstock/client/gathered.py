# SPDX-License-Identifier: Apache-2.0
"""Messages for the decoder, gathered so that it gets few large buffers.

In:   pieces: a buffer and the n + 1 offsets of its messages.
Out:  buffers and offsets, from 0, of whole pieces one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.compiled import Bytes, Ints


class Gathered:
    """Up to about ``limit`` bytes of messages; a piece is never cut."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[Bytes] = []
        self._sizes: list[Ints] = []
        self._bytes = 0

    def has_room(self, size: int) -> bool:
        """Whether so many bytes fit beside what is there; anything fits into nothing."""
        return not self._bytes or self._bytes + size <= self._limit

    def add(self, buffer: Bytes, offsets: Ints) -> Iterator[tuple[Bytes, Ints]]:
        """Add a piece, after what is there has been given on if there is no room for both."""
        if not self.has_room(int(offsets[-1] - offsets[0])):
            yield from self.take()
        if len(offsets) > 1:
            self._pieces.append(buffer[offsets[0] : offsets[-1]])
            self._sizes.append(np.diff(offsets))
            self._bytes += len(self._pieces[-1])

    def add_message(self, message: bytes) -> Iterator[tuple[Bytes, Ints]]:
        """The same with one message."""
        return self.add(
            np.frombuffer(bytearray(message), np.uint8), np.array([0, len(message)], np.int64)
        )

    def take(self) -> Iterator[tuple[Bytes, Ints]]:
        """What is there, as one buffer and its offsets; nothing when there is nothing."""
        if not self._pieces:
            return
        one = len(self._pieces) == 1
        buffer = self._pieces[0] if one else np.concatenate(self._pieces)
        offsets = np.zeros(sum(map(len, self._sizes)) + 1, np.int64)
        np.cumsum(np.concatenate(self._sizes), out=offsets[1:])
        self._pieces, self._sizes, self._bytes = [], [], 0
        yield buffer, offsets
