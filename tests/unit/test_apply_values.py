# SPDX-License-Identifier: Apache-2.0
"""Values between column types, and codes of equal rows: all on Arrow."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.apply.values import check_convertible, convert
from penstock.change import types
from penstock.change.codes import row_codes
from penstock.change.relation import Column, LakeColumn
from penstock.errors import (
    FeatureNotSupportedError,
    InvalidTextError,
    PenstockError,
    ValueNotHeldError,
)

MIDNIGHT = dt.datetime(2026, 1, 2)


def numeric(precision: int, scale: int) -> tuple[int, int]:
    """numeric(p,s) as type OID and typmod."""
    return types.NUMERIC, (precision << 16 | scale) + 4


def plain(oid: int, length: int | None = None) -> tuple[int, int]:
    """A type, with a length as varchar(n) has it."""
    return oid, -1 if length is None else length + 4


def converted(values: list[Any], source: tuple[int, int], target: tuple[int, int]) -> list[Any]:
    """Values of a publisher's column as the target's column holds them."""
    sent, held = Column("c", *source, False), LakeColumn(1, "c", *target, False)
    check_convertible(sent, held, "s.t")
    result: list[Any] = convert(pa.array(values, types.arrow_type(*source)), sent, held).to_pylist()
    return result


@pytest.mark.parametrize(
    ("source", "target", "values", "result"),
    [
        (plain(types.INT2), plain(types.INT8), [1, None, -5], [1, None, -5]),
        (plain(types.INT8), plain(types.INT4), [7], [7]),
        (plain(types.INT4), plain(types.FLOAT8), [3], [3.0]),
        (plain(types.INT4), numeric(10, 2), [3], [Decimal("3.00")]),
        (plain(types.FLOAT4), plain(types.FLOAT8), [1.1, math.inf], [1.1, math.inf]),
        (plain(types.BOOL), plain(types.TEXT), [True, False, None], ["t", "f", None]),
        (plain(types.INT8), plain(types.VARCHAR, 3), [123, None], ["123", None]),
        (plain(types.TEXT), plain(types.INT4), ["42", None], [42, None]),
        (numeric(10, 3), numeric(9, 2), [Decimal("1.005")], [Decimal("1.01")]),
        (numeric(10, 3), numeric(9, 2), [Decimal("-1.005")], [Decimal("-1.01")]),
        (plain(types.VARCHAR, 9), plain(types.BPCHAR, 4), ["ab", "ab    "], ["ab  ", "ab  "]),
        (plain(types.DATE), plain(types.TIMESTAMP), [dt.date(2026, 1, 2)], [MIDNIGHT]),
        (plain(2950), plain(types.TEXT), ["a-uuid"], ["a-uuid"]),
        (plain(16500), plain(17000), ["an enum"], ["an enum"]),
        (plain(16500), plain(types.INT4), ["7", None], [7, None]),
        (plain(16500), plain(types.BOOL), ["t", None, "f"], [True, None, False]),
        (plain(16500), plain(types.TEXT), ["a domain"], ["a domain"]),
        (
            plain(types.TEXT),
            numeric(9, 2),
            ["1.005", None, "-3"],
            [Decimal("1.01"), None, Decimal("-3.00")],
        ),
        (plain(types.TEXT), numeric(38, 0), ["9" * 38], [Decimal("9" * 38)]),
        (plain(types.TEXT), plain(types.DATE), ["2026-01-02", None], [dt.date(2026, 1, 2), None]),
        (plain(types.TEXT), plain(1007), ["{1,NULL}", None], [[1, None], None]),
    ],
)
def test_conversions(
    source: tuple[int, int], target: tuple[int, int], values: list[Any], result: list[Any]
) -> None:
    """Each pair of types of the table in values.py gives what PostgreSQL's input functions give."""
    assert converted(values, source, target) == result


def test_a_part_of_an_array_is_parsed_from_its_begin() -> None:
    """Texts of a slice are its own."""
    sent, held = Column("c", 16500, -1, False), LakeColumn(1, "c", types.INT4, -1, False)
    assert convert(pa.array(["1", "2", "3"]).slice(1), sent, held).to_pylist() == [2, 3]


@pytest.mark.parametrize(
    ("source", "target", "value", "error", "sqlstate"),
    [
        (plain(types.INT8), plain(types.INT4), 2**31, ValueNotHeldError, "22003"),
        (numeric(10, 2), numeric(4, 2), Decimal("100.00"), ValueNotHeldError, "22003"),
        (plain(types.TEXT), plain(types.VARCHAR, 3), "abcd", ValueNotHeldError, "22001"),
        (plain(types.TEXT), plain(types.INT4), "forty", InvalidTextError, "22P02"),
        (plain(types.TEXT), plain(2950), "no uuid", FeatureNotSupportedError, "0A000"),
        (plain(types.TEXT), numeric(9, 2), "NaN", ValueNotHeldError, "22003"),
        (plain(types.TEXT), numeric(4, 2), "99.999", ValueNotHeldError, "22003"),
        (plain(types.TEXT), numeric(4, 2), "1,5", InvalidTextError, "22P02"),
        (plain(types.TEXT), plain(types.DATE), "0044-03-15 BC", ValueNotHeldError, "22003"),
        (plain(types.TEXT), plain(types.TIMESTAMP), "yesterday", InvalidTextError, "22P02"),
        (plain(types.TEXT), plain(1007), "{{1}}", ValueNotHeldError, "22003"),
        (plain(16500), plain(types.INT4), "sad", InvalidTextError, "22P02"),
        (plain(types.FLOAT8), plain(types.INT4), 1.5, FeatureNotSupportedError, "0A000"),
    ],
)
def test_values_that_do_not_fit(
    source: tuple[int, int],
    target: tuple[int, int],
    value: Any,
    error: type[PenstockError],
    sqlstate: str,
) -> None:
    """A value that the target cannot hold is an error with PostgreSQL's SQLSTATE, never changed."""
    with pytest.raises(error) as raised:
        converted([value], source, target)
    assert raised.value.sqlstate == sqlstate


def codes(*columns: pa.Array) -> list[int]:
    """The codes of rows with these columns."""
    return [int(code) for code in row_codes([pa.chunked_array([each]) for each in columns])]


def test_equal_rows_have_equal_codes() -> None:
    """Codes tell rows apart by all columns; nulls are equal, and so are NaN, and 0.0 and -0.0."""
    assert codes(pa.array([1, 2, 1, None, None])) == [0, 1, 0, 2, 2]
    nan = float("nan")
    assert codes(pa.array([nan, 0.0, -0.0, nan, None])) == [0, 1, 1, 0, 2]
    both = codes(pa.array([1, 1, 2, 1]), pa.array(["x", None, "x", "x"]))
    assert both[0] == both[3] and len(set(both)) == 3


def test_lists_are_compared_by_elements() -> None:
    """Lists differ by size, order, nulls and being null."""
    lists = [["a", "b"], ["a,b"], [], [None], None, ["b", "a"], ["a", "b"], [""], [None]]
    found = codes(pa.array(lists, pa.list_(pa.string())))
    assert found[0] == found[6] and found[3] == found[8]
    assert len(set(found)) == len(lists) - 2
    sliced = pa.array([[1], [2], [1]], pa.list_(pa.int32())).slice(1)
    assert len(set(codes(sliced))) == 2
