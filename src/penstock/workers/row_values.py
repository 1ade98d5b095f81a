# SPDX-License-Identifier: Apache-2.0
"""Values of expressions for many rows at once, computed by the control database.

In:   expressions of PostgreSQL's (pg_get_expr), and rows that they refer to, or how many rows.
Out:  an Arrow array for each expression, with a value for each row.

Sequences live in the control database, and only it has users' types and functions.  A chunk of rows
is one statement, both ways as arrays of texts in their types' input and output form, which Arrow
and compiled code make and read; no Python object per row.

The expressions are a user's, and apply computes them with the rights of the role that it acts as
(SwitchToUntrustedUser in usercontext.c).  SET ROLE would not do: a function can take it back, and
what it leaves in a session (settings, prepared statements, temporary objects, deferred triggers)
would be met by the node's own statements, as superuser.  So they run

    in a function of that role with SECURITY DEFINER, where the role cannot be changed,
    in a session of their own, where nothing is ever looked up by a name afterwards,
    in a transaction that is always rolled back: of what a function has done, nothing stays.

Sequences do not go back with it.  That they moved is in the WAL before the commit of the rows, so
after a crash no value comes twice; what was not committed is a gap, as in PostgreSQL.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa

from penstock.apply.values import from_text
from penstock.change import types
from penstock.change.relation import LakeColumn, LakeTable
from penstock.client.copy import text_form
from penstock.control.address import ControlAddress
from penstock.control.connect import ControlConnection, connect
from penstock.errors import ComputedValueError
from penstock.names import quote_pg
from penstock.pgoutput import binary_columns
from penstock.pgoutput.columns import Cells
from penstock.pgoutput.forms import BUILT_IN
from penstock.sql.nodes import walk
from penstock.wire.given_rows import given_rows, lake_rows_literal
from penstock.workers.sequences import Restarted

CHUNK_ROWS = 32 * 1024
"""Rows of one statement: it costs some 3 ms before its first row."""

CHUNK_BYTES = 16 * 1024 * 1024
"""Bytes of rows, as Arrow has them, that one statement is given at most."""

LOCK_TIMEOUT = "10s"
"""A function may wait for a table that the batch itself has locked; nobody would see that."""

TEXT_ARRAY = 1009

_SETTINGS = f"""
SET lock_timeout = '{LOCK_TIMEOUT}';
SET IntervalStyle = 'postgres'; SET bytea_output = 'hex'; SET extra_float_digits = 1;
SET array_nulls = on;
CREATE TEMPORARY TABLE penstock_values (); DROP TABLE pg_temp.penstock_values"""
"""The table makes the schema pg_temp, which else each transaction would make anew."""

_BEGIN = """
BEGIN;
CREATE FUNCTION pg_temp.penstock_values(statement pg_catalog.text, given pg_catalog.text[])
    RETURNS SETOF pg_catalog.record LANGUAGE plpgsql SECURITY DEFINER
    AS 'BEGIN RETURN QUERY EXECUTE statement USING given; END'"""
_OWNER = """;
ALTER FUNCTION pg_temp.penstock_values(pg_catalog.text, pg_catalog.text[]) OWNER TO {}"""
_VALUES = "SELECT * FROM pg_temp.penstock_values(%s, %s::pg_catalog.text[]) AS v ({})"

_TYPES = """
SELECT attnum, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = %s::oid AND attnum = ANY (%s::int2[])"""

_LIMITED = {types.VARCHAR: "varchar", types.BPCHAR: "bpchar", 1560: '"bit"', 1562: "varbit"}
_PLAIN_TEXTS = frozenset({types.TEXT, types.VARCHAR, types.NAME})


@dataclass(frozen=True)
class Expression:
    """A column and the SQL expression of its values."""

    column: LakeColumn
    sql: str


def assigned(expression: str, column: LakeColumn, kind: str) -> str:
    """An expression as the column's type, which is ``kind`` as SQL.

    pg_get_expr leaves out the casts of an assignment.  An explicit one cuts off what is too long,
    where that of an assignment is an error (the last argument of these functions).
    """
    limited = _LIMITED.get(column.type_oid)
    if limited is None or column.typmod < 0:
        return f"({expression})::{kind}"
    return f"pg_catalog.{limited}(({expression})::pg_catalog.{limited}, {column.typmod:d}, false)"


def read_by(
    conn: ControlConnection, table: LakeTable, trees: Sequence[Any]
) -> list[tuple[LakeColumn, str]]:
    """The table's columns that analysed expressions refer to, each with its type as SQL."""
    numbers = {
        node["varattno"]
        for node in walk(trees)
        if node.tag == "VAR" and node["varattno"] > 0  # not tableoid
    }
    kinds: dict[int, str] = dict(
        conn.execute(_TYPES.encode(), [table.relid, list(numbers)]).fetchall()
    )
    return [(each, kinds[each.attnum]) for each in table.columns if each.attnum in numbers]


class RowValues:
    """The session that computes; it is made when it is first needed.  Threads take turns."""

    def __init__(self, control: ControlAddress) -> None:
        self._control = control
        self._connection: ControlConnection | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            self._connection.close()

    def once(self, expressions: Sequence[Expression], role: str) -> list[str | None]:
        """The value of each expression, computed once by ``role``, in its type's output form.

        ComputedValueError with PostgreSQL's error.
        """
        statement = _statement(expressions, "pg_catalog.generate_series(1, 1)")
        return [texts[0].as_py() for texts in self._run(statement, "{}", expressions, role)]

    def repeated(
        self,
        expressions: Sequence[Expression],
        rows: int,
        role: str | None,
        restarted: Restarted | None = None,
    ) -> list[pa.Array]:
        """Values of expressions that refer to no column, computed anew for each row.

        ``role`` computes them; None is the node's superuser, for what is not a user's.  Sequences
        of ``restarted`` are moved there alone.  ComputedValueError with PostgreSQL's error.
        """
        pieces = [
            self._run(
                _statement(expressions, f"pg_catalog.generate_series(1, {count})"),
                "{}",
                expressions,
                role,
                restarted,
            )
            for count in _counts(rows, CHUNK_ROWS)
        ]
        return _together(pieces, expressions)

    def over(
        self,
        expressions: Sequence[Expression],
        relid: int,
        columns: Sequence[tuple[LakeColumn, str]],
        rows: pa.Table,
        role: str,
    ) -> list[pa.Array]:
        """Values of expressions over rows of the relation ``relid``.

        ``columns`` are those that the expressions refer to, each with its type as SQL; ``rows``
        has them.  ComputedValueError with PostgreSQL's error.
        """
        referred = [column for column, _ in columns]
        rows = rows.select([column.name for column in referred])
        pieces, begin = [], 0
        step = CHUNK_ROWS if rows.nbytes == 0 else CHUNK_BYTES * rows.num_rows // rows.nbytes
        for count in _counts(rows.num_rows, max(1, min(step, CHUNK_ROWS))):
            chunk = rows.slice(begin, count)
            begin += count
            statement = _statement(expressions, _source(relid, columns, count))
            given = lake_rows_literal(referred, chunk.columns)
            pieces.append(self._run(statement, given, expressions, role))
        return _together(pieces, expressions)

    def _run(
        self,
        statement: str,
        given: str,
        expressions: Sequence[Expression],
        role: str | None,
        restarted: Restarted | None = None,
    ) -> list[pa.Array]:
        """What a statement gives for each expression, as texts."""
        owner = "" if role is None else _OWNER.format(quote_pg(role))
        again = "" if restarted is None else restarted.statements
        returned = ", ".join(f"v{n} pg_catalog.text[]" for n in range(len(expressions)))
        with self._lock:
            conn = self._session()
            try:
                conn.execute(f"{_BEGIN}{owner}{again}".encode())
                with conn.cursor(binary=True) as cursor:
                    cursor.execute(_VALUES.format(returned).encode(), [statement, given])
                    assert cursor.pgresult is not None
                    values = [cursor.pgresult.get_value(0, n) for n in range(len(expressions))]
                if restarted is not None and restarted.sequences:
                    restarted.moved(conn.execute(restarted.query.encode()).fetchall()[0])
            except psycopg.OperationalError as error:
                if conn.closed:
                    raise
                raise _error(error) from error
            except psycopg.Error as error:
                raise _error(error) from error
            finally:
                with suppress(psycopg.OperationalError):  # what is wrong was said already
                    conn.execute("ROLLBACK")
        return [_texts(value or b"") for value in values]

    def _session(self) -> ControlConnection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._control, application_name="penstock values")
            self._connection.prepare_threshold = None
            self._connection.execute(_SETTINGS.encode())
        return self._connection


def _statement(expressions: Sequence[Expression], source: str) -> str:
    """A query of one row: an array of texts for each expression.

    OFFSET keeps what is volatile from being computed twice where its text is made.
    """
    inner = ", ".join(f"({each.sql}) AS v{n}" for n, each in enumerate(expressions))
    outer = ", ".join(
        f"pg_catalog.array_agg({_text(each.column.type_oid, f'v{n}')})"
        for n, each in enumerate(expressions)
    )
    return f"SELECT {outer} FROM (SELECT {inner} FROM {source} OFFSET 0) AS computed"


def _text(type_oid: int, name: str) -> str:
    if type_oid in _PLAIN_TEXTS:
        return f"{name}::pg_catalog.text"
    if type_oid == types.BPCHAR:  # a cast would lose the blanks at its end
        return f"CASE WHEN {name} IS NOT NULL THEN pg_catalog.format('%s', {name}) END"
    return text_form(type_oid, name)


def _source(relid: int, columns: Sequence[tuple[LakeColumn, str]], rows: int) -> str:
    """The rows in $1, one array literal for each column, as a relation of these columns."""
    table = f"{relid:d}::pg_catalog.oid AS tableoid"
    if not columns:
        return f"(SELECT {table} FROM pg_catalog.generate_series(1, {rows})) AS given"
    values = ", ".join(
        f"x{n}::{kind} AS {quote_pg(column.name)}" for n, (column, kind) in enumerate(columns, 1)
    )
    return f"(SELECT {table}, {values} FROM {given_rows(len(columns))}) AS given"


def _texts(value: bytes) -> pa.Array:
    """An array of texts in its binary form, as an array of strings."""
    cell = Cells(
        np.frombuffer(value, np.uint8), np.zeros(1, np.int32), np.array([len(value)], np.int32)
    )
    array = binary_columns.to_array(cell, BUILT_IN[TEXT_ARRAY], TEXT_ARRAY, -1, False)
    return array.flatten()


def _counts(rows: int, most: int) -> list[int]:
    """Sizes of chunks."""
    return [min(most, rows - begin) for begin in range(0, rows, most)]


def _together(pieces: list[list[pa.Array]], expressions: Sequence[Expression]) -> list[pa.Array]:
    """Texts of several chunks as the columns' values."""
    return [
        from_text(pa.concat_arrays([pa.array([], pa.string()), *texts]), each.column)
        for each, *texts in zip(expressions, *pieces, strict=True)
    ]


def _error(error: psycopg.Error) -> ComputedValueError:
    """PostgreSQL's error; its context would only show our statement."""
    return ComputedValueError(
        error.diag.message_primary or str(error).strip(),
        detail=error.diag.message_detail,
        hint=error.diag.message_hint,
        sqlstate=error.sqlstate,
    )
