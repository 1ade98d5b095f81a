# SPDX-License-Identifier: Apache-2.0
"""The states of a subscription's table, as pg_subscription_rel.srsubstate has them.

    state            srsublsn   set by                                          then
    -----            --------   ------                                          ----
    i  init          null       CREATE SUBSCRIPTION, REFRESH (PostgreSQL)        to be copied
    d  datasync      null       table sync, before it reads                      being copied
    f  finishedcopy  C          table sync, in the transaction of the copy       to catch up
    s  syncdone      S          apply worker, in the transaction of catch-up     until stream > S
    r  ready         as it was  apply worker; PostgreSQL when copy_data = false  streamed

All five are durable: each is set in a transaction of the control database, together with the
table version that makes it true.  (PostgreSQL has w and c besides, in memory, for the
conversation of two processes; here one worker does both parts.)

C is the consistent point of the exported snapshot: the copy holds exactly the transactions whose
commit record lies before C.  S is the position that the stream had reached when the table caught
up.

A crash in d loses the copy's files, and the copy starts again (d to d).  A crash after f or s
loses nothing.

Worked trace of a table that joins a running stream (LSNs):

    i        stream applies other tables
    d        snapshot exported at C = 100; stream goes on to 180 meanwhile, staged
    f 100    copy committed; changes with commit LSN 100 <= L are missing
    s 180    catch-up applied 100 <= L < 180 (all that staging held up to the stream's position)
    r        stream passed 180: L >= 180 are applied like everybody's
"""

from __future__ import annotations

from enum import StrEnum, auto

from penstock.errors import WrongStateError


class TableState(StrEnum):
    """pg_subscription_rel.srsubstate."""

    INIT = "i"
    DATASYNC = "d"
    FINISHEDCOPY = "f"
    SYNCDONE = "s"
    READY = "r"


class Event(StrEnum):
    """What moves a table on."""

    COPY_STARTED = auto()
    COPY_COMMITTED = auto()
    CAUGHT_UP = auto()
    STREAM_PASSED = auto()


TRANSITIONS: dict[TableState, dict[Event, TableState]] = {
    TableState.INIT: {Event.COPY_STARTED: TableState.DATASYNC},
    TableState.DATASYNC: {
        Event.COPY_STARTED: TableState.DATASYNC,
        Event.COPY_COMMITTED: TableState.FINISHEDCOPY,
    },
    TableState.FINISHEDCOPY: {Event.CAUGHT_UP: TableState.SYNCDONE},
    TableState.SYNCDONE: {Event.STREAM_PASSED: TableState.READY},
    TableState.READY: {},
}


def after(state: TableState | str, event: Event) -> TableState:
    """The state that follows; WrongStateError when the event cannot happen in this state."""
    following = TRANSITIONS[TableState(state)].get(event)
    if following is None:
        raise WrongStateError(f'a table in state "{state}" cannot have the event {event.value}')
    return following


def needs_copy(state: TableState | str) -> bool:
    """Whether the table's rows are still to be copied, for the first time or again."""
    return TableState(state) in (TableState.INIT, TableState.DATASYNC)


def should_apply(state: TableState | str, state_lsn: int | None, commit_lsn: int) -> bool:
    """Whether the stream applies a transaction to the table (should_apply_changes_for_rel).

    ``state_lsn`` is srsublsn; ``commit_lsn`` that of the transaction's commit record.
    """
    match TableState(state):
        case TableState.READY:
            return True
        case TableState.SYNCDONE:
            return (state_lsn or 0) <= commit_lsn
        case _:
            return False


def should_catch_up(copied: int, stream: int, commit_lsn: int) -> bool:
    """Whether catch-up applies a transaction: not in the copy, and the stream is past it.

    ``copied`` is C; ``stream`` is S, the end of what the stream has applied.
    """
    return copied <= commit_lsn < stream
