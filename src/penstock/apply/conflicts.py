# SPDX-License-Identifier: Apache-2.0
"""Conflicts of a batch with the rows that a table has, and what a policy makes of them.

In:   changes in commit order with their keys as codes, what the table has at each key, a policy.
Out:  changes that no longer conflict, and a list of the conflicts with their resolution.

The policies (option ``on_conflict``), by PostgreSQL 18's types of conflicts (conflict.h):

    conflict               error     apply_remote               keep_local   last_update_wins
    ---------------------  --------  -------------------------  -----------  -----------------------
    insert_exists          error     becomes an UPDATE          left out     the later; UPDATE
    update_exists          error     the row that has the new   left out     the later; the row that
                                     key is deleted first                    has the new key goes
    update_missing         left out  becomes an INSERT if the   left out     left out
                                     whole row is known, else
                                     left out
    delete_missing         left out  left out                   left out     left out
    update_origin_differs  applied   applied                    left out     the later
    delete_origin_differs  applied   applied                    left out     the later

``multiple_unique_conflicts`` cannot be: only the replica identity is unique in the lake.  The
``*_origin_differs`` are not looked for under ``error``, as in PostgreSQL without
``track_commit_timestamp``.  A key change can meet two conflicts, at its old and at its new key; it
is left out when one of them says so.

An UPDATE knows the whole row unless a column is unchanged TOAST, or is not published and may not be
null.  It is never filled up with NULL.

*The later* compares the commit time of the remote transaction with the one of the transaction that
last changed the row here (change/last_change.py, lake/births.py); equal times let the remote change
win.  When that is not known the batch fails with 0A000: nothing is guessed.  No time is kept of a
deletion, so a missing row is left out.

Changes are judged one after the other, as PostgreSQL would: what an earlier change of the batch has
written belongs to this subscription, and is as old as its transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from penstock.apply.net import OP_DELETE, OP_INSERT, OP_UPDATE, Flags, Ints
from penstock.compiled import compiled


class Policy(StrEnum):
    """What is done about conflicts: the subscription's option ``on_conflict``."""

    ERROR = "error"
    APPLY_REMOTE = "apply_remote"
    KEEP_LOCAL = "keep_local"
    LAST_UPDATE_WINS = "last_update_wins"


# Places in conflict_log.KINDS.
_INSERT_EXISTS, _UPDATE_EXISTS, _UPDATE_MISSING, _DELETE_MISSING = 0, 1, 2, 3
_UPDATE_DIFFERS, _DELETE_DIFFERS = 4, 5

RESOLUTIONS = ("apply_remote", "keep_local", "skip", "error")
_APPLIED, _KEPT, _SKIPPED = 0, 1, 2

UNKNOWN_TIME = np.iinfo(np.int64).min
"""The time of a row of which it is not known."""

_ERROR, _APPLY_REMOTE, _KEEP_LOCAL, _LAST_WINS = 0, 1, 2, 3


@dataclass(frozen=True)
class Judged:
    """Changes without conflicts, and the conflicts.

    ``op`` is 0 for a change that is left out; ``over`` marks key changes that delete the row that
    has their new key.  Conflict j is of change ``change[j]``, with the row of key ``key[j]`` (place
    in the index' keys); ``kind`` is a place in conflict_log.KINDS, ``resolution`` in RESOLUTIONS.
    ``unknown`` is the first change for which a row's time would have to be known, or -1: the rest
    does not count then.
    """

    op: Flags
    old: Ints
    over: Flags
    change: Ints
    kind: Ints
    resolution: Ints
    key: Ints
    unknown: int


@dataclass(frozen=True)
class Rows:
    """What the table has, by key code: whether a row, whether another wrote it, its time."""

    there: Flags
    foreign: Flags
    since: Ints


def judge(
    op: Flags,
    old: Ints,
    new: Ints,
    complete: NDArray[np.bool_],
    time: Ints,
    rows: Rows,
    policy: Policy,
) -> Judged:
    """Judge the changes one after the other.

    ``old`` and ``new`` are as in net.Changes; ``complete`` says of an update whether it knows the
    whole row; ``time`` is the commit time of each change's transaction.
    """
    number = list(Policy).index(policy)
    judged = _judge(
        op,
        old,
        new,
        complete,
        time,
        rows.there.copy(),
        rows.foreign.copy(),
        rows.since.copy(),
        number,
    )
    ops, olds, over, count, change, kind, resolution, key, unknown = judged
    return Judged(
        ops, olds, over, change[:count], kind[:count], resolution[:count], key[:count], int(unknown)
    )


@compiled
def _wins(policy: int, time: int, since: int) -> int:
    """Whether the remote change wins against a row; -1 when that cannot be said."""
    if policy == _LAST_WINS:
        if since == UNKNOWN_TIME:
            return -1
        return 1 if time >= since else 0
    return 0 if policy == _KEEP_LOCAL else 1


@compiled
def _judge(
    op: Flags,
    old: Ints,
    new: Ints,
    complete: NDArray[np.bool_],
    time: Ints,
    there: Flags,
    foreign: Flags,
    since: Ints,
    policy: int,
) -> tuple[Flags, Ints, Flags, int, Ints, Ints, Ints, Ints, int]:
    count = len(op)
    ops, olds, over = op.copy(), old.copy(), np.zeros(count, np.uint8)
    change, kind = np.zeros(2 * count, np.int64), np.zeros(2 * count, np.int64)
    resolution, key = np.zeros(2 * count, np.int64), np.zeros(2 * count, np.int64)
    met, unknown = 0, -1
    for i in range(count):
        here, source = new[i], old[i]
        deletes, inserts = op[i] == OP_DELETE, op[i] == OP_INSERT
        if deletes or op[i] == OP_UPDATE:
            at, place = (here, i) if source < 0 else (source, count + i)
            found, wins = -1, 1
            if not there[at]:
                found, wins = (_DELETE_MISSING if deletes else _UPDATE_MISSING), 0
                if not deletes and policy == _APPLY_REMOTE and complete[i]:
                    wins, inserts, source = 1, True, -1
            elif foreign[at]:
                found = _DELETE_DIFFERS if deletes else _UPDATE_DIFFERS
                wins = _wins(policy, time[i], since[at])
                if wins < 0:
                    unknown = i
                    break
            if found >= 0:
                change[met], kind[met], key[met] = i, found, place
                lost = _KEPT if there[at] else _SKIPPED
                resolution[met] = _APPLIED if wins else lost
                met += 1
            if not wins:
                ops[i] = 0
                continue
            if deletes:
                there[at] = 0
                continue
        if inserts or source >= 0:
            if there[here]:
                wins = _wins(policy, time[i], since[here])
                if wins < 0:
                    unknown = i
                    break
                change[met], key[met] = i, i
                kind[met] = _INSERT_EXISTS if inserts else _UPDATE_EXISTS
                resolution[met] = _APPLIED if wins else _KEPT
                met += 1
                if not wins:
                    ops[i] = 0
                    continue
                over[i] = 0 if inserts else 1
                ops[i] = OP_UPDATE
            else:
                ops[i] = OP_INSERT if inserts else OP_UPDATE
        olds[i] = source
        if source >= 0:
            there[source] = 0
        there[here], foreign[here], since[here] = 1, 0, time[i]
    return ops, olds, over, met, change, kind, resolution, key, unknown
