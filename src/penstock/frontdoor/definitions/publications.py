# SPDX-License-Identifier: Apache-2.0
"""Row filters that the lake could not evaluate exactly are refused when a publication is made.

In:   the client's own session, after CREATE or ALTER PUBLICATION was relayed and PostgreSQL's own
      rules for a WHERE clause held.
Out:  nothing; FeatureNotSupportedError (0A000) names the expression, or PostgreSQL's own error when
      a constant part of a filter fails.  Either undoes the statement.
"""

from __future__ import annotations

import json

from penstock.change.relation import LakeColumn
from penstock.frontdoor.actions import Backend
from penstock.frontdoor.reading.catalog import CatalogReader
from penstock.publish.filter import PublishedWhere, compile_filter

_NEW_FILTERS = "SELECT * FROM penstock.new_row_filters()"


async def check_row_filters(backend: Backend, catalog: CatalogReader) -> None:
    """Compile all row filters that the session's transaction has made."""
    rows = await backend.query(_NEW_FILTERS)
    for publication, schema, table, columns, tree in rows:
        where = PublishedWhere(
            publication or "",
            schema or "",
            table or "",
            tuple(LakeColumn(*column) for column in json.loads(columns or "[]")),
            tree or "",
        )
        facts, _ = await catalog.facts(backend, where.nodes)
        compile_filter(where, facts)
