# SPDX-License-Identifier: Apache-2.0
"""The initial copy: many ranges of many tables, read by executors or by the node itself.

In:   packs of ranges (sync/copy_plan.py), and who reads them.
Out:  each table as soon as its last range is in, with all its files; the caller commits them.

Nothing here is durable.  When anything fails, or the caller stops listening, the readers are ended
and the files of tables that were not handed out yet are removed.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Protocol

from penstock.failpoints import Failpoint, reach
from penstock.lake.copy_range import CopyRange, CopyStoppedError, CopyTarget, RangeCopied
from penstock.lake.files import WrittenFile

LOOK_AGAIN = 0.2
"""Seconds between two looks at whether to stop; what is cancelled ends within about one."""

Pack = Sequence[CopyRange]
Job = Future[list[RangeCopied]]

Progress = Callable[[int, int], None]
"""Called with a table's relid and the rows that were copied in addition."""


class Readers(Protocol):
    """Who reads packs: copy_spark.py, copy_node.py."""

    def start(self, packs: Sequence[Pack], prefix: str) -> Sequence[Job]:
        """Begin to read; a job for each pack.  Names of files begin with ``prefix``.

        Jobs raise ValueNotHeldError, ConnectionLostError, DiskFullError, the publisher's own error.
        """

    def end(self) -> None:
        """Cancel what is still being read, and wait until nothing is."""


@dataclass
class TableCopied:
    """A table whose ranges have all been read: its files, per leaf relid (see CopyTarget)."""

    target: CopyTarget
    rows: int = 0
    files: dict[int, list[WrittenFile]] = field(default_factory=dict)

    def add(self, done: RangeCopied) -> None:
        """Count a finished range in."""
        self.rows += done.rows
        for leaf, file in done.files:
            self.files.setdefault(leaf, []).append(file)


def run_copy(
    readers: Readers, packs: Sequence[Pack], progress: Progress, stopping: threading.Event
) -> Generator[TableCopied, None, None]:
    """Copy everything; hand out each table once, when it is complete.

    ``progress`` is called in the caller's thread.  Raises what the first failing job raised, and
    CopyStoppedError when ``stopping`` is set.  Closing the iterator ends the copy, too.
    """
    prefix = f"copy-{uuid.uuid4().hex}"
    tables: dict[int, TableCopied] = {}
    ranges_left: Counter[int] = Counter()
    for each in chain.from_iterable(packs):
        tables.setdefault(each.target.relid, TableCopied(each.target))
        ranges_left[each.target.relid] += 1
    jobs = readers.start(packs, prefix)
    try:
        for job in _finished(jobs, stopping):
            for done in job.result():
                reach(Failpoint.COPY_RANGE_READ)
                progress(done.relid, done.rows)
                tables[done.relid].add(done)
                ranges_left[done.relid] -= 1
                if not ranges_left[done.relid]:
                    reach(Failpoint.COPY_FILES_WRITTEN)
                    yield tables.pop(done.relid)
    finally:
        readers.end()
        for table in tables.values():
            _remove_files(table.target, prefix)


def _finished(jobs: Sequence[Job], stopping: threading.Event) -> Iterator[Job]:
    """Each job when it has ended."""
    running = set(jobs)
    while running:
        ended, running = wait(running, LOOK_AGAIN, FIRST_COMPLETED)
        if stopping.is_set():
            raise CopyStoppedError("the initial copy was stopped")
        yield from ended


def _remove_files(target: CopyTarget, prefix: str) -> None:
    for leaf in target.leaves:
        for file in Path(leaf.location).glob(f"{prefix}-*"):
            file.unlink(missing_ok=True)
