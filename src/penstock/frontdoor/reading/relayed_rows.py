# SPDX-License-Identifier: Apache-2.0
"""Rows that Spark has found, given to the control database: cursors, temporary tables.

In:   a command around a query that reads lake tables (``RelayRows``), and the query's rows.
Out:  the same command, run in the client's session with a query of these rows.

So a cursor is PostgreSQL's own, with FETCH and MOVE both ways, WITH HOLD, BINARY, savepoints and
pg_cursors; its rows are those of the moment of DECLARE, as they always are in PostgreSQL.  They go
there as arrays of texts, in one message: a result of more than GIVEN_BYTES is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import PenstockError
from penstock.frontdoor.actions import Backend, LakeResult, RelayRows
from penstock.names import quote_pg
from penstock.wire.given_rows import given_rows, rows_literal
from penstock.wire.responses import Column

GIVEN_BYTES = 256 * 1024 * 1024
"""Bytes of rows, as Arrow has them; PostgreSQL takes 1 GB in a message, and texts are longer."""

_KINDS = """
SELECT pg_catalog.format_type(o, m)
FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.oid[]), pg_catalog.unnest($2::pg_catalog.int4[]))
    WITH ORDINALITY AS u (o, m, n)
ORDER BY n"""


async def command_over(
    backend: Backend, relayed: RelayRows, columns: Sequence[Column], result: LakeResult
) -> tuple[str, list[str]]:
    """The command and its parameters.

    ``columns`` are the query's.  54000 (program_limit_exceeded) for a result that is too large.
    """
    if result.rows.nbytes > GIVEN_BYTES:
        raise PenstockError(
            "the rows of a cursor or temporary table over lake tables are too many",
            detail=f"They have {result.rows.nbytes >> 20} MB; the limit is {GIVEN_BYTES >> 20} MB.",
            hint="Let the driver fetch the query in parts, or use COPY ... TO STDOUT.",
            sqlstate="54000",
        )
    oids = "{" + ",".join(map(str, result.type_oids)) + "}"
    typmods = "{" + ",".join(map(str, _typmods(columns, result))) + "}"
    kinds = [str(kind) for (kind,) in await backend.query(_KINDS, [oids, typmods])]
    query = _rows_query([column.name for column in columns], kinds)
    return f"{relayed.head}{query}{relayed.tail}", [rows_literal(result.rows.columns)]


def _typmods(columns: Sequence[Column], result: LakeResult) -> list[int]:
    """Those of the types; a domain has none, what is described is that of the type below it."""
    pairs = zip(columns, result.type_oids, strict=True)
    return [column.typmod if column.type_oid == oid else -1 for column, oid in pairs]


def _rows_query(names: Sequence[str], kinds: Sequence[str]) -> str:
    """A query of the rows in $1."""
    pairs = enumerate(zip(names, kinds, strict=True), 1)
    values = ", ".join(f"x{n}::{kind} AS {quote_pg(name)}" for n, (name, kind) in pairs)
    return f"SELECT {values} FROM {given_rows(len(names))}"
