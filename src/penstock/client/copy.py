# SPDX-License-Identifier: Apache-2.0
"""From what a publisher publishes and what the lake has to the statements of an initial copy.

In:   published tables (client/published.py) and the lake's tables, matched by name.
Out:  packs of ranges: SELECT statements for the publisher, and the Arrow types of the lake.

How a column is read, from type S on the publisher into type L of the lake:

    S and L                              in the SELECT list
    -------                              ------------------
    the same type, wider integers        the column
    L is kept as text (see below)        S's text form, as the stream sends it
    numeric                              its text: ADBC makes text of it itself, four times slower
    anything else                        S's text form, then cast to L, as an apply worker does

The text form is that of the type's output function.  ``::text`` is that for most types, but some
have a cast of their own that differs (inet adds /32, bool writes true, char(n) loses spaces), and
of user-defined types nothing is known; ``format('%s')`` always calls the output function.

ADBC flattens arrays of several dimensions and forgets lower bounds, so such arrays are selected
as null, and their text in a column of its own, which stops the copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.apply.rows import check_columns
from penstock.change import types
from penstock.change.relation import Column, LakeColumn, LakeTable
from penstock.client.published import PublishedTable
from penstock.config import SPREAD_BYTES
from penstock.lake.copy_range import CopyLeaf, CopyRange, CopyTarget
from penstock.lake.copy_values import CopyColumn
from penstock.names import quote_pg, quote_pg_literal
from penstock.sync.copy_plan import PageRange, Sized, packs, page_ranges, range_bytes

INET, CIDR, OID_ARRAY, NUMERIC_ARRAY = 869, 650, 1028, 1231

FIRST_USER_OID = 16384
"""Types from this OID on are not PostgreSQL's own (FirstNormalObjectId)."""

_TEXTS = frozenset({types.TEXT, types.VARCHAR, types.BPCHAR, types.NAME})
_OWN_CASTS = frozenset({types.BOOL, INET, CIDR})
_WIDER = {types.INT2: {types.INT4, types.INT8}, types.INT4: {types.INT8}}
_SQL_NAMES = {
    types.BOOL: "bool",
    types.BYTEA: "bytea",
    types.INT2: "int2",
    types.INT4: "int4",
    types.INT8: "int8",
    types.OID: "oid",
    types.FLOAT4: "float4",
    types.FLOAT8: "float8",
    types.DATE: "date",
    types.TIMESTAMP: "timestamp",
    types.TIMESTAMPTZ: "timestamptz",
    types.NUMERIC: "numeric",
    types.TEXT: "text",
    types.BPCHAR: "bpchar",
    types.VARCHAR: "varchar",
    types.CHAR: '"char"',
    types.NAME: "name",
}
_READ_AS = {
    types.OID: "::pg_catalog.int8",  # ADBC reads an oid into 32 bits with a sign
    OID_ARRAY: "::pg_catalog.int8[]",
    types.NUMERIC: "::pg_catalog.text",
    NUMERIC_ARRAY: "::pg_catalog.text[]",
}


@dataclass(frozen=True)
class Leaf:
    """A lake table with rows of its own, and which rows those are.

    ``constraint`` is PostgreSQL's SQL over column names, None when it takes every row.
    ``physical`` maps column names to their names in the Delta table's files.
    """

    table: LakeTable
    constraint: str | None
    physical: Mapping[str, str]


@dataclass(frozen=True)
class TableCopy:
    """One table to copy; ``leaves`` is the lake's table itself unless that is partitioned."""

    published: PublishedTable
    lake: LakeTable
    leaves: tuple[Leaf, ...]
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Text form of the defaults of columns that are not published; others become null."""
    clamp: bool = False
    """Whether infinite dates and times become the first and the last that the lake holds."""
    routed: bool = False
    """Whether the publisher says which leaf takes a row; else all are read for the first one."""


def copy_packs(
    tables: Iterable[TableCopy], readers: int, spread_bytes: int = SPREAD_BYTES
) -> list[Sequence[CopyRange]]:
    """The packs of ranges for an initial copy of these tables by ``readers`` at a time.

    Nothing is cut if there is no more than ``spread_bytes`` to copy: the node reads that alone.

    RelationMismatchError when the lake's table lacks a published column or generates it.
    """
    tables = list(tables)
    pieces = [(table, piece) for table in tables for piece in table.published.pieces]
    total = sum(piece.size.size for _, piece in pieces)
    target = range_bytes(total, readers) if total > spread_bytes else max(total, 1)
    selections = {id(table): _Selection(table) for table in tables}
    sized = [
        Sized(selections[id(table)].range(piece.source, pages), pages.size)
        for table, piece in pieces
        for pages in page_ranges(piece.size, target)
    ]
    return packs(sized, target)


class _Selection:
    """The SELECT of one table, without its range of pages."""

    def __init__(self, table: TableCopy) -> None:
        self._filter = table.published.filter
        matched = _match(table)
        items, checks, columns = [], [], []
        for place, (source, target) in enumerate(matched):
            item, check = _item(source, target)
            items.append(item)
            columns.append(_copy_column(source, target, table.clamp))
            if check is not None:
                checks.append((place, check))
        for column in table.lake.columns:
            if column.name in table.defaults:
                items.append(_constant(table.defaults[column.name], column))
                columns.append(_copy_column(_as_text(column), column, table.clamp))
        self._items = [*items, *(check for _, check in checks)]
        if table.routed:
            self._items.append(_leaf_number(table))
        self._checked = tuple(place for place, _ in checks)
        self._target = _target(table, tuple(columns))

    def range(self, source: str, pages: PageRange) -> CopyRange:
        """One range of one piece of the table."""
        conditions = [] if self._filter is None else [f"({self._filter})"]
        if pages.first > 0:
            conditions.append(f"ctid >= '({pages.first},0)'::pg_catalog.tid")
        if pages.end is not None:
            conditions.append(f"ctid < '({pages.end},0)'::pg_catalog.tid")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        statement = f"SELECT {', '.join(self._items)} FROM {source}{where}"
        return CopyRange(self._target, statement, self._checked, pages.size)


def _match(table: TableCopy) -> list[tuple[Column, LakeColumn]]:
    """Published columns with the lake's columns of the same names."""
    check_columns(table.published.relation, table.lake)
    known = {column.name: column for column in table.lake.columns}
    published = table.published.relation.columns
    return [(column, known[column.name]) for column in published]


def _target(table: TableCopy, columns: tuple[CopyColumn, ...]) -> CopyTarget:
    names = [column.name for column in columns]
    sortable = [name for name in table.lake.key if name in names]
    if any(pa.types.is_list(columns[names.index(name)].type) for name in sortable):
        sortable = []
    return CopyTarget(
        table.lake.relid,
        f"{table.lake.schema}.{table.lake.name}",
        columns,
        tuple(names.index(name) for name in sortable),
        tuple(
            CopyLeaf(
                leaf.table.relid,
                leaf.table.location,
                tuple(leaf.physical[name] for name in names),
            )
            for leaf in table.leaves
        ),
        routed=table.routed,
    )


def _leaf_number(table: TableCopy) -> str:
    """An expression for the number of the leaf that takes a row; null for none."""
    branches = [
        f"WHEN {leaf.constraint or 'true'} THEN {number}"
        for number, leaf in enumerate(table.leaves)
    ]
    return f"CASE {' '.join(branches)} END" if branches else "NULL::pg_catalog.int4"


def _copy_column(source: Column, target: LakeColumn, clamp: bool) -> CopyColumn:
    longest = None
    if target.type_oid in (types.VARCHAR, types.BPCHAR) and target.typmod >= 4:
        bounded = source.type_oid in (types.VARCHAR, types.BPCHAR) and source.typmod >= 4
        if not (bounded and source.typmod <= target.typmod):
            longest = target.typmod - 4
    kind = types.arrow_type(target.type_oid, target.typmod)
    return CopyColumn(target.name, target.type_oid, kind, target.not_null, longest, clamp)


def _item(source: Column, target: LakeColumn) -> tuple[str, str | None]:
    """The expression that selects a column for the lake's, and one that tells what it cannot."""
    value = _value(source, target)
    if target.type_oid not in types.ARRAY_ELEMENTS:
        return value, None
    plain = (
        f"(coalesce(pg_catalog.array_ndims({value}), 1) = 1"
        f" AND coalesce(pg_catalog.array_lower({value}, 1), 1) = 1)"
    )
    return (
        f"CASE WHEN {plain} THEN {value} END",
        f"CASE WHEN NOT {plain} THEN ({value})::pg_catalog.text END",
    )


def _value(source: Column, target: LakeColumn) -> str:
    column = quote_pg(source.name)
    name = _sql_name(target.type_oid)
    if name is None:
        return text_form(source.type_oid, column)
    read_as = _READ_AS.get(target.type_oid, "")
    if source.type_oid == target.type_oid or target.type_oid in _WIDER.get(source.type_oid, ()):
        return f"{column}{read_as}"
    return f"({text_form(source.type_oid, column)})::{name}{read_as}"


def _constant(value: str, target: LakeColumn) -> str:
    """A value that every copied row gets, as the publisher's SQL."""
    literal = quote_pg_literal(value)
    name = _sql_name(target.type_oid)
    if name is None:
        return f"{literal}::pg_catalog.text"
    return f"{literal}::{name}{_READ_AS.get(target.type_oid, '')}"


def _as_text(column: LakeColumn) -> Column:
    return Column(column.name, types.TEXT, -1, False)


def _sql_name(type_oid: int) -> str | None:
    """Name of a type with a counterpart in Arrow, None for one whose values are kept as text."""
    element = types.ARRAY_ELEMENTS.get(type_oid)
    if element is not None:
        return f"pg_catalog.{_SQL_NAMES[element]}[]"
    if type_oid in _TEXTS or type_oid == types.CHAR or type_oid not in _SQL_NAMES:
        return None
    return f"pg_catalog.{_SQL_NAMES[type_oid]}"


def text_form(type_oid: int, column: str) -> str:
    """An expression for a column's value as its type's output function writes it; null for null."""
    if type_oid in _TEXTS:
        return column
    if type_oid < FIRST_USER_OID and type_oid not in _OWN_CASTS:
        return f"{column}::pg_catalog.text"
    # IS DISTINCT FROM, because a composite value of nulls only IS NULL, too, but is not null.
    return f"CASE WHEN {column} IS DISTINCT FROM NULL THEN pg_catalog.format('%s', {column}) END"
