# SPDX-License-Identifier: Apache-2.0
"""A bound command around a query of lake tables (extended protocol): executed once."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.frontdoor.actions import MakeTable, RelayRows
from penstock.frontdoor.conversation import Conversation
from penstock.frontdoor.definitions.made_table import make_table
from penstock.frontdoor.exchange import Exchange
from penstock.frontdoor.statement import relay_rows
from penstock.frontdoor.writing.write_portal import bound_parameters
from penstock.wire import requests
from penstock.wire.framing import Message


@dataclass
class RowsPortal:
    """A portal.  The control database has one of the same name, which is described only.

    ``bind`` made it, and ``types`` has the types of its parameters.
    """

    command: RelayRows | MakeTable
    bind: Message
    types: Exchange | None
    cycle: int
    has_run: bool = False

    async def execute(self, conversation: Conversation, _max_rows: int) -> None:
        """Answer one Execute; the session is settled.  55000 for a second one, as in PostgreSQL."""
        if self.has_run:
            name = conversation.text(requests.parse_bind_names(self.bind)[0])
            raise PenstockError(f'portal "{name}" cannot be run', sqlstate="55000")
        self.has_run = True
        if isinstance(self.command, MakeTable):
            await make_table(conversation, self.command)
            return
        parameters = [] if self.types is None else bound_parameters(self.types, self.bind)
        await relay_rows(conversation, self.command, parameters)
