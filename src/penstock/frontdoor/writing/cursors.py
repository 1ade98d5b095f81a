# SPDX-License-Identifier: Apache-2.0
"""Read what a relation of a lake table has for a moment, in the client's own session.

In:   a query on it, which runs with the rights of the schema's owner.
Out:  its rows as Arrow; they come through a cursor, some MB at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pyarrow as pa

from penstock.change.relation import LakeColumn
from penstock.control.guard import Guard
from penstock.frontdoor.backend import ControlBackend
from penstock.frontdoor.session_commit import call
from penstock.pgoutput.data_rows import read_rows

FETCH_BYTES = 32 * 1024 * 1024
"""About so many bytes of rows are fetched together."""

FIRST_FETCH = 2000
"""Rows of the first fetch, before it is known how large they are."""

_ENCODING = "SELECT pg_catalog.set_config('client_encoding', $1, true)"


async def read_relation(
    backend: ControlBackend, guard: Guard, query: str, columns: Sequence[LakeColumn], name: str
) -> pa.Table:
    """The rows of a query with these columns; ``name`` is the relation's, for errors."""
    encoding = backend.client_encoding
    await call(backend, guard.open_written_rows(query))
    if encoding != "UTF8":
        await backend.query(_ENCODING, ["UTF8"])
    parts = [read_rows([], columns, name)]
    count = FIRST_FETCH
    while blocks := await backend.binary_rows(f"FETCH FORWARD {count} FROM penstock_written"):
        rows = await asyncio.to_thread(read_rows, blocks, columns, name)
        parts.append(rows)
        if rows.num_rows < count:
            break
        size = sum(map(len, blocks)) / rows.num_rows
        count = max(1, int(FETCH_BYTES / size))
    await backend.query("CLOSE penstock_written")
    if encoding != "UTF8":
        await backend.query(_ENCODING, [encoding])
    return pa.concat_tables(parts)
