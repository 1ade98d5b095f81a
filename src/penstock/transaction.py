# SPDX-License-Identifier: Apache-2.0
"""DataFrames written into the lake by a Spark program, as one commit of the lake.

    with lake.transaction() as tx:
        tx.append("public.orders", new)
        tx.merge("public.stock", counted)
        tx.delete("public.baskets", ordered)
        tx.overwrite("public.totals", totals)
    tx.lsn

A transaction is a client's: a connection to the front door with a transaction on it.  Frames are
written by Spark and come as COPY FROM STDIN (frame.py), so whatever PostgreSQL and the lake promise
of a statement they promise here: keys, NOT NULL, CHECK, types, defaults, identity and generated
columns, partitions, the role's rights, what a publication asks for.  And when the program dies, its
connection ends, and with it the transaction.

    append      COPY table
    overwrite   TRUNCATE table; COPY table
    merge       COPY into a temporary table; MERGE INTO table USING it
    delete      COPY of the keys into a temporary table; DELETE FROM table USING it

As for COPY, values that a frame has for an identity column count, also where it is GENERATED
ALWAYS, and a generated column may not be among the frame's.  A table stays locked for other writers
from the first statement on it to the end; TRUNCATE keeps queries out, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
from pyspark.sql import DataFrame

from penstock.change.relation import LakeTable
from penstock.control.catalog import lake_table_by_name
from penstock.control.connect import ControlConnection
from penstock.control.ledger import commit_of
from penstock.errors import (
    ConcurrentWriteError,
    ConnectionLostError,
    InvalidParameterError,
    PenstockError,
    WrongStateError,
)
from penstock.frame import FrameColumn, frame_columns, staged_lines
from penstock.lsn import format_lsn
from penstock.names import quote_pg, quote_pg_qualified, quote_spark

_FRAME = "pg_temp.penstock_frame"


class Transaction:
    """One transaction on the lake; for one thread.

    Methods return how many rows they have written, and take the name of a table as in SQL.  A frame
    of ``lake.table`` shows what is committed, not what the transaction has done before.
    Errors of the statements are psycopg's, with PostgreSQL's SQLSTATE and fields (``sqlstate``,
    ``diag``); what is seen before them is a PenstockError.  After an error of a statement the
    transaction has failed, as in PostgreSQL, and can only be rolled back.
    """

    lsn: str | None = None
    """The LSN of its commit, once it is there; None when it has changed nothing."""

    def __init__(self, conn: ControlConnection, lake_root: Path, scratch: Path) -> None:
        """``conn`` has begun the transaction; Spark and this process share ``scratch``.

        ``changed``: a statement has written rows, or removed all.
        """
        self._conn = conn
        self._root = lake_root
        self._scratch = scratch
        self.changed = False

    def append(self, table: str, frame: DataFrame) -> int:
        """Add the frame's rows; columns that it has not get their default.

        23505 for a key that another row has, in the frame or in the table.
        """
        target = self._target(table)
        columns = self._columns(frame, target)
        with staged_lines(frame, columns, self._scratch) as lines:
            rows = self._copy(_quoted(target), columns, lines)
        return self._written(target, rows)

    def overwrite(self, table: str, frame: DataFrame) -> int:
        """Make the frame's rows the table's only ones, by TRUNCATE and an append.

        The frame may be made of the table itself.
        """
        target = self._target(table)
        columns = self._columns(frame, target)
        with staged_lines(frame, columns, self._scratch) as lines:
            self._execute(f"TRUNCATE {_quoted(target)}")
            self.changed = True
            rows = self._copy(_quoted(target), columns, lines)
        return self._written(target, rows)

    def merge(self, table: str, frame: DataFrame) -> int:
        """Update the rows that have the key of one of the frame's, and insert the others of it.

        Of rows that are there, columns that the frame has not stay as they are.  The key is that of
        the replica identity's index, else the primary key.
        WrongStateError (55000) for a table without either; 21000 for a row that is there and has
        the key of two rows of the frame, 23505 for one that is not.
        """
        target = self._target(table)
        columns = self._columns(frame, target)
        names = [column.target.name for column in columns]
        key = _key(target, names)
        sets = ", ".join(
            f"{quote_pg(name)} = frame.{quote_pg(name)}" for name in names if name not in key
        )
        values = ", ".join(f"frame.{quote_pg(name)}" for name in names)
        statement = (
            f"MERGE INTO {_quoted(target)} AS target USING {_FRAME} AS frame ON {_same(key)}"
            f" WHEN MATCHED THEN {f'UPDATE SET {sets}' if sets else 'DO NOTHING'}"
            f" WHEN NOT MATCHED THEN INSERT ({_list(names)}) OVERRIDING SYSTEM VALUE"
            f" VALUES ({values})"
        )
        return self._with_frame(target, frame, columns, statement)

    def delete(self, table: str, rows: DataFrame | str) -> int:
        """Delete the rows that have a key that the frame has, or that meet a condition in SQL.

        Other columns of the frame do not count.
        WrongStateError (55000) for keys of a table without one.
        """
        target = self._target(table)
        if isinstance(rows, str):
            return self._written(
                target, self._execute(f"DELETE FROM {_quoted(target)} WHERE {rows}")
            )
        key = _key(target, rows.columns)
        keys = rows.select(*(rows[quote_spark(name)] for name in key))
        statement = f"DELETE FROM {_quoted(target)} AS target USING {_FRAME} AS frame"
        return self._with_frame(
            target, keys, self._columns(keys, target), f"{statement} WHERE {_same(key)}"
        )

    def _target(self, name: str) -> LakeTable:
        return table_now(self._conn, *table_name(self._conn, name), self._root)

    def _columns(self, frame: DataFrame, table: LakeTable) -> tuple[FrameColumn, ...]:
        return frame_columns(frame, table.name, table.columns)

    def _with_frame(
        self, target: LakeTable, frame: DataFrame, columns: Sequence[FrameColumn], statement: str
    ) -> int:
        """Run a statement that reads the frame as _FRAME."""
        with staged_lines(frame, columns, self._scratch) as lines:
            self._execute(f"CREATE TEMPORARY TABLE {_FRAME} ({self._definitions(target, columns)})")
            self._copy(_FRAME, columns, lines)
        rows = self._execute(statement)
        self._execute(f"DROP TABLE {_FRAME}")
        return self._written(target, rows)

    def _definitions(self, target: LakeTable, columns: Sequence[FrameColumn]) -> str:
        kinds: dict[int, str] = dict(
            self._conn.execute(
                "SELECT attnum, pg_catalog.format_type(atttypid, atttypmod)"
                " FROM pg_catalog.pg_attribute WHERE attrelid = %s::oid",
                [target.relid],
            ).fetchall()
        )
        return ", ".join(
            f"{quote_pg(column.target.name)} {kinds[column.target.attnum]}" for column in columns
        )

    def _copy(self, into: str, columns: Sequence[FrameColumn], lines: Iterator[bytes]) -> int:
        names = _list([column.target.name for column in columns])
        with self._conn.cursor() as cursor:
            with cursor.copy(f"COPY {into} ({names}) FROM STDIN".encode()) as copy:
                for each in lines:
                    copy.write(each)
            return cursor.rowcount

    def _execute(self, statement: str) -> int:
        # Without a result in binary psycopg would send it so that it could be several statements.
        with self._conn.cursor(binary=True) as cursor:
            return cursor.execute(statement.encode()).rowcount

    def _written(self, used: LakeTable, rows: int) -> int:
        """The table is locked now; what was told of it before must have been so."""
        now = self._target(quote_pg_qualified(used.schema, used.name))
        if (now.relid, now.columns, now.key) != (used.relid, used.columns, used.key):
            raise ConcurrentWriteError(
                f'table "{used.schema}.{used.name}" was changed while a frame was computed',
                hint="Try the transaction again.",
            )
        self.changed |= rows > 0
        return rows


@contextmanager
def transaction_on(
    connect: Callable[[], ControlConnection], lake_root: Path, scratch: Path
) -> Iterator[Transaction]:
    """A transaction on a connection of its own: committed at the end, rolled back by an exception.

    ConnectionLostError (08007) when the connection is lost at the COMMIT itself: it may be there.
    """
    with connect() as conn:
        made = Transaction(conn, lake_root, scratch)
        xid: str | None = None
        try:
            with conn.transaction():
                yield made
                ((xid,),) = conn.execute(
                    "SELECT pg_catalog.pg_current_xact_id_if_assigned()::text"
                ).fetchall()
        except psycopg.OperationalError as error:
            if xid is None or not conn.closed:
                raise
            raise ConnectionLostError(
                "the connection was lost at the commit",
                detail=str(error).strip(),
                hint=f"SELECT pg_xact_status('{xid}') says whether it is there.",
                sqlstate="08007",
            ) from error
        if xid is not None and made.changed:
            lsn = commit_of(conn, xid)
            made.lsn = None if lsn is None else format_lsn(lsn)


def table_name(conn: ControlConnection, name: str) -> tuple[str, str]:
    """Schema and name of what SQL calls ``name``; without a schema it is ``public``."""
    row = conn.execute("SELECT pg_catalog.parse_ident(%s)", [name]).fetchone()
    assert row is not None
    *schema, table = row[0]
    if len(schema) > 1:
        raise InvalidParameterError(f'"{name}" is not the name of a table')
    return (schema[0] if schema else "public"), table


def table_now(conn: ControlConnection, schema: str, name: str, lake_root: Path) -> LakeTable:
    """A table as it is now; WrongStateError (42P01) when there is none."""
    table = lake_table_by_name(conn, schema, name, lake_root)
    if table is None:
        raise WrongStateError(f'relation "{schema}.{name}" does not exist', sqlstate="42P01")
    return table


def _key(table: LakeTable, there: Sequence[str]) -> tuple[str, ...]:
    """The table's key, all columns of which a frame must have."""
    if not table.key:
        raise WrongStateError(
            f'table "{table.schema}.{table.name}" has no key',
            detail="It has neither a primary key nor an index as its replica identity.",
        )
    missing = [name for name in table.key if name not in there]
    if missing:
        raise PenstockError(
            f'column "{missing[0]}" of the key of table "{table.schema}.{table.name}" is not in the'
            " frame",
            sqlstate="42703",
        )
    return table.key


def _quoted(table: LakeTable) -> str:
    return quote_pg_qualified(table.schema, table.name)


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(quote_pg, names))


def _same(key: Sequence[str]) -> str:
    return " AND ".join(f"target.{quote_pg(name)} = frame.{quote_pg(name)}" for name in key)
