# SPDX-License-Identifier: Apache-2.0
"""Parquet files in a Delta table's folder, written from Arrow, with the statistics Delta prunes by.

A file written here belongs to nobody until a Delta commit names it; it is on disk (fsync) before
its name is returned, as the control database's COMMIT, which makes it count, is too.

Statistics come from the file's own footer, so they cost nothing.  Delta's forms: timestamps in
whole milliseconds (lower bound down, upper bound up), strings cut to 32 characters (upper bound
raised), nothing for what cannot be bounded so (floats, whose NaN Parquet leaves out; years beyond
9999; booleans, binary, arrays).  Spark-free: this runs inside Spark's tasks, too.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.change.last_change import LAST_CHANGE
from penstock.change.row_before import ROW_BEFORE

FILE_BYTES = 256 * 1024 * 1024
"""Arrow bytes after which a writer begins another file; about a fifth of that on disk."""

ROW_GROUP_ROWS = 256 * 1024
"""Rows that a reader skips at once by their bounds; Spark also divides a file by row groups."""

INDEXED_COLUMNS = 32
"""Delta keeps statistics of the first 32 columns; more would only lengthen the log."""

SAMPLE_ROWS = 4096
"""Rows that tell whether a column's values repeat."""

_STRING_PREFIX = 32
_LAST_CHARACTER = "\U0010ffff"

_HIDDEN = {*LAST_CHANGE, *ROW_BEFORE}
"""Columns that Delta's schema does not have."""


@dataclass(frozen=True)
class WrittenFile:
    """A Parquet file, not yet committed: ``path`` relative to the table's folder, Delta stats."""

    path: str
    size: int
    rows: int
    stats: str


class NewFile:
    """One Parquet file in the making; ``written`` describes it after the ``with`` block.

    ``schema`` is what is written, with the physical names of the table's columns, and who changed
    the rows (change/last_change.py), perhaps also what they were before (change/row_before.py);
    ``sorted_by`` names columns by which the rows ascend, ``dictionary`` those whose values repeat
    (all may, by default).  The file's name starts with ``prefix``; its row groups have
    ``group_rows`` rows.  The file is removed when the block raises.
    """

    def __init__(
        self,
        location: str,
        schema: pa.Schema,
        prefix: str = "",
        sorted_by: Sequence[str] = (),
        dictionary: Sequence[str] | bool = True,
        group_rows: int = ROW_GROUP_ROWS,
    ) -> None:
        self.written: WrittenFile | None = None
        self._schema = schema
        self._sorted_by = [pq.SortingColumn(schema.names.index(name)) for name in sorted_by]
        name = f"{prefix}-{uuid.uuid4()}" if prefix else str(uuid.uuid4())
        self._dictionary = dictionary if isinstance(dictionary, bool) else list(dictionary)
        self._path = Path(location) / f"{name}.parquet"
        self._group_rows = group_rows
        self._rows = 0

    def __enter__(self) -> Self:
        self._sink = self._path.open("wb")
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="zstd",
            compression_level=1,  # as quick as snappy, a third of its size on orders rows
            use_dictionary=self._dictionary,
            store_decimal_as_integer=True,
            sorting_columns=self._sorted_by or None,
        )
        return self

    def write(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Add rows; their columns are taken in the schema's order, whatever they are called."""
        table = pa.table(list(rows.columns), schema=self._schema)
        self._writer.write_table(table, row_group_size=self._group_rows)
        self._rows += table.num_rows

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._writer.close()
        if kind is not None:
            self._sink.close()
            self._path.unlink()
            return
        self._sink.flush()
        os.fsync(self._sink.fileno())
        self._sink.close()
        stats = delta_stats(pq.read_metadata(self._path), self._schema)
        size = self._path.stat().st_size
        self.written = WrittenFile(self._path.name, size, self._rows, stats)


def write_file(
    rows: pa.Table,
    location: str,
    prefix: str = "",
    sorted_by: Sequence[str] = (),
    group_rows: int = ROW_GROUP_ROWS,
) -> WrittenFile:
    """Write one file with these rows into a table's folder and put it on disk (see NewFile)."""
    with NewFile(location, rows.schema, prefix, sorted_by, repetitive(rows), group_rows) as file:
        file.write(rows)
    assert file.written is not None  # the block ended well
    return file.written


def repetitive(rows: pa.Table) -> list[str]:
    """The columns that repeat, by the look of the first rows: a dictionary makes those smaller.

    For the other columns of an orders table it costs a third of the time and of the space.
    """
    sample = rows.slice(0, SAMPLE_ROWS)
    return [
        field.name
        for number, field in enumerate(rows.schema)
        if field.name in _HIDDEN
        or (
            pa.types.is_string(field.type)
            and pc.count_distinct(sample.column(number)).as_py() < sample.num_rows // 2
        )
    ]


def delta_stats(footer: Any, schema: pa.Schema) -> str:
    """Delta's statistics of a Parquet file, as JSON, from its footer and Arrow schema."""
    lowest: dict[str, str] = {}
    highest: dict[str, str] = {}
    nulls: dict[str, str] = {}
    wanted = set(schema.names[:INDEXED_COLUMNS]).difference(_HIDDEN)
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    for index in range(footer.num_columns):
        name = footer.schema.column(index).path
        if name not in wanted or pa.types.is_nested(schema.field(name).type):
            continue
        columns = [group.column(index).statistics for group in groups]
        if not columns or not all(column and column.has_null_count for column in columns):
            continue
        nulls[name] = str(sum(column.null_count for column in columns))
        bounded = [column for column in columns if column.has_min_max]
        empty = sum(c.num_values == 0 for c in columns)
        if not bounded or len(bounded) + empty < len(columns):
            continue
        low, high = _ends(bounded)
        if low is not None and high is not None:
            lowest[name], highest[name] = low, high
    parts = [f'"numRecords":{footer.num_rows}']
    for title, texts in (("minValues", lowest), ("maxValues", highest), ("nullCount", nulls)):
        inner = ",".join(f"{json.dumps(name)}:{text}" for name, text in texts.items())
        parts.append(f'"{title}":{{{inner}}}')
    return "{" + ",".join(parts) + "}"


def _ends(bounded: Sequence[Any]) -> tuple[str | None, str | None]:
    """The bounds of a column's chunks, as JSON."""
    try:
        lowest, highest = min(each.min for each in bounded), max(each.max for each in bounded)
    except (OverflowError, ValueError):  # a date or moment that Python's types cannot hold
        return None, None
    return _lower_bound(lowest), _upper_bound(highest)


def _lower_bound(value: Any) -> str | None:
    if isinstance(value, str):
        return json.dumps(value[:_STRING_PREFIX])
    return _exact(value, round_up=False)


def _upper_bound(value: Any) -> str | None:
    if not isinstance(value, str):
        return _exact(value, round_up=True)
    if len(value) <= _STRING_PREFIX:
        return json.dumps(value)
    if value[_STRING_PREFIX] == _LAST_CHARACTER:
        return None
    return json.dumps(value[:_STRING_PREFIX] + _LAST_CHARACTER)


def _exact(value: Any, round_up: bool) -> str | None:
    """JSON of a bound, in Delta's form; None for a type that gets no bounds."""
    if isinstance(value, datetime):
        return _timestamp(value, round_up)
    if isinstance(value, date):
        return f'"{value:%Y-%m-%d}"' if value.year >= 1000 else None
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None


def _timestamp(value: datetime, round_up: bool) -> str | None:
    if not 1000 <= value.year < 9999:
        return None
    whole = value.replace(microsecond=value.microsecond // 1000 * 1000)
    if round_up and whole != value:
        whole += timedelta(milliseconds=1)
    zone = "Z" if value.tzinfo is not None else ""
    if zone:
        whole = whole.astimezone(UTC).replace(tzinfo=None)
    return f'"{whole.isoformat(timespec="milliseconds")}{zone}"'
