# SPDX-License-Identifier: Apache-2.0
"""What Arrow computes of a plain filter, at the edges where its kernels are not PostgreSQL's.

tests/properties/test_row_filters.py compares whole filters with a PostgreSQL.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.change import types
from penstock.errors import PenstockError
from penstock.sql.arrow_functions import function_value
from penstock.sql.arrow_texts import escaped, matcher
from penstock.sql.arrow_values import NotPlainError, Value, choice, constant, first_of, together
from penstock.sql.translate.registry import Function

INTEGERS = {"int2": types.INT2, "int4": types.INT4, "int8": types.INT8}
LEAST = {"int2": -(2**15), "int4": -(2**31), "int8": -(2**63)}


def of_column(name: str, oid: int) -> Value:
    return Value(oid, types.arrow_type(oid, -1), lambda batch: batch.column(name))


def computed(name: str, result: int, *args: tuple[int, list[Any]]) -> list[Any]:
    """A function of columns with these types and values."""
    names = [f"c{i}" for i in range(len(args))]
    arrays = [pa.array(values, types.arrow_type(oid, -1)) for oid, values in args]
    columns = [of_column(each, oid) for each, (oid, _) in zip(names, args, strict=True)]
    value = function_value(Function("pg_catalog", name, ()), columns, result)
    found: list[Any] = value.run(pa.RecordBatch.from_arrays(arrays, names)).to_pylist()
    return found


def test_quotients_and_remainders_go_towards_zero() -> None:
    """Whatever the signs; the remainder has the sign of the dividend, and NULL stays NULL."""
    dividends, divisors = [7, -7, 7, -7, None, 1], [2, 2, -2, -2, 0, None]
    for kind, oid in INTEGERS.items():
        args = (oid, dividends), (oid, divisors)
        assert computed(f"{kind}div", oid, *args) == [3, -3, -3, 3, None, None]
        assert computed(f"{kind}mod", oid, *args) == [1, -1, 1, -1, None, None]


def test_operands_of_two_widths_have_the_wider_result() -> None:
    """int2 + int4 is computed as int4, where the sum has room."""
    args = (types.INT2, [32767]), (types.INT4, [1])
    assert computed("int24pl", types.INT4, *args) == [32768]


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize(
    ("word", "second", "sqlstate"),
    [
        ("mi", 1, "22003"),
        ("mul", 2, "22003"),
        ("div", -1, "22003"),
        ("div", 0, "22012"),
        ("mod", 0, "22012"),
        ("um", None, "22003"),
        ("abs", None, "22003"),
    ],
)
def test_what_has_no_room_is_postgresqls_error(
    kind: str, word: str, second: int | None, sqlstate: str
) -> None:
    """With its SQLSTATE and message, for the least value of each type; -1 as divisor of % is 0."""
    oid = INTEGERS[kind]
    args = [(oid, [LEAST[kind]]), *([] if second is None else [(oid, [second])])]
    with pytest.raises(PenstockError) as error:
        computed(f"{kind}{word}", oid, *args)
    assert error.value.sqlstate == sqlstate
    names = {"int2": "smallint", "int4": "integer", "int8": "bigint"}
    expected = "division by zero" if sqlstate == "22012" else f"{names[kind]} out of range"
    assert error.value.message == expected
    assert computed(f"{kind}mod", oid, (oid, [LEAST[kind]]), (oid, [-1])) == [0]


def test_nan_is_the_largest_float() -> None:
    """It equals itself; -0 equals 0."""
    nan, infinity = float("nan"), float("inf")
    a = (types.FLOAT8, [nan, nan, 1.0, infinity, -0.0, None])
    b = (types.FLOAT8, [nan, infinity, nan, nan, 0.0, nan])
    for word, expected in {
        "eq": [True, False, False, False, True, None],
        "lt": [False, False, True, True, False, None],
        "ge": [True, True, False, False, True, None],
    }.items():
        assert computed(f"float8{word}", types.BOOL, a, b) == expected


LIKE = [
    ("a%", ["a", "ab", "A", "ba", ""], [True, True, False, False, False]),
    ("%a", ["a", "ba", "a\n", "ab", ""], [True, True, False, False, False]),
    ("%%b%", ["b", "abc", "\nb\n", "B", ""], [True, True, True, False, False]),
    ("_", ["é", "😀", "\n", "ab", ""], [True, True, True, False, False]),
    ("a\\%_.", ["a%x.", "a%xy", "ab.", "a\\%x.", ""], [True, False, False, False, False]),
    ("", ["", "\n", " ", "a", "%"], [True, False, False, False, False]),
    ("x%[y]", ["x[y]", "xx[y]", "xy", "x[y]\n", "x\n[y]"], [True, True, False, False, True]),
]


@pytest.mark.parametrize(("pattern", "texts", "expected"), LIKE)
def test_like(pattern: str, texts: list[str], expected: list[bool]) -> None:
    """The whole text must match; _ is a character, a line's end too; nothing else is special."""
    assert matcher(pattern)(pa.array(texts)).to_pylist() == expected


def test_escapes_of_like() -> None:
    """Another character, none, and a pattern that ends with it, which only some texts fail on."""
    assert escaped("a!%\\_!!", "!") == "a\\%\\\\_\\!"
    assert escaped("a\\%", "") == "a\\\\%"
    for pattern, escape in (("a!", "!"), ("a", "ab")):
        with pytest.raises(NotPlainError):
            escaped(pattern, escape)
    with pytest.raises(NotPlainError):
        matcher("a\\")


def test_what_is_not_needed_is_not_computed() -> None:
    """AND, OR, CASE and COALESCE compute what can fail only for rows that come to it."""
    one = constant(types.INT4, pa.scalar(1, pa.int32()))
    column = of_column("a", types.INT4)
    quotient = function_value(Function("pg_catalog", "int4div", ()), (one, column), types.INT4)
    positive = function_value(Function("pg_catalog", "int4gt", ()), (quotient, column), types.BOOL)
    is_zero = function_value(
        Function("pg_catalog", "int4eq", ()),
        (column, constant(types.INT4, pa.scalar(0, pa.int32()))),
        types.BOOL,
    )
    not_zero = Value(types.BOOL, pa.bool_(), lambda b: pa.compute.invert(is_zero.run(b)))
    null = constant(types.INT4, pa.scalar(None, pa.int32()))
    batch = pa.RecordBatch.from_pydict({"a": pa.array([0, 1, None, -1], pa.int32())})
    for value, expected in (
        (together([not_zero, positive], both=True), [False, False, None, False]),
        (together([is_zero, positive], both=False), [True, False, None, False]),
        (choice([is_zero], [null, quotient]), [None, 1, None, -1]),
        (choice([is_zero], [quotient, null]), None),
        (first_of([column, quotient]), [0, 1, None, -1]),
        (first_of([null, quotient]), None),
        (together([positive, not_zero], both=True), None),
    ):
        if expected is None:
            with pytest.raises(PenstockError, match="division by zero"):
                value.run(batch)
        else:
            assert value.run(batch).to_pylist() == expected
