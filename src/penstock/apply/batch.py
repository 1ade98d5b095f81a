# SPDX-License-Identifier: Apache-2.0
"""A batch for one table: staged files and the commits in them that count, read in commit order.

In:   ChangeFiles of one published relation, perhaps of several versions of its definition.
Out:  for each record batch its relation, and of its rows those whose commit lies in the range.

Reading is repeatable: the same rows in the same order each time, so a row's position in the batch
names it.  The columns that net effects are computed from are read first, the rest as a stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from penstock.change.relation import LakeTable, Relation
from penstock.staging.segment import ChangeFile

READ_ROWS = 128 * 1024
"""Rows that are in memory at once while values are streamed; with wide rows some 100 MB."""


@dataclass(frozen=True)
class Commits:
    """The remote transactions that a batch is of, and the subscription (its OID) that gets them.

    ``rows``: array [n, 4] by commit LSN, the fields of Transaction.
    """

    subid: int
    rows: NDArray[np.int64]

    def places(self, commit_lsn: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of ``rows`` these commits are."""
        return np.searchsorted(self.rows[:, 0], commit_lsn)

    def times(self, commit_lsn: NDArray[np.int64]) -> NDArray[np.int64]:
        """Their times, in microseconds since 1970-01-01 UTC."""
        times: NDArray[np.int64] = self.rows[self.places(commit_lsn), 2]
        return times


@dataclass(frozen=True)
class TableBatch:
    """Changes for one table: all with ``from_lsn <= commit_lsn <= to_lsn``.

    ``only`` is a Spark SQL predicate over the target's columns, when it is a partition leaf;
    ``siblings`` are then all leaves of the partitioned table at their versions before the batch:
    rows that a key change moves between leaves are found there.
    ``commits`` are the transactions, those of the range at least; None leaves open who changes the
    rows and when.
    """

    files: Sequence[ChangeFile]
    from_lsn: int
    to_lsn: int
    only: str | None = None
    siblings: Sequence[LakeTable] = ()
    commits: Commits | None = None

    def read(self, fields: Sequence[str]) -> Iterator[tuple[Relation, pa.RecordBatch]]:
        """Rows of the change schema with these fields only (``old.id`` reads one struct field)."""
        wanted = ["op", "commit_lsn", *fields]
        for file in self.files:
            with pq.ParquetFile(file.path) as parquet:
                for rows in parquet.iter_batches(batch_size=READ_ROWS, columns=wanted):
                    counted = self._in_range(rows)
                    if counted.num_rows:
                        yield file.relation, counted

    def last_change(self, commit_lsn: pa.Array) -> list[pa.Array]:
        """The columns of change/last_change.py for rows that these commits write."""
        count = len(commit_lsn)
        if self.commits is None:
            return [pa.nulls(count, pa.int64())] * 2
        times = self.commits.times(commit_lsn.to_numpy())
        return [pa.array(np.full(count, self.commits.subid)), pa.array(times)]

    def _in_range(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        lsn = rows.column("commit_lsn")
        inside = pc.and_(pc.greater_equal(lsn, self.from_lsn), pc.less_equal(lsn, self.to_lsn))
        return rows if pc.all(inside).as_py() else rows.filter(inside)
