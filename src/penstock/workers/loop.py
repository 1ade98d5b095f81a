# SPDX-License-Identifier: Apache-2.0
"""A loop on a thread of its own, for as long as the node runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import psycopg

from penstock.errors import PenstockError
from penstock.workers.retry import Backoff

log = logging.getLogger(__name__)


class Loop:
    """Runs ``body`` until it is told to end, and again after a pause when it fails.

    ``body`` returns soon after the event that it is given is set; ``failure`` begins the log's
    line about an error, of ours or of a lost connection.  Any other error ends the thread.
    """

    def __init__(
        self,
        name: str,
        body: Callable[[threading.Event], None],
        failure: str,
        retry_interval: float,
    ) -> None:
        self._body = body
        self._failure = failure
        self._backoff = Backoff(retry_interval)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def shut_down(self, timeout: float) -> None:
        """Tell it to end, and wait for so many seconds."""
        self._stopping.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._body(self._stopping)
            except (PenstockError, psycopg.OperationalError) as error:
                log.warning("%s: %s", self._failure, error)
                self._stopping.wait(self._backoff.pause_after(error))
