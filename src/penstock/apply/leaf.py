# SPDX-License-Identifier: Apache-2.0
"""Which new rows belong into a partition leaf: Spark evaluates its partition constraint."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.apply.frames import source_frame


def rows_of_leaf(spark: SparkSession, rows: pa.Table, only: str, location: str) -> pa.Table:
    """The rows, in the target's columns, that satisfy a Spark SQL predicate over them."""
    place = max(rows.column_names, key=len) + "_"  # longer than any: none of them
    numbered = rows.append_column(place, pa.array(np.arange(rows.num_rows)))
    with source_frame(spark, [numbered], numbered.schema, rows.num_rows, location) as frame:
        kept = frame.where(only).select(f"`{place.replace('`', '``')}`").toArrow().column(0)
    return rows.take(pa.array(np.sort(kept.to_numpy())))
