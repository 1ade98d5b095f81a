# SPDX-License-Identifier: Apache-2.0
"""Read what a relation of a lake table has for a moment, in the client's own session.

In:   a query on it, which runs with the rights of the schema's owner.
Out:  its rows as Arrow; they come through a cursor, some MB at a time.

Rows of a whole statement are as many as the client likes: they do not stay in memory
(lake/spooled.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from penstock.change.relation import LakeColumn
from penstock.control.guard import Guard
from penstock.frontdoor.backend import BinaryRows, ControlBackend
from penstock.frontdoor.session_commit import call
from penstock.lake.spooled import SpooledRows
from penstock.pgoutput.data_rows import read_rows

FETCH_BYTES = 8 * 1024 * 1024
"""About so many bytes of rows are fetched together."""

FIRST_FETCH = 2000
"""Rows of the first fetch, before it is known how large they are."""

_ENCODING = "SELECT pg_catalog.set_config('client_encoding', $1, true)"


async def read_relation(
    backend: ControlBackend,
    guard: Guard,
    query: str,
    columns: Sequence[LakeColumn],
    name: str,
    scratch: Path | None = None,
) -> pa.Table:
    """The rows of a query with these columns; ``name`` is the relation's, for errors.

    With ``scratch``, a folder, many rows are not kept in memory.
    """
    encoding = backend.client_encoding
    await call(backend, guard.open_written_rows(query))
    if encoding != "UTF8":
        await backend.query(_ENCODING, ["UTF8"])
    found = SpooledRows(read_rows([], columns, name), scratch)

    def add(fetched: BinaryRows) -> None:
        found.add(read_rows(fetched.blocks, columns, name))

    with closing(found):
        count, fetched = FIRST_FETCH, await _fetch(backend, FIRST_FETCH)
        while fetched.rows == count:  # PostgreSQL gets the next ones while these are decoded
            count = max(1, FETCH_BYTES * fetched.rows // sum(map(len, fetched.blocks)))
            adding = asyncio.to_thread(add, fetched)
            fetched = await _both(adding, _fetch(backend, count))
        await asyncio.to_thread(add, fetched)
        await backend.query("CLOSE penstock_written")
        if encoding != "UTF8":
            await backend.query(_ENCODING, [encoding])
        return await asyncio.to_thread(found.whole)


async def _fetch(backend: ControlBackend, count: int) -> BinaryRows:
    return await backend.binary_rows(f"FETCH FORWARD {count} FROM penstock_written")


async def _both(adding: Awaitable[None], fetching: Awaitable[BinaryRows]) -> BinaryRows:
    """What was fetched; an error of one is raised once the other has ended, too."""
    added, fetched = await asyncio.gather(adding, fetching, return_exceptions=True)
    if isinstance(added, BaseException):
        raise added
    if isinstance(fetched, BaseException):
        raise fetched
    return fetched
