# SPDX-License-Identifier: Apache-2.0
"""Wait on conditions with a deadline: the only place in the tests where time passes by sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL = 0.02  # seconds between two looks, or twice what a look takes: it takes CPU from others


def wait_until(predicate: Callable[[], T | None], timeout: float, what: str) -> T:
    """Call ``predicate`` until its result is true, and return that result.

    ``timeout`` is in seconds; ``what`` says what was waited for, and is the text of the
    AssertionError when the deadline passes, with the last result.  An error that the predicate
    raises is not caught.
    """
    deadline = time.monotonic() + timeout
    while True:
        began = time.monotonic()
        result = predicate()
        if result:
            return result
        ended = time.monotonic()
        if ended >= deadline:
            raise AssertionError(f"waited {timeout} s for {what}; last result: {result!r}")
        time.sleep(max(POLL, 2 * (ended - began)))


def hold(seconds: float) -> None:
    """Let a load run for a while; for loads and benches, never to wait for a result."""
    time.sleep(seconds)
