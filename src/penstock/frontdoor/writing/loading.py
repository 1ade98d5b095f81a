# SPDX-License-Identifier: Apache-2.0
"""Put rows of lake tables into their empty relations, for a statement that has to see them.

In:   the tables whose rows a statement needs, locked, and its scans (scans.py).
Out:  the relations have every row that can count for the statement; which row has which ctid.

A small table is put in as a whole.  Of the others the rows that the statement's scans want are
chosen (narrowing.py, lake/chosen.py).  A table whose rows must match those of another one comes
after it, unless that is a temporary one, which has its rows; when all wait for each other, or
nothing is known of them, the smallest is put in whole.
The target of ON CONFLICT is in no scan: its rows come when the statement has run once, and its keys
are known (writer.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.change.relation import LakeColumn
from penstock.change.types import arrow_type
from penstock.control.guard import Guard
from penstock.errors import FeatureNotSupportedError
from penstock.frontdoor.backend import ControlBackend
from penstock.frontdoor.writing.cursors import read_relation
from penstock.frontdoor.writing.narrowing import Matched, Narrowed
from penstock.frontdoor.writing.write_targets import CTID, Target, distinct_values
from penstock.lake.chosen import Wanted, choose
from penstock.lake.placed import (
    Places,
    merged,
    places_of,
    read_pieces,
    table_size,
    union,
    without,
)
from penstock.lake.reading import Ints
from penstock.lake.session import Spark
from penstock.pgoutput.data_rows import read_rows
from penstock.wire.responses import ServerError

FEW_ROWS = 1000
"""Rows of a table that are put in without a look at what the statement wants of them."""

FEW_TABLES = 8
"""Tables for which that holds; of more, such as leaves, each is asked what is wanted of it."""

LOAD_BYTES = 2 * 1024 * 1024 * 1024
"""Bytes of rows, as Arrow has them, that are put into relations for one statement."""


@dataclass(frozen=True)
class Loaded:
    """Rows of the lake that a relation has for a moment; ``ctids[i]`` is that of place i.

    ``whole``: they are all rows of the table.  ``command`` is the cmin of the last of those that
    were put in before the statement, ``later`` are the cmins of others.
    """

    places: Places
    ctids: Ints
    whole: bool
    command: int
    later: tuple[int, ...] = ()


NOTHING = Loaded(places_of({}), np.zeros(0, np.int64), False, -1)


class Loader:
    """Loads rows, ``most_rows`` at most, for one statement.

    ``loaded`` has them by OID of their table.
    """

    def __init__(self, backend: ControlBackend, guard: Guard, spark: Spark, most_rows: int) -> None:
        self.loaded: dict[int, Loaded] = {}
        self._backend = backend
        self._guard = guard
        self._spark = spark
        self._most_rows = most_rows
        self._targets: dict[int, Target] = {}
        self._bytes = 0
        self._first: dict[int, Loaded | None] = {}

    async def load(self, targets: Sequence[Target], scans: Mapping[int, list[Narrowed]]) -> None:
        """Put in what the scans want; 0A000 when that is too much.

        All rows of a table that ``scans`` does not name.
        """
        sizes = await asyncio.to_thread(
            lambda: {each.table.relid: table_size(each.table).rows for each in targets}
        )
        waiting = self._targets = {target.table.relid: target for target in targets}
        while waiting:
            relid = min(waiting, key=lambda each: _order(each, waiting, scans, sizes))
            target = waiting[relid]
            waiting = {other: each for other, each in waiting.items() if other != relid}
            wanted = [Wanted()]
            if relid in scans and sizes[relid] > FEW_ROWS:
                wanted = [await self._wanted(target, each) for each in scans[relid]]
            elif relid in scans and len(targets) > FEW_TABLES:
                wanted = [each.wanted for each in scans[relid]]  # keys cost more than few rows
            whole = any(each.is_everything for each in wanted)
            if whole and sizes[relid] > self._most_rows:
                raise self._too_much(target, sizes[relid])
            places = places_of({})
            if wanted:
                places = await asyncio.to_thread(
                    choose, target.table, wanted, self._spark.own_session()
                )
            await self._put(target, places, whole)

    async def load_again(self, more: Mapping[int, Places]) -> None:
        """After the rollback of all that: put the same in, and more, but not what came later."""
        before = {
            relid: each
            for relid, each in {**self.loaded, **self._first}.items()
            if each is not None
        }
        self.loaded, self._bytes, self._first = {}, 0, {}
        for relid, each in before.items():
            places = union([each.places, more[relid]]) if relid in more else each.places
            await self._put(self._targets[relid], places, each.whole)

    async def load_later(self, target: Target, places: Places) -> None:
        """Put rows in when the statement has run; those that are there already are left out."""
        relid = target.table.relid
        self._targets[relid] = target
        self._first.setdefault(relid, self.loaded.get(relid))
        before = self.loaded.get(relid, NOTHING)
        places = without(places, before.places)
        if not len(places):
            return
        pieces = await self._put_rows(target, places)
        commands = [await self._command(target, int(piece[-1])) for piece in pieces]
        places, order = merged(before.places, places)
        ctids = np.concatenate([before.ctids, *pieces])[order]
        self.loaded[relid] = replace(
            before, places=places, ctids=ctids, later=(*before.later, *commands)
        )

    @property
    def all_loaded(self) -> list[tuple[Target, Loaded]]:
        """What was put into which relation."""
        return [(self._targets[relid], each) for relid, each in self.loaded.items()]

    async def _wanted(self, target: Target, scan: Narrowed) -> Wanted:
        """What the rows of a scan meet, with the keys of the rows that they must match."""
        columns = {column.name: column for column in target.table.columns}
        asked = list(scan.wanted.asked)
        for matched in scan.matched:
            if matched.temporary is not None or matched.relid in self.loaded:
                keys = await self._keys(matched)
                asked.append(_as_columns(keys, [columns[name] for name in matched.columns]))
        return replace(scan.wanted, asked=tuple(asked))

    async def _keys(self, matched: Matched) -> pa.Table:
        """The values of the other table's columns."""
        if matched.temporary is not None:
            source = matched.temporary
            columns = [source.columns[number] for number in matched.theirs]
            query, name = distinct_values(source.quoted, columns), source.name
        else:
            target = self._targets[matched.relid]
            by_number = {column.attnum: column for column in target.table.columns}
            columns = [by_number[number] for number in matched.theirs]
            query, name = target.distinct(columns), target.name
        return await read_relation(self._backend, self._guard, query, columns, name)

    async def _put(self, target: Target, places: Places, whole: bool) -> None:
        """Put the rows at some places into a relation."""
        ctids = np.concatenate([np.zeros(0, np.int64), *await self._put_rows(target, places)])
        command = await self._command(target, int(ctids[-1])) if len(places) else -1
        self.loaded[target.table.relid] = Loaded(places, ctids, whole, command)

    async def _put_rows(self, target: Target, places: Places) -> list[Ints]:
        """The ctids of the rows, those of one command together."""
        rows = len(places) + sum(len(each.places) for each in self.loaded.values())
        if rows > self._most_rows or self._bytes > LOAD_BYTES:
            raise self._too_much(target, len(places))
        ctids = []
        pieces = read_pieces(target.table, places)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            self._bytes += piece.nbytes
            if self._bytes > LOAD_BYTES:
                raise self._too_much(target, len(places))
            ctids.append(await self._put_piece(target, piece))
        return ctids

    def _too_much(self, target: Target, rows: int) -> FeatureNotSupportedError:
        return FeatureNotSupportedError(
            "changing or reading so many rows of lake tables in one statement is not supported",
            detail=f'The statement may need {rows} rows of table "{target.name}"; it may need'
            f" {self._most_rows} rows in {LOAD_BYTES >> 20} MB of all its tables.",
            hint="Conditions that compare columns with constants, or with columns of smaller"
            " tables, leave rows out. INSERT of new rows, COPY and TRUNCATE have no limit. The"
            " setting statement_rows raises it.",
        )

    async def _put_piece(self, target: Target, rows: pa.Table) -> Ints:
        literals = await asyncio.to_thread(target.literals, rows)
        call = self._guard.load_rows(target.loading, literals)
        try:
            put = await self._backend.binary_rows(call.sql, call.parameters)
        except ServerError as error:
            for internal in ("p", "q"):
                error.fields.pop(internal, None)
            error.fields["W"] = f'rows of lake table "{target.name}"'
            raise
        ctids: Ints = read_rows(put.blocks, [CTID], target.name).column(0).to_numpy()
        return ctids

    async def _command(self, target: Target, ctid: int) -> int:
        """The command that has put a row in; later ones have larger numbers."""
        query = target.command_of(ctid)
        found = await read_relation(self._backend, self._guard, query, [CTID], target.name)
        return int(found.column(0)[0].as_py())


def _order(
    relid: int,
    waiting: Mapping[int, Target],
    scans: Mapping[int, list[Narrowed]],
    sizes: Mapping[int, int],
) -> tuple[int, int]:
    """Which table is next: the least of these."""
    rows, known = sizes[relid], scans.get(relid)
    if rows <= FEW_ROWS or known is None:
        return 0, rows
    partners = {each.relid for scan in known for each in scan.matched} - {relid}
    if all(
        not scan.wanted.is_everything
        or any(each.relid != relid and each.relid not in waiting for each in scan.matched)
        for scan in known
    ):
        return 1 if partners.isdisjoint(waiting) else 2, rows
    return 3, rows


def _as_columns(keys: pa.Table, columns: Sequence[LakeColumn]) -> pa.Table:
    """Keys of another table as values of these columns; without those that they cannot have."""
    arrays = {}
    for number, column in enumerate(columns):
        kind = arrow_type(column.type_oid, column.typmod)
        values = keys.column(number)
        if values.type != kind:
            limit = 2 ** (kind.bit_width - 1)
            wide = values.cast(pa.int64())
            fits = pc.and_(pc.greater_equal(wide, -limit), pc.less_equal(wide, limit - 1))
            keys = keys.filter(fits)
        arrays[column.name] = (number, kind)
    return pa.table(
        {name: keys.column(number).cast(kind) for name, (number, kind) in arrays.items()}
    )
