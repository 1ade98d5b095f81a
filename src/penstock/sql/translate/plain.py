# SPDX-License-Identifier: Apache-2.0
"""Plain conditions on the columns of one table, as expressions of Arrow.

In:   a conjunct of an analysed ``SELECT FROM ONLY table WHERE ...``.
Out:  an expression that is true for the rows for which PostgreSQL's is, so that a node's own cores
      look for them; or None, and Spark may know it.

    column and constant      = <> < <= > >=, = ANY (array), of whole numbers, texts, dates, times,
                             uuids, bytea, booleans; also columns of numbers of different sizes
    of one column            IS NULL, IS NOT NULL; a boolean alone
    of these                 AND, OR, NOT

A constant is whatever the translation for Spark knows the value of: parameters and now() too.
Floats (NaN), numerics (scales), character(n) (blanks) are not plain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.change import types
from penstock.change.relation import LakeColumn
from penstock.change.types import arrow_type
from penstock.sql import constants
from penstock.sql.nodes import Node
from penstock.sql.translate.facts import Facts
from penstock.sql.translate.operators import COMPARISONS
from penstock.sql.translate.values import ALLOWED_COLLATIONS, NOT_CONSTANT

_TURNED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_COMPARE: Mapping[str, Callable[[pc.Expression, pc.Expression], pc.Expression]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
_WHOLE = frozenset({types.INT2, types.INT4, types.INT8})
_TEXTS = frozenset({types.TEXT, types.VARCHAR})
_TYPES = _WHOLE | _TEXTS | {
    types.BOOL, types.BYTEA, types.DATE, types.TIMESTAMP, types.TIMESTAMPTZ, constants.UUID
}  # fmt: skip
_STEMS = [f"int{code}" for code in ("2", "4", "8", "24", "28", "42", "48", "82", "84")] + [
    "text", "text_", "bool", "bytea", "date_", "timestamp_", "timestamptz_", "uuid_"
]  # fmt: skip
_OPERATORS = {stem + suffix: suffix for stem in _STEMS for suffix in COMPARISONS}
"""Functions of operators, and which comparison each is."""

_UNKNOWN = pc.scalar(pa.scalar(None, pa.bool_()))


@dataclass(frozen=True)
class Plain:
    """A conjunct; with ``column``, it says that this is one of ``values``, none of them null."""

    expression: pc.Expression
    column: str | None = None
    values: pa.Array | None = None


@dataclass(frozen=True)
class PlainConditions:
    """Makes them; ``constant`` gives an expression's value, NOT_CONSTANT when it has none."""

    columns: Mapping[int, LakeColumn]
    facts: Facts
    constant: Callable[[Node], Any]

    def __call__(self, node: Node) -> Plain | None:
        """The conjunct, or None."""
        found = self._one_of(node)
        if found is not None:
            column, values = found
            return Plain(pc.field(column.name).isin(values), column.name, values)
        expression = self._expression(node)
        return None if expression is None else Plain(expression)

    def _expression(self, node: Node) -> pc.Expression | None:
        match node.tag:
            case "BOOLEXPR":
                return self._connected(node)
            case "NULLTEST":
                column = None if node["argisrow"] else self._any_column(node["arg"])
                if column is None:
                    return None
                field = pc.field(column.name)
                return field.is_null() if node["nulltesttype"] == 0 else field.is_valid()
            case "OPEXPR":
                return self._comparison(node)
            case "VAR":
                found = self._column(node)
                is_bool = found is not None and found.type_oid == types.BOOL
                return pc.field(found.name) if found is not None and is_bool else None
        return None

    def _connected(self, node: Node) -> pc.Expression | None:
        parts = [self._expression(arg) for arg in node["args"]]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        whole = known[0]
        if node["boolop"] == "not":
            return ~whole
        for part in known[1:]:
            whole = whole & part if node["boolop"] == "and" else whole | part
        return whole

    def _comparison(self, node: Node) -> pc.Expression | None:
        operator = self._operator(node)
        left, right = (self._column(arg) for arg in node["args"])
        if operator is None or (left is None) == (right is None):
            return None
        column = left or right
        assert column is not None
        value = self.constant(node["args"][1 if left else 0])
        if value is NOT_CONSTANT:
            return None
        if value is None:
            return _UNKNOWN
        name = operator if left else _TURNED[operator]
        return _COMPARE[name](pc.field(column.name), pc.scalar(_scalar(column, value)))

    def _one_of(self, node: Node) -> tuple[LakeColumn, pa.Array] | None:
        """``column = constant`` or ``column = ANY (constant)``."""
        if node.tag not in ("OPEXPR", "SCALARARRAYOPEXPR") or self._operator(node) != "eq":
            return None
        if node.tag == "SCALARARRAYOPEXPR" and not node["useOr"]:
            return None
        left, right = node["args"]
        column, other = self._column(left), right
        if column is None and node.tag == "OPEXPR":
            column, other = self._column(right), left
        value = NOT_CONSTANT if column is None else self.constant(other)
        if column is None or value is NOT_CONSTANT:
            return None
        values = value if node.tag == "SCALARARRAYOPEXPR" else [value]
        return column, constants_of(column, values or ())

    def partner(self, node: Node) -> tuple[LakeColumn, int] | None:
        """``column = column`` with the second item of FROM: the column, and the number of that
        one's; both have values that are compared as they are."""
        if node.tag != "OPEXPR" or self._operator(node) != "eq":
            return None
        for mine, other in (node["args"], node["args"][::-1]):
            column, theirs = self._column(mine), _bare(other)
            is_other = theirs.tag == "VAR" and theirs["varno"] == 2 and not theirs["varlevelsup"]
            if column is not None and is_other:
                kinds = {column.type_oid, theirs["vartype"]}
                alike = kinds <= _WHOLE or kinds <= _TEXTS or len(kinds) == 1
                return (column, theirs["varattno"]) if alike else None
        return None

    def _operator(self, node: Node) -> str | None:
        if node["inputcollid"] not in ALLOWED_COLLATIONS:
            return None
        function = self.facts.functions.get(node["opfuncid"])
        if function is None or function.schema != "pg_catalog":
            return None
        return _OPERATORS.get(function.name)

    def _column(self, node: Node) -> LakeColumn | None:
        """A column of a plain type, perhaps a varchar as text."""
        if node.tag == "RELABELTYPE" and node["resulttype"] in _TEXTS:
            column = self._column(node["arg"])
            return column if column is not None and column.type_oid in _TEXTS else None
        column = self._any_column(node)
        return column if column is not None and column.type_oid in _TYPES else None

    def _any_column(self, node: Node) -> LakeColumn | None:
        if node.tag != "VAR" or node["varno"] != 1 or node["varlevelsup"]:
            return None
        column = self.columns.get(node["varattno"])
        same = column is not None and column.type_oid == node["vartype"]
        return column if same else None


def may_hold(column: LakeColumn, type_oid: int) -> bool:
    """Whether a column of a plain type has values of a type as they are."""
    texts = {column.type_oid, type_oid} <= _TEXTS
    return column.type_oid in _TYPES and (texts or column.type_oid == type_oid)


def constants_of(column: LakeColumn, values: Sequence[Any]) -> pa.Array:
    """Those of some constants that a column of a plain type can have; distinct, without NULL."""
    kind = arrow_type(column.type_oid, column.typmod)
    there = {each for each in values if each is not None}
    if column.type_oid in _WHOLE:
        limit = 2 ** (kind.bit_width - 1)
        there = {each for each in there if -limit <= each < limit}
    return pa.array(list(there), kind)


def _scalar(column: LakeColumn, value: Any) -> pa.Scalar:
    """A constant in a type to which Arrow compares the column."""
    if column.type_oid in _WHOLE:
        return pa.scalar(value, pa.int64())
    return pa.scalar(value, arrow_type(column.type_oid, column.typmod))


def _bare(node: Node) -> Node:
    """Without a cast between text and varchar."""
    if node.tag == "RELABELTYPE" and node["resulttype"] in _TEXTS:
        inner: Node = node["arg"]
        return inner if inner.get("vartype") in _TEXTS else node
    return node
