# SPDX-License-Identifier: Apache-2.0
"""Names of one query level: which Spark SQL stands for a Var of PostgreSQL's tree.

Every item of FROM gets an alias that is unique in the whole statement, so a correlated reference
needs no care for hiding.  A derived table's columns are ``o1``, ``o2``, ...; a numeric whose
display scale is not known from its column has that scale beside it, in ``o1s``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from penstock.change import types
from penstock.sql.nodes import Node
from penstock.sql.translate.values import Digits, Expr, is_trimmed, trimmed


@dataclass(frozen=True)
class Output:
    """One column of a derived table; ``shown`` says where a numeric's display scale is."""

    oid: int
    typmod: int
    precision: int = 0
    scale: int = 0
    shown: Literal["fixed", "trimmed", "column"] = "fixed"

    def expr(self, alias: str, number: int) -> Expr:
        """A reference to the column."""
        sql = f"{alias}.o{number}"
        if self.oid != types.NUMERIC:
            return Expr(sql, self.oid, self.typmod)
        if self.shown == "trimmed":
            return trimmed(sql, self.precision, self.scale)
        shown = self.scale if self.shown == "fixed" else f"{alias}.o{number}s"
        return Expr(sql, self.oid, self.typmod, Digits(self.precision, self.scale, shown))


def output_of(expr: Expr) -> Output:
    """How an expression is kept as a column."""
    if expr.oid != types.NUMERIC:
        return Output(expr.oid, expr.typmod)
    digits = expr.numeric
    if digits.fixed:
        return Output(expr.oid, expr.typmod, digits.precision, digits.scale)
    if expr.text is None and is_trimmed(expr):
        return Output(expr.oid, expr.typmod, digits.precision, digits.scale, "trimmed")
    return Output(expr.oid, expr.typmod, digits.precision, digits.scale, "column")


def items_of(exprs: Sequence[Expr]) -> tuple[list[str], list[Output]]:
    """The select list that makes a derived table of these expressions."""
    items, outputs = [], []
    for number, expr in enumerate(exprs, 1):
        output = output_of(expr)
        items.append(f"{expr.sql} AS o{number}")
        if output.shown == "column":
            items.append(f"{expr.numeric.shown_sql} AS o{number}s")
        outputs.append(output)
    return items, outputs


def names_of(outputs: Sequence[Output]) -> list[str]:
    """The columns of such a derived table."""
    names = []
    for number, output in enumerate(outputs, 1):
        names.append(f"o{number}")
        if output.shown == "column":
            names.append(f"o{number}s")
    return names


@dataclass
class Scope:
    """One query: its range table, what each entry's columns are, and the query around it.

    ``columns`` maps a range table index to a function from column number to expression; join and
    group entries have none, because their columns are expressions over other entries.
    ``keys`` are the grouping expressions of a query whose other columns depend on them.
    ``totals`` are those that are NULL, because the query is translated for its grand total.
    """

    query: Node
    parent: Scope | None
    columns: dict[int, Callable[[int], Expr]] = field(default_factory=dict)
    keys: frozenset[str] | None = None
    totals: frozenset[str] = frozenset()
    ordered_input: bool = False
    in_aggregate: bool = False

    def entry(self, index: int) -> Node:
        """The range table entry with this number, from 1."""
        entry: Node = self.query["rtable"][index - 1]
        return entry

    def up(self, levels: int) -> Scope:
        """The scope so many queries further out."""
        scope = self
        for _ in range(levels):
            if scope.parent is None:
                raise AssertionError("a Var points outside of the statement")
            scope = scope.parent
        return scope


def scalar(sql: str, outputs: list[Output]) -> Expr:
    """A scalar subquery as an expression."""
    output = outputs[0]
    if output.shown != "column":
        column = output.expr("q", 1)
        return (
            Expr(f"({sql})", output.oid, output.typmod)
            if output.oid != types.NUMERIC
            else retarget(column, f"({sql})")
        )
    pair = f"(SELECT named_struct('v', o1, 's', o1s) FROM ({sql}) AS q)"
    digits = Digits(output.precision, output.scale, f"{pair}.s")
    return Expr(f"{pair}.v", output.oid, digits=digits)


def retarget(column: Expr, sql: str) -> Expr:
    """A numeric column, read by other SQL."""
    digits = column.numeric
    if digits.fixed:
        return replace(column, sql=sql)
    return replace(
        column, sql=sql, digits=replace(digits, shown=str(digits.shown).replace(column.sql, sql))
    )


def is_correlated(query: Node) -> bool:
    """The query refers to one around it."""
    return _correlated(query, 0)


def _correlated(value: Any, depth: int) -> bool:
    """The same for a part of it, inside of so many queries within it."""
    if isinstance(value, list):
        return any(_correlated(item, depth) for item in value)
    if not isinstance(value, Node):
        return False
    # A name of WITH is written out as its query.
    levels = value.get("varlevelsup") or value.get("agglevelsup") or 0
    if value.tag in ("VAR", "AGGREF", "GROUPINGFUNC") and levels > depth:
        return True
    return any(
        _correlated(field, depth + (isinstance(field, Node) and field.tag == "QUERY"))
        for field in value.fields.values()
    )
