# SPDX-License-Identifier: Apache-2.0
"""Find rows of the target that a batch needs to know: by key, or by whole content.

Of a partitioned table all leaves are looked at, each at its version before the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from penstock.apply.frames import source_frame
from penstock.apply.prune import pruning_predicate
from penstock.change.relation import LakeTable
from penstock.lake.tables import arrow_schema, read
from penstock.names import quote_spark

BOUNDED_COLUMNS = 4
"""Columns of a content whose bounds prune; more rarely exclude more files."""


def look_up_keys(
    spark: SparkSession, tables: Sequence[LakeTable], keys: pa.Table, columns: Sequence[str]
) -> pa.Table:
    """The rows of these tables (leaves of one, or one) with these keys.

    ``keys`` has the key columns, without duplicates; the result has them and ``columns``.
    """
    names = keys.column_names
    wanted = [*names, *columns]
    predicate = pruning_predicate({name: keys.column(name) for name in names}, "t")
    target = _rows(spark, tables, wanted, predicate)
    if target is None:
        return _nothing(tables[0], wanted)
    asked = keys.rename_columns([f"k{at}" for at in range(len(names))])
    with source_frame(spark, [asked], asked.schema, keys.num_rows, tables[0].location) as source:
        on = [col(f"t.{quote_spark(name)}") == col(f"s.k{at}") for at, name in enumerate(names)]
        return target.join(source.alias("s"), on, "left_semi").toArrow()


def look_up_contents(
    spark: SparkSession, tables: Sequence[LakeTable], contents: pa.Table
) -> pa.Table:
    """All rows of these tables that equal one of ``contents`` (distinct) in its columns.

    The result has the tables' columns, and ``at``: the place of the content.  NULL equals NULL.
    """
    everything = [column.name for column in tables[0].columns]
    target = _rows(spark, tables, everything, content_predicate(contents, "t"))
    if target is None:
        schema = arrow_schema(tables[0])
        return schema.append(pa.field("at", pa.int64())).empty_table()
    names = [f"k{at}" for at in range(contents.num_columns)]
    asked = contents.rename_columns(names).append_column(
        "at", pa.array(range(contents.num_rows), pa.int64())
    )
    with source_frame(spark, [asked], asked.schema, asked.num_rows, tables[0].location) as source:
        on = [
            col(f"t.{quote_spark(name)}").eqNullSafe(col(f"s.k{at}"))
            for at, name in enumerate(contents.column_names)
        ]
        joined = target.join(source.alias("s"), on, "inner")
        return joined.select(
            *(col(f"t.{quote_spark(name)}") for name in everything), col("s.at")
        ).toArrow()


def content_predicate(contents: pa.Table, alias: str) -> str | None:
    """Bounds of a few columns that rows with these contents have."""
    columns = {name: contents.column(name) for name in contents.column_names[:BOUNDED_COLUMNS]}
    return pruning_predicate(columns, alias)


def _rows(
    spark: SparkSession, tables: Sequence[LakeTable], columns: Sequence[str], predicate: str | None
) -> DataFrame | None:
    distinct = {table.relid: table for table in tables if table.version is not None}
    if not distinct:
        return None
    frames: list[DataFrame] = []
    for table in distinct.values():
        frame = read(spark, table).alias("t")
        kept = frame.where(predicate) if predicate else frame
        frames.append(kept.select(*(quote_spark(name) for name in columns)))
    return reduce(DataFrame.unionAll, frames).alias("t")


def _nothing(table: LakeTable, names: Sequence[str]) -> pa.Table:
    schema = arrow_schema(table)
    return pa.schema([schema.field(name) for name in names]).empty_table()
