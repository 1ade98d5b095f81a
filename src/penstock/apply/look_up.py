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

    Row i equals content ``at[i]``; the rows are the hits of one table after the other.
    """

    at: NDArray[np.int64]
    found: Sequence[tuple[LakeTable, Hits]]

    def in_first(self, chosen: NDArray[np.bool_]) -> Hits:
        """The chosen ones of the rows, as far as they are in the first table."""
        hits = self.found[0][1]
        return hits.only(chosen[: len(hits)])

    def take(self, rows: NDArray[np.int64], columns: Sequence[str]) -> pa.Table:
        """These columns of some of the rows, in their order."""
        pieces, places, begin = [], [], 0
        for table, hits in self.found:
            here = np.flatnonzero((rows >= begin) & (rows < begin + len(hits)))
            pieces.append(take_rows(table, hits.only(rows[here] - begin), columns))
            places.append(here)
            begin += len(hits)
        return pa.concat_tables(pieces).take(pa.array(np.argsort(np.concatenate(places))))


def look_up_contents(tables: Sequence[LakeTable], contents: pa.Table) -> Equals:
    """All rows of these tables that equal one of ``contents`` (distinct) in its columns."""
    found = [(table, find_rows(table, contents)) for table in _distinct(tables)]
    return Equals(np.concatenate([hits.at for _, hits in found]), found)


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
