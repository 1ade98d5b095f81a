# SPDX-License-Identifier: Apache-2.0
"""The node's Spark session: built once, here, with the settings that were measured to matter.

Every ``spark.*`` setting of the user wins over what stands here, except that Java options and
jars are added to ours.  Workers take a session of their own (``worker_session``): SQL settings,
such as the userMetadata of the next Delta commit, belong to a session, not to a thread.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from penstock.config import Settings
from penstock.lake.jars import delta_jars
from penstock.lake.jvm import java_home

log = logging.getLogger(__name__)

__all__ = ["SparkSession", "build_session", "session_settings", "stop_session", "worker_session"]

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


def build_session(settings: Settings) -> SparkSession:
    """Start Spark for this process, or return the session that it has.

    ConfigurationError when there is no Java, or Delta's jars are not to be had.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder
    for name, value in session_settings(settings).items():
        builder = builder.config(name, value)
    # PySpark logs each error that it also raises, as JSON on stderr.
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(logger).disabled = True
    return builder.getOrCreate()


def worker_session(spark: SparkSession) -> SparkSession:
    """A session with settings and temporary views of its own, on the same Spark."""
    return spark.newSession()


def stop_session(spark: SparkSession) -> None:
    """Stop Spark; nothing happens when its JVM has ended already, as after a signal to both."""
    try:
        spark.stop()
    except (Py4JError, OSError) as error:
        log.info("Spark had ended before the node: %s", error)


def session_settings(settings: Settings) -> dict[str, str]:
    """All ``spark.*`` settings of a node's session, the user's included."""
    given = dict(settings.spark)
    java_options = [
        f"-Dlog4j2.configurationFile={Path(__file__).parent / 'log4j2.properties'}",
        f"-Dpenstock.log={settings.home / 'log' / 'spark.log'}",
        given.pop("spark.driver.extraJavaOptions", ""),
    ]
    jars = [str(jar) for jar in delta_jars(settings)]
    jars += [jar for jar in given.pop("spark.jars", "").split(",") if jar]
    ours = {
        **_DELTA,
        **_VALUES,
        **_SPEED,
        **_QUIET,
        "spark.master": "local[*]",
        "spark.jars": ",".join(jars),
        "spark.driver.extraJavaOptions": " ".join(java_options).strip(),
        "spark.local.dir": str(_scratch_folder(settings)),
        "spark.sql.warehouse.dir": str(settings.home / "spark" / "warehouse"),
        "spark.sql.shuffle.partitions": str(max(4, 2 * (os.cpu_count() or 1))),
    }
    if given.get("spark.master", "local").startswith("local"):
        ours["spark.driver.host"] = "127.0.0.1"
        ours["spark.driver.bindAddress"] = "127.0.0.1"
    return ours | given


def _scratch_folder(settings: Settings) -> Path:
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
