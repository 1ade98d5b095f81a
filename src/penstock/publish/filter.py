# SPDX-License-Identifier: Apache-2.0
"""Row filters of publications as Spark Columns whose decision is PostgreSQL's for every row.

In:   the node tree of a WHERE clause (``pg_publication_rel.prqual``), the table's columns, and the
      functions and operators that the tree names.
Out:  a predicate over a change's ``old`` or ``new`` row (``change/schema.py``).  A row is published
      when it is true; false and NULL count alike (pgoutput.c, pgoutput_row_filter_exec_expr).

PostgreSQL itself has checked the clause (postgres.md §4.1): names, types, collations and operators
are resolved, functions are built in and immutable.  What is left to decide here is whether Spark
has exactly the same value for every row; the rules are those of queries (``sql/translate``) made
stricter (``sql/translate/exact.py``).  docs/filters.md lists them.

A filter can fail on a row, by division by zero or overflow.  In PostgreSQL the walsender ends with
that error, at that change, whenever the subscriber asks again, until the filter or the publication
is changed.  The same must hold here: whoever evaluates a filter does it in a session made by
``lake.query.filter_session``, inside of ``lake.query.postgres_errors``, and lets the error end the
stream.  A row that a filter fails on is never left out, and never sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as f

from penstock.change.relation import LakeColumn
from penstock.change.types import arrow_type
from penstock.errors import FeatureNotSupportedError
from penstock.names import quote_pg_qualified
from penstock.sql.nodes import Node, parse_nodes, walk
from penstock.sql.translate.condition import UntranslatableFilterError, translate_filter
from penstock.sql.translate.facts import Facts

Image = Literal["old", "new"]


@dataclass(frozen=True)
class PublishedWhere:
    """A WHERE clause as the catalog has it; ``tree`` is the text of its node tree."""

    publication: str
    schema: str
    table: str
    columns: tuple[LakeColumn, ...]
    tree: str

    @cached_property
    def nodes(self) -> Node:
        """The tree; its functions and operators are to be looked up (``facts.needs``)."""
        node: Node = parse_nodes(self.tree)
        return node

    @cached_property
    def kinds(self) -> dict[int, tuple[str, pa.DataType]]:
        """By attnum, the columns' names and types in the lake."""
        return {
            each.attnum: (each.name, arrow_type(each.type_oid, each.typmod))
            for each in self.columns
        }


@dataclass(frozen=True)
class RowFilter:
    """A compiled filter: Spark SQL over the struct ``old`` or ``new``, and the columns it reads."""

    old: str
    new: str
    columns: frozenset[str]

    def column(self, image: Image) -> Column:
        """The decision on one of a change's rows; NULL where PostgreSQL's is."""
        return f.expr(self.old if image == "old" else self.new)


def compile_filter(where: PublishedWhere, facts: Facts) -> RowFilter:
    """Compile one; FeatureNotSupportedError (0A000) names the expression that is not exact."""
    try:
        old, new = (
            translate_filter(where.nodes, where.columns, facts, row) for row in ("old", "new")
        )
    except UntranslatableFilterError as error:
        raise _refusal(where, error) from error
    return RowFilter(old, new, frozenset(_names(where.nodes, where.columns)))


def _names(tree: Node, columns: Sequence[LakeColumn]) -> set[str]:
    used = {node["varattno"] for node in walk(tree) if node.tag == "VAR"}
    return {each.name for each in columns if each.attnum in used}


def _refusal(where: PublishedWhere, error: UntranslatableFilterError) -> FeatureNotSupportedError:
    table = quote_pg_qualified(where.schema, where.table)
    return FeatureNotSupportedError(
        f'the WHERE clause of table {table} in publication "{where.publication}" is not supported'
        " by the lake",
        detail=f"{error.node} has no exact form in Spark: {error.what.rstrip(',;')}.",
        hint=error.hint or "docs/filters.md lists the operators and functions that are supported.",
    )
