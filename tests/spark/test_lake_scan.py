# SPDX-License-Identifier: Apache-2.0
"""A table's rows when Delta is told its files: at every version those that Delta finds itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import TableStateError
from penstock.lake.scan import LISTED_FILES, scan

STATEMENTS = """
    INSERT INTO {t} SELECT id, id % 7, 'a' || id FROM range(100)
    DELETE FROM {t} WHERE n = 3
    ALTER TABLE {t} RENAME COLUMN text TO `a "b`
    ALTER TABLE {t} ADD COLUMNS (more DATE)
    INSERT INTO {t} VALUES (1000, 1, NULL, DATE'0001-01-01')
    ALTER TABLE {t} ALTER COLUMN n TYPE BIGINT
    UPDATE {t} SET n = 5000000000 WHERE id % 10 = 0
    DELETE FROM {t} WHERE id < 20
    ALTER TABLE {t} DROP COLUMN more
    OPTIMIZE {t}
    DELETE FROM {t}
    INSERT INTO {t} VALUES (1, 2, 'again')
"""
PROPERTIES = """
    'delta.enableDeletionVectors' = 'true', 'delta.columnMapping.mode' = 'name',
    'delta.enableTypeWidening' = 'true'
"""


def delta_itself(spark: SparkSession, location: Path, version: int) -> DataFrame:
    """The rows as Delta finds them."""
    return spark.read.format("delta").option("versionAsOf", version).load(str(location))


@pytest.fixture(scope="module")
def history(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A table of Spark's with many definitions, and its head."""
    location = tmp_path_factory.mktemp("history") / "t"
    session = spark.newSession()
    session.sql(
        f"CREATE TABLE delta.`{location}` (id BIGINT, n INT, text STRING) USING delta"
        f" TBLPROPERTIES ({PROPERTIES})"
    )
    for statement in STATEMENTS.strip().splitlines():
        session.sql(statement.strip().format(t=f"delta.`{location}`"))
    head = session.sql(f"DESCRIBE HISTORY delta.`{location}` LIMIT 1").collect()[0]["version"]
    assert head >= STATEMENTS.strip().count("\n") + 1
    return location, head


def test_every_version_is_the_same(spark_worker: SparkSession, history: tuple[Path, int]) -> None:
    """Vectors, columns that were renamed, added, widened, dropped; no rows at all."""
    location, head = history
    counts = set()
    for version in range(head + 1):
        found = scan(spark_worker, location, version)
        expected = delta_itself(spark_worker, location, version)
        assert found.schema == expected.schema
        rows = sorted(map(str, found.collect()))
        assert rows == sorted(map(str, expected.collect())), version
        counts.add(len(rows))
    assert {0, 1, 100, 86} <= counts


def checksum(location: Path, version: int) -> dict[str, Any]:
    """What a version's checksum file tells of what we write there."""
    text = (location / "_delta_log" / f"{version:020d}.crc").read_text()
    told = json.loads(text)
    assert told["numMetadata"] == told["numProtocol"] == 1
    told["metadata"]["schemaString"] = json.loads(told["metadata"]["schemaString"])
    for features in ("readerFeatures", "writerFeatures"):
        told["protocol"][features] = sorted(told["protocol"][features])
    return {name: told[name] for name in ("numFiles", "tableSizeBytes", "metadata", "protocol")}


def test_checksums_are_those_of_delta(
    spark_worker: SparkSession, history: tuple[Path, int], tmp_path: Path
) -> None:
    """Ours say of each version what Delta's own say; Spark reads and writes on with them."""
    theirs, head = history
    ours, other = tmp_path / "ours", tmp_path / "theirs"
    shutil.copytree(theirs, ours, ignore=shutil.ignore_patterns("*.crc"))
    shutil.copytree(theirs, other)
    for version in (head, 0, 6):
        found = scan(spark_worker, ours, version)
        assert checksum(ours, version) == checksum(theirs, version)
        expected = delta_itself(spark_worker, theirs, version)
        assert found.schema == expected.schema
        assert sorted(map(str, found.collect())) == sorted(map(str, expected.collect()))
    for location in (ours, other):
        spark_worker.sql(f"INSERT INTO delta.`{location}` VALUES (7, 7, 'more')")
        spark_worker.sql(f"DELETE FROM delta.`{location}` WHERE id = 1")
    found, expected = (delta_itself(spark_worker, each, head + 2) for each in (ours, other))
    assert found.collect() == expected.collect()


def test_many_files_are_found_by_delta(spark_worker: SparkSession, tmp_path: Path) -> None:
    """Then it can leave files out by their statistics; told few, it reads those and no more."""
    where = tmp_path / "t"
    for count, index in ((LISTED_FILES, "TahoeBatchFileIndex"), (1, "PreparedDeltaFileIndex")):
        rows = spark_worker.range(0, 1000, 1, count)
        rows.write.format("delta").mode("append").save(str(where))
        found = scan(spark_worker, where, 0 if count > 1 else 1)
        assert index in found._jdf.queryExecution().executedPlan().toString()
        found.createOrReplaceTempView("found")  # in the session that asked for it
        counted = spark_worker.sql("SELECT count(*) AS n FROM found").collect()[0]["n"]
        assert counted == (1000 if count > 1 else 2000)


def test_a_version_that_the_log_does_not_have(spark_worker: SparkSession, tmp_path: Path) -> None:
    """It is an error, never another version's rows."""
    spark_worker.range(3).write.format("delta").save(str(tmp_path / "t"))
    (tmp_path / "t" / "_delta_log" / f"{0:020d}.json").unlink()
    with pytest.raises(TableStateError):
        scan(spark_worker, tmp_path / "t", 0)
