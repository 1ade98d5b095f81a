# SPDX-License-Identifier: Apache-2.0
"""Foreign keys: do the rows that a statement leaves refer to rows that are there?

In:   tables at their committed versions, and what the statement does to each of them (State).
Out:  the first new row without a row that it refers to; keys that the statement took away, and the
      first of them to which rows still refer.

    side                rows that are looked at             looked for in
    ----                -----------------------             -------------
    the one that        those that came; of updated ones,   the other's files, and the rows that the
      refers            those with another key              statement put there
    the one that is     those that are gone, and those      the same of the table that refers
      referred to       whose key was changed

As ri_triggers.c: a null in a key makes it refer to nothing (MATCH SIMPLE), or all must be null
(MATCH FULL).  Keys are compared a column at a time, PIECE_ROWS together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.change.codes import row_codes
from penstock.change.relation import LakeColumn, LakeTable
from penstock.change.types import arrow_type
from penstock.lake.find import find_rows
from penstock.lake.placed import Places, places_of, places_of_hits, read_pieces
from penstock.lake.reading import Ints
from penstock.lake.session import GetSession
from penstock.lake.tables import arrow_schema
from penstock.lake.writes import Change, staying

PIECE_ROWS = 500_000
"""Keys that are looked for together."""

Flags = NDArray[np.bool_]
Action = Literal["a", "r", "c", "n", "d"]
"""NO ACTION, RESTRICT, CASCADE, SET NULL, SET DEFAULT."""

ACTING = frozenset({"c", "n", "d"})
"""Those that change the rows that refer."""

_TEXTS = frozenset({25, 1043})
_WITH_TYPMOD = frozenset({1042, 1700})
"""character(n), numeric(p,s): values are kept in another form for each modifier."""


@dataclass(frozen=True)
class Relation:
    """One side of a foreign key; ``leaves`` are the relids of the tables that have its rows."""

    relid: int
    schema: str
    name: str
    columns: tuple[str, ...]
    leaves: tuple[int, ...]


@dataclass(frozen=True)
class ForeignKey:
    """A constraint, as penstock.foreign_key() tells of it (schema/140_foreign_keys.sql)."""

    oid: int
    name: str
    child: Relation
    parent: Relation
    full: bool
    on_update: Action
    on_delete: Action
    set_columns: tuple[str, ...]
    deferrable: bool
    deferred: bool
    checks: bool
    acts: bool
    kept: bool
    owned_default: bool
    partitioned: bool
    root: int

    @property
    def changes_rows(self) -> bool:
        """Whether rows of the table that refers may be changed by its actions."""
        return self.acts and not ACTING.isdisjoint((self.on_update, self.on_delete))


@dataclass(frozen=True)
class State:
    """A table, and what the statement does to it; None: nothing."""

    table: LakeTable
    change: Change | None = None

    def table_columns(self, names: Sequence[str]) -> pa.Table:
        """No rows of some columns."""
        return arrow_schema(self.table).empty_table().select(list(names))


@dataclass(frozen=True)
class Missing:
    """Row ``row`` of those that came has no partner; ``mixed``: only some of its key are null."""

    row: int
    key: pa.Table
    mixed: bool = False


@dataclass(frozen=True)
class Lost:
    """Distinct keys, none with a null, that rows had and do not have any more.

    ``row[i]`` is the place of key i among the rows that are gone, ascending; ``deleted`` says that
    there is no row in the place of that one.  ``after`` are the keys that the others got.
    """

    keys: pa.Table
    row: Ints
    deleted: Flags
    after: pa.Table

    def only(self, chosen: Flags) -> Lost:
        """Some of them."""
        at = np.flatnonzero(chosen)
        keys, after = self.keys.take(pa.array(at)), self.after.take(pa.array(at))
        return Lost(keys, self.row[at], self.deleted[at], after)

    def beyond(self, others: Lost) -> Flags | None:
        """Which keys are not among others; None when some are, and were given other keys there."""
        mine, theirs = self._rows, others._rows
        known, same = (
            np.isin(codes[: len(mine)], codes[len(mine) :])
            for width in (self.keys.num_columns, mine.num_columns)
            for codes in [row_codes(pa.concat_tables([mine, theirs]).columns[:width])]
        )
        return None if (known & ~same).any() else np.logical_not(known)

    @property
    def _rows(self) -> pa.Table:
        """The keys, then what became of them, under names of their own."""
        columns = [*self.keys.columns, pa.chunked_array([self.deleted]), *self.after.columns]
        return pa.table(columns, names=[str(number) for number in range(len(columns))])


def together(several: Sequence[Lost]) -> Lost:
    """All of several, each from the same table and columns."""
    return Lost(
        pa.concat_tables([each.keys for each in several]),
        np.concatenate([each.row for each in several]),
        np.concatenate([each.deleted for each in several]),
        pa.concat_tables([each.after for each in several]),
    )


def comparable(left: LakeColumn, right: LakeColumn) -> bool:
    """Whether equal values of two columns are equal, or equal integers, in the lake as well."""
    kinds = [arrow_type(each.type_oid, each.typmod) for each in (left, right)]
    if all(pa.types.is_integer(kind) for kind in kinds):
        return True
    same = left.type_oid == right.type_oid or {left.type_oid, right.type_oid} <= _TEXTS
    exact = left.type_oid not in _WITH_TYPMOD or left.typmod == right.typmod
    return same and exact and kinds[0] == kinds[1]


def first_missing(
    session: GetSession,
    states: Sequence[State],
    child: State,
    key: ForeignKey,
) -> Missing | None:
    """The first new row of a table that refers to no row; ``states`` are the other table's."""
    asked, rows = missing_keys(session, states, child, key)
    if not asked.num_rows:
        return None
    at = int(np.argmin(rows))
    row = asked.slice(at, 1)
    return Missing(int(rows[at]), row, mixed=bool(_nulls(row)[0]))


def missing_keys(
    session: GetSession,
    states: Sequence[State],
    child: State,
    key: ForeignKey,
) -> tuple[pa.Table, Ints]:
    """The keys of new rows that refer to none, and the first row of each.

    With MATCH FULL, those with some nulls as well.
    """
    empty = child.table_columns(key.child.columns)
    if child.change is None or not child.change.rows.num_rows:
        return empty, np.zeros(0, np.int64)
    unsure: list[tuple[pa.Table, Ints]] = [(empty, np.zeros(0, np.int64))]
    for keys, rows in _new_keys(child, key.child.columns):
        nulls = _nulls(keys)
        mixed = np.flatnonzero((nulls > 0) & (nulls < len(key.child.columns)))
        if key.full and len(mixed):
            at = int(mixed[0])
            unsure.append((keys.slice(at, 1), rows[at : at + 1]))
        chosen = np.flatnonzero(nulls == 0)
        asked, first = _distinct(keys.take(pa.array(chosen)))
        there = _in_lake(session, states, key.parent.columns, asked)
        left = np.flatnonzero(~there)
        unsure.append((asked.take(pa.array(left)), rows[chosen[first[left]]]))
    asked = pa.concat_tables([keys for keys, _ in unsure])
    rows = np.concatenate([rows for _, rows in unsure])
    found = np.flatnonzero(~_among_new(states, key.parent.columns, asked))
    return asked.take(pa.array(found)), rows[found]


def still_violating(
    session: GetSession,
    children: Sequence[State],
    parents: Sequence[State],
    key: ForeignKey,
    keys: pa.Table,
) -> pa.Table:
    """Which of some keys, in the columns of either table, rows have that refer to none."""
    keys, _ = _distinct(keys)
    there = _in_lake(session, parents, key.parent.columns, keys)
    there |= _among_new(parents, key.parent.columns, keys)
    left = keys.take(pa.array(np.flatnonzero(~there)))
    referred = referred_to(session, children, key.child.columns, left)
    referred |= _nulls(left) > 0
    return left.take(pa.array(np.flatnonzero(referred)))


def lost_keys(parent: State, columns: Sequence[str]) -> Lost | None:
    """The keys that a statement took from a table, or None; some may be there in another row."""
    change = parent.change
    if change is None or not change.gone:
        return None
    gone = _gone(change)
    old = pa.concat_tables(read_pieces(parent.table, gone, columns))
    after = np.full(len(gone), -1)
    if change.updates is not None:
        updated = np.flatnonzero(change.updates.of >= 0)
        after[change.updates.of[updated]] = updated
    new = change.rows.select(list(columns))
    there = after >= 0
    lost = _nulls(old) == 0
    lost[there] &= _differ(old.filter(pa.array(there)), new.take(pa.array(after[there])))
    rows = np.flatnonzero(lost)
    if not len(rows):
        return None
    # Keys of rows are distinct, but for those of tables that a subscription writes without looking.
    keys, first = _distinct(old.take(pa.array(rows)))
    order = np.argsort(first)
    rows = rows[first[order]]
    got = pa.array(after[rows], mask=after[rows] < 0)
    return Lost(keys.take(pa.array(order)), rows, after[rows] < 0, new.take(got))


def there_again(parent: State, columns: Sequence[str], keys: pa.Table) -> Flags:
    """Which of the keys some row has that came."""
    return _among_new([parent], columns, keys)


def referred_to(
    session: GetSession, states: Sequence[State], columns: Sequence[str], keys: pa.Table
) -> Flags:
    """To which of some distinct keys rows refer, when the statement has ended."""
    there = _in_lake(session, states, columns, keys)
    return there | _among_new(states, columns, keys)


def referring_places(
    session: GetSession, state: State, columns: Sequence[str], keys: pa.Table
) -> Places:
    """Where the rows are in the lake that refer to some distinct keys."""
    asked, _ = _fitting(state.table, columns, keys)
    return places_of_hits(find_rows(state.table, asked, session))


def _new_keys(child: State, columns: Sequence[str]) -> Iterator[tuple[pa.Table, Ints]]:
    """Keys of rows that came or have another than before, and the numbers of the rows."""
    change = child.change
    assert change is not None
    whole = change.rows.select(list(columns))
    same = np.zeros(0, np.int64)
    if change.updates is not None:
        updated = np.flatnonzero(change.updates.of >= 0)
        old = pa.concat_tables(read_pieces(child.table, change.updates.gone, columns))
        before = old.take(pa.array(change.updates.of[updated]))
        same = updated[~_differ(before, whole.take(pa.array(updated)))]
    for start in range(0, whole.num_rows, PIECE_ROWS):
        keys = whole.slice(start, PIECE_ROWS)
        rows = np.setdiff1d(np.arange(start, start + keys.num_rows), same, assume_unique=True)
        yield keys.take(pa.array(rows - start)) if len(same) else keys, rows


def _gone(change: Change) -> Places:
    if change.updates is not None:
        return change.updates.gone
    return places_of({path: rows.astype(np.int64) for path, rows in change.gone.items()})


def _in_lake(
    session: GetSession, states: Sequence[State], columns: Sequence[str], keys: pa.Table
) -> Flags:
    """Which of some distinct keys a row has that was there before the statement, and stays."""
    found = np.zeros(keys.num_rows, bool)
    for state in states:
        asked, at = _fitting(state.table, columns, keys)
        hits = find_rows(state.table, asked, session)
        if state.change is not None:
            hits = hits.only(staying(hits, state.change))
        found[at[hits.at]] = True
    return found


def _among_new(states: Sequence[State], columns: Sequence[str], keys: pa.Table) -> Flags:
    """Which of some keys a row has that came."""
    found = np.zeros(keys.num_rows, bool)
    for state in states:
        if state.change is None or not keys.num_rows:
            continue
        asked, at = _fitting(state.table, columns, keys)
        rows = state.change.rows.select(list(columns))
        for start in range(0, rows.num_rows, PIECE_ROWS):
            piece = rows.slice(start, PIECE_ROWS)
            codes = row_codes(pa.concat_tables([asked, piece]).columns)
            count = asked.num_rows
            found[at[np.isin(codes[:count], codes[count:])]] = True
    found &= _nulls(keys) == 0
    return found


def _fitting(table: LakeTable, columns: Sequence[str], keys: pa.Table) -> tuple[pa.Table, Ints]:
    """The keys that columns of a table can hold, as values of them, and their numbers."""
    schema = arrow_schema(table)
    schema = pa.schema([schema.field(name) for name in columns])
    fits = np.ones(keys.num_rows, bool)
    for values, field in zip(keys.columns, schema, strict=True):
        if values.type != field.type:
            limit = 2 ** (field.type.bit_width - 1)
            wide = pc.fill_null(values.cast(pa.int64()), 0).to_numpy()
            fits &= (wide >= -limit) & (wide <= limit - 1)
    at = np.flatnonzero(fits)
    chosen = keys.rename_columns(list(columns)).take(pa.array(at))
    arrays = [column.cast(field.type) for column, field in zip(chosen.columns, schema, strict=True)]
    return pa.table(arrays, names=list(columns)), at


def _distinct(keys: pa.Table) -> tuple[pa.Table, Ints]:
    """The different keys, and the first row of each."""
    if not keys.num_rows:
        return keys, np.zeros(0, np.int64)
    _, first = np.unique(row_codes(keys.columns), return_index=True)
    return keys.take(pa.array(first)), first


def _differ(before: pa.Table, after: pa.Table) -> Flags:
    """In which rows two tables differ; nulls are equal."""
    if not before.num_rows:
        return np.zeros(0, bool)
    codes = row_codes(pa.concat_tables([before, after]).columns)
    return np.not_equal(codes[: len(before)], codes[len(before) :])


def _nulls(keys: pa.Table) -> Ints:
    """How many nulls each key has."""
    count = np.zeros(keys.num_rows, np.int64)
    for column in keys.columns:
        count += column.is_null().to_numpy()
    return count
