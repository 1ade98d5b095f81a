# SPDX-License-Identifier: Apache-2.0
"""How much of a table a publication publishes: rows that its filter lets through, and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from penstock.lake.log import DataFile, data_files
from penstock.lake.query import filter_session, postgres_errors
from penstock.lake.scan import scan
from penstock.lake.session import GetSession
from penstock.names import quote_spark, quote_spark_literal
from penstock.publish.filter import PublishedWhere, compile_filter
from penstock.sql.translate.facts import Facts


@dataclass(frozen=True)
class Part:
    """A Delta table that holds rows of a published table, at a version."""

    location: str
    version: int


def published_size(
    session: GetSession, parts: Sequence[Part], where: PublishedWhere | None, facts: Facts
) -> tuple[int, int]:
    """Rows that a filter lets through, or all; and bytes of the data files that they are in.

    Spark counts where there is a filter, else the log knows.  PenstockError with PostgreSQL's
    SQLSTATE when the filter fails on a row.
    """
    rows = size = 0
    for part in parts:
        files = data_files(part.location, part.version).values()
        size += sum(file.add["size"] for file in files)
        if where is None:
            rows += sum(_rows(part.location, file) for file in files)
        elif files:
            rows += _matching(session, part, where, facts)
    return rows, size


def _rows(location: str, file: DataFile) -> int:
    stored = file.rows or pq.read_metadata(Path(location) / file.path).num_rows
    return stored - (file.vector["cardinality"] if file.vector is not None else 0)


def _matching(session: GetSession, part: Part, where: PublishedWhere, facts: Facts) -> int:
    compiled = compile_filter(where, facts)
    fields = (
        f"{quote_spark_literal(column.name)}, {quote_spark(column.name)}"
        for column in where.columns
        if column.name in compiled.columns
    )
    with postgres_errors():
        frame = scan(filter_session(session()), part.location, part.version)
        rows = frame.selectExpr(f"named_struct({', '.join(fields)}) AS new")
        return rows.where(compiled.column("new")).count()
