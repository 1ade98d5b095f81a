# SPDX-License-Identifier: Apache-2.0
"""The node's Spark: built once, here, with the settings that were measured to matter.

Every ``spark.*`` setting of the user wins over what stands here, except that Java options, the
class path and jars are added to ours.  Workers take a session of their own: SQL settings, such as
the userMetadata of the next Delta commit, belong to a session, not to a thread.

Spark takes some seconds and 0.5 GB to start, and what follows a stream never asks for it.  So it
starts when a session is first asked for, and what needs one only in some cases takes a
``GetSession``.  That there is a Java and that Delta's jars are here is known before.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from penstock.config import Settings
from penstock.errors import ConfigurationError
from penstock.lake.jars import delta_jars
from penstock.lake.jvm import java_home

log = logging.getLogger(__name__)

__all__ = ["GetSession", "Spark", "SparkSession", "session_settings"]

GetSession = Callable[[], SparkSession]
"""Gives a session, the same one each time; starts Spark if it does not run."""

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Tasks that reconstruct a table's state; 50 by default, 2 s of overhead for a small table.
    "spark.databricks.delta.snapshotPartitions": "2",
}

_VALUES = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Dates before 1582 are those of the proleptic calendar, as in PostgreSQL.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}

_SPEED = {
    "spark.scheduler.mode": "FAIR",
    "spark.driver.memory": "4g",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}

_QUIET = {
    "spark.app.name": "penstock",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Finished work that is remembered for a UI: memory of a process that runs for months.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "20",
}


class Spark:
    """The Spark of this process; any thread may call it."""

    def __init__(self, settings: Settings) -> None:
        """Not started.  ConfigurationError: there is no Java, or Delta's jars are not to be had."""
        self._home = settings.home
        self._java_home = java_home()
        self._settings = session_settings(settings)
        self._lock = threading.Lock()
        self._session: SparkSession | None = None

    def session(self) -> SparkSession:
        """The session that all share: do not change its settings.

        ConfigurationError when Spark does not start.
        """
        with self._lock:
            if self._session is None:
                self._session = self._start()
            return self._session

    def own_session(self) -> GetSession:
        """A session with settings and temporary views of its own, made when first asked for."""
        return cache(lambda: self.session().newSession())

    def cancel_all_jobs(self) -> None:
        """End what runs, if anything does."""
        if self._session is not None:
            self._session.sparkContext.cancelAllJobs()

    def stop(self) -> None:
        """Stop Spark, if it runs; its JVM may have ended already, as after a signal to both."""
        with self._lock:
            if self._session is None:
                return
            try:
                self._session.stop()
            except (Py4JError, OSError) as error:
                log.info("Spark had ended before the node: %s", error)

    def _start(self) -> SparkSession:
        os.environ["JAVA_HOME"] = str(self._java_home)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # PySpark logs each error that it also raises, as JSON on stderr.
        for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            PySparkLogger.getLogger(logger).disabled = True
        builder = SparkSession.builder
        for name, value in self._settings.items():
            builder = builder.config(name, value)
        try:
            return builder.getOrCreate()
        except (Py4JError, PySparkException) as error:
            raise ConfigurationError(
                "Spark does not start",
                detail=str(error).partition("\n")[0],
                hint="What Spark says itself is on stderr, or in"
                f' "{self._home / "log" / "spark.log"}".',
            ) from error


def session_settings(settings: Settings) -> dict[str, str]:
    """All ``spark.*`` settings of a node's session, the user's included."""
    given = dict(settings.spark)
    java_options = [
        f"-Dlog4j2.configurationFile={Path(__file__).parent / 'log4j2.properties'}",
        f"-Dpenstock.log={settings.home / 'log' / 'spark.log'}",
    ]
    ours = {
        **_DELTA,
        **_VALUES,
        **_SPEED,
        **_QUIET,
        "spark.master": "local[*]",
        "spark.local.dir": str(scratch_folder(settings)),
        "spark.sql.warehouse.dir": str(settings.home / "spark" / "warehouse"),
        "spark.sql.shuffle.partitions": str(max(4, 2 * (os.cpu_count() or 1))),
    }
    master = given.get("spark.master", "local")
    if master.startswith("local"):
        ours["spark.driver.host"] = "127.0.0.1"
        ours["spark.driver.bindAddress"] = "127.0.0.1"
    _add(given, "spark.driver.extraJavaOptions", java_options, " ")
    jars = [str(jar) for jar in delta_jars(settings)]
    # On the driver's class path Java shares their classes between JVMs (class-data sharing), and
    # nothing is copied; executors in processes of their own get them from Spark.
    _add(given, "spark.driver.extraClassPath", jars, os.pathsep)
    if master != "local" and not master.startswith("local["):
        _add(given, "spark.jars", jars, ",")
    return ours | given


def _add(given: dict[str, str], name: str, ours: list[str], separator: str) -> None:
    """Put our part of a list before what the user has."""
    given[name] = separator.join([*ours, given[name]] if given.get(name) else ours)


def scratch_folder(settings: Settings) -> Path:
    """This process's folder for shuffle files; those of processes that are gone are removed."""
    folder = settings.home / "spark"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("local-*"):
        pid = old.name.removeprefix("local-")
        if pid.isdecimal() and not Path("/proc", pid).exists():
            shutil.rmtree(old, ignore_errors=True)
    own = folder / f"local-{os.getpid()}"
    own.mkdir(exist_ok=True)
    return own
