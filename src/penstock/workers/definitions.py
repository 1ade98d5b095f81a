# SPDX-License-Identifier: Apache-2.0
"""Delta tables follow columns that a worker itself has added, in the worker's commit.

In:   locked and settled tables, after ALTER TABLE in the same commit (workers/schema_changes.py).
Out:  the tables at the versions that have the new columns.

The front door does the same for its clients (frontdoor/definitions/reconcile.py).
"""

from __future__ import annotations

from dataclasses import replace

from penstock.change.relation import LakeTable
from penstock.control.commits import Commit, xact_status
from penstock.lake.columns import definition_from_json
from penstock.lake.ddl import follow_columns
from penstock.lake.session import GetSession

_ALTERED = """
SELECT relid::bigint, rewrite::text, columns::text, recorded::text
FROM penstock.altered_tables() WHERE relid = ANY (%s::oid[])"""


def follow_definitions(
    session: GetSession, commit: Commit, tables: dict[int, LakeTable]
) -> dict[int, LakeTable]:
    """Let the Delta tables follow what this commit's ALTER TABLE statements have changed."""
    followed = dict(tables)
    rows = commit.conn.execute(_ALTERED, [list(tables)]).fetchall()
    for relid, rewrite, columns, recorded in rows:
        definition = definition_from_json(rewrite, columns, recorded)
        if not definition.differs:
            continue
        table = tables[relid]
        version = follow_columns(
            session,
            table,
            definition,
            lambda xid: xact_status(commit.conn, xid),
            commit.metadata,
        )
        if version is not None:
            followed[relid] = replace(table, version=version)
            commit.moved(followed[relid], version, [], "ddl", table.sole_writer)
        commit.set_columns(table)
    return followed
