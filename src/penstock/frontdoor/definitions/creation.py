# SPDX-License-Identifier: Apache-2.0
"""Create the lake's tables that a subscription needs and that are not there yet.

In:   a connection string, publications, and the client's own session.
Out:  tables as the publisher describes them, owned by the client's role: published columns, types,
      NOT NULL, and a primary key of the columns that identify rows (the replica identity's index,
      else the primary key) when all of them are published.

A partitioned table that is published by its root is a plain table here.  Types:

    the publisher's type                     here
    --------------------                     ----
    built in                                 the same
    named as a type that exists here         that type
    a domain over a built-in type            that built-in type
    anything else                            text

All tables are created by one statement, so all or none.  Names come from the publisher: they are
quoted, and types come as numbers that this side turns into names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.change.mapping import ValueMapping
from penstock.change.types import arrow_type
from penstock.client.connection import answers_within, open_publisher
from penstock.errors import FeatureNotSupportedError
from penstock.frontdoor.actions import Backend
from penstock.names import quote_pg, quote_pg_literal, quote_pg_qualified

FIRST_UNPINNED_OID = 10000
"""OIDs below are the same in every server (FirstGenbkiObjectId)."""


@dataclass(frozen=True)
class PublishedColumn:
    """A published column; ``base_oid`` is the type below a domain, ``key`` its place in the key."""

    name: str
    type_oid: int
    type_schema: str
    type_name: str
    typmod: int
    base_oid: int
    base_typmod: int
    not_null: bool
    key: int | None


@dataclass(frozen=True)
class TableDefinition:
    """A published table; ``key_length`` counts the columns of its key, published or not."""

    schema: str
    name: str
    columns: tuple[PublishedColumn, ...]
    key_length: int

    @property
    def key(self) -> list[str]:
        """The columns of the primary key; none when a part of it is not published."""
        parts = sorted((c.key, c.name) for c in self.columns if c.key is not None)
        return [name for _, name in parts] if len(parts) == self.key_length else []


@dataclass(frozen=True)
class Created:
    """What was created: qualified, quoted names; and the schemas that were missing."""

    tables: tuple[str, ...] = ()
    schemas: tuple[str, ...] = ()

    async def drop(self, backend: Backend) -> None:
        """Drop it again."""
        drops = [f"DROP TABLE IF EXISTS {table}" for table in self.tables]
        drops += [f"DROP SCHEMA IF EXISTS {schema}" for schema in self.schemas]
        if drops:
            await backend.query(_block(drops))


# Before 16 a table has one row for each publication, and null stands for all columns.
_TABLES_15 = """
SELECT c.oid::bigint, n.nspname, c.relname, gpt.attrs::int2[]
FROM pg_catalog.pg_publication p, LATERAL pg_catalog.pg_get_publication_tables(p.pubname) gpt
JOIN pg_catalog.pg_class c ON c.oid = gpt.relid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = ANY (%s) ORDER BY 2, 3"""
_TABLES_16 = """
SELECT c.oid::bigint, n.nspname, c.relname, gpt.attrs::int2[]
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN (SELECT (pg_catalog.pg_get_publication_tables(
                  VARIADIC pg_catalog.array_agg(pubname::pg_catalog.text))).*
      FROM pg_catalog.pg_publication WHERE pubname = ANY (%s)) gpt ON gpt.relid = c.oid
ORDER BY 2, 3"""
_COLUMNS = """
SELECT a.attrelid::bigint, a.attnum, a.attname, t.oid::bigint, n.nspname, t.typname, a.atttypmod,
       b.oid::bigint, b.typmod, a.attnotnull, a.attgenerated <> '',
       CASE WHEN k.place <= i.indnkeyatts THEN k.place END, coalesce(i.indnkeyatts, 0)
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
CROSS JOIN LATERAL (
    WITH RECURSIVE below(oid, typmod, depth) AS (
        SELECT a.atttypid, a.atttypmod, 0
        UNION ALL
        SELECT d.typbasetype, d.typtypmod, below.depth + 1
        FROM below JOIN pg_catalog.pg_type d ON d.oid = below.oid AND d.typtype = 'd')
    SELECT oid, typmod FROM below ORDER BY depth DESC LIMIT 1) b
LEFT JOIN pg_catalog.pg_index i ON i.indrelid = a.attrelid
    AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
LEFT JOIN LATERAL pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
    ON k.attnum = a.attnum
WHERE a.attrelid = ANY (%s::pg_catalog.oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum"""


def published_tables(
    conninfo: str,
    publications: Sequence[str],
    *,
    default_user: str | None,
    password_required: bool,
    timeout: float,
) -> list[TableDefinition]:
    """Ask the publisher for the tables of some publications; blocks, ``timeout`` seconds at most.

    The errors of ``open_publisher``; psycopg.Error when the publisher refuses the question.
    """
    with (
        open_publisher(
            conninfo,
            application_name="penstock create tables",
            default_user=default_user,
            password_required=password_required,
        ) as connection,
        answers_within(connection.fileno(), timeout),
    ):
        version = connection.info.server_version
        query = _TABLES_16 if version >= 160000 else _TABLES_15
        tables = connection.execute(query, [list(publications)]).fetchall()
        listed = {oid: attnums for oid, _, _, attnums in reversed(tables)}
        columns = connection.execute(_COLUMNS, [list(listed)]).fetchall()
    names = {oid: (schema, name) for oid, schema, name, _ in tables}
    return [
        _definition(names[oid], [row for row in columns if row[0] == oid], listed[oid], version)
        for oid in names
    ]


async def create_missing(
    backend: Backend, tables: Sequence[TableDefinition], mapping: ValueMapping
) -> Created:
    """Create those of the tables that do not exist, in the client's session.

    Columns whose values the subscription holds as text are text.

    PostgreSQL's error when the role may not, 0A000 when the lake cannot hold a table.
    """
    wanted = json.dumps([{"s": table.schema, "t": table.name} for table in tables])
    rows = await backend.query(_EXISTING, [wanted])
    missing = [table for table, row in zip(tables, rows, strict=True) if row[1] == "f"]
    if not missing:
        return Created()
    here = {table.schema for table, row in zip(tables, rows, strict=True) if row[0] == "t"}
    schemas = sorted({table.schema for table in missing} - here)
    for table in missing:
        _check_numerics(table, mapping)
    columns = [column for table in missing for column in table.columns]
    types = dict(zip(columns, await _local_types(backend, columns), strict=True))
    as_text = [column for column in columns if column.base_oid in mapping.text_types]
    types.update(dict.fromkeys(as_text, "text"))
    created = Created(
        tuple(quote_pg_qualified(table.schema, table.name) for table in missing),
        tuple(quote_pg(schema) for schema in schemas),
    )
    statements = [f"CREATE SCHEMA {schema}" for schema in created.schemas]
    statements += [_create_table(table, types) for table in missing]
    await backend.query(_block(statements))
    return created


_EXISTING = """
SELECT n.oid IS NOT NULL, c.oid IS NOT NULL
FROM ROWS FROM (pg_catalog.json_to_recordset($1::pg_catalog.json)
                AS (s pg_catalog.text, t pg_catalog.text)) WITH ORDINALITY AS r(s, t, place)
LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = r.s
LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = r.t
ORDER BY r.place"""
_TYPES = f"""
SELECT coalesce(
    (SELECT pg_catalog.format_type(l.oid, r.typmod) FROM pg_catalog.pg_type l
     LEFT JOIN pg_catalog.pg_namespace n ON n.oid = l.typnamespace
     WHERE CASE WHEN r.oid < {FIRST_UNPINNED_OID} THEN l.oid = r.oid
                ELSE n.nspname = r.schema AND l.typname = r.name AND l.typisdefined END),
    (SELECT pg_catalog.format_type(l.oid, r.base_typmod) FROM pg_catalog.pg_type l
     WHERE l.oid = r.base AND r.base < {FIRST_UNPINNED_OID}),
    'text')
FROM ROWS FROM (pg_catalog.json_to_recordset($1::pg_catalog.json) AS (
        oid pg_catalog.oid, schema pg_catalog.text, name pg_catalog.text,
        typmod pg_catalog.int4, base pg_catalog.oid, base_typmod pg_catalog.int4))
    WITH ORDINALITY AS r(oid, schema, name, typmod, base, base_typmod, place)
ORDER BY r.place"""


async def _local_types(backend: Backend, columns: Sequence[PublishedColumn]) -> list[str]:
    """This side's types of the columns, as SQL."""
    wanted = [
        {
            "oid": column.type_oid,
            "schema": column.type_schema,
            "name": column.type_name,
            "typmod": column.typmod,
            "base": column.base_oid,
            "base_typmod": column.base_typmod,
        }
        for column in columns
    ]
    return [row[0] or "text" for row in await backend.query(_TYPES, [json.dumps(wanted)])]


def _definition(
    name: tuple[str, str], rows: Sequence[tuple[Any, ...]], listed: list[int] | None, version: int
) -> TableDefinition:
    columns = []
    for row in rows:
        number, generated = row[1], row[10]
        # Before 18, generated columns are never published; 18 lists those that are.
        if (generated and version < 180000) or (listed is not None and number not in listed):
            continue
        columns.append(PublishedColumn(*(*row[2:10], row[11])))
    return TableDefinition(*name, tuple(columns), rows[0][12] if rows else 0)


def _check_numerics(table: TableDefinition, mapping: ValueMapping) -> None:
    """0A000 for a numeric with more digits than a decimal has, unless it is held as text."""
    for column in table.columns:
        if column.base_oid not in mapping.text_types:
            try:
                arrow_type(column.base_oid, column.base_typmod)
            except FeatureNotSupportedError as error:
                error.where = f'column "{column.name}" of table "{table.schema}.{table.name}"'
                raise


def _create_table(table: TableDefinition, types: dict[PublishedColumn, str]) -> str:
    parts = [
        f"{quote_pg(column.name)} {types[column]}{' NOT NULL' if column.not_null else ''}"
        for column in table.columns
    ]
    if table.key:
        parts.append(f"PRIMARY KEY ({', '.join(map(quote_pg, table.key))})")
    return f"CREATE TABLE {quote_pg_qualified(table.schema, table.name)} ({', '.join(parts)})"


def _block(statements: Sequence[str]) -> str:
    """One statement that runs them all."""
    return f"DO {quote_pg_literal('BEGIN ' + '; '.join(statements) + '; END')}"
