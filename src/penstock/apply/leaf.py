# SPDX-License-Identifier: Apache-2.0
"""Which new rows belong into a partition leaf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.apply.batch import TableBatch, Takes
from penstock.apply.rows import RowMapping
from penstock.change.relation import LakeTable
from penstock.errors import NoPartitionError


def check_routed(
    root: LakeTable,
    batch: TableBatch,
    leaves: Sequence[Takes],
    defaults: Mapping[str, pa.Scalar],
) -> None:
    """NoPartitionError for a new row of a batch that no leaf takes: it would be in none of them.

    ``defaults`` are as in RowMapping.
    """
    begin = 0
    for relation, rows in batch.read(["old", "new", "unchanged"]):
        new = RowMapping(relation, root, defaults).new_rows(rows)
        puts = pc.is_in(rows.column("op"), value_set=pa.array(["I", "U"]))
        places = np.flatnonzero(puts.to_numpy(zero_copy_only=False))
        outside = outside_of_all(new.take(pa.array(places)), leaves)
        if len(outside):
            error = no_partition(root.name)
            error.position = begin + int(places[outside[0]])
            raise error
        begin += rows.num_rows


def outside_of_all(rows: pa.Table, leaves: Sequence[Takes]) -> NDArray[np.int64]:
    """The places of rows that no leaf takes."""
    outside = np.arange(rows.num_rows)
    for takes in leaves:
        if len(outside):
            taken = pc.fill_null(takes(rows.take(pa.array(outside))), False)
            outside = outside[~taken.to_numpy(zero_copy_only=False)]
    return outside


def no_partition(root: str) -> NoPartitionError:
    """The error for a row that no partition of ``root`` takes (ExecFindPartition)."""
    return NoPartitionError(
        f'no partition of relation "{root}" found for row',
        hint="Create a partition for it, or a default partition.",
    )
