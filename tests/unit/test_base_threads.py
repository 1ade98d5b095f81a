# SPDX-License-Identifier: Apache-2.0
"""What becomes of work on a thread of its own is told to whoever asks for it."""

from __future__ import annotations

import threading

import pytest

from penstock.errors import ConnectionLostError
from penstock.threads import beside


def test_a_result_and_an_expected_error_are_the_futures() -> None:
    """The work runs on a daemon thread of the name; its error is raised where it is asked for.

    That nothing else is done with the error is in test_base_logs.
    """
    thread = beside(threading.current_thread, "copy").result()
    assert (thread.name, thread.daemon) == ("copy", True)
    error = ConnectionLostError("lost the connection")

    def lose() -> None:
        raise error

    with pytest.raises(ConnectionLostError) as raised:
        beside(lose, "copy").result()
    assert raised.value is error
