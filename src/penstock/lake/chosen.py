# SPDX-License-Identifier: Apache-2.0
"""Choose the rows of a table that may count for a statement.

In:   a table at its committed version; for each scan of it what its rows must meet (Wanted).
Out:  the places of rows: all that count for one of the scans, and maybe more.

    what is known of a scan's rows        they are found by
    ----------------------                -----------------
    values of columns, the key's best     lake/find.py, by its indexes of the key
    a plain condition                     the node's cores, reading the columns in it
    a condition that Spark knows          Spark, where the plain ones leave SPARK_ROWS and more
    nothing                               all rows count
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from penstock.change.relation import LakeTable
from penstock.errors import PenstockError
from penstock.lake.find import find_rows, on_all_cores
from penstock.lake.log import DataFile, data_files, physical_names
from penstock.lake.placed import (
    Places,
    all_places,
    places_of,
    places_of_hits,
    table_size,
    union,
    without_gone,
)
from penstock.lake.query import CANCELLED, exact_session, postgres_errors
from penstock.lake.reading import Ints, group_sizes, open_file, read_groups
from penstock.lake.scan import scan
from penstock.lake.session import GetSession
from penstock.lake.tables import arrow_schema

log = logging.getLogger(__name__)

SPARK_ROWS = 50_000
"""Rows that are rather loaded in vain than looked through by Spark, which takes half a second."""

_FORMAT = ds.ParquetFileFormat()


@dataclass(frozen=True)
class Wanted:
    """What the rows of one scan meet, each of these.

    ``asked`` are tables of values, of some columns, one row of which each row has.  ``plain`` is
    over the columns ``plain_columns``, ``predicate`` is Spark SQL over the table's columns.
    """

    asked: tuple[pa.Table, ...] = ()
    plain: pc.Expression | None = None
    plain_columns: frozenset[str] = frozenset()
    predicate: str | None = None

    @property
    def is_everything(self) -> bool:
        """Nothing is known."""
        return not self.asked and self.plain is None and self.predicate is None


def choose(
    table: LakeTable, scans: Sequence[Wanted], session: GetSession, spark_rows: int = SPARK_ROWS
) -> Places:
    """The rows of a table that may count for one of some scans; none without any.

    Spark looks through what is left above ``spark_rows``.
    """
    if table.version is None or not scans:
        return places_of({})
    if any(wanted.is_everything for wanted in scans):
        return all_places(table)
    return union([_of_scan(table, wanted, session, spark_rows) for wanted in scans])


def _of_scan(table: LakeTable, wanted: Wanted, session: GetSession, spark_rows: int) -> Places:
    if wanted.asked:
        # By the key if that is asked for, else by the fewest values.
        by_key = [each for each in wanted.asked if set(each.column_names) == set(table.key)]
        asked = min(by_key or wanted.asked, key=lambda each: each.num_rows)
        return places_of_hits(find_rows(table, asked, session))
    plain = None if wanted.plain is None else _meeting(table, wanted)
    rows = table_size(table).rows if plain is None else len(plain)
    if wanted.predicate is not None and rows > spark_rows:
        try:
            return _in_spark(table, wanted.predicate, session)
        except PenstockError as error:
            if error.sqlstate == CANCELLED.sqlstate:
                raise
            # PostgreSQL may never compute what failed, or fail on it itself.
            log.info("rows of %s.%s are not narrowed: %s", table.schema, table.name, error)
    return all_places(table) if plain is None else plain


def _meeting(table: LakeTable, wanted: Wanted) -> Places:
    """The rows that meet the plain condition."""
    assert table.version is not None
    names = physical_names(table.location, table.version)
    files = data_files(table.location, table.version)
    paths = list(files)
    found = on_all_cores(
        lambda number: _meeting_in(table, files[paths[number]], names, wanted), range(len(paths))
    )
    return places_of(dict(zip(paths, found, strict=True)))


def _meeting_in(table: LakeTable, file: DataFile, names: Mapping[str, str], wanted: Wanted) -> Ints:
    schema = arrow_schema(table)
    schema = pa.schema([field for field in schema if field.name in wanted.plain_columns])
    path = Path(table.location) / file.path
    found = [np.zeros(0, np.int64)]
    with open_file(path) as parquet:
        starts = np.concatenate([[0], np.cumsum(group_sizes(parquet))])
        for group in _groups(path, parquet, schema, wanted):
            rows = read_groups(parquet, [group], names, schema)
            # A name that is too long for a column of PostgreSQL.
            place = "p" * 64
            numbered = rows.append_column(place, pa.array(np.arange(rows.num_rows)))
            found.append(starts[group] + numbered.filter(wanted.plain).column(place).to_numpy())
    return without_gone(table, file, np.concatenate(found))


def _groups(
    path: Path, parquet: pq.ParquetFile, schema: pa.Schema, wanted: Wanted
) -> Iterable[int]:
    """Row groups that may have such rows, by their statistics."""
    there = parquet.schema_arrow
    if any(field.name not in there.names or there.field(field.name).type != field.type
           for field in schema):  # fmt: skip
        return range(parquet.num_row_groups)
    fragment = _FORMAT.make_fragment(str(path), filesystem=LocalFileSystem())
    return [group.id for group in fragment.subset(wanted.plain).row_groups]


def _in_spark(table: LakeTable, predicate: str, session: GetSession) -> Places:
    assert table.version is not None
    spark = exact_session(session())
    with postgres_errors():
        frame = scan(spark, table.location, table.version)
        found = (
            frame.where(predicate)
            .selectExpr("_metadata.file_path AS path", "_metadata.row_index AS row")
            .toArrow()
        )
    uris = found.column("path").combine_chunks().dictionary_encode()
    numbers = uris.indices.to_numpy(zero_copy_only=False)
    rows = found.column("row").to_numpy()
    keys = {file.path: key for key, file in data_files(table.location, table.version).items()}
    paths = [unquote(uri.as_py()).partition(f"{table.location}/")[2] for uri in uris.dictionary]
    return places_of({keys[path]: np.sort(rows[numbers == n]) for n, path in enumerate(paths)})
