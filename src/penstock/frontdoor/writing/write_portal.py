# SPDX-License-Identifier: Apache-2.0
"""A bound statement that writes the lake (extended protocol): executed once, rows sent as asked."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.frontdoor.actions import Parameter, WriteLake
from penstock.frontdoor.conversation import Conversation
from penstock.frontdoor.exchange import Exchange, Step
from penstock.wire import requests, responses
from penstock.wire.framing import Message


@dataclass
class WritePortal:
    """A portal; ``rows`` are the DataRows that the statement returned, once it has run.

    ``bind`` made it, and ``types`` has the types of its parameters.  ``at`` is the next row to
    send, ``completion`` the CommandComplete behind them.
    """

    write: WriteLake
    bind: Message
    types: Exchange | None
    cycle: int
    has_run: bool = False
    rows: list[bytes] | None = None
    completion: bytes = b""
    at: int = 0

    async def execute(self, conversation: Conversation, max_rows: int) -> None:
        """Answer one Execute, whose ``max_rows`` is 0 for all; the session is settled."""
        if self.rows is None:
            answer = await conversation.write(
                self.write, lambda: self._run(conversation), self._parameters
            )
            kept = answer.kept
            self.rows = [each.raw for each in kept if each.kind == responses.DATA_ROW]
            tags = (each.raw for each in kept if each.kind == responses.COMMAND_COMPLETE)
            self.completion = b"".join(tags)
        start, left = self.at, len(self.rows) - self.at
        self.at += min(left, max_rows) if max_rows else left
        conversation.client.write(b"".join(self.rows[start : self.at]))
        suspended = max_rows and self.at - start == max_rows
        conversation.client.write(responses.portal_suspended() if suspended else self.completion)

    async def _run(self, conversation: Conversation) -> Exchange:
        portal, _ = requests.parse_bind_names(self.bind)
        steps = [(Step.EXECUTE, requests.execute(portal))]
        if self.has_run:  # and what it did was rolled back
            close = (Step.CLOSE, requests.close(requests.PORTAL, portal))
            steps = [close, (Step.BIND, self.bind.raw), *steps]
        self.has_run = True
        exchange = conversation.backend.ask(steps)
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
