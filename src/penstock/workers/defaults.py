# SPDX-License-Identifier: Apache-2.0
"""Defaults of columns that the lake's table has and the published table has not.

Which it has not depends on the definition that a row was sent under: a batch may have rows of
several.  PostgreSQL fills such columns with their default, row by row.  Here the control database
computes a default once per batch, which is the same for constants and for stable functions.  A
volatile default (random(), nextval()), an identity and a generated column would need a value per
row: apply stops with 0A000, rather than giving all rows one value.

As in PostgreSQL, a default is computed with the rights of the role that apply acts as, not with the
node's.  A function of a user could take those back (it may set the role), so it is refused, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from psycopg import sql

from penstock.change.relation import LakeTable
from penstock.control.connect import ControlConnection
from penstock.errors import FeatureNotSupportedError
from penstock.names import quote_pg
from penstock.sql.nodes import parse_nodes
from penstock.sql.translate.facts import needs

_EXTRA = """
SELECT a.attname, pg_get_expr(d.adbin, d.adrelid),
    CASE WHEN a.attidentity <> '' THEN 'IDENTITY' WHEN a.attgenerated <> '' THEN 'EXPRESSION' END
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %s::oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname <> ALL (%s)
    AND (d.oid IS NOT NULL OR a.attidentity <> '')
"""
_VALUE = """
SELECT format('%s', d) FROM (SELECT {}) AS v (d) WHERE d IS NOT NULL"""  # the output function's
_VARIES = """
SELECT EXISTS (SELECT FROM pg_proc WHERE oid = ANY (%s::oid[])
               AND (provolatile = 'v' OR oid >= 16384))  -- FirstNormalObjectId"""


def column_defaults(
    conn: ControlConnection, table: LakeTable, published: Iterable[str], role: str
) -> dict[str, str]:
    """The default of each column that is not published, in output form; nulls are left out.

    ``role`` is who computes them.  FeatureNotSupportedError (0A000) for a default that has a value
    of its own for each row.
    """
    rows = conn.execute(_EXTRA, [table.relid, list(published)]).fetchall()
    values = {}
    for name, expression, made_by in rows:
        if made_by or _varies(conn, expression):
            raise FeatureNotSupportedError(
                f'column "{name}" of logical replication target relation'
                f' "{table.schema}.{table.name}" is not published, and its default is not a'
                " constant",
                hint=f"ALTER TABLE ... ALTER COLUMN {quote_pg(name)} DROP {made_by or 'DEFAULT'}.",
            )
        with conn.transaction():
            conn.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
            row = conn.execute(_VALUE.format(expression).encode()).fetchone()
            conn.execute("SET LOCAL ROLE NONE")
        if row is not None:
            values[name] = row[0]
    return values


def _varies(conn: ControlConnection, expression: str) -> bool:
    row = conn.execute("SELECT penstock.analysed(%s, '{}')", [f"SELECT {expression}"]).fetchone()
    functions = needs(parse_nodes(row[0] if row else "()")).functions
    found = conn.execute(_VARIES.encode(), [list(functions)]).fetchone()
    return bool(found and found[0])
