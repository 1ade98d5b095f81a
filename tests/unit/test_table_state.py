# SPDX-License-Identifier: Apache-2.0
"""The table states: the moves between them, and which transactions the stream applies."""

from __future__ import annotations

import pytest

from penstock.control.table_state import BEFORE, NEEDS_COPY, TableState, applied_from


def test_every_state_ends_ready() -> None:
    """From each state there is a way to r, no way leads back from it, and none into i."""
    reached = {TableState.INIT}
    while new := {to for to in TableState if reached & set(BEFORE[to])} - reached:
        reached |= new
    assert reached == set(TableState)
    assert not any(TableState.READY in before for before in BEFORE.values())
    assert BEFORE[TableState.INIT] == ()


def test_a_copy_that_was_committed_is_not_made_again() -> None:
    """A table comes back to d only from a state without its rows."""
    assert set(BEFORE[TableState.DATASYNC]) == set(NEEDS_COPY)


@pytest.mark.parametrize("state", TableState)
@pytest.mark.parametrize("commit_lsn", [99, 100, 101])
def test_the_stream_applies_as_postgresql_does(state: TableState, commit_lsn: int) -> None:
    """READY always, SYNCDONE from its LSN on, the others never (should_apply_changes_for_rel)."""
    expected = state == "r" or (state == "s" and commit_lsn >= 100)
    first = applied_from(state, 100)
    assert (first is not None and first <= commit_lsn) == expected
