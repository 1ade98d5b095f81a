# SPDX-License-Identifier: Apache-2.0
"""What a subscription says about values that the lake's types have no room for.

    option         values (default first)      what it does
    ------         ----------------------      ----------------------------------------------------
    numeric_as     decimal, text               text: numerics, in PostgreSQL's own text form
    datetime_as    timestamp, text             text: date, timestamp and timestamptz (in UTC)
    array_as       list, text                  text: arrays, of any dimensions and bounds
    infinity_as    error, clamp                clamp: an infinite date or time becomes the first or
                                               the last one that the lake holds

"text" makes columns of new tables text, and stages values as text; a column that is not text
gets them through its type's input.  Nothing else is ever changed: what cannot be held is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from penstock.change import types
from penstock.change.relation import Column, Relation
from penstock.errors import ValueNotHeldError

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "numeric_as": ("decimal", "text"),
    "datetime_as": ("timestamp", "text"),
    "array_as": ("list", "text"),
    "infinity_as": ("error", "clamp"),
}
"""The options and their values, the default first."""

DATES_AND_TIMES = frozenset({types.DATE, types.TIMESTAMP, types.TIMESTAMPTZ})

SHOWN_VALUE = 100
"""Characters of a value that an error message shows."""


@dataclass(frozen=True)
class ValueMapping:
    """The four options of one subscription."""

    numeric_as: str = "decimal"
    datetime_as: str = "timestamp"
    array_as: str = "list"
    infinity_as: str = "error"

    @property
    def clamps(self) -> bool:
        """Whether infinite dates and times become the first and the last one."""
        return self.infinity_as == "clamp"

    @cached_property
    def text_types(self) -> frozenset[int]:
        """The types whose values would be typed, and are held as text."""
        scalars: set[int] = set(DATES_AND_TIMES) if self.datetime_as == "text" else set()
        if self.numeric_as == "text":
            scalars.add(types.NUMERIC)
        arrays = {
            array
            for array, element in types.ARRAY_ELEMENTS.items()
            if self.array_as == "text" or element in scalars
        }
        return frozenset(scalars | arrays)

    def staged(self, relation: Relation, below: Mapping[int, int]) -> Relation:
        """A relation as its changes are staged: columns that are held as text are text.

        ``below``: domains, and the types below them, which their values are staged as.
        """
        columns = tuple(self._staged(column, below) for column in relation.columns)
        return relation if columns == relation.columns else replace(relation, columns=columns)

    def _staged(self, column: Column, below: Mapping[int, int]) -> Column:
        if column.type_oid in self.text_types:
            return replace(column, type_oid=types.TEXT, typmod=-1)
        return replace(column, type_oid=below.get(column.type_oid, column.type_oid))


TYPED = ValueMapping()
"""What holds where a subscription says nothing."""


def shortened(value: str) -> str:
    """A value as error messages show it."""
    return value if len(value) <= SHOWN_VALUE else value[:SHOWN_VALUE] + "…"


def not_held(
    value: str, column: str, type_oid: int, table: str, where: str = "", *, in_copy: bool = False
) -> ValueNotHeldError:
    """The error for a value that the lake's ``column``, of this type, cannot hold.

    ``table`` is the qualified name.
    ``in_copy``: it is in the initial copy, so the table is empty, and may not be dropped.
    """
    return ValueNotHeldError(
        f'value "{shortened(value)}" of column "{column}" of table "{table}" cannot be held by the'
        " lake",
        detail="The lake holds numerics of up to 38 digits (18 of them fractional where the column"
        " declares none) without NaN and infinity, dates from year 1 to 9999, and arrays of one"
        " dimension that begin at 1.",
        hint=_hint(value, type_oid, in_copy),
        where=where,
    )


def _hint(value: str, type_oid: int, in_copy: bool) -> str:
    option = option_for(type_oid)
    if option is None:
        return (
            "Give the lake's column a type that has room for it, or leave the column out with a"
            " column list on the publisher."
        )
    infinite = "ALTER SUBSCRIPTION ... SET (infinity_as = clamp), or: "
    again = (
        "replace the column with ALTER TABLE ... DROP COLUMN, ADD COLUMN by one of type text."
        if in_copy
        else "drop the lake's table: ALTER SUBSCRIPTION ... REFRESH PUBLICATION copies it again,"
        " with a column of type text."
    )
    return (
        (infinite if value in ("infinity", "-infinity") else "")
        + f"ALTER SUBSCRIPTION ... SET ({option} = text), then {again}"
        " Or leave the column out with a column list on the publisher."
    )


def option_for(type_oid: int) -> str | None:
    """The option with which values of a type are held as text; None when they are anyway."""
    if type_oid in types.ARRAY_ELEMENTS:
        return "array_as"
    if type_oid in DATES_AND_TIMES:
        return "datetime_as"
    return "numeric_as" if type_oid == types.NUMERIC else None
