# SPDX-License-Identifier: Apache-2.0
"""A transaction's messages in a file, until it is known whether it commits.

In:   messages, some at a time.
Out:  the same messages, in the same pieces, in order.

The file holds for each piece: message count, bytes, sizes of the messages, the messages.  Nothing
is synced here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from penstock.compiled import Bytes, Ints
from penstock.failpoints import Failpoint, reach
from penstock.staging.files import room_needed

SUFFIX = ".spool"

_PIECE = struct.Struct("<QQ")
_SIZE = np.dtype("<u4")


class Spool:
    """One transaction's messages in one file, which exists from the first message on."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return self._path.exists()

    @property
    def bytes(self) -> int:
        """The file's size, a little more than that of the messages."""
        return self._path.stat().st_size if self.exists else 0

    def append(self, buffer: Bytes, offsets: Ints) -> None:
        """Add messages; message i is ``buffer[offsets[i]:offsets[i + 1]]``.

        DiskFullError when there is no room.  The file is open only here, so any number of
        transactions may be in progress.
        """
        size = int(offsets[-1] - offsets[0])
        with room_needed(self._path.parent):
            self._path.parent.mkdir(exist_ok=True)
            with self._path.open("ab") as file:
                file.write(_PIECE.pack(len(offsets) - 1, size))
                file.write(np.diff(offsets).astype(_SIZE).data)
                file.write(buffer[offsets[0] : offsets[-1]].data)
        reach(Failpoint.STREAM_TRANSACTION_SPOOLED)

    def pieces(self) -> Iterator[tuple[Bytes, Ints]]:
        """What was added: a buffer and the n + 1 offsets of its messages, from 0."""
        if not self.exists:
            return
        with self._path.open("rb") as file:
            while head := file.read(_PIECE.size):
                count, size = _PIECE.unpack(head)
                offsets = np.zeros(count + 1, np.int64)
                np.cumsum(np.fromfile(file, _SIZE, count), out=offsets[1:])
                yield np.fromfile(file, np.uint8, size), offsets

    def remove(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)
