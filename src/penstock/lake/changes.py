# SPDX-License-Identifier: Apache-2.0
"""The change feed: the changes that one commit of the lake made in a table.

In:   a table as it was at the commit, and the ranges of Delta versions that its record names.
Out:  a DataFrame in the change schema (``change/schema.py``), not sorted: ``(commit_lsn, seq)``
      has the order.

Each version is what one statement, or one batch of a subscription, did.  Its rows that are gone and
those that came (``difference.py``) are paired by the table's key:

    gone    come    the change
    ----    ----    ----------
    yes     no      D, old is what the replica identity carries
    no      yes     I
    yes     yes     U, old is the whole row under REPLICA IDENTITY FULL, else null: the identity is
                    as it was; nothing at all when the rows are equal
    TRUNCATE        T

First come all D of a version, then its U and I, so a key is free before it is taken.  An UPDATE
that changes the key is a D and an I, and so is every UPDATE of a table without a key.  An UPDATE
that changes nothing is not told: a program that rewrites whole files carries rows along, and the
two look alike.

What is read together, and how rows are numbered, is in ``feed.py``.  Here everything is read by
Spark with Delta's reader, so a commit may be larger than the node's memory, and columns are pruned;
versions that only add rows are together one plain scan of their files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from penstock.change.relation import LakeTable
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
        gone = self._rows(part.version, part.gone, "old")
        if part.kind == "deletes":
            return self._changes(gone, DELETE, old=self._identity())
        return self._paired(gone, self._rows(part.version, part.come, "new"))

    def _rows(self, version: int, rows: Sequence[Placed], name: str) -> DataFrame:
        """Rows of files as a struct, with the places that they take."""
        files = [each.rows.masked for each in rows]
        # What the version is asked for is its columns, which are to be those of the table.
        version = max(version, self._table.version or 0)
        frame = scan_files(self._session, self._table.location, version, files)
        begins = [
            f"{quote_spark_literal(each.rows.file.path.rpartition('/')[2])}, {each.place}L"
            for each in rows
        ]
        begin = f"map({', '.join(begins)})[_metadata.file_name]"
        unknown = "CAST(raise_error('a row of a file that was not asked for') AS BIGINT)"
        fields = (  # a version before this one may have narrower types
            f"{quote_spark_literal(each.name)},"
            f" CAST({quote_spark(each.name)} AS {each.dataType.simpleString()})"
            for each in self._schema
        )
        return frame.selectExpr(
            f"coalesce({begin}, {unknown}) + _metadata.row_index AS seq",
            f"named_struct({', '.join(fields)}) AS {name}",
        )

    def _paired(self, gone: DataFrame, come: DataFrame) -> DataFrame:
        """Rows of one key are an UPDATE; without a key, equal rows are one that was carried."""
        key = self._table.key or tuple(each.name for each in self._schema)
        if not self._table.key:
            gone, come = _numbered(gone, "old"), _numbered(come, "new")
        same = [f.col("old")[name].eqNullSafe(f.col("new")[name]) for name in key]
        if not self._table.key:
            same.append(f.col("old_number") == f.col("new_number"))
        gone = gone.withColumnRenamed("seq", "old_seq")
        both = gone.join(come, reduce(Column.__and__, same), "full_outer")
        changed = both.where(~f.col("old").eqNullSafe(f.col("new")))
        no_old, no_new = f.col("old").isNull(), f.col("new").isNull()
        op = f.when(no_new, DELETE).when(no_old, INSERT).otherwise(UPDATE)
        told = changed.withColumn("seq", f.coalesce("seq", "old_seq"))
        old = f.when(no_new, self._identity())
        if self._table.identity == "f":
            old = f.col("old")
        return self._changes(told, op, old=old, new=f.col("new"))

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


def _numbered(rows: DataFrame, name: str) -> DataFrame:
    """Count equal rows."""
    number = f.row_number().over(Window.partitionBy(name).orderBy("seq"))
    return rows.withColumn(f"{name}_number", number)
