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

QUOTIENT_SCALE = 20
"""Scale of the decimal that holds a quotient when it is more than shown."""

_LIMB = 19
"""Digits of a divisor up to which a quotient of 38 digits is computed, in two halves."""

_BASE = "CAST('10000000000000000000' AS DECIMAL(20,0))"

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


def from_text(text: str) -> Expr:
    """A numeric given by PostgreSQL's text of it, of which ``sql`` holds QUOTIENT_SCALE digits."""
    shown = "IF(instr({0}, '.') = 0, 0, length({0}) - instr({0}, '.'))"
    digits = Digits(MAX_DIGITS, QUOTIENT_SCALE, let([text], lambda v: shown.format(v[0])))
    too_small = failure("0A000", "a numeric quotient with more than 20 decimals is not supported")
    value = let(
        [text],
        lambda v: (
            f"CASE WHEN {shown.format(v[0])} > {QUOTIENT_SCALE} THEN {too_small}"
            f" ELSE CAST({v[0]} AS {digits.sql_type}) END"
        ),
    )
    return Expr(value, types.NUMERIC, digits=digits, text=text)


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


def divide(a: Expr, b: Expr) -> Expr:
    """a / b, rounded half away from zero at select_div_scale's scale; 22012 when b is 0."""
    x, y = a.numeric, b.numeric
    width = min(y.precision, MAX_DIGITS)

    def texts(v: Sequence[str]) -> str:
        p, q, sp, sq = v
        inner = let(
            [f"CAST(abs({p}) AS STRING)", f"CAST(abs({q}) AS STRING)", sp, sq],
            lambda w: let(
                [
                    w[0],
                    w[1],
                    w[2],
                    w[3],
                    _leading_digit(w[0], x.scale),
                    _leading_digit(w[1], y.scale),
                ],
                with_scale,
            ),
        )
        sign = f"IF(({p} < 0) <> ({q} < 0), '-', '')"
        zero = failure("22012", "division by zero")
        return (
            f"CASE WHEN {p} IS NULL OR {q} IS NULL THEN NULL WHEN {q} = 0 THEN {zero}"
            f" ELSE {let([inner, sign], _signed)} END"
        )

    def with_scale(v: Sequence[str]) -> str:
        t, u, st, su, first, second = v
        weight = f"(({first} - pmod({first}, 10000)) - ({second} - pmod({second}, 10000)))"
        less = f"IF(pmod({first}, 10000) <= pmod({second}, 10000), 1, 0)"
        scale = f"CAST(greatest(16 - 4 * ({weight} div 10000 - {less}), {st}, {su}) AS INT)"
        return let([t, u, st, su, scale], quotient)

    def quotient(v: Sequence[str]) -> str:
        t, u, st, su, scale = v
        above = f"({_unscaled(t, st, x.scale)} * {_power(f'{scale} + {su} - {st}')})"
        below = f"CAST({_unscaled(u, su, y.scale)} AS DECIMAL({width},0))"
        return let([above, below, scale], rounded)

    def rounded(v: Sequence[str]) -> str:
        above, below, scale = v
        if width > _LIMB:
            left = f"({above} % {below})"
            return with_last_digit([_quotient(above, below), left, below, scale])
        high = _quotient(above, _BASE)
        return let([high, f"({above} % {_BASE})", below, scale], in_limbs)

    def in_limbs(v: Sequence[str]) -> str:
        high, low, below, scale = v
        rest = f"CAST(({high} % {below}) * {_BASE} + {low} AS DECIMAL(38,0))"
        return let([_quotient(high, below), rest, below, scale], joined)

    def joined(v: Sequence[str]) -> str:
        high, rest, below, scale = v
        whole = f"CAST({high} * {_BASE} + {_quotient(rest, below)} AS DECIMAL(38,0))"
        return let([whole, f"({rest} % {below})", below, scale], with_last_digit)

    def with_last_digit(v: Sequence[str]) -> str:
        whole, left, below, scale = v
        up = f"IF({left} * 2 >= {below}, 1, 0)"
        return let([f"CAST(CAST({whole} + {up} AS DECIMAL(38,0)) AS STRING)", scale], _with_point)

    return from_text(let([a.sql, b.sql, x.shown_sql, y.shown_sql], texts))


def _quotient(above: str, below: str) -> str:
    """The whole part of a quotient of integers; Spark's own ``div`` would give a BIGINT."""
    return f"CAST(({above} - {above} % {below}) / {below} AS DECIMAL(38,0))"


def _signed(v: Sequence[str]) -> str:
    text, sign = v
    return f"IF({text} RLIKE '[1-9]', concat({sign}, {text}), {text})"


def _with_point(v: Sequence[str]) -> str:
    digits, scale = v
    padded = f"lpad({digits}, greatest(length({digits}), {scale} + 1), '0')"
    return (
        f"IF({scale} = 0, {digits}, concat(left({padded}, length({padded}) - {scale}), '.',"
        f" right({padded}, {scale})))"
    )


def _leading_digit(text: str, scale: int) -> str:
    """weight * 10000 + first digit, to base 10000, of a decimal's absolute value given as text."""
    whole = f"substring_index({text}, '.', 1)"
    size = f"(length({whole}) - 1)"
    above = f"({size} div 4) * 10000 + CAST(left({whole}, CAST({size} % 4 AS INT) + 1) AS INT)"
    if scale == 0:
        return f"IF({text} = '0', 0, {above})"
    rest = f"substring_index({text}, '.', -1)"
    zeros = f"((length({rest}) - length(TRIM(LEADING '0' FROM {rest}))) div 4)"
    group = f"substring(rpad({rest}, 44, '0'), CAST(4 * {zeros} + 1 AS INT), 4)"
    below = f"(-{zeros} - 1) * 10000 + CAST({group} AS INT)"
    return (
        f"CASE WHEN {whole} <> '0' THEN {above} WHEN NOT {rest} RLIKE '[1-9]' THEN 0"
        f" ELSE {below} END"
    )


def _unscaled(text: str, shown: str, scale: int) -> str:
    kept = f"left({text}, length({text}) - {scale} + {shown})"
    return f"CAST(replace({kept}, '.', '') AS DECIMAL(38,0))"


def _power(exponent: str) -> str:
    return f"CAST(rpad('1', CAST({exponent} + 1 AS INT), '0') AS DECIMAL(38,0))"


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
