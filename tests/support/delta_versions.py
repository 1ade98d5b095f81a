# SPDX-License-Identifier: Apache-2.0
"""Versions of a Delta table, written as the lake's writers do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.change import types
from penstock.change.relation import LakeColumn, LakeTable, ReplicaIdentity
from penstock.change.row_before import ROW_BEFORE_FIELDS
from penstock.lake import tables
from penstock.lake.files import write_file
from penstock.lake.find import Hits, find_rows
from penstock.lake.log import head_version, physical_names

Row = dict[str, Any]

COLUMNS = (
    LakeColumn(1, "id", types.INT4, -1, True),
    LakeColumn(2, "a b", types.TEXT, -1, False),
    LakeColumn(3, "n", types.NUMERIC, (9 << 16 | 2) + 4, False),
)


def made(
    spark: SparkSession,
    folder: Path,
    identity: ReplicaIdentity = "d",
    key: tuple[str, ...] = ("id",),
    columns: Sequence[LakeColumn] = COLUMNS,
) -> LakeTable:
    """An empty Delta table (version 0) in folder ``t``; a column's name needs column mapping."""
    table = LakeTable(
        1, "public", "t", "r", identity, tuple(columns), key, str(folder / "t"), None, None
    )
    tables.create(lambda: spark, table, "made")
    return dataclasses.replace(table, version=0)


class Writer:
    """Writes versions as the lake's writers do."""

    def __init__(self, table: LakeTable) -> None:
        self.table = table

    def at_head(self) -> LakeTable:
        return dataclasses.replace(self.table, version=head_version(self.table.location))

    def change(
        self, gone: list[Row], come: list[Row], of: Sequence[int | None] | None = None
    ) -> int:
        """One version without rows that equal ``gone`` and with new rows; its number.

        ``of`` tells, as SQL's statements do, which of ``gone`` each new row was.
        """
        table = self.at_head()
        hits = find_rows(table, self.arrow(gone)) if gone else None
        out: dict[str, Any] = {}
        for number in range(len(hits.files) if hits else 0):
            assert hits is not None
            out[hits.files[number].add["path"]] = np.sort(hits.row[hits.file == number])
        files = []
        if come:
            rows = self.arrow(come)
            names = physical_names(table.location)
            physical = rows.rename_columns([names[each] for each in rows.column_names])
            if of is not None and hits is not None:
                for field, values in zip(ROW_BEFORE_FIELDS, _before(hits, of), strict=True):
                    physical = physical.append_column(field, values)
            files.append(write_file(physical, table.location))
        return tables.change_rows(table, out, files, "changed")

    def arrow(self, rows: list[Row]) -> pa.Table:
        return pa.Table.from_pylist(rows, schema=tables.arrow_schema(self.table))


def _before(hits: Hits, of: Sequence[int | None]) -> list[pa.Array]:
    """The columns of change/row_before.py; of equal rows that are gone it was the first."""
    first = [None if each is None else int(np.flatnonzero(hits.at == each)[0]) for each in of]
    paths = [None if n is None else hits.files[hits.file[n]].add["path"] for n in first]
    places = [-1 if n is None else int(hits.row[n]) for n in first]
    return [pa.array(paths, pa.string()), pa.array(places, pa.int64())]
