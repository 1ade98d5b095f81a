# SPDX-License-Identifier: Apache-2.0
"""Do a table's rows in the lake keep what a new constraint promises?

In:   a lake table, and promises that PostgreSQL took for kept because its own relation is empty.
Out:  nothing, or PostgreSQL's error for rows that do not keep them.

    promise                                looked at by Spark
    -------                                ------------------
    NOT NULL                               yes: 23502
    unique index or key over columns       yes: 23505
    unique index with WHERE or expression  refused with 0A000, when there are rows
    ATTACH PARTITION                       refused with 0A000, when there are rows
    foreign key                            yes: 23503 (lake/references.py)

Those of a CHECK are asked for by a query (frontdoor/definitions/checks.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that PySpark's own guide uses

from penstock.change.relation import LakeTable
from penstock.errors import FeatureNotSupportedError, PenstockError, UniqueViolationError
from penstock.lake.ddl import has_rows
from penstock.lake.references import ForeignKey, Missing
from penstock.lake.session import GetSession
from penstock.lake.tables import arrow_schema, read
from penstock.names import quote_spark

_REFUSED = {
    "partly unique": (
        "unique index {name} on table {table}, which has rows in the lake, is not supported",
        "It has a condition or an expression, which Spark could not evaluate as PostgreSQL does.",
        "Use a unique index over columns.",
    ),
    "partition": (
        "table {table}, which has rows in the lake, cannot become a partition of {name}",
        "Whether its rows fit the partition is not checked.",
        "Create the partition empty, and copy the rows into it.",
    ),
}


@dataclass(frozen=True)
class Promise:
    """A row of penstock.new_promises(): ``kind`` as there, ``name`` of the object for messages."""

    kind: str
    name: str
    columns: tuple[str, ...]


def check_promises(session: GetSession, table: LakeTable, promises: list[Promise]) -> None:
    """Look at the rows of the table's version; the table's columns are those of the version."""
    if not has_rows(table):
        return
    for promise in promises:
        if promise.kind in _REFUSED:
            message, detail, hint = (
                text.format(name=f'"{promise.name}"', table=f'"{table.schema}.{table.name}"')
                for text in _REFUSED[promise.kind]
            )
            raise FeatureNotSupportedError(message, detail=detail, hint=hint)
    for promise in promises:
        if promise.kind == "not null":
            _check_not_null(session(), table, promise)
        else:
            _check_unique(session(), table, promise)


def row_without_partner(
    session: GetSession, child: LakeTable, parents: Sequence[LakeTable], key: ForeignKey
) -> Missing | None:
    """A row that refers to none, as RI_Initial_Check() (ri_triggers.c) looks for one.

    The columns are comparable (lake/references.py).
    """
    if not has_rows(child):
        return None
    spark = session()
    names = [quote_spark(name) for name in key.child.columns]
    # Under names of their own, as a table may refer to itself.
    mine = [f"k{number}" for number in range(len(names))]
    theirs = [f"r{number}" for number in range(len(names))]
    keys = read(spark, child).select(*names).toDF(*mine).dropna("all").distinct()
    mixed = reduce(or_, (F.col(name).isNull() for name in mine))
    if key.full:
        found = _first(keys.where(mixed), child, key)
        if found is not None:
            return Missing(0, found, mixed=True)
    referenced = [quote_spark(name) for name in key.parent.columns]
    there = [read(spark, each).select(*referenced).toDF(*theirs) for each in parents]
    met = [F.col(one) == F.col(other) for one, other in zip(mine, theirs, strict=True)]
    left = keys.where(~mixed).join(reduce(DataFrame.union, there), met, "left_anti")
    found = _first(left, child, key)
    return None if found is None else Missing(0, found)


def _first(keys: DataFrame, child: LakeTable, key: ForeignKey) -> pa.Table | None:
    """The first key, in the columns of the table that refers."""
    found = keys.limit(1).toArrow()
    if not found.num_rows:
        return None
    schema = arrow_schema(child)
    fields = [schema.field(name) for name in key.child.columns]
    return found.rename_columns(list(key.child.columns)).cast(pa.schema(fields))


def _check_not_null(spark: SparkSession, table: LakeTable, promise: Promise) -> None:
    column = F.col(quote_spark(promise.name))
    if read(spark, table).where(column.isNull()).limit(1).count():
        raise PenstockError(
            f'column "{promise.name}" of relation "{table.name}" contains null values',
            sqlstate="23502",
        )


def _check_unique(spark: SparkSession, table: LakeTable, promise: Promise) -> None:
    columns = [quote_spark(name) for name in promise.columns]
    rows = read(spark, table).select(*columns)
    if promise.kind == "unique":  # nulls are distinct
        rows = rows.dropna()
    twice = rows.groupBy(*columns).count().where("count > 1").first()
    if twice is not None:
        key = ", ".join(promise.columns)
        values = ", ".join("null" if value is None else str(value) for value in twice[:-1])
        raise UniqueViolationError(
            f'could not create unique index "{promise.name}"',
            detail=f"Key ({key})=({values}) is duplicated.",
        )
