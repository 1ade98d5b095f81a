# SPDX-License-Identifier: Apache-2.0
"""How a session's transaction ended, and who may cancel it: the parts that need no server."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import PenstockError
from penstock.frontdoor.cancel import CancelKeys
from penstock.frontdoor.endings import Endings
from penstock.wire.responses import TransactionStatus
from penstock.wire.startup import CancelKey

REAL = CancelKey(4711, b"real")


def outcomes(events: list[str]) -> list[bool]:
    """What one waiting callback is told; an event is a tag, ``error``, or a status letter."""
    told: list[bool] = []

    async def ended(committed: bool) -> None:
        told.append(committed)

    endings = Endings()
    endings.add(ended)
    statuses: dict[str, TransactionStatus] = {"I": "I", "T": "T", "E": "E"}
    for event in events:
        if event in statuses:
            endings.on_ready(statuses[event])
        elif event == "error":
            endings.on_error()
        else:
            endings.on_tag(event)
    asyncio.run(endings.run_due())
    assert endings.waiting is not bool(told)
    return told


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (["CREATE TABLE", "I"], [True]),
        (["error", "I"], [False]),
        (["CREATE TABLE", "T"], []),
        (["CREATE TABLE", "T", "COMMIT", "I"], [True]),
        (["CREATE TABLE", "T", "ROLLBACK", "I"], [False]),
        (["CREATE TABLE", "T", "error", "E", "ROLLBACK", "I"], [False]),
        (["CREATE TABLE", "T", "error", "E", "ROLLBACK", "T", "COMMIT", "I"], [True]),
        (["CREATE TABLE", "COMMIT", "SELECT 1", "error", "I"], [True]),
        (["CREATE TABLE", "T", "COMMIT", "T"], [True]),
        (["CREATE TABLE", "ROLLBACK", "SELECT 1", "I"], [True]),
    ],
)
def test_how_a_transaction_ended(events: list[str], expected: list[bool]) -> None:
    """The table of the module.  The last row cannot be told apart from ROLLBACK TO SAVEPOINT."""
    assert outcomes(events) == expected


def test_lost_connection_rolls_back() -> None:
    """Whoever waits when the connection ends is told that nothing was committed."""
    told: list[bool] = []

    async def ended(committed: bool) -> None:
        told.append(committed)
        raise PenstockError("cannot be told")

    endings = Endings()
    endings.add(ended)
    endings.add(ended)
    asyncio.run(endings.connection_ended())
    assert told == [False, False]


def test_cancel_keys() -> None:
    """A key cancels its own session only, and only while that lives."""
    keys = CancelKeys()
    asked: list[str] = []

    def cancel() -> bool:
        asked.append("session")
        return len(asked) > 1

    ours = keys.issue(REAL, cancel)
    assert ours.pid == REAL.pid
    assert ours.secret != REAL.secret
    assert len(ours.secret) == len(REAL.secret)
    for wrong in (REAL, CancelKey(1, ours.secret), CancelKey(ours.pid, b""), CancelKey(-1, b"x")):
        assert keys.cancel(wrong) is None
    assert asked == []
    assert keys.cancel(ours) == REAL
    assert keys.cancel(ours) is None
    keys.forget(ours.pid)
    assert keys.cancel(ours) is None
    assert len(asked) == 2
