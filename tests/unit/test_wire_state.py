# SPDX-License-Identifier: Apache-2.0
"""The table of connection states: every cell, and what the table as a whole promises."""

from __future__ import annotations

import pytest

from penstock.errors import ProtocolError
from penstock.wire.framing import CLIENT_LIMITS
from penstock.wire.state import CLIENT_EVENTS, TRANSITIONS, ConnectionState, Event, State

PATHS: dict[State, list[Event]] = {
    State.STARTUP: [],
    State.SSL_ASKED: [Event.SSL_REQUEST],
    State.GSSENC_ASKED: [Event.GSSENC_REQUEST],
    State.BOTH_ASKED: [Event.GSSENC_REQUEST, Event.SSL_REQUEST],
    State.AUTHENTICATING: [Event.STARTUP_PACKET],
    State.READY: [Event.STARTUP_PACKET, Event.PASSWORD, Event.LOGGED_IN],
    State.PIPELINE: [Event.STARTUP_PACKET, Event.LOGGED_IN, Event.EXTENDED],
    State.SKIPPING: [Event.STARTUP_PACKET, Event.LOGGED_IN, Event.EXTENDED, Event.FAILED],
    State.COPY_IN: [Event.STARTUP_PACKET, Event.LOGGED_IN, Event.COPY_STARTED],
    State.COPY_EXTENDED: [
        Event.STARTUP_PACKET,
        Event.LOGGED_IN,
        Event.EXTENDED,
        Event.COPY_STARTED,
    ],
    State.COPY_BOTH: [Event.STARTUP_PACKET, Event.LOGGED_IN, Event.STREAM_STARTED],
    State.CLOSED: [Event.LOST],
}
"""A way from the start to each state."""


def at(state: State) -> ConnectionState:
    """A connection in that state."""
    connection = ConnectionState()
    for event in PATHS[state]:
        connection.on(event)
    assert connection.now is state
    return connection


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_every_cell(state: State, event: Event) -> None:
    """A cell is the next state; an empty one is a ProtocolError that changes nothing."""
    connection = at(state)
    following = TRANSITIONS[state].get(event)
    if following is None:
        with pytest.raises(ProtocolError, match="unexpected"):
            connection.on(event)
        assert connection.now is state
    else:
        assert connection.on(event) is following
        assert connection.now is following


def test_negotiation_cannot_go_on_for_ever() -> None:
    """One SSLRequest and one GSSENCRequest at most, in either order."""
    negotiating = {Event.SSL_REQUEST, Event.GSSENC_REQUEST}
    longest = 0
    paths: list[tuple[State, int]] = [(State.STARTUP, 0)]
    while paths:
        state, length = paths.pop()
        longest = max(longest, length)
        assert length <= len(State), "the table has a loop"
        paths += [
            (following, length + 1)
            for event, following in TRANSITIONS[state].items()
            if event in negotiating
        ]
    assert longest == 2


def test_nothing_but_a_password_before_authentication() -> None:
    """Until the control database has let a client in, nothing of it is looked at."""
    allowed = {Event.PASSWORD, Event.LOGGED_IN, Event.FAILED, Event.LOST}
    assert set(TRANSITIONS[State.AUTHENTICATING]) == allowed


def test_only_sync_ends_skipping() -> None:
    """After an error everything is ignored up to Sync, as PostgreSQL does."""
    row = TRANSITIONS[State.SKIPPING]
    assert {event for event, state in row.items() if state is State.READY} == {Event.SYNC}


def test_every_type_of_message_is_an_event() -> None:
    """What the framing lets through after authentication, the table knows."""
    assert set(CLIENT_EVENTS) == {*CLIENT_LIMITS, ord("p")}


def test_every_state_can_be_left_by_a_lost_connection() -> None:
    """A client may go at any time."""
    for state in State:
        assert TRANSITIONS[state][Event.LOST] is State.CLOSED
