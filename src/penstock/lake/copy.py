# SPDX-License-Identifier: Apache-2.0
"""The initial copy on Spark: many ranges of many tables, read and written by executors.

In:   packs of ranges (sync/copy_plan.py), the source, how many packs may be read at a time.
Out:  each table as soon as its last range is in, with all its files; the caller commits them.

Each pack is a Spark job of one task, and ``concurrency`` driver threads take packs from one
queue: so exactly so many connections to the publisher are open, slow ranges leave no core idle,
progress is known range by range, and a table is committed while others are still being read.
A job costs about 20 ms on the driver, so packs are not smaller than a few MB.

Nothing here is durable.  When anything fails, or the caller stops listening, the other jobs are
cancelled and the files of tables that were not handed out yet are removed.

The connection string travels inside the task's closure, so that neither plans nor Spark's pages
show it.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.errors import PenstockError
from penstock.failpoints import Failpoint, reach
from penstock.lake.copy_range import (
    CopyRange,
    CopyStoppedError,
    CopyTarget,
    RangeCopied,
    be_ready,
    copy_ranges,
)
from penstock.lake.copy_source import Source
from penstock.lake.files import WrittenFile

LOOK_AGAIN = 0.2
"""Seconds between two looks at whether to stop; a cancelled job ends within about one."""

_Job = Future[list[RangeCopied]]

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with a table's relid and the rows that were copied in addition."""


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
    spark: SparkSession,
    packs: Sequence[Sequence[CopyRange]],
    source: Source,
    concurrency: int,
    progress: Progress,
    stopping: threading.Event,
) -> Generator[TableCopied, None, None]:
    """Copy everything; hand out each table once, when it is complete.

    ``progress`` is called in the caller's thread.  Raises what the first failing task raised:
    ValueNotHeldError, ConnectionLostError, DiskFullError, the publisher's own error; and
    CopyStoppedError when ``stopping`` is set.  Closing the iterator cancels the copy, too.
    """
    run = uuid.uuid4().hex
    tables: dict[int, TableCopied] = {}
    ranges_left: Counter[int] = Counter()
    for each in chain.from_iterable(packs):
        tables.setdefault(each.target.relid, TableCopied(each.target))
        ranges_left[each.target.relid] += 1
    threads = ThreadPoolExecutor(concurrency, "copy")
    jobs = [threads.submit(_run_pack, spark, run, source, tuple(pack)) for pack in packs]
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
        if tables:
            _cancel(spark, run, jobs)
        threads.shutdown()
        for table in tables.values():
            _remove_files(table.target, run)


def _finished(jobs: Sequence[_Job], stopping: threading.Event) -> Iterator[_Job]:
    """Each job when it has ended."""
    running = set(jobs)
    while running:
        ended, running = wait(running, LOOK_AGAIN, FIRST_COMPLETED)
        if stopping.is_set():
            raise CopyStoppedError("the initial copy was stopped")
        yield from ended


def warm(spark: SparkSession, concurrency: int) -> None:
    """Start the executors' Python workers, which import what a copy needs: some 2 s of CPU."""
    try:
        spark.sparkContext.parallelize(range(concurrency), concurrency).foreach(be_ready)
    except (Py4JError, PySparkException, OSError) as error:
        log.info("the copy's workers are not warm: %s", error)  # the node may be stopping


def _run_pack(
    spark: SparkSession, run: str, source: Source, pack: tuple[CopyRange, ...]
) -> list[RangeCopied]:
    context = spark.sparkContext
    names = ", ".join(dict.fromkeys(each.target.name for each in pack))
    context.setJobGroup(_group(run), f"initial copy of {names}", interruptOnCancel=True)
    try:
        outcomes = context.parallelize([pack], 1).map(_Task(source, run)).collect()
    except (Py4JError, PySparkException) as error:
        raise PenstockError("a task of the initial copy failed", detail=str(error)) from error
    [outcome] = outcomes
    if isinstance(outcome, PenstockError):
        raise outcome
    return outcome


class _Task:
    """The function that executors run; an error of ours is its result, so that it stays ours."""

    def __init__(self, source: Source, run: str) -> None:
        self._source = source
        self._run = run

    def __call__(self, pack: tuple[CopyRange, ...]) -> list[RangeCopied] | PenstockError:
        try:
            return copy_ranges(self._source, pack, _prefix(self._run))
        except PenstockError as error:
            return error


def _group(run: str) -> str:
    return f"penstock copy {run}"


def _prefix(run: str) -> str:
    return f"copy-{run}"


def _cancel(spark: SparkSession, run: str, jobs: Sequence[_Job]) -> None:
    """Cancel what runs; repeated, because a thread may be about to start its job."""
    for job in jobs:
        job.cancel()
    while wait(jobs, timeout=LOOK_AGAIN).not_done:
        spark.sparkContext.cancelJobGroup(_group(run))


def _remove_files(target: CopyTarget, run: str) -> None:
    for leaf in target.leaves:
        for file in Path(leaf.location).glob(f"{_prefix(run)}-*"):
            file.unlink(missing_ok=True)
