# SPDX-License-Identifier: Apache-2.0
"""Changes through a plan that has no row filter: what ``transform.py`` does, without Spark.

In:   an Arrow table in the change schema with the columns of the relation that was changed.
Out:  one in the change schema of the plan's relation: operations that are not published are gone,
      and so is a DELETE without an old row; ``old`` and ``new`` have the listed columns.

Without a filter no UPDATE becomes another operation.  ``unchanged`` is left as it is: whoever
encodes a row looks for the names of its columns only.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.change.schema import DELETE, TRUNCATE, change_schema
from penstock.publish.plan import Plan
from penstock.publish.transform import LETTERS


def listed_changes(changes: pa.Table, plan: Plan) -> pa.Table:
    """What is published of changes."""
    ops = [LETTERS[action] for action in plan.filters] + [TRUNCATE] * plan.truncate
    op = changes.column("op")
    sent = pc.is_in(op, pa.array(ops, pa.string()))
    sent = pc.and_(sent, pc.or_(pc.not_equal(op, DELETE), pc.is_valid(changes.column("old"))))
    if not pc.all(sent, min_count=0).as_py():
        changes = changes.filter(sent)
    schema = change_schema(plan.relation)
    names = schema.field("new").type.names
    if changes.schema.field("new").type.names == names:
        return changes.cast(schema)
    columns = [
        _listed(each, schema.field("new").type) if field.name in ("old", "new") else each
        for field, each in zip(schema, changes.columns, strict=True)
    ]
    return pa.table(columns, schema=schema)


def _listed(rows: pa.ChunkedArray, row: pa.StructType) -> pa.ChunkedArray:
    """Rows with the listed columns."""
    chunks = []
    for chunk in rows.chunks:
        there = dict(zip(chunk.type.names, chunk.flatten(), strict=True))
        columns = [there[field.name].cast(field.type) for field in row]
        chunks.append(pa.StructArray.from_arrays(columns, fields=list(row), mask=chunk.is_null()))
    return pa.chunked_array(chunks, row)
