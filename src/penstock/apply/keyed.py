# SPDX-License-Identifier: Apache-2.0
"""What a batch does to a table with a key, as rows to put and keys to delete.

In:   a batch, mappings of its relations, and ``look_up``, which finds rows of the target by key.
Out:  at most one row to put or to delete per key; rows to put in ``source_schema``:

    op        one of net.py's
    c0 …      the target's columns, in its order
    …         who changed the row, and when (change/last_change.py)
    keep0 …   for each partial column, whether an UPDATE keeps what the target has

Keys are read first and played (net.py); then values are streamed, so memory holds some dozens of
bytes per change, and values only of the rows in hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apply.batch import TableBatch
from penstock.apply.index import KeyIndex, Mappings, change_codes, duplicate_key
from penstock.apply.net import (
    INSERT,
    KEPT,
    MISSING,
    NOTHING,
    OP_UPDATE,
    PRESENT,
    REPLACE,
    UNKNOWN,
    UPDATE,
    Changes,
    NetEffect,
    net_effect,
)
from penstock.apply.rows import RowMapping
from penstock.change.codes import row_codes
from penstock.change.last_change import LAST_CHANGE_FIELDS
from penstock.change.relation import LakeTable
from penstock.change.types import arrow_type
from penstock.errors import UniqueViolationError

DELETE = 5
"""The op of a key that is only deleted; the others are net.py's."""

LookUp = Callable[[pa.Table, list[str]], pa.Table]
"""Keys of the target, names of columns -> the rows with these keys: their keys and columns."""


class KeyedSource:
    """What to put and what to delete; made from a batch by ``keyed_source``."""

    def __init__(
        self,
        batch: TableBatch,
        mappings: Mappings,
        index: KeyIndex,
        effect: NetEffect,
        found: Found,
    ) -> None:
        self._batch = batch
        self._mappings = mappings
        self._index = index
        self._effect = effect
        self._found = found
        self._target = next(iter(mappings.values())).target
        self.partial = index.partial
        self.schema = source_schema(self._target, index.partial)
        self.rows = int(np.count_nonzero(effect.put) + np.count_nonzero(effect.delete))

    def keys(self) -> tuple[pa.Table, NDArray[np.int8]]:
        """The keys that are put, in the order of ``puts``, then those deleted; their ops."""
        chosen = np.concatenate([self._effect.put != NOTHING, self._effect.delete != 0])
        put = self._effect.put[self._effect.put != NOTHING].astype(np.int8)
        deletes = np.full(np.count_nonzero(self._effect.delete), DELETE, np.int8)
        return self._index.keys.filter(pa.array(chosen)), np.concatenate([put, deletes])

    def duplicate(self, wrong: NDArray[np.int64]) -> UniqueViolationError:
        """The error when these puts (places in ``keys``) find their key in the target.

        It is about the first change of all that put a row under one of the keys.
        """
        begun = self._effect.begun[self._effect.put != NOTHING][wrong]
        return duplicate_key(self._target, self._index, int(begun.min()))

    def missing(self, there: NDArray[np.bool_]) -> tuple[int, int]:
        """How many updates and deletes were skipped since their row was missing.

        ``there`` says of each of ``keys`` whether the target has it.
        """
        effect = self._effect
        of_deletes = np.where(effect.put[:, None] == NOTHING, effect.unsure, 0)
        unsure = np.concatenate(
            [effect.unsure[effect.put != NOTHING], of_deletes[effect.delete != 0]]
        )
        updates, deletes = effect.missing + unsure[~there].sum(axis=0)
        return int(updates), int(deletes)

    def puts(self) -> Iterator[pa.Table]:
        """The rows to put, streamed from the staged files."""
        given = self._given_elsewhere()
        position = -self._index.first
        for relation, rows in self._batch.read(["old", "new", "unchanged"]):
            start, end = position, position + rows.num_rows
            position = end
            if end <= 0:
                continue
            if start < 0:
                rows, start = rows.slice(-start), 0
            yield self._puts(self._mappings[relation], rows, start, given)

    def _puts(
        self, mapping: RowMapping, rows: pa.RecordBatch, start: int, given: _Given
    ) -> pa.Table:
        put = self._effect.put[start : start + rows.num_rows]
        chosen = np.flatnonzero(put)
        if not len(chosen):
            return self.schema.empty_table()
        table = mapping.new_rows(rows)
        source = self._effect.source[start + chosen]
        root = self._effect.root[start + chosen]
        columns = [pa.array(put[chosen].astype(np.int8))]
        last_change = self._batch.last_change(rows.column("commit_lsn").take(pa.array(chosen)))
        for name in table.column_names:
            values = table.column(name).take(pa.array(chosen))
            if name in self.partial:
                at = self.partial.index(name)
                moved = (put[chosen] == INSERT) | (put[chosen] == REPLACE)
                plan = _Plan(start + chosen, source[:, at], root, moved)
                values = self._patched(name, values, plan, given)
            columns.append(values)
        columns += last_change
        for at in range(len(self.partial)):
            kept = (source[:, at] == KEPT) & (put[chosen] == UPDATE)
            columns.append(pa.array(kept))
        return pa.table(columns, schema=self.schema)

    def _patched(
        self, name: str, values: pa.ChunkedArray, plan: _Plan, given: _Given
    ) -> pa.ChunkedArray:
        """Values with those that an earlier change, or the row's old key in the target, has."""
        elsewhere = (plan.source != KEPT) & (plan.source != plan.own)
        from_target = (plan.source == KEPT) & plan.moved
        if not (elsewhere.any() or from_target.any()):
            return values
        place = np.arange(len(plan.own))
        pool = [values.combine_chunks()]
        if elsewhere.any():
            positions, gathered = given[name]
            place[elsewhere] = len(pool[0]) + np.searchsorted(positions, plan.source[elsewhere])
            pool.append(gathered)
        if from_target.any():
            offset = sum(len(each) for each in pool)
            place[from_target] = offset + self._found.places(plan.root[from_target])
            pool.append(self._found.rows.column(name).combine_chunks())
        return pa.chunked_array(pool).take(pa.array(place))

    def _given_elsewhere(self) -> _Given:
        """Values of partial columns that a put row takes from another change than its last."""
        wanted: dict[str, NDArray[np.int64]] = {}
        position = np.arange(len(self._effect.put))
        for at, name in enumerate(self.partial):
            source = self._effect.source[:, at]
            elsewhere = (self._effect.put != NOTHING) & (source != KEPT) & (source != position)
            if elsewhere.any():
                wanted[name] = np.unique(source[elsewhere])
        return {name: (which, self._gather(name, which)) for name, which in wanted.items()}

    def _gather(self, name: str, which: NDArray[np.int64]) -> pa.Array:
        """A column's values in these changes (ascending places after the last TRUNCATE)."""
        pieces = []
        start = -self._index.first
        for relation, rows in self._batch.read([f"new.{name}", "unchanged"]):
            inside = which[(which >= start) & (which < start + rows.num_rows)] - start
            start += rows.num_rows
            if len(inside):
                taken = rows.take(pa.array(inside))
                pieces.append(self._mappings[relation].given(taken, name))
        return pa.concat_arrays(pieces)


_Given = dict[str, tuple[NDArray[np.int64], pa.Array]]


@dataclass(frozen=True)
class _Plan:
    """Where put rows get a partial column from: see NetEffect; ``own`` are their positions."""

    own: NDArray[np.int64]
    source: NDArray[np.int64]
    root: NDArray[np.int64]
    moved: NDArray[np.bool_]


@dataclass(frozen=True)
class Found:
    """Rows of the target that were looked up, and their key codes, ascending."""

    codes: NDArray[np.int64]
    rows: pa.Table

    def places(self, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of the rows have these codes, of which each has one."""
        return np.searchsorted(self.codes, codes)


def source_schema(target: LakeTable, partial: list[str]) -> pa.Schema:
    """The schema of a source's rows (see above); names in it are plain, whatever the target's."""
    fields = [pa.field("op", pa.int8())]
    for number, column in enumerate(target.columns):
        fields.append(pa.field(f"c{number}", arrow_type(column.type_oid, column.typmod)))
    fields += LAST_CHANGE_FIELDS
    fields += [pa.field(f"keep{number}", pa.bool_()) for number in range(len(partial))]
    return pa.schema(fields)


def keyed_source(
    batch: TableBatch,
    target: LakeTable,
    mappings: Mappings,
    index: KeyIndex,
    look_up: LookUp,
    empty: bool = False,
) -> KeyedSource:
    """Play a batch; UniqueViolationError when it puts a row where one exists.

    ``empty`` says that there were no rows before the batch, of a partitioned table in no leaf.
    ``look_up`` is asked for the rows that key changes move, unless there are none by then.
    When a key seems to be violated it is asked for all keys: an update that came before may have
    been one of a missing row.
    """
    new, old = change_codes(index, index.keys)
    empty = empty or index.truncated
    moves = (index.op == OP_UPDATE) & (old >= 0)
    if empty or not moves.any():
        known = np.full(_size(new, old), MISSING if empty else UNKNOWN, np.uint8)
        found = Found(np.zeros(0, np.int64), index.keys.slice(0, 0))
        effect = net_effect(Changes(index.op, old, new, index.absent, known))
    else:
        effect, found = _play_knowing(index, np.where(moves, old, -1), look_up)
    if effect.violation >= 0 and not empty:
        effect, found = _play_knowing(index, np.concatenate([new, old]), look_up)
    if effect.violation >= 0:
        raise duplicate_key(target, index, effect.violation)
    return KeyedSource(batch, mappings, index, effect, found)


def _play_knowing(
    index: KeyIndex, asked: NDArray[np.int64], look_up: LookUp
) -> tuple[NetEffect, Found]:
    """Play after looking up the keys with these codes; -1 asks for none (see ``known_keys``)."""
    keys = known_keys(index, asked, look_up, index.partial)
    return net_effect(Changes(index.op, keys.old, keys.new, index.absent, keys.known)), keys.found


@dataclass(frozen=True)
class KnownKeys:
    """Codes of the changes' new and old keys, what is known of each code, the rows found."""

    new: NDArray[np.int64]
    old: NDArray[np.int64]
    known: NDArray[np.uint8]
    found: Found


def known_keys(
    index: KeyIndex, asked: NDArray[np.int64], look_up: LookUp, columns: list[str]
) -> KnownKeys:
    """Look up keys of the target, and these columns of their rows.

    ``asked`` has one code for each old key, or for each new key and then each old key; -1 asks for
    none.
    """
    count = len(index.op)
    chosen = np.flatnonzero(asked >= 0)
    distinct = chosen[np.unique(asked[chosen], return_index=True)[1]]
    place = distinct + (2 * count - len(asked))
    rows = look_up(index.keys.take(pa.array(place)), columns)
    every = pa.concat_tables([index.keys, rows.select(index.keys.column_names)])
    codes = row_codes(every.columns)
    new, old = change_codes(index, index.keys, codes)
    known = np.full(int(codes.max(initial=-1)) + 1, UNKNOWN, np.uint8)
    known[codes[place]] = MISSING
    present = codes[2 * count :]
    known[present] = PRESENT
    order = np.argsort(present)
    return KnownKeys(new, old, known, Found(present[order], rows.take(pa.array(order))))


def _size(new: NDArray[np.int64], old: NDArray[np.int64]) -> int:
    return max(int(new.max(initial=-1)), int(old.max(initial=-1))) + 1
