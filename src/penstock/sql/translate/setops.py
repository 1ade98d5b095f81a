# SPDX-License-Identifier: Apache-2.0
"""UNION, INTERSECT and EXCEPT, with and without ALL.

Both sides are cast to the column types that PostgreSQL chose.  Where rows are compared, that is
everywhere but in UNION ALL, a numeric must be shown alike on both sides: the display scale would be
compared too, and which of two equal ones is shown would be left to chance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.change import types
from penstock.sql.nodes import Node
from penstock.sql.translate import numeric
from penstock.sql.translate.casts import cast
from penstock.sql.translate.scope import Output, Scope, items_of
from penstock.sql.translate.values import (
    Expr,
    Session,
    is_trimmed,
    need_equality,
    refusal,
    trimmed,
)

_WORDS = {1: "UNION", 2: "INTERSECT", 3: "EXCEPT"}

Query = Callable[[Node, Scope], tuple[str, list[Output]]]


def set_operation(
    node: Node, scope: Scope, session: Session, query: Query
) -> tuple[str, list[Output]]:
    """The SQL and the outputs of a tree of set operations."""
    if node.tag == "RANGETBLREF":
        return query(scope.entry(node["rtindex"])["subquery"], scope)
    left, left_outputs = set_operation(node["larg"], scope, session, query)
    right, right_outputs = set_operation(node["rarg"], scope, session, query)
    union_all = node["all"] and _WORDS[node["op"]] == "UNION"
    if not node.items("colTypes"):
        raise refusal("a set operation of queries without columns")
    a_exprs, b_exprs = [], []
    kinds = zip(node["colTypes"], node["colTypmods"], strict=True)
    for number, (oid, typmod) in enumerate(kinds, 1):
        a = cast(session, left_outputs[number - 1].expr("a", number), oid)
        b = cast(session, right_outputs[number - 1].expr("b", number), oid)
        a, b = _alike(replace(a, typmod=typmod), replace(b, typmod=typmod))
        if not union_all:
            for side in (a, b):
                need_equality(side, _WORDS[node["op"]])
        a_exprs.append(a)
        b_exprs.append(b)
    a_items, outputs = items_of(a_exprs)
    b_items, b_outputs = items_of(b_exprs)
    if [each.shown for each in outputs] != [each.shown for each in b_outputs]:
        raise refusal("a set operation of numeric columns with different display scales",
                      "Cast both sides to numeric with a scale.")  # fmt: skip
    word = _WORDS[node["op"]] + (" ALL" if node["all"] else "")
    return (
        f"(SELECT {', '.join(a_items)} FROM ({left}) AS a) {word}"
        f" (SELECT {', '.join(b_items)} FROM ({right}) AS b)"
    ), outputs


def _alike(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Two numerics in one decimal type; other types as they are."""
    if a.oid != types.NUMERIC:
        return a, b
    digits, (x, y) = numeric.unify([a, b])
    if digits.shown != -1:
        return replace(x, digits=digits), replace(y, digits=digits)
    if is_trimmed(a) and is_trimmed(b):
        size = digits.precision, digits.scale
        return trimmed(x.sql, *size), trimmed(y.sql, *size)
    return (
        replace(x, digits=replace(digits, shown=a.numeric.shown_sql)),
        replace(y, digits=replace(digits, shown=b.numeric.shown_sql)),
    )
