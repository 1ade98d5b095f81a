# SPDX-License-Identifier: Apache-2.0
"""What is done to copied rows that only the control database can do.

In:   a table's files as the readers of the copy have written them: without columns that the
      publisher does not send and that are computed for each row; of a partitioned table whose
      leaves the publisher does not know, all as if they belonged into the first one.
Out:  files with these columns, of the leaves that the rows belong into, in their place.

Readers may be executors on other machines, which know the publisher but not the control database.
So the node does it, file by file on its cores; tables that need none of it are not touched.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.apply.batch import Generated, Takes
from penstock.apply.leaf import no_partition, outside_of_all
from penstock.apply.values import check_not_null
from penstock.change.last_change import LAST_CHANGE
from penstock.change.relation import LakeTable
from penstock.change.types import arrow_type
from penstock.errors import PenstockError
from penstock.lake.copy import TableCopied
from penstock.lake.copy_range import CopyLeaf, CopyStoppedError, CopyTarget
from penstock.lake.files import ROW_GROUP_ROWS, NewFile, WrittenFile, repetitive
from penstock.lake.find import on_all_cores
from penstock.workers.defaults import Defaults, compute_defaults
from penstock.workers.row_values import RowValues


@dataclass(frozen=True)
class CopyFill:
    """What the rows of one copied table get; ``leaves`` are its tables with rows, by relid.

    ``physical`` are the names of their columns in files, ``generated`` what they generate.
    ``takes`` says which rows belong into them, where the publisher cannot; it is empty elsewhere.
    """

    values: RowValues
    defaults: Defaults
    leaves: Mapping[int, LakeTable]
    physical: Mapping[int, Mapping[str, str]]
    generated: Mapping[int, Generated | None]
    takes: Mapping[int, Takes] = field(default_factory=dict)

    def needed(self, published: frozenset[str]) -> bool:
        """Whether there is a column to compute, or one that may not be null and would be.

        Or rows to bring to their leaves.
        """
        given = published | self.defaults.constants.keys()
        return bool(self.defaults.varying or self.takes) or any(
            column.generated or (column.not_null and column.name not in given)
            for leaf in self.leaves.values()
            for column in leaf.columns
        )

    def complete(self, copied: TableCopied, stopping: threading.Event) -> None:
        """Put other files in the place of those that were copied.

        When it fails, neither are there: ComputedValueError, NotNullViolationError,
        NoPartitionError, with the table as context; CopyStoppedError.
        """
        leaves = {leaf.relid: leaf for leaf in copied.target.leaves}
        files = [(relid, file) for relid, its in copied.files.items() for file in its]
        done: dict[int, list[WrittenFile]] = {relid: [] for relid in leaves}

        def work(number: int) -> None:
            if stopping.is_set():
                raise CopyStoppedError("the initial copy was stopped")
            for relid, written in self._completed(copied.target, *files[number]):
                done[relid].append(written)

        with ExitStack() as on_error:
            on_error.callback(_remove, leaves, copied.files)
            on_error.callback(_remove, leaves, done)
            for _ in on_all_cores(work, range(len(files))):
                pass
            on_error.pop_all()
        _remove(leaves, copied.files)
        copied.files = {relid: its for relid, its in done.items() if its}

    def _completed(
        self, target: CopyTarget, relid: int, file: WrittenFile
    ) -> list[tuple[int, WrittenFile]]:
        """The files that a file becomes, by their leaf; they are made a group of rows at a time."""
        leaves = {leaf.relid: leaf for leaf in target.leaves}
        prefix = file.path.removesuffix(".parquet")
        new: dict[int, NewFile] = {}
        with ExitStack() as opened:
            path = Path(leaves[relid].location, file.path)
            parquet = opened.enter_context(pq.ParquetFile(path))
            for batch in parquet.iter_batches(ROW_GROUP_ROWS):
                for to, rows in self._rows(target, relid, pa.table(batch)):
                    if to not in new:
                        keys = [leaves[to].physical[place] for place in target.sort_by]
                        place = leaves[to].location
                        made = NewFile(place, rows.schema, prefix, keys, repetitive(rows))
                        new[to] = opened.enter_context(made)
                    new[to].write(rows)
        return [(to, made.written) for to, made in new.items() if made.written is not None]

    def _rows(
        self, target: CopyTarget, relid: int, read: pa.Table
    ) -> Iterator[tuple[int, pa.Table]]:
        """Rows of a file by their leaf, as its files have them; an error's context is the table."""
        try:
            for to, rows in self._parts(target.name, relid, self._given(relid, read)):
                yield to, self._finished(to, rows)
        except PenstockError as error:
            error.where = f"COPY {self.leaves[relid].name}"
            raise

    def _given(self, relid: int, read: pa.Table) -> pa.Table:
        """Rows by the names of columns, with all of them; the generated ones are null."""
        table, physical, count = self.leaves[relid], self.physical[relid], read.num_rows
        missing = {c.name for c in table.columns if physical[c.name] not in read.column_names}
        computed = compute_defaults(self.values, self.defaults, missing, count)
        columns = {}
        for column in table.columns:
            kind = arrow_type(column.type_oid, column.typmod)
            if column.name not in missing:
                columns[column.name] = read.column(physical[column.name]).cast(kind)
            else:
                columns[column.name] = computed.get(column.name, pa.nulls(count, kind))
        rows = pa.table(columns)
        for name in LAST_CHANGE:
            if name in read.column_names:
                rows = rows.append_column(read.schema.field(name), read.column(name))
        return rows

    def _parts(self, root: str, relid: int, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """The rows of each leaf; NoPartitionError for one that none takes."""
        if not self.takes:
            yield relid, rows
            return
        if len(outside_of_all(rows, list(self.takes.values()))):
            raise no_partition(root.rpartition(".")[2])
        for leaf, takes in self.takes.items():
            part = rows.filter(takes(rows))
            if part.num_rows:
                yield leaf, part

    def _finished(self, relid: int, rows: pa.Table) -> pa.Table:
        """The rows with what the leaf generates, by the names and in the order of its files."""
        table, generated = self.leaves[relid], self.generated[relid]
        if generated is not None:
            rows = generated.compute(rows)
        for column in table.columns:
            if column.not_null:
                check_not_null(rows.column(column.name), None, column, table.name)
        own = [column.name for column in table.columns]
        more = [name for name in LAST_CHANGE if name in rows.column_names]
        physical = self.physical[relid]
        return rows.select(own + more).rename_columns([*map(physical.__getitem__, own), *more])


def _remove(leaves: Mapping[int, CopyLeaf], files: Mapping[int, list[WrittenFile]]) -> None:
    for relid, its in files.items():
        for file in its:
            Path(leaves[relid].location, file.path).unlink(missing_ok=True)
