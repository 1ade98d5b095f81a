# SPDX-License-Identifier: Apache-2.0
"""Change the columns of a Delta table as its relation's columns were changed.

In:   a lake table whose Delta head is its committed version, and the changes (lake/columns.py).
Out:  new Delta versions on top of it; the last one is returned.  They become true when the
      transaction that made the change in the control database commits.

Order of the Delta commits; each is there only when it is needed:

    1  features: column mapping by name, type widening, timestampNtz     one commit
    2  dropped columns                                                    one commit
    3  renames, through temporary names where names swap                  one each
    4  added columns                                                      one commit
    5  wider types                                                        one each
    6  existing rows get the constant of an added column                  one UPDATE

What RESTORE does after an abort at any of these points, tried on Delta 4.4.0: it brings back the
old metadata with the old columns, and switches column mapping off again when it was off; files
that were there before are read right in each of the cases, and the table takes new rows.  The
table's protocol keeps the features, which does no harm: column mapping counts only with its
property, and a table with type widening is written to through Delta's transaction instead of
deltalake's.  A reader at the old version reads the old columns throughout.

A dropped and re-added name is a new column to Delta (a new physical name), so old values do not
come back: a DROP always switches column mapping on.
"""

from __future__ import annotations

import dataclasses
import json
import re
import uuid

import numpy as np
import pyarrow as pa
from delta.tables import DeltaTable as SparkDeltaTable
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that PySpark's own guide uses
from pyspark.sql.pandas.types import from_arrow_type

from penstock.change.relation import LakeTable
from penstock.errors import ValueNotHeldError
from penstock.lake.columns import ColumnChanges, DefinedColumn, Definition, column_changes
from penstock.lake.durable import sync_versions
from penstock.lake.log import head_version, overtaken
from penstock.lake.session import GetSession
from penstock.lake.settle import XactStatus, commits_ahead, settle
from penstock.lake.tables import NEEDS_MAPPING, delta_path, user_metadata
from penstock.names import quote_spark
from penstock.pgoutput.columns import Cells, UnreadableValue, to_array

_MAPPING, _WIDENING = "delta.columnMapping.mode", "delta.enableTypeWidening"
_TIMESTAMP_NTZ = "delta.feature.timestampNtz"


def has_rows(table: LakeTable) -> bool:
    """Whether the table's committed version may have rows: whether it has any file."""
    if table.version is None:
        return False
    return bool(DeltaTable(table.location, version=table.version).file_uris())


def follow_columns(
    session: GetSession,
    table: LakeTable,
    definition: Definition,
    xact_status: XactStatus,
    metadata: str,
) -> int | None:
    """Let a locked table's Delta table follow; the new version, None when Delta has nothing to do.

    A head that an aborted writer left ahead is brought back first.  Whatever is refused is refused
    before anything is changed.  ConcurrentWriteError when another program has written the table
    and that is not registered yet.
    """
    changes = column_changes(
        definition.recorded,
        definition.defined,
        table=f"{table.schema}.{table.name}",
        has_rows=has_rows(table),
        rewrite=definition.rewrite,
    )
    if not changes:
        return None
    settled = settle(session, table, xact_status, metadata)
    return alter_table(session(), settled, changes, metadata)


def alter_table(
    spark: SparkSession, table: LakeTable, changes: ColumnChanges, metadata: str
) -> int:
    """Carry the changes out; the new head version is returned.

    ``metadata`` is the userMetadata of every Delta commit.  ValueNotHeldError when the constant of
    an added column is one that the lake cannot hold; that is known before anything is changed.
    """
    rows = has_rows(table)
    fills = {c.name: _constant(c, table) for c in changes.added if c.fill is not None and rows}
    before = head_version(table.location)
    assert before is not None
    with user_metadata(spark, metadata):
        for statement in _statements(table.location, changes):
            spark.sql(statement)
        if fills:
            SparkDeltaTable.forPath(spark, table.location).update(
                set={
                    quote_spark(name): F.lit(value.as_py()).cast(from_arrow_type(value.type, True))
                    for name, value in fills.items()
                }
            )
    after = head_version(table.location)
    node = json.loads(metadata)["penstock"]
    ours = commits_ahead(dataclasses.replace(table, version=before), after, node)
    if any(each.author is None for each in ours):
        raise overtaken(table.location, before + 1)
    assert after is not None
    sync_versions(table.location, before + 1, after)
    return after


def _statements(location: str, changes: ColumnChanges) -> list[str]:
    table = f"ALTER TABLE {delta_path(location)}"
    result = []
    features = _features(location, changes)
    if features:
        settings = ", ".join(f"'{name}' = '{value}'" for name, value in features.items())
        result.append(f"{table} SET TBLPROPERTIES ({settings})")
    if changes.dropped:
        names = ", ".join(quote_spark(name) for name in changes.dropped)
        result.append(f"{table} DROP COLUMNS ({names})")
    result += [
        f"{table} RENAME COLUMN {quote_spark(old)} TO {quote_spark(new)}"
        for old, new in rename_steps(changes.renamed)
    ]
    if changes.added:
        columns = ", ".join(f"{quote_spark(c.name)} {_spark_type(c)}" for c in changes.added)
        result.append(f"{table} ADD COLUMNS ({columns})")
    result += [
        f"{table} ALTER COLUMN {quote_spark(column.name)} TYPE {_spark_type(column)}"
        for column in changes.widened
    ]
    return result


def _features(location: str, changes: ColumnChanges) -> dict[str, str]:
    """Table properties that the changes need and the table has not."""
    delta = DeltaTable(location)
    has = delta.metadata().configuration
    supported = set(delta.protocol().writer_features or ())
    new_names = [column.name for column in changes.added] + [new for _, new in changes.renamed]
    wanted = {}
    if changes.dropped or changes.renamed or any(map(NEEDS_MAPPING.intersection, new_names)):
        wanted[_MAPPING] = "name"
    if changes.widened:
        wanted[_WIDENING] = "true"
    missing = {name: value for name, value in wanted.items() if has.get(name) != value}
    types = [_spark_type(column) for column in (*changes.added, *changes.widened)]
    if "timestampNtz" not in supported and any("timestamp_ntz" in each for each in types):
        missing[_TIMESTAMP_NTZ] = "supported"
    return missing


def rename_steps(renames: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    """Renames in an order in which no name is taken twice, names compared without case.

    Where they wait for each other (a swap), one column waits under a temporary name.
    """
    waiting = dict(renames)
    steps: list[tuple[str, str]] = []
    while waiting:
        taken = {name.lower() for name in waiting}
        free = [
            (old, new) for old, new in waiting.items() if new.lower() not in taken - {old.lower()}
        ]
        if not free:
            old, new = next(iter(waiting.items()))
            parked = f"penstock_{uuid.uuid4().hex}"
            steps.append((old, parked))
            del waiting[old]
            waiting[parked] = new
            continue
        for old, new in free:
            steps.append((old, new))
            del waiting[old]
    return steps


def _spark_type(column: DefinedColumn) -> str:
    return re.sub(r"\s", "", from_arrow_type(column.arrow, True).simpleString())


def _constant(column: DefinedColumn, table: LakeTable) -> pa.Scalar:
    """The value that existing rows get, read by the same rules as the stream's values."""
    text = (column.fill or "").encode()
    cells = Cells(
        np.frombuffer(text or b"\0", np.uint8),
        np.zeros(1, np.int32),
        np.array([len(text)], np.int32),
    )
    try:
        return to_array(cells, column.type_oid, column.typmod)[0]
    except UnreadableValue:
        raise ValueNotHeldError(
            f'default value "{column.fill}" of column "{column.name}" of table'
            f' "{table.schema}.{table.name}" cannot be held by the lake',
        ) from None
