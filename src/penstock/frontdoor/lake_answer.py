# SPDX-License-Identifier: Apache-2.0
"""Run a query on the lake for one session, and send its rows.

While Spark works, the client may cancel (``cancel``) or go away: then the query is stopped.
Rows are encoded and sent in slices of SLICE_ROWS, waiting whenever the client is slower.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from itertools import count
from typing import Any

import pyarrow as pa

from penstock.change import types
from penstock.errors import ConnectionLostError, PenstockError
from penstock.frontdoor.actions import LakeQueries, LakeResult, Parameter, RunOnLake
from penstock.frontdoor.backend import ControlBackend
from penstock.frontdoor.copying.copy_forms import BinaryForms
from penstock.frontdoor.link import Link
from penstock.wire.responses import Column
from penstock.wire.rows import encode_rows

SLICE_ROWS = 10_000
"""Rows that are encoded between two looks at the client's speed: about 1 MB, and few ms."""

CANCEL_AGAIN = 0.1
"""Seconds between two attempts to stop a query: the first may come before Spark knows its job."""

_jobs = count(1)


class LakeSession:
    """The lake's side of one session: at most one statement at a time."""

    def __init__(self, queries: LakeQueries, backend: ControlBackend, client: Link) -> None:
        self._queries = queries
        self._backend = backend
        self._client = client
        self.is_running = False
        """Whether the lake works for this session."""
        self._stop = asyncio.Event()

    def cancel(self) -> None:
        """Stop the query that runs; nothing happens without one."""
        self._stop.set()

    async def run(self, query: RunOnLake, parameters: Sequence[Parameter]) -> LakeResult:
        """Run a query; 57014 when it was cancelled."""
        job = f"penstock client query {next(_jobs)}"
        running = asyncio.ensure_future(self._queries.run(self._backend, query, parameters, job))
        try:
            await self._until_stopped(running)
            while not running.done():
                self._queries.cancel(job)
                await asyncio.wait({running}, timeout=CANCEL_AGAIN)
            if self._client.lost.done():
                raise ConnectionLostError("the client has gone")
            return await running
        finally:
            if not running.done():
                self._queries.cancel(job)
                running.cancel()
            self.is_running = False

    async def watch(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that ends by itself when it is cancelled; 57014 when the client does."""
        running = asyncio.ensure_future(work)
        try:
            await self._until_stopped(running)
            if running.done():
                return await running
            running.cancel()
            await asyncio.wait({running})
            if self._client.lost.done():
                raise ConnectionLostError("the client has gone")
            if not running.cancelled():
                return await running
            raise PenstockError("canceling statement due to user request", sqlstate="57014")
        finally:
            running.cancel()
            self.is_running = False

    async def _until_stopped(self, running: asyncio.Future[Any]) -> None:
        """Wait for the end of the work, for a cancel, or for the client to go away."""
        self.is_running = True
        self._stop.clear()
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            watched: set[asyncio.Future[Any]] = {running, stopping, self._client.lost}
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()


def check_columns(result: LakeResult, columns: Sequence[Column]) -> None:
    """The lake's columns must be those that the client was told of (XX000)."""
    described = tuple(column.type_oid for column in columns)
    if described != result.described or len(described) != result.rows.num_columns:
        raise PenstockError(
            "the lake's result does not have the described columns",
            detail=f"Types are {result.described}, described were {described}.",
        )


async def send_rows(
    client: Link,
    backend: ControlBackend,
    result: LakeResult,
    formats: Sequence[int],
    start: int,
    stop: int,
) -> None:
    """Send rows ``start`` to ``stop`` of a result.

    Binary forms that are not written here are asked for in the session, as COPY does.
    """
    timezone = backend.parameters.get("TimeZone", "UTC")
    binary = [oid for oid, code in zip(result.type_oids, formats, strict=True) if code]
    forms = await BinaryForms.find(backend, binary)
    for at in range(start, stop, SLICE_ROWS):
        rows = result.rows.slice(at, min(SLICE_ROWS, stop - at))
        type_oids = list(result.type_oids)
        for place, code in enumerate(formats):
            if code and type_oids[place] in forms.texts:
                type_oids[place] = types.TEXT
            elif code and type_oids[place] in forms.asked:
                column = pa.concat_arrays(rows.column(place).chunks)
                column = await forms.ask(backend, column, type_oids[place])
                rows = rows.set_column(place, "binary", column)
                type_oids[place] = types.BYTEA
        client.write(encode_rows(rows, type_oids, formats, timezone))
        await client.drain()
