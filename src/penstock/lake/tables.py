# SPDX-License-Identifier: Apache-2.0
"""Delta tables: create, append, read at a version, bring back to a version.

A LakeTable's ``location`` is the folder; its ``version`` is the committed one, and only the
control database moves it.  Everything here writes new versions on top of Delta's head; the caller
holds the table's lock and has settled the head (``lake/settle.py``).

Without Spark where possible: a table is created in 4 ms by ``deltalake``, and files and deletion
vectors are committed in 2 ms by log.py; through Spark it takes 0.3 s and more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import CommitProperties, PostCommitHookProperties
from numpy.typing import NDArray
from pyroaring import BitMap64
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.change.relation import LakeTable
from penstock.change.schema import TRUNCATE_OPTIONS
from penstock.change.types import arrow_type
from penstock.errors import FeatureNotSupportedError
from penstock.failpoints import Failpoint, reach
from penstock.lake.durable import sync_path, sync_versions
from penstock.lake.files import WrittenFile
from penstock.lake.log import (
    Action,
    actions_of,
    commit,
    data_files,
    head_version,
    overtaken,
)
from penstock.lake.scan import scan
from penstock.lake.session import GetSession
from penstock.lake.vectors import read_bitmap, write_vectors
from penstock.names import quote_spark

NEEDS_MAPPING = frozenset(" ,;{}()\n\t=")
"""Characters that Delta accepts in a column name only with column mapping."""

CHECKPOINT_EVERY = 20
"""Versions after which the log gets a checkpoint; opening a table reads the entries since the last
one, 0.2 ms each, and a checkpoint of some files takes 7 ms.  Spark makes its own at every tenth
version that it commits."""

PROPERTIES = {"delta.enableDeletionVectors": "true"}

_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


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


def create(session: GetSession, table: LakeTable, metadata: str) -> int:
    """Create the empty Delta table of a lake table in its folder; its version is returned.

    ``metadata`` is the commit's userMetadata.  The folder must hold no Delta table.
    FeatureNotSupportedError for a table without columns, of which Delta Lake has none.
    """
    if not table.columns:
        raise FeatureNotSupportedError(
            f'cannot hold rows of table "{table.schema}.{table.name}" without columns'
        )
    folder = Path(table.location)
    folder.mkdir(parents=True, exist_ok=True)
    if any(NEEDS_MAPPING.intersection(column.name) for column in table.columns):
        _create_mapped(session(), table, metadata)
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


def append_files(table: LakeTable, files: Sequence[WrittenFile], metadata: str) -> int:
    """Commit files that lie in the table's folder as one append; the new version is returned.

    ConcurrentWriteError when another program made that version.
    """
    return commit_actions(table, [added(file) for file in files], "WRITE", metadata)


def change_rows(
    table: LakeTable,
    gone: Mapping[str, NDArray[np.uint64]],
    files: Sequence[WrittenFile],
    metadata: str,
) -> int:
    """Commit that rows are gone and that files with new rows are there; the new version.

    ``gone`` has, by the path in a data file's action, the ascending positions of rows that the
    version before still had.  Errors are those of ``append_files``.
    """
    assert table.version is not None
    there = data_files(table.location, table.version)
    now = int(time.time() * 1000)
    actions = [there[path].removed(now) for path in gone]
    masks: dict[str, BitMap64] = {}
    for path, rows in gone.items():
        all_gone = read_bitmap(table.location, there[path].vector) | BitMap64(rows)
        if len(all_gone) < there[path].stats.get("numRecords", np.inf):
            masks[path] = all_gone
    if masks:
        vectors = write_vectors(table.location, masks)
        actions += [there[path].masked(vector) for path, vector in vectors.items()]
    actions += [added(file) for file in files]
    return commit_actions(table, actions, "MERGE", metadata)


def truncate(table: LakeTable, metadata: str, options: int = 0) -> int:
    """Commit that all rows are gone; the new version.

    ``options`` are those of the TRUNCATE (change/schema.py), which a publication of it tells.
    """
    assert table.version is not None
    now = int(time.time() * 1000)
    files = data_files(table.location, table.version).values()
    removed = [file.removed(now) for file in files]
    said = {name: str(bool(options & bit)).lower() for name, bit in TRUNCATE_OPTIONS.items()}
    return commit_actions(table, removed, "TRUNCATE", metadata, said)


def read(spark: SparkSession, table: LakeTable) -> DataFrame:
    """The table's rows at its committed version; no rows while it has no Delta table."""
    if table.version is None:
        return spark.createDataFrame([], spark_schema(table))
    frame = scan(spark, Path(table.location), table.version)
    return frame.select(*(quote_spark(column.name) for column in table.columns))


def restore(session: GetSession, location: str, version: int, metadata: str) -> int:
    """Make the state of an older version the newest again; the new head version is returned.

    Spark does it when the table's definition has changed since.  ConcurrentWriteError when another
    program wrote at the same time.
    """
    before = head_version(location)
    assert before is not None
    reach(Failpoint.RESTORE_STARTED)
    since = chain.from_iterable(actions_of(location, n) for n in range(version + 1, before + 1))
    if any("metaData" in action or "protocol" in action for action in since):
        spark = session()
        with user_metadata(spark, metadata):
            spark.sql(f"RESTORE TABLE {delta_path(location)} TO VERSION AS OF {version:d}")
        if head_version(location) != before + 1:
            raise overtaken(location, before + 1)
        sync_versions(location, before + 1, before + 1)
        return before + 1
    # By identity: a commit that removes and adds the same file with the same vector is not valid.
    wanted, there = (
        {file.identity: file for file in data_files(location, each).values()}
        for each in (version, before)
    )
    now = int(time.time() * 1000)
    actions = [file.removed(now) for name, file in there.items() if name not in wanted]
    actions += [file.again() for name, file in wanted.items() if name not in there]
    commit(location, before + 1, actions, "RESTORE", metadata)
    return before + 1


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


def added(file: WrittenFile, data_change: bool = True) -> Action:
    """The action that puts a new file in."""
    return {
        "add": {
            "path": quote(file.path),
            "partitionValues": {},
            "size": file.size,
            "modificationTime": int(time.time() * 1000),
            "dataChange": data_change,
            "stats": file.stats,
        }
    }


def commit_actions(
    table: LakeTable,
    actions: Sequence[Action],
    operation: str,
    metadata: str,
    parameters: Mapping[str, str] | None = None,
) -> int:
    """One version on top of the table's, which is what ``actions`` were made from.

    And now and then a checkpoint.
    """
    assert table.version is not None  # the caller has created the table
    location, version = table.location, table.version + 1
    sync_path(Path(location))  # the entries of the new files in the folder
    commit(location, version, actions, operation, metadata, parameters)
    if version % CHECKPOINT_EVERY == 0:
        DeltaTable(location, version=version).create_checkpoint()
        sync_versions(location, version, version)
    return version
