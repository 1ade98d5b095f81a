# SPDX-License-Identifier: Apache-2.0
"""Who waits for the end of the session's transaction (``ended`` of a Relay), and how it ended.

In:   command tags, errors and ReadyForQuery of the control connection, in order.
Out:  ``due``: the callbacks to run before the client's next ReadyForQuery.

    what came                                  the transaction
    ---------                                  ---------------
    tag COMMIT                                 committed
    ReadyForQuery I, after an error            rolled back
    ReadyForQuery I, after tag ROLLBACK        rolled back
    ReadyForQuery I, otherwise                 committed
    the connection ended                       rolled back, as far as anybody here knows

True means that what the session last ended was committed, not that each statement's effect is in
it: ROLLBACK TO SAVEPOINT may have undone it, or a ROLLBACK in a pipeline, before other statements,
which has the same tag.  So who is told looks at what is there.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from penstock.errors import PenstockError
from penstock.wire.responses import TransactionStatus

log = logging.getLogger(__name__)

Ended = Callable[[bool], Awaitable[None]]


class Endings:
    """The callbacks of one session."""

    def __init__(self) -> None:
        self._pending: list[Ended] = []
        self._due: list[tuple[Ended, bool]] = []
        self._failed = False
        self._rolled_back = False

    @property
    def waiting(self) -> bool:
        """Whether anybody waits: then ReadyForQuery has to wait too."""
        return bool(self._pending or self._due)

    def add(self, ended: Ended) -> None:
        """Wait for the end of the present transaction."""
        self._pending.append(ended)

    def on_tag(self, tag: str) -> None:
        """Take a command tag."""
        self._rolled_back = tag == "ROLLBACK"
        if tag == "COMMIT":
            self._end(committed=True)

    def on_error(self) -> None:
        """Take an error."""
        self._failed = True

    def on_ready(self, status: TransactionStatus) -> None:
        """Take a ReadyForQuery."""
        if status == "I":
            self._end(committed=not (self._failed or self._rolled_back))
            self._failed = False
        elif status == "T":
            self._failed = False
        self._rolled_back = False

    async def run_due(self) -> None:
        """Run the callbacks whose transaction has ended; their errors can undo nothing."""
        due, self._due = self._due, []
        for ended, committed in due:
            try:
                await ended(committed)
            except PenstockError as error:
                log.error("after the end of a transaction: %s", error)

    async def connection_ended(self) -> None:
        """Run all that is left."""
        self._end(committed=False)
        await self.run_due()

    def _end(self, *, committed: bool) -> None:
        self._due += [(ended, committed) for ended in self._pending]
        self._pending.clear()
