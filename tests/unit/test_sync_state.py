# SPDX-License-Identifier: Apache-2.0
"""The table states: every cell of the transition table, and which transactions are applied."""

from __future__ import annotations

from itertools import product

import pytest

from penstock.errors import WrongStateError
from penstock.sync.state import (
    TRANSITIONS,
    Event,
    TableState,
    after,
    needs_copy,
    should_apply,
    should_catch_up,
)

ALLOWED = {
    ("i", Event.COPY_STARTED): "d",
    ("d", Event.COPY_STARTED): "d",
    ("d", Event.COPY_COMMITTED): "f",
    ("f", Event.CAUGHT_UP): "s",
    ("s", Event.STREAM_PASSED): "r",
}


@pytest.mark.parametrize(("state", "event"), list(product(TableState, Event)))
def test_every_cell(state: TableState, event: Event) -> None:
    """A cell has exactly the state that the table in the module says, or is an error."""
    expected = ALLOWED.get((state.value, event))
    if expected is None:
        with pytest.raises(WrongStateError, match=event.value):
            after(state, event)
    else:
        assert after(state, event) == TableState(expected)


def test_every_state_ends_ready() -> None:
    """From each state there is a way to r, and r is the only end."""
    for state in TableState:
        reached, todo = set(), [state]
        while todo:
            current = todo.pop()
            if current not in reached:
                reached.add(current)
                todo.extend(TRANSITIONS[current].values())
        assert TableState.READY in reached
    assert [state for state, events in TRANSITIONS.items() if not events] == [TableState.READY]


@pytest.mark.parametrize("state", TableState)
@pytest.mark.parametrize("commit_lsn", [99, 100, 101])
def test_the_stream_applies_as_postgresql_does(state: TableState, commit_lsn: int) -> None:
    """READY always, SYNCDONE from its LSN on, the others never (should_apply_changes_for_rel)."""
    expected = state == "r" or (state == "s" and commit_lsn >= 100)
    assert should_apply(state, 100, commit_lsn) == expected


def test_each_transaction_arrives_once() -> None:
    """Copy, catch-up and stream divide the transactions without gap or overlap."""
    copied, stream = 100, 180
    for lsn in range(90, 200):
        in_copy = lsn < copied
        caught_up = should_catch_up(copied, stream, lsn)
        streamed = lsn >= stream and should_apply("s", stream, lsn)
        assert in_copy + caught_up + streamed == 1


def test_what_needs_a_copy() -> None:
    """Only tables whose copy was never committed."""
    assert [state.value for state in TableState if needs_copy(state)] == ["i", "d"]
