# SPDX-License-Identifier: Apache-2.0
"""penstock.explain_publication: what the lake has to say is counted before the call is relayed.

In:   a query with a call of it, whose argument is a string constant, and the client's session.
Out:  the setting penstock.explained for the duration of the query, from which the function in the
      control database takes rows and bytes (120_explain_publication.sql); the query itself is
      relayed as it is.

So the call may stand wherever a function can, and everything but the counts is SQL.  They are of
the versions that the session sees before the statement; READ COMMITTED may see a later one in it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from penstock.change.relation import LakeColumn
from penstock.errors import FeatureNotSupportedError, InsufficientPrivilegeError
from penstock.frontdoor.actions import Backend, Row
from penstock.frontdoor.reading.catalog import CatalogReader
from penstock.lake.session import GetSession
from penstock.publish.explain import Part, published_size
from penstock.publish.filter import PublishedWhere
from penstock.sql.tokens import Kind, Token
from penstock.sql.translate.facts import Facts

FUNCTION = "explain_publication"

_PARTS = """
SELECT relid, schema_name, table_name, location, version, columns, tree, obstacle
FROM penstock.published_parts($1)"""
_KEEP = "SELECT pg_catalog.set_config('penstock.explained', $1, true)"


def explained_publication(tokens: Sequence[Token]) -> str | None:
    """The constant in a call of the function; None without one."""
    for index, token in enumerate(tokens):
        behind = [each.text for each in tokens[index + 1 : index + 4]]
        if token.name == FUNCTION and len(behind) == 3 and behind[0] == "(" and behind[2] == ")":
            argument = tokens[index + 2]
            if argument.kind is Kind.STRING and argument.text[0] == "'":
                return argument.text[1:-1].replace("''", "'")
    return None


class PublicationExplainer:
    """Counts for one publication at a time; one serves all sessions of a node."""

    def __init__(self, session: GetSession, lake_root: Path) -> None:
        self._session = session
        self._lake_root = lake_root
        self._catalog = CatalogReader()

    async def count(self, backend: Backend, publication: str) -> None:
        """Leave the counts in the transaction; 42501 without the right to read a table."""
        by_table: dict[str, list[Row]] = {}
        for row in await backend.query(_PARTS, [publication]):
            _refuse_obstacle(row)
            by_table.setdefault(row[0] or "", []).append(row)
        counts = {}
        for relid, rows in by_table.items():
            parts = [
                Part(str(self._lake_root / (location or "")), int(version))
                for _, _, _, location, version, *_ in rows
                if version is not None
            ]
            where, facts = await self._filter(backend, publication, rows[0])
            counts[relid] = await asyncio.to_thread(
                published_size, self._session, parts, where, facts
            )
        await backend.query(_KEEP, [json.dumps({"publication": publication, "counts": counts})])

    async def forget(self, backend: Backend) -> None:
        """Take the counts away again: a later statement must not take them for its own."""
        await backend.query(_KEEP, [""])

    async def _filter(
        self, backend: Backend, publication: str, row: Row
    ) -> tuple[PublishedWhere | None, Facts]:
        _, schema, table, _, _, columns, tree, _ = row
        if tree is None:
            return None, Facts()
        of_table = tuple(LakeColumn(*column) for column in json.loads(columns or "[]"))
        where = PublishedWhere(publication, schema or "", table or "", of_table, tree)
        facts, _ = await self._catalog.facts(backend, where.nodes)
        return where, facts


def _refuse_obstacle(row: Row) -> None:
    if row[7] == "privilege":
        raise InsufficientPrivilegeError(f"permission denied for table {row[2]}")
    if row[7] is not None:
        raise FeatureNotSupportedError(
            f'row-level security of table "{row[1]}.{row[2]}" applies to the current role',
            detail="The rows of a publication are counted without it.",
        )
