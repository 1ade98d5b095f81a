# SPDX-License-Identifier: Apache-2.0
"""What a publisher publishes of one table, and where its rows lie: exactly what table sync asks.

In:   a connection with an open transaction, publications, the name of a subscribed table.
Out:  the relation as the stream will describe it, its row filter, and its pieces with sizes.

    question                    answer, over all subscribed publications
    --------                    ----------------------------------------
    columns                     the column list; two different lists are an error (0A000)
    generated columns           left out; 18 may publish stored ones
    row filter                  OR of all filters; none when any publication has none
    publish = 'update', ...     does not matter to a copy
    partitioned table           subscribed by its root: all leaves below it
    inheritance                 children are tables of their own: ONLY
    size                        what the planner thinks that the row filter keeps of the table

A piece is what can be cut into ranges of pages: a heap whose rows this role may read as a whole.
Anything else (a foreign partition, another access method, a role with rights on columns only or
on the root only, row security) is one piece that is read in one go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import psycopg

from penstock.change.relation import Column, Relation
from penstock.errors import FeatureNotSupportedError, PublicationError, RelationMismatchError
from penstock.names import quote_pg_qualified
from penstock.sync.copy_plan import MIN_RANGE_BYTES, Size


@dataclass(frozen=True)
class Piece:
    """A table whose rows are part of a published table; ``source`` is its FROM item, quoted.

    ``size`` has all pages, but only the bytes that the row filter is thought to keep.
    """

    source: str
    size: Size


@dataclass(frozen=True)
class PublishedTable:
    """What is published of a table: ``relation`` has only published columns.

    ``filter`` is an SQL condition over the publisher's column names, None for all rows.
    ``kind`` is pg_class.relkind.  ``estimated_rows`` is the publisher's own guess, None when it
    has none.  ``unique``: columns of which no two rows have the same values, for each unique index.
    """

    relation: Relation
    kind: Literal["r", "p"]
    filter: str | None
    pieces: tuple[Piece, ...]
    estimated_rows: int | None
    unique: tuple[frozenset[str], ...]

    def keeps_apart(self, key: Sequence[str]) -> bool:
        """Whether no two of its rows, none of them null there, have the same key."""
        return any(names <= set(key) for names in self.unique)


Connection = psycopg.Connection[Any]

LEAST_KEPT = 1 / 16
"""A filter counts as if it kept this part of a table at least: the planner may be far off."""


def published_table(
    connection: Connection, publications: Sequence[str], schema: str, name: str
) -> PublishedTable:
    """Ask the publisher about one table.

    RelationMismatchError when it has no such table, PublicationError when none of the
    publications has it, FeatureNotSupportedError (0A000) for different column lists.
    """
    row = connection.execute(
        "SELECT c.oid::bigint, c.relreplident::text, c.relkind::text"
        " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')",
        [schema, name],
    ).fetchone()
    if row is None:
        raise RelationMismatchError(
            f'table "{schema}.{name}" not found on publisher', sqlstate="42704"
        )
    oid, identity, kind = row
    listed = _column_list(connection, publications, oid, schema, name)
    relation = Relation(
        oid, schema, name, identity, _columns(connection, oid, listed, full=identity == "f")
    )
    if not relation.columns:
        raise FeatureNotSupportedError(f'cannot copy table "{schema}.{name}" without columns')
    leaves = _leaves(connection, oid) if kind == "p" else [oid]
    pieces = _pieces(connection, oid, kind, leaves)
    condition = _row_filter(connection, publications, oid)
    if condition is not None:
        kept = _kept(connection, pieces, condition)
        pieces = tuple(_scaled(piece, kept) for piece in pieces)
    return PublishedTable(
        relation,
        kind,
        condition,
        pieces,
        _estimated_rows(connection, leaves),
        _unique(connection, oid),
    )


_UNIQUE = """
SELECT pg_catalog.array_agg(a.attname::pg_catalog.text)
FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid
    AND a.attnum = ANY ((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1])
WHERE i.indrelid = %s::pg_catalog.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid"""


def _unique(connection: Connection, oid: int) -> tuple[frozenset[str], ...]:
    rows = connection.execute(_UNIQUE, [oid]).fetchall()
    return tuple(frozenset(names) for (names,) in rows)


_PUBLISHED = (
    " FROM pg_catalog.pg_publication p,"
    " LATERAL pg_catalog.pg_get_publication_tables(p.pubname) gpt, pg_catalog.pg_class c"
    " WHERE gpt.relid = %s::pg_catalog.oid AND c.oid = gpt.relid AND p.pubname = ANY (%s)"
)


def _column_list(
    connection: Connection, publications: Sequence[str], oid: int, schema: str, name: str
) -> list[int] | None:
    """Numbers of the published columns; None for all of them."""
    rows = connection.execute(
        "SELECT DISTINCT CASE WHEN pg_catalog.array_length(gpt.attrs, 1) = c.relnatts THEN NULL"
        f" ELSE gpt.attrs::pg_catalog.int2[] END {_PUBLISHED}",
        [oid, list(publications)],
    ).fetchall()
    if not rows:
        raise PublicationError(
            f'table "{schema}.{name}" is not part of the subscribed publications',
            hint="Use ALTER SUBSCRIPTION ... REFRESH PUBLICATION.",
        )
    if len(rows) > 1:
        raise FeatureNotSupportedError(
            f'cannot use different column lists for table "{schema}.{name}"'
            " in different publications"
        )
    listed: list[int] | None = rows[0][0]
    return listed


def _columns(
    connection: Connection, oid: int, listed: list[int] | None, *, full: bool
) -> tuple[Column, ...]:
    generated = "" if connection.info.server_version >= 180000 else " AND a.attgenerated = ''"
    rows = connection.execute(
        "SELECT a.attnum, a.attname, a.atttypid::bigint, a.atttypmod,"
        " coalesce(a.attnum = ANY (i.indkey), false)"
        " FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_index i"
        " ON i.indexrelid = pg_catalog.pg_get_replica_identity_index(a.attrelid)"
        " WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attrelid = %s::pg_catalog.oid"
        f" {generated} ORDER BY a.attnum",
        [oid],
    ).fetchall()
    return tuple(
        Column(name, type_oid, typmod, full or key)
        for number, name, type_oid, typmod, key in rows
        if listed is None or number in listed
    )


def _row_filter(connection: Connection, publications: Sequence[str], oid: int) -> str | None:
    rows = connection.execute(
        f"SELECT DISTINCT pg_catalog.pg_get_expr(gpt.qual, gpt.relid) {_PUBLISHED}",
        [oid, list(publications)],
    ).fetchall()
    filters = [text for (text,) in rows]
    if any(text is None for text in filters):
        return None
    return " OR ".join(f"({text})" for text in sorted(filters))


def _kept(connection: Connection, pieces: Sequence[Piece], condition: str) -> float:
    """The part of the rows that a filter keeps, as the planner sees it for the largest piece.

    Its lock on that is given back.  Of a small piece it would change nothing, so the planner is not
    asked; a table of a lake is one: its relation is empty, and it has no plan to explain.
    """
    largest = max(pieces, key=lambda piece: piece.size.size)
    if largest.size.size < MIN_RANGE_BYTES:
        return 1.0
    source = largest.source
    with connection.transaction(force_rollback=True):
        kept, rows = (
            _planned_rows(connection, f"SELECT FROM {source}{where}")
            for where in (f" WHERE {condition}", "")
        )
    return min(1.0, max(LEAST_KEPT, kept / max(rows, 1)))


def _planned_rows(connection: Connection, query: str) -> float:
    row = connection.execute(f"EXPLAIN (FORMAT JSON) {query}".encode()).fetchone()
    assert row is not None  # EXPLAIN (FORMAT JSON) has one row
    return float(row[0][0]["Plan"]["Plan Rows"])


def _scaled(piece: Piece, kept: float) -> Piece:
    return replace(piece, size=replace(piece.size, size=int(piece.size.size * kept)))


def _leaves(connection: Connection, root: int) -> list[int]:
    rows = connection.execute(
        "SELECT relid::pg_catalog.oid::bigint"
        " FROM pg_catalog.pg_partition_tree(%s::pg_catalog.oid::pg_catalog.regclass)"
        " WHERE isleaf AND relid <> %s::pg_catalog.oid ORDER BY relid",
        [root, root],
    ).fetchall()
    return [oid for (oid,) in rows]


_PIECES = """
SELECT n.nspname, c.relname,
    c.relkind = 'r' AND am.amname = 'heap' AS by_pages,
    pg_catalog.has_table_privilege(c.oid, 'SELECT') AND NOT pg_catalog.row_security_active(c.oid),
    pg_catalog.pg_relation_size(c.oid)
        / pg_catalog.current_setting('block_size')::pg_catalog.int8,
    pg_catalog.pg_table_size(c.oid)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_am am ON am.oid = c.relam
WHERE c.oid = ANY (%s::pg_catalog.oid[]) ORDER BY c.oid
"""


def _pieces(
    connection: Connection, oid: int, kind: str, leaves: Sequence[int]
) -> tuple[Piece, ...]:
    rows = connection.execute(_PIECES, [list(leaves)]).fetchall()
    readable = all(readable for _, _, _, readable, _, _ in rows)
    if kind == "p" and not (readable and rows and _readable(connection, oid)):
        total = sum(size for *_, size in rows)
        return (Piece(_qualified(connection, oid), Size(None, total)),)
    return tuple(
        Piece(
            f"ONLY {quote_pg_qualified(schema, name)}",
            Size(pages if by_pages and readable else None, size),
        )
        for schema, name, by_pages, readable, pages, size in rows
    )


def _readable(connection: Connection, oid: int) -> bool:
    row = connection.execute(
        "SELECT pg_catalog.has_table_privilege(%s::pg_catalog.oid, 'SELECT')"
        " AND NOT pg_catalog.row_security_active(%s::pg_catalog.oid)",
        [oid, oid],
    ).fetchone()
    return row is not None and bool(row[0])


def _qualified(connection: Connection, oid: int) -> str:
    row = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.oid = %s::pg_catalog.oid",
        [oid],
    ).fetchone()
    assert row is not None  # its own transaction has just seen it
    return quote_pg_qualified(*row)


def _estimated_rows(connection: Connection, leaves: Sequence[int]) -> int | None:
    """pg_class.reltuples, scaled to the present size; None when a leaf was never analysed."""
    row = connection.execute(
        "SELECT bool_and(c.reltuples >= 0), coalesce(sum(CASE WHEN c.relpages > 0 THEN"
        " c.reltuples / c.relpages * pg_catalog.pg_relation_size(c.oid)"
        " / pg_catalog.current_setting('block_size')::pg_catalog.int8"
        " ELSE greatest(c.reltuples, 0) END), 0)::bigint"
        " FROM pg_catalog.pg_class c WHERE c.oid = ANY (%s::pg_catalog.oid[])",
        [list(leaves)],
    ).fetchone()
    assert row is not None  # an aggregate has one row
    known, rows = row
    return int(rows) if known else None
