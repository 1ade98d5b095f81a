# SPDX-License-Identifier: Apache-2.0
"""An expression of a node tree as text, to name it in a message; never to be run.

It is close to PostgreSQL's pg_get_expr, which cannot show a part of a tree.  Casts that PostgreSQL
put in are left out, and constants are shown without the type.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from penstock.change import types
from penstock.errors import FeatureNotSupportedError
from penstock.sql import constants
from penstock.sql.nodes import Node
from penstock.sql.translate.facts import Facts

_NULL_TESTS = ("IS NULL", "IS NOT NULL")
_BOOLEAN_TESTS = (
    "IS TRUE", "IS NOT TRUE", "IS FALSE", "IS NOT FALSE", "IS UNKNOWN", "IS NOT UNKNOWN",
)  # fmt: skip
_EXPLICIT_CAST, _IMPLICIT_CAST = 1, 2
"""CoercionForm."""


def shown(node: Any, columns: Mapping[int, str], facts: Facts) -> str:
    """The text of an expression; ``columns`` are the table's names by attnum."""
    return _Shown(columns, facts).text(node)


class _Shown:
    def __init__(self, columns: Mapping[int, str], facts: Facts) -> None:
        self._columns = columns
        self._facts = facts

    def text(self, node: Any) -> str:
        """One node; a kind without a method is shown by its name and what is in it."""
        method = getattr(self, f"_{node.tag.lower()}", None)
        if method is not None:
            text: str = method(node)
            return text
        inner = [f for f in node.fields.values() if isinstance(f, (Node, list))]
        return f"{node.tag}({self._list(inner)})"

    def _list(self, values: list[Any]) -> str:
        flat: list[Any] = []
        for value in values:
            flat += value if isinstance(value, list) else [value]
        return ", ".join(self.text(value) for value in flat if isinstance(value, Node))

    def _var(self, node: Node) -> str:
        return self._columns.get(node["varattno"], f"column number {node['varattno']}")

    def _const(self, node: Node) -> str:
        if node["constisnull"]:
            return "NULL"
        try:
            value = constants.from_datum(node["consttype"], node["constvalue"])
        except FeatureNotSupportedError:
            return f"a constant of {types.type_name(node['consttype'])}"
        if isinstance(value, Decimal):
            return f"{value:f}"
        plain = isinstance(value, (bool, int, float))
        return str(value).lower() if plain else "'" + str(value).replace("'", "''") + "'"

    def _funcexpr(self, node: Node) -> str:
        args, form = node.items("args"), node["funcformat"]
        function = self._facts.functions.get(node["funcid"])
        name = function.name if function else f"function {node['funcid']}"
        if args and form == _IMPLICIT_CAST:
            return self.text(args[0])
        if args and form == _EXPLICIT_CAST:
            return f"{self.text(args[0])}::{name}"
        return f"{name}({self._list(args)})"

    def _operator(self, node: Node) -> str:
        operator = self._facts.operators.get(node["opno"])
        return operator.symbol if operator else f"operator {node['opno']}"

    def _opexpr(self, node: Node) -> str:
        *left, right = (self.text(arg) for arg in node["args"])
        return f"({' '.join([*left, self._operator(node), right])})"

    def _distinctexpr(self, node: Node) -> str:
        left, right = (self.text(arg) for arg in node["args"])
        return f"({left} IS DISTINCT FROM {right})"

    def _nullifexpr(self, node: Node) -> str:
        return f"NULLIF({self._list(node['args'])})"

    def _scalararrayopexpr(self, node: Node) -> str:
        left, right = (self.text(arg) for arg in node["args"])
        word = "ANY" if node["useOr"] else "ALL"
        return f"({left} {self._operator(node)} {word} ({right}))"

    def _rowcompareexpr(self, node: Node) -> str:
        operator = self._facts.operators.get(node["opnos"][0])
        symbol = operator.symbol if operator else "compared with"
        return f"(ROW({self._list(node['largs'])}) {symbol} ROW({self._list(node['rargs'])}))"

    def _rowexpr(self, node: Node) -> str:
        return f"ROW({self._list(node.items('args'))})"

    def _boolexpr(self, node: Node) -> str:
        texts = [self.text(arg) for arg in node["args"]]
        if node["boolop"] == "not":
            return f"(NOT {texts[0]})"
        word = f" {str(node['boolop']).upper()} "
        return f"({word.join(texts)})"

    def _relabeltype(self, node: Node) -> str:
        return self.text(node["arg"])

    def _collateexpr(self, node: Node) -> str:
        return f"({self.text(node['arg'])} COLLATE with OID {node['collOid']})"

    def _nulltest(self, node: Node) -> str:
        return f"({self.text(node['arg'])} {_NULL_TESTS[node['nulltesttype']]})"

    def _booleantest(self, node: Node) -> str:
        return f"({self.text(node['arg'])} {_BOOLEAN_TESTS[node['booltesttype']]})"

    def _coalesceexpr(self, node: Node) -> str:
        return f"COALESCE({self._list(node['args'])})"

    def _minmaxexpr(self, node: Node) -> str:
        return f"{'GREATEST' if node['op'] == 0 else 'LEAST'}({self._list(node['args'])})"

    def _arrayexpr(self, node: Node) -> str:
        return f"ARRAY[{self._list(node.items('elements'))}]"

    def _caseexpr(self, node: Node) -> str:
        subject = "" if node["arg"] is None else f" {self.text(node['arg'])}"
        whens = " ".join(
            f"WHEN {self.text(when['expr'])} THEN {self.text(when['result'])}"
            for when in node["args"]
        )
        other = "" if node["defresult"] is None else f" ELSE {self.text(node['defresult'])}"
        return f"CASE{subject} {whens}{other} END"

    def _casetestexpr(self, node: Node) -> str:
        return "the value of CASE"
