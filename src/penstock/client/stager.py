# SPDX-License-Identifier: Apache-2.0
"""The staging thread: chunks of messages become durable segments.

In:   chunks from the receiving thread, in order.
Out:  segments in the staging log; after each, ``staged`` is called, so that it can be confirmed.

While the reader of the log has segments to apply, the thread waits LINGER or longer before it takes
what has arrived (chunks.py): a busy reader gains nothing from a segment for each commit, it has
more files to open.  With nothing to apply it takes a commit at once.

Transactions that come while they are in progress are spooled until their end (streamed.py), so
what is decoded and staged here are whole transactions in commit order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from penstock.change.mapping import ValueMapping
from penstock.client.chunks import ChunkQueue
from penstock.client.streamed import StreamedTransactions
from penstock.pgoutput.decode import Decoder
from penstock.pgoutput.forms import Ask
from penstock.staging.log import StagingLog

LINGER = 0.1
"""Seconds.  An apply batch takes one or more, so it has ten segments or so to read, not hundreds;
a synchronous commit on the publisher waits that much longer while apply is busy."""


class Decoding(NamedTuple):
    """What the decoder is told: how values are held, and whom to ask for their binary forms."""

    mapping: ValueMapping
    ask: Ask


class Stager:
    """Runs until its queue is closed or something fails; ``failed`` gets the error then."""

    def __init__(
        self,
        queue: ChunkQueue,
        log: StagingLog,
        applied: Callable[[], int],
        staged: Callable[[], None],
        failed: Callable[[Exception], None],
        decoding: Decoding,
    ) -> None:
        self._queue = queue
        self._log = log
        self._applied = applied
        self._staged = staged
        self._failed = failed
        self._decoding = decoding
        self._decoder = Decoder()
        self._streamed = StreamedTransactions(log.folder, log.advance)
        self._thread = threading.Thread(target=self._run, name="stager", daemon=True)

    def start(self, after_lsn: int) -> None:
        """Start the thread; transactions that committed before ``after_lsn`` are left out.

        What another connection, or a crash, has left of transactions in progress is removed: the
        publisher sends them again from their begin.
        """
        self._streamed.forget(after_lsn)
        self._decoder = Decoder(after_lsn, *self._decoding)
        self._thread.start()

    @property
    def described(self) -> int:
        """How many Relation messages there were until what is staged now (pgoutput/decode.py)."""
        return self._decoder.described

    def join(self) -> None:
        """Wait for its end, if it was started; the queue must be closed."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._stage_next():
                self._staged()
        except Exception as error:  # noqa: BLE001 -- it ends the receiver, who raises it
            self._failed(error)
        finally:
            self._streamed.forget()

    def _stage_next(self) -> bool:
        chunk = self._queue.take(self._linger)
        if chunk is None:
            return False
        began = False
        for buffer, offsets in self._streamed.whole(*chunk.framed()):
            if began and self._queue.closed:  # what is left of a large transaction comes again
                return False
            self._log.append(self._decoder.feed(buffer, offsets))
            began = True
        return True

    def _linger(self) -> float:
        return LINGER if self._log.segments(self._applied()) else 0.0
