# SPDX-License-Identifier: Apache-2.0
"""What a batch does to a table without a key: rows are found by their whole content.

In:   a batch whose relation has replica identity full, and ``find``, which finds the rows of the
      target that equal some contents.
Out:  which of the found rows are gone, and rows to insert.

The changes are played on the rows in commit order; each content has a stack of the rows that are
equal to it by then:

    I   a row more
    D   a row less               skipped when there is none: the row is missing
    U   a row has another        skipped when there is none (inserted under apply_remote)
        content

Equal are rows in the columns that the publisher sends; a row keeps the values of its other columns,
which make one of equal rows differ from another.  Which of them a change is about is as open as in
PostgreSQL, which takes the first that it meets.

The other policies for conflicts have to know whose a row is; of equal rows that cannot be said.

A row whose content is in the end what it was stays.  NULL equals NULL, NaN equals NaN.  The
contents of one batch are held in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apply.batch import TableBatch
from penstock.apply.conflicts import Policy
from penstock.apply.describe import texts
from penstock.apply.index import Mappings, changes_op
from penstock.apply.look_up import Equals
from penstock.apply.net import OP_DELETE, OP_INSERT, OP_TRUNCATE, OP_UPDATE
from penstock.apply.rows import changed_rows
from penstock.change.codes import row_codes
from penstock.change.relation import LakeTable
from penstock.compiled import compiled
from penstock.control.conflict_log import LOGGED, Conflicts, LoggedConflict
from penstock.errors import FeatureNotSupportedError

Ints = NDArray[np.int64]

Find = Callable[[pa.Table], Equals]
"""Contents (distinct; columns that the publisher sends) -> the target's rows that equal one."""


@dataclass(frozen=True)
class WholeEffect:
    """What is to be done.

    ``gone`` marks rows of ``found``, which is None when nothing had to be found; ``inserted`` has
    the target's columns and those of change/last_change.py; ``conflicts`` are the updates and
    deletes whose row was missing.
    """

    found: Equals | None
    gone: NDArray[np.bool_]
    inserted: pa.Table
    conflicts: Conflicts


@dataclass(frozen=True)
class _Rows:
    """The changes after the last TRUNCATE: new rows in the target's columns, old rows' contents.

    ``kept`` are the columns that are not always published; ``says[i, c]``: the new row of change i
    has column c of them.
    """

    truncated: bool
    op: NDArray[np.uint8]
    new: pa.Table
    old: pa.Table
    commit_lsn: Ints
    kept: list[str]
    says: NDArray[np.bool_]


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
    found = None
    owner = np.zeros(0, np.int64)
    if len(asked) and not (empty or rows.truncated):
        found = find(rows.old.take(pa.array(np.flatnonzero(leaves)[place])))
        owner = asked[found.at]
    size = int(codes.max(initial=-1)) + 1
    played = _Played(*_play(rows.op, old, new, rows.says, owner, size, insert_missing))
    there, same = played.content[: len(owner)], (played.source[: len(owner)] < 0).all(axis=1)
    gone = (there < 0) | ((played.last[: len(owner)] >= 0) & ~((there == owner) & same))
    conflicts = _conflicts(batch, rows, np.flatnonzero(played.missing), insert_missing)
    return WholeEffect(found, gone, _coming(rows, played, gone, found), conflicts)


class _Played(NamedTuple):
    """Rows after the last change: those that were found, then one for each change.

    ``missing`` marks changes whose row is not there.  Of each row: its ``content``, -1 when it is
    gone or never was; the ``last`` change that wrote it, or -1; for each of the kept columns the
    change that its value is from (``source``), -1 for what the row had.
    """

    missing: NDArray[np.uint8]
    content: Ints
    last: Ints
    source: Ints


@compiled
def _play(
    op: NDArray[np.uint8],
    old: Ints,
    new: Ints,
    says: NDArray[np.bool_],
    owner: Ints,
    contents: int,
    insert_missing: bool,
) -> tuple[NDArray[np.uint8], Ints, Ints, Ints]:
    """Play the changes; ``owner`` are the contents of the rows that were found."""
    found, count = len(owner), len(op)
    missing = np.zeros(count, np.uint8)
    content = np.full(found + count, -1, np.int64)
    last = np.full(found + count, -1, np.int64)
    source = np.full((found + count, says.shape[1]), -1, np.int64)
    top = np.full(contents, -1, np.int64)  # the stack of each content, as a linked list
    below = np.full(found + count, -1, np.int64)
    for row in range(found - 1, -1, -1):
        content[row] = owner[row]
        below[row] = top[owner[row]]
        top[owner[row]] = row
    for i in range(count):
        row = -1
        if op[i] != OP_INSERT:
            row = top[old[i]]
            if row >= 0:
                top[old[i]] = below[row]
                content[row] = -1
            else:
                missing[i] = 1
                if op[i] == OP_DELETE or not insert_missing:
                    continue
        if op[i] != OP_DELETE:
            comes = row < 0
            if comes:
                row = found + i
            for column in range(says.shape[1]):
                if comes or says[i, column]:
                    source[row, column] = i
            last[row] = i
            content[row] = new[i]
            below[row] = top[new[i]]
            top[new[i]] = row
    return missing, content, last, source


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
    target = next(iter(mappings.values())).target
    kept = [c.name for c in target.columns if c.name not in columns and not c.generated]
    ops, new, old, lsns, says = [], [], [], [], []
    for relation, rows in batch.read(["old", "new", "unchanged"]):
        mapping = mappings[relation]
        ops.append(changes_op(rows))
        new.append(changed_rows(batch, mapping, rows))
        lsns.append(rows.column("commit_lsn").to_numpy())
        old.append(pa.table(mapping.values(rows, "old", columns), names=columns))
        published = {column.name for column in relation.columns}
        says.append(np.tile([name in published for name in kept], (rows.num_rows, 1)))
    op = np.concatenate(ops)
    truncates = np.flatnonzero(op == OP_TRUNCATE)
    first = int(truncates[-1]) + 1 if len(truncates) else 0
    return _Rows(
        len(truncates) > 0,
        op[first:],
        pa.concat_tables(new).slice(first),
        pa.concat_tables(old).slice(first),
        np.concatenate(lsns)[first:],
        kept,
        np.concatenate(says).astype(np.bool_)[first:],
    )


def _coming(
    rows: _Rows, played: _Played, gone: NDArray[np.bool_], found: Equals | None
) -> pa.Table:
    """The rows to insert: those of changes, and those that were found and are others now."""
    comes = (played.content >= 0) & (played.last >= 0)
    comes[: len(gone)] &= gone
    chosen = np.flatnonzero(comes)
    chosen = chosen[np.argsort(played.last[chosen])]
    table = rows.new.take(pa.array(played.last[chosen]))
    had = chosen < len(gone)
    if found is None or not had.any() or not rows.kept:
        pool = None
    else:
        pool = found.take(chosen[had], rows.kept)
    for at, name in enumerate(rows.kept):
        source = played.source[chosen, at]
        values = [rows.new.column(name)]
        if pool is not None:
            source = np.where(source < 0, rows.new.num_rows + np.cumsum(had) - 1, source)
            values.append(pool.column(name))
        merged = pa.chunked_array([chunk for each in values for chunk in each.chunks])
        place = table.column_names.index(name)
        table = table.set_column(place, name, merged.take(pa.array(source)))
    return table
