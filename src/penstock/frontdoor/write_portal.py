# SPDX-License-Identifier: Apache-2.0
"""A bound statement that writes the lake (extended protocol): executed once, rows sent as asked."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.frontdoor.actions import WriteLake
from penstock.frontdoor.conversation import Conversation
from penstock.frontdoor.exchange import Exchange, Step
from penstock.wire import requests, responses


@dataclass
class WritePortal:
    """A portal; ``rows`` are the DataRows that the statement returned, once it has run.

    ``at`` is the next row to send, ``completion`` the CommandComplete behind them.
    """

    write: WriteLake
    name: bytes
    cycle: int
    rows: list[bytes] | None = None
    completion: bytes = b""
    at: int = 0

    async def execute(self, conversation: Conversation, max_rows: int) -> None:
        """Answer one Execute, whose ``max_rows`` is 0 for all; the session is settled."""
        if self.rows is None:
            answer = await conversation.write(self.write, lambda: self._run(conversation))
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
        exchange = conversation.backend.ask([(Step.EXECUTE, requests.execute(self.name))])
        await exchange.wait()
        return exchange
