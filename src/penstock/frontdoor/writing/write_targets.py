# SPDX-License-Identifier: Apache-2.0
"""The tables of a statement that writes the lake, and the statements on their empty relations.

In:   what penstock.lock_for_write() says of each table with rows of its own.
Out:  its definition; SQL that puts the lake's rows into its relation, and that reads what is there.

Rows are put in as one array literal of texts for each column, and each row's ctid is its name from
then on: PostgreSQL gives a row that it updates another one, and none twice in a transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.change import types
from penstock.change.relation import LakeColumn, LakeTable
from penstock.client.copy import text_form
from penstock.lake.references import ForeignKey, Relation
from penstock.lake.writes import UniqueIndex
from penstock.names import quote_pg, quote_pg_qualified
from penstock.pgoutput.data_rows import is_binary
from penstock.wire.given_rows import given_rows, lake_rows_literal

CTID = LakeColumn(0, "ctid", types.INT8, -1, True)
"""A row's place in its relation: block * 65536 + number."""

_CTID = (
    "((ctid::pg_catalog.text::pg_catalog.point)[0]::pg_catalog.int8 << 16)"
    " | (ctid::pg_catalog.text::pg_catalog.point)[1]::pg_catalog.int8"
)


_COMMAND = "cmin::pg_catalog.text::pg_catalog.int8"
"""Counts the commands of a transaction; that of a row that was only locked since is the same."""


@dataclass(frozen=True)
class Locked:
    """What was locked for a statement (penstock.locked_for_write()).

    ``references`` are foreign keys of tables that it writes, ``referring`` those of others that
    refer to them; ``partners`` are the tables at their other ends that it does not use itself.
    """

    targets: tuple[Target, ...]
    references: tuple[ForeignKey, ...]
    referring: tuple[ForeignKey, ...]
    partners: tuple[Target, ...]


@dataclass(frozen=True)
class Target:
    """A table with rows of its own that a statement writes, or reads to write another.

    ``types`` are the columns' types as SQL, ``generated`` the names of generated columns.
    ``part_of`` are the relations of the statement that it is, or is a leaf of.
    ``obstacle`` is what the lake could not keep of its definition, ``loading_obstacle`` the same
    for statements that see its rows.
    """

    table: LakeTable
    part_of: frozenset[int]
    uniques: tuple[UniqueIndex, ...]
    types: tuple[str, ...]
    generated: frozenset[str]
    obstacle: str | None
    loading_obstacle: str | None

    @property
    def name(self) -> str:
        """The qualified name, for errors."""
        return f"{self.table.schema}.{self.table.name}"

    def new_rows(self, command: int, later: Sequence[int], *, named: bool) -> str:
        """The query of the rows that no command up to this, or among ``later``, has put in.

        The table's columns; -1 stands for no command.  ``named``: and CTID.
        """
        items = [_read_form(column) for column in self.table.columns] + [_CTID] * named
        query = f"SELECT {', '.join(items)} FROM ONLY {self._quoted}"
        if command < 0 and not later:
            return query
        return f"{query} WHERE {_COMMAND} > {command:d} AND {_COMMAND} <> ALL ({_commands(later)})"

    def old_rows(self, command: int, later: Sequence[int]) -> str:
        """The query of the ctids of the other rows."""
        old = f"{_COMMAND} <= {command:d} OR {_COMMAND} = ANY ({_commands(later)})"
        return f"SELECT {_CTID} FROM ONLY {self._quoted} WHERE {old}"

    def command_of(self, ctid: int) -> str:
        """The query of the number of the command that has put a row in."""
        place = f"'({ctid >> 16:d},{ctid & 0xFFFF:d})'::pg_catalog.tid"
        return f"SELECT {_COMMAND} FROM ONLY {self._quoted} WHERE ctid = {place}"

    def distinct(self, columns: Sequence[LakeColumn]) -> str:
        """The query of the different values, none of them null, of some columns."""
        return distinct_values(self._quoted, columns)

    @property
    def loading(self) -> str:
        """The statement that puts rows in, and gives the ctid of each; $1 is ``literals``."""
        stored = [
            (quote_pg(column.name), kind)
            for column, kind in zip(self.table.columns, self.types, strict=True)
            if column.name not in self.generated
        ]
        names = ", ".join(name for name, _ in stored)
        values = ", ".join(f"x{n}::{kind}" for n, (_, kind) in enumerate(stored, 1))
        return (
            f"INSERT INTO {self._quoted} ({names}) OVERRIDING SYSTEM VALUE SELECT {values}"
            f" FROM {given_rows(len(stored), place=True)} ORDER BY place RETURNING {_CTID}"
        )

    def literals(self, rows: pa.Table) -> str:
        """What ``loading`` takes."""
        stored = [c for c in self.table.columns if c.name not in self.generated]
        return lake_rows_literal(stored, rows.select([c.name for c in stored]).columns)

    def columns(self, names: Sequence[str]) -> list[LakeColumn]:
        """Some of its columns."""
        known = {column.name: column for column in self.table.columns}
        return [known[name] for name in names]

    def type_of(self, column: str) -> str:
        """The type of a column as SQL."""
        names = [each.name for each in self.table.columns]
        return self.types[names.index(column)]

    @property
    def _quoted(self) -> str:
        return quote_pg_qualified(self.table.schema, self.table.name)


def distinct_values(quoted: str, columns: Sequence[LakeColumn]) -> str:
    """The query of the different values, none of them null, of some columns of a relation."""
    items = ", ".join(_read_form(column) for column in columns)
    known = " AND ".join(f"{quote_pg(column.name)} IS NOT NULL" for column in columns)
    return f"SELECT DISTINCT {items} FROM ONLY {quoted} WHERE {known}"


def _commands(numbers: Sequence[int]) -> str:
    return "'{" + ",".join(f"{each:d}" for each in numbers) + "}'::pg_catalog.int8[]"


def _read_form(column: LakeColumn) -> str:
    name = quote_pg(column.name)
    return name if is_binary(column.type_oid) else f"({text_form(column.type_oid, name)})"


def read_locked(entry: dict[str, Any], lake_root: Path) -> Locked:
    """What penstock.lock_for_write() or lock_referring() has told of."""
    return Locked(
        tuple(read_targets(entry["tables"] or (), lake_root)),
        tuple(map(_foreign_key, entry["references"] or ())),
        tuple(map(_foreign_key, entry["referring"] or ())),
        tuple(read_targets(entry["partners"] or (), lake_root)),
    )


def _foreign_key(entry: dict[str, Any]) -> ForeignKey:
    others = ("oid", "name", "full", "on_update", "on_delete", "deferrable", "deferred")
    fires = ("checks", "acts", "kept", "owned_default", "partitioned", "root")
    return ForeignKey(
        child=_side(entry, "child", "columns"),
        parent=_side(entry, "parent", "referenced"),
        set_columns=tuple(entry["set_columns"] or ()),
        **{name: entry[name] for name in (*others, *fires)},
    )


def _side(entry: dict[str, Any], side: str, columns: str) -> Relation:
    relid, schema, name = entry[side]
    return Relation(relid, schema, name, tuple(entry[columns]), tuple(entry[f"{side}_leaves"]))


def read_targets(entries: Iterable[dict[str, Any]], lake_root: Path) -> list[Target]:
    """The tables that penstock.lock_for_write() has told of."""
    return [_target(each["table"], each["part_of"], lake_root) for each in entries]


def _target(entry: dict[str, Any], part_of: list[int], lake_root: Path) -> Target:
    index, key = entry["key"] or (None, ())
    table = LakeTable(
        relid=entry["relid"],
        schema=entry["schema"],
        name=entry["name"],
        kind="r",
        identity=entry["identity"],
        columns=tuple(LakeColumn(*column) for column in entry["columns"] or ()),
        key=tuple(key),
        location=str(lake_root / entry["location"]),
        version=entry["version"],
        sole_writer=entry["sole_writer"],
        key_index=index,
    )
    uniques = tuple(
        UniqueIndex(name, tuple(columns or ()), distinct)
        for name, columns, distinct in entry["uniques"] or ()
    )
    return Target(
        table,
        frozenset(part_of),
        uniques,
        tuple(entry["types"] or ()),
        frozenset(entry["generated"] or ()),
        entry["obstacle"],
        entry["loading_obstacle"],
    )
