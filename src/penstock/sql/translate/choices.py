# SPDX-License-Identifier: Apache-2.0
"""CASE over expressions of one PostgreSQL type; a numeric's display scale is chosen with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from penstock.change import types
from penstock.sql.nodes import Node
from penstock.sql.translate import numeric
from penstock.sql.translate.values import Digits, Expr


def choose(oid: int, conditions: Sequence[str], results: Sequence[Expr]) -> Expr:
    """CASE: ``results`` has one more than ``conditions``, for ELSE."""
    shown: int | str = 0
    digits: Digits | None = None
    typmods = {result.typmod for result in results}
    if oid == types.NUMERIC:
        known = [result for result in results if result.value is not None] or list(results)
        digits, _ = numeric.unify(known)
        results = [replace(r, sql=f"CAST({r.sql} AS {digits.sql_type})") for r in results]
        if digits.shown == -1:
            shown = _case(conditions, [_shown(r) for r in results])
            digits = replace(digits, shown=shown)
    sql = _case(conditions, [result.sql for result in results])
    return Expr(sql, oid, typmods.pop() if len(typmods) == 1 else -1, digits)


def _shown(result: Expr) -> str:
    return "CAST(0 AS INT)" if result.value is None else result.numeric.shown_sql


def _case(conditions: Sequence[str], results: Sequence[str]) -> str:
    whens = " ".join(f"WHEN {c} THEN {r}" for c, r in zip(conditions, results, strict=False))
    return f"CASE {whens} ELSE {results[-1]} END" if whens else results[-1]


def without_test(node: Node) -> Node:
    """CASE x WHEN a: its comparisons hold a placeholder for x; put x there."""
    whens = [
        Node("CASEWHEN", {**when.fields, "expr": _filled(when["expr"], node["arg"])})
        for when in node["args"]
    ]
    return Node("CASEEXPR", {**node.fields, "args": whens, "arg": None})


def _filled(value: Any, arg: Node) -> Any:
    if isinstance(value, list):
        return [_filled(item, arg) for item in value]
    if not isinstance(value, Node) or value.tag == "CASEEXPR":
        return value
    if value.tag == "CASETESTEXPR":
        return arg
    return Node(value.tag, {name: _filled(field, arg) for name, field in value.fields.items()})
