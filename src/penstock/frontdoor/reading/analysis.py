# SPDX-License-Identifier: Apache-2.0
"""The analysed tree of a client's statement, from the control database.

The client's own session is asked, because only it knows the session's search path, role and
uncommitted definitions.  In a read-only transaction PostgreSQL cannot make the tree there; then a
connection of the node's own takes the client's role and settings and is asked instead:

    what it cannot see                     so
    ------------------                     --
    the session's temporary tables         refused when there are any: one could hide a lake table
    the transaction's own definitions      it waits for their locks LOCK_TIMEOUT, then refuses
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import psycopg

from penstock.control.connect import ControlConnection
from penstock.errors import FeatureNotSupportedError, PenstockError
from penstock.frontdoor.actions import Backend, Row
from penstock.names import quote_pg
from penstock.sql.nodes import Node, parse_nodes

LOCK_TIMEOUT = "2s"

_ASK = "SELECT penstock.analysed($1::pg_catalog.text, $2::pg_catalog.oid[])"

_SETTINGS = (
    "search_path",
    "TimeZone",
    "DateStyle",
    "IntervalStyle",
    "standard_conforming_strings",
    "transform_null_equals",
    "array_nulls",
)
"""What changes how a statement's names and constants are read."""

_IDENTITY = f"""
SELECT session_user::pg_catalog.text, current_user::pg_catalog.text,
    EXISTS (SELECT FROM pg_catalog.pg_class c
            WHERE c.relnamespace = pg_catalog.pg_my_temp_schema())::pg_catalog.text,
    {", ".join(f"pg_catalog.current_setting('{name}')" for name in _SETTINGS)}
"""


class Analyst:
    """Asks for trees; ``connect`` opens a superuser's connection to the control database."""

    def __init__(self, connect: Callable[[], ControlConnection] | None) -> None:
        self._connect = connect

    async def tree(self, backend: Backend, sql: str, parameter_types: Sequence[int]) -> Node:
        """The Query node; PenstockError with PostgreSQL's error when it refuses the statement."""
        kinds = "{" + ",".join(map(str, parameter_types)) + "}"
        statement = sql.strip().rstrip(";")
        rows = await backend.query(_ASK, [statement, kinds])
        text = rows[0][0]
        if text is None:
            identity = (await backend.query(_IDENTITY))[0]
            text = await asyncio.to_thread(self._elsewhere, identity, statement, kinds)
        queries = [each for part in parse_nodes(text or "()") for each in part]
        if len(queries) != 1 or not isinstance(queries[0], Node):
            raise FeatureNotSupportedError("several statements at once are not supported")
        return queries[0]

    def _elsewhere(self, identity: Row, statement: str, kinds: str) -> str | None:
        user, role, has_temporary, *settings = (value or "" for value in identity)
        if self._connect is None or has_temporary == "true":
            reason = "The session has temporary tables." if self._connect else None
            raise FeatureNotSupportedError(
                "lake tables cannot be read in this read-only transaction",
                detail=reason,
                hint="Begin it READ WRITE.",
            )
        connection = self._connect()
        try:
            connection.execute(f"SET SESSION AUTHORIZATION {quote_pg(user)}".encode())
            if role != user:
                connection.execute(f"SET ROLE {quote_pg(role)}".encode())
            names = zip((*_SETTINGS, "lock_timeout"), (*settings, LOCK_TIMEOUT), strict=True)
            for name, value in names:
                connection.execute("SELECT pg_catalog.set_config(%s, %s, false)", [name, value])
            row = connection.execute(
                "SELECT penstock.analysed(%s::pg_catalog.text, %s::pg_catalog.oid[])",
                [statement, kinds],
            ).fetchone()
        except psycopg.Error as error:
            raise PenstockError(
                error.diag.message_primary or str(error),
                detail=error.diag.message_detail,
                hint=error.diag.message_hint,
                sqlstate=error.sqlstate or "08006",
            ) from error
        finally:
            connection.close()
        return None if row is None else str(row[0])
