# SPDX-License-Identifier: Apache-2.0
"""What changed between two sets of columns, and what of it Delta can follow."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from penstock.change import types
from penstock.errors import FeatureNotSupportedError, PenstockError
from penstock.lake.columns import (
    ColumnChanges,
    DefinedColumn,
    Definition,
    TableColumn,
    column_changes,
    definition_from_json,
)

JSON, UUID, TIME, INET = 114, 2950, 1083, 869


def numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale) + 4


def old(attnum: int, name: str, type_oid: int = types.INT4, typmod: int = -1) -> TableColumn:
    return TableColumn(attnum, name, type_oid, typmod)


def new(attnum: int, name: str, type_oid: int = types.INT4, typmod: int = -1) -> DefinedColumn:
    return DefinedColumn(attnum, name, type_oid, typmod, not_null=False, by_row=False, fill=None)


def changes(
    before: list[TableColumn], now: list[DefinedColumn], *, has_rows: bool = True, rewrite: int = 0
) -> ColumnChanges:
    return column_changes(before, now, table="public.t", has_rows=has_rows, rewrite=rewrite)


def test_columns_are_matched_by_number() -> None:
    """A rename, a drop and an addition of the dropped one's name, all at once."""
    before = [old(1, "id"), old(2, "a"), old(3, "b")]
    now = [new(1, "id"), new(3, "c"), new(4, "a")]
    found = changes(before, now)
    assert found == ColumnChanges(dropped=("a",), renamed=(("b", "c"),), added=(now[2],))


def test_nothing_changed() -> None:
    """Equal columns need nothing, whatever else was altered."""
    assert not changes([old(1, "id")], [replace(new(1, "id"), not_null=True, by_row=True)])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((types.INT2, -1), (types.INT4, -1)),
        ((types.INT2, -1), (types.INT8, -1)),
        ((types.INT4, -1), (types.FLOAT8, -1)),
        ((types.FLOAT4, -1), (types.FLOAT8, -1)),
        ((types.INT4, -1), (types.NUMERIC, -1)),
        ((types.INT8, -1), (types.NUMERIC, numeric(22, 2))),
        ((types.NUMERIC, numeric(5, 2)), (types.NUMERIC, numeric(7, 3))),
        ((types.NUMERIC, numeric(5, 2)), (types.NUMERIC, -1)),
        ((types.DATE, -1), (types.TIMESTAMP, -1)),
    ],
)
def test_wider_types(before: tuple[int, int], after: tuple[int, int]) -> None:
    """Delta widens these."""
    now = new(1, "a", *after)
    assert changes([old(1, "a", *before)], [now]) == ColumnChanges(widened=(now,))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((types.VARCHAR, 9), (types.VARCHAR, 14)),
        ((types.VARCHAR, 9), (types.VARCHAR, -1)),
        ((types.VARCHAR, 9), (types.TEXT, -1)),
        ((JSON, -1), (types.TEXT, -1)),
        ((UUID, -1), (types.TEXT, -1)),
        ((TIME, 3), (TIME, 6)),
        ((types.TIMESTAMP, 0), (types.TIMESTAMP, -1)),
        ((types.NUMERIC, -1), (types.NUMERIC, numeric(38, 18))),
    ],
)
def test_types_that_keep_their_values(before: tuple[int, int], after: tuple[int, int]) -> None:
    """Delta has nothing to do for these."""
    assert not changes([old(1, "a", *before)], [new(1, "a", *after)])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((types.INT8, -1), (types.INT4, -1)),
        ((types.INT8, -1), (types.FLOAT8, -1)),
        ((types.INT8, -1), (types.NUMERIC, numeric(20, 2))),
        ((types.INT4, -1), (types.TEXT, -1)),
        ((types.TEXT, -1), (types.INT4, -1)),
        ((types.TEXT, -1), (types.VARCHAR, 9)),
        ((types.VARCHAR, 14), (types.VARCHAR, 9)),
        ((types.BPCHAR, 9), (types.BPCHAR, 14)),
        ((types.BPCHAR, 9), (types.TEXT, -1)),
        ((INET, -1), (types.TEXT, -1)),
        ((types.TEXT, -1), (JSON, -1)),
        ((types.NUMERIC, numeric(7, 2)), (types.NUMERIC, numeric(7, 3))),
        ((types.NUMERIC, -1), (types.NUMERIC, numeric(10, 2))),
        ((types.DATE, -1), (types.TIMESTAMPTZ, -1)),
        ((types.TIMESTAMP, -1), (types.TIMESTAMPTZ, -1)),
        ((types.TIMESTAMP, -1), (types.TIMESTAMP, 3)),
        ((20000, -1), (types.TEXT, -1)),
        ((1007, -1), (1016, -1)),
    ],
)
def test_types_that_would_change_values(before: tuple[int, int], after: tuple[int, int]) -> None:
    """These are refused before anything is changed."""
    with pytest.raises(FeatureNotSupportedError, match='type of column "a" of table'):
        changes([old(1, "a", *before)], [new(1, "a", *after)])


def test_added_columns_and_rows_that_exist() -> None:
    """Null or a constant for existing rows; anything computed by row, or NOT NULL, is refused."""
    before = [old(1, "id")]
    plain = new(2, "a")
    filled = replace(plain, fill="5", by_row=True, not_null=True)
    computed = replace(plain, by_row=True)
    required = replace(plain, not_null=True)
    assert changes(before, [new(1, "id"), plain]).added == (plain,)
    assert changes(before, [new(1, "id"), filled]).added == (filled,)
    with pytest.raises(FeatureNotSupportedError, match='cannot add column "a"'):
        changes(before, [new(1, "id"), computed])
    with pytest.raises(FeatureNotSupportedError, match='cannot add column "a"'):
        changes(before, [new(1, "id"), plain], rewrite=2)
    with pytest.raises(PenstockError, match="contains null values") as failed:
        changes(before, [new(1, "id"), required])
    assert failed.value.sqlstate == "23502"
    for column in (computed, required):
        assert changes(before, [new(1, "id"), column], has_rows=False, rewrite=2).added == (column,)


def test_a_definition_comes_from_json() -> None:
    """The JSON of penstock.altered_tables() has exactly the fields."""
    row = {"attnum": 1, "name": "a", "type_oid": 23, "typmod": -1}
    more = row | {"not_null": False, "by_row": False, "fill": None}
    same = definition_from_json("4", json.dumps([more]), json.dumps([row]))
    assert same == Definition((old(1, "a"),), (new(1, "a"),), 4)
    assert not same.differs
    assert definition_from_json("0", json.dumps([more]), json.dumps([row | {"name": "b"}])).differs
