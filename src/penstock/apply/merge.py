# SPDX-License-Identifier: Apache-2.0
"""The Delta commits that apply makes with Spark: one MERGE, an append, a DELETE of all rows.

Settings that were measured to matter are set on the worker's own session for each job: a MERGE's
source is stable, so Delta need not copy it first; a small one is broadcast, without adaptive
execution and with two shuffle partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from penstock.apply.keyed import DELETE
from penstock.apply.net import CHECK, INSERT, REPLACE, UPDATE
from penstock.change.relation import LakeTable
from penstock.errors import UniqueViolationError
from penstock.lake.tables import delta_path, user_metadata
from penstock.names import quote_spark

SMALL_ROWS = 50_000
"""Source rows up to which a MERGE runs with a broadcast source and two shuffle partitions."""

_DUPLICATE = "penstock duplicate key"


@contextmanager
def job_settings(spark: SparkSession, rows: int, metadata: str) -> Iterator[None]:
    """Set this session up for a commit with ``rows`` source rows and this userMetadata."""
    small = rows <= SMALL_ROWS
    settings = {
        "spark.databricks.delta.merge.materializeSource": "none",
        "spark.sql.adaptive.enabled": str(not small).lower(),
        "spark.sql.shuffle.partitions": "2" if small else None,
    }
    for name, value in settings.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)
    with user_metadata(spark, metadata):
        yield


def keyed_merge(
    spark: SparkSession,
    target: LakeTable,
    source: DataFrame,
    partial: Sequence[str],
    predicate: str | None,
) -> None:
    """Merge a source (keyed.py) into the target.

    UniqueViolationError when a row that must not be there is.
    """
    columns = {column.name: f"s.c{at}" for at, column in enumerate(target.columns)}
    on = [f"t.{quote_spark(name)} = {columns[name]}" for name in target.key]
    if predicate is not None:
        on.append(f"({predicate})")
    updates = {}
    for name, value in columns.items():
        kept = f"s.keep{partial.index(name)}" if name in partial else None
        mine = f"t.{quote_spark(name)}"
        updates[quote_spark(name)] = f"if({kept}, {mine}, {value})" if kept else value
    first = target.key[0]
    key_text = ", ".join(f"coalesce(cast({columns[name]} AS string), '')" for name in target.key)
    raised = f"raise_error(concat('{_DUPLICATE}: (', concat_ws(', ', {key_text}), ')'))"
    merge = (
        DeltaTable.forPath(spark, target.location)
        .alias("t")
        .merge(source.alias("s"), " AND ".join(on))
        .whenMatchedUpdate(f"s.op IN ({INSERT}, {CHECK})", {quote_spark(first): raised})
        .whenMatchedDelete(f"s.op = {DELETE}")
        .whenMatchedUpdate(f"s.op IN ({UPDATE}, {REPLACE})", updates)
        .whenNotMatchedInsert(
            f"s.op IN ({INSERT}, {REPLACE})",
            {quote_spark(name): value for name, value in columns.items()},
        )
    )
    try:
        merge.execute()
    except (PySparkException, Py4JJavaError) as error:
        raise _duplicate(error, target) or error from None


def whole_row_merge(
    spark: SparkSession,
    target: LakeTable,
    source: DataFrame,
    columns: Sequence[str],
    predicate: str | None,
) -> None:
    """Merge a source (whole.py) into the target: rows that equal a DELETE in ``columns`` go."""
    places = {column.name: f"s.c{at}" for at, column in enumerate(target.columns)}
    on = [f"s.op = {DELETE}"]
    on += [f"t.{quote_spark(name)} <=> {places[name]}" for name in columns]
    if predicate is not None:
        on.append(f"({predicate})")
    (
        DeltaTable.forPath(spark, target.location)
        .alias("t")
        .merge(source.alias("s"), " AND ".join(on))
        .whenMatchedDelete()
        .whenNotMatchedInsert(
            f"s.op = {INSERT}", {quote_spark(name): value for name, value in places.items()}
        )
        .execute()
    )


def append(source: DataFrame, target: LakeTable) -> None:
    """Append a source's rows (columns ``c0`` …) to the target."""
    named = source.select(
        *(col(f"c{at}").alias(column.name) for at, column in enumerate(target.columns))
    )
    named.write.format("delta").mode("append").save(target.location)


def empty(spark: SparkSession, target: LakeTable) -> None:
    """Remove all rows; Delta only writes its log for that."""
    spark.sql(f"DELETE FROM {delta_path(target.location)}")


def in_leaf(source: DataFrame, target: LakeTable, only: str) -> DataFrame:
    """A source's rows that satisfy a predicate over the target's columns."""
    others = [name for name in source.columns if not name.startswith("c")]
    named = source.select(
        *others,
        *(col(f"c{at}").alias(column.name) for at, column in enumerate(target.columns)),
    ).where(only)
    return named.select(
        *others,
        *(
            col(quote_spark(column.name)).alias(f"c{at}")
            for at, column in enumerate(target.columns)
        ),
    )


def _duplicate(error: Exception, target: LakeTable) -> UniqueViolationError | None:
    """The key violation inside a Spark error, if it is one."""
    text = str(error)
    _, found, rest = text.partition(f"{_DUPLICATE}: ")
    if not found:
        return None
    values = rest.split("\n", 1)[0].split(" SQLSTATE", 1)[0]
    return UniqueViolationError(
        f'duplicate key value violates unique constraint "{target.name}_pkey"',
        detail=f"Key ({', '.join(target.key)})={values} already exists.",
    )
