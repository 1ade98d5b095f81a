# SPDX-License-Identifier: Apache-2.0
"""Expression nodes of PostgreSQL's analysed tree as Spark SQL, one method for each kind of node.

The tree is typed: casts, operators and functions are resolved.  A node that has no method, and a
function that is not in the allow-list, is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.change import types
from penstock.errors import FeatureNotSupportedError
from penstock.sql import constants
from penstock.sql.nodes import Node
from penstock.sql.translate import numeric
from penstock.sql.translate.aggregates import Aggregate, OrderKey, aggregate
from penstock.sql.translate.casts import cast
from penstock.sql.translate.choices import choose, without_test
from penstock.sql.translate.exact import (
    can_fail,
    check_call,
    check_operands,
    check_result,
    computed_too,
    planned_away,
)
from penstock.sql.translate.facts import SESSION_FUNCTIONS, SESSION_KEYWORDS, Facts, label_of
from penstock.sql.translate.functions import Call, Function, find
from penstock.sql.translate.operators import EQUALITY
from penstock.sql.translate.rows import compare_rows, test_row
from penstock.sql.translate.scope import Output, Scope, is_correlated, retarget, scalar
from penstock.sql.translate.values import (
    ALLOWED_COLLATIONS,
    NOT_CONSTANT,
    Expr,
    Session,
    bare,
    is_text_form,
    literal,
    need_order,
    null,
    partition_key,
    refusal,
    spark_type,
    without_value,
)
from penstock.sql.translate.windows import Window, window_function

_EXISTS, _ALL, _ANY, _EXPR = 0, 1, 2, 4
"""SubLinkType."""

LONGEST = 4_000_000
"""Characters of an expression for Spark: some forms have an argument twice, so depth doubles it."""

Subquery = Callable[[Node, Scope], tuple[str, list[Any]]]
"""Translates a Query inside a scope: its SQL and its outputs."""


@dataclass(frozen=True)
class Variable:
    """Spark session variables, and the query of at most one row that sets them."""

    names: tuple[str, ...]
    types: tuple[str, ...]
    sql: str


class Expressions:
    """Translates expressions; ``parameters`` are the bound values, ``subquery`` does SubLinks."""

    def __init__(
        self,
        session: Session,
        facts: Facts,
        parameters: Sequence[Expr],
        subquery: Subquery,
        hoist: bool = False,
    ) -> None:
        self.session = session
        self.facts = facts
        self._parameters = parameters
        self._subquery = subquery
        self._hoist = hoist
        self.variables: list[Variable] = []
        self.refused: Node | None = None

    def __call__(self, node: Any, scope: Scope) -> Expr:
        """The expression of one node."""
        try:
            if scope.totals:
                key = self._translated(node, replace(scope, totals=frozenset()))
                if key.sql in scope.totals:
                    return without_value(key)
            expr = self._translated(node, scope)
            if len(expr.sql) > LONGEST:
                raise refusal("an expression that is as deep")
            if self.session.exact:
                check_result(expr)
        except FeatureNotSupportedError:
            self.refused = self.refused or node
            raise
        return expr

    def _translated(self, node: Node, scope: Scope) -> Expr:
        method = getattr(self, f"_{node.tag.lower()}", None)
        if method is None:
            raise refusal(_NAMES.get(node.tag, f"the construct {node.tag}"))
        for field in ("inputcollid", "varcollid", "constcollid", "resultcollid"):
            if node.fields.get(field, 0) not in ALLOWED_COLLATIONS:
                raise refusal("a collation other than C", 'Use COLLATE "C".')
        expr: Expr = method(node, scope)
        return expr

    def each(self, nodes: Sequence[Any] | None, scope: Scope) -> list[Expr]:
        """The expressions of a list of nodes."""
        return [self(node, scope) for node in nodes or []]

    def condition(self, node: Any, scope: Scope, *, filters: bool = True) -> str | None:
        """The SQL of a condition, None when there is none.

        Only rows for which it is true count.  So IN with a subquery may give false for NULL here,
        as it does in Spark, as long as nothing around it turns false into true.  ``filters``: rows
        for which it is not true go, which they do not in the ON of an outer join.
        """
        return None if node is None else self._filter(node, scope, conjunct=filters)

    def _filter(self, node: Node, scope: Scope, conjunct: bool) -> str:
        if node.tag == "BOOLEXPR" and node["boolop"] != "not":
            both = conjunct and node["boolop"] == "and"
            parts = [self._filter(arg, scope, both) for arg in node["args"]]
            word = f" {str(node['boolop']).upper()} "
            return f"({word.join(parts)})"
        inner = node["args"][0] if node.tag == "BOOLEXPR" else None
        if inner is not None and inner.tag == "SUBLINK" and inner["subLinkType"] == _ANY:
            if conjunct:  # where Spark makes an anti join of it that knows NULL
                return f"(NOT {self._in_subquery(inner, scope).sql})"
        elif node.tag == "SUBLINK":
            if node["subLinkType"] == _ANY:
                return self._in_subquery(node, scope).sql
            if node["subLinkType"] == _ALL and conjunct:
                return f"(NOT {self._in_subquery(node, scope).sql})"
        return self(node, scope).sql

    def function(self, oid: int) -> Function:
        """The function with this OID."""
        return self.facts.functions[oid]

    def _call(self, oid: int, args: Sequence[Expr], result: int) -> Expr:
        function = self.function(oid)
        handler = find(function)
        if self.session.exact:
            check_call(function, args)
        expr = handler(Call(self.session, args, result))
        return replace(expr, oid=result) if expr.oid != result else expr

    # Leaves

    def _var(self, node: Node, scope: Scope) -> Expr:
        home = scope.up(node["varlevelsup"])
        index, attno = node["varno"], node["varattno"]
        entry = home.entry(index)
        if attno == 0:
            raise refusal("a reference to a whole row")
        if entry["rtekind"] == 2:
            return self(entry["joinaliasvars"][attno - 1], _with_aggregate(home, scope))
        if entry["rtekind"] == 9:
            return self(entry["groupexprs"][attno - 1], _with_aggregate(home, scope))
        if attno < 0 and node.get("varnullingrels"):
            raise refusal("a system column of a table that an outer join may lack")
        expr = home.columns[index](attno)
        if expr.sql in home.totals:  # of the query around this one
            return without_value(expr)
        if expr.oid != node["vartype"]:
            raise refusal("a column whose type has changed")
        dependent = home is scope and scope.keys is not None and not scope.in_aggregate
        if dependent and scope.keys is not None and expr.sql not in scope.keys:
            return replace(expr, sql=f"any_value({expr.sql})")
        return expr

    def _const(self, node: Node, scope: Scope) -> Expr:
        oid, typmod = node["consttype"], node["consttypmod"]
        if node["constisnull"]:
            return null(oid, typmod)
        place = label_of(node)
        if place is not None and place in self.facts.labels:
            return literal(oid, self.facts.labels[place], typmod)
        value = constants.from_datum(oid, node["constvalue"])
        if oid == constants.INTERVAL:
            return Expr("", oid, typmod, None, value)
        return literal(oid, value, typmod)

    def _param(self, node: Node, scope: Scope) -> Expr:
        if node["paramkind"] != 0:
            raise refusal("this kind of subquery")
        expr: Expr = self._parameters[node["paramid"] - 1]
        if expr.oid != node["paramtype"]:
            raise refusal("a parameter whose type has changed")
        return expr

    def _casetestexpr(self, node: Node, scope: Scope) -> Expr:
        raise refusal("this form of CASE or of an array cast")

    def _sqlvaluefunction(self, node: Node, scope: Scope) -> Expr:
        keyword = SESSION_KEYWORDS.get(node["op"])
        if keyword is None:
            raise refusal("a current time with a precision")
        return literal(node["type"], self.facts.values[keyword])

    # Functions and operators

    def _funcexpr(self, node: Node, scope: Scope) -> Expr:
        if node["funcretset"]:
            raise refusal(f"set-returning {self.function(node['funcid'])}")
        function, args = self.function(node["funcid"]), node.items("args")
        if function.schema == "pg_catalog" and function.signature in SESSION_FUNCTIONS:
            value = self.facts.values[SESSION_FUNCTIONS[function.signature]]
            return literal(node["funcresulttype"], value)
        elapsed = self._elapsed(function, args, scope)
        if elapsed is not None:
            return elapsed
        if node["funcvariadic"] and function.name in ("concat", "concat_ws"):
            raise refusal("a VARIADIC argument")
        return self._strict(node["funcid"], args, node["funcresulttype"], scope)

    def _strict(self, oid: int, nodes: list[Any], result: int, scope: Scope) -> Expr:
        args = self.each(nodes, scope)
        expr = self._call(oid, args, result)
        if not self.session.exact:
            return expr
        if planned_away(nodes, args, self.facts):
            return null(result, expr.typmod)
        return computed_too(nodes, args, expr, self.facts)

    def _elapsed(self, function: Function, args: list[Any], scope: Scope) -> Expr | None:
        """extract(epoch from a - b) of timestamps: the only use of a computed interval."""
        if function.signature != "extract(text,interval)" or args[1].tag != "OPEXPR":
            return None
        difference = self.function(args[1]["opfuncid"]).name
        field = self(args[0], scope)
        if self.session.exact and can_fail(args[1]["args"], self.facts):
            raise refusal("the time between expressions that can fail")
        if difference not in ("timestamp_mi", "timestamptz_mi") or field.value != "epoch":
            return None
        a, b = (
            f"unix_micros(CAST({e.sql} AS TIMESTAMP))" for e in self.each(args[1]["args"], scope)
        )
        sql = f"(CAST({a} - {b} AS DECIMAL(20,0)) * 0.000001BD)"
        return numeric.numeric(sql, 26, 6, 6)

    def _opexpr(self, node: Node, scope: Scope) -> Expr:
        return self._strict(node["opfuncid"], node["args"], node["opresulttype"], scope)

    def equality(self, oid: int, args: Sequence[Expr]) -> tuple[str, str]:
        """Both sides of an equality, in SQL whose ``=`` is PostgreSQL's."""
        if self.function(oid).name not in EQUALITY:
            raise refusal(f"a comparison by {self.function(oid)}")
        if self.session.exact:
            check_operands(args)
        return bare(args[0]), bare(args[1])

    def _distinctexpr(self, node: Node, scope: Scope) -> Expr:
        a, b = self.equality(node["opfuncid"], self.each(node["args"], scope))
        return Expr(f"(NOT ({a} <=> {b}))", types.BOOL)

    def _nullifexpr(self, node: Node, scope: Scope) -> Expr:
        args = self.each(node["args"], scope)
        a, b = self.equality(node["opfuncid"], args)
        sql = f"CASE WHEN {a} = {b} THEN NULL ELSE {args[0].sql} END"
        expr = replace(args[0], sql=sql, value=NOT_CONSTANT, text=None)
        return computed_too(node["args"], args, expr, self.facts) if self.session.exact else expr

    def _scalararrayopexpr(self, node: Node, scope: Scope) -> Expr:
        left, right = node["args"]
        value = self(left, scope)
        lazy = not self.session.exact or not can_fail(right, self.facts)
        if right.tag == "ARRAYEXPR" and not right["multidims"] and lazy:
            items = self.each(right["elements"], scope)
        else:
            array = self(right, scope)
            if not array.constant:
                return self._in_column(node, value, array)
            if array.value is None:
                return null(types.BOOL)
            element = types.ARRAY_ELEMENTS[array.oid]
            items = [literal(element, item) for item in array.value]
        name = self.function(node["opfuncid"]).name
        if not items:
            return literal(types.BOOL, not node["useOr"])
        if name in EQUALITY and node["useOr"] and value.oid != types.NUMERIC:
            listed = ", ".join(bare(item) for item in items)
            return Expr(f"({bare(value)} IN ({listed}))", types.BOOL)
        word = " OR " if node["useOr"] else " AND "
        each = [self._call(node["opfuncid"], [value, item], types.BOOL).sql for item in items]
        return Expr(f"({word.join(each)})", types.BOOL)

    def _in_column(self, node: Node, value: Expr, array: Expr) -> Expr:
        element = types.ARRAY_ELEMENTS.get(array.oid)
        equal = self.function(node["opfuncid"]).name in EQUALITY and node["useOr"]
        if not equal or element != value.oid or element in (types.BPCHAR, types.NUMERIC):
            raise refusal("this comparison with the elements of an array")
        sql = f"IF(size({array.sql}) = 0, FALSE, array_contains({array.sql}, {value.sql}))"
        return Expr(sql, types.BOOL)

    # Boolean

    def _boolexpr(self, node: Node, scope: Scope) -> Expr:
        args = [arg.sql for arg in self.each(node["args"], scope)]
        if node["boolop"] == "not":
            return Expr(f"(NOT {args[0]})", types.BOOL)
        word = f" {str(node['boolop']).upper()} "
        return Expr(f"({word.join(args)})", types.BOOL)

    def _nulltest(self, node: Node, scope: Scope) -> Expr:
        if node["argisrow"]:
            return test_row(node, lambda nodes: self.each(nodes, scope))
        word = "IS NULL" if node["nulltesttype"] == 0 else "IS NOT NULL"
        return Expr(f"({self(node['arg'], scope).sql} {word})", types.BOOL)

    def _booleantest(self, node: Node, scope: Scope) -> Expr:
        words = ("IS TRUE", "IS NOT TRUE", "IS FALSE", "IS NOT FALSE", "IS NULL", "IS NOT NULL")
        return Expr(f"({self(node['arg'], scope).sql} {words[node['booltesttype']]})", types.BOOL)

    def _rowcompareexpr(self, node: Node, scope: Scope) -> Expr:
        if self.session.exact and any(can_fail(each, self.facts) for each in node["rargs"]):
            raise refusal("a comparison of rows with an expression that can fail on its right")
        check = check_operands if self.session.exact else lambda args: None
        return compare_rows(node, lambda nodes: self.each(nodes, scope), check, self.facts)

    # Casts without a function

    def _relabeltype(self, node: Node, scope: Scope) -> Expr:
        expr, target = self(node["arg"], scope), node["resulttype"]
        same = spark_type(expr.oid) == spark_type(target) and expr.oid != types.NUMERIC
        if expr.oid == types.INT4 and target == types.OID:
            return cast(self.session, expr, target)
        if not same or is_text_form(expr.oid) or is_text_form(target):
            names = types.type_name(expr.oid), types.type_name(target)
            raise refusal(f"a cast from {names[0]} to {names[1]}")
        return expr.retyped(target, node["resulttypmod"])

    def _coerceviaio(self, node: Node, scope: Scope) -> Expr:
        return cast(self.session, self(node["arg"], scope), node["resulttype"])

    def _collateexpr(self, node: Node, scope: Scope) -> Expr:
        if node["collOid"] not in ALLOWED_COLLATIONS:
            raise refusal("a collation other than C", 'Use COLLATE "C".')
        return self(node["arg"], scope)

    # Choices

    def _caseexpr(self, node: Node, scope: Scope) -> Expr:
        if node["arg"] is not None:
            node = without_test(node)
        conditions = [self(when["expr"], scope).sql for when in node["args"]]
        results = self.each([when["result"] for when in node["args"]], scope)
        other = (
            null(node["casetype"])
            if node["defresult"] is None
            else (self(node["defresult"], scope))
        )
        return choose(node["casetype"], conditions, [*results, other])

    def _coalesceexpr(self, node: Node, scope: Scope) -> Expr:
        args = self.each(node["args"], scope)
        conditions = [f"{arg.sql} IS NOT NULL" for arg in args[:-1]]
        return choose(node["coalescetype"], conditions, args)

    def _minmaxexpr(self, node: Node, scope: Scope) -> Expr:
        args, kind = self.each(node["args"], scope), node["minmaxtype"]
        name = "greatest" if node["op"] == 0 else "least"
        if kind == types.BPCHAR:
            raise refusal(f"{name} of character values")
        if len(args) == 1:
            return args[0]
        if kind != types.NUMERIC:
            listed = ", ".join(need_order(arg, name) for arg in args)
            return Expr(f"{name}({listed})", kind)
        digits, cast_args = numeric.unify(args)
        sql = f"{name}({', '.join(arg.sql for arg in cast_args)})"
        if digits.fixed and digits.shown != -1:
            return Expr(sql, kind, digits=digits)
        whens = " ".join(
            f"WHEN {arg.sql} = {sql} THEN {arg.numeric.shown_sql}" for arg in cast_args
        )
        return Expr(sql, kind, digits=replace(digits, shown=f"CASE {whens} END"))

    def _arrayexpr(self, node: Node, scope: Scope) -> Expr:
        kind = node["array_typeid"]
        element = node["element_typeid"]
        if node["multidims"] or element == types.NUMERIC or kind not in types.ARRAY_ELEMENTS:
            raise refusal(f"this ARRAY of {types.type_name(element)}")
        items = ", ".join(item.sql for item in self.each(node["elements"], scope))
        return Expr(f"CAST(array({items}) AS {spark_type(kind)})", kind)

    def _subscriptingref(self, node: Node, scope: Scope) -> Expr:
        indexes = node.items("refupperindexpr")
        array = self(node["refexpr"], scope)
        element = types.ARRAY_ELEMENTS.get(array.oid)
        if node.items("reflowerindexpr") or len(indexes) != 1 or element in (None, types.NUMERIC):
            raise refusal("this subscript")
        assert element is not None
        index = self(indexes[0], scope).sql
        return Expr(f"get({array.sql}, {index} - 1)", element)

    # Aggregates, windows, subqueries

    def _aggref(self, node: Node, scope: Scope) -> Expr:
        if node["agglevelsup"] or node["aggkind"] != "n" or node["aggvariadic"]:
            raise refusal("an ordered-set aggregate, or one of an outer query")
        function, inner = self.function(node["aggfnoid"]), replace(scope, in_aggregate=True)
        entries = node.items("args")
        order = self.order_keys(node.items("aggorder"), entries, inner)
        if function.name in ("array_agg", "string_agg") and scope.ordered_input and not order:
            raise refusal(
                f"{function.name}() over a subquery with ORDER BY",
                f"Write the order into {function.name}().",
            )
        use = Aggregate(
            function,
            self.each([entry["expr"] for entry in entries if not entry["resjunk"]], inner),
            node["aggtype"],
            self.condition(node["aggfilter"], inner),
            bool(node.items("aggdistinct")),
            order,
        )
        return aggregate(use)

    def order_keys(
        self, clauses: Sequence[Node], entries: Sequence[Node], scope: Scope
    ) -> list[OrderKey]:
        """The keys of an ORDER BY whose clauses refer to target entries."""
        by_ref = {entry["ressortgroupref"]: entry for entry in entries}
        return [
            self.order_key(clause, self(by_ref[clause["tleSortGroupRef"]]["expr"], scope))
            for clause in clauses
        ]

    def order_key(self, clause: Node, expr: Expr) -> OrderKey:
        """One key: its direction is that of its operator."""
        operator = self.facts.operators.get(clause["sortop"])
        name = operator.function if operator else ""
        if not name.endswith(("lt", "gt")):
            raise refusal("ORDER BY with this operator")
        return OrderKey(expr, name.endswith("gt"), clause["nulls_first"])

    def _windowfunc(self, node: Node, scope: Scope) -> Expr:
        function = self.function(node["winfnoid"])
        window = self._window(node["winref"], scope)
        args = self.each(node.items("args"), scope)
        condition = self.condition(node["aggfilter"], scope)
        if not node["winagg"]:
            return window_function(function, args, window)
        over = window.over(True)
        return aggregate(Aggregate(function, args, node["wintype"], condition, over=over))

    def _window(self, winref: int, scope: Scope) -> Window:
        clause = next(c for c in scope.query["windowClause"] if c["winref"] == winref)
        entries = scope.query["targetList"]
        by_ref = {entry["ressortgroupref"]: entry["expr"] for entry in entries}
        partition = [
            partition_key(self(by_ref[each["tleSortGroupRef"]], scope), each["eqop"])
            for each in clause.items("partitionClause")
        ]
        order = self.order_keys(clause.items("orderClause"), entries, scope)
        offsets = []
        for name in ("startOffset", "endOffset"):
            offset = clause[name]
            value = None if offset is None else self(offset, scope).value
            if offset is not None and not isinstance(value, int):
                raise refusal("a window frame whose offset is not a constant")
            offsets.append(value)
        return Window(partition, order, clause["frameOptions"], offsets[0], offsets[1])

    def _groupingfunc(self, node: Node, scope: Scope) -> Expr:
        if not scope.query.items("groupingSets"):
            return literal(types.INT4, 0)
        if scope.totals:
            return Expr(f"CAST({2 ** len(node.items('args')) - 1} AS INT)", types.INT4)
        args = self.each(node.items("args"), scope)
        bits = [
            f"shiftleft(CAST(grouping({arg.sql}) AS INT), {len(args) - 1 - i})"
            for i, arg in enumerate(args)
        ]
        return Expr(f"({' + '.join(bits)})", types.INT4)

    def _sublink(self, node: Node, scope: Scope) -> Expr:
        kind = node["subLinkType"]
        if kind in (_ANY, _ALL):
            found = self._in_subquery(node, scope, three_valued=True)
            return found if kind == _ANY else Expr(f"(NOT {found.sql})", types.BOOL)
        if kind not in (_EXISTS, _EXPR):
            raise refusal("this kind of subquery")
        sql, outputs = self._subquery(node["subselect"], scope)
        if kind == _EXISTS:
            return Expr(f"(EXISTS ({sql}))", types.BOOL)
        if self._hoist and not is_correlated(node["subselect"]):
            return self._variable(sql, outputs[0])
        return scalar(sql, outputs)

    def _variable(self, sql: str, output: Output) -> Expr:
        number = len(self.variables) + 1
        alias = f"system.session.h{number}"
        column = output.expr("q", 1)
        names, kinds, items = [f"h{number}"], [spark_type(column.oid, column.digits)], ["q.o1"]
        renamed = output.expr("q", 1)
        if output.shown == "column":
            names.append(f"h{number}s")
            kinds.append("INT")
            items.append("q.o1s")
        statement = f"SELECT {', '.join(items)} FROM ({sql}) AS q"
        self.variables.append(Variable(tuple(names), tuple(kinds), statement))
        expr = (
            retarget(renamed, alias)
            if output.oid == types.NUMERIC
            else (Expr(alias, output.oid, output.typmod))
        )
        if output.shown == "column":
            digits = replace(expr.numeric, shown=f"{alias}s")
            return replace(expr, digits=digits)
        return expr

    def _in_subquery(self, node: Node, scope: Scope, three_valued: bool = False) -> Expr:
        """left IN (subquery), also for <> ALL; Spark gives false where SQL says NULL, outside of
        a filter, so ``three_valued`` looks for the NULLs itself."""
        sql, outputs = self._subquery(node["subselect"], scope)
        test = node["testexpr"]
        tests = test["args"] if test.tag == "BOOLEXPR" else [test]
        lefts, rights = [], []
        for each in tests:
            if each.tag != "OPEXPR":
                raise refusal("this comparison with a subquery")
            name = self.function(each["opfuncid"]).name
            wanted = name if node["subLinkType"] == _ANY else _negated(name)
            if wanted not in EQUALITY:
                raise refusal("a comparison with a subquery other than = ANY or <> ALL")
            left, right = each["args"]
            lefts.append(self(left, scope))
            rights.append(self._tested(right, outputs))
        if any(expr.oid == types.BPCHAR for expr in (*lefts, *rights)):
            raise refusal("comparing character values with a subquery", "Cast them to text.")
        kept = ", ".join(right.sql for right in rights)
        left_sql = ", ".join(left.sql for left in lefts)
        left_sql = f"({left_sql})" if len(lefts) > 1 else left_sql
        found = f"({left_sql} IN (SELECT {kept} FROM ({sql}) AS q))"
        if not three_valued:
            return Expr(found, types.BOOL)
        if len(lefts) > 1:
            raise refusal("IN of several columns outside of a WHERE clause")
        null_in_it = f"EXISTS (SELECT 1 FROM ({sql}) AS q WHERE {kept} IS NULL)"
        unknown = f"({left_sql} IS NULL AND EXISTS ({sql})) OR {null_in_it}"
        return Expr(f"CASE WHEN {found} THEN TRUE WHEN {unknown} THEN NULL ELSE FALSE END",
                    types.BOOL)  # fmt: skip

    def _tested(self, node: Node, outputs: list[Any]) -> Expr:
        """A column of the subquery, under the casts that the comparison needs."""
        if node.tag == "PARAM" and node["paramkind"] == 2:
            expr: Expr = outputs[node["paramid"] - 1].expr("q", node["paramid"])
            return expr
        if node.tag == "RELABELTYPE":
            return self._tested(node["arg"], outputs).retyped(node["resulttype"])
        if node.tag == "FUNCEXPR" and len(node["args"]) == 1:
            inner = self._tested(node["args"][0], outputs)
            return self._call(node["funcid"], [inner], node["funcresulttype"])
        raise refusal("this comparison with a subquery")


def _negated(name: str) -> str:
    return name[:-2] + "eq" if name.endswith("ne") else ""


def _with_aggregate(home: Scope, scope: Scope) -> Scope:
    """``home``, inside an aggregate when ``scope`` is (they are then the same level)."""
    return replace(home, in_aggregate=True) if scope.in_aggregate else home


_NAMES = {
    "ROWEXPR": "a row constructor",
    "COERCETODOMAIN": "a cast to a domain",
    "ARRAYCOERCEEXPR": "a cast of an array",
    "FIELDSELECT": "a field of a composite value",
    "CONVERTROWTYPEEXPR": "a conversion of a row type",
    "XMLEXPR": "an XML expression",
    "JSONVALUEEXPR": "an SQL/JSON expression",
    "JSONEXPR": "an SQL/JSON expression",
    "JSONCONSTRUCTOREXPR": "an SQL/JSON expression",
    "JSONISPREDICATE": "an SQL/JSON expression",
    "NEXTVALUEEXPR": "nextval()",
    "NAMEDARGEXPR": "a named argument",
    "SETTODEFAULT": "DEFAULT",
}
