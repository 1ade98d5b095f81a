# SPDX-License-Identifier: Apache-2.0
"""How a table's columns changed since its Delta table was last altered; whether Delta can follow.

In:   columns as recorded with the Delta table, columns as the control database has them now.
Out:  drops, renames, additions and wider types; FeatureNotSupportedError (0A000) when the rows
      that exist would have to change in a way that cannot be told from here.

Columns are matched by attnum: a name may have moved from one column to another.

    change of type (rows exist)                         Delta
    ---------------------------                         -----
    int2 -> int4 -> int8, int2/int4 -> float8           wider
    float4 -> float8                                    wider
    int2/int4 -> numeric with >= 10 digits before       wider
      the point, int8 -> >= 20
    numeric -> numeric that loses no digit              wider
    date -> timestamp                                   wider
    varchar(n) -> longer, or text                       the same
    what is kept as text -> text                        the same, where ::text is that very text
    time(n), timestamp(n) -> more digits                the same
    anything else                                       refused

    added column (rows exist)                           existing rows
    -------------------------                           -------------
    without a default                                   null; refused (23502) when NOT NULL
    with a constant default                             the constant (attmissingval)
    default that differs by row, identity, generated    refused

A table without rows takes any new column; its types may change only as above.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.change import types
from penstock.change.relation import LakeColumn
from penstock.change.types import arrow_type
from penstock.errors import FeatureNotSupportedError, PenstockError

REWRITE_DEFAULT = 2
"""pg_event_trigger_table_rewrite_reason: a new column's value differs by row."""

TIMES = frozenset({1083, 1266, types.TIMESTAMP, types.TIMESTAMPTZ})
FIRST_USER_OID = 16384

# Types kept as text whose cast to text is not their text form, or could change it.
_CHANGED_BY_CAST = frozenset({types.BPCHAR, types.CHAR, 869, 650})


@dataclass(frozen=True)
class TableColumn:
    """A column as recorded with the Delta table."""

    attnum: int
    name: str
    type_oid: int
    typmod: int

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of its values."""
        return arrow_type(self.type_oid, self.typmod)


@dataclass(frozen=True)
class DefinedColumn(TableColumn):
    """A column as the control database defines it now.

    ``fill`` is the value that rows from before the column have, in PostgreSQL's text form;
    ``by_row`` is whether there is a default, an identity or a generation expression.
    """

    not_null: bool
    by_row: bool
    fill: str | None


@dataclass(frozen=True)
class Definition:
    """A table's columns, recorded and as defined now; ``rewrite`` as PostgreSQL's event tells it.

    It is what penstock.altered_tables() says of a table.
    """

    recorded: tuple[TableColumn, ...]
    defined: tuple[DefinedColumn, ...]
    rewrite: int

    @property
    def differs(self) -> bool:
        """Whether the Delta table, or its record, has to follow."""
        now = [TableColumn(c.attnum, c.name, c.type_oid, c.typmod) for c in self.defined]
        return list(self.recorded) != now

    @property
    def lake_columns(self) -> tuple[LakeColumn, ...]:
        """The columns as they are defined now, as a LakeTable has them."""
        return tuple(
            LakeColumn(c.attnum, c.name, c.type_oid, c.typmod, c.not_null) for c in self.defined
        )


@dataclass(frozen=True)
class ColumnChanges:
    """What is to be done to the Delta table.  Renames are (old name, new name)."""

    dropped: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    added: tuple[DefinedColumn, ...] = ()
    widened: tuple[DefinedColumn, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.dropped or self.renamed or self.added or self.widened)


def column_changes(
    recorded: Sequence[TableColumn],
    defined: Sequence[DefinedColumn],
    *,
    table: str,
    has_rows: bool,
    rewrite: int,
) -> ColumnChanges:
    """What changed; ``rewrite`` as penstock.altered_tables() gives it, ``table`` for messages."""
    before = {column.attnum: column for column in recorded}
    now = {column.attnum for column in defined}
    changes = ColumnChanges(
        dropped=tuple(column.name for column in recorded if column.attnum not in now),
        renamed=tuple(
            (before[column.attnum].name, column.name)
            for column in defined
            if column.attnum in before and before[column.attnum].name != column.name
        ),
        added=tuple(column for column in defined if column.attnum not in before),
        widened=tuple(
            column
            for column in defined
            if column.attnum in before and _is_widened(before[column.attnum], column, table)
        ),
    )
    if has_rows:
        for column in changes.added:
            _check_added(column, rewrite, table)
    if len(changes.dropped) == len(recorded) and not changes.added:
        raise FeatureNotSupportedError(
            f'cannot drop all columns of table "{table}", which has rows in the lake'
        )
    return changes


def definition_from_json(rewrite: str, columns: str, recorded: str) -> Definition:
    """A definition from the last three columns of penstock.altered_tables(), as text."""
    return Definition(
        tuple(TableColumn(**column) for column in json.loads(recorded)),
        tuple(DefinedColumn(**column) for column in json.loads(columns)),
        int(rewrite),
    )


def _check_added(column: DefinedColumn, rewrite: int, table: str) -> None:
    if column.fill is not None:
        return
    if column.by_row or rewrite & REWRITE_DEFAULT:
        raise FeatureNotSupportedError(
            f'cannot add column "{column.name}" to table "{table}", which has rows in the lake',
            detail="The rows that exist would get values that are computed for each row.",
            hint="Add the column with a constant default or none, in a statement of its own, and"
            " then change its default.",
        )
    if column.not_null:
        raise PenstockError(
            f'column "{column.name}" of relation "{table}" contains null values', sqlstate="23502"
        )


def _is_widened(old: TableColumn, new: DefinedColumn, table: str) -> bool:
    """Whether Delta's type must become wider; 0A000 when it cannot become what is wanted."""
    if (old.type_oid, old.typmod) == (new.type_oid, new.typmod):
        return False
    if old.arrow == new.arrow and _keeps_values(old, new):
        return False
    if old.arrow != new.arrow and _is_wider(old.arrow, new.arrow):
        return True
    raise FeatureNotSupportedError(
        f'cannot change the type of column "{new.name}" of table "{table}", whose rows are in'
        " the lake",
        detail="The lake widens integers, floats, numerics and dates, and makes texts longer.",
        hint="Add a column of the new type instead, or drop the table and copy it again.",
    )


def _keeps_values(old: TableColumn, new: TableColumn) -> bool:
    """For types of one Arrow type: whether PostgreSQL leaves every value as it is."""
    if old.type_oid == new.type_oid:
        if old.type_oid == types.NUMERIC:  # numeric and numeric(38,18)
            return True
        if old.type_oid not in (types.VARCHAR, *TIMES):
            return False
        return new.typmod == -1 or 0 <= old.typmod <= new.typmod
    to_text = new.type_oid == types.TEXT or (new.type_oid == types.VARCHAR and new.typmod == -1)
    return to_text and old.type_oid < FIRST_USER_OID and old.type_oid not in _CHANGED_BY_CAST


def _is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether Delta can widen one type into the other."""
    if pa.types.is_integer(old):
        if pa.types.is_integer(new):
            return bool(new.bit_width > old.bit_width)
        if pa.types.is_decimal(new):
            return bool(new.precision - new.scale >= (20 if old.bit_width == 64 else 10))
        return bool(pa.types.is_float64(new) and old.bit_width < 64)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        more_scale = new.scale - old.scale
        return bool(new.precision - old.precision >= more_scale >= 0)
    if pa.types.is_float32(old):
        return bool(pa.types.is_float64(new))
    return bool(pa.types.is_date(old) and pa.types.is_timestamp(new) and new.tz is None)
