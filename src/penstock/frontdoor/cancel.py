# SPDX-License-Identifier: Apache-2.0
"""Cancel requests: a client has a key of ours, which stands for its control connection's key.

The process id is the real one (pg_stat_activity shows it, and clients compare); the secret is a
new random one of the same length, so the control database's own secrets never leave the node.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from penstock.wire.startup import CancelKey


@dataclass(frozen=True)
class _Issued:
    ours: CancelKey
    real: CancelKey
    cancel: Callable[[], bool]


class CancelKeys:
    """The keys of all sessions; process ids of living control connections differ."""

    def __init__(self) -> None:
        self._issued: dict[int, _Issued] = {}

    def issue(self, real: CancelKey, cancel: Callable[[], bool]) -> CancelKey:
        """A key for the client.

        ``cancel`` stops what the session does outside of the control database, and says whether
        that was all that ran.
        """
        ours = CancelKey(real.pid, secrets.token_bytes(len(real.secret)))
        self._issued[real.pid] = _Issued(ours, real, cancel)
        return ours

    def forget(self, pid: int) -> None:
        """The session has ended."""
        self._issued.pop(pid, None)

    def cancel(self, key: CancelKey) -> CancelKey | None:
        """Cancel what the session of a key does.

        The key to send to the control database, when it has something to cancel; None also for a
        wrong key, of which nobody is told.
        """
        issued = self._issued.get(key.pid)
        if issued is None or not hmac.compare_digest(issued.ours.secret, key.secret):
            return None
        return None if issued.cancel() else issued.real
