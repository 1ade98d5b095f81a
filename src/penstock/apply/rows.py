# SPDX-License-Identifier: Apache-2.0
"""Published rows as rows of the target: columns by name, values as the target's types hold them.

In:   record batches of the change schema, under one version of the relation's definition.
Out:  columns in the target's order and types; for updates, which of them are absent.

A column of the target that the publisher does not send stays as it is in an update, and gets its
default (null without one) in an insert: the same in all rows, or what was computed for the row
(fill.py).  A generated column is computed when the whole row is known (generated.py); until then it
is null.  A column that an UPDATE did not send because it is
unchanged TOAST is absent, too, unless it belongs to the replica identity: then the old row has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.apply.batch import COMPUTED, TableBatch
from penstock.apply.values import check_convertible, check_not_null, convert
from penstock.change.last_change import LAST_CHANGE
from penstock.change.relation import Column, LakeColumn, LakeTable, Relation
from penstock.change.types import arrow_type
from penstock.errors import RelationMismatchError, WrongStateError


@dataclass(frozen=True)
class RowMapping:
    """How rows of one published relation become rows of the target.

    RelationMismatchError when the target lacks a published column or generates it,
    FeatureNotSupportedError when a column's types cannot be converted; both when it is made.
    """

    relation: Relation
    target: LakeTable
    defaults: Mapping[str, pa.Scalar]

    def __post_init__(self) -> None:
        check_columns(self.relation, self.target)
        for column, sent in self.pairs:
            if sent is not None:
                check_convertible(sent, column, self.name)

    @cached_property
    def pairs(self) -> list[tuple[LakeColumn, Column | None]]:
        """Each column of the target with the published column that it gets values from."""
        sent = {column.name: column for column in self.relation.columns}
        return [(column, sent.get(column.name)) for column in self.target.columns]

    @property
    def name(self) -> str:
        """The target's qualified name, for errors."""
        return f"{self.target.schema}.{self.target.name}"

    def new_rows(self, rows: pa.RecordBatch) -> pa.Table:
        """The new rows, in the target's columns; null where a change has none.

        NotNullViolationError, and what ``convert`` raises.  WrongStateError when an inserted row
        lacks a column.
        """
        inserted = pc.equal(rows.column("op"), "I")
        has_new = pc.is_valid(rows.column("new"))
        columns = []
        for column, sent in self.pairs:
            if sent is None:
                columns.append(self._default(column, rows, inserted))
                continue
            values, absent = self._sent(rows, "new", sent)
            if absent is not None and pc.any(pc.and_(absent, inserted)).as_py():
                raise self._incomplete_insert(column.name)
            values = convert(values, sent, column)
            if column.not_null and values.null_count:
                held = has_new if absent is None else pc.and_not(has_new, absent)
                check_not_null(values, held, column, self.target.name)
            columns.append(values)
        return pa.table(columns, names=[column.name for column in self.target.columns])

    def values(
        self, rows: pa.RecordBatch, side: Literal["old", "new"], names: Sequence[str]
    ) -> list[pa.Array]:
        """These columns of the old or new rows, converted; null where absent.

        One that is not published has its default in new rows, and is null in old ones.
        """
        pairs = {column.name: (column, sent) for column, sent in self.pairs}
        arrays = []
        for name in names:
            column, sent = pairs[name]
            if sent is not None:
                arrays.append(convert(self._sent(rows, side, sent)[0], sent, column))
            elif side == "new":
                arrays.append(self._default(column, rows, pc.equal(rows.column("op"), "I")))
            else:
                arrays.append(pa.nulls(rows.num_rows, arrow_type(column.type_oid, column.typmod)))
        return arrays

    def absent(self, rows: pa.RecordBatch, name: str) -> NDArray[np.uint8]:
        """1 for each change whose new row does not say what this column is."""
        sent = {column.name: column for column in self.relation.columns}.get(name)
        if sent is None:
            mask = pc.equal(rows.column("op"), "U")
        else:
            mask = None if self.in_old_row(sent) else unchanged(rows, name)
        if mask is None:
            return np.zeros(rows.num_rows, np.uint8)
        return np.asarray(mask.to_numpy(zero_copy_only=False), np.uint8)

    def given(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        """What these new rows say of a column; inserts give one that is not published its default.

        ``absent`` says which changes may be asked.
        """
        column, sent = next(pair for pair in self.pairs if pair[0].name == name)
        if sent is None:
            return self._default(column, rows, pa.repeat(True, rows.num_rows))
        return self.values(rows, "new", [name])[0]

    def in_old_row(self, sent: Column) -> bool:
        """Whether the old row has this column's value when the new row leaves it out."""
        return sent.key or self.relation.identity == "f"

    def _sent(
        self, rows: pa.RecordBatch, side: str, sent: Column
    ) -> tuple[pa.Array, pa.Array | None]:
        """A column's values as they were sent, and which of them are absent, if any are."""
        values = struct_field(rows.column(side), sent.name)
        absent = unchanged(rows, sent.name) if side == "new" else None
        if absent is None or not self.in_old_row(sent):
            return values, absent
        return pc.if_else(absent, struct_field(rows.column("old"), sent.name), values), None

    def _incomplete_insert(self, name: str) -> WrongStateError:
        return WrongStateError(
            f'the publisher did not send column "{name}" of a row inserted into "{self.name}"',
            detail="An UPDATE moved the row into the publication's row filter, and PostgreSQL"
            " does not log an unchanged out-of-line value.",
            hint="Set REPLICA IDENTITY FULL for the table on the publisher, and drop the table"
            " here: ALTER SUBSCRIPTION ... REFRESH PUBLICATION copies it again.",
        )

    def _default(self, column: LakeColumn, rows: pa.RecordBatch, inserted: pa.Array) -> pa.Array:
        wanted = arrow_type(column.type_oid, column.typmod)
        values = _computed(rows, column.name)
        if values is None:
            value = pc.cast(self.defaults.get(column.name, pa.scalar(None, wanted)), wanted)
            values = pa.repeat(value, len(inserted))
        if column.not_null and not column.generated:
            check_not_null(values, inserted, column, self.target.name)
        return values


def check_columns(relation: Relation, target: LakeTable) -> None:
    """RelationMismatchError when the target cannot have a published column.

    PostgreSQL's rule, in the words of 18 (logicalrep_report_missing_or_gen_attrs); until 17 a
    generated column was said to be missing.
    """
    known = {column.name: column for column in target.columns}
    missing = [c.name for c in relation.columns if c.name not in known]
    generated = [c.name for c in relation.columns if c.name in known and known[c.name].generated]
    names = missing or generated
    if names:
        wrong = "is missing replicated" if missing else "has incompatible generated"
        raise RelationMismatchError(
            f'logical replication target relation "{target.schema}.{target.name}" {wrong}'
            f" column{'s' if len(names) > 1 else ''}: " + ", ".join(f'"{name}"' for name in names),
            hint="Use ALTER TABLE to add or rename the column here."
            if missing
            else "Use ALTER TABLE ... DROP EXPRESSION here, or do not publish the column.",
        )


def changed_rows(batch: TableBatch, mapping: RowMapping, rows: pa.RecordBatch) -> pa.Table:
    """The new rows of changes, with who changed them and when (change/last_change.py)."""
    table = mapping.new_rows(rows)
    columns = [*table.columns, *batch.last_change(rows.column("commit_lsn"))]
    return pa.table(columns, names=[*table.column_names, *LAST_CHANGE])


def struct_field(struct: pa.StructArray, name: str) -> pa.Array:
    """A field of a struct, null where the struct is."""
    return pc.struct_field(struct, [struct.type.get_field_index(name)])


def _computed(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    """What was computed for a column of these changes' rows, if it was."""
    if COMPUTED not in rows.schema.names:
        return None
    values = rows.column(COMPUTED)
    return struct_field(values, name) if values.type.get_field_index(name) >= 0 else None


def unchanged(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    """Which changes name this column as unchanged; None when none does."""
    lists = rows.column("unchanged")
    if lists.null_count == len(lists):
        return None
    hits = pc.filter(pc.list_parent_indices(lists), pc.equal(lists.flatten(), name))
    if not len(hits):
        return None
    mask = np.zeros(rows.num_rows, np.bool_)
    mask[hits.to_numpy()] = True
    return pa.array(mask)


def unchanged_names(rows: pa.RecordBatch) -> set[str]:
    """The columns that some change names as unchanged."""
    lists = rows.column("unchanged")
    return set() if lists.null_count == len(lists) else set(pc.unique(lists.flatten()).to_pylist())
