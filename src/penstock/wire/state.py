# SPDX-License-Identifier: Apache-2.0
"""The states of a client's connection, as one table; nothing else assigns a state.

In:   events: what the client sent, and the few things of ours that change what it may send.
Out:  the next state, or ProtocolError when the event is not in the state's row.

    STARTUP         nothing has arrived              -> *_ASKED, AUTHENTICATING, CLOSED
    SSL_ASKED       one SSLRequest was answered      (a second one is an error)
    GSSENC_ASKED    one GSSENCRequest was answered   (a second one is an error)
    BOTH_ASKED      one of each was answered
    AUTHENTICATING  the startup packet was relayed   -> READY, by the first ReadyForQuery
    READY           between two commands
    PIPELINE        messages of the extended protocol since the last Sync
    SKIPPING        one of them failed: all is ignored up to the next Sync
    COPY_IN         a COPY FROM STDIN that we carry out reads the client's rows
    COPY_EXTENDED   one of a pipeline, which goes on after it
    COPY_BOTH       a replication stream; the client confirms positions
    CLOSED          final

All states are of one connection and die with it: none is durable.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from penstock.errors import ProtocolError


class State(StrEnum):
    """Where a client's connection stands."""

    STARTUP = "startup"
    SSL_ASKED = "ssl asked"
    GSSENC_ASKED = "gssenc asked"
    BOTH_ASKED = "both asked"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    PIPELINE = "pipeline"
    SKIPPING = "skipping"
    COPY_IN = "copy in"
    COPY_EXTENDED = "copy in of a pipeline"
    COPY_BOTH = "copy both"
    CLOSED = "closed"


class Event(StrEnum):
    """What changes a state; the last five are ours, the others are sent by the client."""

    SSL_REQUEST = "SSLRequest"
    GSSENC_REQUEST = "GSSENCRequest"
    CANCEL_REQUEST = "CancelRequest"
    STARTUP_PACKET = "StartupMessage"
    PASSWORD = "PasswordMessage"
    QUERY = "Query"
    EXTENDED = "Parse, Bind, Describe, Execute, Close, Flush"
    SYNC = "Sync"
    COPY_ROWS = "CopyData"
    COPY_END = "CopyDone, CopyFail"
    FUNCTION_CALL = "FunctionCall"
    TERMINATE = "Terminate"
    LOGGED_IN = "logged in"
    COPY_STARTED = "copy started"
    STREAM_STARTED = "stream started"
    FAILED = "failed"
    LOST = "lost"


S, E = State, Event

_COPY_OUTSIDE = {E.COPY_ROWS, E.COPY_END}
"""PostgreSQL accepts and ignores these outside of COPY: the rows of one that failed."""

_COPYING_IN = {
    E.EXTENDED,  # Flush; the sender of any other is told so by the session
    E.SYNC,
    E.COPY_ROWS,
}

_NEGOTIATED = {
    E.STARTUP_PACKET: S.AUTHENTICATING,
    E.CANCEL_REQUEST: S.CLOSED,
    E.FAILED: S.CLOSED,
    E.LOST: S.CLOSED,
}

_TRANSITIONS: dict[State, dict[Event, State]] = {
    S.STARTUP: {
        E.SSL_REQUEST: S.SSL_ASKED,
        E.GSSENC_REQUEST: S.GSSENC_ASKED,
        **_NEGOTIATED,
    },
    S.SSL_ASKED: {E.GSSENC_REQUEST: S.BOTH_ASKED, **_NEGOTIATED},
    S.GSSENC_ASKED: {E.SSL_REQUEST: S.BOTH_ASKED, **_NEGOTIATED},
    S.BOTH_ASKED: {**_NEGOTIATED},
    S.AUTHENTICATING: {
        E.PASSWORD: S.AUTHENTICATING,
        E.LOGGED_IN: S.READY,
        E.FAILED: S.CLOSED,
        E.LOST: S.CLOSED,
    },
    S.READY: {
        E.QUERY: S.READY,
        E.EXTENDED: S.PIPELINE,
        E.SYNC: S.READY,
        **dict.fromkeys(_COPY_OUTSIDE, S.READY),
        E.FUNCTION_CALL: S.READY,
        E.COPY_STARTED: S.COPY_IN,
        E.STREAM_STARTED: S.COPY_BOTH,
        E.FAILED: S.READY,
        E.TERMINATE: S.CLOSED,
        E.LOST: S.CLOSED,
    },
    S.PIPELINE: {
        E.QUERY: S.READY,
        E.EXTENDED: S.PIPELINE,
        E.SYNC: S.READY,
        **dict.fromkeys(_COPY_OUTSIDE, S.PIPELINE),
        E.FUNCTION_CALL: S.READY,
        E.COPY_STARTED: S.COPY_EXTENDED,
        E.FAILED: S.SKIPPING,
        E.TERMINATE: S.CLOSED,
        E.LOST: S.CLOSED,
    },
    S.SKIPPING: {
        E.QUERY: S.SKIPPING,
        E.EXTENDED: S.SKIPPING,
        E.SYNC: S.READY,
        **dict.fromkeys(_COPY_OUTSIDE, S.SKIPPING),
        E.FUNCTION_CALL: S.SKIPPING,
        E.FAILED: S.SKIPPING,
        E.TERMINATE: S.CLOSED,
        E.LOST: S.CLOSED,
    },
    S.COPY_IN: {
        **dict.fromkeys(_COPYING_IN, S.COPY_IN),
        E.COPY_END: S.READY,
        E.FAILED: S.READY,
        E.TERMINATE: S.CLOSED,
        E.LOST: S.CLOSED,
    },
    S.COPY_EXTENDED: {
        **dict.fromkeys(_COPYING_IN, S.COPY_EXTENDED),
        E.COPY_END: S.PIPELINE,
        E.FAILED: S.SKIPPING,
        E.TERMINATE: S.CLOSED,
        E.LOST: S.CLOSED,
    },
    S.COPY_BOTH: {
        E.COPY_ROWS: S.COPY_BOTH,
        E.COPY_END: S.READY,
        E.FAILED: S.READY,
        E.TERMINATE: S.CLOSED,
        E.LOST: S.CLOSED,
    },
    S.CLOSED: {E.LOST: S.CLOSED},
}

TRANSITIONS: Mapping[State, Mapping[Event, State]] = MappingProxyType(_TRANSITIONS)

CLIENT_EVENTS: Mapping[int, Event] = MappingProxyType(
    {
        ord("p"): E.PASSWORD,
        ord("Q"): E.QUERY,
        **dict.fromkeys(b"PBDECH", E.EXTENDED),
        ord("S"): E.SYNC,
        ord("d"): E.COPY_ROWS,
        ord("c"): E.COPY_END,
        ord("f"): E.COPY_END,
        ord("F"): E.FUNCTION_CALL,
        ord("X"): E.TERMINATE,
    }
)
"""Type byte of a client's message -> event."""


COPYING_IN = frozenset({State.COPY_IN, State.COPY_EXTENDED})
"""In which the client's rows are read."""


class ConnectionState:
    """The state of one client's connection."""

    def __init__(self) -> None:
        self._now = State.STARTUP

    @property
    def now(self) -> State:
        """The present state."""
        return self._now

    def on(self, event: Event) -> State:
        """Go to the state that follows; ProtocolError for an event that must not come now."""
        following = TRANSITIONS[self._now].get(event)
        if following is None:
            raise ProtocolError(f"unexpected {event.value} while the connection is {self._now}")
        self._now = following
        return following
