# SPDX-License-Identifier: Apache-2.0
"""End in order when told to: SIGTERM is made a KeyboardInterrupt, so that servers are stopped.

Servers and nodes run in sessions of their own; a test run that simply died would leave them.
"""

from __future__ import annotations

import signal
from types import FrameType


def end_in_order_on_sigterm() -> None:
    """Call it once, in the main thread."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(f"signal {number}")
