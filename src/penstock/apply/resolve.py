# SPDX-License-Identifier: Apache-2.0
"""The net effect of a batch by key under a policy for conflicts, and the conflicts that it met.

In:   the keys of a batch (index.py), ``look_up``, a policy.
Out:  the batch's KeyedSource, which raises no violation any more; the conflicts (conflicts.py).

All keys of the batch are looked up, with who changed their rows and when: a batch costs that much
more than under ``error``, where only the keys are that rows move away from.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.apply.batch import TableBatch
from penstock.apply.conflicts import UNKNOWN_TIME, Judged, Policy, Rows, judge
from penstock.apply.index import KeyIndex, Mappings, change_codes
from penstock.apply.keyed import Found, KeyedSource, KnownKeys, LookUp, known_keys
from penstock.apply.net import (
    MISSING,
    OP_INSERT,
    OP_UPDATE,
    PRESENT,
    Changes,
    net_effect,
)
from penstock.change.last_change import LAST_CHANGE, ORIGIN_COLUMN, TIME_COLUMN
from penstock.change.relation import LakeTable
from penstock.errors import UnresolvedConflictError

Ints = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Setting:
    """What the judgement depends on beside the rows.

    ``empty``: there were no rows before the batch, of a partitioned table in no leaf.
    ``not_null_gaps`` are columns that may not be null and have no default.
    """

    target: LakeTable
    batch: TableBatch
    policy: Policy
    empty: bool
    not_null_gaps: frozenset[str]


def judged(index: KeyIndex, look_up: LookUp, setting: Setting) -> tuple[Judged, KnownKeys]:
    """Judge the changes of a batch.

    UnresolvedConflictError (0A000) when a row's time would have to be known, and is not.
    """
    known = _known(index, look_up, setting)
    result = judge(
        index.op,
        known.old,
        known.new,
        _complete(index, setting.not_null_gaps),
        _times(index, setting.batch),
        _rows(known, setting),
        setting.policy,
    )
    if result.unknown >= 0:
        error = UnresolvedConflictError(
            f'it is not known when a row of "{setting.target.schema}.{setting.target.name}" was'
            " last changed",
            detail="on_conflict = last_update_wins has to compare its time, and another program"
            " has rewritten the data file that it is in, as OPTIMIZE does.",
            hint="ALTER SUBSCRIPTION ... SET (on_conflict = apply_remote) or keep_local decides"
            " without the time; SKIP leaves the transaction out.",
        )
        error.position = index.first + result.unknown
        raise error
    return result, known


def resolved_source(
    index: KeyIndex, mappings: Mappings, result: Judged, known: KnownKeys, setting: Setting
) -> KeyedSource:
    """The net effect of the changes that a judgement leaves."""
    absent = index.absent.copy()
    updates = (result.op == OP_UPDATE) & (index.op == OP_INSERT)
    absent[updates] = index.unsent[updates]
    absent[(result.op == OP_INSERT) & (index.op == OP_UPDATE)] = 0
    changes = Changes(result.op, result.old, known.new, absent, known.known, result.over)
    index = dataclasses.replace(index, op=result.op, absent=absent)
    effect = net_effect(changes)
    assert effect.violation < 0  # the judgement left none
    return KeyedSource(setting.batch, mappings, index, effect, known.found)


def _known(index: KeyIndex, look_up: LookUp, setting: Setting) -> KnownKeys:
    """What the table has at the keys of the batch."""
    new, old = change_codes(index, index.keys)
    if not (setting.empty or index.truncated):
        asked = np.concatenate([new, old])
        return known_keys(index, asked, look_up, [*index.partial, *LAST_CHANGE])
    size = max(int(new.max(initial=-1)), int(old.max(initial=-1))) + 1
    nothing = pa.table({name: pa.nulls(0, pa.int64()) for name in LAST_CHANGE})
    return KnownKeys(new, old, np.full(size, MISSING, np.uint8), Found(_ints(0), nothing))


def _rows(known: KnownKeys, setting: Setting) -> Rows:
    """By key code: whether there is a row, who wrote it and when."""
    size = len(known.known)
    foreign, since = np.zeros(size, np.uint8), np.full(size, UNKNOWN_TIME)
    found = known.found
    own = setting.batch.commits.subid if setting.batch.commits is not None else -1
    sole = setting.target.sole_writer == f"pg_{own}"
    origin = pc.fill_null(found.rows.column(ORIGIN_COLUMN), own if sole else -1)
    foreign[found.codes] = origin.to_numpy() != own
    since[found.codes] = pc.fill_null(found.rows.column(TIME_COLUMN), UNKNOWN_TIME).to_numpy()
    if setting.policy is Policy.ERROR:
        foreign[:] = 0
    return Rows((known.known == PRESENT).astype(np.uint8), foreign, since)


def _complete(index: KeyIndex, not_null_gaps: frozenset[str]) -> NDArray[np.bool_]:
    """Which changes know the whole row."""
    gaps = np.array([name in not_null_gaps for name in index.partial], np.bool_)
    lacks = (index.absent == 1) & ((index.unsent == 0) | gaps)
    complete: NDArray[np.bool_] = ~lacks.any(axis=1)
    return complete


def _times(index: KeyIndex, batch: TableBatch) -> Ints:
    if batch.commits is None:
        return _ints(len(index.op))
    return batch.commits.times(index.commit_lsn)


def _ints(count: int) -> Ints:
    return np.zeros(count, np.int64)
