# SPDX-License-Identifier: Apache-2.0
"""End in order when told to: SIGTERM is made a KeyboardInterrupt, so that servers are stopped.

Servers and nodes run in sessions of their own; a test run that simply died would leave them.
"""

from __future__ import annotations

import signal
from types import FrameType

import psutil
from xdist.workermanage import NodeManager

WORKERS_END = 60.0
"""Seconds that pytest-xdist's workers have to stop their servers; it gives them 10 otherwise."""


def end_in_order_on_sigterm() -> None:
    """Call it once, in the main thread."""
    signal.signal(signal.SIGTERM, _interrupt)


def end_workers_in_order_on_sigterm() -> None:
    """The same for the process that hands tests out to workers: they are told, too."""
    NodeManager.EXIT_TIMEOUT = WORKERS_END
    signal.signal(signal.SIGTERM, _interrupt_workers)


def _interrupt_workers(number: int, frame: FrameType | None) -> None:
    for worker in psutil.Process().children():
        worker.terminate()
    _interrupt(number, frame)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(f"signal {number}")
