# SPDX-License-Identifier: Apache-2.0
"""One query, two engines: PostgreSQL on its rows, and Spark on a lake with the same rows.

A real PostgreSQL database (collation C) has the tables with their rows; it also plays the control
database, for analysis reads no rows.  Each table's rows are written to a Delta table as the lake
would hold them.  Answers are compared as the client would see them: field by field, in text.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import psycopg
import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from penstock.change.types import arrow_type
from penstock.control.connect import ControlConnection
from penstock.control.migrate import migrations
from penstock.errors import PenstockError
from penstock.frontdoor.actions import Parameter, RunOnLake
from penstock.frontdoor.reading.query import SparkQueries
from penstock.lake.tables import PROPERTIES
from penstock.names import quote_pg
from penstock.sql.translate.values import TEXTS
from penstock.wire.rows import encode_rows

AT_ONCE = 3
STEPS = (
    "plans", "analysed_query", "writes", "scans", "query_schema", "plans_without_checks",
)  # fmt: skip
"""Of the node's schema: what queries and writes need."""
"""Queries that are compared at the same time: planning small ones keeps one core busy."""

Rows = list[list[bytes | None]]


class PsycopgBackend:
    """actions.Backend over a psycopg connection: text in, text out, in its current transaction."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn
        self.parameters = {
            name: conn.info.parameter_status(name) or ""
            for name in ("TimeZone", "client_encoding", "server_version")
        }
        self.transaction_status: Literal["I", "T", "E"] = "I"

    async def query(
        self, sql: str, parameters: Sequence[str | None] = ()
    ) -> list[tuple[str | None, ...]]:
        """Run one statement."""
        status = self._conn.pgconn.transaction_status
        self.transaction_status = "I" if status == 0 else "E" if status == 3 else "T"
        return [
            tuple(None if value is None else value.decode() for value in row)
            for row in answer(
                self._conn, sql, [None if p is None else p.encode() for p in parameters]
            )
        ]


class PostgresError(Exception):
    """PostgreSQL refused a statement."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(f"{sqlstate} {message}")
        self.sqlstate = sqlstate


def answer(
    conn: psycopg.Connection[Any],
    sql: str,
    values: Sequence[bytes | None] = (),
    oids: Sequence[int] = (),
) -> Rows:
    """PostgreSQL's answer as text fields; PenstockError's twin PostgresError when it fails."""
    result = conn.pgconn.exec_params(sql.encode(), list(values), list(oids) or None)
    state = result.error_field(67)  # PG_DIAG_SQLSTATE
    if state is not None:
        message = (result.error_field(77) or b"").decode()
        raise PostgresError(state.decode(), message)
    return [
        [result.get_value(row, column) for column in range(result.nfields)]
        for row in range(result.ntuples)
    ]


def data_rows(messages: bytes) -> Rows:
    """The fields of DataRow messages."""
    rows: Rows = []
    at = 0
    while at < len(messages):
        size, count = struct.unpack_from("!ih", messages, at + 1)
        place, row = at + 7, []
        for _ in range(count):
            (length,) = struct.unpack_from("!i", messages, place)
            place += 4
            row.append(None if length < 0 else messages[place : place + length])
            place += max(length, 0)
        rows.append(row)
        at += 1 + size
    return rows


def lake_rows(conn: psycopg.Connection[Any], name: str) -> pa.Table:
    """A table's rows as the lake holds them."""
    columns = conn.execute(
        "SELECT attname, atttypid::int8, atttypmod FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (name,),
    ).fetchall()
    fields = [pa.field(column, arrow_type(oid, typmod)) for column, oid, typmod in columns]
    texts = ", ".join(
        quote_pg(column) + ("::text" if pa.types.is_string(field.type) and oid not in TEXTS else "")
        for (column, oid, _), field in zip(columns, fields, strict=True)
    )
    rows = conn.execute(f"SELECT {texts} FROM {name}".encode()).fetchall()
    arrays = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(fields)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


class Oracle:
    """A database and a lake with the same tables."""

    def __init__(self, conn: psycopg.Connection[Any], spark: SparkSession, lake: Path) -> None:
        self.conn = conn
        self.backend = PsycopgBackend(conn)
        self.lake = lake
        self.spark = spark
        self._jobs = 0

        def connect() -> ControlConnection:
            return ControlConnection.connect(conn.info.dsn, autocommit=True)

        self.queries = SparkQueries(lambda: spark, lake, connect)

    def prepare(self) -> None:
        """Make what the node's schema has for queries."""
        self.conn.execute("CREATE SCHEMA penstock")
        self.conn.execute(
            "CREATE TABLE penstock.table_version"
            " (relid oid PRIMARY KEY, location text, version bigint, sole_writer text)"
        )
        for step in migrations():
            if step.name.partition("_")[2] in STEPS:
                self.conn.execute(step.text.encode())

    def compare_all(self, queries: Sequence[str]) -> dict[str, str]:
        """What ``compare`` says about each query that differs; several at once."""

        def share(part: Sequence[str]) -> dict[str, str | None]:
            with self.again() as conn:
                mine = Oracle(conn, self.spark, self.lake)
                return {query: mine.compare(query) for query in part}

        with ThreadPoolExecutor(AT_ONCE) as pool:
            shares = pool.map(share, [queries[i::AT_ONCE] for i in range(AT_ONCE)])
        return {query: how for part in shares for query, how in part.items() if how is not None}

    def again(self) -> psycopg.Connection[Any]:
        """Another connection to the same database."""
        return psycopg.connect(self.conn.info.dsn, autocommit=True)

    def load(self, name: str) -> int:
        """Write a table's rows to a Delta table; returns the table's OID."""
        relid = int((answer(self.conn, f"SELECT '{name}'::regclass::oid")[0][0] or b"").decode())
        table = lake_rows(self.conn, name)
        version = None
        if table.num_rows:
            # Without bounds: deltalake writes those of decimals as binary floats.
            settings = {"delta.dataSkippingNumIndexedCols": "0"} | PROPERTIES
            location = str(self.lake / f"d{relid}")
            write_deltalake(location, table, mode="append", configuration=settings)
            version = 0
        self.conn.execute(
            "INSERT INTO penstock.table_version VALUES (%s, %s, %s)", (relid, f"d{relid}", version)
        )
        return relid

    def translated(
        self, sql: str, values: Sequence[bytes | None] = (), oids: Sequence[int] = ()
    ) -> Rows:
        """Spark's answer as text fields; PenstockError when it is refused or fails."""
        self._jobs += 1
        given = [Parameter(o, 0, v) for o, v in zip(oids, values, strict=True)]
        result = asyncio.run(
            self.queries.run(
                self.backend, RunOnLake(sql, ()), given, f"oracle-{id(self)}-{self._jobs}"
            )
        )
        formats = [0] * len(result.type_oids)
        return data_rows(encode_rows(result.rows, result.type_oids, formats))

    def compare(
        self, sql: str, values: Sequence[bytes | None] = (), oids: Sequence[int] = ()
    ) -> str | None:
        """None when both agree, also on an error and its text; else what differs, or the refusal.

        A refusal is told as text that starts with "refused".
        """
        try:
            expected: Rows | str = answer(self.conn, sql, values, oids)
        except PostgresError as error:
            expected = str(error)
            if not values and self._is_found_by_planning(sql):
                return None
        try:
            found: Rows | str = self.translated(sql, values, oids)
        except PenstockError as error:
            if error.sqlstate == "0A000":
                return f"refused: {error.message} {error.detail or ''}"
            found = f"{error.sqlstate} {error.message}"
        except PostgresError as error:
            found = str(error)
        return None if _same(sql, expected, found) else f"PostgreSQL {expected}\nSpark {found}"

    def _is_found_by_planning(self, sql: str) -> bool:
        """PostgreSQL fails while it plans (constants): the router then never runs the query."""
        try:
            answer(self.conn, f"EXPLAIN {sql}")
        except PostgresError:
            return True
        return False


def _same(sql: str, expected: Rows | str, found: Rows | str) -> bool:
    if isinstance(expected, str) or isinstance(found, str):
        return expected == found
    if "order by" in sql.rpartition(")")[2].lower():
        return expected == found
    return Counter(map(tuple, expected)) == Counter(map(tuple, found))
