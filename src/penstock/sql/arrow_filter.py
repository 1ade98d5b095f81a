# SPDX-License-Identifier: Apache-2.0
"""Conditions of a WHERE clause on Arrow batches, without Spark.

In:   the analysed tree of a condition on the rows of one table, and the table's columns.
Out:  a function from a batch to its decisions (true, false, null), or None when anything in the
      condition is not in the list.  It raises PostgreSQL's error for the first row that has one.

    AND, OR, NOT; IS [NOT] NULL / TRUE / FALSE / UNKNOWN; boolean columns and constants
    IS [NOT] DISTINCT FROM, NULLIF, CASE, COALESCE, GREATEST, LEAST
    op ANY / ALL (array), IN (...)    of constants, or of what cannot fail
    operators and functions           those of ``arrow_functions`` and ``arrow_texts``

What has collations of its own, casts to and from text, or intervals is left to Spark: the list is
of what Arrow computes exactly.  A condition that this decides is a *plain* one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.change import types
from penstock.errors import FeatureNotSupportedError, PenstockError
from penstock.sql import constants
from penstock.sql.arrow_functions import compares, function_value
from penstock.sql.arrow_values import (
    NotPlainError,
    Value,
    choice,
    constant,
    first_of,
    full,
    together,
)
from penstock.sql.nodes import Node
from penstock.sql.translate.choices import without_test
from penstock.sql.translate.facts import FIRST_OWN_OID, Facts
from penstock.sql.translate.values import ALLOWED_COLLATIONS

Decide = Callable[[pa.RecordBatch], pa.BooleanArray]
"""Gives a decision for each row."""

Columns = Mapping[int, tuple[str, pa.DataType]]
"""By attnum, a column's name and type in the batch."""

_TEXTS = frozenset({types.TEXT, types.VARCHAR})
_TEXT_ARRAY = 1009
_ARRAY_CASTS = frozenset({"RELABELTYPE", "ARRAYCOERCEEXPR"})
_COLLATIONS = ("inputcollid", "varcollid", "constcollid", "resultcollid", "collOid")
_COMPUTED = frozenset(
    {types.BOOL, types.INT2, types.INT4, types.INT8, types.FLOAT4, types.FLOAT8, types.NUMERIC}
    | {types.TEXT, types.VARCHAR, types.BPCHAR, types.NAME, types.BYTEA, constants.UUID}
    | {types.DATE, types.TIMESTAMP, types.TIMESTAMPTZ}
)
"""Types of what is computed with; of others it is only asked whether they are null."""

_UNORDERED = frozenset({types.FLOAT4, types.FLOAT8, types.BPCHAR, types.BOOL})
"""Types that Arrow's least and greatest order otherwise, or not at all."""


def arrow_filter(condition: Node, columns: Columns, facts: Facts) -> Decide | None:
    """The decisions on a batch's rows; ``columns``: attnum -> name and type in the batch."""
    return decide_any([(condition, columns)], facts)


def decide_any(conditions: Sequence[tuple[Node, Columns]], facts: Facts) -> Decide | None:
    """Decides whether one of several conditions is true, as their OR."""
    try:
        parts = [_Compiler(columns, facts).value(condition) for condition, columns in conditions]
        value = together(parts, both=False)
        fields = dict(field for _, columns in conditions for field in columns.values())
        # What Arrow has no kernel for, it says of no rows.
        value.run(pa.RecordBatch.from_pylist([], schema=pa.schema(fields.items())))
    except (NotPlainError, FeatureNotSupportedError, pa.ArrowNotImplementedError):
        return None
    return lambda batch: _first_error_first(value, batch)


def _first_error_first(value: Value, batch: pa.RecordBatch) -> pa.BooleanArray:
    """The decisions; of several rows with an error the first one's is raised, as row by row."""
    try:
        found: pa.BooleanArray = full(value.run(batch), batch.num_rows)
    except PenstockError:
        if batch.num_rows > 1:
            half = batch.num_rows // 2
            _first_error_first(value, batch.slice(0, half))
            _first_error_first(value, batch.slice(half))
        raise
    return found


class _Compiler:
    def __init__(self, columns: Columns, facts: Facts) -> None:
        self._columns = columns
        self._facts = facts

    def value(self, node: Any) -> Value:
        """The value of an expression; NotPlainError."""
        method = getattr(self, f"_{node.tag.lower()}", None) if isinstance(node, Node) else None
        if method is None or any(node.get(f) not in _ALLOWED for f in _COLLATIONS):
            raise NotPlainError
        value: Value = method(node)
        if value.oid not in _COMPUTED:
            raise NotPlainError
        return value

    def _each(self, nodes: Sequence[Any]) -> list[Value]:
        return [self.value(each) for each in nodes]

    # Leaves

    def _var(self, node: Node) -> Value:
        name, kind = self._column(node)
        return Value(node["vartype"], kind, lambda batch: batch.column(name))

    def _column(self, node: Node) -> tuple[str, pa.DataType]:
        """Name and type of a column of the table."""
        if node["varlevelsup"] != 0 or node["varattno"] not in self._columns:
            raise NotPlainError
        return self._columns[node["varattno"]]

    def _const(self, node: Node) -> Value:
        oid = node["consttype"]
        if oid not in _COMPUTED:
            raise NotPlainError
        null = node["constisnull"]
        value = None if null else constants.from_datum(oid, node["constvalue"])
        return _constant(oid, value)

    # Functions and operators

    def _funcexpr(self, node: Node) -> Value:
        if node["funcretset"] or node["funcvariadic"]:
            raise NotPlainError
        return self._call(node["funcid"], self._each(node.items("args")), node["funcresulttype"])

    def _opexpr(self, node: Node) -> Value:
        return self._call(node["opfuncid"], self._each(node["args"]), node["opresulttype"])

    def _call(self, oid: int, args: Sequence[Value], result: int) -> Value:
        function = self._facts.functions.get(oid)
        if function is None or oid >= FIRST_OWN_OID or function.schema != "pg_catalog":
            raise NotPlainError
        value = function_value(function, args, result)
        if any(each.is_null for each in args):
            # A strict function of NULL is NULL before the first row (clauses.c).
            return constant(result, pa.scalar(None, value.kind))
        if all(each.is_constant for each in args):
            return _folded(value)
        return value

    def _equality(self, node: Node, args: Sequence[Value]) -> Value:
        function = self._facts.functions.get(node["opfuncid"])
        if function is None or compares(function) != "eq":
            raise NotPlainError
        return self._call(node["opfuncid"], args, types.BOOL)

    def _distinctexpr(self, node: Node) -> Value:
        a, b = self._each(node["args"])
        equal = self._equality(node, (a, b))

        def run(batch: pa.RecordBatch) -> Any:
            left, right = (full(each.run(batch), batch.num_rows) for each in (a, b))
            one = pc.xor(left.is_null(), right.is_null())
            return pc.coalesce(pc.invert(full(equal.run(batch), batch.num_rows)), one)

        return Value(types.BOOL, pa.bool_(), run, equal.fails or a.fails or b.fails)

    def _nullifexpr(self, node: Node) -> Value:
        a, b = self._each(node["args"])
        equal = self._equality(node, (a, b))

        def run(batch: pa.RecordBatch) -> Any:
            same = pc.fill_null(full(equal.run(batch), batch.num_rows), False)
            return pc.if_else(same, pa.scalar(None, a.kind), a.run(batch))

        return Value(a.oid, a.kind, run, a.fails or b.fails)

    def _scalararrayopexpr(self, node: Node) -> Value:
        left, right = self.value(node["args"][0]), node["args"][1]
        function = self._facts.functions.get(node["opfuncid"])
        if function is None or compares(function) is None:
            raise NotPlainError
        items = self._elements(right)
        # All elements are computed before the first comparison, and none for no element.
        if not items or any(each.fails for each in items) or left.is_null:
            raise NotPlainError
        if compares(function) == "eq" and node["useOr"]:
            among = _among(left, items)
            if among is not None:
                return among
        parts = [self._call(node["opfuncid"], (left, each), types.BOOL) for each in items]
        join = pc.or_kleene if node["useOr"] else pc.and_kleene

        def run(batch: pa.RecordBatch) -> Any:
            return reduce(join, (full(part.run(batch), batch.num_rows) for part in parts))

        return Value(types.BOOL, pa.bool_(), run, left.fails)

    def _elements(self, node: Any) -> list[Value]:
        if isinstance(node, Node) and node.tag in _ARRAY_CASTS and _casts_varchars(node):
            node = node["arg"]
        if not isinstance(node, Node):
            raise NotPlainError
        if node.tag == "ARRAYEXPR" and not node["multidims"]:
            return self._each(node.items("elements"))
        element = types.ARRAY_ELEMENTS.get(node["consttype"]) if node.tag == "CONST" else None
        if element not in _COMPUTED or element is None or node["constisnull"]:
            raise NotPlainError
        values = constants.from_datum(node["consttype"], node["constvalue"])
        return [_constant(element, each) for each in values]

    # Booleans

    def _boolexpr(self, node: Node) -> Value:
        parts = self._each(node["args"])
        if node["boolop"] == "not":
            (part,) = parts
            value = Value(types.BOOL, pa.bool_(), lambda b: pc.invert(part.run(b)), part.fails)
            return _folded(value) if part.is_constant else value
        return together(parts, both=node["boolop"] == "and")

    def _nulltest(self, node: Node) -> Value:
        if node["argisrow"]:
            raise NotPlainError
        test = pc.is_null if node["nulltesttype"] == 0 else pc.is_valid
        arg = node["arg"]
        if isinstance(arg, Node) and arg.tag == "VAR":
            name, _ = self._column(arg)
            return Value(types.BOOL, pa.bool_(), lambda batch: test(batch.column(name)))
        value = self.value(arg)
        return Value(types.BOOL, pa.bool_(), lambda batch: test(value.run(batch)), value.fails)

    def _booleantest(self, node: Node) -> Value:
        value = self.value(node["arg"])
        test = _BOOLEAN_TESTS[node["booltesttype"]]
        return Value(types.BOOL, pa.bool_(), lambda batch: test(value.run(batch)), value.fails)

    # Choices

    def _caseexpr(self, node: Node) -> Value:
        if node["arg"] is not None:
            node = without_test(node)
        conditions = [self.value(when["expr"]) for when in node["args"]]
        results = [when["result"] for when in node["args"]]
        values = [*self._each(results), self._default(node)]
        return choice(conditions, _of_one_kind(values))

    def _default(self, node: Node) -> Value:
        if node["defresult"] is None:
            return _constant(node["casetype"], None)
        return self.value(node["defresult"])

    def _coalesceexpr(self, node: Node) -> Value:
        return first_of(_of_one_kind(self._each(node["args"])))

    def _minmaxexpr(self, node: Node) -> Value:
        args = _of_one_kind(self._each(node["args"]))
        if node["minmaxtype"] in _UNORDERED or len({each.kind for each in args}) > 1:
            raise NotPlainError
        most = pc.max_element_wise if node["op"] == 0 else pc.min_element_wise

        def run(batch: pa.RecordBatch) -> Any:
            return most(*(full(each.run(batch), batch.num_rows) for each in args), skip_nulls=True)

        return Value(node["minmaxtype"], args[0].kind, run, any(each.fails for each in args))

    # Casts without a function

    def _relabeltype(self, node: Node) -> Value:
        value = self.value(node["arg"])
        if value.oid not in _TEXTS or node["resulttype"] not in _TEXTS:
            raise NotPlainError
        return value

    def _collateexpr(self, node: Node) -> Value:
        return self.value(node["arg"])


_ALLOWED = {None, *ALLOWED_COLLATIONS}

_BOOLEAN_TESTS: tuple[Callable[[Any], Any], ...] = (
    lambda found: pc.fill_null(found, False),
    lambda found: pc.invert(pc.fill_null(found, False)),
    lambda found: pc.invert(pc.fill_null(found, True)),
    lambda found: pc.fill_null(found, True),
    pc.is_null,
    pc.is_valid,
)
"""By BoolTestType: IS [NOT] TRUE, IS [NOT] FALSE, IS [NOT] UNKNOWN."""


def _folded(value: Value) -> Value:
    """A value of constants, computed; one that fails is left to whom the error belongs to."""
    try:
        found = value.run(pa.RecordBatch.from_arrays([], []))
    except PenstockError as error:
        raise NotPlainError from error
    return constant(value.oid, found)


def _of_one_kind(values: Sequence[Value]) -> list[Value]:
    """With constant NULLs, and numerics that it has room for, of the kind of the others."""
    kinds = [each.kind for each in values if not each.is_constant]
    if not kinds:
        kinds = [each.kind for each in values if not each.is_null]
    return [_as_kind(each, kinds[0]) if each.is_constant and kinds else each for each in values]


def _as_kind(value: Value, kind: pa.DataType) -> Value:
    try:
        return constant(value.oid, value.constant.cast(kind))
    except pa.ArrowInvalid as error:
        raise NotPlainError from error


def _among(left: Value, items: Sequence[Value]) -> Value | None:
    """= ANY of constants of the kind of the left side, by a hash table; None for others."""
    given = [each for each in items if not each.is_null]
    is_same = all(each.is_constant and each.kind == left.kind for each in given)
    if not is_same or not given or left.oid in _UNORDERED or pa.types.is_decimal(left.kind):
        return None
    listed = pa.array([each.constant.as_py() for each in given], left.kind)
    has_null = len(given) < len(items)

    def run(batch: pa.RecordBatch) -> Any:
        value = full(left.run(batch), batch.num_rows)
        found = pc.is_in(value, listed)
        unknown = pc.or_(pc.is_null(value), pc.and_(pc.invert(found), has_null))
        return pc.if_else(unknown, pa.scalar(None, pa.bool_()), found)

    return Value(types.BOOL, pa.bool_(), run, left.fails)


def _casts_varchars(node: Node) -> bool:
    """Whether a cast is one of varchar[] to text[], which changes nothing."""
    inner = node["arg"]
    is_array = isinstance(inner, Node) and inner.tag == "ARRAYEXPR"
    return is_array and node["resulttype"] == _TEXT_ARRAY and inner["element_typeid"] in _TEXTS


def _constant(oid: int, value: Any) -> Value:
    """A constant; numerics have the digits that it has."""
    kind = types.arrow_type(oid, -1)
    try:
        if oid == types.NUMERIC and isinstance(value, Decimal):
            return constant(oid, pa.scalar(value))
        if pa.types.is_date(kind) and value is not None:
            return constant(oid, pa.scalar(value, pa.int32()).cast(kind))
        if pa.types.is_timestamp(kind) and value is not None:
            return constant(oid, pa.scalar(value, pa.int64()).cast(kind))
        return constant(oid, pa.scalar(value, kind))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise NotPlainError from error
