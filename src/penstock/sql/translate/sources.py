# SPDX-License-Identifier: Apache-2.0
"""FROM: tables, views, subqueries, CTEs, VALUES and joins of them.

A lake table is the temporary view ``t<relid>``; a partitioned table is the union of its leaves, a
view is its query.  A CTE is written out at each place that names it, which is the same as long as
each evaluation gives the same rows: one whose rows may differ is refused when it is named twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.change import types
from penstock.errors import InvisibleError
from penstock.names import quote_spark
from penstock.sql.nodes import Node, walk
from penstock.sql.translate import numeric
from penstock.sql.translate.expressions import Expressions
from penstock.sql.translate.facts import Facts, RelationFacts
from penstock.sql.translate.scope import Output, Scope
from penstock.sql.translate.values import (
    Expr,
    column,
    declared_digits,
    literal,
    refusal,
    spark_type,
)

_TABLEOID = -6
_JOINS = {0: "JOIN", 1: "LEFT JOIN", 2: "FULL JOIN", 3: "RIGHT JOIN"}

Query = Callable[[Node, Scope | None], tuple[str, list[Output]]]


def union_name(relid: int) -> str:
    """The Spark view of a partitioned table's leaves, together."""
    return f"p{relid}"


def view_name(relid: int) -> str:
    """The temporary view through which Spark reads a lake table."""
    return f"t{relid}"


class Sources:
    """Translates FROM; ``tables`` collects the lake tables that are read."""

    def __init__(self, facts: Facts, expressions: Expressions, query: Query) -> None:
        self.tables: set[int] = set()
        self.unions: dict[int, tuple[int, ...]] = {}
        self._facts = facts
        self._expressions = expressions
        self._query = query
        self._aliases = 0

    def clause(self, scope: Scope) -> str:
        """The FROM clause, empty when there is none; fills ``scope.columns``."""
        items = scope.query["jointree"].items("fromlist")
        if not items:
            return ""
        parts = [self._item(item, scope) for item in items]
        return " FROM " + " CROSS JOIN ".join(parts)

    def _item(self, node: Node, scope: Scope) -> str:
        if node.tag == "RANGETBLREF":
            return self._entry(node["rtindex"], scope)
        left, right = self._item(node["larg"], scope), self._item(node["rarg"], scope)
        word = _JOINS.get(node["jointype"])
        if word is None:
            raise refusal("this kind of join")
        condition = self._expressions.condition(node["quals"], scope, filters=word == "JOIN")
        if condition is None:
            if word == "JOIN":
                return f"({left} CROSS JOIN {right})"
            condition = "TRUE"
        return f"({left} {word} {right} ON {condition})"

    def _entry(self, index: int, scope: Scope) -> str:
        entry = scope.entry(index)
        self._aliases += 1
        alias = f"r{self._aliases}"
        make = {
            0: self._relation,
            1: self._subquery,
            3: self._function,
            5: self._values,
            6: self._cte,
        }.get(entry["rtekind"])
        if make is None:
            raise refusal("this item of FROM")
        sql, columns = make(entry, alias, scope)
        scope.columns[index] = columns
        lateral = "LATERAL " if entry["lateral"] and entry["rtekind"] == 1 else ""
        return f"{lateral}{sql} AS {alias}"

    # Relations

    def _relation(self, entry: Node, alias: str, scope: Scope) -> tuple[str, Callable[[int], Expr]]:
        relation = self._facts.relation(entry["relid"])
        if entry["tablesample"] is not None:
            raise refusal("TABLESAMPLE")
        if relation.kind == "v":
            sql, outputs = self._query(relation.view, None)
            return f"({sql})", _columns(alias, outputs)
        if relation.kind not in ("r", "p") or not relation.in_lake:
            raise refusal(
                f'relation "{relation.schema}.{relation.name}", which is not a lake table,',
                "Lake tables and other relations cannot be read by the same query.",
            )
        if relation.inherited and entry["inh"]:
            raise refusal("a table with inheritance children")
        leaves = relation.leaves if entry["inh"] or relation.kind == "r" else ()
        if len(leaves) > 1 and relation.columns:
            self.unions[relation.relid] = tuple(leaves)
        else:
            self.tables.update(leaves)
        return self._leaves(relation, leaves), _table_columns(alias, relation, leaves)

    def _leaves(self, relation: RelationFacts, leaves: Sequence[int]) -> str:
        if len(leaves) == 1:
            return view_name(leaves[0])
        if leaves and relation.columns:
            return union_name(relation.relid)
        if leaves:
            return f"({' UNION ALL '.join(f'SELECT 1 FROM {view_name(leaf)}' for leaf in leaves)})"
        names = [quote_spark(each.name) for each in relation.columns]
        kinds = [_empty_type(each.type_oid, each.typmod) for each in relation.columns]
        nulls = ", ".join(
            f"CAST(NULL AS {kind}) AS {name}" for kind, name in zip(kinds, names, strict=False)
        )
        return f"(SELECT {nulls or '1'} WHERE FALSE)"

    # Derived tables

    def _subquery(self, entry: Node, alias: str, scope: Scope) -> tuple[str, Callable[[int], Expr]]:
        if entry["subquery"].items("sortClause"):
            scope.ordered_input = True
        sql, outputs = self._query(entry["subquery"], scope)
        return f"({sql})", _columns(alias, outputs)

    def _cte(self, entry: Node, alias: str, scope: Scope) -> tuple[str, Callable[[int], Expr]]:
        owner = scope.up(entry["ctelevelsup"])
        cte = next(c for c in owner.query["cteList"] if c["ctename"] == entry["ctename"])
        if cte["cterecursive"] or entry["self_reference"]:
            raise refusal("WITH RECURSIVE")
        if cte["cterefcount"] > 1 and _may_differ(cte["ctequery"]):
            raise refusal(
                f'the WITH query "{cte["ctename"]}", named twice and with rows to choose from',
                "It has LIMIT, OFFSET, DISTINCT ON or a window function.",
            )
        if cte["ctequery"].items("sortClause"):
            scope.ordered_input = True
        sql, outputs = self._query(cte["ctequery"], owner)
        return f"({sql})", _columns(alias, outputs)

    def _values(self, entry: Node, alias: str, scope: Scope) -> tuple[str, Callable[[int], Expr]]:
        rows = [self._expressions.each(row, scope) for row in entry["values_lists"]]
        outputs, cells = [], []
        for number, kind in enumerate(entry["coltypes"]):
            exprs = [row[number] for row in rows]
            output, sqls = _one_column(kind, exprs)
            outputs.append(output)
            cells.append(sqls)
        names = []
        for number, output in enumerate(outputs, 1):
            names += [f"o{number}", f"o{number}s"] if output.shown == "column" else [f"o{number}"]
        lines = [
            "(" + ", ".join(cell for column_cells in cells for cell in column_cells[row]) + ")"
            for row in range(len(rows))
        ]
        sql = f"(SELECT * FROM VALUES {', '.join(lines)} AS v({', '.join(names)}))"
        return sql, _columns(alias, outputs)

    def _function(self, entry: Node, alias: str, scope: Scope) -> tuple[str, Callable[[int], Expr]]:
        functions = entry["functions"]
        call = functions[0]["funcexpr"] if len(functions) == 1 else None
        if call is None or call.tag != "FUNCEXPR" or entry["funcordinality"]:
            raise refusal("this function in FROM")
        function = self._expressions.function(call["funcid"])
        kind = call["funcresulttype"]
        series = function.schema == "pg_catalog" and function.name == "generate_series"
        if not series or kind not in (types.INT4, types.INT8):
            raise refusal(f"{function} in FROM")
        bounds = [expr.value for expr in self._expressions.each(call["args"], scope)]
        if not all(isinstance(bound, int) for bound in bounds):
            raise refusal("generate_series() of bounds that are not constants")
        start, stop, step = (*bounds, 1)[:3]
        if step == 0:
            raise refusal("generate_series() with step 0")
        end = stop + (1 if step > 0 else -1)
        if abs(end) >= 2**63:
            raise refusal("generate_series() up to the largest bigint")
        sql = f"(SELECT CAST(id AS {spark_type(kind)}) AS o1 FROM range({start}, {end}, {step}))"
        return sql, _columns(alias, [Output(kind, -1)])


def _columns(alias: str, outputs: Sequence[Output]) -> Callable[[int], Expr]:
    def find(attno: int) -> Expr:
        if attno > len(outputs):
            raise InvisibleError(f"column {attno} of a view")
        return outputs[attno - 1].expr(alias, attno)

    return find


def _table_columns(
    alias: str, relation: RelationFacts, leaves: Sequence[int]
) -> Callable[[int], Expr]:
    def find(attno: int) -> Expr:
        if attno == _TABLEOID and len(leaves) < 2:
            return literal(types.OID, leaves[0] if leaves else None)
        if attno < 0:
            raise refusal("a system column")
        found = relation.column(attno)
        return column(f"{alias}.{quote_spark(found.name)}", found.type_oid, found.typmod)

    return find


def _empty_type(oid: int, typmod: int) -> str:
    if types.ARRAY_ELEMENTS.get(oid) == types.NUMERIC:
        return spark_type(oid, declared_digits(typmod))
    return spark_type(oid, column("x", oid, typmod).digits)


def _one_column(kind: int, exprs: list[Expr]) -> tuple[Output, list[list[str]]]:
    """A column of VALUES: its output, and for each row the cells that it takes."""
    if kind != types.NUMERIC:
        typmods = {expr.typmod for expr in exprs}
        output = Output(kind, typmods.pop() if len(typmods) == 1 else -1)
        return output, [[f"CAST({expr.sql} AS {spark_type(kind)})"] for expr in exprs]
    digits, same = numeric.unify(exprs)
    if digits.shown != -1:
        output = Output(kind, -1, digits.precision, digits.scale)
        return output, [[expr.sql] for expr in same]
    output = Output(kind, -1, digits.precision, digits.scale, "column")
    return output, [[expr.sql, expr.numeric.shown_sql] for expr in same]


def _may_differ(query: Any) -> bool:
    return any(
        node.tag == "WINDOWFUNC"
        or (
            node.tag == "QUERY"
            and (
                node["limitCount"] is not None
                or node["limitOffset"] is not None
                or node["hasDistinctOn"]
            )
        )
        for node in walk(query)
    )
