# SPDX-License-Identifier: Apache-2.0
"""Which change of a batch an error is about.

In:   a batch that could not be applied to a table, and the error.
Out:  the change that PostgreSQL, which applies one after the other, would have stopped at.

    the error                           the change
    ----------------------------------  ----------------------------------------------------------
    a key exists already, no partition  the error knows its position
    takes a row, a conflict cannot be
    decided, or a default be computed
    a value or a column does not fit,   the first row that cannot be converted alone, found by
    a generated column has no value     halving the record batch that it is in
    anything else                       the first change of the relation
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.apply.batch import Generated, TableBatch
from penstock.apply.changes import check_identity
from penstock.apply.generated import check_generated
from penstock.apply.met import KeyExistsError
from penstock.apply.rows import RowMapping
from penstock.change.relation import LakeTable, Relation
from penstock.errors import (
    ComputedValueError,
    FeatureNotSupportedError,
    InsufficientPrivilegeError,
    InvalidTextError,
    NoPartitionError,
    NotNullViolationError,
    PenstockError,
    RelationMismatchError,
    UniqueViolationError,
    UnresolvedConflictError,
    ValueNotHeldError,
    WrongStateError,
)

CHANGE_ERRORS = (
    ComputedValueError,
    FeatureNotSupportedError,
    InsufficientPrivilegeError,
    InvalidTextError,
    NoPartitionError,
    NotNullViolationError,
    RelationMismatchError,
    UniqueViolationError,
    ValueNotHeldError,
    WrongStateError,
)
"""Errors that a change is the reason of: without it the batch could be applied."""


@dataclass(frozen=True)
class FailingChange:
    """A change: ``op`` as in the change schema, the published relation, its transaction."""

    op: str
    relation: Relation
    commit_lsn: int


class FailedChangeError(PenstockError):
    """A change cannot be applied; message, SQLSTATE and the rest are those of the reason.

    ``where`` is at most the place inside of the relation; who knows the origin and the transaction
    makes it PostgreSQL's context.  ``conflict`` is the conflict that it is, with the table, if it
    is one.
    """

    def __init__(self, reason: PenstockError, change: FailingChange) -> None:
        super().__init__(
            reason.message,
            detail=reason.detail,
            hint=reason.hint,
            where=reason.where,
            sqlstate=reason.sqlstate,
        )
        self.change = change
        self.conflict = (
            (reason.table, reason.conflict) if isinstance(reason, KeyExistsError) else None
        )


def first_change(batch: TableBatch) -> FailingChange | None:
    """The first change that lies in the batch's range of commits."""
    for relation, rows in batch.read([]):
        return _change(relation, rows, 0)
    return None


def first_of(batch: TableBatch, ops: Iterable[str]) -> FailingChange | None:
    """The first change in the batch's range with one of these ops."""
    wanted = pa.array(list(ops), pa.string())
    for relation, rows in batch.read([]):
        place = pc.index(pc.is_in(rows.column("op"), value_set=wanted), True).as_py()
        if place >= 0:
            return _change(relation, rows, place)
    return None


def first_commit(batch: TableBatch) -> int | None:
    """The first commit in the range that has a change in one of the files, of any relation."""
    commits = (pc.min(rows.column("commit_lsn")).as_py() for _, rows in batch.read([]))
    return min(commits, default=None)


def failing_change(
    error: PenstockError,
    batch: TableBatch,
    target: LakeTable,
    defaults: Mapping[str, pa.Scalar],
) -> FailingChange | None:
    """The change that ``error`` is about; None when the batch has no change at all.

    ``defaults`` are as in RowMapping.
    """
    positioned = (
        UniqueViolationError | NoPartitionError | UnresolvedConflictError | ComputedValueError
    )
    if isinstance(error, positioned) and error.position is not None:
        return _at(batch, error.position)
    for relation, rows in batch.read(["old", "new", "unchanged"]):
        if not _fits(relation, rows, target, defaults, batch.generated):
            good, bad = 0, rows.num_rows  # the first rows that fit, and those that do not
            while bad - good > 1:
                middle = (good + bad) // 2
                part = rows.slice(good, middle - good)
                if _fits(relation, part, target, defaults, batch.generated):
                    good = middle
                else:
                    bad = middle
            return _change(relation, rows, good)
    return first_change(batch)


@contextmanager
def change_named(
    batch: TableBatch, table: LakeTable, defaults: Mapping[str, pa.Scalar]
) -> Iterator[None]:
    """An error that a change of the batch has raised is a FailedChangeError, which says which."""
    try:
        yield
    except CHANGE_ERRORS as error:
        change = failing_change(error, batch, table, defaults)
        if change is None:
            raise
        raise FailedChangeError(error, change) from error


def _at(batch: TableBatch, position: int) -> FailingChange | None:
    for relation, rows in batch.read([]):
        if position < rows.num_rows:
            return _change(relation, rows, position)
        position -= rows.num_rows
    return None


def _fits(
    relation: Relation,
    rows: pa.RecordBatch,
    target: LakeTable,
    defaults: Mapping[str, pa.Scalar],
    generated: Generated | None,
) -> bool:
    """Whether these rows can be converted to the target's."""
    try:
        mapping = RowMapping(relation, target, defaults)
        if pc.any(pc.is_in(rows.column("op"), value_set=pa.array(["U", "D"]))).as_py():
            check_identity([relation], target)
        mapping.new_rows(rows)
        sent = [column.name for column, sent in mapping.pairs if sent and mapping.in_old_row(sent)]
        mapping.values(rows, "old", sent)
        if generated is not None:
            check_generated(rows, mapping, generated)
    except CHANGE_ERRORS:
        return False
    return True


def _change(relation: Relation, rows: pa.RecordBatch, place: int) -> FailingChange:
    op, commit_lsn = (rows.column(name)[place].as_py() for name in ("op", "commit_lsn"))
    return FailingChange(op, relation, commit_lsn)
