# SPDX-License-Identifier: Apache-2.0
"""Row constructors: their comparison, and IS NULL.

``(a, b) = (1, 2)`` is no comparison of rows in PostgreSQL's tree but an AND; what is left are
<, <=, >, >= (RowCompareExpr) and tests for NULL (NullTest of a RowExpr).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.change import types
from penstock.sql.nodes import Node
from penstock.sql.translate.facts import Facts
from penstock.sql.translate.operators import ORDERINGS
from penstock.sql.translate.values import ALLOWED_COLLATIONS, Expr, bare, refusal

_OPERATORS = {1: "<", 2: "<=", 4: ">=", 5: ">"}
"""RowCompareType, and CompareType since PostgreSQL 18."""

Each = Callable[[Sequence[Node]], list[Expr]]


def compare_rows(node: Node, each: Each, check: Callable[[Sequence[Expr]], None], facts: Facts,
) -> Expr:  # fmt: skip
    """A RowCompareExpr: the first pair that differs decides, a NULL before it makes NULL.

    ``each`` translates nodes, ``check`` refuses a pair (execExprInterp.c, EEOP_ROWCOMPARE_STEP).
    """
    kind = node.get("cmptype") or node.get("rctype")
    operator = _OPERATORS[kind]
    if not set(node["inputcollids"]) <= ALLOWED_COLLATIONS:
        raise refusal("a collation other than C", 'Use COLLATE "C".')
    whens = []
    pairs = zip(each(node["largs"]), each(node["rargs"]), node["opnos"], strict=True)
    for left, right, oid in pairs:
        if facts.operators[oid].function not in ORDERINGS:
            raise refusal(f"a comparison of rows by {facts.operators[oid].function}()")
        check([left, right])
        a, b = bare(left), bare(right)
        whens.append(f"WHEN {a} IS NULL OR {b} IS NULL THEN NULL WHEN {a} <> {b}")
        whens.append(f"THEN {a} {operator[0]} {b}")
    equal = "TRUE" if operator.endswith("=") else "FALSE"
    return Expr(f"CASE {' '.join(whens)} ELSE {equal} END", types.BOOL)


def test_row(node: Node, each: Each) -> Expr:
    """IS NULL of a row: all its fields are; IS NOT NULL: none is."""
    row = node["arg"]
    if row.tag != "ROWEXPR":
        raise refusal("IS NULL of a composite value")
    word = "IS NULL" if node["nulltesttype"] == 0 else "IS NOT NULL"
    tests = [f"({field.sql} {word})" for field in each(row.items("args"))]
    return Expr(f"({' AND '.join(tests) or 'TRUE'})", types.BOOL)
