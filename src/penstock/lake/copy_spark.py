# SPDX-License-Identifier: Apache-2.0
"""Ranges of an initial copy, read by Spark's executors.

Each pack is a Spark job of one task, and ``concurrency`` driver threads take packs from one
queue: so exactly so many connections to the publisher are open, slow ranges leave no core idle,
progress is known range by range, and a table is committed while others are still being read.
A job costs about 20 ms on the driver, so packs are not smaller than a few MB.

The connection string travels inside the task's closure, so that neither plans nor Spark's pages
show it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.errors import PenstockError
from penstock.lake.copy import LOOK_AGAIN, Job, Pack
from penstock.lake.copy_range import RangeCopied, be_ready, copy_ranges
from penstock.lake.copy_source import Source, reading

log = logging.getLogger(__name__)


class ExecutorReaders:
    """So many packs at a time; see ``Readers``."""

    def __init__(self, spark: SparkSession, source: Source, concurrency: int) -> None:
        self._spark = spark
        self._source = source
        self._threads = ThreadPoolExecutor(concurrency, "copy")
        self._jobs: list[Job] = []
        self._group = ""

    def start(self, packs: Sequence[Pack], prefix: str) -> Sequence[Job]:
        """Begin to read."""
        self._group = f"penstock {prefix}"
        task = _Task(self._source, prefix)
        self._jobs = [self._threads.submit(self._run, task, tuple(pack)) for pack in packs]
        return self._jobs

    def end(self) -> None:
        """Cancel what runs; repeated, because a thread may be about to start its job."""
        for job in self._jobs:
            job.cancel()
        while wait(self._jobs, timeout=LOOK_AGAIN).not_done:
            self._spark.sparkContext.cancelJobGroup(self._group)
        self._threads.shutdown()

    def _run(self, task: _Task, pack: Pack) -> list[RangeCopied]:
        context = self._spark.sparkContext
        names = ", ".join(dict.fromkeys(each.target.name for each in pack))
        context.setJobGroup(self._group, f"initial copy of {names}", interruptOnCancel=True)
        try:
            outcomes = context.parallelize([pack], 1).map(task).collect()
        except (Py4JError, PySparkException) as error:
            raise PenstockError("a task of the initial copy failed", detail=str(error)) from error
        [outcome] = outcomes
        if isinstance(outcome, PenstockError):
            raise outcome
        return outcome


class _Task:
    """The function that executors run; an error of ours is its result, so that it stays ours."""

    def __init__(self, source: Source, prefix: str) -> None:
        self._source = source
        self._prefix = prefix

    def __call__(self, pack: Pack) -> list[RangeCopied] | PenstockError:
        try:
            with reading(self._source) as cursor:
                return copy_ranges(cursor, pack, self._prefix, self._source.last_change)
        except PenstockError as error:
            return error


def warm(spark: SparkSession, concurrency: int) -> None:
    """Start the executors' Python workers, which import what a copy needs: some 2 s of CPU."""
    try:
        spark.sparkContext.parallelize(range(concurrency), concurrency).foreach(be_ready)
    except (Py4JError, PySparkException, OSError) as error:
        log.info("the copy's workers are not warm: %s", error)  # the node may be stopping
