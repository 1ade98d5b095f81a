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
from penstock.lake.writes import UniqueIndex
from penstock.names import quote_pg, quote_pg_qualified
from penstock.pgoutput.data_rows import is_binary
from penstock.wire.array_literal import array_literal
from penstock.wire.rows_text import text_column

CTID = LakeColumn(0, "ctid", types.INT8, -1, True)
"""A row's place in its relation: block * 65536 + number."""

_CTID = (
    "((ctid::pg_catalog.text::pg_catalog.point)[0]::pg_catalog.int8 << 16)"
    " | (ctid::pg_catalog.text::pg_catalog.point)[1]::pg_catalog.int8"
)


_COMMAND = "cmin::pg_catalog.text::pg_catalog.int8"
"""Counts the commands of a transaction; that of a row that was only locked since is the same."""


@dataclass(frozen=True)
class Target:
    """A table with rows of its own that a statement writes, or reads to write another.

    ``types`` are the columns' types as SQL, ``generated`` the names of generated columns.
    ``part_of`` are the relations of the statement that it is, or is a leaf of.
    ``obstacle`` is what the lake could not keep of its definition, ``changes_obstacle`` the same
    for statements that do more than insert rows, ``loading_obstacle`` for those that see its rows.
    """

    table: LakeTable
    part_of: frozenset[int]
    uniques: tuple[UniqueIndex, ...]
    types: tuple[str, ...]
    generated: frozenset[str]
    obstacle: str | None
    changes_obstacle: str | None
    loading_obstacle: str | None

    @property
    def name(self) -> str:
        """The qualified name, for errors."""
        return f"{self.table.schema}.{self.table.name}"

    def new_rows(self, command: int, *, named: bool) -> str:
        """The query of the rows that a later command than this has put in: the table's columns.

        -1 stands for none.  ``named``: and CTID.
        """
        items = [_read_form(column) for column in self.table.columns] + [_CTID] * named
        query = f"SELECT {', '.join(items)} FROM ONLY {self._quoted}"
        return f"{query} WHERE {_COMMAND} > {command:d}" if command >= 0 else query

    def old_rows(self, command: int) -> str:
        """The query of the ctids of the other rows."""
        return f"SELECT {_CTID} FROM ONLY {self._quoted} WHERE {_COMMAND} <= {command:d}"

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
        arrays = ", ".join(
            f"pg_catalog.unnest(($1[{n}])::pg_catalog.text[])" for n in range(1, len(stored) + 1)
        )
        values = ", ".join(f"x{n}::{kind}" for n, (_, kind) in enumerate(stored, 1))
        places = ", ".join(f"x{n}" for n in range(1, len(stored) + 1))
        return (
            f"INSERT INTO {self._quoted} ({names}) OVERRIDING SYSTEM VALUE SELECT {values}"
            f" FROM ROWS FROM ({arrays}) WITH ORDINALITY AS u ({places}, place)"
            f" ORDER BY place RETURNING {_CTID}"
        )

    def literals(self, rows: pa.Table) -> str:
        """What ``loading`` takes: an array literal of the columns' array literals."""
        names = [c.name for c in self.table.columns if c.name not in self.generated]
        columns = pa.array([array_literal(text_column(_whole(rows, name))) for name in names])
        return array_literal(columns)

    @property
    def _quoted(self) -> str:
        return quote_pg_qualified(self.table.schema, self.table.name)


def distinct_values(quoted: str, columns: Sequence[LakeColumn]) -> str:
    """The query of the different values, none of them null, of some columns of a relation."""
    items = ", ".join(_read_form(column) for column in columns)
    known = " AND ".join(f"{quote_pg(column.name)} IS NOT NULL" for column in columns)
    return f"SELECT DISTINCT {items} FROM ONLY {quoted} WHERE {known}"


def _read_form(column: LakeColumn) -> str:
    name = quote_pg(column.name)
    return name if is_binary(column.type_oid) else f"({text_form(column.type_oid, name)})"


def _whole(rows: pa.Table, name: str) -> pa.Array:
    return rows.column(name).combine_chunks()


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
        entry["changes_obstacle"],
        entry["loading_obstacle"],
    )
