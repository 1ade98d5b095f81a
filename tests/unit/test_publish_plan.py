# SPDX-License-Identifier: Apache-2.0
"""Which changes of a relation a subscriber is sent, from the publications that it names.

Rules of pgoutput.c; tests/properties/test_published_oracle.py compares them with running servers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest

from penstock.change import types
from penstock.change.publication import (
    Publication,
    PublicationFacts,
    PublicationTable,
    PublishableColumn,
    PublishableRelation,
    PublishAction,
)
from penstock.change.relation import LakeColumn
from penstock.errors import FeatureNotSupportedError
from penstock.publish.plan import Plan, plan_relation

ALL: tuple[PublishAction, ...] = ("insert", "update", "delete", "truncate")
PUBLIC, OTHER = 2200, 2300
LEAF, MIDDLE, ROOT, PLAIN = 11, 12, 13, 14


def column(
    attnum: int, name: str, *, key: bool = False, generated: Literal["", "s", "v"] = ""
) -> PublishableColumn:
    return PublishableColumn(LakeColumn(attnum, name, types.INT4, -1, key), key, generated)


COLUMNS = (column(1, "id", key=True), column(2, "a"), column(4, "b"))


def relation(oid: int, name: str, **fields: Any) -> PublishableRelation:
    made = PublishableRelation(oid, PUBLIC, "public", name, "r", "d", COLUMNS)
    return replace(made, **fields)


RELATIONS = {
    PLAIN: relation(PLAIN, "plain"),
    LEAF: relation(LEAF, "leaf", namespace=OTHER, schema="other", ancestors=(MIDDLE, ROOT)),
    MIDDLE: relation(MIDDLE, "middle", kind="p", ancestors=(ROOT,)),
    ROOT: relation(ROOT, "root", kind="p", columns=(*reversed(COLUMNS[:2]), COLUMNS[2])),
}


def publication(oid: int, *actions: PublishAction, **fields: Any) -> Publication:
    return Publication(oid, f"p{oid}", frozenset(actions or ALL), **fields)


def facts(*publications: Publication, **fields: Any) -> PublicationFacts:
    """``tables`` by (publication, relation): None, a filter's text, or a column list."""
    named = {}
    for key, what in fields.pop("tables", {}).items():
        where = what if isinstance(what, str) else None
        named[key] = PublicationTable(where, what if isinstance(what, tuple) else None)
    return PublicationFacts(publications, RELATIONS, named, **fields)


def made(found: PublicationFacts, relid: int = PLAIN) -> Plan:
    plan = plan_relation(found, relid)
    assert plan is not None
    return plan


def filters(plan: Plan) -> dict[str, list[str]]:
    return {action: [each.tree for each in of] for action, of in plan.filters.items()}


def names(plan: Plan) -> list[str]:
    return [each.name for each in plan.relation.columns]


def test_operations_of_all_publications_are_published() -> None:
    """Each operation that one of them publishes is; what none of them does is not."""
    plan = made(
        facts(
            publication(1, "insert"),
            publication(2, "delete", "truncate"),
            tables={(1, PLAIN): None, (2, PLAIN): None},
        )
    )
    assert filters(plan) == {"insert": [], "delete": []}
    assert plan.truncate


def test_relation_of_no_publication_has_no_plan() -> None:
    """Nor has one that cannot be published, or of which nothing is published."""
    assert plan_relation(facts(publication(1)), PLAIN) is None
    assert plan_relation(facts(publication(1, all_tables=True)), 99) is None
    silent = Publication(1, "p1", frozenset())
    assert plan_relation(facts(silent, tables={(1, PLAIN): None}), PLAIN) is None


def test_filters_are_joined_for_each_operation() -> None:
    """A filter counts for the operations that its publication publishes, in the order named."""
    plan = made(
        facts(
            publication(2, "insert", "update"),
            publication(1, "insert", "delete"),
            tables={(1, PLAIN): "one", (2, PLAIN): "two"},
        )
    )
    assert filters(plan) == {"insert": ["two", "one"], "update": ["two"], "delete": ["one"]}
    assert plan.filters["delete"][0].publication == "p1"


@pytest.mark.parametrize("how", ["no filter", "all tables", "schema", "schema and by name"])
def test_unfiltered_publication_takes_filters_away(how: str) -> None:
    """Of the operations that it publishes, and of no other."""
    tables: dict[tuple[int, int], str | None] = {(1, PLAIN): "one"}
    if how == "no filter":
        tables[2, PLAIN] = None
    elif how == "schema and by name":
        tables[2, PLAIN] = "redundant"
    plan = made(
        facts(
            publication(1, "insert", "update"),
            publication(2, "insert", all_tables=how == "all tables"),
            tables=tables,
            schemas=frozenset({(2, PUBLIC)} if how.startswith("schema") else ()),
        )
    )
    assert filters(plan) == {"insert": [], "update": ["one"]}


def test_column_list_is_kept_in_the_tables_order() -> None:
    """Numbers in a list have no order; the sent relation has its columns' keys."""
    plan = made(facts(publication(1), tables={(1, PLAIN): (4, 1)}))
    assert names(plan) == ["id", "b"]
    assert [each.key for each in plan.relation.columns] == [True, False]


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ((1, 2), (2, 1), True),
        ((1, 2), (1, 4), False),
        ((1, 2), None, False),
        ((1, 2, 4), None, True),  # a list of all columns is as none
    ],
)
def test_column_lists_must_be_the_same(
    first: tuple[int, ...], second: tuple[int, ...] | None, same: bool
) -> None:
    """PostgreSQL's error and SQLSTATE otherwise, also when they publish different operations."""
    found = facts(
        publication(1, "insert"),
        publication(2, "update"),
        tables={(1, PLAIN): first, (2, PLAIN): second},
    )
    if same:
        assert len(names(made(found))) == len(first)
        return
    with pytest.raises(FeatureNotSupportedError) as error:
        plan_relation(found, PLAIN)
    assert str(error.value) == (
        'cannot use different column lists for table "public.plain" in different publications'
    )
    assert error.value.sqlstate == "0A000"


def test_truncate_alone_compares_no_column_lists() -> None:
    """pgoutput looks at filters and lists only where rows can be published."""
    plan = made(
        facts(
            publication(1, "truncate"),
            publication(2, "truncate"),
            tables={(1, PLAIN): (1, 2), (2, PLAIN): (1, 4)},
        )
    )
    assert plan.filters == {}
    assert plan.truncate
    assert names(plan) == ["id", "a", "b"]


@pytest.mark.parametrize(
    ("parameter", "listed", "expected"),
    [
        ("n", None, ["id", "a"]),
        ("s", None, ["id", "a", "stored"]),
        ("n", (1, 5), ["id", "stored"]),  # a list takes the parameter's place
    ],
)
def test_generated_columns(
    parameter: str, listed: tuple[int, ...] | None, expected: list[str]
) -> None:
    """Stored ones are published when asked for; virtual ones never."""
    columns = (*COLUMNS[:2], column(5, "stored", generated="s"), column(6, "v", generated="v"))
    found = facts(publication(1, generated_columns=parameter), tables={(1, PLAIN): listed})
    plan = made(replace(found, relations={PLAIN: relation(PLAIN, "plain", columns=columns)}))
    assert names(plan) == expected


def test_different_parameters_for_generated_columns_are_an_error() -> None:
    """PostgreSQL 18's, and only of a table that has such a column."""
    columns = (*COLUMNS, column(5, "stored", generated="s"))
    found = facts(
        publication(1, generated_columns="s"),
        publication(2, generated_columns="n"),
        tables={(1, PLAIN): None, (2, PLAIN): None},
    )
    assert names(made(found)) == ["id", "a", "b"]
    with pytest.raises(FeatureNotSupportedError) as error:
        plan_relation(
            replace(found, relations={PLAIN: relation(PLAIN, "plain", columns=columns)}), PLAIN
        )
    assert str(error.value) == (
        'cannot use different values of publish_generated_columns for table "public.plain" in'
        " different publications"
    )


@pytest.mark.parametrize(
    ("named", "published_as"), [(LEAF, LEAF), (MIDDLE, MIDDLE), (ROOT, ROOT), (None, ROOT)]
)
def test_partition_is_published_as_the_topmost_ancestor(
    named: int | None, published_as: int
) -> None:
    """Of those that the publication has, with publish_via_partition_root; None is all tables."""
    every = publication(1, via_root=True, all_tables=named is None)
    tables = {(1, LEAF): "leaf's"} | ({(1, named): "its"} if named else {})
    plan = made(facts(every, tables=tables), LEAF)
    assert plan.relation.oid == published_as
    assert plan.truncate == (published_as == LEAF)
    assert filters(plan)["insert"] == (["its"] if named else [])


def test_root_columns_come_in_the_roots_order() -> None:
    """A partition may have its columns in another order."""
    plan = made(facts(publication(1, via_root=True), tables={(1, ROOT): None}), LEAF)
    assert names(plan) == ["a", "id", "b"]


def test_partition_is_published_as_itself_without_the_root() -> None:
    """It is a member when an ancestor is; the ancestor's list does not count for it."""
    plan = made(facts(publication(1), tables={(1, ROOT): None}), LEAF)
    assert plan.relation.oid == LEAF
    assert plan.truncate


def test_schema_of_an_ancestor_makes_it_published() -> None:
    """Through FOR TABLES IN SCHEMA, although the partition is in another schema."""
    plan = made(facts(publication(1, via_root=True), schemas=frozenset({(1, PUBLIC)})), LEAF)
    assert plan.relation.oid == ROOT
    assert filters(plan) == {"insert": [], "update": [], "delete": []}


def test_highest_level_decides_and_lower_ones_add_operations() -> None:
    """Filters and lists of lower levels do not count; their operations are unfiltered."""
    plan = made(
        facts(
            publication(1, "delete"),
            publication(2, "insert", via_root=True),
            publication(3, "update", via_root=True),
            tables={(1, LEAF): "leaf's", (2, MIDDLE): (1, 2), (3, ROOT): "root's"},
        ),
        LEAF,
    )
    assert plan.relation.oid == ROOT
    assert filters(plan) == {"insert": [], "update": ["root's"], "delete": []}
    assert names(plan) == ["a", "id", "b"]


@pytest.mark.parametrize("via_root", [True, False])
def test_partitioned_table_has_a_plan_only_as_root(via_root: bool) -> None:
    """Without publish_via_partition_root its partitions' TRUNCATE is published, not its own."""
    found = facts(publication(1, via_root=via_root), tables={(1, ROOT): None})
    plan = plan_relation(found, ROOT)
    assert (plan is not None and plan.truncate) == via_root
