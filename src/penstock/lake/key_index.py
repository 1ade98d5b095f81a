# SPDX-License-Identifier: Apache-2.0
"""The keys of a data file in order, beside it: keys are found without reading the key columns.

In:   a data file of a table with a key, and keys to look for.
Out:  the positions in the file of the rows that have them, rows that are gone included.

    <table>/_penstock_keys/<name of the data file>.<its size>.arrow       an Arrow IPC file
        number   int64, ascending within a record batch: of the key (key_hash.py)
        row      uint32: the row's position in the data file
        …        the key columns, if a number does not say the key

A data file never changes, so neither does its index, and which rows are gone is not in it.  It is
memory-mapped; a look-up touches some pages for each key, so its cost depends on the keys asked for
and hardly on the rows.  A record batch, a *run*, has the keys of some row groups, ``run_bytes`` at
most: so a file of any size is indexed in some hundred MB for each core.

Nothing here is durable state.  An index is made when rows are looked for and is missed, written
under another name, synced and renamed; one that is torn, or of another file, key or version of
this module, counts as missing and is replaced.  VACUUM, Spark and Delta's other programs pass over
folders whose name begins with ``_``; ``remove_unneeded`` takes away what no file of the version
needs, and a dropped table's folder goes as a whole.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.change.codes import row_codes
from penstock.change.relation import LakeTable
from penstock.lake.key_hash import has_numbers, is_number, key_numbers
from penstock.lake.log import DataFile, data_files, physical_names
from penstock.lake.reading import Ints, open_file, read_groups
from penstock.lake.tables import arrow_schema

log = logging.getLogger(__name__)

FOLDER = "_penstock_keys"
VERSION = b"1"

Found = tuple[Ints, Ints]
"""Positions of rows in a data file, ascending, and which of the keys asked for each of them has."""


@dataclass(frozen=True)
class Indexing:
    """From what size on a file gets an index, and how much of one is made at a time.

    ``rows`` to look through, and these at least one in ``share`` of their file, make an index:
    fewer are read in some milliseconds, and who changes only the end of a very large file need not
    wait for it.  ``run_bytes`` of keys, as Arrow has them, are sorted together; one row group may
    have more.
    """

    rows: int = 64 * 1024
    share: int = 16
    run_bytes: int = 32 * 1024 * 1024

    def pays(self, rows: int, all_rows: int) -> bool:
        """Whether a file is indexed when so many of its rows would have to be looked through."""
        return rows >= max(self.rows, all_rows // self.share)


INDEXING = Indexing()


@dataclass(frozen=True)
class KeySearch:
    """Distinct keys to look for in files of a table.

    ``numbers`` are those of the keys, ascending; number i is that of key ``at[i]``.  ``names`` says
    what the key columns are called in the files.
    """

    location: str
    names: Mapping[str, str]
    keys: pa.Table
    numbers: Ints
    at: Ints
    indexing: Indexing

    def path(self, file: DataFile) -> Path:
        """Where the index of a data file is."""
        return Path(self.location, FOLDER, index_name(file))

    def indexed(self, file: DataFile) -> bool:
        """Whether a data file seems to have an index."""
        return self.path(file).exists()

    def find(self, file: DataFile) -> Found | None:
        """Look into the index of a data file; None when there is none, or none that helps."""
        reader = self._open(file)
        if reader is None:
            return None
        found = [self._find_in(reader.get_batch(n)) for n in range(reader.num_record_batches)]
        if any(each is None for each in found):
            return None
        rows = np.concatenate([np.zeros(0, np.int64), *(each[0] for each in found if each)])
        at = np.concatenate([np.zeros(0, np.int64), *(each[1] for each in found if each)])
        order = np.argsort(rows)
        return rows[order], at[order]

    def make(self, file: DataFile) -> bool:
        """Index a data file; False when that is not possible: a key is null, the disk is full."""
        schema = _schema(file, self.names, self.keys.schema)
        path = self.path(file)
        draft = path.with_name(f".{uuid.uuid4()}.tmp")
        try:
            path.parent.mkdir(exist_ok=True)
            try:
                with open_file(Path(self.location) / file.path) as parquet:
                    if not self._write(parquet, draft, schema):
                        return False
                draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the keys of %s are not indexed: %s", file.path, error)
            return False
        return True

    def _open(self, file: DataFile) -> pa.ipc.RecordBatchFileReader | None:
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(self.path(file))))
        except FileNotFoundError:
            return None
        except (OSError, pa.ArrowInvalid) as error:
            log.warning("the index of the keys of %s cannot be read: %s", file.path, error)
            return None
        expected = _schema(file, self.names, self.keys.schema)
        return reader if reader.schema.equals(expected, check_metadata=True) else None

    def _find_in(self, run: pa.RecordBatch) -> Found | None:
        """Look into one run; None when so many keys have one number that it is of no use."""
        numbers = run.column(0).to_numpy()
        first = np.searchsorted(self.numbers, numbers[0], "left")
        last = np.searchsorted(self.numbers, numbers[-1], "right")
        asked = self.numbers[first:last]
        start = np.searchsorted(numbers, asked, "left")
        met = np.flatnonzero(numbers[start] == asked)
        start = start[met]
        count = np.searchsorted(numbers, asked[met], "right") - start
        if count.sum() > len(numbers):
            return None
        ends = np.cumsum(count)
        place = np.arange(count.sum()) + np.repeat(start - (ends - count), count)
        at = np.repeat(self.at[first + met], count)
        if run.num_columns > 2:
            there = pa.table(run.columns[2:], schema=self.keys.schema).take(pa.array(place))
            both = pa.concat_tables([self.keys.take(pa.array(at)), there])
            codes = row_codes(both.columns)
            same = codes[: len(at)] == codes[len(at) :]
            place, at = place[same], at[same]
        return run.column(1).to_numpy()[place].astype(np.int64), at

    def _write(self, parquet: pq.ParquetFile, path: Path, schema: pa.Schema) -> bool:
        start = 0
        with path.open("xb") as sink:
            with pa.ipc.new_file(sink, schema) as writer:
                for keys in self._runs(parquet):
                    if any(column.null_count for column in keys.columns):
                        return False
                    numbers = key_numbers(keys)
                    order = np.argsort(numbers, kind="stable")
                    rows = (start + order).astype(np.uint32)
                    columns = [pa.array(numbers[order]), pa.array(rows)]
                    if len(schema) > 2:
                        kept = keys.combine_chunks().take(pa.array(order))
                        columns += [column.combine_chunks() for column in kept.columns]
                    writer.write_batch(pa.record_batch(columns, schema=schema))
                    start += keys.num_rows
            sink.flush()
            os.fsync(sink.fileno())
        return True

    def _runs(self, parquet: pq.ParquetFile) -> Iterator[pa.Table]:
        """The keys of consecutive row groups, as many together as a run holds."""
        pending: list[pa.Table] = []
        for group in range(parquet.num_row_groups):
            keys = read_groups(parquet, [group], self.names, self.keys.schema)
            size = sum(each.nbytes for each in pending) + keys.nbytes
            if pending and size > self.indexing.run_bytes:
                yield pa.concat_tables(pending)
                pending = []
            if keys.num_rows:
                pending.append(keys)
        if pending:
            yield pa.concat_tables(pending)


def key_search(
    table: LakeTable, names: Mapping[str, str], asked: pa.Table, indexing: Indexing = INDEXING
) -> KeySearch | None:
    """A search for keys of a table; None when ``asked`` are no keys, or such without an index."""
    if not table.key or set(asked.column_names) != set(table.key):
        return None
    keys = asked.select(list(table.key))
    if not has_numbers(keys.schema) or any(column.null_count for column in keys.columns):
        return None
    numbers = key_numbers(keys)
    at = np.argsort(numbers)
    return KeySearch(table.location, names, keys, numbers[at], at, indexing)


def index_again(table: LakeTable, sources: Sequence[DataFile], file: DataFile) -> None:
    """Index a file that takes the place of others, if one of those is indexed."""
    names = physical_names(table.location, table.version)
    nothing = arrow_schema(table).empty_table().select(list(table.key))
    search = key_search(table, names, nothing)
    if search is not None and any(search.indexed(each) for each in sources):
        search.make(file)


def remove_unneeded(table: LakeTable) -> int:
    """Remove the indexes of files that the version does not have, and what a crash has left.

    The caller holds the table's lock.  How many files were removed.
    """
    assert table.version is not None
    folder = Path(table.location, FOLDER)
    if not folder.exists():
        return 0
    files = data_files(table.location, table.version).values()
    needed = {index_name(file) for file in files}
    unneeded = [path for path in folder.iterdir() if path.name not in needed]
    for path in unneeded:
        path.unlink(missing_ok=True)
    return len(unneeded)


def index_name(file: DataFile) -> str:
    """The name of a data file's index."""
    return f"{quote(file.path, safe='')}.{file.add['size']}.arrow"


def _schema(file: DataFile, names: Mapping[str, str], key: pa.Schema) -> pa.Schema:
    """The schema of a file's index; its metadata says what it is the index of."""
    physical = [field.with_name(names.get(field.name, field.name)) for field in key]
    fields = [pa.field("number", pa.int64()), pa.field("row", pa.uint32())]
    return pa.schema(
        fields if is_number(key) else [*fields, *physical],
        {
            b"penstock.version": VERSION,
            b"penstock.file": index_name(file).encode(),
            b"penstock.key": pa.schema(physical).to_string(show_schema_metadata=False).encode(),
        },
    )
