# SPDX-License-Identifier: Apache-2.0
"""Predicates over a target's columns that let Delta and Parquet skip what a batch cannot touch.

Up to 1,000 values of a single key column are listed; otherwise each column is bounded.  They
must hold for every row that the batch may touch, so a type without a safe literal is left out.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.names import quote_spark, quote_spark_literal

LISTED_KEYS = 1000
"""With more, planning the list costs more than it saves."""

_INT_SUFFIX = {pa.int16(): "S", pa.int32(): "", pa.int64(): "L"}


def pruning_predicate(columns: Mapping[str, pa.ChunkedArray], alias: str) -> str | None:
    """A Spark SQL predicate that every row with one of these values satisfies; None for none.

    Columns with nulls among their values are left out.
    """
    parts = []
    for name, values in columns.items():
        part = None if values.null_count else _column_predicate(values, len(columns) == 1)
        if part is not None:
            parts.append(f"{alias}.{quote_spark(name)} {part}")
    return " AND ".join(parts) or None


def _column_predicate(values: pa.ChunkedArray, alone: bool) -> str | None:
    if alone and len(values) <= LISTED_KEYS:
        distinct = pc.unique(values).to_pylist()
        literals = [_literal(value, values.type) for value in distinct]
        if literals and None not in literals:
            return f"IN ({', '.join(str(literal) for literal in literals)})"
    if pa.types.is_nested(values.type) or pa.types.is_binary(values.type) or not len(values):
        return None
    bounds = pc.min_max(values).as_py()
    low, high = _literal(bounds["min"], values.type), _literal(bounds["max"], values.type)
    return None if low is None or high is None else f"BETWEEN {low} AND {high}"


def _literal(value: Any, arrow: pa.DataType) -> str | None:
    """A Spark SQL literal of exactly the column's type."""
    if arrow in _INT_SUFFIX:
        return _int_literal(value, arrow)
    if isinstance(value, str):
        return quote_spark_literal(value) if value.isprintable() else None
    if isinstance(value, Decimal):
        return f"CAST('{value:f}' AS DECIMAL({arrow.precision},{arrow.scale}))"
    if isinstance(value, dt.datetime) and 1000 <= value.year <= 9999:
        kind = "TIMESTAMP" if value.tzinfo else "TIMESTAMP_NTZ"
        return f"{kind}'{value.isoformat(sep=' ')}'"
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime) and value.year >= 1000:
        return f"DATE'{value.isoformat()}'"
    return None


def _int_literal(value: int, arrow: pa.DataType) -> str:
    if value in (-(2**15), -(2**31), -(2**63)):  # the literal without its sign is out of range
        return f"CAST('{value}' AS {({16: 'SMALLINT', 32: 'INT', 64: 'BIGINT'})[arrow.bit_width]})"
    return f"{value}{_INT_SUFFIX[arrow]}"
