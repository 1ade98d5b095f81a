# SPDX-License-Identifier: Apache-2.0
"""What a batch does to a table without a key: rows are counted by their whole content.

In:   a batch whose relation has replica identity full, and ``find``, which finds the rows of the
      target that equal some contents.
Out:  which of the found rows are gone, and rows to insert.

Every row content has a counter; the changes are played on the counters in commit order:

    I   new + 1
    D   old - 1                  skipped when the counter is 0: the row is missing
    U   old - 1, new + 1         skipped when old's counter is 0 (inserted under apply_remote)

The other policies for conflicts have to know whose a row is; of equal rows that cannot be said.

A content that ends with fewer rows than it had loses as many.  NULL equals NULL, NaN equals NaN.
The contents of one batch are held in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apply.batch import TableBatch
from penstock.apply.conflicts import Policy
from penstock.apply.describe import texts
from penstock.apply.index import Mappings, changes_op
from penstock.apply.net import OP_DELETE, OP_INSERT, OP_TRUNCATE, OP_UPDATE
from penstock.apply.rows import changed_rows
from penstock.change.codes import row_codes
from penstock.change.relation import LakeTable
from penstock.compiled import compiled
from penstock.control.conflict_log import LOGGED, Conflicts, LoggedConflict
from penstock.errors import FeatureNotSupportedError

Ints = NDArray[np.int64]

Find = Callable[[pa.Table], Ints]
"""Contents (distinct; columns that the publisher sends) -> for each row of the target that equals
one, the place of that content."""


@dataclass(frozen=True)
class WholeEffect:
    """What is to be done: ``gone`` marks the rows that ``find`` found, ``inserted`` has the
    target's columns and those of change/last_change.py; ``conflicts`` are the updates and deletes
    whose row was missing."""

    gone: NDArray[np.bool_]
    inserted: pa.Table
    conflicts: Conflicts


@dataclass(frozen=True)
class _Rows:
    """The changes after the last TRUNCATE: new rows in the target's columns, old rows' contents."""

    truncated: bool
    op: NDArray[np.uint8]
    new: pa.Table
    old: pa.Table
    commit_lsn: Ints


def whole_policy(policy: Policy, batch: TableBatch, target: LakeTable) -> bool:
    """Whether updates of missing rows become inserts.

    FeatureNotSupportedError (0A000) for a policy that cannot be followed without a key.
    """
    own = batch.commits is not None and target.sole_writer == f"pg_{batch.commits.subid}"
    if policy in (Policy.KEEP_LOCAL, Policy.LAST_UPDATE_WINS) and not own:
        raise FeatureNotSupportedError(
            f'on_conflict = {policy} is not supported for table "{target.schema}.{target.name}",'
            " which has no key and more than one writer",
            detail="Of equal rows it cannot be said whose they are.",
            hint="Give the table a primary key, or use on_conflict = error or apply_remote.",
        )
    return policy is Policy.APPLY_REMOTE


def whole_effect(
    batch: TableBatch,
    target: LakeTable,
    mappings: Mappings,
    empty: bool,
    find: Find,
    insert_missing: bool = False,
) -> WholeEffect:
    """Play a batch; ``empty`` says that the table has no rows by then."""
    everywhere = set.intersection(*({c.name for c in relation.columns} for relation in mappings))
    columns = [column.name for column in target.columns if column.name in everywhere]
    rows = _read(batch, mappings, columns)
    count = len(rows.op)
    codes = row_codes(pa.concat_tables([rows.new.select(columns), rows.old]).columns)
    new, old = codes[:count], codes[count:]
    leaves = (rows.op == OP_DELETE) | (rows.op == OP_UPDATE)
    asked, place = np.unique(old[leaves], return_index=True)
    contents = rows.old.take(pa.array(np.flatnonzero(leaves)[place]))
    found = np.zeros(0, np.int64)
    if len(asked) and not (empty or rows.truncated):
        found = find(contents)
    owner = asked[found]
    before = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    np.add.at(before, owner, 1)
    after = before.copy()
    missing = np.flatnonzero(_play(rows.op, old, new, after, insert_missing))
    gone = _rank(owner) >= after[owner]
    conflicts = _conflicts(batch, rows, missing, insert_missing)
    return WholeEffect(gone, _more(rows, new, after - before), conflicts)


@compiled
def _play(
    op: NDArray[np.uint8], old: Ints, new: Ints, counters: Ints, insert_missing: bool
) -> NDArray[np.uint8]:
    """Play on the counters; marks the changes whose row is missing."""
    missing = np.zeros(len(op), np.uint8)
    for i in range(len(op)):
        if op[i] != OP_INSERT:
            if counters[old[i]] > 0:
                counters[old[i]] -= 1
            else:
                missing[i] = 1
                if op[i] == OP_DELETE or not insert_missing:
                    continue
        if op[i] != OP_DELETE:
            counters[new[i]] += 1
    return missing


def _conflicts(batch: TableBatch, rows: _Rows, missing: Ints, inserted: bool) -> Conflicts:
    """The changes whose row is missing: all counted, the first described."""
    updates = int(np.count_nonzero(rows.op[missing] == OP_UPDATE))
    found = Conflicts()
    resolution = "apply_remote" if inserted else "skip"
    for kind, resolved, count in (
        ("update_missing", resolution, updates),
        ("delete_missing", "skip", len(missing) - updates),
    ):
        if count:
            found.counts[kind, resolved] = count
    first = missing[:LOGGED]
    keys = texts(rows.old.take(pa.array(first)))
    sent = texts(rows.new.select(rows.old.column_names).take(pa.array(first)))
    commits = batch.commits
    lsns = rows.commit_lsn[first]
    known = commits.rows[commits.places(lsns)].tolist() if commits is not None else None
    for place, updated in enumerate(rows.op[first] == OP_UPDATE):
        found.shown.append(
            LoggedConflict(
                "update_missing" if updated else "delete_missing",
                resolution if updated else "skip",
                "U" if updated else "D",
                int(lsns[place]),
                None if known is None else known[place][3],
                None if known is None else known[place][2],
                keys[place],
                None,
                sent[place] if updated else None,
                None,
                None,
            )
        )
    return found


def _read(batch: TableBatch, mappings: Mappings, columns: list[str]) -> _Rows:
    ops, new, old, lsns = [], [], [], []
    for relation, rows in batch.read(["old", "new", "unchanged"]):
        mapping = mappings[relation]
        ops.append(changes_op(rows))
        new.append(changed_rows(batch, mapping, rows))
        lsns.append(rows.column("commit_lsn").to_numpy())
        old.append(pa.table(mapping.values(rows, "old", columns), names=columns))
    op = np.concatenate(ops)
    truncates = np.flatnonzero(op == OP_TRUNCATE)
    first = int(truncates[-1]) + 1 if len(truncates) else 0
    return _Rows(
        len(truncates) > 0,
        op[first:],
        pa.concat_tables(new).slice(first),
        pa.concat_tables(old).slice(first),
        np.concatenate(lsns)[first:],
    )


def _more(rows: _Rows, new: Ints, gained: Ints) -> pa.Table:
    """A row for each that a content has gained: the last ones that were sent."""
    puts = np.flatnonzero(rows.op != OP_DELETE)[::-1]
    owner = new[puts]
    chosen = puts[_rank(owner) < gained[owner]]
    return rows.new.take(pa.array(np.sort(chosen)))


def _rank(owner: Ints) -> Ints:
    """For each place, how many earlier places have the same owner."""
    order = np.argsort(owner, kind="stable")
    ordered = owner[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(owner) else order
    rank = np.empty(len(owner), np.int64)
    sizes = np.diff(np.r_[starts, len(owner)])
    rank[order] = np.arange(len(owner)) - np.repeat(starts, sizes)
    return rank
