# SPDX-License-Identifier: Apache-2.0
"""Initial copies for tests: a lake table like the publisher's, the copy, and its rows back as SQL.

The oracle is the publisher: what was copied is inserted into a table of the same definition
there, and ``EXCEPT ALL`` decides.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg import sql

from penstock.change.relation import LakeColumn, LakeTable
from penstock.client.connection import publisher_conninfo
from penstock.client.copy import Leaf, TableCopy, copy_packs
from penstock.client.published import published_table
from penstock.client.snapshot import Snapshot, export_snapshot
from penstock.lake.copy_range import RangeCopied, copy_ranges
from penstock.lake.copy_source import Ahead, Source, reading_once
from tests.support.compare import assert_equal
from tests.support.fix_servers import Database


def lake_table_like(
    connection: psycopg.Connection[Any], schema: str, name: str, location: str
) -> LakeTable:
    """The lake table that a user would make from the publisher's definition."""
    rows = connection.execute(
        "SELECT attnum, attname, atttypid::int8, atttypmod, attnotnull FROM pg_attribute"
        " WHERE attrelid = format('%%I.%%I', %s::text, %s::text)::regclass"
        " AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        [schema, name],
    ).fetchall()
    key = connection.execute(
        "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid"
        " AND a.attnum = ANY (i.indkey) WHERE i.indisprimary"
        " AND i.indrelid = format('%%I.%%I', %s::text, %s::text)::regclass",
        [schema, name],
    ).fetchall()
    columns = tuple(LakeColumn(*row) for row in rows)
    return LakeTable(
        relid=1,
        schema=schema,
        name=name,
        kind="r",
        identity="d",
        columns=columns,
        key=tuple(column for (column,) in key),
        location=location,
        version=None,
        sole_writer=None,
    )


def one_leaf(lake: LakeTable, constraint: str | None = None) -> Leaf:
    """The lake table as its own only leaf, without column mapping."""
    return Leaf(lake, constraint, {column.name: column.name for column in lake.columns})


@dataclass(frozen=True)
class Copied:
    """The rows of one copied table, and what the task reported."""

    rows: pa.Table
    ranges: list[RangeCopied]


class Copying:
    """An exported snapshot of a database, from which tables are copied, in this process."""

    def __init__(self, database: Database, snapshot: Snapshot, folder: Path) -> None:
        self.snapshot = snapshot
        self._database = database
        self._folder = folder

    def table_copy(
        self, name: str, publications: Sequence[str], schema: str = "public", **changes: Any
    ) -> TableCopy:
        """The copy of a table into a lake table like it; ``changes`` alter the lake table."""
        with self._database.connect() as connection:
            location = str(self._folder / str(len(list(self._folder.iterdir()))))
            Path(location).mkdir()
            lake = replace(lake_table_like(connection, schema, name, location), **changes)
        published = published_table(self.snapshot.connection, publications, schema, name)
        return TableCopy(published, lake, (one_leaf(lake),))

    def run(self, table: TableCopy, readers: int = 2) -> Copied:
        """Copy one table and read its files back."""
        source = Source(
            publisher_conninfo(self._database.conninfo, replication=False), self.snapshot.name
        )
        packs = copy_packs([table], readers, spread_bytes=0)
        with closing(Ahead(source.conninfo)) as ahead, reading_once(source, ahead) as cursor:
            ranges = [done for pack in packs for done in copy_ranges(cursor, pack, "copy")]
        locations = {leaf.table.relid: leaf.table.location for leaf in table.leaves}
        parts = [
            pq.read_table(Path(locations[relid], file.path))
            for done in ranges
            for relid, file in done.files
        ]
        names = [column.name for column in table.published.relation.columns]
        rows = pa.concat_tables(parts) if parts else pa.table({name: [] for name in names})
        return Copied(rows, ranges)

    def assert_copied(self, table: TableCopy, query: str) -> int:
        """Copy, and fail unless the copy has exactly the rows of a query on the publisher."""
        copied = self.run(table)
        lake = table.lake
        with self._database.connect() as connection:
            connection.execute("DROP TABLE IF EXISTS copied")
            like = sql.Identifier(lake.schema, lake.name)
            connection.execute(sql.SQL("CREATE TABLE copied (LIKE {})").format(like))
            insert_rows(connection, "copied", copied.rows)
        names = ", ".join(
            sql.Identifier(column.name).as_string() for column in table.published.relation.columns
        )
        psql = self._database.psql
        return assert_equal(psql, query, psql, f"SELECT {names} FROM copied")


def copying(database: Database, folder: Path) -> _Exported:
    """``with copying(database, tmp_path) as copy:`` a Copying on a new snapshot."""
    return _Exported(database, folder)


class _Exported:
    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self._folder = folder
        self._export = export_snapshot(
            database.conninfo, stopping=threading.Event(), application_name="copy test"
        )

    def __enter__(self) -> Copying:
        return Copying(self._database, self._export.__enter__(), self._folder)

    def __exit__(self, *error: Any) -> None:
        self._export.__exit__(*error)


def insert_rows(connection: psycopg.Connection[Any], table: str, rows: pa.Table) -> None:
    """Insert Arrow rows into a table by column name."""
    if not rows.num_rows:
        return
    names = sql.SQL(", ").join(sql.Identifier(name) for name in rows.column_names)
    marks = sql.SQL(", ").join(sql.Placeholder() for _ in rows.column_names)
    insert = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(sql.Identifier(table), names, marks)
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(insert, [tuple(row.values()) for row in rows.to_pylist()])
