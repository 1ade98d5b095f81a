# SPDX-License-Identifier: Apache-2.0
"""No row is lost between Arrow and a Spark job's source."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.apply.frames import LOCAL_ROWS, source_frame

SCHEMA = pa.schema([("op", pa.int8())])


@pytest.mark.parametrize(
    "chunks", [[], [0], [1], [0, 1], [0, 0, 1], [0, 0, 3, 0, 2], [2, 0, 0, 1], [LOCAL_ROWS, 0, 1]]
)
def test_every_chunk_arrives(spark: SparkSession, tmp_path: Path, chunks: list[int]) -> None:
    """Whatever the chunks: leading empty ones made a local relation of PySpark 4.2 empty."""
    tables = [pa.table({"op": pa.array([1] * rows, pa.int8())}, schema=SCHEMA) for rows in chunks]
    with source_frame(spark, tables, SCHEMA, sum(chunks), str(tmp_path)) as frame:
        assert frame.count() == sum(chunks)
