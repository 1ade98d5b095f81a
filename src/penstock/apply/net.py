# SPDX-License-Identifier: Apache-2.0
"""The net effect of a batch on each key: what one MERGE must do so that the batch is done.

In:   the batch's changes in commit order, their keys as codes; for keys that rows move away from,
      whether the target has them.
Out:  for each change whether its old key is to be deleted and its new row to be put, and how.

The changes are played on one state per key:

    state      meaning                                    I      U        D        moved to
    ---------  -----------------------------------------  -----  -------  -------  --------
    UNTOUCHED  not seen yet; the target may have the row  LIVE   UPDATED  ABSENT   LIVE
    ABSENT     the row does not exist                     LIVE   skipped  skipped  LIVE
    LIVE       the row exists, written by this batch      error  LIVE     ABSENT   error
    UPDATED    the target's row, if there, updated        error  UPDATED  ABSENT   error

A key that a row moves away from becomes ABSENT; when it was ABSENT the move is skipped.
A change of a missing row is skipped, as PostgreSQL does; putting a row where one exists is a
violation of the key.  What remains at the end, per key:

    LIVE, and the target cannot have had the row    INSERT   (a row that is there is a violation)
    LIVE, and it was deleted before                 REPLACE
    UPDATED                                         UPDATE   (nothing if the target lacks the row)
    ABSENT, and the target may have the row         the delete
    ABSENT, after an insert in this batch           CHECK    (a row that is there is a violation)

Columns can be absent from an UPDATE (unchanged TOAST, or not published).  Such a column takes its
last value in the batch (``source`` names the change that has it), across key changes too, else it
stays what the target has (``KEPT``), in the row of key ``root``.

Skipped changes are counted.  Those of a key in state ABSENT are certain.  An update or delete of a
key in state UNTOUCHED or UPDATED is skipped if the target turns out to lack the row (``unsure``).

The loop is compiled; it holds some dozens of bytes per change and per key, and no values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.compiled import compiled

NOTHING, INSERT, REPLACE, UPDATE, CHECK = 0, 1, 2, 3, 4
KEPT = -1
OP_INSERT, OP_UPDATE, OP_DELETE, OP_TRUNCATE = (ord(op) for op in "IUDT")
UNKNOWN, MISSING, PRESENT = 0, 1, 2
"""What is known of a key in the target before the batch."""

_UNTOUCHED, _ABSENT, _LIVE, _UPDATED = 0, 1, 2, 3

Flags = NDArray[np.uint8]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Changes:
    """Changes in commit order: ``old`` and ``new`` are key codes, -1 where there is none.

    An UPDATE that does not change the key has ``old`` = -1.  ``absent[i, c]`` is 1 where change i
    does not say the value of partial column c; ``known[k]`` says what the target has at key k.
    ``over[i]`` is 1 where the row that has the new key of change i is deleted first; such a row is
    known to exist.  A change whose op is 0 is left out.
    """

    op: Flags
    old: Ints
    new: Ints
    absent: Flags
    known: Flags
    over: Flags | None = None


@dataclass(frozen=True)
class NetEffect:
    """What to do for each change: delete its old key; put its new row.

    ``source[i, c]`` is the change whose value of partial column c the put row of change i gets,
    or KEPT; then ``root[i]`` is the key whose row in the target keeps it.
    ``begun[i]`` is, for a put row that must be new, the first change that put a row under its key.
    ``missing`` are the updates and deletes that were skipped; ``unsure[i]`` those that were, too,
    if the target lacks the row that change i puts, or deletes where it puts none.
    ``violation`` is the first change that puts a row where one exists, or -1.
    """

    delete: Flags
    put: Flags
    source: Ints
    root: Ints
    begun: Ints
    missing: Ints
    unsure: Ints
    violation: int


def net_effect(changes: Changes) -> NetEffect:
    """Play the changes; the result's arrays have one entry per change."""
    over = np.zeros(len(changes.op), np.uint8) if changes.over is None else changes.over
    delete, put, source, root, begun, missing, unsure, violation = _play(
        changes.op, changes.old, changes.new, changes.absent, changes.known, over
    )
    return NetEffect(delete, put, source, root, begun, missing, unsure, int(violation))


@compiled
def _play(
    op: Flags, old: Ints, new: Ints, absent: Flags, known: Flags, over: Flags
) -> tuple[Flags, Flags, Ints, Ints, Ints, Ints, Ints, int]:
    count, keys, partial = len(op), len(known), absent.shape[1]
    state = np.zeros(keys, np.uint8)
    born = np.full(keys, -1, np.int64)  # first insert where the target must not have the row
    last = np.full(keys, -1, np.int64)  # the change that wrote the row
    gone = np.full(keys, -1, np.int64)  # the change that took the row away
    home = np.arange(keys)  # the key that the target has the row under
    values = np.full((keys, partial), KEPT, np.int64)
    for k in range(keys):
        if known[k] == MISSING:
            state[k] = _ABSENT
        elif known[k] == PRESENT:
            state[k] = _UPDATED
    delete, put = np.zeros(count, np.uint8), np.zeros(count, np.uint8)
    source, root = np.full((count, partial), KEPT, np.int64), np.full(count, -1, np.int64)
    begun = np.full(count, -1, np.int64)
    missing, unsure = np.zeros(2, np.int64), np.zeros((count, 2), np.int64)
    asked = np.zeros((keys, 2), np.int64)  # updates, deletes of a row of which nothing is known
    for i in range(count):
        here, there = new[i], old[i]
        if op[i] == 0:
            continue
        if op[i] == OP_DELETE:
            if state[there] == _ABSENT:
                missing[1] += 1
                continue
            if state[there] != _LIVE and known[there] == UNKNOWN:
                asked[there, 1] += 1
            state[there], gone[there] = _ABSENT, i
            continue
        if op[i] == OP_UPDATE and there < 0:
            if state[here] == _ABSENT:
                missing[0] += 1
                continue
            if state[here] == _UNTOUCHED:
                state[here] = _UPDATED
            if state[here] == _UPDATED and known[here] == UNKNOWN:
                asked[here, 0] += 1
        else:
            if op[i] == OP_UPDATE and state[there] == _ABSENT:
                missing[0] += 1
                continue
            if over[i]:
                state[here], values[here, :] = _ABSENT, KEPT
            if state[here] == _LIVE or state[here] == _UPDATED:
                return delete, put, source, root, begun, missing, unsure, i
            if state[here] == _UNTOUCHED:
                born[here] = i
            state[here] = _LIVE
            if op[i] == OP_UPDATE:
                home[here] = home[there]
                values[here, :] = values[there, :]
                state[there], gone[there] = _ABSENT, i
        last[here] = i
        for c in range(partial):
            if not absent[i, c]:
                values[here, c] = i
    for k in range(keys):
        if state[k] == _LIVE:
            put[last[k]] = INSERT if born[k] >= 0 or known[k] == MISSING else REPLACE
            begun[last[k]] = born[k]
            unsure[last[k], :] = asked[k, :]
        elif state[k] == _UPDATED and last[k] >= 0:
            put[last[k]] = UPDATE
            unsure[last[k], :] = asked[k, :]
        elif state[k] == _ABSENT and born[k] >= 0:
            put[born[k]] = CHECK
            begun[born[k]] = born[k]
        elif state[k] == _ABSENT and gone[k] >= 0 and known[k] != MISSING:
            delete[gone[k]] = 1
            if asked[k, 1]:
                unsure[gone[k], :] = asked[k, :]
        if state[k] == _LIVE or (state[k] == _UPDATED and last[k] >= 0):
            source[last[k], :] = values[k, :]
            root[last[k]] = home[k]
    return delete, put, source, root, begun, missing, unsure, -1
