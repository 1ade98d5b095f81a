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
table version that makes it true (``Commit.set_relation_state``, which allows no other moves).
(PostgreSQL has w and c besides, in memory, for the conversation of two processes; here one worker
does both parts.)

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

from enum import StrEnum


class TableState(StrEnum):
    """pg_subscription_rel.srsubstate."""

    INIT = "i"
    DATASYNC = "d"
    FINISHEDCOPY = "f"
    SYNCDONE = "s"
    READY = "r"


BEFORE: dict[TableState, tuple[TableState, ...]] = {
    TableState.INIT: (),
    TableState.DATASYNC: (TableState.INIT, TableState.DATASYNC),
    TableState.FINISHEDCOPY: (TableState.DATASYNC,),
    TableState.SYNCDONE: (TableState.FINISHEDCOPY,),
    TableState.READY: (TableState.SYNCDONE,),
}
"""The states from which the node moves a table to each state; PostgreSQL alone sets INIT."""

NEEDS_COPY = (TableState.INIT, TableState.DATASYNC)
"""The states of a table whose rows are still to be copied, for the first time or again."""


def applied_from(state: TableState, state_lsn: int | None) -> int | None:
    """The first commit LSN that the stream applies to a table in this state; None for none.

    PostgreSQL's should_apply_changes_for_rel (worker.c).  ``state_lsn`` is srsublsn.
    """
    match state:
        case TableState.READY:
            return 0
        case TableState.SYNCDONE:
            return state_lsn or 0
        case _:
            return None
