# SPDX-License-Identifier: Apache-2.0
"""New rows of one statement into one table: unique keys looked for, files written, one commit.

In:   a locked table, rows that PostgreSQL has computed and checked, and xids that may be asked for.
Out:  the table's next Delta version; nothing counts until the control database's COMMIT.

PostgreSQL has compared the statement's rows with each other; here they are compared with those
that the lake has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.change.relation import LakeTable
from penstock.failpoints import Failpoint, reach
from penstock.lake.files import WrittenFile, write_file
from penstock.lake.find import find_rows
from penstock.lake.log import physical_names
from penstock.lake.session import GetSession
from penstock.lake.settle import XactStatus, settle
from penstock.lake.tables import append_files, arrow_schema, create

FILE_BYTES = 256 * 1024 * 1024
"""Arrow bytes after which another file begins; about a fifth of that on disk."""


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
class Inserted:
    """``version`` is the table's Delta version now; ``first`` to it are the statement's own."""

    version: int
    first: int
    created: bool


def insert_rows(
    session: GetSession,
    table: LakeTable,
    uniques: Sequence[UniqueIndex],
    rows: pa.Table,
    xact_status: XactStatus,
    metadata: str,
) -> Inserted:
    """Append rows (in the table's columns and types) to a locked table, after settling its head.

    ``metadata`` is the userMetadata of the Delta commits.  DuplicateKeyError for the first row
    whose key the lake has.  ConcurrentWriteError (40001) when another program has written the
    table; the other errors are those of ``settle``.
    """
    table = settle(session, table, xact_status, metadata)
    for unique in uniques:
        _check_unique(session, table, unique, rows)
    created = table.version is None
    if created:
        table = dataclasses.replace(table, version=create(session, table, metadata))
    assert table.version is not None
    files = list(_written(table, rows))
    version = append_files(table, files, metadata)
    reach(Failpoint.WRITE_DELTA_COMMITTED)
    return Inserted(version, 0 if created else version, created)


def _check_unique(
    session: GetSession, table: LakeTable, unique: UniqueIndex, rows: pa.Table
) -> None:
    asked = rows.select(list(unique.columns))
    if unique.nulls_distinct:
        asked = asked.drop_null()
    hits = find_rows(table, asked, session)
    if len(hits):
        raise DuplicateKeyError(unique, asked.slice(int(hits.at.min()), 1))


def _written(table: LakeTable, rows: pa.Table) -> Iterator[WrittenFile]:
    names = physical_names(table.location, table.version)
    physical = [names[field.name] for field in arrow_schema(table)]
    rows = rows.rename_columns(physical)
    step = max(1, int(rows.num_rows * FILE_BYTES / max(rows.nbytes, FILE_BYTES)))
    for start in range(0, rows.num_rows, step):
        yield write_file(rows.slice(start, step), table.location)
