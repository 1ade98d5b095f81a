# SPDX-License-Identifier: Apache-2.0
"""A bound statement that writes the lake (extended protocol): executed once, rows sent as asked."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.frontdoor.actions import Parameter, WriteLake
from penstock.frontdoor.conversation import Conversation
from penstock.frontdoor.exchange import Exchange, Step
from penstock.sql.tokens import significant
from penstock.wire import requests, responses
from penstock.wire.framing import Message


@dataclass
class WritePortal:
    """A portal; ``rows`` are the DataRows that the statement returned, once it has run.

    ``bind`` made it, and ``types`` has the types of its parameters.  ``at`` is the next row to
    send, ``tag`` the statement's, whose last word is how many.
    """

    write: WriteLake
    bind: Message
    types: Exchange | None
    cycle: int
    has_run: bool = False
    rows: list[bytes] | None = None
    tag: str = ""
    at: int = 0

    async def execute(self, conversation: Conversation, max_rows: int) -> None:
        """Answer one Execute, whose ``max_rows`` is 0 for all; the session is settled.

        A second one continues the rows of RETURNING; without it that is 55000, as in PostgreSQL.
        """
        if self.rows is not None and not self._returns_rows:
            name = conversation.text(requests.parse_bind_names(self.bind)[0])
            raise PenstockError(f'portal "{name}" cannot be run', sqlstate="55000")
        if self.rows is None:
            answer = await conversation.write(
                self.write, lambda: self._run(conversation), self._parameters
            )
            kept = answer.kept
            self.rows = [each.raw for each in kept if each.kind == responses.DATA_ROW]
            (done,) = (each for each in kept if each.kind == responses.COMMAND_COMPLETE)
            self.tag = responses.parse_command_tag(done)
        start, left = self.at, len(self.rows) - self.at
        self.at += min(left, max_rows) if max_rows else left
        conversation.client.write(b"".join(self.rows[start : self.at]))
        suspended = max_rows and self.at - start == max_rows
        tag = self.tag
        if self._returns_rows:  # it counts what this Execute has sent
            tag = f"{tag.rpartition(' ')[0]} {self.at - start}"
        end = responses.portal_suspended() if suspended else responses.command_complete(tag)
        conversation.client.write(end)

    @property
    def _returns_rows(self) -> bool:
        return any(token.word == "returning" for token in significant(self.write.sql))

    async def _run(self, conversation: Conversation) -> Exchange:
        portal, _ = requests.parse_bind_names(self.bind)
        steps = [(Step.EXECUTE, requests.execute(portal))]
        if self.has_run:  # and what it did was rolled back
            close = (Step.CLOSE, requests.close(requests.PORTAL, portal))
            steps = [close, (Step.BIND, self.bind.raw), *steps]
        self.has_run = True
        exchange = conversation.backend.ask(steps, frozenset({responses.COPY_IN}))
        if self.write.reads_client:
            await conversation.feed_copy(exchange)
        await exchange.wait()
        return exchange

    async def _parameters(self) -> list[Parameter]:
        return [] if self.types is None else bound_parameters(self.types, self.bind)


def bound_parameters(types: Exchange, bind: Message) -> list[Parameter]:
    """The parameters of a Bind; ``types`` is the answer to a Describe of its statement."""
    described = types.only(responses.PARAMETER_DESCRIPTION)
    oids = responses.parse_parameter_oids(described) if described else ()
    read = requests.parse_bind(bind)
    return [
        Parameter(oid, 1 if code else 0, value)
        for oid, code, value in zip(oids, read.formats, read.values, strict=True)
    ]
