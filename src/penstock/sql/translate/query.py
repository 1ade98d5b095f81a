# SPDX-License-Identifier: Apache-2.0
"""An analysed SELECT of PostgreSQL as one Spark SQL statement with the same result, or a refusal.

In:   the Query node as the control database analysed it in the client's own session: names, views,
      types, casts, operators and functions are resolved there, nothing is guessed here.
Out:  Spark SQL over the temporary views ``t<relid>``, the tables that it reads, and PostgreSQL's
      type of each result column.

A query becomes at most three layers:

    SELECT o1, ...                                    what is shown, ORDER BY, LIMIT
    FROM (SELECT ... row_number() ... AS place        only for DISTINCT ON
          FROM (SELECT [DISTINCT] <targets> AS o1, .. FROM .. WHERE .. GROUP BY .. HAVING ..))

A scalar subquery without outer references is evaluated before the statement, into a session
variable, when it is an operand of a computation that needs a lambda function (numeric division):
Spark has no subqueries there.

Refused: data-modifying and recursive WITH, locking clauses, TABLESAMPLE, functions in FROM other
than generate_series of constants, set-returning functions in the select list, and every operator,
function, type or construct that is not in the allow-lists of this package.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.change import types
from penstock.errors import PenstockError
from penstock.sql.nodes import Node
from penstock.sql.translate import numeric
from penstock.sql.translate.expressions import Expressions, Variable
from penstock.sql.translate.facts import Facts
from penstock.sql.translate.scope import Output, Scope, names_of
from penstock.sql.translate.select import Select
from penstock.sql.translate.setops import set_operation
from penstock.sql.translate.sources import Sources
from penstock.sql.translate.values import (
    Expr,
    Session,
    SubqueryInLet,
    partition_key,
    refusal,
)


@dataclass(frozen=True)
class Translation:
    """A statement for Spark, the lake tables it reads, and its columns' PostgreSQL types.

    ``alone`` are the tables that have a view of their own, ``unions`` the leaves that partitioned
    tables have a view of.
    ``variables`` are Spark session variables that the statement uses: for each its names, types,
    and the query of one row that sets them.  They are set in this order.
    """

    sql: str
    variables: tuple[Variable, ...]
    alone: frozenset[int]
    unions: dict[int, tuple[int, ...]]
    type_oids: tuple[int, ...]
    typmods: tuple[int, ...]

    @property
    def tables(self) -> frozenset[int]:
        """All tables that are read."""
        return self.alone.union(*self.unions.values())


def translate(
    query: Node, facts: Facts, parameters: Sequence[Expr] = (), session: Session | None = None
) -> Translation:
    """Translate a whole statement; FeatureNotSupportedError names what has no translation."""
    try:
        return _translate(query, facts, parameters, session or Session(), hoist=False)
    except SubqueryInLet:
        pass
    try:
        return _translate(query, facts, parameters, session or Session(), hoist=True)
    except SubqueryInLet as error:
        raise refusal("this computation with a correlated subquery") from error


def _translate(
    query: Node, facts: Facts, parameters: Sequence[Expr], session: Session, hoist: bool
) -> Translation:
    translator = _Translator(session, facts, parameters, hoist)
    sql, outputs = translator.query(query, None, final=True)
    return Translation(
        sql,
        tuple(translator.variables),
        frozenset(translator.tables),
        translator.unions,
        tuple(output.oid for output in outputs),
        tuple(output.typmod for output in outputs),
    )


class _Translator:
    def __init__(
        self, session: Session, facts: Facts, parameters: Sequence[Expr], hoist: bool
    ) -> None:
        self._session = session
        self._expressions = Expressions(session, facts, parameters, self.query, hoist)
        self._sources = Sources(facts, self._expressions, self.query)
        self._select = Select(self._expressions, self._sources)

    @property
    def variables(self) -> list[Variable]:
        """Subqueries that are evaluated before the statement."""
        return self._expressions.variables

    @property
    def tables(self) -> set[int]:
        """The lake tables that are read by themselves."""
        return self._sources.tables

    @property
    def unions(self) -> dict[int, tuple[int, ...]]:
        """The leaves that are read of partitioned tables."""
        return self._sources.unions

    def query(
        self, node: Node, parent: Scope | None, final: bool = False
    ) -> tuple[str, list[Output]]:
        """One query: its SQL and its columns; ``final`` when its rows go to the client."""
        _refuse_features(node)
        scope = Scope(node, parent)
        texts: frozenset[int] = frozenset()
        if node["setOperations"] is not None:
            core, outputs = set_operation(node["setOperations"], scope, self._session, self.query)
        else:
            core, outputs, texts = self._select(node, scope)
        visible = [not entry["resjunk"] for entry in node.items("targetList")][: len(outputs)]
        shown = [output for output, keep in zip(outputs, visible, strict=True) if keep]
        if final and not shown:
            raise refusal("a query without columns")
        items = _shown_items(outputs, visible, texts, final) or ["1"]
        order = self._order(node, outputs)
        limit = self._limit(node, scope)
        if node["hasDistinctOn"]:
            core = self._first_rows(node, core, outputs, order)
            return f"SELECT {', '.join(items)} FROM ({core}) AS q{order}{limit}", shown
        plain = all(visible) and not order and not limit
        if plain and (not final or items == [f"q.{name}" for name in names_of(outputs)]):
            return core, shown
        return f"SELECT {', '.join(items)} FROM ({core}) AS q{order}{limit}", shown

    def _order(self, node: Node, outputs: Sequence[Output]) -> str:
        keys = self._keys(node, node.items("sortClause"), outputs)
        return f" ORDER BY {', '.join(keys)}" if keys else ""

    def _keys(self, node: Node, clauses: Sequence[Node], outputs: Sequence[Output]) -> list[str]:
        numbers = {
            entry["ressortgroupref"]: number
            for number, entry in enumerate(node.items("targetList"), 1)
            if entry["ressortgroupref"]
        }
        keys = []
        for clause in clauses:
            number = numbers[clause["tleSortGroupRef"]]
            expr = outputs[number - 1].expr("q", number)
            keys.append(self._expressions.order_key(clause, expr).sql)
        return keys

    def _first_rows(self, node: Node, core: str, outputs: Sequence[Output], order: str) -> str:
        numbers = {
            entry["ressortgroupref"]: number
            for number, entry in enumerate(node.items("targetList"), 1)
        }
        keys = []
        for clause in node["distinctClause"]:
            number = numbers[clause["tleSortGroupRef"]]
            keys.append(partition_key(outputs[number - 1].expr("q", number), clause["eqop"]))
        window = f"PARTITION BY {', '.join(keys)}{order or ' ORDER BY NULL'}"
        ranked = f"SELECT q.*, row_number() OVER ({window}) AS place FROM ({core}) AS q"
        return f"SELECT * FROM ({ranked}) WHERE place = 1"

    def _limit(self, node: Node, scope: Scope) -> str:
        if node.get("limitOption"):
            raise refusal("FETCH FIRST ... WITH TIES")
        count = self._count(node["limitCount"], scope, "LIMIT", "2201W")
        offset = self._count(node["limitOffset"], scope, "OFFSET", "2201X")
        sql = f" LIMIT {count}" if count is not None and count < 2**31 else ""
        if offset is not None and offset >= 2**31:
            raise refusal("an OFFSET of more than 2147483647 rows")
        return sql + (f" OFFSET {offset}" if offset else "")

    def _count(self, node: Any, scope: Scope, word: str, sqlstate: str) -> int | None:
        if node is None:
            return None
        value = self._expressions(node, scope).value
        if value is None:
            return None
        if not isinstance(value, int):
            raise refusal(f"{word} of an expression")
        if value < 0:
            raise PenstockError(f"{word} must not be negative", sqlstate=sqlstate)
        return value


def _shown_items(
    outputs: Sequence[Output], visible: Sequence[bool], texts: Collection[int], final: bool
) -> list[str]:
    """The select list around the core: of a derived table, or as the client shall see it."""
    items, place = [], 0
    for number, (output, keep) in enumerate(zip(outputs, visible, strict=True), 1):
        if not keep:
            continue
        place += 1
        name = "" if place == number else f" AS o{place}"
        if final and output.oid == types.NUMERIC and output.shown != "fixed":
            beside = f"q.o{number}t" if number in texts else ""
            text = beside or numeric.text_of(output.expr("q", number))
            items.append(f"{text} AS o{place}")
            continue
        items.append(f"q.o{number}{name}")
        if output.shown == "column" and not final:
            items.append(f"q.o{number}s" + (f" AS o{place}s" if name else ""))
    return items


def _refuse_features(node: Node) -> None:
    if node["commandType"] != 1 or node["utilityStmt"] is not None:
        raise refusal("a statement other than SELECT")
    if node["hasModifyingCTE"]:
        raise refusal("a data-modifying statement in WITH")
    if node["hasRecursive"]:
        raise refusal("WITH RECURSIVE")
    if node.items("rowMarks") or node["hasForUpdate"]:
        raise refusal("FOR UPDATE or FOR SHARE")
    if node["hasTargetSRFs"]:
        raise refusal("a set-returning function in the select list")
    if node["hasRowSecurity"]:
        raise refusal("row-level security")
