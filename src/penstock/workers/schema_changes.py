# SPDX-License-Identifier: Apache-2.0
"""schema_changes = add: a column that the publisher added is added to the lake's table, too.

In:   the work of one relation, an open commit.
Out:  the missing columns in the control database's table and in the Delta table, in that commit.

The publisher is asked for the column's type and for the value that its ADD COLUMN ... DEFAULT
gave to the rows that existed (pg_attribute.attmissingval): those rows are not sent again, so the
lake's rows must get it, too.  A type that is not PostgreSQL's own becomes text, and so does one
whose values the subscription holds as text.

With schema_changes = error nothing is added, and apply stops with PostgreSQL's error.
"""

from __future__ import annotations

import logging

from penstock.change.relation import LakeTable
from penstock.client.connection import open_publisher
from penstock.control.catalog import Subscription
from penstock.control.commits import Commit
from penstock.names import quote_pg, quote_pg_literal, quote_pg_qualified
from penstock.sync.work import TableWork
from penstock.workers.context import WorkerContext

log = logging.getLogger(__name__)

_COLUMNS = """
SELECT a.attname,
    CASE WHEN a.atttypid < 16384 AND a.atttypid <> ALL (%s::pg_catalog.oid[])
         THEN pg_catalog.format_type(a.atttypid, a.atttypmod) ELSE 'pg_catalog.text' END,
    (a.attmissingval::pg_catalog.text::pg_catalog.text[])[1]
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND a.attname = ANY (%s)
    AND a.attnum > 0 AND NOT a.attisdropped
"""


def missing_columns(table: LakeTable, work: TableWork) -> list[str]:
    """Columns of the published relation that the lake's table lacks, in the publisher's order."""
    known = {column.name for column in table.columns}
    sent = (column.name for file in work.files for column in file.relation.columns)
    return [name for name in dict.fromkeys(sent) if name not in known]


def follow_columns(
    context: WorkerContext,
    subscription: Subscription,
    commit: Commit,
    table: LakeTable,
    work: TableWork,
) -> None:
    """Add the columns that the publisher has and the lake's table lacks, if there are any."""
    missing = missing_columns(table, work)
    if not missing:
        return
    for name, type_name, value in _ask_publisher(context, subscription, table, missing):
        default = "" if value is None else f" DEFAULT {quote_pg_literal(value)}::{type_name}"
        target = quote_pg_qualified(table.schema, table.name)
        commit.conn.execute(
            f"ALTER TABLE {target} ADD COLUMN {quote_pg(name)} {type_name}{default}".encode()
        )
        if default:
            commit.conn.execute(
                f"ALTER TABLE {target} ALTER COLUMN {quote_pg(name)} DROP DEFAULT".encode()
            )
        log.info('table "%s.%s" has the new column "%s"', table.schema, table.name, name)


def _ask_publisher(
    context: WorkerContext, subscription: Subscription, table: LakeTable, names: list[str]
) -> list[tuple[str, str, str | None]]:
    """Name, type and value of existing rows of the columns that the publisher still has."""
    connection = open_publisher(
        subscription.conninfo,
        application_name=subscription.name,
        default_user=context.publisher_user,
        password_required=subscription.password_required,
    )
    with connection:
        as_text = list(subscription.mapping.text_types)
        parameters = [as_text, table.schema, table.name, names]
        return connection.execute(_COLUMNS, parameters).fetchall()
