# SPDX-License-Identifier: Apache-2.0
"""A Delta table at a version as a DataFrame, without a Spark job that looks for its files.

In:   a table's folder and a version that its log has.
Out:  the rows of that version, read by Delta's own reader: schema, column mapping and deletion
      vectors are its business.

Delta finds the files of a version that it has not seen yet with Spark jobs over the log, which
takes a second however small the table is, and a lake's table has a new version with every batch.
Its log is read here as apply reads it (log.py), in milliseconds, and Delta is told the files, and
by a checksum file (checksum.py) the definition: a query after a commit then takes a quarter of the
time.  When there are many files, Delta looks itself, as it also leaves some out by their
statistics.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from penstock.lake.checksum import has_checksum, write_checksum
from penstock.lake.log import DataFile, contents, data_files

LISTED_FILES = 32
"""Files up to which Delta is told them."""


def scan(session: SparkSession, location: str | Path, version: int) -> DataFrame:
    """The rows of a table at a version; TableStateError when its log does not have it."""
    files = _files(str(location), version)
    if len(files) > LISTED_FILES:
        return _delta(session, location, version)
    return scan_files(session, location, version, files.values())


def scan_files(
    session: SparkSession, location: str | Path, version: int, files: Iterable[DataFile]
) -> DataFrame:
    """The rows of these files without those in their vectors, read as a version's files are."""
    frame = _delta(session, location, version)
    java = _java(session._jvm)
    actions = java.list()
    for file in files:
        actions.add(java.action.fromJson(json.dumps({"add": file.add})))
    # The relation of a plain read; what is taken from it is the snapshot and whose it is.
    plan = frame._jdf.queryExecution().analyzed()
    index = plan.collectLeaves().apply(0).relation().location()
    java.session.setActiveSession(session._jsparkSession)  # whose the frame is to be
    listed = index.deltaLog().createDataFrame(
        index.getSnapshot(),
        java.python.toSeq(actions),
        False,  # not streaming
        java.option.empty(),
    )
    return DataFrame(listed, session)


def _files(location: str, version: int) -> dict[str, DataFile]:
    if has_checksum(location, version):
        return data_files(location, version)
    found = contents(location, version)
    write_checksum(location, version, found)
    return found.files


class _Java(NamedTuple):
    """Classes of Java and Scala; each part of such a name is a question to the JVM."""

    list: Any
    action: Any
    session: Any
    python: Any
    option: Any


@cache
def _java(jvm: Any) -> _Java:
    return _Java(
        jvm.java.util.ArrayList,
        jvm.org.apache.spark.sql.delta.actions.Action,
        jvm.SparkSession,
        jvm.org.apache.spark.api.python.PythonUtils,
        jvm.scala.Option,
    )


def _delta(session: SparkSession, location: str | Path, version: int) -> DataFrame:
    return session.read.format("delta").option("versionAsOf", version).load(str(location))
