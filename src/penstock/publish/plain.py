# SPDX-License-Identifier: Apache-2.0
"""Plain row filters on changes that the node has read: Arrow decides, Spark need not run.

In:   an Arrow table of ``op``, ``old`` and ``new``, whose rows have the filters' columns, none of
      them ``unchanged`` (``listed.filter_input``), and a plan whose filters are all plain.
Out:  the letter of the operation as which each change is sent, null where none is: what
      ``transform.sent_as`` says in SQL.

PenstockError with PostgreSQL's SQLSTATE for the first change that a filter fails on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.change.schema import DELETE, INSERT, TRUNCATE, UPDATE
from penstock.errors import PenstockError
from penstock.publish.plan import RowAction
from penstock.publish.transform import CompiledPlan
from penstock.sql.arrow_filter import Decide


def sent_plainly(changes: pa.Table, compiled: CompiledPlan) -> pa.ChunkedArray:
    """As which operation each change is sent."""
    rows = changes.num_rows
    try:
        (batch,) = changes.combine_chunks().to_batches() or [None]
        sent = pa.array([], pa.string()) if batch is None else _sent(batch, compiled)
        return pa.chunked_array([sent])
    except PenstockError:
        if rows > 1:  # the first change with an error is the one that PostgreSQL ends at
            sent_plainly(changes.slice(0, rows // 2), compiled)
            sent_plainly(changes.slice(rows // 2), compiled)
        raise


def _sent(changes: pa.RecordBatch, compiled: CompiledPlan) -> pa.StringArray:
    op = changes.column("op")
    old_is_there = changes.column("old").is_valid()
    sent = pa.nulls(changes.num_rows, pa.string())
    for action in compiled.filters:
        match action:
            case "insert":
                passed = _passed(changes, "new", pc.equal(op, INSERT), action, compiled.plain)
                sent = pc.if_else(passed, INSERT, sent)
            case "delete":
                told = pc.and_(pc.equal(op, DELETE), old_is_there)
                passed = _passed(changes, "old", told, action, compiled.plain)
                sent = pc.if_else(passed, DELETE, sent)
            case "update":
                told = pc.equal(op, UPDATE)
                both = pc.and_(told, old_is_there)
                was = _passed(changes, "old", both, action, compiled.plain)
                becomes = _passed(changes, "new", told, action, compiled.plain)
                sent = pc.if_else(pc.and_not(was, becomes), DELETE, sent)
                sent = pc.if_else(pc.and_not(pc.and_(both, becomes), was), INSERT, sent)
                stays = pc.and_(becomes, pc.or_(was, pc.invert(old_is_there)))
                sent = pc.if_else(stays, UPDATE, sent)
    if compiled.plan.truncate:
        sent = pc.if_else(pc.equal(op, TRUNCATE), TRUNCATE, sent)
    return sent


def _passed(
    changes: pa.RecordBatch,
    image: str,
    told: pa.BooleanArray,
    action: RowAction,
    plain: Mapping[RowAction, Decide],
) -> Any:
    """Which of the changes that are ``told`` have a row that passes; only those are decided."""
    decide = plain.get(action)
    if decide is None or not told.true_count:
        return told
    rows = changes.column(image)
    whole = told.true_count == changes.num_rows
    chosen = rows if whole else rows.filter(told)
    batch = pa.RecordBatch.from_arrays(chosen.flatten(), chosen.type.names)
    decided = pc.fill_null(decide(batch), False)
    return decided if whole else pc.replace_with_mask(told, told, decided)
