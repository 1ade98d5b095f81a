# SPDX-License-Identifier: Apache-2.0
"""A control connection that is a walsender: its client asked for ``replication=database``.

PostgreSQL takes only Query messages there, so a question of ours is one, too, with its parameters
as literals.  What is found out about a statement must stay true until it runs: outside of a block
the first question opens one (``hold_open``), which ``release`` ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import FeatureNotSupportedError
from penstock.frontdoor.backend import ControlBackend
from penstock.frontdoor.exchange import NOTHING, Exchange, Expected, Step
from penstock.sql.tokens import Kind, tokens
from penstock.wire import requests, responses
from penstock.wire.encodings import encode
from penstock.wire.framing import Message
from penstock.wire.responses import ServerError

_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ"


class Walsender(ControlBackend):
    """The control connection of a replication client."""

    is_holding = False
    """A block of ours is open, for the client's statement."""
    has_streamed = False
    """A replication stream has been begun on this connection."""
    is_unsound = False
    """An error came after a stream: nothing more may run here.

    On an error a walsender closes the WAL file of its reader, which belongs to the memory of a
    stream that has ended (WalSndErrorCleanup, seen in 18.6): the file descriptor may be a table's
    by now, and what is read then is wrong.
    """

    def _take_error(self, message: Message, head: Expected | None) -> bool:
        self.is_unsound = self.has_streamed
        return super()._take_error(message, head)

    async def hold(self) -> None:
        """Open a block of ours, unless the client has one."""
        if self.ready_status == "I":
            await self.run(_BEGIN)
            self.is_holding = True

    async def release(self) -> None:
        """End the block of ours; the statement in it has succeeded or failed."""
        if self.is_holding:
            self.is_holding = False
            await self.run("COMMIT" if self.ready_status == "T" else "ROLLBACK")

    async def run(self, sql: str, pass_on: frozenset[int] = NOTHING) -> Exchange:
        """Run a text in the client's encoding; raises the ServerError that it was."""
        exchange = self.ask(
            [(Step.QUERY, requests.query(encode(sql, self.client_encoding)))], pass_on
        )
        await exchange.wait()
        return exchange

    async def copy_out(self, sql: str) -> list[Message]:
        """Run a COPY TO STDOUT as a statement of ours; all messages that answer it."""
        kept = (await self._run(sql, ())).kept
        return [each for each in kept if each.kind != responses.READY_FOR_QUERY]

    async def fail_transaction(self) -> None:
        """Make the client's block fail, as PostgreSQL would have for an error of its own."""
        exchange = self.ask([(Step.QUERY, requests.query(b"penstock_statement_failed"))])
        await exchange.done.wait()
        self.unreported = None

    async def _run(
        self, sql: str, parameters: Sequence[str | None], blocks: list[bytes] | None = None
    ) -> Exchange:
        if blocks is not None:
            raise FeatureNotSupportedError("writing is not supported in a replication connection")
        if self.hold_open:
            await self.hold()
        in_block = self.ready_status == "T" and not self.is_holding
        try:
            return await self.run(with_literals(sql, parameters))
        except ServerError as error:
            if in_block:
                self.unreported = error  # the client's block has failed without its knowing
            raise


def with_literals(sql: str, parameters: Sequence[str | None]) -> str:
    """A statement with the values of its parameters in it, of unknown type as parameters are."""
    if not parameters:
        return sql
    parts = []
    for token in tokens(sql):
        if token.kind is Kind.PARAMETER:
            parts.append(_literal(parameters[int(token.text[1:]) - 1]))
        else:
            parts.append(token.text)
    return "".join(parts)


def _literal(value: str | None) -> str:
    if value is None:
        return "NULL"
    quoted = value.replace("'", "''")
    # E'' reads the same whatever standard_conforming_strings is.
    return f" E'{quoted.replace(chr(92), chr(92) * 2)}'" if "\\" in value else f"'{quoted}'"
