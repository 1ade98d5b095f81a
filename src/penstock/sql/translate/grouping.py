# SPDX-License-Identifier: Apache-2.0
"""GROUP BY's grouping sets, written out: ROLLUP, CUBE and products of several become one list."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from penstock.sql.nodes import Node
from penstock.sql.translate.values import refusal

Sets = list[tuple[int, ...]]
"""Grouping sets; a set is the sort-group references of its keys."""

_EMPTY, _SIMPLE, _ROLLUP, _CUBE, _SETS = range(5)
_LIMIT = 4096
"""PostgreSQL's own limit."""


def grouping_sets(query: Node) -> Sets:
    """The grouping sets of a query, empty when it has none."""
    clauses = query.items("groupingSets")
    if not clauses:
        return []
    product: Sets = [()]
    for clause in clauses:
        product = [_union(a, b) for a in product for b in _expanded(clause)]
        if len(product) > _LIMIT:
            raise refusal("GROUP BY with so many grouping sets")
    return list(dict.fromkeys(map(_sorted, product))) if query["groupDistinct"] else product


def _expanded(node: Node) -> Sets:
    kind, content = node["kind"], node.items("content")
    if kind == _EMPTY:
        return [()]
    if kind == _SIMPLE:
        return [tuple(content)]
    if kind == _SETS:
        return [each for item in content for each in _expanded(item)]
    parts = [tuple(item["content"]) for item in content]
    if kind == _ROLLUP:
        return [_joined(parts[:size]) for size in range(len(parts), -1, -1)]
    return [
        _joined(chosen)
        for size in range(len(parts), -1, -1)
        for chosen in itertools.combinations(parts, size)
    ]


def _joined(parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    joined: tuple[int, ...] = ()
    for part in parts:
        joined = _union(joined, part)
    return joined


def _union(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return (*a, *(ref for ref in b if ref not in a))


def _sorted(group: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(group))
