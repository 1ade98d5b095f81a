# SPDX-License-Identifier: Apache-2.0
"""What copies a pack of ranges: read them from the publisher, write Parquet files.

In:   ranges (a statement each), a cursor of ADBC in a transaction under the exported snapshot.
Out:  per range and lake table the files that were written, with statistics; nothing is visible
      until the node commits them.  When it fails, it removes the files that it wrote.

ADBC reads with ``COPY (statement) TO STDOUT (FORMAT binary)``.  Memory is bounded: about
FILE_BYTES of Arrow for each range that is being read, whatever the range's size.

No Spark here: this module is what executors import (copy_spark.py), and the node for itself
(copy_node.py).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
import pyarrow.compute as pc

from penstock.change.last_change import LAST_CHANGE_FIELDS
from penstock.errors import DiskFullError, PenstockError
from penstock.lake.copy_source import WHERE, lost
from penstock.lake.copy_values import CopyColumn, held
from penstock.lake.files import WrittenFile, write_file

FILE_BYTES = 128 * 1024 * 1024
"""Arrow bytes that become one file (a third to a tenth of that on disk)."""


class CopyStoppedError(PenstockError):
    """The copy was asked to stop; nothing of it is visible."""

    sqlstate = "57014"


@dataclass(frozen=True)
class CopyLeaf:
    """A lake table with rows of its own.

    ``location`` is the folder of its Delta table; ``physical`` are the names that the target's
    columns have in that table's files.
    """

    relid: int
    location: str
    physical: tuple[str, ...]


@dataclass(frozen=True)
class CopyTarget:
    """A subscribed lake table: what is copied, and where it goes.

    ``leaves`` is the table itself, or, when rows are ``routed``, the leaf partitions of a
    partitioned one.  ``sort_by`` are the key columns' places among the columns; files are sorted
    by them.
    """

    relid: int
    name: str
    columns: tuple[CopyColumn, ...]
    sort_by: tuple[int, ...]
    leaves: tuple[CopyLeaf, ...]
    routed: bool = False


@dataclass(frozen=True)
class CopyRange:
    """A part of one table.

    ``statement`` selects the target's columns in order; then, for each of ``checked`` (places of
    columns), the text of a value that the lake cannot hold, else null; then, when rows are routed,
    the number of the row's leaf, null for none.
    ``estimate`` is its size in bytes, for balance only.
    """

    target: CopyTarget
    statement: str
    checked: tuple[int, ...]
    estimate: int


@dataclass(frozen=True)
class RangeCopied:
    """A finished range: rows read, and files per leaf."""

    relid: int
    rows: int
    files: tuple[tuple[int, WrittenFile], ...]


def be_ready(_: int) -> None:
    """Do nothing: to call it, a worker has imported this module and the driver for PostgreSQL."""


def copy_ranges(
    cursor: adbc.Cursor,
    ranges: Sequence[CopyRange],
    prefix: str,
    last_change: tuple[int, int] | None = None,
) -> list[RangeCopied]:
    """Copy ranges one after the other; file names start with ``prefix``.

    ``last_change`` is that of Source.  ValueNotHeldError, ConnectionLostError, DiskFullError, the
    publisher's error, or ADBC's, which a block of copy_source.py makes one of these.
    """
    done: list[RangeCopied] = []
    with ExitStack() as on_error:
        for each in ranges:
            writer = _RangeWriter(each.target, prefix, last_change)
            on_error.callback(writer.remove)
            cursor.execute(each.statement)
            with cursor.fetch_record_batch() as reader:
                for batch in _batches(reader):
                    writer.write(batch, each)
            done.append(writer.finish())
        on_error.pop_all()
    return done


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """The reader's batches; what goes wrong while rows arrive has a text and nothing else."""
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except (OSError, pa.ArrowException) as error:
            reported = re.search(r"ERROR:  (.*)", str(error))
            if reported is None:
                raise lost(str(error)) from error
            raise PenstockError(reported[1], where=WHERE) from error
        yield batch


class _RangeWriter:
    """Collects a range's rows per leaf and writes a file whenever enough are there."""

    def __init__(
        self, target: CopyTarget, prefix: str, last_change: tuple[int, int] | None
    ) -> None:
        self._target = target
        self._last_change = last_change
        self._prefix = prefix
        self._schema = pa.schema([pa.field(c.name, c.type) for c in target.columns])
        self._waiting: list[list[pa.RecordBatch]] = [[] for _ in target.leaves]
        self._bytes = [0] * len(target.leaves)
        self._files: list[tuple[int, WrittenFile]] = []
        self._rows = 0

    def write(self, batch: pa.RecordBatch, source: CopyRange) -> None:
        """Take one batch of the statement's result."""
        columns = self._target.columns
        for number, place in enumerate(source.checked, len(columns)):
            bad = batch.column(number).drop_null()
            if len(bad):
                raise columns[place].not_held(bad[0].as_py(), self._target.name)
        arrays = [
            held(batch.column(place), column, self._target.name)
            for place, column in enumerate(columns)
        ]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._rows += rows.num_rows
        if not self._target.routed:
            self._add(0, rows)
            return
        leaf = batch.column(batch.num_columns - 1)
        if leaf.null_count:
            raise PenstockError(
                f'no partition of relation "{self._target.name}" found for row',
                detail="The publisher has a row that no partition of the lake's table accepts.",
                sqlstate="23514",
            )
        for place in pc.unique(leaf).to_pylist():
            self._add(place, rows.filter(pc.equal(leaf, place)))

    def finish(self) -> RangeCopied:
        """Write what is left."""
        for leaf in range(len(self._waiting)):
            self._flush(leaf)
        return RangeCopied(self._target.relid, self._rows, tuple(self._files))

    def remove(self) -> None:
        """Remove the files of a range whose task failed."""
        locations = {leaf.relid: leaf.location for leaf in self._target.leaves}
        for relid, file in self._files:
            Path(locations[relid], file.path).unlink(missing_ok=True)

    def _add(self, leaf: int, rows: pa.RecordBatch) -> None:
        self._waiting[leaf].append(rows)
        self._bytes[leaf] += rows.nbytes
        if sum(self._bytes) >= FILE_BYTES:
            self._flush(self._bytes.index(max(self._bytes)))

    def _flush(self, leaf: int) -> None:
        if not self._waiting[leaf]:
            return
        rows = pa.Table.from_batches(self._waiting[leaf], self._schema)
        self._waiting[leaf], self._bytes[leaf] = [], 0
        at = self._target.leaves[leaf]
        rows = rows.rename_columns(list(at.physical))
        keys = [at.physical[place] for place in self._target.sort_by]
        if keys and _ascends(rows.column(keys[0])):
            keys = keys[:1]
        elif keys:
            rows = rows.sort_by([(name, "ascending") for name in keys])
        for field, value in zip(LAST_CHANGE_FIELDS, self._last_change or (), strict=False):
            rows = rows.append_column(field, pa.repeat(value, rows.num_rows))
        try:
            file = write_file(rows, at.location, self._prefix, keys)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise DiskFullError(
                "no space left for the initial copy",
                detail=f'The folder is "{at.location}".',
                hint="Make room; the copy begins again by itself.",
            ) from error
        self._files.append((at.relid, file))


def _ascends(column: pa.ChunkedArray) -> bool:
    """Whether a column's values ascend already, as keys in most tables do."""
    earlier, later = column.slice(0, max(0, len(column) - 1)), column.slice(1)
    return column.null_count == 0 and pc.all(pc.less_equal(earlier, later)).as_py() is not False
