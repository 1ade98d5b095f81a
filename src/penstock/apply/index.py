# SPDX-License-Identifier: Apache-2.0
"""The keys of a batch's changes, and which columns they do not say.

In:   a batch, mappings of its relations.
Out:  a KeyIndex: some dozens of bytes per change, no other values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.apply.batch import TableBatch
from penstock.apply.net import OP_DELETE, OP_INSERT, OP_TRUNCATE, OP_UPDATE
from penstock.apply.rows import RowMapping, unchanged_names
from penstock.change.codes import row_codes
from penstock.change.relation import LakeTable, Relation
from penstock.errors import UniqueViolationError

Mappings = Mapping[Relation, RowMapping]


@dataclass(frozen=True)
class KeyIndex:
    """The changes of a batch after its last TRUNCATE, by key.

    ``first`` is the batch position of the first of them; ``keys`` are the key columns of all new
    rows, then of all old rows.  ``partial`` are the columns that some update does not say:
    ``absent[i, c]`` is 1 where change i does not, ``unsent[i, c]`` where it cannot, as the column
    is not published.  ``commit_lsn`` is that of each change's transaction.
    """

    first: int
    truncated: bool
    op: NDArray[np.uint8]
    keys: pa.Table
    partial: list[str]
    absent: NDArray[np.uint8]
    unsent: NDArray[np.uint8]
    commit_lsn: NDArray[np.int64]

    @property
    def old_keys(self) -> pa.Table:
        """The key columns of the old rows; null where there is none."""
        return self.keys.slice(len(self.op))


def read_index(batch: TableBatch, target: LakeTable, mappings: Mappings) -> KeyIndex:
    """Read the keys of a batch's changes, and which columns they do not say."""
    key = list(target.key)
    fields = [f"{side}.{name}" for side in ("old", "new") for name in key] + ["unchanged"]
    everywhere = set.intersection(*({c.name for c in relation.columns} for relation in mappings))
    partial = {c.name for c in target.columns if c.name not in everywhere and not c.generated}
    seen: list[tuple[RowMapping, pa.RecordBatch]] = []
    for relation, rows in batch.read(fields):
        mapping = mappings[relation]
        seen.append((mapping, rows))
        named = unchanged_names(rows)
        partial |= {
            c.name for c in relation.columns if c.name in named and not mapping.in_old_row(c)
        }
    names = sorted(partial)
    commit_lsn = np.concatenate([rows.column("commit_lsn").to_numpy() for _, rows in seen])
    op = np.concatenate([changes_op(rows) for _, rows in seen])
    truncates = np.flatnonzero(op == OP_TRUNCATE)
    first = int(truncates[-1]) + 1 if len(truncates) else 0
    new = _key_table([m.values(rows, "new", key) for m, rows in seen], key).slice(first)
    old = _key_table([m.values(rows, "old", key) for m, rows in seen], key).slice(first)
    absent, unsent = (np.zeros((len(op), len(names)), np.uint8) for _ in range(2))
    start = 0
    for mapping, rows in seen:
        sent = {column.name for column in mapping.relation.columns}
        for at, name in enumerate(names):
            unsent[start : start + rows.num_rows, at] = name not in sent
            absent[start : start + rows.num_rows, at] = mapping.absent(rows, name)
        start += rows.num_rows
    keys = pa.concat_tables([new, old])
    return KeyIndex(
        first,
        len(truncates) > 0,
        op[first:],
        keys,
        names,
        absent[first:],
        unsent[first:],
        commit_lsn[first:],
    )


def duplicate_key(target: LakeTable, index: KeyIndex, change: int) -> UniqueViolationError:
    """PostgreSQL's error for a key that exists already: that of a change's new row."""
    row = index.keys.slice(change, 1).to_pylist()[0]
    names = ", ".join(target.key)
    values = ", ".join(str(row[name]) for name in target.key)
    error = UniqueViolationError(
        f'duplicate key value violates unique constraint "{target.key_index}"',
        detail=f"Key ({names})=({values}) already exists.",
    )
    error.position = index.first + change
    return error


def change_codes(
    index: KeyIndex, keys: pa.Table, codes: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Codes of the new and of the old keys, -1 where a change has none that matters."""
    if codes is None:
        codes = row_codes(keys.columns) if keys.num_rows else np.zeros(0, np.int64)
    count = len(index.op)
    new, old = codes[:count].copy(), codes[count : 2 * count].copy()
    new[(index.op != OP_INSERT) & (index.op != OP_UPDATE)] = -1
    has_old = pc.is_valid(index.old_keys.column(0)).to_numpy()
    updated = index.op == OP_UPDATE
    old[~((index.op == OP_DELETE) | (updated & has_old & (old != new)))] = -1
    return new, old


_OPS = np.array([OP_INSERT, OP_UPDATE, OP_DELETE, OP_TRUNCATE], np.uint8)


def changes_op(rows: pa.RecordBatch) -> NDArray[np.uint8]:
    """The changes' ops, as net.py has them."""
    places = pc.index_in(rows.column("op"), value_set=pa.array(list("IUDT")))
    chosen: NDArray[np.uint8] = _OPS[places.to_numpy()]
    return chosen


def _key_table(pieces: list[list[pa.Array]], names: list[str]) -> pa.Table:
    return pa.concat_tables([pa.table(columns, names=names) for columns in pieces])
