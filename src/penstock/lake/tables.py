# SPDX-License-Identifier: Apache-2.0
"""Delta tables: create, append, read at a version, bring back to a version.

A LakeTable's ``location`` is the folder; its ``version`` is the committed one, and only the
control database moves it.  Everything here writes new versions on top of Delta's head; the caller
holds the table's lock and has settled the head (``lake/settle.py``).

Without Spark where possible: through ``deltalake`` a table is created in 4 ms and an append is
committed in 2 ms; through Spark it takes 0.3 s and more.  deltalake does not know type widening;
to such a table the files are committed by Delta's own transaction on the JVM.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, PostCommitHookProperties
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.change.relation import LakeTable
from penstock.change.types import arrow_type
from penstock.errors import TableStateError
from penstock.failpoints import Failpoint, reach
from penstock.lake.durable import sync_path, sync_versions
from penstock.lake.files import WrittenFile
from penstock.names import quote_spark

NEEDS_MAPPING = frozenset(" ,;{}()\n\t=")
"""Characters that Delta accepts in a column name only with column mapping."""

CHECKPOINT_EVERY = 100
"""Appends after which the log gets a checkpoint; opening a table reads the entries since the last
one, 0.2 ms each.  Spark makes its own at every tenth version that it commits."""

PROPERTIES = {"delta.enableDeletionVectors": "true"}

_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


@dataclass(frozen=True)
class Layout:
    """How a Delta table stores its columns: logical to physical names, and its head version."""

    version: int
    names: Mapping[str, str]
    widened: bool


def arrow_schema(table: LakeTable) -> pa.Schema:
    """The Arrow schema of a table's rows; every field may be null, as in Delta."""
    return pa.schema(
        [
            pa.field(column.name, arrow_type(column.type_oid, column.typmod))
            for column in table.columns
        ]
    )


def spark_schema(table: LakeTable) -> StructType:
    """The Spark schema of a table's rows."""
    return from_arrow_schema(arrow_schema(table), prefer_timestamp_ntz=True)


def create(spark: SparkSession, table: LakeTable, metadata: str) -> int:
    """Create the empty Delta table of a lake table in its folder; its version is returned.

    ``metadata`` is the commit's userMetadata.  The folder must hold no Delta table.
    """
    folder = Path(table.location)
    folder.mkdir(parents=True, exist_ok=True)
    if any(NEEDS_MAPPING.intersection(column.name) for column in table.columns):
        _create_mapped(spark, table, metadata)
    else:
        DeltaTable.create(
            table.location,
            arrow_schema(table),
            mode="error",
            configuration=PROPERTIES,
            commit_properties=CommitProperties(custom_metadata={"userMetadata": metadata}),
            post_commithook_properties=_NO_HOOKS,
        )
    sync_versions(table.location, 0, 0)
    sync_path(folder)
    sync_path(folder.parent)
    return 0


def head_version(location: str) -> int | None:
    """The newest version in Delta's log; None when the folder holds no Delta table."""
    try:
        return int(DeltaTable(location).version())
    except TableNotFoundError:
        return None


def layout(location: str) -> Layout:
    """How the Delta table in a folder stores its columns, at its head."""
    return _layout(DeltaTable(location))


def append_files(table: LakeTable, files: Sequence[WrittenFile], metadata: str) -> int:
    """Commit files that lie in the table's folder as one append; the new version is returned.

    TableStateError when somebody else committed in between; nobody may while we hold the lock.
    """
    delta = DeltaTable(table.location)
    before = _layout(delta)
    if before.widened:
        _append_on_jvm(table.location, files, metadata)
    else:
        delta.create_write_transaction(
            [_add_action(file) for file in files],
            mode="append",
            schema=delta.schema(),
            partition_by=[],
            commit_properties=CommitProperties(custom_metadata={"userMetadata": metadata}),
            post_commithook_properties=_NO_HOOKS,
        )
    delta.update_incremental()
    version = int(delta.version())
    if version % CHECKPOINT_EVERY == 0 and not before.widened:
        delta.create_checkpoint()
    if version != before.version + 1:
        raise TableStateError(
            f'table "{table.schema}.{table.name}" was written by another at the same time',
            detail=f"Delta version {before.version} was followed by {version}.",
        )
    sync_versions(table.location, version, version)
    return version


def read(spark: SparkSession, table: LakeTable) -> DataFrame:
    """The table's rows at its committed version; no rows while it has no Delta table."""
    if table.version is None:
        return spark.createDataFrame([], spark_schema(table))
    frame = spark.read.format("delta").option("versionAsOf", table.version).load(table.location)
    return frame.select(*(quote_spark(column.name) for column in table.columns))


def restore(spark: SparkSession, location: str, version: int, metadata: str) -> int:
    """Make the state of an older version the newest again; the new head version is returned."""
    before = head_version(location)
    with user_metadata(spark, metadata):
        reach(Failpoint.RESTORE_STARTED)
        spark.sql(f"RESTORE TABLE {delta_path(location)} TO VERSION AS OF {version:d}")
    head = head_version(location)
    assert head is not None and before is not None
    sync_versions(location, before + 1, head)
    return head


def delta_path(location: str) -> str:
    """A Delta table in a folder, as Spark SQL names it."""
    return f"delta.{quote_spark(location)}"


@contextmanager
def user_metadata(spark: SparkSession, metadata: str) -> Iterator[None]:
    """Let the Delta commits that this session makes in the block carry this userMetadata."""
    spark.conf.set(_USER_METADATA, metadata)
    try:
        yield
    finally:
        spark.conf.unset(_USER_METADATA)


def _create_mapped(spark: SparkSession, table: LakeTable, metadata: str) -> None:
    properties = PROPERTIES | {"delta.columnMapping.mode": "name"}
    columns = ", ".join(
        f"{quote_spark(field.name)} {field.dataType.simpleString()}"
        for field in spark_schema(table).fields
    )
    settings = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    with user_metadata(spark, metadata):
        spark.sql(
            f"CREATE TABLE {delta_path(table.location)} ({columns}) USING delta"
            f" TBLPROPERTIES ({settings})"
        )


def _layout(delta: DeltaTable) -> Layout:
    fields = json.loads(delta.schema().to_json())["fields"]
    mapped = delta.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
    names = {
        field["name"]: field["metadata"]["delta.columnMapping.physicalName"] if mapped else name
        for field in fields
        for name in [field["name"]]
    }
    features = delta.protocol().writer_features or []
    widened = any(feature.startswith("typeWidening") for feature in features)
    return Layout(int(delta.version()), names, widened)


def _add_action(file: WrittenFile) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values={},
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=file.stats,
    )


def _append_on_jvm(location: str, files: Sequence[WrittenFile], metadata: str) -> None:
    """Commit through Delta's own OptimisticTransaction: an internal API, only used here."""
    spark = SparkSession.active()
    jvm = spark._jvm
    assert jvm is not None  # this is a classic session, not a Connect one
    delta = jvm.org.apache.spark.sql.delta
    actions = jvm.java.util.ArrayList()
    for file in files:
        added = {
            "path": file.path,
            "size": file.size,
            "partitionValues": {},
            "modificationTime": int(time.time() * 1000),
            "dataChange": True,
            "stats": file.stats,
        }
        actions.add(delta.actions.Action.fromJson(json.dumps({"add": added})))
    nothing = jvm.scala.Option.empty()
    operation = getattr(getattr(delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
    with user_metadata(spark, metadata):
        log = delta.DeltaLog.forTable(spark._jsparkSession, location)
        transaction = log.startTransaction(nothing, nothing)
        scala_actions = jvm.scala.jdk.javaapi.CollectionConverters.asScala(actions).toSeq()
        transaction.commit(scala_actions, operation)
