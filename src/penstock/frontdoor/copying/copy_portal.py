# SPDX-License-Identifier: Apache-2.0
"""A bound COPY TO STDOUT of lake tables (extended protocol): executed once."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.frontdoor.actions import CopyLake
from penstock.frontdoor.conversation import Conversation


@dataclass
class CopyPortal:
    """A portal.  The control database has one of the same name, which is described only."""

    copy: CopyLake
    name: bytes
    cycle: int
    has_run: bool = False

    async def execute(self, conversation: Conversation, _max_rows: int) -> None:
        """Answer one Execute; the session is settled.  55000 for a second one, as in PostgreSQL."""
        if self.has_run:
            name = conversation.text(self.name)
            raise PenstockError(f'portal "{name}" cannot be run', sqlstate="55000")
        self.has_run = True
        await conversation.copy(self.copy)
