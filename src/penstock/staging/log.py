# SPDX-License-Identifier: Apache-2.0
"""The staged changes of one subscription: a log of segments in a folder of its own.

In:   decoded transactions, in commit order, from one appender (the receiver).
Out:  segments, in commit order, to one reader (apply), who trims what it needs no longer.

    FOLDER/000000000A1B2C38-0.parquet     changes of one relation; named by first commit LSN
    FOLDER/000000000A1B2C38.json          manifest; with it the segment exists
    FOLDER/position                       one LSN, see below

``append`` writes the files, syncs them, and then writes the manifest (temporary file, sync,
rename, sync of the folder).  When it returns, the segment survives a power cut, and its end may
be confirmed to the publisher.  A crash before that leaves files that no manifest names; they are
removed when the folder is opened again, and the publisher sends the transactions again.

A transaction that is too large for one batch comes as several: the files of each are written and
synced while the next is decoded, and its segment exists when the batch with its end was appended.

``end_lsn`` never goes back.  It is the last segment's end, or a later position recorded by
``advance``: an idle publisher's position, confirmed to it although it belongs to no transaction.
What was confirmed must be known after a restart, since a slot that is ahead of that has lost
changes.  The file ``position`` holds that LSN; it is overwritten in place, 17 bytes in one
sector.

Any thread may call any method, but only one at a time appends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.change.relation import Relation
from penstock.compiled import Ints
from penstock.errors import StagingError
from penstock.failpoints import Failpoint, reach
from penstock.lsn import MAX_LSN, format_lsn
from penstock.pgoutput.decode import Decoded
from penstock.staging.files import replace_durably, room_needed, sync
from penstock.staging.segment import (
    ChangeFile,
    Segment,
    from_manifest,
    pack_transactions,
    to_manifest,
)

COMPRESSION = "zstd"
"""6 M rows/s, a third of the bytes of snappy or lz4 (7.5 M rows/s); decoding makes 4.5 M."""

WRITERS = 2
"""Files that are written at the same time."""

MANIFESTS = "?" * 16 + ".json"


class StagingLog:
    """The log in one folder, which is made when it does not exist."""

    def __init__(self, folder: Path) -> None:
        """Open the log and remove what a crash left.

        StagingError when a segment's files are not as its manifest says.
        """
        self.folder = folder
        self._changed = threading.Condition()
        self._woken = False
        folder.mkdir(parents=True, exist_ok=True)
        self._segments = [from_manifest(path) for path in sorted(folder.glob(MANIFESTS))]
        self._remove_unregistered()
        self._position = _read_position(folder / "position")
        self._end_lsn = max([self._position, *(segment.end_lsn for segment in self._segments)])
        self._writers = ThreadPoolExecutor(WRITERS, "stage")
        self._open_files: list[Future[ChangeFile]] = []
        self._open_transactions: list[Ints] = []
        self._open_first_lsn: int | None = None

    @property
    def end_lsn(self) -> int:
        """Everything that was published up to here is durable; 0 for a log that is new."""
        with self._changed:
            return self._end_lsn

    @property
    def bytes(self) -> int:
        """Size of all segments."""
        with self._changed:
            return sum(segment.bytes for segment in self._segments)

    def segments(self, after_end_lsn: int = 0) -> tuple[Segment, ...]:
        """The segments that end after a position, in commit order."""
        with self._changed:
            return tuple(s for s in self._segments if s.end_lsn > after_end_lsn)

    def wait(self, after_end_lsn: int, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for a segment that ends after a position, or ``wake``."""
        with self._changed:
            ended = self._changed.wait_for(
                lambda: self._woken or self._last_end() > after_end_lsn, timeout
            )
            self._woken = False
            return ended

    def wake(self) -> None:
        """End the wait of this moment, or the next one: there is something else to look at."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def append(self, decoded: Decoded) -> Segment | None:
        """Add transactions; the segment is durable on return.

        None when no segment came of it: a transaction is still open, or there was none.
        DiskFullError when there is no room, perhaps for what an earlier call brought: the log is as
        before, without the open transaction.
        """
        first_lsn = self._open_first_lsn or decoded.first_commit_lsn
        if first_lsn is None:
            return None
        if first_lsn < self.end_lsn:
            raise StagingError(
                f"transaction with commit LSN {format_lsn(first_lsn)} is staged already",
                detail=f"Staging has everything up to {format_lsn(self.end_lsn)}.",
            )
        self._open_first_lsn = first_lsn
        with ExitStack() as on_error, room_needed(self.folder):
            on_error.callback(self.forget_open)
            segment = self._append(first_lsn, decoded)
            on_error.pop_all()
        return segment

    def forget_open(self) -> None:
        """Remove what is there of a transaction that has not ended: it will be sent again."""
        wait(self._open_files)
        self._open_files = []
        self._open_transactions = []
        self._open_first_lsn = None
        self._remove_unregistered()

    def advance(self, lsn: int) -> None:
        """Record, durably, that nothing was published between ``end_lsn`` and ``lsn``."""
        with self._changed:
            if lsn <= self._end_lsn:
                return
            with room_needed(self.folder):
                self._record(lsn)
            self._end_lsn = lsn

    def trim(self, upto_end_lsn: int) -> None:
        """Delete the segments that end at or before a position; ``end_lsn`` stays."""
        with self._changed:
            gone = [s for s in self._segments if s.end_lsn <= upto_end_lsn]
            if not gone:
                return
            self._record(max(self._position, gone[-1].end_lsn))
            self._segments = self._segments[len(gone) :]
        for segment in gone:
            self._manifest(segment.first_commit_lsn).unlink(missing_ok=True)
        sync(self.folder)  # no manifest may outlive its files
        for file in (file for segment in gone for file in segment.files):
            Path(file.path).unlink(missing_ok=True)

    def _append(self, first_lsn: int, decoded: Decoded) -> Segment | None:
        for file in self._open_files:
            file.result()  # so no more than two batches are in memory
        for (relation, table), restarts in zip(decoded.tables, decoded.restarts, strict=True):
            path = self.folder / f"{first_lsn:016X}-{len(self._open_files)}.parquet"
            self._open_files.append(self._writers.submit(_write, path, relation, table, restarts))
        self._open_transactions.append(decoded.transactions)
        last = decoded.last
        if decoded.open or last is None:
            return None
        files = tuple(file.result() for file in self._open_files)
        reach(Failpoint.STAGING_SEGMENT_SYNCED)
        transactions = np.concatenate(self._open_transactions)
        segment = Segment(
            first_commit_lsn=first_lsn,
            last_commit_lsn=last.commit_lsn,
            end_lsn=last.end_lsn,
            commit_time_us=last.commit_time_us,
            transactions=len(transactions),
            bytes=sum(file.bytes for file in files),
            files=files,
            packed=pack_transactions(transactions),
        )
        replace_durably(self._manifest(first_lsn), to_manifest(segment))
        reach(Failpoint.STAGING_SEGMENT_REGISTERED)
        with self._changed:
            self._open_files = []
            self._open_transactions = []
            self._open_first_lsn = None
            self._segments.append(segment)
            self._end_lsn = segment.end_lsn
            self._changed.notify_all()
        return segment

    def _manifest(self, first_lsn: int) -> Path:
        return self.folder / f"{first_lsn:016X}.json"

    def _last_end(self) -> int:
        return self._segments[-1].end_lsn if self._segments else 0

    def _record(self, lsn: int) -> None:
        """Write the position in place; one sector is written as a whole, or not."""
        descriptor = os.open(self.folder / "position", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, f"{lsn:016X}\n".encode(), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if not self._position:
            sync(self.folder)
        self._position = lsn

    def _remove_unregistered(self) -> None:
        with self._changed:
            named = {Path(file.path).name for s in self._segments for file in s.files}
            manifests = {self._manifest(s.first_commit_lsn).name for s in self._segments}
        # A manifest without its segment: the folder could not be synced after it was written.
        unknown = [path for path in self.folder.glob(MANIFESTS) if path.name not in manifests]
        for path in unknown:
            path.unlink(missing_ok=True)
        if unknown:
            sync(self.folder)  # no manifest may outlive its files
        for path in (*self.folder.glob("*.parquet"), *self.folder.glob("*.tmp")):
            if path.name not in named:
                path.unlink(missing_ok=True)


def _write(
    path: Path, relation: Relation, table: pa.Table, restarts: tuple[int, ...]
) -> ChangeFile:
    """Put a relation's changes on disk."""
    # Dictionaries cost a third of the writing speed and make the file larger than zstd alone.
    pq.write_table(table, path, compression=COMPRESSION, use_dictionary=["op"])
    reach(Failpoint.STAGING_SEGMENT_WRITTEN)
    sync(path)
    counts = _counts(table["op"])
    return ChangeFile(
        relation=relation,
        path=str(path),
        bytes=path.stat().st_size,
        rows=table.num_rows,
        inserts=counts("I"),
        updates=counts("U"),
        deletes=counts("D"),
        truncates=counts("T"),
        restarts=restarts,
    )


def _counts(operations: pa.ChunkedArray) -> Callable[[str], int]:
    counted = {
        entry["values"]: entry["counts"] for entry in pc.value_counts(operations).to_pylist()
    }
    return lambda operation: counted.get(operation, 0)


def _read_position(path: Path) -> int:
    """The recorded position; 0 when there is none.

    The file is empty when there was no room, or a crash, before the first one was written.
    """
    text = path.read_text() if path.exists() else ""
    if not text:
        return 0
    try:
        lsn = int(text, 16)
    except ValueError:
        lsn = -1
    if len(text) != 17 or not 0 <= lsn <= MAX_LSN:
        raise StagingError(f"staging position {path} is not readable")
    return lsn
