# SPDX-License-Identifier: Apache-2.0
"""A session's backend for tests of routing: the Backend port over one libpq connection."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import psycopg
from psycopg.pq import DiagnosticField, ExecStatus, TransactionStatus

from penstock.errors import PenstockError
from penstock.frontdoor.actions import Action, CopyLake, Hook, Relay, Row, RunOnLake, WriteLake
from penstock.frontdoor.reading.explained import PublicationExplainer
from penstock.frontdoor.routing.known_names import KnownNames
from penstock.frontdoor.routing.router import (
    Ended,
    Reconciler,
    StatementRouter,
    SubscriptionCommands,
)
from penstock.sql.commands import Command
from penstock.wire.responses import ServerError
from tests.support.no_spark import no_spark

_STATUS: dict[int, Literal["I", "T", "E"]] = {
    TransactionStatus.IDLE: "I",
    TransactionStatus.INTRANS: "T",
    TransactionStatus.INERROR: "E",
}


class PqBackend:
    """The client's own session; blocks the event loop, which has nothing else to do in a test."""

    transaction_status: Literal["I", "T", "E"]
    parameters: dict[str, str]

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn
        self.queries: list[str] = []
        self.read_status()

    def read_status(self) -> None:
        """Take what the server reported with its last ReadyForQuery."""
        self.transaction_status = _STATUS[self.conn.pgconn.transaction_status]
        value = self.conn.pgconn.parameter_status(b"standard_conforming_strings") or b"on"
        self.parameters = {"standard_conforming_strings": value.decode()}

    async def query(self, sql: str, parameters: Sequence[str | None] = ()) -> list[Row]:
        self.queries.append(sql)
        values = [None if each is None else each.encode() for each in parameters]
        result = self.conn.pgconn.exec_params(sql.encode(), values)
        self.read_status()
        if result.status not in (
            ExecStatus.TUPLES_OK,
            ExecStatus.COMMAND_OK,
            ExecStatus.EMPTY_QUERY,
        ):
            raise _server_error(result)
        return [
            tuple(_text(result.get_value(row, column)) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]


class NoLake:
    """A Reconciler that has nothing to follow."""

    async def reconcile(self, _backend: Any) -> Ended | None:
        return None


class NoSubscriptions:
    """SubscriptionCommands that relay everything as it is."""

    async def route(self, _backend: Any, _command: Command) -> Relay:
        return Relay()


class Client:
    """A client whose statements are routed, and run on its session when they are relayed."""

    def __init__(
        self,
        conn: psycopg.Connection[Any],
        subscriptions: SubscriptionCommands | None = None,
        reconciler: Reconciler | None = None,
    ) -> None:
        self.backend = PqBackend(conn)
        names = KnownNames()
        names.load(conn)
        self.router = StatementRouter(
            names,
            reconciler or NoLake(),
            subscriptions or NoSubscriptions(),
            PublicationExplainer(no_spark, Path("/nowhere")),
        )

    def route(self, sql: str, parameter_oids: Sequence[int] = ()) -> Action:
        """Route one statement and do not run it."""
        self.backend.read_status()
        return asyncio.run(self.router.route(self.backend, sql, parameter_oids))

    def outcome(self, sql: str, parameter_oids: Sequence[int] = ()) -> str:
        """``relay``, ``lake``, ``write``, ``copy``, or the SQLSTATE of the refusal."""
        try:
            action = self.route(sql, parameter_oids)
        except PenstockError as error:
            return error.sqlstate
        if isinstance(action, WriteLake):
            return "write"
        if isinstance(action, CopyLake):
            return "copy"
        return "lake" if isinstance(action, RunOnLake) else "relay"

    def run(self, sql: str) -> list[Row]:
        """Route a statement that must be relayed, and run it with its hooks."""
        return asyncio.run(self._run(sql))

    async def _run(self, sql: str) -> list[Row]:
        self.backend.read_status()
        action = await self.router.route(self.backend, sql)
        assert isinstance(action, Relay), f"not relayed: {sql}"
        if action.before:
            await action.before(self.backend)
        try:
            rows = await self._relay(sql if action.sql is None else action.sql, action.after)
        except PenstockError:
            if action.ended:
                await action.ended(False)
            raise
        if action.ended:
            await action.ended(True)
        return rows

    async def _relay(self, sql: str, after: Hook | None) -> list[Row]:
        if after is None:
            return await self.backend.query(sql)
        # As the front door does: a hook that runs in the statement's transaction needs one.
        block = self.backend.transaction_status == "I"
        if block:
            await self.backend.query("BEGIN")
        rows = await self.backend.query(sql)
        await after(self.backend)
        if block:
            await self.backend.query("COMMIT")
        return rows


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


_FIELDS = {
    "C": DiagnosticField.SQLSTATE,
    "M": DiagnosticField.MESSAGE_PRIMARY,
    "D": DiagnosticField.MESSAGE_DETAIL,
    "H": DiagnosticField.MESSAGE_HINT,
    "P": DiagnosticField.STATEMENT_POSITION,
    "p": DiagnosticField.INTERNAL_POSITION,
    "q": DiagnosticField.INTERNAL_QUERY,
    "W": DiagnosticField.CONTEXT,
}


def _server_error(result: Any) -> ServerError:
    found = {code: _text(result.error_field(field)) for code, field in _FIELDS.items()}
    return ServerError({code: text for code, text in found.items() if text is not None})
