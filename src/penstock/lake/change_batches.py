# SPDX-License-Identifier: Apache-2.0
"""The change feed read by the node: Arrow from the data files, without a Spark job.

In:   a table as it was at the commit, and a part of a feed (``feed.py``).
Out:  the part's changes in the change schema, in order, as Arrow tables.

What is told of rows that are gone and rows that came is what ``changes.py`` tells, which has the
rules; a Spark job for each commit would cost more than a small commit itself.  Inserts and deletes
are read piece by piece, however many they are.  Rows of pairs are in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.change.codes import row_codes
from penstock.change.relation import Column, LakeTable, Relation
from penstock.change.row_before import FILE_COLUMN, PLACE_COLUMN, ROW_BEFORE_FIELDS
from penstock.change.schema import DELETE, INSERT, TRUNCATE, UPDATE, change_schema, row_type
from penstock.errors import TableStateError
from penstock.lake.feed import FeedPart, Placed
from penstock.lake.log import physical_names
from penstock.lake.reading import Ints, iter_group, open_file, positions

PIECE_ROWS = 65_536
"""Rows that are read at a time."""

PIECE_BYTES = 64 * 1024 * 1024
"""And about how many bytes they have at most, if all rows of a row group are alike."""


@dataclass(frozen=True)
class _Read:
    """Rows, and the ``seq`` of each."""

    rows: pa.Table
    seq: Ints

    def take(self, places: Ints) -> _Read:
        return _Read(self.rows.take(pa.array(places)), self.seq[places])


class ChangeReader:
    """Reads parts of a table's feed; ``table.version`` is the last of the commit."""

    def __init__(self, table: LakeTable, commit_lsn: int) -> None:
        assert table.version is not None  # a commit moved it
        self._table = table
        self._lsn = commit_lsn
        columns = tuple(Column(c.name, c.type_oid, c.typmod, False) for c in table.columns)
        relation = Relation(table.relid, table.schema, table.name, table.identity, columns)
        self._schema = change_schema(relation)
        self._row = row_type(relation)
        self._columns = pa.schema(list(self._row))
        # Those at the end: a column that was renamed since has the same name in its files.
        self._names = physical_names(table.location, table.version)
        for name in self._columns.names:
            if name not in self._names:
                raise TableStateError(
                    f'column "{name}" of a lake table is missing',
                    detail=f"Table with OID {table.relid} at version {table.version}.",
                )

    def changes(self, part: FeedPart) -> Iterator[pa.Table]:
        """A part's changes; TableStateError when a file is missing, or a vector damaged."""
        if part.kind == "truncate":
            yield self._told(TRUNCATE, np.array([part.place]))
        elif part.kind == "inserts":
            for read in self._pieces(part.come, self._columns):
                yield self._told(INSERT, read.seq, new=_struct(read.rows))
        elif part.kind == "deletes":
            for read in self._pieces(part.gone, self._columns):
                yield self._deleted(read)
        else:
            yield from self._paired(part)

    def _deleted(self, gone: _Read) -> pa.Table:
        return self._told(DELETE, gone.seq, old=self._identity(gone.rows))

    def _paired(self, part: FeedPart) -> Iterator[pa.Table]:
        """D, then U and I; the columns of change/row_before.py tell what was what, else the key."""
        gone = self._all(part.gone, self._columns)
        come = self._all(part.come, pa.schema([*self._columns, *ROW_BEFORE_FIELDS]))
        place = come.rows.column(PLACE_COLUMN)
        told = place.null_count == 0 and len(come.seq) > 0
        pair = self._pair_told(part, gone, come) if told else self._pair_by_key(gone, come)
        come = _Read(come.rows.select(self._columns.names), come.seq)
        deleted = np.setdiff1d(np.arange(len(gone.seq)), pair)
        if len(deleted):
            yield self._deleted(gone.take(deleted))
        if not told:
            kept = np.flatnonzero(~self._carried(gone, come, pair))
            pair, come = pair[kept], come.take(kept)
        if len(pair):
            yield self._arrived(gone.rows, pair, come)

    def _pair_told(self, part: FeedPart, gone: _Read, come: _Read) -> Ints:
        """For each row that came the number of the row that it was, by its file; or -1."""
        places = {each.rows.file.add["path"]: each.place for each in part.gone}
        paths = come.rows.column(FILE_COLUMN).combine_chunks().dictionary_encode()
        start = np.array([places.get(path, -1) for path in paths.dictionary.to_pylist()] + [-1])
        file = paths.indices.fill_null(-1).to_numpy()
        seq = start[file] + come.rows.column(PLACE_COLUMN).to_numpy()
        at = np.minimum(np.searchsorted(gone.seq, seq), len(gone.seq) - 1)
        inserted = file < 0
        if not (inserted | ((start[file] >= 0) & (gone.seq[at] == seq))).all():
            raise TableStateError(
                "a row of a data file was updated from one that its version did not take out",
                detail=f"Table with OID {self._table.relid}, version {part.version}.",
            )
        return np.where(inserted, -1, at)

    def _pair_by_key(self, gone: _Read, come: _Read) -> Ints:
        """The same by the table's key; without a key, equal rows are one that was carried."""
        before, after = self._pair_codes(gone, come)
        owner = np.full(int(max(before.max(initial=-1), after.max(initial=-1))) + 1, -1)
        owner[before] = np.arange(len(before))
        return owner[after]

    def _carried(self, gone: _Read, come: _Read, pair: Ints) -> Any:
        """Which rows that came are as they were."""
        carried = pair >= 0
        updated = np.flatnonzero(carried)
        same = _equal(gone.rows.take(pa.array(pair[updated])), come.take(updated).rows)
        carried[updated] = same
        return carried

    def _arrived(self, gone: pa.Table, pair: Ints, come: _Read) -> pa.Table:
        """The I and U of rows that came; ``pair``: the place of the row that was before, or -1."""
        op = pa.array(np.where(pair < 0, INSERT, UPDATE))
        before = gone.take(pa.array(pair, mask=pair < 0))
        old = None
        if self._table.identity == "f":
            old = _struct(before, pair < 0)
        elif self._table.identity != "n" and self._table.key:
            key = list(self._table.key)
            same = (pair < 0) | _equal(before.select(key), come.rows.select(key))
            old = None if same.all() else self._identity(before, same)
        return self._told(op, come.seq, old, _struct(come.rows))

    def _pair_codes(self, gone: _Read, come: _Read) -> tuple[Ints, Ints]:
        """Numbers by which rows are paired; none is twice on one side."""
        key = list(self._table.key or self._columns.names)
        both = pa.concat_tables([gone.rows.select(key), come.rows.select(key)])
        codes = row_codes(both.columns)
        if not self._table.key:  # equal rows are paired one by one, in their order
            codes = codes * len(codes)
            for side in (slice(None, len(gone.seq)), slice(len(gone.seq), None)):
                codes[side] += _occurrence(codes[side])
            codes = np.unique(codes, return_inverse=True)[1]
        return codes[: len(gone.seq)], codes[len(gone.seq) :]

    def _identity(self, rows: pa.Table, missing: Any = None) -> Any:
        """What the replica identity carries of rows; None when there is none."""
        table = self._table
        if table.identity == "f":
            return _struct(rows, missing)
        if table.identity == "n" or not table.key:
            return None
        columns = [
            rows.column(field.name) if field.name in table.key
            else pa.nulls(rows.num_rows, field.type)
            for field in self._columns
        ]  # fmt: skip
        return _struct(pa.table(columns, schema=self._columns), missing)

    def _told(self, op: Any, seq: Ints, old: Any = None, new: Any = None) -> pa.Table:
        count = len(seq)
        nothing = pa.nulls(count, self._row)
        columns = [
            pa.repeat(op, count) if isinstance(op, str) else op,
            pa.repeat(pa.scalar(self._lsn, pa.int64()), count),
            pa.array(seq, pa.int64()),
            nothing if old is None else old,
            nothing if new is None else new,
            pa.nulls(count, pa.list_(pa.string())),
        ]
        return pa.table(columns, schema=self._schema)

    def _all(self, placed: Sequence[Placed], columns: pa.Schema) -> _Read:
        pieces = list(self._pieces(placed, columns))
        nothing = np.zeros(0, np.int64)
        return _Read(
            pa.concat_tables([columns.empty_table(), *(each.rows for each in pieces)]),
            np.concatenate([nothing, *(each.seq for each in pieces)]),
        )

    def _pieces(self, placed: Sequence[Placed], columns: pa.Schema) -> Iterator[_Read]:
        """The rows of files, in their order; null where a file has not a column."""
        location = self._table.location
        for rows, place in placed:
            wanted = rows.positions(location)
            with _opened(Path(location) / rows.file.path) as parquet:
                for at, piece in self._rows_of(parquet, wanted, columns):
                    yield _Read(piece, at + place)

    def _rows_of(
        self, parquet: pq.ParquetFile, wanted: Ints | None, columns: pa.Schema
    ) -> Iterator[tuple[Ints, pa.Table]]:
        """Rows of a file at these positions, or all, with their positions."""
        for group in range(parquet.num_row_groups):
            at = positions(parquet, [group])
            if not len(at):
                continue
            here = at if wanted is None else _between(wanted, at[0], at[-1] + 1)
            if not len(here):
                continue
            start = int(at[0])
            count = _piece_rows(parquet, group)
            for piece in iter_group(parquet, group, self._names, columns, count):
                end = start + piece.num_rows
                chosen = _between(here, start, end)
                if len(chosen) == piece.num_rows:
                    yield chosen, piece
                elif len(chosen):
                    yield chosen, piece.take(pa.array(chosen - start))
                start = end


def _opened(path: Path) -> pq.ParquetFile:
    try:
        return open_file(path)
    except FileNotFoundError:
        raise TableStateError(
            f"a data file of a commit that is to be published is there no more: {path}",
            detail="Maintenance leaves alone what slots still need; something else removed it.",
        ) from None


def _between(ascending: Ints, low: int, high: int) -> Ints:
    """Those from ``low`` on and below ``high``."""
    return ascending[slice(*np.searchsorted(ascending, [low, high]))]


def _piece_rows(parquet: pq.ParquetFile, group: int) -> int:
    meta: Any = parquet.metadata.row_group(group)
    alike = PIECE_BYTES * int(meta.num_rows) // max(1, int(meta.total_byte_size))
    return max(1, min(PIECE_ROWS, alike))


def _struct(rows: pa.Table, missing: Any = None) -> Any:
    """Rows as one column; those ``missing`` are null."""
    columns = [_one_array(column) for column in rows.columns]
    mask = None if missing is None else pa.array(missing)
    return pa.StructArray.from_arrays(columns, fields=list(rows.schema), mask=mask)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return joined if isinstance(joined, pa.Array) else joined.chunk(0)


def _equal(these: pa.Table, those: pa.Table) -> Any:
    """Which rows are the same, place by place."""
    codes = row_codes(pa.concat_tables([these, those]).columns)
    return codes[: these.num_rows] == codes[these.num_rows :]


def _occurrence(codes: Ints) -> Ints:
    """The how manieth of equal codes each is, from 0."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    sizes = np.diff(np.append(starts, len(codes)))
    found = np.empty(len(codes), np.int64)
    found[order] = np.arange(len(codes)) - np.repeat(starts, sizes)
    return found
