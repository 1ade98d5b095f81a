# SPDX-License-Identifier: Apache-2.0
"""The condition of ``SELECT ... FROM table WHERE condition`` as a Spark SQL predicate.

In:   the analysed tree of such a query, the table's columns, the functions and operators in it.
Out:  a predicate over the bare column names, for rows that are in no table yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from penstock.change.relation import LakeColumn
from penstock.errors import PenstockError
from penstock.names import quote_spark
from penstock.sql.nodes import Node
from penstock.sql.translate.expressions import Expressions
from penstock.sql.translate.facts import Facts
from penstock.sql.translate.scope import Scope
from penstock.sql.translate.values import Expr, Session, column, refusal


def translate_condition(query: Node, columns: Sequence[LakeColumn], facts: Facts) -> str:
    """The predicate; FeatureNotSupportedError (0A000) names what has no translation."""
    by_number = {each.attnum: each for each in columns}

    def find(attnum: int) -> Expr:
        found = by_number.get(attnum)
        if found is None:
            raise refusal("a system column")
        return column(quote_spark(found.name), found.type_oid, found.typmod)

    expressions = Expressions(Session(), facts, (), _no_subquery)
    scope = Scope(query, None, columns={1: find})
    condition = expressions.condition(query["jointree"]["quals"], scope)
    if condition is None:
        raise PenstockError("the query has no condition")
    return condition


def _no_subquery(query: Node, scope: Scope) -> NoReturn:
    raise refusal("a subquery")
