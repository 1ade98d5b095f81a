# SPDX-License-Identifier: Apache-2.0
"""Run one Spark SQL statement over lake tables at given versions; the only door for queries.

Each query has a Spark session of its own, with settings under which Spark's results are
PostgreSQL's: ANSI errors, UTC, names in their own case, no digit of a decimal dropped.  A table is
the temporary view ``t<relid>`` of its Delta table at its version, or of no rows when it has none.

A Spark error becomes PostgreSQL's error where there is one:

    Spark                                     SQLSTATE
    -----                                     --------
    raise_error('penstock:XXXXX:message')     XXXXX; 0x and hexadecimal digits are one, too
    DIVIDE_BY_ZERO, REMAINDER_BY_ZERO         22012
    ARITHMETIC_OVERFLOW, CAST_OVERFLOW        22003
    DATETIME_OVERFLOW and of intervals        22008
    CAST_INVALID_INPUT                        22P02
    SCALAR_SUBQUERY_TOO_MANY_ROWS             21000
    NUMERIC_VALUE_OUT_OF_RANGE and the like   0A000: PostgreSQL has more digits than 38
    an error of analysis                      0A000: a construct that Spark does not have
    the job was cancelled                     57014
    anything else                             XX000, with the first line of Spark's message
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.change import types
from penstock.change.relation import LakeColumn
from penstock.errors import FeatureNotSupportedError, PenstockError, TableStateError
from penstock.lake.scan import scan
from penstock.lake.together import alike, scan_together
from penstock.sql.translate.expressions import Variable
from penstock.sql.translate.query import Translation
from penstock.sql.translate.sources import union_name, view_name
from penstock.sql.translate.values import declared_digits, spark_type

_OPTIMIZER = "org.apache.spark.sql.catalyst.optimizer"
_SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
    # A decimal result that does not fit is an error, never a rounded value.
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    # A text constant may contain ${...}.
    "spark.sql.variable.substitute": "false",
    # Names and numbers mean what the translation says, nothing else.
    "spark.sql.orderByOrdinal": "false",
    "spark.sql.groupByOrdinal": "false",
    "spark.sql.groupByAliases": "false",
    "spark.sql.lateralColumnAlias.enableImplicitResolution": "false",
    # A product's inner rows come out of Spark's sorter, which looks at each row whether the task
    # was cancelled; kept in memory as rows they would be gone through to the end.
    "spark.sql.cartesianProductExec.buffer.in.memory.threshold": "0",
    # It does not look into subqueries, and then Spark does not find their outer columns.
    "spark.sql.optimizer.excludedRules": f"{_OPTIMIZER}.PushProjectionThroughUnion",
    # The plan is searched for nested loops, so it must not be cut, whatever the user has set.
    "spark.sql.maxPlanStringLength": str(10_000_000),
}

_TOO_MANY_DIGITS = (
    "0A000",
    "a numeric with more than 38 digits is not supported in queries on lake tables",
)
_SQLSTATES = {
    "DIVIDE_BY_ZERO": ("22012", "division by zero"),
    "REMAINDER_BY_ZERO": ("22012", "division by zero"),
    "DATETIME_OVERFLOW": ("22008", "timestamp out of range"),
    "INTERVAL_ARITHMETIC_OVERFLOW": ("22008", "timestamp out of range"),
    "CAST_INVALID_INPUT": ("22P02", "invalid input syntax"),
    "SCALAR_SUBQUERY_TOO_MANY_ROWS": (
        "21000",
        "more than one row returned by a subquery used as an expression",
    ),
    "ROW_SUBQUERY_TOO_MANY_ROWS": (
        "21000",
        "more than one row returned by a subquery used as an expression",
    ),
    "NUMERIC_VALUE_OUT_OF_RANGE": _TOO_MANY_DIGITS,
    "NUMERIC_OUT_OF_SUPPORTED_RANGE": _TOO_MANY_DIGITS,
}
_OVERFLOWS = frozenset({"ARITHMETIC_OVERFLOW", "BINARY_ARITHMETIC_OVERFLOW", "CAST_OVERFLOW"})
_INTEGERS = {"SMALLINT": "smallint", "INT": "integer", "BIGINT": "bigint"}
_UNDERLINED = re.compile(r"== SQL [^\n]*\n([^\n]*)\n( *)(\^+)")
_RIGHT_OPERAND = re.compile(r" AS ([A-Z]+)\)$")
_CAST_TO = re.compile(r'cannot be cast to "([A-Z]+)"')
_CONDITION = re.compile(r"\[([A-Z_]+)(?:\.[A-Z_.]+)?\]")
_LONG_OVERFLOW = "java.lang.ArithmeticException: long overflow"
"""Of days or microseconds: integers overflow with a condition."""
_CAUSE = re.compile(r"^: ([^\n]+)$", re.MULTILINE)
_RAISED = re.compile(r"penstock:([0-9A-Z]{5}):([^\n]*?)(?: SQLSTATE: P0001|$)", re.MULTILINE)

log = logging.getLogger(__name__)

CANCELLED = PenstockError("canceling statement due to user request", sqlstate="57014")

# PySpark logs each failing query with its values, as JSON, to stderr.
logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class TableAt:
    """A lake table at a version; None is the empty table that has no Delta table yet."""

    relid: int
    location: Path
    version: int | None
    columns: tuple[LakeColumn, ...]


def run_query(
    spark: SparkSession, statement: Translation, tables: Sequence[TableAt], job: str
) -> pa.Table:
    """The rows of a translated statement, in order.

    ``job`` is the Spark job group under which ``cancel_query`` finds it.  Errors are PenstockError
    with PostgreSQL's SQLSTATE, see above; TableStateError when a table's columns are not those
    that the catalog has.
    """
    with postgres_errors(), _job_group(spark, job):
        return _frame(spark, statement, tables).toArrow()


def explain_query(
    spark: SparkSession,
    statement: Translation,
    tables: Sequence[TableAt],
    job: str,
    *,
    verbose: bool,
) -> pa.Table:
    """Spark's physical plan of a translated statement, a line each, in one column of text.

    Nothing is read but the tables' logs.  ``verbose``: with the arguments of each operator.
    """
    jvm: Any = spark._jvm
    with postgres_errors(), _job_group(spark, job):
        execution = _frame(spark, statement, tables)._jdf.queryExecution()
        plan = jvm.PythonSQLUtils.explainString(execution, "formatted" if verbose else "simple")
    return pa.table({"QUERY PLAN": pa.array(plan.strip().splitlines(), pa.string())})


def unload_query(
    spark: SparkSession, statement: Translation, tables: Sequence[TableAt], job: str, folder: Path
) -> list[Path]:
    """Write the rows of a translated statement to Parquet files, which are in their order.

    ``folder`` is made here.  The files' columns have names of no meaning, each another one.  For
    results that may be larger than memory; otherwise as ``run_query``.
    """
    with postgres_errors(), _job_group(spark, job):
        frame = _frame(spark, statement, tables)
        named = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
        # The files are read once: what costs time and saves space is left out.
        plain = named.write.option("compression", "snappy")
        plain.option("parquet.enable.dictionary", "false").parquet(str(folder))
    return sorted(folder.glob("part-*.parquet"))


@contextmanager
def _job_group(spark: SparkSession, job: str) -> Iterator[None]:
    """Spark's jobs of this thread are the query's, and no longer when it has ended.

    The thread will do other work: nothing runs any more in a group that was cancelled.
    """
    context = spark.sparkContext
    context.setJobGroup(job, "query", interruptOnCancel=True)
    try:
        yield
    finally:
        context._jsc.clearJobGroup()


def _frame(spark: SparkSession, statement: Translation, tables: Sequence[TableAt]) -> DataFrame:
    """The statement in a session of its own."""
    session = exact_session(spark)
    by_relid = {table.relid: table for table in tables}
    for relid in statement.alone:
        _rows(session, by_relid[relid]).createOrReplaceTempView(view_name(relid))
    for relid, leaves in statement.unions.items():
        union = _union(session, [by_relid[leaf] for leaf in leaves])
        union.createOrReplaceTempView(union_name(relid))
    for variable in statement.variables:
        _set_variable(session, variable)
    return _interruptible(session, statement.sql)


def exact_session(spark: SparkSession) -> SparkSession:
    """A session in which translated expressions have PostgreSQL's values."""
    session = spark.newSession()
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
    return session


def filter_session(spark: SparkSession) -> SparkSession:
    """A session for row filters: moreover, what can fail is computed where PostgreSQL does.

    Not before it is reached (a common subexpression would be), and not left out (x = x).
    """
    session = exact_session(spark)
    session.conf.set("spark.sql.subexpressionElimination.enabled", "false")
    rules = ("SimplifyBinaryComparison", "BooleanSimplification", "PushProjectionThroughUnion")
    excluded = ",".join(f"{_OPTIMIZER}.{rule}" for rule in rules)
    session.conf.set("spark.sql.optimizer.excludedRules", excluded)
    return session


def cancel_query(spark: SparkSession, job: str) -> None:
    """Stop the jobs of a query, also those that it has not started yet."""
    spark.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(job)


def warm(spark: SparkSession, folder: Path) -> None:
    """Run a query on a small Delta table of its own: the first one loads most of Spark's code.

    ``folder`` is made, and removed again.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        rows = pa.table({"id": pa.array(range(100)), "name": [str(n % 7) for n in range(100)]})
        write_deltalake(folder, rows)
        spark = exact_session(spark)
        frame = scan(spark, folder, 0)
        frame.createOrReplaceTempView("t")
        sql = (
            "SELECT a.name, count(*), sum(a.id) FROM t a JOIN t b ON a.id = b.id"
            " WHERE b.id > 5 GROUP BY a.name ORDER BY a.name LIMIT 3"
        )
        _interruptible(spark, sql).toArrow()
    except (Py4JError, PySparkException, OSError) as error:
        log.info("the first query will be slow: %s", error)  # the node may be stopping
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _interruptible(session: SparkSession, sql: str) -> DataFrame:
    """A query whose tasks end soon after it is cancelled.

    A broadcast nested loop is one generated loop over both sides that never looks whether its
    task is to end: cancelled, it would hold a core that apply needs until it has gone through.
    Without broadcasts Spark plans the inner ones as products, which do look.
    """
    frame = session.sql(sql)
    jvm = session._jvm
    assert jvm is not None  # this is a classic session, not a Connect one
    jvm.SparkSession.setActiveSession(session._jsparkSession)  # whose setting the text obeys
    if "BroadcastNestedLoopJoin" not in frame._jdf.queryExecution().executedPlan().toString():
        return frame
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    return session.sql(sql)


def _set_variable(session: SparkSession, variable: Variable) -> None:
    for name, kind in zip(variable.names, variable.types, strict=True):
        session.sql(f"DECLARE VARIABLE {name} {kind}")
    session.sql(f"SET VAR ({', '.join(variable.names)}) = ({variable.sql})")


def _rows(session: SparkSession, table: TableAt) -> DataFrame:
    if table.version is None:
        wanted = {each.name: _type(each) for each in table.columns}
        schema = ", ".join(f"`{n.replace('`', '``')}` {t}" for n, t in wanted.items())
        return session.createDataFrame([], schema)
    return _checked(scan(session, table.location, table.version), table)


def _union(session: SparkSession, leaves: Sequence[TableAt]) -> DataFrame:
    """The rows of a partitioned table's leaves; those of one definition are read as one."""
    names = [f"`{column.name.replace('`', '``')}`" for column in leaves[0].columns]
    there = {str(each.location): each for each in leaves if each.version is not None}
    frames = []
    for group in alike([(path, each.version or 0) for path, each in there.items()]):
        frame = scan_together(session, group)
        for each in group:
            _checked(frame, there[each.location])
        frames.append(frame.select(*names))
    return reduce(DataFrame.union, frames) if frames else _rows(session, leaves[0])


def _checked(frame: DataFrame, table: TableAt) -> DataFrame:
    """The frame; TableStateError when its columns are not those of the catalog."""
    wanted = {each.name: _type(each) for each in table.columns}
    found = {each.name: each.dataType.simpleString() for each in frame.schema}
    for name, kind in wanted.items():
        if found.get(name) != kind.lower():
            raise TableStateError(
                f'column "{name}" of a lake table is {found.get(name, "missing")}, not {kind}',
                detail=f"Table with OID {table.relid} at version {table.version}.",
                hint="If its definition was just changed, start the transaction again.",
            )
    return frame


def _type(each: LakeColumn) -> str:
    is_numeric = types.ARRAY_ELEMENTS.get(each.type_oid, each.type_oid) == types.NUMERIC
    return spark_type(each.type_oid, declared_digits(each.typmod) if is_numeric else None)


@contextmanager
def postgres_errors() -> Iterator[None]:
    """Turn Spark's errors into PostgreSQL's, as the module's docstring lists them."""
    try:
        yield
    except (AnalysisException, ParseException) as error:
        raise _analysis_error(error) from error
    except (PySparkException, Py4JJavaError) as error:
        raise _runtime_error(error) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _analysis_error(error: Exception) -> PenstockError:
    return FeatureNotSupportedError(
        "Spark cannot run this query on lake tables", detail=_first_line(error)
    )


def _runtime_error(error: Any) -> PenstockError:
    text = str(error)
    raised = _RAISED.search(text)
    if raised is not None:
        sqlstate, message = raised.groups()
        if message.startswith("0x"):
            message = bytes.fromhex(message[2:]).decode()
        return PenstockError(message, sqlstate=sqlstate)
    condition = _CONDITION.search(text)
    name = condition.group(1) if condition is not None else ""
    if name in _OVERFLOWS:
        return PenstockError(f"{_overflowing(name, text)} out of range", sqlstate="22003")
    if name in _SQLSTATES:
        sqlstate, message = _SQLSTATES[name]
        return PenstockError(message, sqlstate=sqlstate)
    if _LONG_OVERFLOW in text:
        return PenstockError("timestamp out of range", sqlstate="22008")
    if "cancelled" in text.lower() or "SPARK_JOB_CANCELLED" in text:
        return CANCELLED
    log.error("a query failed in Spark: %s", text)  # not one that PostgreSQL would have
    cause = _CAUSE.search(text)
    reason = cause.group(1) if cause is not None else _first_line(error)
    return PenstockError(f"the query failed in Spark: {reason}")


def _overflowing(condition: str, text: str) -> str:
    """The integer type that has no room, as PostgreSQL says it; "value" where Spark does not tell.

    An operation is underlined in the statement; the translation casts its right operand.
    """
    if condition == "BINARY_ARITHMETIC_OVERFLOW":
        return "smallint"
    if condition == "CAST_OVERFLOW":
        found = _CAST_TO.search(text)
    else:
        place = _UNDERLINED.search(text)
        line, before, marks = place.groups() if place is not None else ("", "", "")
        found = _RIGHT_OPERAND.search(line[len(before) : len(before) + len(marks)])
    return _INTEGERS.get(found.group(1), "value") if found is not None else "value"
