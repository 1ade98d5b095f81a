# SPDX-License-Identifier: Apache-2.0
"""A Spark SQL expression over rows that the node has: Spark's code for it, without a Spark job.

In:   an expression, the schema of the rows, and then rows, as Arrow.
Out:  its value for each row, as Arrow.

Spark analyses, optimizes and compiles the expression once, as part of a projection of an RDD
without rows.  Given rows are then sent through the compiled projection by themselves: some
milliseconds, where making a DataFrame of them, planning its query and collecting it takes a quarter
of a second.  What is computed, and which errors come of it, is the same.
"""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from penstock.errors import PenstockError
from penstock.lake.query import postgres_errors


class Evaluator:
    """One expression for rows of one schema; any thread may call it."""

    def __init__(self, session: SparkSession, expression: str, schema: pa.Schema) -> None:
        """The settings of ``session`` count; errors are those of ``lake.query``."""
        jvm: Any = session._jvm
        self._jvm = jvm
        self._session = session
        self._lock = threading.Lock()  # a compiled projection has one output row
        self._schema = schema
        given = from_arrow_schema(schema, prefer_timestamp_ntz=True)
        types = jvm.org.apache.spark.sql.types.DataType
        self._given = types.fromJson(given.json())
        arrow = jvm.org.apache.spark.sql.execution.arrow
        self._arrow = getattr(getattr(arrow, "ArrowConverters$"), "MODULE$")
        with postgres_errors():
            jvm.SparkSession.setActiveSession(session._jsparkSession)
            nothing = session.sparkContext._jsc.emptyRDD().rdd()
            rows = session._jsparkSession.internalCreateDataFrame(nothing, self._given, False)
            frame = DataFrame(rows, session).selectExpr(f"{expression} AS value")
            self._projections = _projections(jvm, frame._jdf.queryExecution().optimizedPlan())
        self._sent = frame._jdf.schema()
        self._value = to_arrow_schema(frame.schema, timezone="UTC")

    def __call__(self, rows: pa.Table) -> pa.ChunkedArray:
        """The value for each row; PenstockError with PostgreSQL's SQLSTATE where it has none."""
        batches = rows.cast(self._schema).combine_chunks().to_batches()
        with self._lock, postgres_errors():
            self._jvm.SparkSession.setActiveSession(self._session._jsparkSession)
            return pa.chunked_array(
                [value for batch in batches for value in self._values(batch)],
                self._value.field(0).type,
            )

    def _values(self, batch: pa.RecordBatch) -> list[pa.Array]:
        serialized = _sequence(self._jvm, [batch.serialize().to_pybytes()])
        options = ("UTC", True, False)
        found = self._arrow.fromBatchIterator(serialized.iterator(), self._given, *options, None)
        for projection in self._projections:
            found = found.map(projection)
        out = self._arrow.toBatchIterator(found, self._sent, batch.num_rows, *options, None)
        values = []
        while out.hasNext():  # it closes itself at the end
            read = pa.ipc.read_record_batch(pa.py_buffer(out.next()), self._value)
            values.append(read.column(0))
        return values


def _projections(jvm: Any, plan: Any) -> list[Any]:
    """The projections of an optimized plan over an RDD, compiled, in the order of their use."""
    found = []
    compiler = jvm.org.apache.spark.sql.catalyst.expressions.UnsafeProjection
    while plan.nodeName() == "Project":
        below = plan.child()
        found.append(compiler.create(plan.projectList(), below.output()))
        plan = below
    if plan.nodeName() != "LogicalRDD":
        raise PenstockError(
            "an expression cannot be evaluated by itself", detail=f"Its plan has {plan.nodeName()}."
        )
    return found[::-1]


def _sequence(jvm: Any, items: list[Any]) -> Any:
    each = jvm.java.util.ArrayList()
    for item in items:
        each.add(item)
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq(each)
