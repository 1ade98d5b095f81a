# SPDX-License-Identifier: Apache-2.0
"""Expressions that are typed by construction, so that PostgreSQL accepts most of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import strategies as st

Listed = Mapping[str, list[str]]

SHARED: Listed = {
    "int": [
        "({int} + {int})", "({int} - {int})", "({int} * {int})", "({int} / {int})",
        "({int} % {int})", "(-{int})", "abs({int})", "length({text})", "strpos({text}, {text})",
        "({date} - {date})", "{numeric}::int", "{bool}::int", "octet_length({text})",
        "coalesce({int}, {int})", "nullif({int}, {int})", "greatest({int}, {int}, {int})",
        "CASE WHEN {bool} THEN {int} ELSE {int} END", "({int} & {int})", "{int}::int8",
    ],
    "numeric": [
        "({numeric} + {numeric})", "({numeric} - {numeric})", "({numeric} * {numeric})",
        "({numeric} % {numeric})", "(-{numeric})", "abs({numeric})", "round({numeric}, 2)",
        "trunc({numeric}, 1)", "ceil({numeric})", "floor({numeric})", "({numeric} + {int})",
        "{numeric}::numeric(14,3)", "CASE WHEN {bool} THEN {numeric} ELSE {numeric} END",
        "coalesce({numeric}, {numeric})", "least({numeric}, {numeric})",
        "extract(epoch from {time})", "extract(year from {date})", "extract(second from {time})",
        "extract(week from {date})", "nullif({numeric}, {numeric})",
    ],
    "float": [
        "({float} + {float})", "({float} - {float})", "({float} * {float})", "({float} / {float})",
        "floor({float})", "ceil({float})", "round({float})", "trunc({float})", "{int}::float8",
        "{numeric}::float8", "abs({float})", "greatest({float}, {float})", "(-{float})",
    ],
    "text": [
        "({text} || {text})", "upper({text})", "lower({text})", "substr({text}, {small})",
        "substr({text}, {small}, {small})", "left({text}, {small})", "right({text}, {small})",
        "replace({text}, {text}, {text})", "btrim({text})", "ltrim({text}, {text})", "{bool}::text",
        "coalesce({text}, {text})", "reverse({text})",
        "CASE WHEN {bool} THEN {text} ELSE {text} END", "translate({text}, {text}, {text})",
        "md5({text})", "{text}::varchar(3)",
    ],
    "date": [
        "({date} + {small})", "({date} - {small})", "{time}::date", "coalesce({date}, {date})",
        "least({date}, {date})",
    ],
    "time": [
        "date_trunc('month', {time})", "date_trunc('week', {time})", "{date}::timestamp",
        "({time} + interval '1 month')", "({time} - interval '1 day 00:00:00.5')",
        "({date} + interval '1 year')", "greatest({time}, {time})",
    ],
    "bool": [
        "(NOT {bool})", "({bool} AND {bool})", "({bool} OR {bool})",
        "({int} IS DISTINCT FROM {int})", "({numeric} BETWEEN {int} AND {numeric})",
        "starts_with({text}, {text})",
    ],
}  # fmt: skip
"""Rules of expressions that a query and a row filter may both have."""


def together(*parts: Listed) -> dict[str, list[str]]:
    """Each kind with all that is listed of it."""
    kinds = dict.fromkeys(kind for part in parts for kind in part)
    return {kind: [rule for part in parts for rule in part.get(kind, ())] for kind in kinds}


@dataclass(frozen=True)
class Grammar:
    """By kind of value: columns, constants, and rules in which ``{kind}`` is an expression.

    ``leaves`` are kinds with nothing but constants; a kind without rules has no operations.
    """

    columns: Listed
    constants: Listed
    rules: Listed
    leaves: Listed

    def expressions(self, kind: str, depth: int) -> st.SearchStrategy[str]:
        """An expression of a kind, at most ``depth`` operations deep."""

        @st.composite
        def expression(draw: st.DrawFn, kind: str, depth: int) -> str:
            if kind in self.leaves:
                return draw(st.sampled_from(self.leaves[kind]))
            if depth == 0 or kind not in self.rules or draw(st.integers(0, 3)) == 0:
                return draw(st.sampled_from(self.columns[kind] * 2 + self.constants[kind]))
            parts = draw(st.sampled_from(self.rules[kind])).split("{")
            text = parts[0]
            for part in parts[1:]:
                inner, _, rest = part.partition("}")
                text += draw(expression(inner, depth - 1)) + rest
            return text

        return expression(kind, depth)
