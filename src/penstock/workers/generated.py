# SPDX-License-Identifier: Apache-2.0
"""Generated columns of a lake table, computed by the control database over rows of the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.apply.batch import Generated
from penstock.change.relation import LakeColumn, LakeTable
from penstock.control.connect import ControlConnection
from penstock.sql.nodes import parse_nodes
from penstock.workers.row_values import Expression, RowValues, assigned, read_by

_GENERATED = """
SELECT d.adnum, format_type(a.atttypid, a.atttypmod), pg_get_expr(d.adbin, d.adrelid), d.adbin::text
FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %s::oid AND a.attgenerated <> '' AND NOT a.attisdropped ORDER BY a.attnum"""


@dataclass(frozen=True)
class _Computation:
    values: RowValues
    relid: int
    expressions: Sequence[Expression]
    columns: Sequence[tuple[LakeColumn, str]]
    role: str

    def __call__(self, rows: pa.Table) -> pa.Table:
        found = self.values.over(self.expressions, self.relid, self.columns, rows, self.role)
        for each, values in zip(self.expressions, found, strict=True):
            place = rows.column_names.index(each.column.name)
            rows = rows.set_column(place, each.column.name, values)
        return rows


def generated_columns(
    conn: ControlConnection, values: RowValues, table: LakeTable, role: str
) -> Generated | None:
    """How a table's generated columns are computed by ``role``; None when it has none."""
    if not any(column.generated for column in table.columns):
        return None
    by_number = {column.attnum: column for column in table.columns}
    rows = conn.execute(_GENERATED.encode(), [table.relid]).fetchall()
    expressions = [
        Expression(by_number[number], assigned(text, by_number[number], kind))
        for number, kind, text, _ in rows
    ]
    columns = read_by(conn, table, [parse_nodes(tree) for *_, tree in rows])
    names = frozenset(column.name for column, _ in columns)
    return Generated(names, _Computation(values, table.relid, expressions, columns, role))
