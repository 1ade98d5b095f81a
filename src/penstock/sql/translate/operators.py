# SPDX-License-Identifier: Apache-2.0
"""Comparison and arithmetic operators, by the functions that implement them."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.change import types
from penstock.sql.translate import numeric
from penstock.sql.translate.casts import cast
from penstock.sql.translate.quotient import divide
from penstock.sql.translate.quotient_texts import divide_texts
from penstock.sql.translate.registry import FUNCTIONS, Call, Handler, register, template
from penstock.sql.translate.values import (
    Expr,
    bare,
    failure,
    let,
    need_equality,
    refusal,
    spark_type,
)

COMPARISONS = {"eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_WIDTHS = {"2": types.INT2, "4": types.INT4, "8": types.INT8}
_DAY_TYPES = ("date", "timestamp", "timestamptz")

EQUALITY: set[str] = set()
"""Names of functions that are an equality of values of one type."""

ORDERINGS: set[str] = set()
"""Names of functions that are <, <=, > or >= of values that Spark orders as PostgreSQL does."""


def _compare(operator: str) -> Handler:
    def handler(call: Call) -> Expr:
        a, b = call.args
        return Expr(f"({bare(a)} {operator} {bare(b)})", types.BOOL)

    return handler


def _compare_days(operator: str, kind: int) -> Handler:
    def handler(call: Call) -> Expr:
        a, b = (cast(call.session, arg, kind) for arg in call.args)
        return Expr(f"({a.sql} {operator} {b.sql})", types.BOOL)

    return handler


def _integer_codes() -> list[str]:
    same = list(_WIDTHS)
    return same + [a + b for a in _WIDTHS for b in _WIDTHS if a != b]


def _register_comparisons() -> None:
    plain = [f"int{code}" for code in _integer_codes()]
    plain += ["float4", "float8", "float48", "float84", "oid", "bool", "bytea", "name", "bpchar"]
    spaced = ["numeric_", "date_", "timestamp_", "timestamptz_", "uuid_", "time_"]
    for suffix, operator in COMPARISONS.items():
        names = [stem + suffix for stem in plain + spaced]
        names += [f"text{suffix}" if suffix in ("eq", "ne") else f"text_{suffix}"]
        names += [f"name{suffix}text", f"text{suffix}name"]
        if suffix in ("eq", "ne"):
            names += [f"enum_{suffix}", f"char{suffix}"]
        register(*names)(_compare(operator))
        if suffix == "eq":
            EQUALITY.update(names)
        elif suffix != "ne":
            ORDERINGS.update(names)
        for left in _DAY_TYPES:
            for right in _DAY_TYPES:
                if left != right:
                    wide = max(left, right, key=_DAY_TYPES.index)
                    kind = types.TIMESTAMP if wide == "timestamp" else types.TIMESTAMPTZ
                    FUNCTIONS[f"{left}_{suffix}_{right}"] = _compare_days(operator, kind)


def _compare_arrays(operator: str) -> Handler:
    """Arrays of the lake have one dimension from 1; NULL elements are equal, in both engines."""

    def handler(call: Call) -> Expr:
        a, b = (need_equality(arg, "a comparison") for arg in call.args)
        return Expr(f"({a} {operator} {b})", types.BOOL)

    return handler


register("array_eq")(_compare_arrays("="))
register("array_ne")(_compare_arrays("<>"))


def _integer(operator: str) -> Handler:
    def handler(call: Call) -> Expr:
        a, b = call.args
        kind = spark_type(call.result)
        left, right = (f"CAST({arg.sql} AS {kind})" for arg in (a, b))
        return Expr(f"({left} {operator} {right})", call.result)

    return handler


def _register_integers() -> None:
    for code in _integer_codes():
        register(f"int{code}pl")(_integer("+"))
        register(f"int{code}mi")(_integer("-"))
        register(f"int{code}mul")(_integer("*"))
        register(f"int{code}div")(_integer_quotient)
    for code, kind in _WIDTHS.items():
        name = spark_type(kind)
        template("({0} % {1})", f"int{code}mod", f"mod(int{code},int{code})")
        template(f"CAST(-{{0}} AS {name})", f"int{code}um")
        template("{0}", f"int{code}up")
        template(f"CAST(abs({{0}}) AS {name})", f"int{code}abs", f"abs(int{code})")
        template("({0} & {1})", f"int{code}and")
        template("({0} | {1})", f"int{code}or")
        template("({0} ^ {1})", f"int{code}xor")
        template("(~{0})", f"int{code}not")


def _integer_quotient(call: Call) -> Expr:
    a, b = call.args
    return Expr(f"CAST(({a.sql} div {b.sql}) AS {spark_type(call.result)})", call.result)


_OVERFLOW = failure("22003", "value out of range: overflow")
_UNDERFLOW = failure("22003", "value out of range: underflow")


def _float(operator: str) -> Handler:
    def handler(call: Call) -> Expr:
        kind = spark_type(call.result)
        args = [f"CAST({arg.sql} AS {kind})" for arg in call.args]
        infinity = f"CAST('Infinity' AS {kind})"

        def checked(v: Sequence[str]) -> str:
            a, b, result = v
            zero = ""
            if operator == "*":
                zero = f" WHEN {result} = 0 AND {a} <> 0 AND {b} <> 0 THEN {_UNDERFLOW}"
            return (
                f"CASE WHEN abs({result}) = {infinity} AND abs({a}) <> {infinity}"
                f" AND abs({b}) <> {infinity} THEN {_OVERFLOW}{zero} ELSE {result} END"
            )

        return Expr(
            let(args, lambda v: let([*v, f"({v[0]} {operator} {v[1]})"], checked)), call.result
        )

    return handler


def _float_quotient(call: Call) -> Expr:
    kind = spark_type(call.result)
    infinity = f"CAST('Infinity' AS {kind})"
    by_zero = failure("22012", "division by zero")

    def divided(v: Sequence[str]) -> str:
        a, b = v
        quotient = f"CAST(CAST({a} AS DOUBLE) / CAST({b} AS DOUBLE) AS {kind})"
        return (
            f"CASE WHEN isnan({a}) AND {b} IS NOT NULL THEN {a} WHEN {b} = 0"
            f" AND {a} IS NOT NULL THEN {by_zero} ELSE {let([a, b, quotient], checked)} END"
        )

    def checked(v: Sequence[str]) -> str:
        a, b, result = v
        return (
            f"CASE WHEN abs({result}) = {infinity} AND abs({a}) <> {infinity} THEN {_OVERFLOW}"
            f" WHEN {result} = 0 AND {a} <> 0 AND abs({b}) <> {infinity} THEN {_UNDERFLOW}"
            f" ELSE {result} END"
        )

    args = [f"CAST({arg.sql} AS {kind})" for arg in call.args]
    return Expr(let(args, divided), call.result)


def _register_floats() -> None:
    for code in ("4", "8", "48", "84"):
        for suffix, operator in (("pl", "+"), ("mi", "-"), ("mul", "*")):
            register(f"float{code}{suffix}")(_float(operator))
        register(f"float{code}div")(_float_quotient)
    for code in ("4", "8"):
        template("(-{0})", f"float{code}um")
        template("{0}", f"float{code}up")
        template("abs({0})", f"float{code}abs", f"abs(float{code})")


@register("floor(float8)", "dfloor(float8)")
def _floor(call: Call) -> Expr:
    return Expr(_float_floor(call.args[0].sql), types.FLOAT8)


@register("ceil(float8)", "ceiling(float8)", "dceil(float8)")
def _ceil(call: Call) -> Expr:
    return Expr(_float_ceil(call.args[0].sql), types.FLOAT8)


def _float_floor(sql: str) -> str:
    return let([sql, f"rint({sql})"], lambda v: f"IF({v[1]} > {v[0]}, {v[1]} - 1D, {v[1]})")


def _float_ceil(sql: str) -> str:
    # Written so that a result of zero keeps the sign: ceil(-0.7) is -0.
    return let([sql, f"rint({sql})"], lambda v: f"IF({v[1]} < {v[0]}, -(-{v[1]} - 1D), {v[1]})")


@register("trunc(float8)", "dtrunc(float8)")
def _trunc(call: Call) -> Expr:
    sql = let(
        [call.args[0].sql], lambda v: f"IF({v[0]} < 0, {_float_ceil(v[0])}, {_float_floor(v[0])})"
    )
    return Expr(sql, types.FLOAT8)


template("rint({0})", "round(float8)", "dround(float8)")
template("CAST('3.141592653589793' AS DOUBLE)", "pi()")


@register("sqrt(float8)", "dsqrt(float8)")
def _sqrt(call: Call) -> Expr:
    negative = failure("2201F", "cannot take square root of a negative number")
    sql = let([call.args[0].sql], lambda v: f"IF({v[0]} < 0, {negative}, sqrt({v[0]}))")
    return Expr(sql, types.FLOAT8)


@register("numeric_add")
def _numeric_add(call: Call) -> Expr:
    return numeric.add(call.args[0], call.args[1])


@register("numeric_sub")
def _numeric_sub(call: Call) -> Expr:
    return numeric.add(call.args[0], call.args[1], "-")


@register("numeric_mul")
def _numeric_mul(call: Call) -> Expr:
    return numeric.multiply(*call.args)


@register("numeric_div")
def _numeric_div(call: Call) -> Expr:
    if call.session.exact:  # refused there: row filters divide no numerics (docs/filters.md)
        return divide_texts(*call.args)
    return divide(*call.args)


@register("numeric_mod", "mod(numeric,numeric)")
def _numeric_mod(call: Call) -> Expr:
    return numeric.remainder(*call.args)


@register("numeric_uminus")
def _numeric_minus(call: Call) -> Expr:
    return numeric.negate(call.args[0])


@register("numeric_uplus")
def _numeric_plus(call: Call) -> Expr:
    return call.args[0]


@register("abs(numeric)", "numeric_abs")
def _numeric_abs(call: Call) -> Expr:
    return numeric.absolute(call.args[0])


def _scale(call: Call) -> int:
    if len(call.args) == 1:
        return 0
    value = call.args[1].value
    if not isinstance(value, int) or not -30 <= value <= 30:
        raise refusal("rounding to a scale that is not a constant from -30 to 30")
    return value


@register("round(numeric,int4)", "round(numeric)")
def _round(call: Call) -> Expr:
    return numeric.rounded(call.args[0], _scale(call))


@register("trunc(numeric,int4)", "trunc(numeric)")
def _trunc_numeric(call: Call) -> Expr:
    return numeric.truncated(call.args[0], _scale(call))


def _whole(function: str) -> Handler:
    def handler(call: Call) -> Expr:
        digits = call.args[0].numeric
        return numeric.numeric(
            f"{function}({call.args[0].sql})", digits.precision - digits.scale + 1, 0, 0
        )

    return handler


register("ceil(numeric)", "ceiling(numeric)")(_whole("ceil"))
register("floor(numeric)")(_whole("floor"))


@register("sign(numeric)")
def _sign(call: Call) -> Expr:
    return numeric.numeric(f"sign({call.args[0].sql})", 1, 0, 0)


_register_comparisons()
_register_integers()
_register_floats()
