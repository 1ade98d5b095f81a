# SPDX-License-Identifier: Apache-2.0
"""What one statement does to one table: unique keys looked for, files written, one commit.

In:   a locked table, rows that go, and rows that come, which PostgreSQL has computed and checked.
Out:  the table's next Delta version; nothing counts until the control database's COMMIT.

PostgreSQL has compared the statement's rows with each other; here they are compared with those
that the lake has.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.change.last_change import LAST_CHANGE_FIELDS
from penstock.change.relation import LakeTable
from penstock.change.row_before import ROW_BEFORE_FIELDS
from penstock.failpoints import Failpoint, reach
from penstock.lake.files import FILE_BYTES, WrittenFile, write_file
from penstock.lake.find import Hits, find_rows
from penstock.lake.log import physical_names
from penstock.lake.placed import Places, places_of_hits, union
from penstock.lake.session import GetSession
from penstock.lake.settle import XactStatus, settle
from penstock.lake.tables import append_files, arrow_schema, change_rows, create, truncate
from penstock.lake.updates import Updates


@dataclass(frozen=True)
class UniqueIndex:
    """A unique index over columns; ``nulls_distinct``: rows with a null in them never conflict."""

    name: str
    columns: tuple[str, ...]
    nulls_distinct: bool


class DuplicateKeyError(Exception):
    """A row's key is in the lake already; ``key`` are the values of the index' columns."""

    def __init__(self, index: UniqueIndex, key: pa.Table) -> None:
        super().__init__(index.name)
        self.index = index
        self.key = key


@dataclass(frozen=True)
class Written:
    """``version`` is the table's Delta version now; ``first`` to it are the statement's own."""

    version: int
    first: int
    created: bool
    kind: str


@dataclass(frozen=True)
class Change:
    """What a statement does to a table.

    ``gone`` has the ascending positions of rows by the path of their data file, ``rows`` what comes
    in the table's columns and types.  ``checked``: PostgreSQL has compared the keys of ``rows``
    with those of all rows that stay.  ``truncates``: all rows go, and none comes; with ``options``
    (change/schema.py).  ``updates`` says which of ``gone`` each of ``rows`` was; None when there
    are only inserts or deletes.
    """

    gone: Mapping[str, NDArray[np.uint64]]
    rows: pa.Table
    checked: bool = False
    truncates: bool = False
    options: int = 0
    updates: Updates | None = None

    def __bool__(self) -> bool:
        return bool(self.gone) or self.rows.num_rows > 0 or self.truncates


def write_change(
    session: GetSession,
    table: LakeTable,
    uniques: Sequence[UniqueIndex],
    change: Change,
    xact_status: XactStatus,
    metadata: str,
) -> Written:
    """Bring a change, which is not empty, into a locked table, after settling its head.

    ``metadata`` is the userMetadata of the Delta commits.  DuplicateKeyError for the first row
    whose key the lake has.  ConcurrentWriteError (40001) when another program has written the
    table; the other errors are those of ``settle``.
    """
    table = settle(session, table, xact_status, metadata)
    check_keys(session, table, uniques, change)
    created = table.version is None
    if created:
        table = dataclasses.replace(table, version=create(session, table, metadata))
    version, kind = _commit(table, change, metadata)
    reach(Failpoint.WRITE_DELTA_COMMITTED)
    return Written(version, 0 if created else version, created, kind)


def _commit(table: LakeTable, change: Change, metadata: str) -> tuple[int, str]:
    """The Delta commit: its version, and what it is in the commit record."""
    if change.truncates:
        return truncate(table, metadata, change.options), "truncate"
    files = list(_files(table, change))
    if change.gone:
        return change_rows(table, change.gone, files, metadata), "merge"
    return append_files(table, files, metadata), "append"


def check_keys(
    session: GetSession, table: LakeTable, uniques: Sequence[UniqueIndex], change: Change
) -> None:
    """DuplicateKeyError for the first row whose key the lake has."""
    if change.checked or change.truncates:
        return
    for unique in uniques:
        asked, hits = _met(session, table, unique, change)
        if len(hits):
            raise DuplicateKeyError(unique, asked.slice(int(hits.at.min()), 1))


def conflicting(
    session: GetSession, table: LakeTable, uniques: Sequence[UniqueIndex], change: Change
) -> Places:
    """Where the rows are that stay, and have a key of a row that comes."""
    return union([places_of_hits(_met(session, table, each, change)[1]) for each in uniques])


def _met(
    session: GetSession, table: LakeTable, unique: UniqueIndex, change: Change
) -> tuple[pa.Table, Hits]:
    """Keys of rows that come, and rows that have them and stay."""
    asked = change.rows.select(list(unique.columns))
    if unique.nulls_distinct:
        asked = asked.drop_null()
    hits = find_rows(table, asked, session)
    return asked, hits.only(staying(hits, change))


def staying(hits: Hits, change: Change) -> NDArray[np.bool_]:
    """Which rows a change of their table leaves."""
    stays = np.ones(len(hits), bool)
    for number, file in enumerate(hits.files):
        gone = change.gone.get(file.add["path"])
        if gone is not None:
            stays &= (hits.file != number) | ~np.isin(hits.row, gone.astype(np.int64))
    return stays


def _files(table: LakeTable, change: Change) -> Iterator[WrittenFile]:
    names = physical_names(table.location, table.version)
    physical = [names[field.name] for field in arrow_schema(table)]
    rows = change.rows.rename_columns(physical)
    if change.updates is not None:
        for before, values in zip(ROW_BEFORE_FIELDS, change.updates.columns, strict=True):
            rows = rows.append_column(before, values)
    # No subscription has written them, and their time is now: what a row's file says counts,
    # whatever else the commit does (lake/births.py).
    for field, value in zip(LAST_CHANGE_FIELDS, (None, time.time_ns() // 1000), strict=True):
        rows = rows.append_column(field, pa.repeat(pa.scalar(value, pa.int64()), rows.num_rows))
    step = max(1, int(rows.num_rows * FILE_BYTES / max(rows.nbytes, FILE_BYTES)))
    for start in range(0, rows.num_rows, step):
        yield write_file(rows.slice(start, step), table.location)
