# SPDX-License-Identifier: Apache-2.0
"""A publication's WHERE as a Spark SQL predicate, by the stricter rules of ``exact``.

The predicate is true, false or NULL where PostgreSQL's condition is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from penstock.change.relation import LakeColumn
from penstock.errors import FeatureNotSupportedError
from penstock.names import quote_spark
from penstock.sql.nodes import Node
from penstock.sql.translate.expressions import Expressions
from penstock.sql.translate.facts import Facts
from penstock.sql.translate.scope import Scope
from penstock.sql.translate.shown import shown
from penstock.sql.translate.values import (
    Expr,
    Session,
    UntranslatableError,
    column,
    refusal,
)

_ONE_TABLE = Node("QUERY", {"rtable": [Node("RANGETBLENTRY", {"rtekind": 0})]})
"""What a filter's Vars refer to: the node tree of a filter has no range table of its own."""


class UntranslatableFilterError(FeatureNotSupportedError):
    """A filter that is not exact; ``what`` says why, ``node`` is the expression's text."""

    what: str
    node: str


def translate_filter(tree: Node, columns: Sequence[LakeColumn], facts: Facts, row: str) -> str:
    """The predicate over the fields of ``row``, a struct (its name as SQL).

    UntranslatableFilterError (0A000) names the innermost expression that is not exact.
    """
    expressions = Expressions(Session(exact=True), facts, (), no_subquery)
    scope = Scope(_ONE_TABLE, None, columns={1: columns_of(columns, f"{row}.")})
    try:
        return expressions(tree, scope).sql
    except FeatureNotSupportedError as error:
        raise _unexact(error, expressions.refused or tree, columns, facts) from error


def _unexact(
    error: FeatureNotSupportedError, node: Node, columns: Sequence[LakeColumn], facts: Facts
) -> UntranslatableFilterError:
    what = error.what if isinstance(error, UntranslatableError) else error.message
    text = shown(node, {each.attnum: each.name for each in columns}, facts)
    found = UntranslatableFilterError(f"{text}: {what}", hint=error.hint)
    found.what, found.node = what, text
    return found


def columns_of(columns: Sequence[LakeColumn], prefix: str) -> Callable[[int], Expr]:
    """By attnum, the columns of a table whose names have a prefix."""
    by_number = {each.attnum: each for each in columns}

    def find(attnum: int) -> Expr:
        found = by_number.get(attnum)
        if found is None:
            raise refusal("a system column")
        return column(prefix + quote_spark(found.name), found.type_oid, found.typmod)

    return find


def no_subquery(query: Node, scope: Scope) -> NoReturn:
    """Refuse a subquery."""
    raise refusal("a subquery")
