# SPDX-License-Identifier: Apache-2.0
"""The ledger worker: follows the control database's WAL into penstock.commit."""

from __future__ import annotations

import logging
import threading

from penstock.control.address import ControlAddress
from penstock.control.ledger import Ledger
from penstock.errors import PenstockError
from penstock.workers.retry import Backoff

log = logging.getLogger(__name__)


class LedgerWorker:
    """Keeps the ledger's loop running; position and rows are durable in the control database."""

    def __init__(self, address: ControlAddress, retry_interval: float) -> None:
        self._address = address
        self._backoff = Backoff(retry_interval)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def shut_down(self, timeout: float) -> None:
        """End the loop; what it had not written yet it will read again."""
        self._stopping.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                Ledger(self._address).run(self._stopping)
            except PenstockError as error:
                log.warning("the ledger stopped: %s", error)
                self._stopping.wait(self._backoff.pause_after(error))
