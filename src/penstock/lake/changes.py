# SPDX-License-Identifier: Apache-2.0
"""The change feed: the changes that one commit of the lake made in a table.

In:   a table as it was at the commit, and the ranges of Delta versions that its record names.
Out:  a DataFrame in the change schema (``change/schema.py``), not sorted: ``(commit_lsn, seq)``
      has the order.

Each version is what one statement, or one batch of a subscription, did.  Its rows that are gone and
those that came (``difference.py``) are paired:

    gone    come    the change
    ----    ----    ----------
    yes     no      D, old is what the replica identity carries
    no      yes     I
    yes     yes     U, old is the whole row under REPLICA IDENTITY FULL; else the identity, or null
                    when it is as it was
    TRUNCATE        T

First come all D of a version, then its U and I, so a key is free before it is taken.

What SQL writes says itself which row was which (change/row_before.py), so its UPDATEs are told as
PostgreSQL tells them.  Of other versions, a subscription's or another program's, rows are paired by
the table's key: an UPDATE that changes the key is a D and an I, and so is every UPDATE of a table
without a key.  There an UPDATE that changes nothing is not told: a program that rewrites whole
files carries rows along, and the two look alike.

What is read together, and how rows are numbered, is in ``feed.py``.  Here everything is read by
Spark with Delta's reader, so a commit may be larger than the node's memory, and columns are pruned;
versions that only add rows are together one plain scan of their files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StringType, StructField, StructType

from penstock.change.relation import LakeTable
from penstock.change.row_before import FILE_COLUMN, PLACE_COLUMN
from penstock.change.schema import DELETE, INSERT, TRUNCATE, UPDATE
from penstock.lake.feed import FeedPart, Placed, feed_parts
from penstock.lake.scan import scan_files
from penstock.lake.tables import spark_schema
from penstock.names import quote_spark, quote_spark_literal


def commit_changes(
    session: SparkSession,
    table: LakeTable,
    ranges: Iterable[tuple[int, int]],
    commit_lsn: int,
) -> DataFrame:
    """The changes that versions ``ranges`` (both ends inclusive, ascending) made in a table.

    TableStateError when the log or a vector is not as it was written, or is there no more.
    """
    feed = _Feed(session, table, commit_lsn)
    frames = [feed.frame(part) for part in feed_parts(table.location, ranges)]
    return reduce(DataFrame.unionAll, frames) if frames else feed.nothing()


def part_changes(
    session: SparkSession, table: LakeTable, part: FeedPart, commit_lsn: int
) -> DataFrame:
    """The changes of one part."""
    return _Feed(session, table, commit_lsn).frame(part)


class _Feed:
    """Makes frames of parts."""

    def __init__(self, session: SparkSession, table: LakeTable, commit_lsn: int) -> None:
        self._session = session
        self._table = table
        self._commit_lsn = commit_lsn
        self._schema = spark_schema(table)

    def nothing(self) -> DataFrame:
        """No changes."""
        return self._changes(self._one_row(0).where("false"), INSERT)

    def frame(self, part: FeedPart) -> DataFrame:
        """A part's changes."""
        if part.kind == "truncate":
            return self._changes(self._one_row(part.place), TRUNCATE)
        if part.kind == "inserts":
            come = self._rows(part.version, part.come, "new")
            return self._changes(come, INSERT, new=f.col("new"))
        if part.kind == "deletes":
            gone = self._rows(part.version, part.gone, "old")
            return self._changes(gone, DELETE, old=self._identity())
        return self._paired(part)

    def _rows(self, version: int, rows: Sequence[Placed], name: str) -> DataFrame:
        """Rows of files as a struct, with the places that they take."""
        files = [each.rows.masked for each in rows]
        # What the version is asked for is its columns, which are to be those of the table.
        version = max(version, self._table.version or 0)
        frame = scan_files(self._session, self._table.location, version, files)
        fields = (  # a version before this one may have narrower types
            f"{quote_spark_literal(each.name)},"
            f" CAST({quote_spark(each.name)} AS {each.dataType.simpleString()})"
            for each in self._schema
        )
        return frame.selectExpr(
            f"{_begin(rows)} + _metadata.row_index AS seq",
            f"named_struct({', '.join(fields)}) AS {name}",
        )

    def _paired(self, part: FeedPart) -> DataFrame:
        """D, U and I; the columns of change/row_before.py tell what was what, else the key."""
        gone = self._rows(part.version, part.gone, "old").withColumnRenamed("seq", "old_seq")
        come = self._rows(part.version, part.come, "new")
        told = all(self._tells(each) for each in part.come)
        both = self._join_told(part, gone, come) if told else self._join_by_key(gone, come)
        no_old, no_new = f.col("old").isNull(), f.col("new").isNull()
        op = f.when(no_new, DELETE).when(no_old, INSERT).otherwise(UPDATE)
        old = f.col("old")
        if self._table.identity != "f":
            same = [f.col("old")[key].eqNullSafe(f.col("new")[key]) for key in self._table.key]
            moved = ~reduce(Column.__and__, same, f.lit(True))
            old = f.when(no_new | ~no_old & moved, self._identity())
        paired = both.withColumn("seq", f.coalesce("seq", "old_seq"))
        return self._changes(paired, op, old=old, new=f.col("new"))

    def _tells(self, placed: Placed) -> bool:
        """Whether a file has the columns of change/row_before.py."""
        path = Path(self._table.location) / placed.rows.file.path
        return PLACE_COLUMN in pq.read_schema(path).names

    def _join_told(self, part: FeedPart, gone: DataFrame, come: DataFrame) -> DataFrame:
        """Rows that came beside the row that each was, by its file and place."""
        columns = StructType(
            [StructField(FILE_COLUMN, StringType()), StructField(PLACE_COLUMN, LongType())]
        )
        files = [str(Path(self._table.location) / each.rows.file.path) for each in part.come]
        begins = ", ".join(
            f"{quote_spark_literal(each.rows.file.add['path'])}, {each.place}L"
            for each in part.gone
        )
        begin = f"coalesce(map({begins})[{FILE_COLUMN}], {_fails('was updated that is not gone')})"
        plain = self._session.read.schema(columns).option("__globPaths__", "false")
        raw = plain.parquet(*files).selectExpr(
            f"{_begin(part.come)} + _metadata.row_index AS seq",
            f"if({FILE_COLUMN} IS NULL, NULL, {begin} + {PLACE_COLUMN}) AS before_seq",
        )
        come = come.join(raw, "seq")
        return come.join(gone, f.col("before_seq") == f.col("old_seq"), "full_outer")

    def _join_by_key(self, gone: DataFrame, come: DataFrame) -> DataFrame:
        """Rows of one key; without a key, equal rows are one that was carried."""
        key = self._table.key or tuple(each.name for each in self._schema)
        if not self._table.key:
            gone, come = _numbered(gone, "old", "old_seq"), _numbered(come, "new", "seq")
        same = [f.col("old")[name].eqNullSafe(f.col("new")[name]) for name in key]
        if not self._table.key:
            same.append(f.col("old_number") == f.col("new_number"))
        both = gone.join(come, reduce(Column.__and__, same), "full_outer")
        return both.where(~f.col("old").eqNullSafe(f.col("new")))

    def _identity(self) -> Column:
        """What the replica identity carries of ``old``; null when there is none."""
        if self._table.identity == "f":
            return f.col("old")
        if self._table.identity == "n" or not self._table.key:
            return self._nothing()
        fields = []
        for each in self._schema:
            value = f.col("old")[each.name]
            if each.name not in self._table.key:
                value = f.lit(None).cast(each.dataType)
            fields.append(value.alias(each.name))
        return f.struct(*fields)

    def _changes(
        self,
        frame: DataFrame,
        op: str | Column,
        old: Column | None = None,
        new: Column | None = None,
    ) -> DataFrame:
        columns = {
            "op": f.lit(op) if isinstance(op, str) else op,
            "commit_lsn": f.lit(self._commit_lsn).cast("bigint"),
            "seq": f.col("seq"),
            "old": self._nothing() if old is None else old,
            "new": self._nothing() if new is None else new,
            "unchanged": f.lit(None).cast("array<string>"),
        }
        return frame.select(*(column.alias(name) for name, column in columns.items()))

    def _nothing(self) -> Column:
        return f.lit(None).cast(StructType(self._schema.fields))

    def _one_row(self, seq: int) -> DataFrame:
        return self._session.range(1).select(f.lit(seq).cast("bigint").alias("seq"))


def _begin(rows: Sequence[Placed]) -> str:
    """The place of the data file that a row is of; there may be one, and then all are of it."""
    if len(rows) == 1:
        return f"{rows[0].place}L"
    begins = ", ".join(
        f"{quote_spark_literal(each.rows.file.path.rpartition('/')[2])}, {each.place}L"
        for each in rows
    )
    return f"coalesce(map({begins})[_metadata.file_name], {_fails('was not asked for')})"


def _fails(why: str) -> str:
    return f"CAST(raise_error('a row of a data file {why}') AS BIGINT)"


def _numbered(rows: DataFrame, name: str, order: str) -> DataFrame:
    """Count equal rows."""
    number = f.row_number().over(Window.partitionBy(name).orderBy(order))
    return rows.withColumn(f"{name}_number", number)
