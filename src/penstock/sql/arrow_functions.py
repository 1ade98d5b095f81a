# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL's operators and functions that Arrow computes exactly, by the function's name.

    In:   a function as pg_proc has it, its arguments as values, and the type of its result.
    Out:  the value; NotPlainError when Arrow has no exact form for it.

    kind of function        types
    ----------------------  ------------------------------------------------------------------
    = <> < <= > >=          integers, floats, numeric, text, character(n), name, uuid, time of
                            day, bytea, date and timestamps; = <> of boolean
    + - * / % and signs     integers; + - * of floats and numeric, / of floats; date + int4
    & | # ~                 integers
    casts                   among integers and floats; integers to numeric; dates to timestamps
    of text                 see ``arrow_texts``

Errors are PostgreSQL's: int.c, int8.c and float.c say when.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.change import types
from penstock.errors import PenstockError
from penstock.sql.arrow_texts import TEXT_FUNCTIONS
from penstock.sql.arrow_values import NotPlainError, Value
from penstock.sql.translate.registry import Function

_WIDTHS = "2|4|8|24|28|42|48|82|84"
_COMPARISON = re.compile(
    f"(?:int(?:{_WIDTHS})|numeric_|date_|timestamp_|timestamptz_|time_|uuid_|text_?|name|bytea)"
    "(eq|ne|lt|le|gt|ge)"
)
_OTHER_COMPARISONS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("bool", re.compile("bool(eq|ne)")),
    ("bpchar", re.compile("bpchar(eq|ne|lt|le|gt|ge)")),
    ("float", re.compile("float(?:4|8|48|84)(eq|ne|lt|le|gt|ge)")),
    (
        "days",
        re.compile("(?:date_(eq|ne|lt|le|gt|ge)_timestamp|timestamp_(eq|ne|lt|le|gt|ge)_date)"),
    ),
)
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": pc.equal,
    "ne": pc.not_equal,
    "lt": pc.less,
    "le": pc.less_equal,
    "gt": pc.greater,
    "ge": pc.greater_equal,
}
_INTEGER_KINDS = {types.INT2: pa.int16(), types.INT4: pa.int32(), types.INT8: pa.int64()}
_INTEGER_NAMES = {types.INT2: "smallint", types.INT4: "integer", types.INT8: "bigint"}
_FLOAT_KINDS = {types.FLOAT4: pa.float32(), types.FLOAT8: pa.float64()}

Compute = Callable[..., Any]
"""From the results of the arguments, arrays or scalars, to the function's."""

MAX_DIGITS_128 = types.MAX_DECIMAL_DIGITS


def function_value(function: Function, args: Sequence[Value], result: int) -> Value:
    """The value of a strict function of pg_catalog."""
    found = _compute(function, args, result)
    if found is None:
        raise NotPlainError
    compute, can_fail = found
    try:
        kind = compute(*(pa.array([], each.kind) for each in args)).type
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise NotPlainError from error
    fails = can_fail or any(each.fails for each in args)
    return Value(result, kind, lambda batch: compute(*(each.run(batch) for each in args)), fails)


def compares(function: Function) -> str | None:
    """The comparison that a function is: eq, ne, lt, le, gt, ge."""
    patterns = (_COMPARISON, *(pattern for _, pattern in _OTHER_COMPARISONS))
    for found in (pattern.fullmatch(function.name) for pattern in patterns):
        if found is not None:
            return next(word for word in found.groups() if word)
    return None


def _compute(function: Function, args: Sequence[Value], result: int) -> tuple[Compute, bool] | None:
    """How it is computed, and whether that can fail."""
    word = compares(function)
    if word is not None:
        return _comparison(function.name, word, args), False
    text = TEXT_FUNCTIONS.get(function.name) or TEXT_FUNCTIONS.get(function.signature)
    if text is not None:
        return text(args), False
    if result in _INTEGER_KINDS:
        return _of_integers(function, result)
    if result in _FLOAT_KINDS:
        return _of_floats(function, args, result)
    if result == types.NUMERIC:
        return _of_numerics(function, args)
    return _of_days(function)


# Comparisons


def _comparison(name: str, word: str, args: Sequence[Value]) -> Compute:
    special = next((each for each, pattern in _OTHER_COMPARISONS if pattern.fullmatch(name)), "")
    compare = _COMPARE[word]
    kinds = [each.kind for each in args]
    if special == "float":
        return partial(_compare_floats, word)
    if special == "bpchar":
        return lambda a, b: compare(_unpadded(a), _unpadded(b))
    if special == "days":
        wide = pa.timestamp("us")
        return lambda a, b: compare(pc.cast(a, wide), pc.cast(b, wide))
    if all(map(pa.types.is_decimal, kinds)):
        scale = max(kind.scale for kind in kinds)
        digits = max(kind.precision - kind.scale for kind in kinds) + scale
        if digits > MAX_DIGITS_128 or any(map(pa.types.is_decimal256, kinds)):
            return _widened(compare)
    return compare


def _unpadded(text: Any) -> Any:
    """character(n) compares without its trailing blanks (varchar.c, bcTruelen)."""
    return pc.ascii_rtrim(text, characters=" ")


def _compare_floats(word: str, a: Any, b: Any) -> Any:
    """NaN equals itself and is above all else (float.h, float8_lt)."""
    a, b = (pc.cast(each, pa.float64()) for each in (a, b))
    if word in ("gt", "ge"):
        return _compare_floats({"gt": "lt", "ge": "le"}[word], b, a)
    no_number, other = pc.is_nan(a), pc.is_nan(b)
    if word == "lt":
        return pc.or_(pc.less(a, b), pc.and_(pc.invert(no_number), other))
    if word == "le":
        return pc.or_(pc.less_equal(a, b), other)
    equal = pc.or_(pc.equal(a, b), pc.and_(no_number, other))
    return equal if word == "eq" else pc.invert(equal)


def _widened(compute: Compute) -> Compute:
    """Decimals of more than 38 digits together."""

    def run(*args: Any) -> Any:
        return compute(
            *(pc.cast(each, pa.decimal256(each.type.precision, each.type.scale)) for each in args)
        )

    return run


# Integers

_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "pl": pc.add_checked,
    "mi": pc.subtract_checked,
    "mul": pc.multiply_checked,
    "div": pc.divide_checked,
    "mod": pc.remainder,
}
_BITS: dict[str, Callable[[Any, Any], Any]] = {
    "and": pc.bit_wise_and,
    "or": pc.bit_wise_or,
    "xor": pc.bit_wise_xor,
}
_SIGNS: dict[str, Callable[[Any], Any]] = {"um": pc.negate_checked, "abs": pc.abs_checked}
_INTEGER = re.compile(f"int({_WIDTHS})(pl|mi|mul|div|mod|and|or|xor|um|abs|up|not)")
_INTEGER_SIGNATURES = {
    f"{name}(int{width}{rest})": word
    for width in "248"
    for name, rest, word in (("abs", "", "abs"), ("mod", f",int{width}", "mod"))
}
_CAST = re.compile(r"int[248]\(int[248]\)")


def _of_integers(function: Function, result: int) -> tuple[Compute, bool] | None:
    if function.name == "date_mi":
        return lambda a, b: pc.subtract(pc.cast(a, pa.int32()), pc.cast(b, pa.int32())), False
    if function.signature == "int4(bool)":
        return lambda a: pc.cast(a, pa.int32()), False
    kind = _INTEGER_KINDS[result]
    if _CAST.fullmatch(function.signature):
        return _in_range(lambda a: pc.cast(a, kind), result), True
    matched = _INTEGER.fullmatch(function.name)
    word = matched.group(2) if matched else _INTEGER_SIGNATURES.get(function.signature)
    if word in _BITS:
        return _BITS[word], False
    if word == "not":
        return pc.bit_wise_not, False
    if word == "up":
        return lambda a: a, False
    compute: Compute | None = _ARITHMETIC.get(word or "") or _SIGNS.get(word or "")
    if compute is None:
        return None
    return _in_range(lambda *args: compute(*(pc.cast(each, kind) for each in args)), result), True


def _in_range(compute: Compute, result: int) -> Compute:
    """With PostgreSQL's errors for what Arrow finds: division by zero, and what has no room."""

    def run(*args: Any) -> Any:
        try:
            return compute(*args)
        except pa.ArrowInvalid as error:
            if "divide by zero" in str(error):
                raise _by_zero() from error
            name = _INTEGER_NAMES[result]
            raise PenstockError(f"{name} out of range", sqlstate="22003") from error

    return run


def _by_zero() -> PenstockError:
    return PenstockError("division by zero", sqlstate="22012")


# Floats

_FLOAT = re.compile("float(?:4|8|48|84)(pl|mi|mul|div|um|abs|up)")
_FLOAT_CAST = re.compile(r"float[48]\(int[248]\)|float8\(float4\)")


def _of_floats(
    function: Function, args: Sequence[Value], result: int
) -> tuple[Compute, bool] | None:
    kind = _FLOAT_KINDS[result]
    if function.signature == "float8(numeric)" and args[0].is_constant:
        number = None if args[0].is_null else float(args[0].constant.as_py())
        double = pa.scalar(number, kind)
        return lambda a: double if isinstance(a, pa.Scalar) else pa.array([], kind), False
    if _FLOAT_CAST.fullmatch(function.signature):
        return lambda a: pc.cast(a, kind, safe=False), False
    matched = _FLOAT.fullmatch(function.name)
    word = matched.group(1) if matched else ""
    if function.signature in ("abs(float4)", "abs(float8)"):
        word = "abs"
    if word in ("um", "abs", "up"):
        plain: Compute = {"um": pc.negate, "abs": pc.abs, "up": lambda a: a}[word]
        return plain, False
    if not word:
        return None
    return partial(_float_arithmetic, word, kind), True


def _float_arithmetic(word: str, kind: pa.DataType, a: Any, b: Any) -> Any:
    """float.h: what is infinite or zero only by the operation is an error."""
    a, b = (pc.cast(each, kind) for each in (a, b))
    if word == "div" and _any(pc.and_(pc.equal(b, 0), pc.invert(pc.is_nan(a)))):
        raise _by_zero()
    found = {"pl": pc.add, "mi": pc.subtract, "mul": pc.multiply, "div": pc.divide}[word](a, b)
    finite = pc.invert(pc.is_inf(a))
    if word != "div":
        finite = pc.and_(finite, pc.invert(pc.is_inf(b)))
    if _any(pc.and_(pc.is_inf(found), finite)):
        raise PenstockError("value out of range: overflow", sqlstate="22003")
    if word in ("mul", "div"):
        other = pc.not_equal(b, 0) if word == "mul" else pc.invert(pc.is_inf(b))
        if _any(pc.and_(pc.and_(pc.equal(found, 0), pc.not_equal(a, 0)), other)):
            raise PenstockError("value out of range: underflow", sqlstate="22003")
    return found


def _any(found: Any) -> bool:
    return bool(found.as_py() if isinstance(found, pa.Scalar) else pc.any(found).as_py())


# Numerics: their values; how many zeros are shown is for nobody to see in a condition

_NUMERIC: dict[str, Compute] = {
    "numeric_add": pc.add,
    "numeric_sub": pc.subtract,
    "numeric_mul": pc.multiply,
}
_NUMERIC_SIGNS: dict[str, Compute] = {
    "numeric_uminus": pc.negate,
    "numeric_uplus": lambda a: a,
    "numeric_abs": pc.abs,
    "abs(numeric)": pc.abs,
}
_DIGITS = {"int2": 5, "int4": 10, "int8": 19}


def _of_numerics(function: Function, args: Sequence[Value]) -> tuple[Compute, bool] | None:
    if function.name in _NUMERIC:
        compute = _NUMERIC[function.name]
        digits = sum(each.kind.precision + 1 for each in args)  # enough for any of them
        return (compute if digits <= MAX_DIGITS_128 else _widened(compute)), False
    sign = _NUMERIC_SIGNS.get(function.name) or _NUMERIC_SIGNS.get(function.signature)
    if sign is not None:
        return sign, False
    if function.name == "numeric" and function.arguments[0] in _DIGITS:
        kind = pa.decimal128(_DIGITS[function.arguments[0]], 0)
        return lambda a: pc.cast(a, kind), False
    return None


# Days

_FIRST_DAY, _LAST_DAY = -2440588, 2145042905
"""What PostgreSQL has for dates, in days since 1970-01-01 (timestamp.h, IS_VALID_DATE)."""


def _of_days(function: Function) -> tuple[Compute, bool] | None:
    match function.signature:
        case "date_pli(date,int4)":
            return partial(_days_later, pc.add), True
        case "date_mii(date,int4)":
            return partial(_days_later, pc.subtract), True
        case "integer_pl_date(int4,date)":
            return lambda a, b: _days_later(pc.add, b, a), True
        case "timestamp(date)":
            return lambda a: pc.cast(a, pa.timestamp("us")), False
        case "date(timestamp)":
            return lambda a: pc.cast(a, pa.date32(), safe=False), False
    return None


def _days_later(compute: Callable[[Any, Any], Any], date: Any, days: Any) -> Any:
    wide = compute(pc.cast(pc.cast(date, pa.int32()), pa.int64()), pc.cast(days, pa.int64()))
    if _any(pc.or_(pc.less(wide, _FIRST_DAY), pc.greater(wide, _LAST_DAY))):
        raise PenstockError("date out of range", sqlstate="22008")
    return pc.cast(pc.cast(wide, pa.int32()), pa.date32())
