# SPDX-License-Identifier: Apache-2.0
"""SELECT ... FROM ... WHERE ... GROUP BY ... HAVING of one query, for Spark.

Spark's grouping sets differ in two ways.  They give no grand total over no rows; where a query has
one, another query gives it then:

    <grouping sets> UNION ALL SELECT * FROM (<total over no rows>) WHERE NOT EXISTS (<the rows>)

And their HAVING does not know grouping(): such a condition is a column, and a filter around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.sql.nodes import Node
from penstock.sql.translate import numeric
from penstock.sql.translate.expressions import Expressions
from penstock.sql.translate.grouping import Sets, grouping_sets
from penstock.sql.translate.scope import Output, Scope, is_correlated, items_of, names_of
from penstock.sql.translate.sources import Sources
from penstock.sql.translate.values import Expr, need_equality, refusal

Core = tuple[str, list[Output], frozenset[int]]
"""SQL, its columns ``o1``, ``o2`` and so on, and which of them have their text beside them."""


@dataclass(frozen=True)
class _Target:
    """What is selected: columns, whether equal rows become one, and HAVING."""

    exprs: list[Expr]
    texts: frozenset[int]
    distinct: bool
    having: str | None
    having_is_column: bool

    @property
    def outputs(self) -> list[Output]:
        return items_of(self.exprs)[1]

    def of(self, rows: str, group: str) -> str:
        """The query of these rows."""
        items = items_of(self.exprs)[0]
        items += [f"{numeric.text_of(self.exprs[n - 1])} AS o{n}t" for n in sorted(self.texts)]
        listed = ", ".join(items) or "1"
        distinct = "DISTINCT " if self.distinct else ""
        if self.having is None:
            return f"SELECT {distinct}{listed}{rows}{group}"
        if not self.having_is_column:
            return f"SELECT {distinct}{listed}{rows}{group} HAVING {self.having}"
        names = [*names_of(self.outputs), *(f"o{n}t" for n in sorted(self.texts))]
        inner = f"SELECT {listed}, {self.having} AS h{rows}{group}"
        return f"SELECT {distinct}{', '.join(names) or '1'} FROM ({inner}) WHERE h"


class Select:
    """Translates the part of a query that has no set operations, ORDER BY and LIMIT."""

    def __init__(self, expressions: Expressions, sources: Sources) -> None:
        self._expressions = expressions
        self._sources = sources

    def __call__(self, node: Node, scope: Scope) -> Core:
        """The core of a query; ``scope`` gets its columns."""
        source = self._sources.clause(scope)
        where = self._expressions.condition(node["jointree"]["quals"], scope)
        rows = f"{source} WHERE {where}" if where else source
        keys, sets = self._group_keys(node, scope), grouping_sets(node)
        if node.items("constraintDeps"):
            scope.keys = frozenset(keys.values())
        target = self._target(node, scope)
        queries = [target.of(rows, _group_by(keys, sets))]
        totals = 1 if target.distinct else sets.count(())
        if () in sets and node["hasWindowFuncs"] and totals > 1:
            raise refusal("window functions over several grand totals")
        if sets and not keys:
            queries = [_over_all(target, rows)] * totals
        elif () in sets:
            total = self._total(node, scope, keys, source)
            queries += [f"SELECT * FROM ({total}) WHERE NOT EXISTS (SELECT 1{rows})"] * totals
        return " UNION ALL ".join(queries), target.outputs, target.texts

    def _target(self, node: Node, scope: Scope) -> _Target:
        having = self._expressions.condition(node["havingQual"], scope)
        distinct = bool(node.items("distinctClause")) and not node["hasDistinctOn"]
        # Keys of GROUP BY that are not shown do not tell rows apart.
        entries = [e for e in node.items("targetList") if not (distinct and e["resjunk"])]
        exprs = [self._expressions(entry["expr"], scope) for entry in entries]
        if distinct:
            _need_equality(node, entries, exprs)
        texts = frozenset(n for n, expr in enumerate(exprs, 1) if expr.text is not None)
        # Window functions are computed over what HAVING leaves.
        windows = node["hasWindowFuncs"]
        column = not windows and _calls_grouping(node["havingQual"])
        return _Target(exprs, texts, distinct, having, column)

    def _total(self, node: Node, scope: Scope, keys: dict[int, str], source: str) -> str:
        """The total of no rows, in the same columns."""
        if is_correlated(node):
            raise refusal("a grand total of grouping sets in a correlated subquery")
        by_ref = _by_ref(node)
        written = {self._expressions(by_ref[ref], scope).sql for ref in keys}
        inner = replace(scope, totals=frozenset(written.union(keys.values())))
        return _over_all(self._target(node, inner), f"{source} WHERE FALSE")

    def _group_keys(self, node: Node, scope: Scope) -> dict[int, str]:
        """The SQL of each key of GROUP BY, by its reference."""
        by_ref = _by_ref(node)
        keys: dict[int, str] = {}
        for clause in node.items("groupClause"):
            ref = clause["tleSortGroupRef"]
            expr = self._expressions(by_ref[ref], scope)
            keys[ref] = need_equality(expr, "GROUP BY", clause["eqop"])
            if expr.constant and node.items("groupingSets"):
                raise refusal("a constant in grouping sets")
        if node.items("groupingSets") and len(set(keys.values())) < len(keys):
            raise refusal("one expression as two columns in grouping sets")
        return keys


def _calls_grouping(value: Any) -> bool:
    """Whether an expression calls grouping(), other than in a subquery."""
    if isinstance(value, list):
        return any(map(_calls_grouping, value))
    if not isinstance(value, Node) or value.tag == "QUERY":
        return False
    return value.tag == "GROUPINGFUNC" or any(map(_calls_grouping, value.fields.values()))


def _by_ref(node: Node) -> dict[int, Node]:
    """The expressions of the select list that clauses refer to."""
    return {entry["ressortgroupref"]: entry["expr"] for entry in node.items("targetList")}


def _group_by(keys: dict[int, str], sets: Sets) -> str:
    if sets:
        written = ", ".join(f"({', '.join(keys[ref] for ref in each)})" for each in sets)
        return f" GROUP BY GROUPING SETS ({written})"
    return f" GROUP BY {', '.join(keys.values())}" if keys else ""


def _over_all(target: _Target, rows: str) -> str:
    """One row for all rows; HAVING makes an aggregation of a query without aggregates."""
    having = target.having or "TRUE"
    return replace(target, having=having, having_is_column=False).of(rows, "")


def _need_equality(node: Node, entries: Sequence[Node], exprs: Sequence[Expr]) -> None:
    """Refuse a DISTINCT of rows whose equality is not PostgreSQL's."""
    operators = {each["tleSortGroupRef"]: each["eqop"] for each in node["distinctClause"]}
    for entry, expr in zip(entries, exprs, strict=True):
        need_equality(expr, "DISTINCT", operators.get(entry["ressortgroupref"], 0))
