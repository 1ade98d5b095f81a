# SPDX-License-Identifier: Apache-2.0
"""Changes that the node has read, through a plan: what ``transform.py`` does, in Arrow.

In:   an Arrow table in the change schema with the columns of the relation that was changed, and
      none of them ``unchanged``, as in a feed of the lake; where there are row filters, also as
      which operation each change is sent.
Out:  a table in the change schema of the plan's relation: operations that are not published are
      gone, and so is a DELETE without an old row; ``old`` and ``new`` have the listed columns.

    an UPDATE that is sent as    has
    -------------------------    ---------------------------
    an UPDATE                    what it had
    an INSERT                    no old row
    a DELETE                     no new row
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.change.schema import DELETE, INSERT, TRUNCATE, change_schema
from penstock.publish.plan import Plan
from penstock.publish.transform import LETTERS, CompiledPlan


def listed_changes(changes: pa.Table, plan: Plan, sent: Any = None) -> pa.Table:
    """What is published of changes.

    ``sent`` has the letter of the operation as which each is sent, null where none is; without it,
    nothing is filtered, and each is what it was.
    """
    if sent is None:
        sent = _published(changes, plan)
    if sent.null_count:
        there = sent.is_valid()
        changes, sent = changes.filter(there), sent.filter(there)
    schema = change_schema(plan.relation)
    row = schema.field("new").type
    columns = dict(zip(changes.schema.names, changes.columns, strict=True))
    columns["op"] = sent
    columns["old"] = _listed(columns["old"], row, _among(sent, INSERT))
    columns["new"] = _listed(columns["new"], row, _among(sent, DELETE))
    return pa.table(list(columns.values()), schema=schema)


def filter_input(changes: pa.Table, compiled: CompiledPlan) -> pa.Table:
    """What the filters of a plan read of changes: ``op``, and their columns of both rows."""
    row = changes.schema.field("new").type
    read = {name for of in compiled.filters.values() for each in of for name in each.columns}
    # A row without columns would not be one.
    fields = [field for field in row if field.name in read] or [row.field(0)]
    some = pa.struct(fields)
    old, new = (_listed(changes.column(name), some, None) for name in ("old", "new"))
    return pa.table({"op": changes.column("op"), "old": old, "new": new})


def _published(changes: pa.Table, plan: Plan) -> Any:
    """Each change's own operation, null where it is not published."""
    letters = [LETTERS[action] for action in plan.filters] + [TRUNCATE] * plan.truncate
    op = changes.column("op")
    published = pc.is_in(op, pa.array(letters, pa.string()))
    complete = pc.or_(pc.not_equal(op, DELETE), changes.column("old").is_valid())
    return pc.if_else(pc.and_(published, complete), op, pa.scalar(None, pa.string()))


def _among(sent: Any, letter: str) -> Any:
    """Which changes are sent as an operation; None when none is."""
    found = pc.equal(sent, letter)
    return found if pc.any(found, min_count=0).as_py() else None


def _listed(rows: pa.ChunkedArray, row: pa.StructType, without: Any) -> Any:
    """Rows with the listed columns, null where they are ``without``."""
    joined = rows.combine_chunks()
    if without is None and joined.type == row:
        return joined
    missing = joined.is_null()
    if without is not None:
        missing = pc.or_(missing, without.combine_chunks())
    there = dict(zip(joined.type.names, joined.flatten(), strict=True))
    columns = [there[field.name].cast(field.type) for field in row]
    return pa.StructArray.from_arrays(columns, fields=list(row), mask=missing)
