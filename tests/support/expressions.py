# SPDX-License-Identifier: Apache-2.0
"""Expressions that are typed by construction, so that PostgreSQL accepts most of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import strategies as st

Listed = Mapping[str, list[str]]


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
