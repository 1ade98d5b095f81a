# SPDX-License-Identifier: Apache-2.0
"""Casts between PostgreSQL's types, as functions of (source type, target type).

A cast that can fail fails with PostgreSQL's SQLSTATE.  Text is read only in the forms that every
PostgreSQL setting understands alike; other text ends the query with 22P02 when PostgreSQL would
refuse it too, and with 0A000 when PostgreSQL might read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from math import isfinite

from penstock.change import types
from penstock.sql import constants
from penstock.sql.translate import numeric
from penstock.sql.translate.values import (
    FLOATS,
    INTEGERS,
    NOT_CONSTANT,
    TEXTS,
    Expr,
    Session,
    failure,
    failure_of,
    fixed,
    is_text_form,
    let,
    literal,
    null,
    refusal,
    spark_type,
)

_DIGITS = {types.INT2: 5, types.INT4: 10, types.INT8: 19}
_BITS = {types.INT2: 15, types.INT4: 31, types.INT8: 63}
_NAMES = {types.INT2: "smallint", types.INT4: "integer", types.INT8: "bigint"}

_MIDNIGHT_YEARS = "year({0}) BETWEEN 1 AND 9999"


def cast(session: Session, expr: Expr, target: int, typmod: int = -1) -> Expr:
    """``expr`` as ``target``; refusal where no exact translation exists."""
    source = expr.oid
    if expr.value is None:
        return null(target, typmod)
    if source == target:
        return expr
    if source in INTEGERS or source == types.OID:
        return _from_integer(expr, target)
    if source in FLOATS:
        return _from_float(expr, target)
    if source == types.NUMERIC:
        return _from_numeric(expr, target)
    if target in TEXTS or target == constants.JSON:
        return as_text(session, expr).retyped(target)
    if source in TEXTS:
        return _from_text(expr, target)
    if source == types.BOOL and target == types.INT4:
        return Expr(f"CAST({expr.sql} AS INT)", target)
    return _between_times(session, expr, target)


def _none(expr: Expr, target: int) -> Exception:
    return refusal(f"a cast from {types.type_name(expr.oid)} to {types.type_name(target)}")


def _from_integer(expr: Expr, target: int) -> Expr:
    if target == types.NUMERIC:
        return to_numeric(expr)
    if target in INTEGERS and expr.constant and _fits(expr.value, target):
        return literal(target, expr.value)
    if target in INTEGERS or target in FLOATS or target == types.OID:
        if target == types.OID and expr.oid != types.OID:
            sql = _checked(f"CAST({expr.sql} AS BIGINT)", "{0} BETWEEN 0 AND 4294967295", "OID")
            return Expr(sql, target, value=expr.value)
        return Expr(f"CAST({expr.sql} AS {spark_type(target)})", target)
    if target in TEXTS:
        return Expr(f"CAST({expr.sql} AS STRING)", target)
    if target == types.BOOL and expr.oid == types.INT4:
        return Expr(f"({expr.sql} <> 0)", target)
    raise _none(expr, target)


def _fits(value: int, target: int) -> bool:
    limit: int = 2 ** _BITS[target]
    return -limit <= value < limit


def _checked(sql: str, condition: str, what: str) -> str:
    error = failure("22003", f"{what} out of range")
    return let(
        [sql],
        lambda v: (
            f"CASE WHEN {v[0]} IS NULL OR {condition.format(v[0])} THEN {v[0]} ELSE {error} END"
        ),
    )


def to_numeric(expr: Expr) -> Expr:
    """An integer as numeric."""
    digits = _DIGITS.get(expr.oid, 10)
    value = fixed(expr.sql, digits, 0)
    if expr.constant and expr.value is not None:
        return literal(types.NUMERIC, Decimal(expr.value))
    return value


def _from_float(expr: Expr, target: int) -> Expr:
    if target == types.FLOAT8:
        return Expr(f"CAST({expr.sql} AS DOUBLE)", target)
    if target == types.FLOAT4:
        overflow = failure("22003", "value out of range: overflow")
        underflow = failure("22003", "value out of range: underflow")
        infinite = "abs({0}) = CAST('Infinity' AS {1})"
        sql = let(
            [expr.sql, f"CAST({expr.sql} AS FLOAT)"],
            lambda v: (
                f"CASE WHEN {infinite.format(v[1], 'FLOAT')}"
                f" AND NOT {infinite.format(v[0], 'DOUBLE')} THEN {overflow}"
                f" WHEN {v[1]} = 0 AND {v[0]} <> 0 THEN {underflow} ELSE {v[1]} END"
            ),
        )
        return Expr(sql, target)
    if target in INTEGERS:
        whole = f"rint(CAST({expr.sql} AS DOUBLE))"
        limit = _BITS[target]
        error = failure("22003", f"{_NAMES[target]} out of range")
        kind = spark_type(target)
        sql = let(
            [whole],
            lambda v: (
                f"CASE WHEN {v[0]} IS NULL THEN NULL WHEN {v[0]} >= {-(2**limit)}D"
                f" AND {v[0]} < {2**limit}D THEN CAST({v[0]} AS {kind}) ELSE {error} END"
            ),
        )
        return Expr(sql, target)
    raise _none(expr, target)


def _from_numeric(expr: Expr, target: int) -> Expr:
    if target == types.FLOAT8 and expr.constant and isfinite(float(expr.value)):
        return literal(target, float(expr.value))
    if target in FLOATS:
        return Expr(f"CAST({expr.sql} AS {spark_type(target)})", target)
    if target in INTEGERS:
        whole = numeric.rounded(expr, 0).sql
        error = failure("22003", f"{_NAMES[target]} out of range")
        kind = spark_type(target)
        sql = let(
            [whole],
            lambda v: f"IF({v[0]} IS NULL, NULL, coalesce(try_cast({v[0]} AS {kind}), {error}))",
        )
        return Expr(sql, target)
    if target in TEXTS:
        return Expr(numeric.text_of(expr), target)
    raise _none(expr, target)


def as_text(session: Session, expr: Expr) -> Expr:
    """What the type's output function prints, as text."""
    oid = expr.oid
    if oid in session.other_styles:
        raise refusal(
            f"the text form of {types.type_name(oid)} under this DateStyle, IntervalStyle,"
            " TimeZone or bytea_output"
        )
    if oid in TEXTS:
        trimmed = f"TRIM(TRAILING ' ' FROM {expr.sql})" if oid == types.BPCHAR else expr.sql
        return Expr(trimmed, types.TEXT, value=NOT_CONSTANT if oid == types.BPCHAR else expr.value)
    if oid in INTEGERS or oid == types.OID or oid == types.BOOL:
        return Expr(f"CAST({expr.sql} AS STRING)", types.TEXT)
    if oid == types.NUMERIC:
        return Expr(numeric.text_of(expr), types.TEXT)
    if oid == types.BYTEA:
        return Expr(f"concat('\\\\x', lower(hex({expr.sql})))", types.TEXT)
    if oid in (types.DATE, types.TIMESTAMP, types.TIMESTAMPTZ):
        return Expr(_time_text(session, expr), types.TEXT)
    if is_text_form(oid):
        return Expr(expr.sql, types.TEXT)
    raise _none(expr, types.TEXT)


def _time_text(session: Session, expr: Expr) -> str:
    suffix = ""
    sql = expr.sql
    if expr.oid == types.TIMESTAMPTZ:
        session.need_utc("the text form of timestamp with time zone")
        suffix = ", '+00'"
        sql = f"CAST({sql} AS TIMESTAMP_NTZ)"
    far = failure("0A000", "the text form of a year outside 1 to 9999 is not supported in queries")
    return let(
        [sql],
        lambda v: (
            f"CASE WHEN {v[0]} IS NULL THEN NULL WHEN {_MIDNIGHT_YEARS.format(v[0])}"
            f" THEN concat(CAST({v[0]} AS STRING){suffix}) ELSE {far} END"
        ),
    )


_READABLE = {
    types.INT2: r"^[ \\t\\n\\x0b\\r\\f]*[+-]?[0-9]+[ \\t\\n\\x0b\\r\\f]*$",
    types.INT4: r"^[ \\t\\n\\x0b\\r\\f]*[+-]?[0-9]+[ \\t\\n\\x0b\\r\\f]*$",
    types.INT8: r"^[ \\t\\n\\x0b\\r\\f]*[+-]?[0-9]+[ \\t\\n\\x0b\\r\\f]*$",
    types.DATE: r"^(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}$",
}
"""Text that PostgreSQL and Spark read alike (in a Spark string literal)."""


def _from_text(expr: Expr, target: int) -> Expr:
    if target in TEXTS:
        return _between_texts(expr, target)
    if target not in _READABLE:
        raise refusal(f"a cast from text to {types.type_name(target)}")
    kind, errors = spark_type(target), _date_errors if target == types.DATE else _integer_errors

    def read(values: Sequence[str]) -> str:
        text = values[0]
        late, other = errors(text, target)
        return (
            f"CASE WHEN {text} IS NULL THEN NULL WHEN {text} RLIKE '{_READABLE[target]}'"
            f" THEN coalesce(try_cast({text} AS {kind}), {late}) ELSE {other} END"
        )

    return Expr(let([expr.sql], read), target)


def _date_errors(text: str, target: int) -> tuple[str, str]:
    """For a date that there is not, and for another form of one."""
    late = failure_of("22008", 'date/time field value out of range: "%s"', text)
    return late, failure("0A000", "reading a date that is not YYYY-MM-DD is not supported")


def _integer_errors(text: str, target: int) -> tuple[str, str]:
    """For digits that are too many; for hexadecimal, octal, binary, underscores, or no number."""
    name = _NAMES[target]
    late = failure_of("22003", f'value "%s" is out of range for type {name}', text)
    wrong = failure_of("22P02", f'invalid input syntax for type {name}: "%s"', text)
    form = failure("0A000", "reading an integer that is not decimal is not supported")
    return late, f"IF({text} RLIKE '^\\\\s*[+-]?0[xXoObB]|[0-9]_[0-9]', {form}, {wrong})"


def _between_texts(expr: Expr, target: int) -> Expr:
    if expr.oid == types.BPCHAR and target != types.BPCHAR:
        return Expr(f"TRIM(TRAILING ' ' FROM {expr.sql})", target)
    if target == types.NAME:
        raise _none(expr, target)
    return expr.retyped(target)


def _between_times(session: Session, expr: Expr, target: int) -> Expr:
    source = expr.oid
    if source not in (types.DATE, types.TIMESTAMP, types.TIMESTAMPTZ) or target not in (
        types.DATE,
        types.TIMESTAMP,
        types.TIMESTAMPTZ,
    ):
        raise _none(expr, target)
    if types.TIMESTAMPTZ in (source, target):
        session.need_utc("a cast between timestamp with time zone and other types")
    return Expr(f"CAST({expr.sql} AS {spark_type(target)})", target)
