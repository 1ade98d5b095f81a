# SPDX-License-Identifier: Apache-2.0
"""Changes of one relation to the changes that a subscriber is sent.

In:   a DataFrame in the change schema (``change/schema.py``) with the columns of the relation that
      was changed, a plan (``publish/plan.py``), and its filters, compiled.
Out:  a DataFrame in the change schema of the plan's relation: the column list is applied to ``old``
      and ``new``, operations that are not published and rows that no filter lets through are gone,
      and an UPDATE may have become another operation.  ``(commit_lsn, seq)`` stays, so the order
      does; rows may disappear, never multiply.

As pgoutput.c does it (pgoutput_row_filter):

    operation              filters of    evaluated on   published when
    --------------------   -----------   ------------   -----------------------------------------
    INSERT                 INSERT        new            true
    DELETE                 DELETE        old            true; never without an old row
    UPDATE, no old row     UPDATE        new            true
    UPDATE with old row    UPDATE        both           old and new    UPDATE
                                                        new only       INSERT
                                                        old only       DELETE
                                                        neither        nothing
    TRUNCATE               none                         the plan says so

NULL counts as false.  What an UPDATE has become is not compared with ``publish`` again: it keeps
the subscriber equal to the rows that pass the filter.

A column of ``new`` that is ``unchanged`` has no value there.  Where the old row has it (it is of
the replica identity, or that is FULL) the filters see it, and an INSERT that the UPDATE becomes is
sent it; others stay ``unchanged`` in that INSERT.  A filter of UPDATEs cannot read those:
PostgreSQL lets no UPDATE happen while one reads columns outside the identity
(CheckCmdReplicaIdentity).

All of it is Spark, as filters are: projections and a condition over the frame, without a shuffle
and without Python rows, that Spark fuses with whatever reads the changes.  They are made as SQL
texts, as filters are: a Column of a hundred pieces is as many calls into the JVM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.change.schema import DELETE, INSERT, TRUNCATE, UPDATE
from penstock.errors import FeatureNotSupportedError
from penstock.names import quote_spark, quote_spark_literal
from penstock.publish.filter import Image, PublishedWhere, RowFilter, compile_filter
from penstock.publish.plan import Plan, RowAction
from penstock.sql.arrow_filter import Decide, decide_any
from penstock.sql.translate.facts import Facts

LETTERS: dict[RowAction, str] = {"insert": INSERT, "update": UPDATE, "delete": DELETE}


@dataclass(frozen=True)
class CompiledPlan:
    """A plan with its filters as Spark Columns, an entry for each operation that is published.

    ``plain`` has what decides by Arrow whether one of an operation's filters is true, where Arrow
    can.
    """

    plan: Plan
    filters: dict[RowAction, tuple[RowFilter, ...]]
    plain: dict[RowAction, Decide] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """Whether no filter needs Spark."""
        return all(action in self.plain for action, filters in self.filters.items() if filters)


def compile_plan(plan: Plan, facts: Facts) -> CompiledPlan:
    """Compile a plan's filters; ``facts`` has the functions and operators that they name.

    FeatureNotSupportedError (0A000): one has no exact form in Spark, or no column is published.
    """
    if not plan.relation.columns:
        table = f"{plan.relation.schema}.{plan.relation.name}"
        raise FeatureNotSupportedError(f'cannot publish table "{table}" without columns')
    known: dict[PublishedWhere, RowFilter] = {}
    for where in {each: None for of in plan.filters.values() for each in of}:
        known[where] = compile_filter(where, facts)
    filters = {action: tuple(map(known.__getitem__, of)) for action, of in plan.filters.items()}
    plain: dict[RowAction, Decide] = {}
    by_arrow: dict[tuple[PublishedWhere, ...], Decide | None] = {}
    for action, of in plan.filters.items():
        if of and of not in by_arrow:
            by_arrow[of] = decide_any([(each.nodes, each.kinds) for each in of], facts)
        decide = by_arrow.get(of)
        if decide is not None:
            plain[action] = decide
    return CompiledPlan(plan, filters, plain)


def published_changes(changes: DataFrame, compiled: CompiledPlan) -> DataFrame:
    """What is published of changes.

    The frame must be of a session that ``lake.query.filter_session`` made, and what comes out be
    read inside of ``lake.query.postgres_errors``: a row that a filter fails on ends the stream.
    """
    names = _names(changes)
    listed = [column.name for column in compiled.plan.relation.columns]
    updates = compiled.filters.get("update")
    if not updates:
        return changes.where(_published(compiled)).selectExpr(
            "op", *_KEY, f"{_row('old', names, listed)} AS old",
            f"{_row('new', names, listed)} AS new",
            f"{_not_empty(_listed_unchanged(names, listed))} AS unchanged",
        )  # fmt: skip
    complete = changes.selectExpr(
        "op", *_KEY, "old", f"{_complete_new(names)} AS new", "unchanged", "new AS sent"
    )
    transformed = complete.where(_published(compiled)).selectExpr(
        f"{_transformed(updates)} AS op", *_KEY, "old", "new", "unchanged", "sent"
    )
    return transformed.selectExpr("op", *_KEY, *_transformed_rows(names, listed))


def sent_as(compiled: CompiledPlan) -> str:
    """The letter of the operation as which a change is sent, in SQL; NULL when nothing is.

    For changes without ``unchanged`` columns; it is over ``op``, ``old`` and ``new``, of which it
    reads the columns of the filters.
    """
    updates = compiled.filters.get("update")
    op = _transformed(updates) if updates else "op"
    return f"CASE WHEN {_published(compiled)} THEN {op} END"


_KEY = ("commit_lsn", "seq")


def _names(changes: DataFrame) -> list[str]:
    row = changes.schema["new"].dataType
    assert isinstance(row, StructType)
    return row.fieldNames()


def _complete_new(names: Sequence[str]) -> str:
    """``new`` with the values that only the old row has.

    The conditions are nested so that they are optimized away over a feed without ``unchanged``.
    """
    fields = []
    for name in names:
        literal, column = quote_spark_literal(name), quote_spark(name)
        value = f"IF(array_contains(unchanged, {literal}), old.{column}, new.{column})"
        fields.append(f"{literal}, {value}")
    complete = f"IF(old IS NOT NULL, named_struct({', '.join(fields)}), new)"
    return f"IF(unchanged IS NOT NULL, {complete}, new)"


def _published(compiled: CompiledPlan) -> str:
    """Whether anything is sent of a change."""
    cases = [f"WHEN '{TRUNCATE}' THEN {str(compiled.plan.truncate).lower()}"]
    for action, filters in compiled.filters.items():
        cases.append(f"WHEN '{LETTERS[action]}' THEN {_passes(action, filters)}")
    return f"CASE op {' '.join(cases)} ELSE false END"


def _passes(action: RowAction, filters: Sequence[RowFilter]) -> str:
    old, new = _matches(filters, "old"), _matches(filters, "new")
    if action == "delete":
        return f"IF(old IS NOT NULL, {old}, false)"
    if action == "insert" or not filters:
        return new
    # Both are evaluated, as in PostgreSQL: a row that the filter fails on must not get past.
    return f"IF(old IS NOT NULL, greatest({old}, {new}), {new})"


def _matches(filters: Sequence[RowFilter], image: Image) -> str:
    """Whether one of the filters is true; from the first on that is, none is evaluated."""
    if not filters:
        return "true"
    texts = (each.old if image == "old" else each.new for each in filters)
    return f"coalesce({' OR '.join(f'({text})' for text in texts)}, false)"


def _transformed(filters: Sequence[RowFilter]) -> str:
    """The operation that a published change is sent as."""
    return (
        f"CASE WHEN op <> '{UPDATE}' OR old IS NULL THEN op"
        f" WHEN NOT {_matches(filters, 'old')} THEN '{INSERT}'"
        f" WHEN NOT {_matches(filters, 'new')} THEN '{DELETE}' ELSE '{UPDATE}' END"
    )


def _transformed_rows(names: Sequence[str], listed: Sequence[str]) -> list[str]:
    """``old``, ``new`` and ``unchanged`` of what is sent, where an UPDATE may be another one."""
    old, new, sent = (_row(image, names, listed) for image in ("old", "new", "sent"))
    unchanged = _listed_unchanged(names, listed)
    missing = ", ".join(
        f"IF(old.{quote_spark(name)} IS NULL, {quote_spark_literal(name)}, NULL)" for name in listed
    )
    of_insert = f"array_intersect(array_compact(array({missing})), unchanged)"
    return [
        f"IF(op <> '{INSERT}', {old}, NULL) AS old",
        f"CASE op WHEN '{INSERT}' THEN {new} WHEN '{UPDATE}' THEN {sent} END AS new",
        f"CASE op WHEN '{INSERT}' THEN {_not_empty(of_insert)}"
        f" WHEN '{UPDATE}' THEN {_not_empty(unchanged)} END AS unchanged",
    ]


def _row(image: str, names: Sequence[str], listed: Sequence[str]) -> str:
    """One of a change's rows with the listed columns, in their order."""
    if list(names) == list(listed):
        return image
    fields = (f"{quote_spark_literal(name)}, {image}.{quote_spark(name)}" for name in listed)
    return f"IF({image} IS NOT NULL, named_struct({', '.join(fields)}), NULL)"


def _listed_unchanged(names: Sequence[str], listed: Sequence[str]) -> str:
    if set(names) == set(listed):
        return "unchanged"
    return f"array_intersect(array({', '.join(map(quote_spark_literal, listed))}), unchanged)"


def _not_empty(names: str) -> str:
    return f"IF(unchanged IS NOT NULL, nullif({names}, CAST(array() AS array<string>)), NULL)"
