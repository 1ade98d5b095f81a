# SPDX-License-Identifier: Apache-2.0
"""Plain conditions of a WHERE clause on Arrow batches, without Spark.

In:   the analysed tree of a condition on the rows of one table, and the table's columns.
Out:  a function from a batch to its decisions (true, false, null), or None when anything in the
      condition is not in the list.  Nothing here can fail on a row.

    AND, OR, NOT; IS [NOT] NULL; boolean columns and constants
    = <> < <= > >=      of integers, numeric, date, timestamp, timestamptz
    = <>                of text, varchar, boolean, uuid
    = ANY (ARRAY[...]), IN (...)    of constants, by the operators above

One side of a comparison is a column, the other a constant, or a column of the same type or of
another type of integers.  What has
collations, NaN or casts with a meaning of its own is left to Spark: a list that is short and exact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.change import types
from penstock.errors import FeatureNotSupportedError
from penstock.sql import constants
from penstock.sql.nodes import Node
from penstock.sql.translate.facts import Facts
from penstock.sql.translate.values import ALLOWED_COLLATIONS

Decide = Callable[[pa.RecordBatch], Any]
"""Gives a Boolean array, or a Boolean scalar for a condition without columns."""

_ORDERED = re.compile(
    "(?:int(?:2|4|8|24|28|42|48|82|84)|numeric_|date_|timestamp_|timestamptz_)(eq|ne|lt|le|gt|ge)"
)
_EQUALITY = re.compile("(?:text|bool|uuid_)(eq|ne)")
_COMPARE = {
    "eq": pc.equal,
    "ne": pc.not_equal,
    "lt": pc.less,
    "le": pc.less_equal,
    "gt": pc.greater,
    "ge": pc.greater_equal,
}
_TURNED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}

_WIDENING = frozenset(
    {
        "int4(int2)", "int8(int2)", "int8(int4)",
        "numeric(int2)", "numeric(int4)", "numeric(int8)",
    }
)  # fmt: skip
_FIRST_OWN_OID = 16384
"""FirstNormalObjectId: everything below came with PostgreSQL."""

_TEXTS = frozenset({types.TEXT, types.VARCHAR})
_TEXT_ARRAY = 1009
_ARRAY_CASTS = frozenset({"RELABELTYPE", "ARRAYCOERCEEXPR"})


class _NotPlainError(Exception):
    """Something in the condition is not in the list."""


def arrow_filter(
    condition: Node, columns: Mapping[int, tuple[str, pa.DataType]], facts: Facts
) -> Decide | None:
    """The decisions on a batch's rows; ``columns``: attnum -> name and type in the batch."""
    try:
        return _Compiler(columns, facts).decide(condition)
    except (_NotPlainError, FeatureNotSupportedError):
        return None


class _Compiler:
    def __init__(self, columns: Mapping[int, tuple[str, pa.DataType]], facts: Facts) -> None:
        self._columns = columns
        self._facts = facts

    def decide(self, node: Any) -> Decide:
        """A condition."""
        match node.tag if isinstance(node, Node) else "":
            case "BOOLEXPR":
                return self._boolean(node)
            case "NULLTEST" if not node["argisrow"]:
                name, _ = self._column(node["arg"])
                test = pc.is_null if node["nulltesttype"] == 0 else pc.is_valid
                return lambda batch: test(batch.column(name))
            case "OPEXPR":
                return self._comparison(self._operator(node), *node["args"])
            case "SCALARARRAYOPEXPR" if node["useOr"]:
                return self._any(node)
            case "VAR":
                name, kind = self._column(node)
                if pa.types.is_boolean(kind):
                    return lambda batch: batch.column(name)
            case "CONST" if node["consttype"] == types.BOOL:
                value = pa.scalar(self._constant(node), pa.bool_())
                return lambda _batch: value
        raise _NotPlainError

    def _boolean(self, node: Node) -> Decide:
        parts = [self.decide(arg) for arg in node["args"]]
        if node["boolop"] == "not":
            return lambda batch: pc.invert(parts[0](batch))
        both = pc.and_kleene if node["boolop"] == "and" else pc.or_kleene
        return lambda batch: reduce(both, [part(batch) for part in parts])

    def _any(self, node: Node) -> Decide:
        """``= ANY`` of constants: true for any, else null when one comparison is."""
        left, right = node["args"]
        word = self._operator(node)
        if isinstance(right, Node) and right.tag in _ARRAY_CASTS and _casts_varchars(right):
            right = right["arg"]
        if word != "eq" or not isinstance(right, Node) or right.tag != "ARRAYEXPR":
            raise _NotPlainError
        parts = [self._comparison(word, left, each) for each in right.items("elements")]
        if not parts:
            raise _NotPlainError
        return lambda batch: reduce(pc.or_kleene, [part(batch) for part in parts])

    def _operator(self, node: Node) -> str:
        """The comparison that an operator is."""
        operator = self._facts.operators.get(node["opno"])
        name = operator.function if operator is not None else ""
        found = _ORDERED.fullmatch(name) or _EQUALITY.fullmatch(name)
        is_built_in = node["opno"] < _FIRST_OWN_OID
        if found is None or not is_built_in or node["inputcollid"] not in ALLOWED_COLLATIONS:
            raise _NotPlainError
        return found.group(1)

    def _comparison(self, word: str, left: Any, right: Any) -> Decide:
        if not self._is_column(left):
            left, right, word = right, left, _TURNED[word]
        compare = _COMPARE[word]
        name, kind = self._column(left)
        if self._is_column(right):
            other, other_kind = self._column(right)
            numbers = pa.types.is_integer(kind) and pa.types.is_integer(other_kind)
            if kind != other_kind and not numbers:
                raise _NotPlainError
            return lambda batch: compare(batch.column(name), batch.column(other))
        value = _scalar(self._constant(right), kind)
        return lambda batch: compare(batch.column(name), value)

    def _is_column(self, node: Any) -> bool:
        return isinstance(node, Node) and _bare(node).tag == "VAR"

    def _column(self, node: Any) -> tuple[str, pa.DataType]:
        """Name and type of a column of the table."""
        bare = _bare(node) if isinstance(node, Node) else node
        if not isinstance(bare, Node) or bare.tag != "VAR" or bare["varlevelsup"] != 0:
            raise _NotPlainError
        if bare["varattno"] not in self._columns:
            raise _NotPlainError
        return self._columns[bare["varattno"]]

    def _constant(self, node: Any) -> Any:
        """The value of a constant, perhaps one that is cast to a wider type of numbers."""
        bare = _bare(node) if isinstance(node, Node) else node
        if not isinstance(bare, Node):
            raise _NotPlainError
        if bare.tag == "FUNCEXPR" and len(bare["args"]) == 1:
            function = self._facts.functions.get(bare["funcid"])
            is_built_in = function is not None and function.schema == "pg_catalog"
            if is_built_in and function is not None and function.signature in _WIDENING:
                return self._constant(bare["args"][0])
        if bare.tag != "CONST":
            raise _NotPlainError
        if bare["constisnull"]:
            return None
        return constants.from_datum(bare["consttype"], bare["constvalue"])


def _casts_varchars(node: Node) -> bool:
    """Whether a cast is one of varchar[] to text[], which changes nothing."""
    inner = node["arg"]
    is_array = isinstance(inner, Node) and inner.tag == "ARRAYEXPR"
    return is_array and node["resulttype"] == _TEXT_ARRAY and inner["element_typeid"] in _TEXTS


def _bare(node: Node) -> Node:
    """Without a cast that changes nothing: varchar to text."""
    if node.tag == "RELABELTYPE" and node["resulttype"] in _TEXTS:
        inner: Node = node["arg"]
        is_text = inner.tag == "VAR" and inner["vartype"] in _TEXTS
        if is_text or (inner.tag == "CONST" and inner["consttype"] in _TEXTS):
            return inner
    return node


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """A constant for the comparison with a column; what its type has no room for is not plain."""
    if value is None:
        return pa.scalar(None, kind)
    try:
        if pa.types.is_integer(kind) and isinstance(value, int):
            return pa.scalar(value, pa.int64())
        if pa.types.is_decimal(kind) and isinstance(value, int | Decimal):
            return pa.scalar(Decimal(value), kind)
        if pa.types.is_date(kind):
            return pa.scalar(value, pa.int32()).cast(kind)
        if pa.types.is_timestamp(kind):
            return pa.scalar(value, pa.int64()).cast(kind)
        if pa.types.is_string(kind) or pa.types.is_boolean(kind):
            return pa.scalar(value, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        pass
    raise _NotPlainError
