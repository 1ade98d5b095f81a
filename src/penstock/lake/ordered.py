# SPDX-License-Identifier: Apache-2.0
"""The rows of a DataFrame in order, as they come out of Spark: never all of them at once.

In:   a frame, a column to sort by, and about how many rows it has.
Out:  Arrow tables, in order.

Spark sorts into ranges of about PARTITION_ROWS rows, and the node fetches one range after the
other: neither the node nor the driver has more than one of them in memory.  Spark's own toArrow has
all rows at once, and toLocalIterator makes a Python object of each; so this is the former's
RDD of Arrow batches with the latter's way to serve an RDD.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.util import _local_iterator_from_socket

PARTITION_ROWS = 100_000
"""Rows in one range; a Spark job each."""


def ordered_tables(frame: DataFrame, by: str, rows: int) -> Iterator[pa.Table]:
    """The rows in ascending order of ``by``.

    Spark's errors come where the rows are fetched.
    """
    partitions = max(1, -(-rows // PARTITION_ROWS))
    ordered = frame.repartitionByRange(partitions, by).sortWithinPartitions(by)
    session = frame.sparkSession
    jvm: Any = session._jvm
    batches: Any = ordered._jdf
    jvm.SparkSession.setActiveSession(session._jsparkSession)  # whose settings the plan obeys
    served = jvm.PythonRDD.toLocalIteratorAndServe(batches.toArrowBatchRdd(), False)
    schema = to_arrow_schema(
        frame.schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC"
    )
    for batch in _local_iterator_from_socket(served, NoOpSerializer()):
        read = pa.ipc.read_record_batch(pa.py_buffer(batch), schema)
        yield pa.Table.from_batches([read], schema)
