# SPDX-License-Identifier: Apache-2.0
"""Rows that come into a table without having been looked for: is their key there already?

In:   the data files of a table before and after.
Out:  the rows that are new; one key that more than one row has.

A batch of changes finds its keys itself (apply/).  This is for what comes as whole files: an
initial copy into a table that has rows, and other programs' commits.  The keys of all new rows are
in memory at once; the table's are looked through file by file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.change.codes import row_codes
from penstock.change.relation import LakeTable
from penstock.lake.find import find_rows
from penstock.lake.log import DataFile, physical_names
from penstock.lake.reading import read_columns
from penstock.lake.session import GetSession
from penstock.lake.vectors import read_vector

Files = Mapping[str, DataFile]
"""Data files by the path in their action."""


def new_rows(
    table: LakeTable, before: Files, after: Files, schema: pa.Schema
) -> Iterator[pa.Table]:
    """Columns of the rows that are in ``after`` and not in ``before``."""
    names = physical_names(table.location, table.version)
    for path, file in after.items():
        gone = read_vector(table.location, file.vector).astype(np.int64)
        if path not in before:
            rows = read_columns(Path(table.location) / file.path, names, schema)
            yield rows.take(pa.array(np.delete(np.arange(rows.num_rows), gone)))
        elif file.identity != before[path].identity:
            was_gone = read_vector(table.location, before[path].vector).astype(np.int64)
            back = np.setdiff1d(was_gone, gone)
            if len(back):
                rows = read_columns(Path(table.location) / file.path, names, schema)
                yield rows.take(pa.array(back))


def key_twice(
    session: GetSession, table: LakeTable, new: pa.Table, files: Iterable[DataFile]
) -> str | None:
    """A key that a new row and another row in the files have: ``Key (id)=(5)``; None without one.

    ``new`` has the key columns of rows that are in the files, too.
    """
    if not table.key or not new.num_rows:
        return None
    keys = new.select(list(table.key))
    _, first = np.unique(row_codes(keys.columns), return_index=True)
    asked = keys.take(pa.array(first))
    hits = find_rows(table, asked, session, among=files)
    twice = np.flatnonzero(np.bincount(hits.at, minlength=len(first)) > 1)
    if not len(twice):
        return None
    row = asked.slice(int(twice[0]), 1).to_pylist()[0]
    names, values = ", ".join(table.key), ", ".join(str(row[name]) for name in table.key)
    return f"Key ({names})=({values})"
