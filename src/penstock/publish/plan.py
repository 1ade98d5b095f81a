# SPDX-License-Identifier: Apache-2.0
"""What is published of one relation to a subscriber: one plan from all publications that it names.

In:   facts of the catalog (``change/publication.py``), and the relation that rows were changed in.
Out:  per operation whether it is published and through which filters, as which relation, and with
      which columns.

The rules are those of pgoutput.c (get_rel_sync_entry, pgoutput_row_filter_init,
check_and_init_gencol, pgoutput_column_list_init).  A publication has a relation at a *level*:

    level   the publication has                      and publish_via_partition_root
    -----   ---------------------------------------  ------------------------------
    0       the relation, or an ancestor of it       false
    0       the relation, no ancestor                true
    n       the nth ancestor, none above it          true
    root    all tables                               true

The highest level wins: rows are published as that ancestor's, through the filters and column lists
that the publications of that level have for it.  Publications of lower levels add only their
operations, which nothing filters then if no publication of the highest level publishes them.

    operation                     published when             filtered by
    ---------------------------   ------------------------   ---------------------------------------
    INSERT, UPDATE, DELETE        any publication does       OR of the filters of the publications
                                                             that publish it; by none if one of them
                                                             has none, or has the relation through
                                                             FOR ALL TABLES or its schema
    TRUNCATE                      any publication does, and  nothing
                                  rows are published as the
                                  relation's own

A partitioned table has no rows of its own; its plan is about its TRUNCATE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.change.publication import (
    Publication,
    PublicationFacts,
    PublicationTable,
    PublishableColumn,
    PublishableRelation,
)
from penstock.change.relation import Column, Relation
from penstock.errors import FeatureNotSupportedError
from penstock.publish.filter import PublishedWhere

RowAction = Literal["insert", "update", "delete"]
ROW_ACTIONS: tuple[RowAction, ...] = ("insert", "update", "delete")


@dataclass(frozen=True)
class Plan:
    """What is published of the changes in a relation.

    ``relation`` is as which they are published, with the columns that are sent, in its order; a
    partition's columns go there by their names.  ``filters`` has an entry for each operation on
    rows that is published: a row is published if one of them is true, or if there is none.
    ``own`` is the changed relation where it is published as another; a subscriber is told of both.
    """

    relid: int
    relation: Relation
    filters: dict[RowAction, tuple[PublishedWhere, ...]]
    truncate: bool
    own: Relation | None = None


def plan_relation(facts: PublicationFacts, relid: int) -> Plan | None:
    """The plan for the changes in a relation; None when none of them is published.

    FeatureNotSupportedError (0A000) when publications do not fit together, PostgreSQL's error.
    """
    changed = facts.relations.get(relid)
    if changed is None:
        return None
    levels = {each: _level(facts, each, changed) for each in facts.publications}
    publishing = {each: level for each, level in levels.items() if level is not None}
    actions = {action for each in publishing for action in each.actions}
    if not actions:
        return None
    top = max(publishing.values())
    chosen = [each for each, level in publishing.items() if level == top]
    target = facts.relations[changed.ancestors[top - 1]] if top else changed
    rows = [action for action in ROW_ACTIONS if action in actions]
    columns = _columns(facts, chosen, target) if rows else _all_columns(target, "n")
    return Plan(
        relid,
        _sent(target, columns),
        {action: _filters(facts, chosen, target, action) for action in rows},
        # pgoutput_truncate: one of a partition would empty the whole ancestor
        "truncate" in actions and target is changed,
        None if target is changed else _sent(changed, _own_columns(changed, target, columns)),
    )


def _level(
    facts: PublicationFacts, publication: Publication, relation: PublishableRelation
) -> int | None:
    """0 for the relation itself, n for its nth ancestor; None when it is not published."""
    if relation.kind == "p" and not publication.via_root:
        return None
    if publication.all_tables:
        return len(relation.ancestors) if publication.via_root else 0
    above = [
        level
        for level, ancestor in enumerate(relation.ancestors, 1)
        if _has(facts, publication, facts.relations[ancestor])
    ]
    if above and publication.via_root:
        return above[-1]
    return 0 if above or _has(facts, publication, relation) else None


def _has(facts: PublicationFacts, publication: Publication, relation: PublishableRelation) -> bool:
    by_name = (publication.oid, relation.oid) in facts.tables
    return by_name or (publication.oid, relation.namespace) in facts.schemas


def _filters(
    facts: PublicationFacts,
    publications: Sequence[Publication],
    target: PublishableRelation,
    action: RowAction,
) -> tuple[PublishedWhere, ...]:
    columns = tuple(each.column for each in target.columns)
    found = []
    for publication in publications:
        if action not in publication.actions:
            continue
        where = _named(facts, publication, target).where
        if where is None or (publication.oid, target.namespace) in facts.schemas:
            return ()
        found.append(PublishedWhere(publication.name, target.schema, target.name, columns, where))
    return tuple(found)


def _named(
    facts: PublicationFacts, publication: Publication, target: PublishableRelation
) -> PublicationTable:
    """What a publication says of the table by name; nothing if it has all tables."""
    if publication.all_tables:
        return PublicationTable()
    return facts.tables.get((publication.oid, target.oid), PublicationTable())


def _columns(
    facts: PublicationFacts, publications: Sequence[Publication], target: PublishableRelation
) -> frozenset[int]:
    """Numbers of the columns that all of these publications publish."""
    generated = _generated_columns(facts, publications, target)
    found: set[frozenset[int]] = set()
    for publication in publications:
        listed = _named(facts, publication, target).columns
        found.add(_all_columns(target, generated) if listed is None else frozenset(listed))
    if len(found) > 1:
        raise _different("column lists", target)
    return found.pop()


def _generated_columns(
    facts: PublicationFacts, publications: Sequence[Publication], target: PublishableRelation
) -> Literal["n", "s"]:
    """The parameter publish_generated_columns, where a column list does not take its place."""
    if not any(each.generated for each in target.columns):
        return "n"
    found = {
        publication.generated_columns
        for publication in publications
        if _named(facts, publication, target).columns is None
    }
    if len(found) > 1:
        raise _different("values of publish_generated_columns", target)
    return found.pop() if found else "n"


def _all_columns(target: PublishableRelation, generated: Literal["n", "s"]) -> frozenset[int]:
    published = ("", "s") if generated == "s" else ("",)
    return frozenset(each.column.attnum for each in target.columns if each.generated in published)


def _own_columns(
    changed: PublishableRelation, target: PublishableRelation, columns: frozenset[int]
) -> frozenset[int]:
    """The columns with which a relation is described that is published as another.

    All, or those with the numbers that the other's have: send_relation_and_attrs takes its list.
    """
    everything: tuple[Literal["n", "s"], ...] = ("n", "s")
    for generated in everything:
        if columns == _all_columns(target, generated):
            return _all_columns(changed, generated)
    return columns


def _different(what: str, target: PublishableRelation) -> FeatureNotSupportedError:
    return FeatureNotSupportedError(
        f'cannot use different {what} for table "{target.schema}.{target.name}" in different'
        " publications"
    )


def _sent(target: PublishableRelation, columns: frozenset[int]) -> Relation:
    """The relation as a Relation message describes it (logicalrep_write_rel)."""
    return Relation(
        target.oid,
        target.schema,
        target.name,
        target.identity,
        tuple(map(_sent_column, (c for c in target.columns if c.column.attnum in columns))),
    )


def _sent_column(each: PublishableColumn) -> Column:
    return Column(each.column.name, each.column.type_oid, each.column.typmod, each.key)
