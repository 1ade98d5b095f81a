# SPDX-License-Identifier: Apache-2.0
"""Do a table's rows in the lake keep a CHECK that is new, validated or renamed?

In:   the client's own session, whose statement PostgreSQL has carried out on its empty relation.
Out:  nothing, or PostgreSQL's error for a row that does not keep it (ATRewriteTable, tablecmds.c).

The lake answers it as any other query of the client.  What it could not answer as PostgreSQL would
it refuses: then the CHECK can hold for new rows only, whose CHECK PostgreSQL itself looks at.
"""

from __future__ import annotations

import asyncio
from itertools import count

from penstock.change.relation import LakeTable
from penstock.errors import FeatureNotSupportedError, PenstockError
from penstock.frontdoor.actions import Backend, RunOnLake
from penstock.frontdoor.reading.query import SparkQueries
from penstock.lake.ddl import has_rows
from penstock.names import quote_pg_qualified

_EXPRESSION = """
SELECT pg_catalog.pg_get_expr(conbin, conrelid) FROM pg_catalog.pg_constraint
WHERE conrelid = $1::pg_catalog.oid AND conname = $2 AND contype = 'c'"""

_jobs = count(1)


async def check_rows(backend: Backend, queries: SparkQueries, table: LakeTable, name: str) -> None:
    """Look for a row that does not keep CHECK ``name``, whose table has its columns already.

    23514 when there is one; FeatureNotSupportedError (0A000) when the lake cannot evaluate it.
    """
    if not await asyncio.to_thread(has_rows, table):
        return
    ((expression,),) = await backend.query(_EXPRESSION, [str(table.relid), name])
    relation = quote_pg_qualified(table.schema, table.name)
    sql = f"SELECT 1 FROM {relation} WHERE NOT ({expression}) LIMIT 1"
    query = RunOnLake(sql, (table.relid,))
    try:
        broken = await queries.run(backend, query, (), f"penstock check of rows {next(_jobs)}")
    except FeatureNotSupportedError as error:
        raise FeatureNotSupportedError(
            f'CHECK constraint "{name}" on table "{table.schema}.{table.name}", which has rows in'
            " the lake, is not supported",
            detail=f"Its rows cannot be checked: {error.message}.",
            hint="Add it as NOT VALID: then it holds for new rows.",
        ) from error
    if broken.rows.num_rows:
        raise PenstockError(
            f'check constraint "{name}" of relation "{table.name}" is violated by some row',
            sqlstate="23514",
        )
