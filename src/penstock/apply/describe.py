# SPDX-License-Identifier: Apache-2.0
"""The first conflicts of a batch with their rows, for people to read.

In:   conflicts by their change and key; ``look_up``, which finds rows of the target by key.
Out:  LoggedConflicts.  Only LOGGED of them are ever made, so there may be Python objects here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apply.batch import TableBatch
from penstock.apply.conflicts import RESOLUTIONS, Judged
from penstock.apply.index import KeyIndex, Mappings
from penstock.apply.keyed import LookUp
from penstock.apply.rows import RowMapping
from penstock.change.last_change import LAST_CHANGE, ORIGIN_COLUMN, TIME_COLUMN
from penstock.change.relation import LakeTable
from penstock.control.conflict_log import (
    KINDS,
    LOGGED,
    VALUE_LIMIT,
    Conflicts,
    LoggedConflict,
    Texts,
)
from penstock.wire.rows_text import text_column

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Reader:
    """Where the rows of conflicts are read; ``look_up`` is None when the table was empty."""

    batch: TableBatch
    target: LakeTable
    mappings: Mappings
    index: KeyIndex
    look_up: LookUp | None


def conflicts_of(judged: Judged, reader: Reader) -> Conflicts:
    """All conflicts of a judgement counted, the first of them described."""
    counts: Counter[tuple[str, str]] = Counter()
    pairs = judged.kind * len(RESOLUTIONS) + judged.resolution
    for pair, count in zip(*np.unique(pairs, return_counts=True), strict=True):
        kind, resolution = divmod(int(pair), len(RESOLUTIONS))
        counts[KINDS[kind], RESOLUTIONS[resolution]] = int(count)
    first = slice(0, LOGGED)
    names = [
        (KINDS[kind], RESOLUTIONS[resolution])
        for kind, resolution in zip(judged.kind[first], judged.resolution[first], strict=True)
    ]
    return Conflicts(counts, describe(reader, judged.change[first], judged.key[first], names))


def violation(reader: Reader, change: int, kind: str) -> LoggedConflict:
    """The conflict of a change whose new key exists, where that is an error."""
    place = np.array([change])
    return describe(reader, place, place, [(kind, "error")])[0]


def describe(
    reader: Reader, change: Ints, key: Ints, names: Sequence[tuple[str, str]]
) -> list[LoggedConflict]:
    """Conflicts with their rows.

    ``change`` are places among the index' changes, ``key`` among its keys; ``names`` are kinds and
    resolutions.
    """
    if not len(change):
        return []
    keys = texts(reader.index.keys.take(pa.array(key)))
    local = _local_rows(reader, key)
    remote = _remote_rows(reader, change)
    lsns = reader.index.commit_lsn[change]
    commits = reader.batch.commits
    transactions = commits.rows[commits.places(lsns)] if commits is not None else None
    found = []
    for place, (kind, resolution) in enumerate(names):
        row, origin, time = local.get(tuple(keys[place].values()), (None, None, None))
        found.append(
            LoggedConflict(
                kind,
                resolution,
                chr(reader.index.op[change[place]]),
                int(lsns[place]),
                None if transactions is None else int(transactions[place, 3]),
                None if transactions is None else int(transactions[place, 2]),
                keys[place],
                row,
                remote[int(change[place])],
                origin,
                time,
            )
        )
    return found


def texts(rows: pa.Table) -> list[dict[str, str | None]]:
    """Rows as their columns' text forms, of each value at most VALUE_LIMIT characters."""
    columns = [text_column(column.combine_chunks()).to_pylist() for column in rows.columns]
    decoded = [[None if v is None else _short(v.decode()) for v in values] for values in columns]
    return [
        dict(zip(rows.column_names, values, strict=True)) for values in zip(*decoded, strict=True)
    ]


def _short(value: str) -> str:
    return value if len(value) <= VALUE_LIMIT else value[:VALUE_LIMIT] + "..."


_Local = dict[tuple[str | None, ...], tuple[Texts, int | None, int | None]]


def _local_rows(reader: Reader, key: Ints) -> _Local:
    """The target's rows with these keys, by key; who changed them, and when."""
    index = reader.index
    if reader.look_up is None or index.truncated:
        return {}
    asked = index.keys.take(pa.array(key))
    seen = {tuple(row.values()): place for place, row in enumerate(texts(asked))}
    distinct = asked.take(pa.array(sorted(seen.values())))
    names = [column.name for column in reader.target.columns]
    others = [name for name in names if name not in asked.column_names]
    rows = reader.look_up(distinct, [*others, *LAST_CHANGE])
    keys, shown = texts(rows.select(asked.column_names)), texts(rows.select(names))
    origins, times = (rows.column(name).to_pylist() for name in (ORIGIN_COLUMN, TIME_COLUMN))
    return {
        tuple(each.values()): (row, origin, time)
        for each, row, origin, time in zip(keys, shown, origins, times, strict=True)
    }


def _remote_rows(reader: Reader, change: Ints) -> dict[int, Texts | None]:
    """The new rows of changes, as far as they were sent; None for a DELETE."""
    found: dict[int, Texts | None] = {}
    wanted = np.unique(change)
    start = -reader.index.first
    for relation, rows in reader.batch.read(["old", "new", "unchanged"]):
        inside = wanted[(wanted >= start) & (wanted < start + rows.num_rows)]
        if len(inside):
            taken = rows.take(pa.array(inside - start))
            sent = sent_rows(reader.mappings[relation], taken)
            found |= dict(zip(inside.tolist(), sent, strict=True))
        start += rows.num_rows
    return found


def sent_rows(mapping: RowMapping, rows: pa.RecordBatch) -> list[Texts | None]:
    """The new rows of some changes without the columns that were not sent."""
    shown = texts(mapping.new_rows(rows))
    published = {column.name for column in mapping.relation.columns}
    absent = {name: mapping.absent(rows, name) for name in published}
    deleted = rows.column("new").is_null().to_pylist()
    return [
        None
        if deleted[place]
        else {n: v for n, v in row.items() if n in published and not absent[n][place]}
        for place, row in enumerate(shown)
    ]
