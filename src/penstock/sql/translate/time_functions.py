# SPDX-License-Identifier: Apache-2.0
"""Functions and operators of date, timestamp and timestamp with time zone.

Spark's session time zone is UTC, so ``timestamp`` and ``timestamp with time zone`` have the same
fields there; what depends on the client's zone is refused unless that is UTC too.
"""

from __future__ import annotations

from penstock.change import types
from penstock.sql.constants import Interval
from penstock.sql.translate import numeric
from penstock.sql.translate.casts import cast
from penstock.sql.translate.registry import Call, Handler, constant_argument, register, template
from penstock.sql.translate.values import Expr, failure, failure_of, let, refusal, spark_type

_UNITS = {
    name: unit
    for unit, names in {
        "year": ("year", "years", "y", "yr", "yrs"),
        "quarter": ("quarter", "qtr"),
        "month": ("month", "months", "mon", "mons"),
        "week": ("week", "weeks", "w"),
        "day": ("day", "days", "d"),
        "hour": ("hour", "hours", "h", "hr", "hrs"),
        "minute": ("minute", "minutes", "m", "min", "mins"),
        "second": ("second", "seconds", "s", "sec", "secs"),
        "milliseconds": ("milliseconds", "millisecond", "ms", "msec", "msecs"),
        "microseconds": ("microseconds", "microsecond", "us", "usec", "usecs"),
        "epoch": ("epoch",),
        "dow": ("dow",),
        "isodow": ("isodow",),
        "doy": ("doy",),
        "isoyear": ("isoyear",),
    }.items()
    for name in names
}
_TRUNCATED = {
    "year": "YEAR", "quarter": "QUARTER", "month": "MONTH", "week": "WEEK", "day": "DAY",
    "hour": "HOUR", "minute": "MINUTE", "second": "SECOND", "milliseconds": "MILLISECOND",
    "microseconds": "MICROSECOND",
}  # fmt: skip

_FIRST_DAY, _LAST_DAY = -2_440_588, 2_145_042_905
"""4714-11-24 BC and 5874897-12-31: the ends of PostgreSQL's dates."""

FIRST_MICROS = -210_866_803_200_000_000
"""4714-11-24 BC: PostgreSQL's first timestamp."""


def _unit(call: Call) -> str:
    name = constant_argument(call, 0, "a field of date and time")
    unit = _UNITS.get(str(name).lower())
    if unit is None:
        raise refusal(f'field "{name}" of date and time')
    return unit


def _zone(call: Call, expr: Expr, what: str) -> str:
    if expr.oid == types.TIMESTAMPTZ:
        call.session.need_utc(what)
    return expr.sql


@register("date_trunc(text,timestamp)", "date_trunc(text,timestamptz)")
def _date_trunc(call: Call) -> Expr:
    unit = _TRUNCATED.get(_unit(call))
    if unit is None:
        raise refusal(f'date_trunc() to "{_unit(call)}"')
    value = _zone(call, call.args[1], "date_trunc() of timestamp with time zone")
    sql = f"date_trunc('{unit}', CAST({value} AS TIMESTAMP))"
    return Expr(f"CAST({sql} AS {spark_type(call.result)})", call.result)


_WHOLE_FIELDS = {
    "quarter": "quarter({0})", "month": "month({0})", "week": "weekofyear({0})",
    "day": "day({0})", "dow": "(dayofweek({0}) - 1)", "isodow": "(weekday({0}) + 1)",
    "doy": "dayofyear({0})",
}  # fmt: skip
_CLOCK_FIELDS = {"hour": "hour({0})", "minute": "minute({0})"}


def _whole_field(unit: str, value: str, day: bool) -> str | None:
    if unit == "year":
        return let([f"year({value})"], lambda v: f"IF({v[0]} <= 0, {v[0]} - 1, {v[0]})")
    if unit == "isoyear":
        year = f"CAST(extract(YEAROFWEEK FROM {value}) AS INT)"
        return let([year], lambda v: f"IF({v[0]} <= 0, {v[0]} - 1, {v[0]})")
    text = _WHOLE_FIELDS.get(unit) or (None if day else _CLOCK_FIELDS.get(unit))
    return None if text is None else text.format(value)


def _micros(value: str) -> str:
    return f"unix_micros(CAST({value} AS TIMESTAMP))"


def _extract(call: Call) -> Expr:
    unit, arg = _unit(call), call.args[1]
    value = (
        _zone(call, arg, "extract() from timestamp with time zone")
        if unit != "epoch"
        else (arg.sql)
    )
    day = arg.oid == types.DATE
    whole = _whole_field(unit, value, day)
    if whole is not None:
        return numeric.numeric(whole, 10, 0, 0)
    if unit == "epoch" and day:
        return numeric.numeric(f"CAST(unix_date({value}) AS BIGINT) * 86400L", 19, 0, 0)
    if day:
        raise refusal(f'extract("{unit}") from date')
    micros = _micros(value)
    if unit == "epoch":
        return numeric.numeric(f"(CAST({micros} AS DECIMAL(20,0)) * 0.000001BD)", 26, 6, 6)
    minute = f"CAST(pmod({micros}, 60000000L) AS DECIMAL(8,0))"
    if unit == "second":
        return numeric.numeric(f"({minute} * 0.000001BD)", 8, 6, 6)
    if unit == "milliseconds":
        return numeric.numeric(f"({minute} * 0.001BD)", 8, 3, 3)
    return numeric.numeric(minute, 8, 0, 0)


for _kind in ("date", "timestamp", "timestamptz"):
    register(f"extract(text,{_kind})")(_extract)


def _date_part(call: Call) -> Expr:
    """date_part gives double precision; only fields whose value is exact there."""
    unit = _unit(call)
    if unit in ("epoch", "second", "milliseconds"):
        raise refusal(f'date_part("{unit}")', "Use extract().")
    return Expr(f"CAST({_extract(call).sql} AS DOUBLE)", types.FLOAT8)


for _kind in ("timestamp", "timestamptz"):
    register(f"date_part(text,{_kind})")(_date_part)


def _days_moved(days: str, sign: str, count: str) -> str:
    out = failure("22008", "date out of range")
    moved = f"(CAST(unix_date({days}) AS BIGINT) {sign} {count})"
    return let(
        [moved],
        lambda v: (
            f"CASE WHEN {v[0]} IS NULL THEN NULL WHEN {v[0]} BETWEEN {_FIRST_DAY}L AND"
            f" {_LAST_DAY}L THEN date_from_unix_date(CAST({v[0]} AS INT)) ELSE {out} END"
        ),
    )


@register("date_pli")
def _date_plus(call: Call) -> Expr:
    return Expr(_days_moved(call.args[0].sql, "+", call.args[1].sql), types.DATE)


@register("integer_pl_date")
def _plus_date(call: Call) -> Expr:
    return Expr(_days_moved(call.args[1].sql, "+", call.args[0].sql), types.DATE)


@register("date_mii")
def _date_minus(call: Call) -> Expr:
    return Expr(_days_moved(call.args[0].sql, "-", call.args[1].sql), types.DATE)


template("CAST(CAST(unix_date({0}) AS BIGINT) - unix_date({1}) AS INT)", "date_mi")


def _with_interval(sign: int, date_at: int) -> Handler:
    def handler(call: Call) -> Expr:
        interval = call.args[1 - date_at].value
        if not isinstance(interval, Interval):
            raise refusal("an interval that is not a constant")
        if call.session.exact and _years(interval) > _MAX_YEARS:
            raise refusal(f"an interval of more than {_MAX_YEARS} years")
        kind = call.result
        value = cast(call.session, call.args[date_at], kind)
        if interval.months or interval.days:
            _zone(call, value, "adding days or months to timestamp with time zone")
        sql = value.sql
        if interval.months:
            sql = f"({sql} + make_ym_interval(0, {sign * interval.months}))"
        if interval.days or interval.micros:
            seconds = f"{sign * interval.micros}BD / 1000000BD"
            sql = (
                f"({sql} + make_dt_interval({sign * interval.days}, 0, 0,"
                f" CAST({seconds} AS DECIMAL(18,6))))"
            )
        return Expr(_in_range(f"CAST({sql} AS {spark_type(kind)})"), kind)

    return handler


_MAX_YEARS = 4000
"""Of an interval in a row filter: Spark's times have room for that, many times over."""


def _years(interval: Interval) -> float:
    days = abs(interval.days) + abs(interval.micros) / 86_400_000_000
    return abs(interval.months) / 12 + days / 365


def _in_range(time: str) -> str:
    """22008 for a time before PostgreSQL's first; its last is later than Spark's."""
    out = failure("22008", "timestamp out of range")
    return let([time], lambda v: f"IF({_micros(v[0])} < {FIRST_MICROS}L, {out}, {v[0]})")


for _kind in ("date", "timestamp", "timestamptz"):
    register(f"{_kind}_pl_interval")(_with_interval(1, 0))
    register(f"{_kind}_mi_interval")(_with_interval(-1, 0))
    register(f"interval_pl_{_kind}")(_with_interval(1, 1))


@register("make_date(int4,int4,int4)")
def _make_date(call: Call) -> Expr:
    message = "date field value out of range: %d-%02d-%02d"
    args = [arg.sql for arg in call.args]
    sql = let(
        args,
        lambda v: (
            f"CASE WHEN {v[0]} IS NULL OR {v[1]} IS NULL OR {v[2]} IS NULL THEN NULL"
            f" WHEN {v[0]} < 1 OR {v[1]} NOT BETWEEN 1 AND 12 OR {v[2]} NOT BETWEEN 1 AND"
            f" day(last_day(make_date({v[0]}, least(greatest({v[1]}, 1), 12), 1)))"
            f" THEN {failure_of('22008', message, *v)} ELSE make_date({v[0]}, {v[1]}, {v[2]}) END"
        ),
    )
    return Expr(sql, types.DATE)


@register("timezone(text,timestamptz)", "timezone(text,timestamp)")
def _at_time_zone(call: Call) -> Expr:
    zone = str(constant_argument(call, 0, "a time zone"))
    if zone.upper() not in ("UTC", "GMT", "ZULU"):
        raise refusal(f'AT TIME ZONE "{zone}"', "Only UTC is.")
    return Expr(f"CAST({call.args[1].sql} AS {spark_type(call.result)})", call.result)
