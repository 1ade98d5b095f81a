# SPDX-License-Identifier: Apache-2.0
"""Compaction: small data files, and files of which many rows are gone, are written anew.

In:   a table at a committed version.
Out:  a new file with the rows that some files still have, and a Delta commit that swaps it in.

    groups   which files to write anew together                                       no lock
    rewrite  their rows, in key order, in a new file that no commit names yet         no lock
    swap     one Delta commit: the old files out, the new one in                      table's lock

Between rewrite and swap others may have taken rows out of the old files.  Where each row of the
new file came from is known, so those rows are taken out of the new file by a deletion vector: a
table that is updated without a pause is compacted all the same, and nobody waits for a rewrite.

Files are of one tier when their sizes are alike; EIGHT of a tier become one of a higher tier, so a
row is written anew about once for each tier.  The swap changes no data (dataChange is false): a
reader of changes sees nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyroaring import BitMap64

from penstock.change.last_change import TIME_COLUMN, with_last_change
from penstock.change.relation import LakeTable
from penstock.lake.births import born
from penstock.lake.files import WrittenFile, write_file
from penstock.lake.key_index import index_again
from penstock.lake.log import DataFile, data_files, physical_names
from penstock.lake.reading import read_columns
from penstock.lake.tables import added, arrow_schema, commit_actions
from penstock.lake.vectors import read_vector, write_vectors

EIGHT = 8
"""Files of one tier that are worth a rewrite."""

SMALLEST_LARGE, LARGEST_LARGE = 4 * 1024 * 1024, 128 * 1024 * 1024
SHARE = 64
"""A file is large, and left alone unless many of its rows are gone, from a 64th of its table on, in
bytes not below nor above these.  So what an initial copy has written is not written once more."""

MASKED = 0.3
"""Share of gone rows from which a file is written anew."""

_SMALLEST = 16 * 1024


@dataclass(frozen=True)
class Rewritten:
    """A file with the rows of ``sources``: row i was row ``row[i]`` of source ``source[i]``.

    ``file`` is None when the sources had no rows left.
    """

    sources: tuple[DataFile, ...]
    file: WrittenFile | None
    source: NDArray[np.int64]
    row: NDArray[np.int64]


def groups(files: Iterable[DataFile]) -> list[tuple[DataFile, ...]]:
    """The files that should be written anew, together with which others."""
    files = list(files)
    total = sum(file.add["size"] for file in files)
    large = min(max(total // SHARE, SMALLEST_LARGE), LARGEST_LARGE)
    tiers: dict[int, list[DataFile]] = {}
    alone: list[tuple[DataFile, ...]] = []
    for file in files:
        left = 1 - _share_gone(file)
        size = file.add["size"] * left
        if size < large:
            tiers.setdefault(max(0, int(math.log(max(size, 1) / _SMALLEST, EIGHT))), []).append(
                file
            )
        elif left <= 1 - MASKED:
            alone.append((file,))
    for tier in tiers.values():
        if len(tier) >= EIGHT:
            alone.append(tuple(tier[: EIGHT * EIGHT]))
        else:
            alone += [(file,) for file in tier if _share_gone(file) >= MASKED]
    return alone


def rewrite(table: LakeTable, sources: Sequence[DataFile]) -> Rewritten:
    """Write the rows that files still have into a new one, durable on return."""
    names = physical_names(table.location, table.version)
    schema = with_last_change(arrow_schema(table))
    pieces, origins = [], []
    for number, file in enumerate(sources):
        rows = read_columns(Path(table.location) / file.path, names, schema)
        gone = read_vector(table.location, file.vector).astype(np.int64)
        left = np.delete(np.arange(rows.num_rows), gone)
        pieces.append(rows.take(pa.array(left)))
        origins.append(np.stack([np.full(len(left), number), left]))
    pieces = _with_births(table, sources, pieces)
    rows, (source, row) = pa.concat_tables(pieces), np.concatenate(origins, axis=1)
    if table.key:
        order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in table.key])
        rows, source, row = rows.take(order), source[order], row[order]
    physical = rows.rename_columns([names.get(name, name) for name in rows.column_names])
    written = write_file(physical, table.location) if rows.num_rows else None
    if written is not None:
        index_again(table, sources, DataFile(added(written)["add"]))
    return Rewritten(tuple(sources), written, source, row)


def _with_births(
    table: LakeTable, sources: Sequence[DataFile], pieces: Sequence[pa.Table]
) -> list[pa.Table]:
    """The rows of files with the time of the file's commit where their own is missing."""
    assert table.version is not None
    lacking = [n for n, rows in enumerate(pieces) if rows.column(TIME_COLUMN).null_count]
    paths = [sources[number].add["path"] for number in lacking]
    times = born(table.location, table.version, paths) if paths else {}
    filled = list(pieces)
    for number, path in zip(lacking, paths, strict=True):
        if path in times:
            rows = pieces[number]
            place = rows.column_names.index(TIME_COLUMN)
            column = pc.fill_null(rows.column(place), times[path])
            filled[number] = rows.set_column(place, rows.schema.field(place), column)
    return filled


def swap(table: LakeTable, made: Rewritten, metadata: str) -> int | None:
    """Put a rewritten file in the place of its sources; the new version.

    The caller holds the table's lock.  None when the table has got rows of the sources back since,
    or has lost none of them for good: then the new file is of no use, and is removed.
    """
    assert table.version is not None
    there = data_files(table.location, table.version)
    gone_since = np.zeros(len(made.row), np.bool_)
    for number, source in enumerate(made.sources):
        mine = made.source == number
        current = there.get(source.add["path"])
        if current is None:
            gone_since |= mine
        elif current != source:
            now_gone = read_vector(table.location, current.vector)
            if not np.isin(read_vector(table.location, source.vector), now_gone).all():
                discard(table, made)
                return None
            gone_since |= mine & np.isin(made.row, now_gone.astype(np.int64))
    now = int(time.time() * 1000)
    actions = [
        there[path].removed(now, data_change=False)
        for path in (source.add["path"] for source in made.sources)
        if path in there
    ]
    if made.file is not None and not gone_since.all():
        new = DataFile(added(made.file, data_change=False)["add"])
        if gone_since.any():
            masked = BitMap64(np.flatnonzero(gone_since).astype(np.uint64))
            vector = write_vectors(table.location, {"": masked})[""]
            actions.append(new.masked(vector, data_change=False))
        else:
            actions.append({"add": new.add})
    else:
        discard(table, made)
    return commit_actions(table, actions, "OPTIMIZE", metadata) if actions else None


def discard(table: LakeTable, made: Rewritten) -> None:
    """Remove a rewritten file that no commit names."""
    if made.file is not None:
        Path(table.location, made.file.path).unlink(missing_ok=True)


def _share_gone(file: DataFile) -> float:
    return file.vector["cardinality"] / file.rows if file.vector is not None and file.rows else 0.0
