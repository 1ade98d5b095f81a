# SPDX-License-Identifier: Apache-2.0
"""Quotients of any two numerics, by their texts: the general form, which takes some 100 us a row.

Display scales may differ from value to value here, and operands may need all of Spark's 38 digits.
``quotient`` has the form for columns and constants of known scales.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.change import types
from penstock.sql.translate.values import MAX_DIGITS, Digits, Expr, failure, let

QUOTIENT_SCALE = 20
"""Scale of the decimal that holds a quotient; what is shown with more is refused when it is met."""

_LIMB = 19
"""Digits of a divisor up to which a quotient of 38 digits is computed, in two halves."""

_BASE = "CAST('10000000000000000000' AS DECIMAL(20,0))"


def too_small() -> str:
    """SQL that fails: a quotient is shown with more than QUOTIENT_SCALE decimals."""
    return failure("0A000", "a numeric quotient with more than 20 decimals is not supported")


def zero_divisor() -> str:
    """SQL that fails with 22012."""
    return failure("22012", "division by zero")


def divide_texts(a: Expr, b: Expr) -> Expr:
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
        return (
            f"CASE WHEN {p} IS NULL OR {q} IS NULL THEN NULL WHEN {q} = 0 THEN {zero_divisor()}"
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

    return _from_text(let([a.sql, b.sql, x.shown_sql, y.shown_sql], texts))


def _from_text(text: str) -> Expr:
    """A numeric given by PostgreSQL's text of it, of which ``sql`` holds QUOTIENT_SCALE digits."""
    shown = "IF(instr({0}, '.') = 0, 0, length({0}) - instr({0}, '.'))"
    digits = Digits(MAX_DIGITS, QUOTIENT_SCALE, let([text], lambda v: shown.format(v[0])))
    value = let(
        [text],
        lambda v: (
            f"CASE WHEN {shown.format(v[0])} > {QUOTIENT_SCALE} THEN {too_small()}"
            f" ELSE CAST({v[0]} AS {digits.sql_type}) END"
        ),
    )
    return Expr(value, types.NUMERIC, digits=digits, text=text)


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
