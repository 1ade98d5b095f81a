# SPDX-License-Identifier: Apache-2.0
"""The rows that a statement updated: which each was before, in an order that can be told.

In:   the places of the rows that are gone, the rows that came, and of which row each came.
Out:  the rows that came, in an order in which every key is free when it is taken, if those that are
      only deleted go first; and the columns of change/row_before.py.

An UPDATE that changes keys takes keys that other rows of it have left: after ``id = id + 1`` the
change of the last row has to be told first.  PostgreSQL tells them as it made them, and its unique
index has seen to it that each key was free; the relation no longer says in which order that was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.change.codes import row_codes
from penstock.change.relation import LakeTable
from penstock.lake.placed import Places, read_pieces
from penstock.lake.reading import Ints


@dataclass(frozen=True)
class Updates:
    """Row i that came was at place ``of[i]`` of ``gone`` before; -1: it was inserted."""

    gone: Places
    of: Ints

    @property
    def columns(self) -> list[pa.Array]:
        """The columns of change/row_before.py."""
        inserted = self.of < 0
        file = np.append(self.gone.file, 0)[self.of]
        paths = pa.array(self.gone.paths, pa.string()).take(pa.array(file, mask=inserted))
        return [paths, pa.array(np.where(inserted, -1, np.append(self.gone.row, 0)[self.of]))]


def ordered_updates(table: LakeTable, rows: pa.Table, updates: Updates) -> tuple[pa.Table, Updates]:
    """Rows that came in an order that can be told, which is theirs but where a key forbids it."""
    if not table.key:
        return rows, updates
    before = pa.concat_tables(read_pieces(table, updates.gone, table.key))
    codes = row_codes(pa.concat_tables([before, rows.select(list(table.key))]).columns)
    order = safe_order(codes[: len(before)], codes[len(before) :], updates.of)
    if order is None:
        return rows, updates
    return rows.take(pa.array(order)), Updates(updates.gone, updates.of[order])


def safe_order(before: Ints, after: Ints, of: Ints) -> Ints | None:
    """The order of rows, or None when they may stay in theirs.

    ``before`` are the key codes of rows that are gone, ``after`` those of rows that came, each once
    among the rows of its side; row i that came was row ``of[i]`` before.
    """
    moved = np.flatnonzero(of >= 0)
    moved = moved[before[of[moved]] != after[moved]]
    if not len(moved):
        return None
    leaves = np.full(int(max(before.max(initial=0), after.max())) + 1, -1)
    leaves[before[of[moved]]] = moved
    # The row that leaves the key that a row takes: it has to be told before.
    behind = leaves[after]
    if (behind < np.arange(len(after))).all():
        return None
    rank = (behind >= 0).astype(np.int64)
    for _ in range(len(after).bit_length()):  # each time twice as far
        there = behind >= 0
        rank[there] += rank[behind[there]]
        behind[there] = behind[behind[there]]
    assert (behind < 0).all(), "a unique index let rows exchange their keys"
    return np.argsort(rank, kind="stable")
