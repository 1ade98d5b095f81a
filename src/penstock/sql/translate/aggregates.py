# SPDX-License-Identifier: Apache-2.0
"""Aggregate functions, plain and over a window.

``FILTER (WHERE c)`` becomes NULL for the rows that are left out: every aggregate here skips NULLs,
except array_agg, which filters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from penstock.change import types
from penstock.names import quote_spark_literal
from penstock.sql.translate import numeric
from penstock.sql.translate.quotient import divide
from penstock.sql.translate.registry import Function
from penstock.sql.translate.values import (
    Expr,
    failure,
    fixed,
    is_text_form,
    is_trimmed,
    let,
    need_equality,
    need_order,
    refusal,
    spark_type,
    trimmed,
)


@dataclass(frozen=True)
class OrderKey:
    """One key of an ORDER BY."""

    expr: Expr
    descending: bool
    nulls_first: bool

    @property
    def direction(self) -> str:
        """What follows the key in SQL."""
        nulls = "FIRST" if self.nulls_first else "LAST"
        return f"{'DESC' if self.descending else 'ASC'} NULLS {nulls}"

    @property
    def sql(self) -> str:
        """The key in an ORDER BY of Spark."""
        return f"{need_order(self.expr, 'ORDER BY')} {self.direction}"


@dataclass(frozen=True)
class Aggregate:
    """One use of an aggregate; ``over`` is the window, empty without one."""

    function: Function
    args: Sequence[Expr]
    result: int
    condition: str | None = None
    distinct: bool = False
    order: Sequence[OrderKey] = ()
    over: str = ""

    def use(self, name: str, sql: str) -> str:
        """``name(sql)`` over the rows, and the distinct values, that count."""
        filtered = f"CASE WHEN {self.condition} THEN {sql} END" if self.condition else sql
        return f"{name}({'DISTINCT ' if self.distinct else ''}{filtered}){self.over}"


Handler = Callable[[Aggregate], Expr]


def aggregate(use: Aggregate) -> Expr:
    """Translate one use; refusal when the aggregate is not in the list below."""
    handler = _HANDLERS.get(use.function.signature)
    if use.function.schema != "pg_catalog" or handler is None:
        raise refusal(f"aggregate {use.function}")
    if use.distinct and use.args:
        need_equality(use.args[0], "DISTINCT")
    if use.order and use.function.name not in ("array_agg", "string_agg"):
        use = replace(use, order=())
    return handler(use)


def _count(use: Aggregate) -> Expr:
    return Expr(use.use("count", use.args[0].sql if use.args else "1"), types.INT8)


def _sum(use: Aggregate) -> Expr:
    return _total(use, use.args[0])


def _total(use: Aggregate, arg: Expr) -> Expr:
    """The sum, as PostgreSQL types it."""
    if arg.oid in (types.INT2, types.INT4):
        return Expr(use.use("sum", f"CAST({arg.sql} AS BIGINT)"), types.INT8)
    if arg.oid == types.INT8:
        return fixed(use.use("sum", f"CAST({arg.sql} AS DECIMAL(20,0))"), 30, 0)
    if arg.oid == types.NUMERIC:
        digits = arg.numeric
        shown: int | str = digits.scale
        if not digits.fixed:
            shown = use.use("max", digits.shown_sql)
        return numeric.numeric(use.use("sum", arg.sql), digits.precision + 10, digits.scale, shown)
    return Expr(f"CAST({_float_total(use, 'sum')} AS {spark_type(use.result)})", use.result)


def _float_total(use: Aggregate, name: str) -> str:
    """Sum or average of floats; 22003 when finite inputs give infinity."""
    value = f"CAST({use.args[0].sql} AS DOUBLE)"
    infinity = "CAST('Infinity' AS DOUBLE)"
    overflow = failure("22003", "value out of range: overflow")
    total, largest = use.use(name, value), use.use("max", f"abs(nanvl({value}, 0D))")
    return let(
        [total, largest],
        lambda v: f"IF(abs({v[0]}) = {infinity} AND {v[1]} <> {infinity}, {overflow}, {v[0]})",
    )


def _average(use: Aggregate) -> Expr:
    arg = use.args[0]
    if arg.oid in (types.FLOAT4, types.FLOAT8):
        return Expr(_float_total(use, "avg"), types.FLOAT8)
    total = _total(use, arg)
    if total.oid == types.INT8:
        total = fixed(total.sql, 19, 0)
    return divide(total, fixed(use.use("count", arg.sql), 19, 0))


def _extreme(use: Aggregate) -> Expr:
    arg, name = use.args[0], use.function.name
    if arg.oid == types.BPCHAR and arg.typmod < 4:
        raise refusal(f"{name}() of character values of different lengths")
    if arg.oid != types.BPCHAR:
        need_order(arg, f"{name}()")
    sql = use.use(name, arg.sql)
    if arg.oid != types.NUMERIC:
        return Expr(sql, arg.oid, arg.typmod)
    digits = arg.numeric
    if digits.fixed:
        return Expr(sql, arg.oid, digits=digits)
    if arg.text is None and is_trimmed(arg):
        return trimmed(sql, digits.precision, digits.scale)
    raise refusal(f"{name}() of numeric values with different display scales", "Use round().")


def _plain(name: str) -> Handler:
    def handler(use: Aggregate) -> Expr:
        return Expr(use.use(name, use.args[0].sql), use.result)

    return handler


def _no_window(use: Aggregate) -> None:
    if use.over:
        raise refusal(f"{use.function} as a window function")


def _string_agg(use: Aggregate) -> Expr:
    _no_window(use)
    value, separator = use.args
    if not separator.constant:
        raise refusal("string_agg() with a separator that is not a constant")
    quoted = quote_spark_literal(separator.value or "")
    condition = f"{value.sql} IS NOT NULL"
    if use.condition:
        condition = f"{use.condition} AND {condition}"
    if not use.distinct and not use.order:
        return Expr(f"listagg({value.sql}, {quoted}) FILTER (WHERE {condition})", types.TEXT)
    # Not listagg's own order: Spark cannot plan it beside other aggregates with DISTINCT.
    rows = _collected(use, condition)
    sql = let([rows], lambda v: f"IF(size({v[0]}) = 0, NULL, array_join({v[0]}, {quoted}))")
    return Expr(sql, types.TEXT)


def _array_agg(use: Aggregate) -> Expr:
    _no_window(use)
    value = use.args[0]
    if use.result not in types.ARRAY_ELEMENTS or is_text_form(value.oid):
        raise refusal(f"array_agg() of {types.type_name(value.oid)}")
    if value.oid == types.NUMERIC:
        raise refusal("array_agg() of numeric", "Cast to double precision or text.")
    rows = _collected(use, use.condition)
    sql = let([rows], lambda v: f"IF(size({v[0]}) = 0, NULL, {v[0]})")
    return Expr(f"CAST({sql} AS {spark_type(use.result)})", use.result)


def _collected(use: Aggregate, condition: str | None) -> str:
    """An array of the first argument's values for which a condition is true, in their order."""
    value = use.args[0]
    keys = list(use.order)
    if use.distinct and not keys:
        keys = [OrderKey(value, descending=False, nulls_first=False)]
    fields = [f"'k{i}', {need_order(key.expr, 'ORDER BY')}" for i, key in enumerate(keys)]
    fields.append(f"'v', {value.sql}")
    name = "collect_set" if use.distinct else "collect_list"
    only = f" FILTER (WHERE {condition})" if condition else ""
    rows = f"{name}(named_struct({', '.join(fields)})){only}"
    if keys:
        rows = f"array_sort({rows}, (l, r) -> {_comparison(keys, 0)})"
    return f"transform({rows}, e -> e.v)"


def _comparison(keys: Sequence[OrderKey], at: int) -> str:
    if at == len(keys):
        return "0"
    key, left, right = keys[at], f"l.k{at}", f"r.k{at}"
    nulls = -1 if key.nulls_first else 1
    less = 1 if key.descending else -1
    return (
        f"CASE WHEN {left} <=> {right} THEN {_comparison(keys, at + 1)}"
        f" WHEN {left} IS NULL THEN {nulls} WHEN {right} IS NULL THEN {-nulls}"
        f" WHEN {left} < {right} THEN {less} ELSE {-less} END"
    )


_HANDLERS: dict[str, Handler] = {
    "count()": _count,
    "count(any)": _count,
    "string_agg(text,text)": _string_agg,
    "array_agg(anynonarray)": _array_agg,
    "bool_and(bool)": _plain("bool_and"),
    "every(bool)": _plain("bool_and"),
    "bool_or(bool)": _plain("bool_or"),
}
for _type in ("int2", "int4", "int8", "float4", "float8", "numeric"):
    _HANDLERS[f"sum({_type})"] = _sum
    _HANDLERS[f"avg({_type})"] = _average
for _type in ("int2", "int4", "int8"):
    for _name in ("bit_and", "bit_or", "bit_xor"):
        _HANDLERS[f"{_name}({_type})"] = _plain(_name)
for _type in (
    *("int2", "int4", "int8", "oid", "float4", "float8", "numeric", "text", "bpchar", "bytea"),
    *("date", "time", "timestamp", "timestamptz", "uuid"),
):
    for _name in ("min", "max"):
        _HANDLERS[f"{_name}({_type})"] = _extreme
