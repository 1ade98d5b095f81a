# SPDX-License-Identifier: Apache-2.0
"""Quotients of numerics with PostgreSQL's digits (div_var() and select_div_scale() in numeric.c).

The scale depends on the first digits to base 10000 of both values.  With C = 10000 * weight + first
digit of a value, the quotient's weight is

    q = floor((C(a) - C(b) - 1) / 10000)        one less when a's first digit is not the larger one
    scale = max(16 - 4 * q, scales of a and b)

so there are few scales that a quotient of two types can have.  For each there is a branch in which
everything has a type of its own, all constants are known, and so the quotient is one division of
whole numbers, rounded half away from zero:

    N = |a| * 10^(scale + s), D = |b| * 10^s    whole, with the scale s of b
    (2N + D) div 2D                             as (T - T % 2D) / 2D, which is exact in Spark

Some 5 us a row.  What does not fit goes by way of texts (``quotient_texts``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.change import types
from penstock.sql.translate.quotient_texts import (
    QUOTIENT_SCALE,
    divide_texts,
    too_small,
    zero_divisor,
)
from penstock.sql.translate.values import MAX_DIGITS, Digits, Expr, let

_LEAST_DIGITS = 16
"""NUMERIC_MIN_SIG_DIGITS."""

_SIGNIFICANT = 22
"""Digits of a quotient whose scale follows from its weight: five to base 10000, and rounding."""

_ABSOLUTE_DIGITS = 34
"""Spark's abs() rounds a decimal to so many digits (scala.math.BigDecimal's default)."""

_REPEATED = 60
"""Length of an operand's text up to which it is repeated, and not bound by a lambda function."""


def divide(a: Expr, b: Expr) -> Expr:
    """a / b, rounded half away from zero at select_div_scale's scale; 22012 when b is 0."""
    branches = _branches(a.numeric, b.numeric)
    if branches is None:
        return divide_texts(a, b)
    every, complete = branches

    def shown(v: Sequence[str]) -> str:
        return _scale(v[0], v[1], a.numeric, b.numeric)

    def cases(largest: int, result: Callable[[_Branch, str], str]) -> str:
        kept = [each for each in every if each.scale <= largest]
        missing = "" if complete and kept == every else f"ELSE {too_small()} "

        def body(v: Sequence[str]) -> str:
            p, q = v
            of_scale = " ".join(
                f"WHEN {shown(v)} = {each.scale} THEN {result(each, each.quotient(p, q))}"
                for each in kept
            )
            return (
                f"CASE WHEN {p} IS NULL OR {q} IS NULL THEN NULL"
                f" WHEN {q} = 0 THEN {zero_divisor()} {of_scale} {missing}END"
            )

        return _bound([a.sql, b.sql], body)

    whole = a.numeric.precision - a.numeric.scale + b.numeric.scale
    digits = Digits(
        MAX_DIGITS,
        QUOTIENT_SCALE,
        _bound([a.sql, b.sql], shown),
        whole > MAX_DIGITS - QUOTIENT_SCALE,
    )
    value = cases(QUOTIENT_SCALE, lambda _, quotient: f"CAST({quotient} AS {digits.sql_type})")
    text = cases(
        MAX_DIGITS,
        lambda each, quotient: f"CAST(CAST({quotient} AS DECIMAL(38,{each.scale})) AS STRING)",
    )
    return Expr(value, types.NUMERIC, digits=digits, text=text)


@dataclass(frozen=True)
class _Branch:
    """Quotients of one scale.

    ``above`` and ``below`` are the digits of N and D, ``result`` those of the quotient as a whole
    number; ``factor``: a power of ten that makes D whole.
    """

    scale: int
    above: int
    below: int
    result: int
    factor: int

    def fits(self, scale: int) -> bool:
        """Whether Spark's types hold all of it; ``scale`` is that of a."""
        # DecimalArithmetic's rule for Divide when no digit may be lost.
        whole, decimals = self.above + 1, min(MAX_DIGITS, max(6, self.below + 2))
        if whole + decimals > MAX_DIGITS:
            decimals -= (whole + decimals - MAX_DIGITS) // 2 + 1
            whole = MAX_DIGITS - decimals
        return (
            self.above + 1 + scale <= MAX_DIGITS
            and self.below + self.factor <= MAX_DIGITS
            and self.scale + self.factor < MAX_DIGITS
            and min(self.result, self.above + 1) <= whole
        )

    def quotient(self, p: str, q: str) -> str:
        """p / q, neither NULL, q not zero."""
        whole = f"DECIMAL({self.above + 1},0)"
        twice = f"CAST(abs({p}) * {2 * 10 ** (self.scale + self.factor)}BD AS {whole})"
        once = f"CAST(abs({q}) * {10**self.factor}BD AS DECIMAL({self.below},0))"
        below = f"CAST(abs({q}) * {2 * 10**self.factor}BD AS DECIMAL({self.below + 1},0))"
        total = f"CAST({twice} + {once} AS {whole})"
        exact = f"CAST({total} - {total} % {below} AS {whole})"
        result = f"CAST({exact} / {below} AS DECIMAL({min(self.result, MAX_DIGITS)},0))"
        unit = f"0.{'0' * (self.scale - 1)}1BD" if self.scale else "1BD"
        return f"({result} * IF(({p} < 0) <> ({q} < 0), -{unit}, {unit}))"


def _branches(x: Digits, y: Digits) -> tuple[list[_Branch], bool] | None:
    """One for each scale, and whether that is all of them; None: not in this form.

    Of a scale that follows from the weight q, a is below 10000 ^ (q + 2 + weight of b).
    """
    least = _same_scale(x, y)
    if least is None:
        return None
    (low_a, high_a), (low_b, high_b) = _weights(x), _weights(y)
    found: dict[int, _Branch] = {}
    for weight in range(low_a - high_b - 1, high_a - low_b + 1):
        scale = max(_LEAST_DIGITS - 4 * weight, least)
        whole, result = x.precision - x.scale, x.precision - x.scale + y.scale + scale + 1
        if scale > least:
            whole = max(min(whole, 4 * (weight + 2 + high_b)), 0)
            result = min(result, _SIGNIFICANT)
        found[scale] = _Branch(scale, whole + scale + y.scale, y.precision, result, y.scale)
    fitting = [each for each in found.values() if each.fits(x.scale)]
    if any(each.scale <= QUOTIENT_SCALE for each in found.values() if each not in fitting):
        return None
    return fitting, len(fitting) == len(found)


def _same_scale(x: Digits, y: Digits) -> int | None:
    """The least scale of a quotient, when all values of each operand are shown with the same."""
    known = isinstance(x.shown, int) and isinstance(y.shown, int)
    wide = max(x.precision, y.precision) > _ABSOLUTE_DIGITS or x.overflows or y.overflows
    return max(x.scale, y.scale) if known and not wide else None


def _weights(digits: Digits) -> tuple[int, int]:
    """The least and the largest weight to base 10000 of a value that is not zero."""
    whole = digits.precision - digits.scale
    return -digits.scale // 4, max(-(-whole // 4) - 1, 0)


def _scale(p: str, q: str, x: Digits, y: Digits) -> str:
    """select_div_scale(), as an INT expression."""
    # The weight is above -100, and ``div`` rounds towards zero.
    shifted = f"({_leading(p, x)} - {_leading(q, y)} + 999999) div 10000"
    return (
        f"CAST(greatest({_LEAST_DIGITS + 400} - 4 * ({shifted}), {max(x.scale, y.scale)}) AS INT)"
    )


def _leading(value: str, digits: Digits) -> str:
    """10000 * weight + first digit to base 10000 of the absolute value; 0 for zero."""
    low, high = _weights(digits)
    cases = []
    for weight in range(high, low - 1, -1):
        size = 4 * abs(weight)
        least = f"0.{'0' * (size - 1)}1BD" if weight < 0 else f"{10**size}BD"
        whole = f"{10**size}BD" if weight < 0 else f"0.{'0' * (size - 1)}1BD" if weight else "1BD"
        above = f"abs({value}) >= {least}" if weight > low or not weight else f"{value} <> 0"
        cases.append(f"WHEN {above} THEN {10000 * weight} + CAST(abs({value}) * {whole} AS INT)")
    return f"(CASE {' '.join(cases)} ELSE 0 END)"


def _bound(values: Sequence[str], body: Callable[[Sequence[str]], str]) -> str:
    """As ``let``, for operands: columns and constants are repeated, as Spark compiles those."""
    if all(len(value) <= _REPEATED for value in values):
        return body(values)
    return let(values, body)
