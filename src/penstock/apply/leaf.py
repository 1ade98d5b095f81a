# SPDX-License-Identifier: Apache-2.0
"""Which new rows belong into a partition leaf: Spark evaluates its partition constraint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from penstock.apply.batch import TableBatch
from penstock.apply.frames import source_frame
from penstock.apply.rows import RowMapping
from penstock.change.relation import LakeTable
from penstock.errors import NoPartitionError
from penstock.lake.session import GetSession


def rows_of_leaf(spark: SparkSession, rows: pa.Table, only: str, location: str) -> pa.Table:
    """The rows, in the target's columns, that satisfy a Spark SQL predicate over them."""
    return rows.take(pa.array(_places(spark, rows, only, location)))


def check_routed(
    session: GetSession,
    root: LakeTable,
    batch: TableBatch,
    leaves: Sequence[tuple[LakeTable, str]],
    defaults: Mapping[str, pa.Scalar],
) -> None:
    """NoPartitionError for a new row of a batch that no leaf takes: it would be in none of them.

    ``leaves``: those of ``root``, with their predicates.  ``defaults`` are as in RowMapping.
    """
    taken = " OR ".join(f"coalesce(({only}), false)" for _, only in leaves)
    begin = 0
    for relation, rows in batch.read(["old", "new", "unchanged"]):
        new = RowMapping(relation, root, defaults).new_rows(rows)
        puts = pc.is_in(rows.column("op"), value_set=pa.array(["I", "U"]))
        places = np.flatnonzero(puts.to_numpy(zero_copy_only=False))
        outside = np.arange(len(places))
        if len(places) and leaves:
            location = leaves[0][0].location
            Path(location).mkdir(parents=True, exist_ok=True)
            only = f"NOT ({taken})"
            outside = _places(session(), new.take(pa.array(places)), only, location)
        if len(outside):
            error = NoPartitionError(
                f'no partition of relation "{root.name}" found for row',
                hint="Create a partition for it, or a default partition.",
            )
            error.position = begin + int(places[outside[0]])
            raise error
        begin += rows.num_rows


def _places(spark: SparkSession, rows: pa.Table, only: str, location: str) -> NDArray[np.int64]:
    """Which of the rows satisfy a predicate, in order."""
    place = max(rows.column_names, key=len) + "_"  # longer than any: none of them
    numbered = rows.append_column(place, pa.array(np.arange(rows.num_rows)))
    with source_frame(spark, [numbered], numbered.schema, rows.num_rows, location) as frame:
        kept = frame.where(only).select(f"`{place.replace('`', '``')}`").toArrow().column(0)
    chosen: NDArray[np.int64] = np.sort(kept.to_numpy())
    return chosen
