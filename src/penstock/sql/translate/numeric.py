# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of PostgreSQL's numeric on Spark's decimals: the same digits, the same scales.

PostgreSQL computes with any number of digits and gives each result a display scale (numeric.c):

    a + b, a - b, a % b    the larger scale
    a * b                  the sum of the scales
    a / b                  at least 16 significant digits (select_div_scale), depends on the values
    round(a, n)            n
    sum(a)                 the largest scale of the inputs
    avg(a)                 sum(a) / count(a)

Spark's decimals have 38 digits.  A result that needs more ends the query with 0A000 when it is
met (Spark raises its overflow error; ``spark.sql.decimalOperations.allowPrecisionLoss`` must be
false, so that no digit is ever dropped silently).
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.change import types
from penstock.sql.translate.values import (
    MAX_DIGITS,
    Digits,
    Expr,
    failure,
    fixed,
    is_trimmed,
    let,
    refusal,
    trimmed,
)

_WIDE_SCALE = 18
_WIDE_SPLITS = ((9, 9), (18, 0), (0, 18), (14, 4), (4, 14))


def numeric(sql: str, precision: int, scale: int, shown: int | str) -> Expr:
    """A computed numeric; ``sql`` is brought to exactly this decimal type."""
    if scale > MAX_DIGITS:
        raise refusal(f"a numeric result with {scale} decimals")
    digits = Digits(min(precision, MAX_DIGITS), scale, shown, precision > MAX_DIGITS)
    return Expr(f"CAST({sql} AS {digits.sql_type})", types.NUMERIC, digits=digits)


def text_of(expr: Expr) -> str:
    """PostgreSQL's text of a numeric, with its display scale."""
    if expr.text is not None:
        return expr.text
    digits = expr.numeric
    text = f"CAST({expr.sql} AS STRING)"
    if digits.fixed:
        return text
    if is_trimmed(expr):
        return f"TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM {text}))"
    return let(
        [text, digits.shown_sql],
        lambda v: f"TRIM(TRAILING '.' FROM left({v[0]}, length({v[0]}) - {digits.scale} + {v[1]}))",
    )


def add(a: Expr, b: Expr, operator: str = "+") -> Expr:
    """a + b or a - b."""
    x, y = a.numeric, b.numeric
    scale = max(x.scale, y.scale)
    whole = max(x.precision - x.scale, y.precision - y.scale)
    return numeric(f"({a.sql} {operator} {b.sql})", whole + scale + 1, scale, larger(x, y))


def larger(x: Digits, y: Digits) -> int | str:
    """The larger of two display scales."""
    if isinstance(x.shown, int) and isinstance(y.shown, int):
        return max(x.shown, y.shown)
    return f"greatest({x.shown_sql}, {y.shown_sql})"


def multiply(a: Expr, b: Expr) -> Expr:
    """a * b."""
    x, y = a.numeric, b.numeric
    scale, precision = x.scale + y.scale, x.precision + y.precision + 1
    if isinstance(x.shown, int) and isinstance(y.shown, int):
        return numeric(f"({a.sql} * {b.sql})", precision, scale, scale)
    shown = f"({x.shown_sql} + {y.shown_sql})"
    if scale <= _WIDE_SCALE + 6:
        return numeric(f"({a.sql} * {b.sql})", precision, scale, shown)
    return numeric(_wide_product(a, b), MAX_DIGITS, _WIDE_SCALE, shown)


def _wide_product(a: Expr, b: Expr) -> str:
    """Scales that are wide for all values, narrow for most: multiply without the trailing zeros."""
    many = failure("0A000", "a numeric product with more than 18 decimals is not supported")

    def body(v: Sequence[str]) -> str:
        x, y, sx, sy = v
        cases = " ".join(
            f"WHEN {sx} <= {i} AND {sy} <= {j}"
            f" THEN CAST(CAST({x} AS DECIMAL(38,{i})) * CAST({y} AS DECIMAL(38,{j}))"
            f" AS DECIMAL(38,{_WIDE_SCALE}))"
            for i, j in _WIDE_SPLITS
        )
        return f"CASE WHEN {x} IS NULL OR {y} IS NULL THEN NULL {cases} ELSE {many} END"

    return let([a.sql, b.sql, a.numeric.shown_sql, b.numeric.shown_sql], body)


def remainder(a: Expr, b: Expr) -> Expr:
    """a % b, with the sign of a."""
    x, y = a.numeric, b.numeric
    scale = max(x.scale, y.scale)
    whole = min(x.precision - x.scale, y.precision - y.scale)
    return numeric(f"({a.sql} % {b.sql})", max(whole, 1) + scale, scale, larger(x, y))


def negate(a: Expr) -> Expr:
    """-a."""
    return _same(a, _negative(a.sql, a.numeric))


def absolute(a: Expr) -> Expr:
    """abs(a)."""
    digits = a.numeric
    if digits.precision <= _NEGATED_DIGITS:
        return _same(a, f"abs({a.sql})")
    return _same(a, let([a.sql], lambda v: f"IF({v[0]} < 0, {_negative(v[0], digits)}, {v[0]})"))


_NEGATED_DIGITS = 34
"""Spark's minus and abs() round a decimal to so many digits (scala.math.BigDecimal's default)."""


def _negative(sql: str, digits: Digits) -> str:
    if digits.precision <= _NEGATED_DIGITS:
        return f"(-{sql})"
    return f"CAST((0BD - {sql}) AS {digits.sql_type})"


def _same(a: Expr, sql: str) -> Expr:
    digits = a.numeric
    if is_trimmed(a):
        return trimmed(sql, digits.precision, digits.scale)
    return Expr(sql, types.NUMERIC, digits=digits)


def rounded(a: Expr, scale: int) -> Expr:
    """round(a, scale): half away from zero, shown with that scale."""
    digits = a.numeric
    whole = digits.precision - digits.scale + 1
    if scale >= digits.scale:
        return fixed(a.sql, whole + scale, scale)
    return fixed(f"round({a.sql}, {scale})", whole + max(scale, 0), max(scale, 0))


def truncated(a: Expr, scale: int) -> Expr:
    """trunc(a, scale): towards zero."""
    digits = a.numeric
    whole = digits.precision - digits.scale + 1
    if scale >= digits.scale:
        return fixed(a.sql, whole + scale, scale)
    sql = let([a.sql], lambda v: f"IF({v[0]} < 0, ceil({v[0]}, {scale}), floor({v[0]}, {scale}))")
    return fixed(sql, whole + max(scale, 0), max(scale, 0))


def with_typmod(a: Expr, typmod: int) -> Expr:
    """Cast to numeric(p, s); 22003 when a value does not fit."""
    if typmod < 4:
        return a
    kind = types.numeric_type(typmod)
    whole = ((typmod - 4) >> 16) - ((typmod - 4) & 0x7FF ^ 1024) + 1024
    scale = ((typmod - 4) & 0x7FF ^ 1024) - 1024
    if scale > (typmod - 4) >> 16 or scale < 0:
        raise refusal("a cast to numeric with a scale outside 0 to its precision")
    digits = a.numeric
    if digits.scale <= scale and digits.precision - digits.scale <= whole:
        return fixed(a.sql, kind.precision, scale)
    overflow = failure("22003", "numeric field overflow")
    rounded_a = rounded(a, scale)
    narrow = f"DECIMAL({kind.precision},{scale})"
    sql = let(
        [rounded_a.sql],
        lambda v: f"IF({v[0]} IS NULL, NULL, coalesce(try_cast({v[0]} AS {narrow}), {overflow}))",
    )
    return fixed(sql, kind.precision, scale)


def unify(exprs: list[Expr]) -> tuple[Digits, list[Expr]]:
    """One decimal type for several numerics (the branches of a CASE, the sides of a UNION).

    The Digits' ``shown`` is a number only if all are shown alike; otherwise it is -1, and the
    caller says how the display scale depends on the branch.
    """
    alike = {expr.numeric.shown for expr in exprs}
    scale = max(expr.numeric.scale for expr in exprs)
    whole = max(expr.numeric.precision - expr.numeric.scale for expr in exprs)
    same = len(alike) == 1 and all(expr.numeric.fixed for expr in exprs)
    wide = whole + scale > MAX_DIGITS
    digits = Digits(min(whole + scale, MAX_DIGITS), scale, scale if same else -1, wide)
    cast = [
        Expr(f"CAST({e.sql} AS {digits.sql_type})", types.NUMERIC, digits=e.digits, value=e.value)
        for e in exprs
    ]
    return digits, cast
