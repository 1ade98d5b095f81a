# SPDX-License-Identifier: Apache-2.0
"""Arrow rows as the source of a Spark job.

Few rows become a local relation inside the plan (no file, no task to read it).  More become a
Parquet file in the target's own folder, where executors can read it: ``_penstock/``, a name that
Delta leaves alone.  A file that a crash left behind is removed by the next batch of its table.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

LOCAL_ROWS = 10_000
"""Up to here a local relation is quicker than a file, by some 50 ms."""

_FOLDER = "_penstock"


@contextmanager
def source_frame(
    spark: SparkSession, tables: Iterable[pa.Table], schema: pa.Schema, rows: int, location: str
) -> Iterator[DataFrame]:
    """A DataFrame of ``rows`` rows in ``schema`` that lives as long as the block."""
    spark_schema = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    if rows <= LOCAL_ROWS:
        # In one chunk: of a table that begins with two empty ones PySpark 4.2 takes no row at all.
        table = pa.concat_tables([schema.empty_table(), *tables]).combine_chunks()
        yield spark.createDataFrame(table, schema=spark_schema)
        return
    folder = Path(location) / _FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        path = folder / f"{uuid.uuid4()}.parquet"
        with pq.ParquetWriter(
            path, schema, compression="none", store_decimal_as_integer=True
        ) as to:
            for table in tables:
                to.write_table(table)
        yield spark.read.schema(spark_schema).parquet(str(path))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
