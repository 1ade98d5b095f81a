# SPDX-License-Identifier: Apache-2.0
"""A translated expression: its Spark SQL text, PostgreSQL's type, and what a numeric needs more.

Representation of PostgreSQL's types in Spark (DESIGN §11):

    smallint, int, bigint, float, double, boolean, date, binary    themselves
    timestamp, timestamptz                                         timestamp_ntz, timestamp
    oid                                                            bigint
    text, varchar, bpchar, name                                    string
    numeric                                                        decimal, see ``Digits``
    array of these                                                 array
    anything else                                                  string, in its text form

A PostgreSQL numeric carries a display scale with each value; Spark's decimal has one scale for a
column.  ``Digits`` says what is displayed: the column's own scale, or a Spark expression.  A
column declared as numeric without precision is decimal(38,18) in the lake, which knows no display
scales: its values count as having the least scale that shows them (PostgreSQL's trim_scale).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from hashlib import sha256
from typing import Any

from penstock.change import types
from penstock.errors import FeatureNotSupportedError
from penstock.names import quote_spark_literal
from penstock.sql import constants

NOT_CONSTANT: Any = object()
"""``Expr.value`` of what is not a constant (a NULL constant has None)."""

MAX_DIGITS = types.MAX_DECIMAL_DIGITS
ALLOWED_COLLATIONS = frozenset({0, 100, 950, 951})
"""None, the database's (C), C and POSIX: all compare bytes and change case of ASCII only."""

TEXTS = frozenset({types.TEXT, types.VARCHAR, types.BPCHAR, types.NAME, constants.UNKNOWN})
INTEGERS = frozenset({types.INT2, types.INT4, types.INT8})
FLOATS = frozenset({types.FLOAT4, types.FLOAT8})

_SCALARS = {
    types.BOOL: "BOOLEAN",
    types.INT2: "SMALLINT",
    types.INT4: "INT",
    types.INT8: "BIGINT",
    types.OID: "BIGINT",
    types.FLOAT4: "FLOAT",
    types.FLOAT8: "DOUBLE",
    types.DATE: "DATE",
    types.TIMESTAMP: "TIMESTAMP_NTZ",
    types.TIMESTAMPTZ: "TIMESTAMP",
    types.BYTEA: "BINARY",
}

_ORDERED_TEXT_FORMS = frozenset({constants.UUID, constants.TIME})
"""Types kept as text whose text sorts, and compares, as their values do."""


@dataclass(frozen=True)
class Digits:
    """Decimal(precision, scale) in Spark, and the display scale of its values.

    ``shown`` is an int only when it equals ``scale``; otherwise an INT expression that is never
    above ``scale``.
    """

    precision: int
    scale: int
    shown: int | str
    overflows: bool = False
    """More digits than Spark has may be needed; a value that does end the query."""

    @property
    def fixed(self) -> bool:
        """Every value is shown with the same scale."""
        return isinstance(self.shown, int)

    @property
    def shown_sql(self) -> str:
        """The display scale as an INT expression."""
        return f"CAST({self.shown} AS INT)" if isinstance(self.shown, int) else self.shown

    @property
    def sql_type(self) -> str:
        """Spark's type."""
        return f"DECIMAL({self.precision},{self.scale})"


@dataclass(frozen=True)
class Expr:
    """One expression; ``digits`` exactly when ``oid`` is numeric.

    ``text`` is Spark SQL for PostgreSQL's text form of a numeric whose ``sql`` may not be able to
    hold every value that can be shown.
    """

    sql: str
    oid: int
    typmod: int = -1
    digits: Digits | None = None
    value: Any = NOT_CONSTANT
    text: str | None = None

    @property
    def constant(self) -> bool:
        """The value is known here; None is NULL."""
        return self.value is not NOT_CONSTANT

    @property
    def numeric(self) -> Digits:
        """The digits of a numeric."""
        if self.digits is None:
            raise refusal("this use of a value that is not numeric")
        return self.digits

    def retyped(self, oid: int, typmod: int = -1) -> Expr:
        """The same value under another type with the same representation."""
        return replace(self, oid=oid, typmod=typmod)


@dataclass(frozen=True)
class Session:
    """What a translation needs to know of the client's session.

    ``exact``: what may fail for a value that PostgreSQL has a result for is refused (``exact``).
    """

    timezone: str = "UTC"
    exact: bool = False
    other_styles: frozenset[int] = frozenset()
    """Types whose text is not that of PostgreSQL's default settings."""

    def need_utc(self, what: str) -> None:
        """Refuse what depends on the time zone unless that is UTC."""
        if self.timezone not in UTC_ZONES:
            raise FeatureNotSupportedError(
                f'{what} is supported on lake tables only in time zone UTC, not "{self.timezone}"',
                hint="SET TimeZone = 'UTC'.",
            )


UTC_ZONES = frozenset({"UTC", "Etc/UTC", "Etc/UCT", "UCT", "Zulu", "Etc/Zulu", "GMT", "Etc/GMT"})


class UntranslatableError(FeatureNotSupportedError):
    """A construct without an exact translation; ``what`` names it."""

    what: str


def refusal(what: str, hint: str | None = None) -> UntranslatableError:
    """The error for a construct that has no exact translation."""
    error = UntranslatableError(f"{what} is not supported in queries on lake tables", hint=hint)
    error.what = what
    return error


def spark_type(oid: int, digits: Digits | None = None) -> str:
    """The Spark type that holds values of a PostgreSQL type."""
    if oid == types.NUMERIC:
        return (digits or Digits(38, 18, 18)).sql_type
    element = types.ARRAY_ELEMENTS.get(oid)
    if element is not None:
        return f"ARRAY<{spark_type(element, digits)}>"
    return _SCALARS.get(oid, "STRING")


def is_text_form(oid: int) -> bool:
    """Values of this type are kept in their text form, so most operations do not apply."""
    return (
        oid not in _SCALARS
        and oid not in TEXTS
        and oid not in types.ARRAY_ELEMENTS
        and oid not in (types.NUMERIC, types.CHAR)
    )


def need_order(expr: Expr, what: str) -> str:
    """SQL that Spark orders as PostgreSQL orders ``expr``; refusal where there is none."""
    if is_text_form(expr.oid) and expr.oid not in _ORDERED_TEXT_FORMS:
        raise refusal(f"{what} of {types.type_name(expr.oid)}", "Cast it to text first.")
    if expr.oid in types.ARRAY_ELEMENTS or expr.oid == types.CHAR:
        raise refusal(f"{what} of {types.type_name(expr.oid)}")
    return bare(expr)


def need_equality(expr: Expr, what: str, operator: int = 0) -> str:
    """SQL whose equality is PostgreSQL's, for what also shows the value (DISTINCT, GROUP BY).

    ``operator`` is the OID of that equality, where the tree names it: of enums by their labels.
    """
    if expr.oid == types.BPCHAR and expr.typmod < 4:
        raise refusal(f"{what} of character values of different lengths", "Cast to text first.")
    if expr.oid == types.CHAR:
        return expr.sql
    if expr.oid in types.ARRAY_ELEMENTS:
        if types.ARRAY_ELEMENTS[expr.oid] in (types.BPCHAR, types.NUMERIC):
            raise refusal(f"{what} of {types.type_name(expr.oid)}")
        return expr.sql
    if (
        is_text_form(expr.oid)
        and expr.oid not in _ORDERED_TEXT_FORMS
        and operator != constants.ENUM_EQUALS
    ):
        raise refusal(f"{what} of {types.type_name(expr.oid)}", "Cast it to text first.")
    if expr.oid == types.NUMERIC and not expr.numeric.fixed and not is_trimmed(expr):
        raise refusal(f"{what} of numeric values with different display scales", "Use round().")
    return expr.sql


def partition_key(expr: Expr, operator: int) -> str:
    """SQL whose equality is PostgreSQL's, for what does not show the value (PARTITION BY).

    ``operator`` as for ``need_equality``.
    """
    if expr.oid in (types.BPCHAR, types.NUMERIC):
        return bare(expr)
    return need_equality(expr, "PARTITION BY or DISTINCT ON", operator)


def bare(expr: Expr) -> str:
    """SQL to compare by: character(n) without its trailing blanks."""
    return f"TRIM(TRAILING ' ' FROM {expr.sql})" if expr.oid == types.BPCHAR else expr.sql


def trimmed_scale(sql: str, scale: int) -> str:
    """The least scale that shows a decimal, as PostgreSQL's min_scale()."""
    text = f"CAST({sql} AS STRING)"
    return f"({scale} - length({text}) + length(TRIM(TRAILING '0' FROM {text})))"


def trimmed(sql: str, precision: int = 38, scale: int = 18) -> Expr:
    """A numeric whose display scale follows from its value."""
    return Expr(sql, types.NUMERIC, digits=Digits(precision, scale, trimmed_scale(sql, scale)))


def is_trimmed(expr: Expr) -> bool:
    """The display scale is a function of the value."""
    digits = expr.numeric
    return digits.shown == trimmed_scale(expr.sql, digits.scale)


def column(sql: str, oid: int, typmod: int) -> Expr:
    """A column of a lake table.

    A float is read through a function that changes nothing, so that no comparison with it, and no
    min or max of it, is answered from a file's statistics: they leave NaN out, which is larger
    than every number.
    """
    if oid in FLOATS:
        return Expr(f"nanvl({sql}, {sql})", oid, typmod)
    if oid != types.NUMERIC:
        return Expr(sql, oid, typmod)
    digits = declared_digits(typmod)
    return trimmed(sql) if digits is None else Expr(sql, oid, typmod, digits)


def declared_digits(typmod: int) -> Digits | None:
    """The digits of a numeric column, or of the elements of a numeric[]; None without any."""
    if typmod < 4:
        return None
    kind = types.numeric_type(typmod)
    return Digits(kind.precision, kind.scale, kind.scale)


def fixed(sql: str, precision: int, scale: int) -> Expr:
    """A numeric that Spark computes with some other type, brought to decimal(precision, scale)."""
    digits = Digits(min(precision, MAX_DIGITS), scale, scale, precision > MAX_DIGITS)
    return Expr(f"CAST({sql} AS {digits.sql_type})", types.NUMERIC, digits=digits)


def null(oid: int, typmod: int = -1) -> Expr:
    """The NULL of a type."""
    digits = Digits(1, 0, 0) if oid == types.NUMERIC else None
    return Expr(f"CAST(NULL AS {spark_type(oid, digits)})", oid, typmod, digits, None)


def without_value(expr: Expr) -> Expr:
    """A NULL of the same type and form, which is no constant to the expressions around it."""
    sql = f"CAST(NULL AS {spark_type(expr.oid, expr.digits)})"
    if expr.digits is None:
        return Expr(sql, expr.oid, expr.typmod)
    digits = expr.digits
    if expr.text is None and is_trimmed(expr):
        return trimmed(sql, digits.precision, digits.scale)
    shown = digits.shown if digits.fixed else "CAST(NULL AS INT)"
    return Expr(sql, expr.oid, expr.typmod, replace(digits, shown=shown))


def literal(oid: int, value: Any, typmod: int = -1) -> Expr:
    """A constant, from the values that ``constants`` makes."""
    if value is None:
        return null(oid, typmod)
    if oid == types.NUMERIC:
        return _decimal(value, typmod)
    if oid in types.ARRAY_ELEMENTS:
        element = types.ARRAY_ELEMENTS[oid]
        if element == types.NUMERIC:
            raise refusal("an array constant of numeric")
        items = ", ".join(literal(element, item).sql for item in value)
        return Expr(f"CAST(array({items}) AS {spark_type(oid)})", oid, typmod, None, value)
    return Expr(_literal_text(oid, value), oid, typmod, None, value)


def _literal_text(oid: int, value: Any) -> str:
    if oid == types.BOOL:
        return "TRUE" if value else "FALSE"
    if oid in INTEGERS or oid == types.OID:
        return f"CAST({value} AS {_SCALARS[oid]})" if oid != types.INT8 else _bigint(value)
    if oid in FLOATS:
        return f"CAST('{_float_word(value)}' AS {_SCALARS[oid]})"
    if oid == types.DATE:
        return f"date_from_unix_date({value})"
    if oid == types.TIMESTAMPTZ:
        return f"timestamp_micros({_bigint(value)})"
    if oid == types.TIMESTAMP:
        return f"CAST(timestamp_micros({_bigint(value)}) AS TIMESTAMP_NTZ)"
    if oid == types.BYTEA:
        return f"X'{value.hex()}'"
    if oid == constants.TIME:
        return quote_spark_literal(_time_text(value))
    if isinstance(value, str):
        return quote_spark_literal(value)
    raise refusal(f"a constant of {types.type_name(oid)}")


def _bigint(value: int) -> str:
    return f"CAST('{value}' AS BIGINT)" if value < -(2**63) + 1 else f"CAST({value}L AS BIGINT)"


def _float_word(value: float) -> str:
    words = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}
    return words.get(str(value), repr(value))


def _time_text(micros: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return text + (f".{fraction:06d}".rstrip("0") if fraction else "")


def _decimal(value: Decimal, typmod: int) -> Expr:
    _, digits, exponent = value.as_tuple()
    scale = -int(exponent)
    precision = max(len(digits), scale)
    if precision > MAX_DIGITS:
        many = failure("0A000", f"a numeric constant of {precision} digits is not supported")
        return Expr(many, types.NUMERIC, typmod, Digits(MAX_DIGITS, 0, 0), value)
    kind = Digits(max(precision, 1), scale, scale)
    return Expr(f"CAST('{value:f}' AS {kind.sql_type})", types.NUMERIC, typmod, kind, value)


def failure(sqlstate: str, message: str) -> str:
    """SQL that ends the query with a PostgreSQL error when it is evaluated."""
    return f"raise_error({quote_spark_literal(f'penstock:{sqlstate}:{message}')})"


def failure_of(sqlstate: str, message: str, *values: str) -> str:
    """The same with values in the message, as Spark's format_string() takes them.

    They may have any character: the message is sent in hexadecimal digits.
    """
    text = f"format_string({', '.join([quote_spark_literal(message), *values])})"
    head = quote_spark_literal(f"penstock:{sqlstate}:0x")
    return f"raise_error(concat({head}, hex(encode({text}, 'UTF-8'))))"


class SubqueryInLet(Exception):
    """A subquery got into a lambda function, where Spark has none; see ``query.translate``."""


def let(values: Sequence[str], body: Callable[[Sequence[str]], str]) -> str:
    """``body`` of values that are evaluated once; their texts are repeated only when short."""
    if all(len(value) <= 24 for value in values):
        return body(values)
    if any("(SELECT " in value for value in values):
        raise SubqueryInLet
    fields = ", ".join(f"'f{i}', {value}" for i, value in enumerate(values))
    # Of the same values the same, so that an expression is the same text wherever it stands: Spark
    # finds the keys of grouping sets by that.
    name = f"v{sha256(fields.encode()).hexdigest()[:12]}"
    inner = body([f"{name}.f{i}" for i in range(len(values))])
    if "(SELECT " in inner:
        raise SubqueryInLet
    return f"element_at(transform(array(named_struct({fields})), {name} -> {inner}), 1)"
