# SPDX-License-Identifier: Apache-2.0
"""A batch for one table: staged files and the commits in them that count, read in commit order.

In:   ChangeFiles of one published relation, perhaps of several versions of its definition.
Out:  for each record batch its relation, and of its rows those whose commit lies in the range.

Reading is repeatable: the same rows in the same order each time, so a row's position in the batch
names it.  The columns that net effects are computed from are read first, the rest as a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


Takes = Callable[[pa.Table], pa.Array]
"""Says of rows, in a partition leaf's columns, which of them belong into it; null is no."""

COMPUTED = "computed"
"""The struct of columns that are read beside the changes, if a batch has any (TableBatch)."""


@dataclass(frozen=True)
class Generated:
    """The generated columns of a table: ``compute`` gives its rows with them.

    ``reads`` are the columns that they are computed from.  ``compute`` raises ComputedValueError.
    """

    reads: frozenset[str]
    compute: Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class TableBatch:
    """Changes for one table: all with ``from_lsn <= commit_lsn <= to_lsn``.

    ``takes`` is there when the target is a partition leaf and may not take every row;
    ``siblings`` are then all leaves of the partitioned table at their versions before the batch:
    rows that a key change moves between leaves are found there.
    ``commits`` are the transactions, those of the range at least; None leaves open who changes the
    rows and when.
    ``computed`` has, by a change's position in the batch, the columns that are not published and
    have a value of their own in each inserted row (fill.py).  ``generated`` computes the target's
    generated columns, if it has any.
    """

    files: Sequence[ChangeFile]
    from_lsn: int
    to_lsn: int
    takes: Takes | None = None
    siblings: Sequence[LakeTable] = ()
    commits: Commits | None = None
    computed: pa.Table | None = None
    generated: Generated | None = None

    @property
    def restarts(self) -> bool:
        """Whether a TRUNCATE that restarts identity is among the changes."""
        return any(
            self.from_lsn <= lsn <= self.to_lsn for file in self.files for lsn in file.restarts
        )

    def read(self, fields: Sequence[str]) -> Iterator[tuple[Relation, pa.RecordBatch]]:
        """Rows of the change schema with these fields only (``old.id`` reads one struct field).

        And COMPUTED, if there is any.
        """
        wanted = ["op", "commit_lsn", *fields]
        position = 0
        for file in self.files:
            with pq.ParquetFile(file.path) as parquet:
                for rows in parquet.iter_batches(batch_size=READ_ROWS, columns=wanted):
                    counted = self._in_range(rows)
                    if counted.num_rows:
                        yield file.relation, self._with_computed(counted, position)
                        position += counted.num_rows

    def last_change(self, commit_lsn: pa.Array) -> list[pa.Array]:
        """The columns of change/last_change.py for rows that these commits write."""
        count = len(commit_lsn)
        if self.commits is None:
            return [pa.nulls(count, pa.int64())] * 2
        times = self.commits.times(commit_lsn.to_numpy())
        return [pa.array(np.full(count, self.commits.subid)), pa.array(times)]

    def _with_computed(self, rows: pa.RecordBatch, position: int) -> pa.RecordBatch:
        if self.computed is None:
            return rows
        values = self.computed.slice(position, rows.num_rows).combine_chunks().to_struct_array()
        return rows.append_column(COMPUTED, pa.concat_arrays(values.chunks))

    def _in_range(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        lsn = rows.column("commit_lsn")
        inside = pc.and_(pc.greater_equal(lsn, self.from_lsn), pc.less_equal(lsn, self.to_lsn))
        return rows if pc.all(inside).as_py() else rows.filter(inside)
