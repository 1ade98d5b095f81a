# SPDX-License-Identifier: Apache-2.0
"""Columns that are not published and have a value of their own in each row: serial, random().

In:   a batch, the columns, ``compute``, which gives a value of each for so many rows.
Out:  a table with a row for each change of the batch; null where a change needs no value.

Values are computed once for a batch, before it is applied: what reads it reads some changes twice,
and each leaf of a partitioned table reads all of them.  As in PostgreSQL, a sequence moves with
each inserted row, in the order of the changes, also of rows that the same batch deletes.  After a
TRUNCATE with RESTART IDENTITY, the last one of a batch, sequences have started again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.apply.batch import TableBatch
from penstock.change.relation import LakeColumn, Relation
from penstock.change.types import arrow_type
from penstock.errors import ComputedValueError
from penstock.lake.spooled import SpooledRows

Compute = Callable[[Collection[str], int, bool], Mapping[str, pa.Array]]
"""Names of columns, a number of rows, whether sequences have started again -> values of each;
ComputedValueError."""


def computed_columns(
    batch: TableBatch,
    columns: Collection[LakeColumn],
    ops: str,
    compute: Compute,
    scratch: Path,
) -> pa.Table:
    """The columns for each change of a batch; only changes with these ``ops`` get values.

    Many of them wait in a file in the folder ``scratch``.  ComputedValueError has the position of
    the first change that would have got the value.
    """
    wanted = pa.array(list(ops))
    schema = pa.schema(
        [pa.field(each.name, arrow_type(each.type_oid, each.typmod)) for each in columns]
    )
    found = SpooledRows(schema.empty_table(), scratch)
    restart = _last_restart(batch)
    position = 0
    with closing(found):
        for relation, rows in _cut_at(batch.read([]), restart):
            published = {column.name for column in relation.columns}
            lacking = [name for name in schema.names if name not in published]
            chosen = pc.is_in(rows.column("op"), value_set=wanted).to_numpy(zero_copy_only=False)
            places = np.flatnonzero(chosen)
            try:
                values: Mapping[str, pa.Array] = {}
                if lacking and len(places):
                    values = compute(lacking, len(places), 0 <= restart <= position)
            except ComputedValueError as error:
                error.position = position + int(places[0])
                raise
            found.add(pa.table([_at(chosen, values.get(f.name), f.type) for f in schema], schema))
            position += rows.num_rows
        return found.whole()


def _last_restart(batch: TableBatch) -> int:
    """The position of the last TRUNCATE of a transaction that restarts identity, or -1."""
    last = -1
    if not batch.restarts:
        return last
    lsns = pa.array(sorted({lsn for file in batch.files for lsn in file.restarts}), pa.int64())
    position = 0
    for _, rows in batch.read([]):
        truncates = pc.equal(rows.column("op"), "T")
        restarts = pc.and_(truncates, pc.is_in(rows.column("commit_lsn"), value_set=lsns))
        places = np.flatnonzero(restarts.to_numpy(zero_copy_only=False))
        if len(places):
            last = position + int(places[-1])
        position += rows.num_rows
    return last


def _cut_at(
    pieces: Iterable[tuple[Relation, pa.RecordBatch]], place: int
) -> Iterator[tuple[Relation, pa.RecordBatch]]:
    """The same rows; one piece begins at this place."""
    for relation, rows in pieces:
        if 0 < place < rows.num_rows:
            yield relation, rows.slice(0, place)
            rows = rows.slice(place)
            place = 0
        yield relation, rows
        place -= rows.num_rows


def _at(chosen: NDArray[np.bool_], values: pa.Array | None, kind: pa.DataType) -> pa.Array:
    """Values at the chosen places, null at the others."""
    if values is None:
        return pa.nulls(len(chosen), kind)
    return values.take(pa.array(np.cumsum(chosen) - 1, mask=~chosen))
