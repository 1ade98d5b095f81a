# SPDX-License-Identifier: Apache-2.0
"""Rows of the target that a batch needs to know: by key, or by whole content.

Of a partitioned table all leaves are looked at, each at its version before the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.change.last_change import TIME_COLUMN
from penstock.change.relation import LakeTable
from penstock.lake.births import born
from penstock.lake.find import Hits, find_rows, take_rows


def look_up_keys(tables: Sequence[LakeTable], keys: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The rows of these tables (leaves of one, or one) with these keys.

    ``keys`` has the key columns, without duplicates; the result has them and ``columns``.
    """
    found = []
    for table in _distinct(tables):
        hits = find_rows(table, keys)
        taken = take_rows(table, hits, columns)
        if TIME_COLUMN in columns:
            taken = _with_births(table, hits, taken)
        found.append(
            pa.table(
                [*keys.take(pa.array(hits.at)).columns, *taken.columns],
                names=[*keys.column_names, *columns],
            )
        )
    return pa.concat_tables(found)


@dataclass(frozen=True)
class Equals:
    """The rows of tables that equal contents asked for.

    Row i equals content ``at[i]``.  ``place[i]`` is its hit in the first table, -1 in another.
    """

    at: NDArray[np.int64]
    place: NDArray[np.int64]
    hits: Hits


def look_up_contents(tables: Sequence[LakeTable], contents: pa.Table) -> Equals:
    """All rows of these tables that equal one of ``contents`` (distinct) in its columns."""
    first, *others = [find_rows(table, contents) for table in _distinct(tables)]
    at = np.concatenate([first.at, *(hits.at for hits in others)])
    place = np.full(len(at), -1)
    place[: len(first)] = np.arange(len(first))
    return Equals(at, place, first)


def _with_births(table: LakeTable, hits: Hits, rows: pa.Table) -> pa.Table:
    """Rows with the time of their file's commit where their own is missing (lake/births.py)."""
    place = rows.column_names.index(TIME_COLUMN)
    lacking = rows.column(place).is_null().to_numpy()
    if not lacking.any() or table.version is None:
        return rows
    paths = {int(n): hits.files[n].add["path"] for n in np.unique(hits.file[lacking])}
    times = born(table.location, table.version, paths.values())
    by_file = pa.array([times.get(paths.get(n, "")) for n in range(len(hits.files))], pa.int64())
    filled = pc.coalesce(rows.column(place), by_file.take(pa.array(hits.file)))
    return rows.set_column(place, rows.schema.field(place), filled)


def _distinct(tables: Sequence[LakeTable]) -> list[LakeTable]:
    """Each table once: the target may be named among its siblings again."""
    return list({table.relid: table for table in tables}.values())
