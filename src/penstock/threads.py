# SPDX-License-Identifier: Apache-2.0
"""Work on a thread of its own, whose result and whose error somebody else takes.

The thread is a daemon.  An executor of concurrent.futures is not enough where the work may hang in
a library that waits for a publisher: Python waits for an executor's threads before it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TypeVar

from penstock.errors import PenstockError

T = TypeVar("T")


def beside(
    work: Callable[[], T], name: str, expected: tuple[type[Exception], ...] = (PenstockError,)
) -> Future[T]:
    """Begin ``work`` on a thread of this name; the future has what it returns, or raises.

    An error that is not ``expected`` is a defect: it also ends the thread, so that the log has it
    (logs.py) even if nobody takes the result.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            outcome.set_exception(error)
            if not isinstance(error, expected):
                raise
        else:
            outcome.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome


@contextmanager
def meanwhile(
    work: Callable[[], T], name: str, expected: tuple[type[Exception], ...] = (PenstockError,)
) -> Iterator[Future[T]]:
    """As ``beside``, for the block: it has ended behind it, well or not."""
    done = beside(work, name, expected)
    try:
        yield done
    finally:
        wait([done])
