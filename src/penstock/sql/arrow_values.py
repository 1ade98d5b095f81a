# SPDX-License-Identifier: Apache-2.0
"""Values of expressions over the rows of a batch, by Arrow, computed no further than needed.

A value is a column, a constant, or a function of values.  One that can fail (division by zero,
overflow) is computed only for rows for which PostgreSQL computes it: what AND, OR, CASE and
COALESCE do not come to is left out of the batch first (executor, ExecEvalBoolAndStep and others).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.change import types

NO_CONSTANT: Any = object()


class NotPlainError(Exception):
    """Something in the condition is not in the list."""


@dataclass(frozen=True)
class Value:
    """``run`` gives an array with an entry for each row, or a scalar; ``oid`` is its type.

    ``fails`` says whether it may raise PostgreSQL's error for some row.  A constant has its scalar.
    """

    oid: int
    kind: pa.DataType
    run: Callable[[pa.RecordBatch], Any]
    fails: bool = False
    constant: Any = NO_CONSTANT

    @property
    def is_constant(self) -> bool:
        """Whether it is the same for all rows."""
        return self.constant is not NO_CONSTANT

    @property
    def is_null(self) -> bool:
        """Whether it is the constant NULL."""
        return self.is_constant and not self.constant.is_valid


def constant(oid: int, scalar: pa.Scalar) -> Value:
    """The value of a constant."""
    return Value(oid, scalar.type, lambda _: scalar, constant=scalar)


def full(found: Any, rows: int) -> Any:
    """What ``run`` gave, as an array."""
    return pa.repeat(found, rows) if isinstance(found, pa.Scalar) else found


def run_where(value: Value, batch: pa.RecordBatch, needed: Any) -> Any:
    """A value for the rows that need it, and anything for the others.

    ``needed`` is a Boolean array without nulls.
    """
    if not value.fails or needed.true_count == batch.num_rows:
        return value.run(batch)
    if not needed.true_count:
        return pa.nulls(batch.num_rows, value.kind)
    found = full(value.run(batch.filter(needed)), needed.true_count)
    return pc.replace_with_mask(pa.nulls(batch.num_rows, found.type), needed, found)


def together(parts: Sequence[Value], *, both: bool) -> Value:
    """AND (``both``) or OR, from left to right; a row that is decided needs no more of them.

    A constant that decides does so before the first row (clauses.c, simplify_and_arguments).
    """
    join, end = (pc.and_kleene, False) if both else (pc.or_kleene, True)
    for part in parts:
        if part.is_constant and part.constant.as_py() is end:
            return part
    if len(parts) == 1:
        return parts[0]

    def run(batch: pa.RecordBatch) -> Any:
        found = full(parts[0].run(batch), batch.num_rows)
        for part in parts[1:]:
            if part.fails:
                needed = pc.fill_null(pc.not_equal(found, pa.scalar(end)), True)
                found = join(found, run_where(part, batch, needed))
            else:
                found = join(found, part.run(batch))
        return found

    return Value(types.BOOL, pa.bool_(), run, any(part.fails for part in parts))


def choice(conditions: Sequence[Value], results: Sequence[Value]) -> Value:
    """CASE: ``results`` has one more than ``conditions``, for ELSE; all are of one kind.

    Constant conditions decide before the first row (clauses.c, eval_const_expressions).
    """
    if len({each.kind for each in results}) > 1:
        raise NotPlainError
    cases: list[tuple[Value, Value]] = []
    for case in zip(conditions, results, strict=False):
        if not case[0].is_constant:
            cases.append(case)
        elif case[0].constant.as_py():
            results = [case[1]]
            break
    if not cases:
        return results[-1]
    conditions, results = [each[0] for each in cases], [*(each[1] for each in cases), results[-1]]

    def run(batch: pa.RecordBatch) -> Any:
        rows = batch.num_rows
        left = full(pa.scalar(True), rows)
        found: Any = pa.nulls(rows, results[0].kind)
        for condition, result in zip(conditions, results, strict=False):
            met = pc.fill_null(full(run_where(condition, batch, left), rows), False)
            met = pc.and_(left, met)
            found = pc.if_else(met, run_where(result, batch, met), found)
            left = pc.and_not(left, met)
        return pc.if_else(left, run_where(results[-1], batch, left), found)

    fails = any(each.fails for each in (*conditions, *results))
    return Value(results[0].oid, results[0].kind, run, fails)


def first_of(args: Sequence[Value]) -> Value:
    """COALESCE of values of one kind; behind a constant that is not NULL nothing counts."""
    if len({each.kind for each in args}) > 1:
        raise NotPlainError
    args = [each for each in args if not each.is_null] or args[:1]
    given = next((at for at, each in enumerate(args) if each.is_constant), len(args))
    args = args[: given + 1]
    if len(args) == 1:
        return args[0]

    def run(batch: pa.RecordBatch) -> Any:
        found = full(args[0].run(batch), batch.num_rows)
        for arg in args[1:]:
            found = pc.coalesce(found, run_where(arg, batch, found.is_null()))
        return found

    return Value(args[0].oid, args[0].kind, run, any(each.fails for each in args))
