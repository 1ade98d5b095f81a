# SPDX-License-Identifier: Apache-2.0
"""Generated columns of rows that a table gets (ExecComputeStoredGenerated).

They are computed from the whole row: of an update that leaves columns out, only when those have
been read from the table.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.apply.batch import Generated
from penstock.apply.rows import RowMapping
from penstock.apply.values import check_not_null
from penstock.change.relation import LakeTable


def with_generated(rows: pa.Table, target: LakeTable, generated: Generated | None) -> pa.Table:
    """Rows of the target with its generated columns.

    ComputedValueError; NotNullViolationError.
    """
    if generated is None or not rows.num_rows:
        return rows
    rows = generated.compute(rows)
    for column in target.columns:
        if column.generated and column.not_null:
            check_not_null(rows.column(column.name), None, column, target.name)
    return rows


def check_generated(rows: pa.RecordBatch, mapping: RowMapping, generated: Generated) -> None:
    """Raise what ``with_generated`` will raise for the new rows of these changes.

    Updates that do not say all that the columns are computed from are not looked at.
    """
    said = pc.equal(rows.column("op"), "I")
    if generated.reads <= {column.name for column in mapping.relation.columns}:
        whole = pc.and_(pc.equal(rows.column("op"), "U"), pc.is_null(rows.column("unchanged")))
        said = pc.or_(said, whole)
    with_generated(mapping.new_rows(rows).filter(said), mapping.target, generated)
