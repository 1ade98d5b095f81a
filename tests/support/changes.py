# SPDX-License-Identifier: Apache-2.0
"""Changes for tests: a small published table, its changes as staged files, a model of apply.

``Model`` is PostgreSQL's apply on a plain list of rows, one change at a time: what the columnar
code must agree with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.change import types
from penstock.change.relation import Column, LakeColumn, LakeTable, Relation, ReplicaIdentity
from penstock.change.schema import change_schema
from penstock.staging.segment import ChangeFile

Row = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """One change; ``unchanged`` names columns that ``new`` leaves out."""

    op: str
    old: Row | None = None
    new: Row | None = None
    unchanged: tuple[str, ...] = ()


def insert(**new: Any) -> Change:
    """An INSERT of a row."""
    return Change("I", None, new)


def update(new: Row, old: Row | None = None, unchanged: tuple[str, ...] = ()) -> Change:
    """An UPDATE; ``old`` is given when the key changes, or with replica identity full."""
    return Change("U", old, new, unchanged)


def delete(**old: Any) -> Change:
    """A DELETE of the row with this identity."""
    return Change("D", old)


TRUNCATE = Change("T")


@dataclass(frozen=True)
class Shape:
    """A table's columns (name -> type OID) and key, the same on both sides."""

    columns: dict[str, int] = field(
        default_factory=lambda: {"id": types.INT8, "v": types.INT4, "big": types.TEXT}
    )
    key: tuple[str, ...] = ("id",)
    identity: ReplicaIdentity = "d"

    def relation(self) -> Relation:
        """The table as the publisher describes it."""
        return Relation(
            oid=16400,
            schema="public",
            name="t",
            identity=self.identity,
            columns=tuple(
                Column(name, oid, -1, name in self.key or self.identity == "f")
                for name, oid in self.columns.items()
            ),
        )

    def target(self, location: Path, version: int | None = None) -> LakeTable:
        """The table as the lake has it."""
        return LakeTable(
            relid=16500,
            schema="public",
            name="t",
            kind="r",
            identity=self.identity,
            columns=tuple(
                LakeColumn(number, name, oid, -1, name in self.key)
                for number, (name, oid) in enumerate(self.columns.items(), 1)
            ),
            key=self.key,
            location=str(location),
            version=version,
            sole_writer=None,
            key_index="t_pkey" if self.key else None,
        )


def staged(
    folder: Path, relation: Relation, changes: Sequence[Change], commit_lsn: int = 1000
) -> ChangeFile:
    """Changes as a staged file; each change is a transaction of its own from ``commit_lsn`` on."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{len(list(folder.iterdir()))}.parquet"
    schema = change_schema(relation)
    rows = [
        {
            "op": change.op,
            "commit_lsn": commit_lsn + number,
            "seq": 0,
            "old": change.old,
            "new": change.new,
            "unchanged": list(change.unchanged) or None,
        }
        for number, change in enumerate(changes)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    counts = {op: sum(change.op == op for change in changes) for op in "IUDT"}
    return ChangeFile(
        relation,
        str(path),
        path.stat().st_size,
        len(changes),
        counts["I"],
        counts["U"],
        counts["D"],
        counts["T"],
    )


class KeyViolation(Exception):
    """The model met a key that exists already; ``place`` is the change's among those applied."""

    place = -1


@dataclass
class Model:
    """Rows of a table to which changes are applied one by one, as PostgreSQL would.

    ``missing`` counts the updates and the deletes whose row was not there.
    """

    shape: Shape
    rows: list[Row] = field(default_factory=list)
    missing: dict[str, int] = field(default_factory=lambda: {"U": 0, "D": 0})

    def apply(self, changes: Sequence[Change]) -> None:
        """Apply changes in order; KeyViolation when a key is put twice."""
        for place, change in enumerate(changes):
            try:
                self._apply(change)
            except KeyViolation as violation:
                violation.place = place
                raise

    def _apply(self, change: Change) -> None:
        if change.op == "T":
            self.rows = []
            return
        if change.op == "I":
            assert change.new is not None
            self._put(change.new)
            return
        found = self._find(change.old or change.new or {})
        if found is None:
            self.missing[change.op] += 1
            return
        row = self.rows.pop(found)
        if change.op == "U":
            assert change.new is not None
            kept = {name: row[name] for name in change.unchanged}
            self._put(row | change.new | kept, found)

    def _find(self, wanted: Row) -> int | None:
        names = self.shape.key or tuple(self.shape.columns)
        for number, row in enumerate(self.rows):
            if all(row[name] == wanted[name] for name in names):
                return number
        return None

    def _put(self, new: Row, place: int | None = None) -> None:
        row = dict.fromkeys(self.shape.columns) | new
        if self.shape.key and self._find(row) is not None:
            raise KeyViolation(row)
        self.rows.insert(len(self.rows) if place is None else place, row)


def at(table: LakeTable, version: int | None, sole_writer: str | None = None) -> LakeTable:
    """The table with this version committed."""
    return replace(table, version=version, sole_writer=sole_writer)
