# SPDX-License-Identifier: Apache-2.0
"""How long a worker waits before it tries again.

PostgreSQL's launcher starts a failed worker again every wal_retrieve_retry_interval, whatever the
error was; so do we, and the error stays visible until an attempt succeeds.  Only a connection
that was lost is tried again sooner: after a tenth of the interval, then twice as long each time.
"""

from __future__ import annotations

from penstock.errors import ConnectionLostError


class Backoff:
    """Pauses between attempts, in seconds; ``reset`` after an attempt that made progress."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._next = interval / 10

    def reset(self) -> None:
        """Start again with the shortest pause."""
        self._next = self._interval / 10

    def pause_after(self, error: Exception) -> float:
        """The pause after this error."""
        if not isinstance(error, ConnectionLostError):
            return self._interval
        pause = self._next
        self._next = min(self._interval, self._next * 2)
        return pause
