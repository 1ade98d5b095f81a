# SPDX-License-Identifier: Apache-2.0
"""Publications and tables as they were at a commit of the lake.

pgoutput publishes a commit by the catalogs of that commit, however late it is read: what ALTER
PUBLICATION or ALTER TABLE changes counts for the commits after it in the WAL, and never for those
before it.  The control database's catalogs only have what is now, so what they were is kept:

    DDL -> event triggers: what the objects are now -> message in the transaction's WAL
        -> ledger -> penstock.definition, by the LSN of the commit        (100_definitions.sql)

In:   the LSN of a commit with a record, as pgoutput's Begin has it.
Out:  what ``publication_facts`` and ``lake_tables`` would have said to that transaction at its end.

Within one transaction pgoutput is exact to the statement: a change is published by what held when
it was made.  A commit record is written at a transaction's end and tells of its changes together,
so they are all published by what held at the end.

Everything up to the LSN is in the ledger once the commit itself is, for which this waits; that is
no longer than the ledger needs to read what the caller has read.  It does not depend on which
transactions are visible: one that waits for a synchronous standby is not, and is published.

A prepared transaction is published at its PREPARE, when it is no commit and not in the ledger yet:
by what held there, and what it has changed itself (``definitions_of_prepared``).

Rows that no slot needs go with ``forget_definitions``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.change.publication import PublicationFacts
from penstock.change.relation import LakeColumn, LakeTable
from penstock.control.connect import ControlConnection
from penstock.control.ledger import (
    LEDGER_PATIENCE,
    last_entry,
    let_ledger_catch_up,
    store_definitions,
    wait_for_ledger,
)
from penstock.control.ledger_stream import LedgerEntry
from penstock.control.publications import facts_of_rows
from penstock.errors import WrongStateError
from penstock.lsn import format_lsn, parse_lsn

_AT = """
WITH RECURSIVE publication AS (
    SELECT d.objid, d.facts, named.place
    FROM (SELECT DISTINCT ON (objid) objid, facts FROM penstock.definition
          WHERE kind = 'publication' AND lsn <= %(lsn)s::pg_lsn ORDER BY objid, lsn DESC) d
    JOIN unnest(%(names)s::text[]) WITH ORDINALITY named (name, place)
        ON named.name = d.facts->>'name'
), relation (oid, facts) AS (
    SELECT w.oid, d.facts FROM unnest(%(relids)s::oid[]) w (oid),
        penstock.facts_at('table', w.oid, %(lsn)s::pg_lsn) d (facts)
    WHERE d.facts IS NOT NULL
    UNION
    SELECT w.oid, d.facts FROM relation r,
        LATERAL (SELECT (r.facts->>'parent')::oid) w (oid),
        penstock.facts_at('table', w.oid, %(lsn)s::pg_lsn) d (facts)
    WHERE d.facts IS NOT NULL
)
SELECT (SELECT lsn <= %(lsn)s::pg_lsn FROM penstock.definition_horizon),
    (SELECT json_agg(json_build_array(objid::bigint, facts->'name', facts->'publish',
            facts->'all_tables', facts->'via_root', facts->'generated') ORDER BY place)
        FROM publication),
    (SELECT json_agg(json_build_array(d.facts->'publication', d.facts->'relid', d.facts->'where',
            d.facts->'columns', d.facts->'excepted'))
        FROM (SELECT DISTINCT objid FROM penstock.definition
              WHERE kind = 'publication relation' AND relid IN (SELECT oid FROM relation)) o,
            penstock.facts_at('publication relation', o.objid, %(lsn)s::pg_lsn) d (facts)
        WHERE (d.facts->>'publication')::oid IN (SELECT objid FROM publication)
            AND (d.facts->>'relid')::oid IN (SELECT oid FROM relation)),
    (SELECT json_agg(json_build_array(d.facts->'publication', d.facts->'namespace'))
        FROM (SELECT DISTINCT ON (objid) facts FROM penstock.definition
              WHERE kind = 'publication namespace' AND lsn <= %(lsn)s::pg_lsn
              ORDER BY objid, lsn DESC) d
        WHERE (d.facts->>'publication')::oid IN (SELECT objid FROM publication)),
    (SELECT json_agg(json_build_array(r.oid::bigint, r.facts, s.facts->>'name')) FROM relation r,
        penstock.facts_at('schema', (r.facts->>'namespace')::oid, %(lsn)s::pg_lsn) s (facts))
"""


_LEAVES = """
WITH RECURSIVE held AS (
    SELECT DISTINCT ON (objid) objid, facts FROM penstock.definition
    WHERE kind = 'table' AND lsn <= %(lsn)s::pg_lsn ORDER BY objid, lsn DESC
), found (oid, kind, is_top) AS (
    SELECT h.objid, h.facts->>'kind', true FROM held h,
        penstock.facts_at('schema', (h.facts->>'namespace')::oid, %(lsn)s::pg_lsn) s (facts)
    WHERE h.facts->>'name' = %(name)s AND s.facts->>'name' = %(schema)s
    UNION
    SELECT h.objid, h.facts->>'kind', false
    FROM found f JOIN held h ON (h.facts->>'parent')::oid = f.oid
)
SELECT oid::bigint, is_top, kind = 'r' FROM found ORDER BY oid"""


@dataclass(frozen=True)
class Definitions:
    """What held for a commit.

    ``facts`` has the relations that were asked for, with their ancestors, as far as they existed;
    ``tables`` the same as tables of the lake, without their key's name and their writer.
    """

    facts: PublicationFacts
    tables: Mapping[int, LakeTable]


def definitions_at(
    conn: ControlConnection,
    names: Sequence[str],
    versions: Mapping[int, int | None],
    lsn: int,
    lake_root: Path,
    patience: float = LEDGER_PATIENCE,
) -> Definitions:
    """What publications and relations were for the commit at ``lsn``.

    ``versions``: the relations, each with the Delta version that its LakeTable is to have.
    PublicationError (42704) when a publication did not exist, FeatureNotSupportedError (0A000)
    for FOR ALL TABLES EXCEPT, as for ``publication_facts``; WrongStateError (55000) when the
    history begins later, ObjectInUseError (55006) when the ledger has not come there after
    ``patience`` seconds.
    """
    wait_for_ledger(conn, lsn, patience)
    wanted = {
        "names": list(dict.fromkeys(names)),
        "relids": sorted(versions),
        "lsn": format_lsn(lsn),
    }
    row = conn.execute(_AT.encode(), wanted).fetchone()
    assert row is not None  # a SELECT without FROM has one row
    known, *found = row
    if not known:
        raise WrongStateError(
            f"what publications and tables were at {format_lsn(lsn)} is not known any more",
            hint="SELECT lsn FROM penstock.definition_horizon shows from where on it is known.",
        )
    publications, tables, schemas, relations = (each or [] for each in found)
    parents = {oid: facts["parent"] for oid, facts, _ in relations}
    facts = facts_of_rows(
        names,
        publications,
        tables,
        schemas,
        [_relation(oid, facts, schema, parents) for oid, facts, schema in relations],
        [[oid, *column] for oid, facts, _ in relations for column in facts["columns"] or ()],
    )
    return Definitions(
        facts,
        {
            oid: _lake_table(oid, facts, schema, versions.get(oid), lake_root)
            for oid, facts, schema in relations
        },
    )


def definitions_of_prepared(
    conn: ControlConnection,
    names: Sequence[str],
    versions: Mapping[int, int | None],
    entry: LedgerEntry,
    lake_root: Path,
) -> Definitions:
    """As ``definitions_at``, for a transaction that is prepared; ``conn`` is idle.

    What it has changed is in nobody's history before it is committed, so for the question it is
    put there and taken back.
    """
    if last_entry(conn) < entry.lsn:
        let_ledger_catch_up(conn, "prepared")
    with conn.transaction(force_rollback=True):
        if entry.definitions:
            store_definitions(conn, entry)
        return definitions_at(conn, names, versions, entry.lsn, lake_root)


def _relation(oid: int, facts: dict[str, Any], schema: str, parents: Mapping[int, Any]) -> Any:
    ancestors = []
    above = facts["parent"]
    while above is not None:
        ancestors.append(above)
        above = parents[above]
    return [
        oid,
        facts["namespace"],
        schema,
        facts["name"],
        facts["kind"],
        facts["identity"],
        ancestors,
    ]


def _lake_table(
    oid: int, facts: dict[str, Any], schema: str, version: int | None, lake_root: Path
) -> LakeTable:
    return LakeTable(
        relid=oid,
        schema=schema,
        name=facts["name"],
        kind=facts["kind"],
        identity=facts["identity"],
        columns=tuple(
            LakeColumn(*[*known, generated != ""])
            for *known, _in_identity, generated in facts["columns"] or ()
        ),
        key=tuple(facts["key"] or ()),
        location=str(lake_root / facts["location"]) if facts["location"] else "",
        version=version,
        sole_writer=None,
    )


def leaves_at(conn: ControlConnection, schema: str, name: str, lsn: int) -> tuple[int, list[int]]:
    """The relation that had a name for the commit at ``lsn``, and its leaves; 42P01 without one.

    A table that is not partitioned is its only leaf.
    """
    wait_for_ledger(conn, lsn)
    rows = conn.execute(
        _LEAVES.encode(), {"schema": schema, "name": name, "lsn": format_lsn(lsn)}
    ).fetchall()
    if not rows:
        raise WrongStateError(
            f'relation "{schema}.{name}" does not exist at {format_lsn(lsn)}', sqlstate="42P01"
        )
    [top] = (oid for oid, is_top, _ in rows if is_top)
    return top, [oid for oid, _, is_leaf in rows if is_leaf]


def changed_between(conn: ControlConnection, first: int, last: int) -> list[int]:
    """LSNs of commits that changed a definition, above ``first``, up to ``last``, ascending."""
    rows = conn.execute(
        "SELECT DISTINCT lsn FROM penstock.definition"
        " WHERE lsn > %s::pg_lsn AND lsn <= %s::pg_lsn ORDER BY lsn",
        [format_lsn(first), format_lsn(last)],
    ).fetchall()
    return [parse_lsn(lsn) for (lsn,) in rows]


def forget_definitions(conn: ControlConnection, lsn: int) -> None:
    """Forget what only commits before ``lsn`` need; ``lsn`` is not ahead of the ledger."""
    with conn.transaction():
        conn.execute(
            "DELETE FROM penstock.definition d USING ("
            " SELECT kind, objid, max(lsn) AS lsn FROM penstock.definition"
            " WHERE lsn <= %s::pg_lsn GROUP BY kind, objid) held"
            " WHERE d.kind = held.kind AND d.objid = held.objid"
            " AND (d.lsn < held.lsn OR d.lsn = held.lsn AND d.facts IS NULL)",
            [format_lsn(lsn)],
        )
        conn.execute(
            "UPDATE penstock.definition_horizon SET lsn = greatest(lsn, %s::pg_lsn)",
            [format_lsn(lsn)],
        )
