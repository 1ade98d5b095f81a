# SPDX-License-Identifier: Apache-2.0
"""What the catalog says about publications, for the plans of ``publish/plan.py``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.change.publication import (
    Publication,
    PublicationFacts,
    PublicationTable,
    PublishableColumn,
    PublishableRelation,
    PublishAction,
)
from penstock.change.relation import LakeColumn
from penstock.control.connect import ControlConnection
from penstock.errors import FeatureNotSupportedError, PublicationError

_ACTIONS: tuple[PublishAction, ...] = ("insert", "update", "delete", "truncate")

# One query, so that all of it is of one snapshot.  There is no pubgencols before 18, and no
# prexcept (FOR ALL TABLES EXCEPT) before 19.
_FACTS = """
WITH publication AS (
    SELECT p.*, coalesce(to_jsonb(p)->>'pubgencols', 'n') AS gencols, named.place
    FROM unnest(%(names)s::text[]) WITH ORDINALITY named (name, place)
    JOIN pg_publication p ON p.pubname = named.name
), relation AS (
    SELECT c.*, n.nspname, ARRAY(
        SELECT relid::oid::bigint FROM pg_partition_ancestors(c.oid) WITH ORDINALITY a (relid, up)
        WHERE relid <> c.oid ORDER BY up) AS ancestors
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE pg_relation_is_publishable(c.oid) AND c.oid IN (
        SELECT unnest(%(relids)s::oid[]) UNION
        SELECT a::oid FROM unnest(%(relids)s::oid[]) wanted, pg_partition_ancestors(wanted) a)
)
SELECT (SELECT json_agg(json_build_array(oid::bigint, pubname, ARRAY[pubinsert, pubupdate,
            pubdelete, pubtruncate], puballtables, pubviaroot, gencols) ORDER BY place)
        FROM publication) AS publications,
    (SELECT json_agg(json_build_array(r.prpubid::bigint, r.prrelid::bigint, r.prqual::text,
            r.prattrs::int2[], coalesce((to_jsonb(r)->>'prexcept')::boolean, false)))
        FROM pg_publication_rel r JOIN publication p ON p.oid = r.prpubid
        JOIN relation c ON c.oid = r.prrelid) AS tables,
    (SELECT json_agg(json_build_array(s.pnpubid::bigint, s.pnnspid::bigint))
        FROM pg_publication_namespace s JOIN publication p ON p.oid = s.pnpubid) AS schemas,
    (SELECT json_agg(json_build_array(oid::bigint, relnamespace::bigint, nspname, relname,
            relkind, relreplident, ancestors)) FROM relation) AS relations,
    (SELECT json_agg(json_build_array(c.oid::bigint, a.attnum, a.attname, a.atttypid::bigint,
            a.atttypmod, a.attnotnull, c.relreplident = 'f' OR coalesce(
                a.attnum = ANY ((i.indkey::int2[])[0 : i.indnkeyatts - 1]), false),
            a.attgenerated) ORDER BY a.attnum)
        FROM relation c JOIN pg_attribute a ON a.attrelid = c.oid
        LEFT JOIN pg_index i ON i.indexrelid = pg_get_replica_identity_index(c.oid)
        WHERE a.attnum > 0 AND NOT a.attisdropped) AS columns
"""


def publication_facts(
    conn: ControlConnection, names: Sequence[str], relids: Iterable[int]
) -> PublicationFacts:
    """The facts of the caller's snapshot; relations that cannot be published are left out.

    PublicationError (42704) when a publication does not exist, as pgoutput before 18 has it;
    FeatureNotSupportedError (0A000) when one leaves a table out by EXCEPT.
    """
    row = conn.execute(
        _FACTS.encode(), {"names": list(dict.fromkeys(names)), "relids": sorted(set(relids))}
    ).fetchone()
    assert row is not None  # a SELECT without FROM has one row
    return facts_of_rows(names, *(each or [] for each in row))


def facts_of_rows(
    names: Sequence[str],
    publications: list[Any],
    tables: list[Any],
    schemas: list[Any],
    relations: list[Any],
    columns: list[Any],
) -> PublicationFacts:
    """Make facts of rows as ``_FACTS`` has them; the same errors as ``publication_facts``."""
    found = {name for _, name, *_ in publications}
    for name in names:
        if name not in found:
            raise PublicationError(f'publication "{name}" does not exist')
    if any(excepted for *_, excepted in tables):
        raise FeatureNotSupportedError("FOR ALL TABLES EXCEPT is not supported by the lake")
    return PublicationFacts(
        publications=tuple(_publication(*each) for each in publications),
        relations=_relations(relations, columns),
        tables={
            (publication, relid): PublicationTable(where, None if listed is None else tuple(listed))
            for publication, relid, where, listed, _ in tables
        },
        schemas=frozenset((publication, schema) for publication, schema in schemas),
    )


def _publication(
    oid: int, name: str, published: list[bool], all_tables: bool, via_root: bool, generated: Any
) -> Publication:
    actions = frozenset(action for action, yes in zip(_ACTIONS, published, strict=True) if yes)
    return Publication(oid, name, actions, all_tables, via_root, generated)


def _relations(rows: list[Any], columns: list[Any]) -> dict[int, PublishableRelation]:
    of: dict[int, list[PublishableColumn]] = {row[0]: [] for row in rows}
    for relid, attnum, name, type_oid, typmod, not_null, key, generated in columns:
        column = LakeColumn(attnum, name, type_oid, typmod, not_null)
        of[relid].append(PublishableColumn(column, key, generated))
    return {
        oid: PublishableRelation(
            oid, namespace, schema, name, kind, identity, tuple(of[oid]), tuple(ancestors)
        )
        for oid, namespace, schema, name, kind, identity, ancestors in rows
    }
