# SPDX-License-Identifier: Apache-2.0
"""How a publisher's publications stand to its tables: what was not sent can be concluded from it.

In:   a connection for SQL, publications.
Out:  per table versions of the catalog rows by which it is published, and of its own row.

pgoutput says neither which publication sends a change nor what it leaves out.  But each row of a
catalog has the xid of the transaction that wrote it (xmin), and a written row never gets its old
xid back: as long as the versions are the same, publications have not changed in between either, not
even forth and back.  Whenever one has changed, the publisher describes the relation again before
its next change (rel_sync_cache_publication_cb, rel_sync_cache_relation_cb in pgoutput.c).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.types.json import Json

from penstock.lsn import parse_lsn

Connection = psycopg.Connection[Any]
QualifiedName = tuple[str, str]


@dataclass(frozen=True)
class Standing:
    """What the catalogs say of one table.

    ``publications`` and ``definition`` are versions, to be compared only.  ``complete``: every
    change of its rows is sent, by these publications and to a subscriber of any origin.  ``natts``
    is pg_class.relnatts, ``files`` the relfilenode of each relation that holds its rows, by OID.
    """

    oid: int
    publications: str
    definition: str
    complete: bool
    natts: int
    files: Mapping[str, int]


# A partition may be emptied, attached or detached without a word, so partitions and their roots
# are not complete.
_STANDINGS = """
WITH p AS (SELECT *, xmin AS version FROM pg_catalog.pg_publication WHERE pubname = ANY (%(names)s))
SELECT n.nspname, c.relname, c.oid::pg_catalog.int8,
    pg_catalog.concat_ws(' ',
        (SELECT pg_catalog.string_agg(pg_catalog.concat(p.oid, '.', p.version), ',' ORDER BY p.oid)
         FROM p),
        (SELECT pg_catalog.string_agg(pg_catalog.concat(r.oid, '.', r.xmin), ',' ORDER BY r.oid)
         FROM pg_catalog.pg_publication_rel r JOIN p ON p.oid = r.prpubid
         WHERE r.prrelid = c.oid OR r.prrelid IN (
            SELECT relid FROM pg_catalog.pg_partition_ancestors(c.oid))),
        (SELECT pg_catalog.string_agg(pg_catalog.concat(s.oid, '.', s.xmin), ',' ORDER BY s.oid)
         FROM pg_catalog.pg_publication_namespace s JOIN p ON p.oid = s.pnpubid
         WHERE s.pnnspid = c.relnamespace)),
    pg_catalog.concat(c.oid, '.', c.xmin),
    c.relkind = 'r' AND c.relpersistence = 'p' AND NOT c.relispartition AND (
        SELECT pg_catalog.count(*) FILTER (
            WHERE pubinsert AND pubupdate AND pubdelete AND pubtruncate) = %(count)s FROM p),
    c.relnatts,
    (SELECT pg_catalog.jsonb_object_agg(f.oid, f.relfilenode::pg_catalog.int8)
     FROM pg_catalog.pg_class f WHERE f.relkind = 'r' AND (f.oid = c.oid OR f.oid IN (
        SELECT relid FROM pg_catalog.pg_partition_tree(c.oid) WHERE c.relkind = 'p')))
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.json_to_recordset(%(tables)s::pg_catalog.json)
    AS t (s pg_catalog.text, t pg_catalog.text) ON t.s = n.nspname AND t.t = c.relname
WHERE c.relkind IN ('r', 'p')
"""


def standings(
    connection: Connection, publications: Sequence[str], tables: Sequence[QualifiedName]
) -> dict[QualifiedName, Standing]:
    """Ask about some tables; those that do not exist are absent from the answer."""
    wanted = Json([{"s": schema, "t": name} for schema, name in tables])
    rows = connection.execute(
        _STANDINGS, {"names": list(publications), "count": len(publications), "tables": wanted}
    ).fetchall()
    return {
        (schema, name): Standing(oid, published, definition, complete, natts, files or {})
        for schema, name, oid, published, definition, complete, natts, files in rows
    }


def position(connection: Connection) -> int:
    """The publisher's LSN now: what commits from here on has a higher one."""
    row = connection.execute(
        "SELECT (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()"
        " ELSE pg_catalog.pg_current_wal_insert_lsn() END)::pg_catalog.text"
    ).fetchone()
    assert row is not None  # a function call without FROM has one row
    return parse_lsn(row[0])


@dataclass(frozen=True)
class PublisherColumn:
    """A column of the publisher's table.

    ``type_name`` is SQL for its type, text for one that is not PostgreSQL's own.  ``missing`` is
    the value that rows have which are older than the column, as text (pg_attribute.attmissingval).
    """

    attnum: int
    type_name: str
    missing: str | None


# The root of partitions has no missing value itself.
_COLUMNS = """
SELECT a.attname, a.attnum,
    CASE WHEN a.atttypid < 16384 AND a.atttypid <> ALL (%s::pg_catalog.oid[])
         THEN pg_catalog.format_type(a.atttypid, a.atttypmod) ELSE 'pg_catalog.text' END,
    (SELECT pg_catalog.min((m.attmissingval::pg_catalog.text::pg_catalog.text[])[1])
     FROM pg_catalog.pg_attribute m WHERE m.attname = a.attname AND NOT m.attisdropped
        AND (m.attrelid = a.attrelid OR m.attrelid IN (
            SELECT relid FROM pg_catalog.pg_partition_tree(a.attrelid))))
FROM pg_catalog.pg_attribute a
WHERE a.attrelid = %s::pg_catalog.oid AND a.attnum > 0 AND NOT a.attisdropped
"""


def columns_now(
    connection: Connection, oid: int, as_text: Iterable[int]
) -> dict[str, PublisherColumn]:
    """The columns that a relation of the publisher has now, by name.

    ``as_text`` are OIDs of types whose values are held as text.
    """
    rows = connection.execute(_COLUMNS, [list(as_text), oid]).fetchall()
    return {name: PublisherColumn(*column) for name, *column in rows}
