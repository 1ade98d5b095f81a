# SPDX-License-Identifier: Apache-2.0
"""Commits of the lake as DataFrames of what is published of them.

In:   commits, and what is published of which relation, the same for all of them.
Out:  frames in the change schema of the relation as which each is published; together, not sorted.

    a part of a feed is         its changes are read
    --------------------------  ----------------------------------------------------------------
    small, and all that are     at once, here, as the node reads them (``change_batches.py``); they
      no more than TOGETHER       are one frame for each relation, whatever the number of commits
    else                        by Spark, when the frame is read (``changes.py``)

A frame for each part would have Spark plan and run as many scans: half a second for each commit.
Row filters and column lists are applied by Spark, to all alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.change.relation import Relation
from penstock.lake.change_batches import ChangeReader
from penstock.lake.changes import part_changes
from penstock.lake.feed import FeedPart
from penstock.publish.expand import ACTIONS, Published, Step, feed_steps
from penstock.publish.transform import published_changes


class Size(NamedTuple):
    """Rows that are read, and the bytes that they take in data files."""

    rows: int
    bytes: int


SMALL = Size(50_000, 2 * 1024 * 1024)
"""A part that is read here."""

TOGETHER = Size(1_000_000, 32 * 1024 * 1024)
"""All that is read here for one ``ChangeFrames``; in memory it may be ten times those bytes."""

_SEQ_OF_TABLE = 1 << 40
"""A commit's changes in several tables have ``seq`` in ranges of this size."""


class Commit(NamedTuple):
    """A commit's LSN and the tables of its record."""

    lsn: int
    tables: list[dict[str, Any]]


@dataclass(frozen=True)
class PublishedFrame:
    """Changes that commits from ``first`` to ``last`` made, as those of ``relation``."""

    first: int
    last: int
    relation: Relation
    frame: DataFrame


class ChangeFrames:
    """Makes the frames of one range of commits.

    ``session`` is one that ``lake.query.filter_session`` made.
    """

    def __init__(self, session: SparkSession, lake_root: Path) -> None:
        self._session = session
        self._lake_root = lake_root
        self._rows, self._bytes = TOGETHER

    def published(
        self, commits: Sequence[Commit], published: Mapping[int, Published]
    ) -> Iterator[PublishedFrame]:
        """What is published of commits with the same definitions.

        TableStateError when Delta's log or files are not as they were written, or are there no
        more.
        """
        small: dict[int, list[pa.Table]] = defaultdict(list)
        lsns: dict[int, list[int]] = defaultdict(list)
        readers: dict[tuple[int, str], ChangeReader] = {}
        for commit in commits:
            for step in feed_steps(commit.tables, published, self._lake_root):
                if not self._takes(step.part):
                    yield self._large(commit.lsn, step)
                    continue
                table = step.table
                key = table.relid, table.location
                if key not in readers:
                    readers[key] = ChangeReader(table, commit.lsn)
                found = readers[key].changes(step.part)
                small[table.relid] += _placed(found, commit.lsn, step.number)
                lsns[table.relid].append(commit.lsn)
        for relid, tables in small.items():
            first, last = lsns[relid][0], lsns[relid][-1]
            yield self._published(first, last, published[relid], self._frame(tables))

    def _takes(self, part: FeedPart) -> bool:
        """Whether a part is to be read here."""
        rows, size = part.rows, part.bytes
        if rows > min(SMALL.rows, self._rows) or size > min(SMALL.bytes, self._bytes):
            return False
        self._rows, self._bytes = self._rows - rows, self._bytes - size
        return True

    def _large(self, lsn: int, step: Step) -> PublishedFrame:
        changes = part_changes(self._session, step.table, step.part, lsn)
        if step.number:
            changes = changes.withColumn("seq", f.col("seq") + step.number * _SEQ_OF_TABLE)
        compiled = step.published.compiled
        told = ACTIONS.get(step.part.kind, ())
        # What the part cannot have is left out: each step of a plan takes Spark time to analyse.
        filters = {action: of for action, of in compiled.filters.items() if action in told}
        narrowed = replace(step.published, compiled=replace(compiled, filters=filters))
        return self._published(lsn, lsn, narrowed, changes)

    def _frame(self, tables: Sequence[pa.Table]) -> DataFrame:
        schema = from_arrow_schema(tables[0].schema, prefer_timestamp_ntz=True)
        return self._session.createDataFrame(pa.concat_tables(tables).combine_chunks(), schema)

    def _published(
        self, first: int, last: int, published: Published, changes: DataFrame
    ) -> PublishedFrame:
        frame = published_changes(changes, published.compiled)
        return PublishedFrame(first, last, published.plan.relation, frame)


def _placed(tables: Iterable[pa.Table], lsn: int, number: int) -> list[pa.Table]:
    """Changes of the table with this number in the record of the commit at ``lsn``."""
    placed = []
    for table in tables:
        columns = dict(zip(table.schema.names, table.columns, strict=True))
        columns["commit_lsn"] = pa.repeat(pa.scalar(lsn, pa.int64()), table.num_rows)
        columns["seq"] = pc.add(columns["seq"], number * _SEQ_OF_TABLE)
        placed.append(pa.table(list(columns.values()), schema=table.schema))
    return placed
