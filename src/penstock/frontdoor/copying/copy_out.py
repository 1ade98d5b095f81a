# SPDX-License-Identifier: Apache-2.0
"""COPY ... TO STDOUT of lake tables: PostgreSQL says what is sent, the lake sends it.

In:   a COPY that the router found to read lake tables, in the client's own session.
Out:  PostgreSQL's messages to it, and between them the lake's rows.

The control database runs the statement, on relations that are empty.  A query is made one that
gives no row and computes nothing (LIMIT 0).  So names, privileges, options and all errors in them
are PostgreSQL's, and so are CopyOutResponse and the line of HEADER:

    CopyOutResponse                       the control database's
    CopyData, with HEADER                 the control database's
    CopyData for each row                 the lake's
    CopyData with the trailer (binary)    ours
    CopyDone                              the control database's
    CommandComplete                       ours, with the lake's count

Rows are read, made binary where the control database has to do that, and encoded in pieces, some
ahead of what the client has taken and no more: memory does not grow with the table.

Nothing here needs the extended protocol but what ``backend.query`` does with parameters: a
connection that replicates runs the same COPY through its own ``Backend``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa

from penstock.change.copy_format import CopyFormat, CopyKind
from penstock.errors import ConnectionLostError, FeatureNotSupportedError, PenstockError
from penstock.failpoints import Failpoint, reach
from penstock.frontdoor.actions import Backend, CopyLake
from penstock.frontdoor.copying.copy_forms import BinaryForms
from penstock.frontdoor.copying.copy_source import CopySource, CopySources, check_count
from penstock.frontdoor.link import Link
from penstock.frontdoor.reading.catalog import timeout_of
from penstock.frontdoor.reading.query import SparkQueries
from penstock.frontdoor.reading.styles import check_kept_texts, refuse_encoding, refuse_styles
from penstock.sql.copy import ALL, CopyOptions
from penstock.wire import responses
from penstock.wire.copy_rows import Field, copy_rows, end_of_copy, is_plain
from penstock.wire.framing import Message
from penstock.wire.rows_text import text_column

RunCopy = Callable[[str], Awaitable[Sequence[Message]]]
"""Runs a COPY TO STDOUT in the client's session, and gives all messages that answer it, up to
CommandComplete.  It raises the ServerError that the answer was."""

AHEAD = 3
"""Pieces that are read and encoded while the client takes another."""

_UTF8 = frozenset({"utf8", "unicode", "sqlascii"})


class LakeCopies:
    """Carries out COPY TO STDOUT; one serves all sessions of a node."""

    def __init__(self, sources: CopySources, queries: SparkQueries) -> None:
        self._sources = sources
        self._catalog = queries.catalog

    async def run(self, backend: Backend, copy: CopyLake, run: RunCopy, client: Link) -> None:
        """Answer one COPY, up to and with its CommandComplete.

        An error is the statement's, and may come when rows have been sent; PostgreSQL's does so,
        too.  Cancelling this ends what Spark does for it.  ``backend`` must be in the transaction
        that ``run`` runs in, if the client has begun one; locks of it keep definitions as they are.
        """
        try:
            answer = await run(copy.sql)
        except responses.ServerError as error:
            _move_back(error, copy.inserted)
            raise
        form = await copy_format(backend, copy.options)
        source = await self._sources.open(backend, copy)
        try:
            check_count(source, _columns(answer))
            await self._check(backend, source, form)
            async with _time_limit(timeout_of(source.settings)):
                await _send(backend, client, source, form, answer)
        finally:
            await source.close()

    async def _check(self, backend: Backend, source: CopySource, form: CopyFormat) -> None:
        refuse_encoding(source.settings)
        if form.kind != "binary":
            refuse_styles(source.type_oids, source.settings)
        await check_kept_texts(backend, self._catalog, source.type_oids, source.settings)


async def copy_format(backend: Backend, options: CopyOptions | None) -> CopyFormat:
    """What the options of a COPY that PostgreSQL accepts say; 0A000 for what is not known here.

    The constants are evaluated by the session: they may have escapes of any kind.
    """
    if options is None:
        raise FeatureNotSupportedError("this form of COPY is not supported for lake tables")
    names = list(options.literals)
    values: dict[str, str] = {}
    if names:
        items = ", ".join(f"({options.literals[name]})::pg_catalog.text" for name in names)
        (row,) = await backend.query(f"SELECT {items}")
        values = {name: value or "" for name, value in zip(names, row, strict=True)}
    encoding = "".join(filter(str.isalnum, values.get("encoding", "utf8"))).lower()
    if encoding not in _UTF8:
        raise FeatureNotSupportedError(
            f'encoding "{values["encoding"]}" is not supported for COPY of lake tables',
            hint="Use ENCODING 'UTF8', or none.",
        )
    return _format(_kind(options.kind or values.get("format", "text")), values, options.forced)


def _kind(name: str) -> CopyKind:
    for kind in ("text", "csv", "binary"):
        if name == kind:
            return kind
    raise FeatureNotSupportedError(f'COPY format "{name}" is not supported for lake tables')


def _format(kind: CopyKind, values: dict[str, str], forced: tuple[str, ...] | str) -> CopyFormat:
    delimiter, null = (",", "") if kind == "csv" else ("\t", "\\N")
    quote = values.get("quote", '"').encode()
    return CopyFormat(
        kind,
        values.get("delimiter", delimiter).encode(),
        values.get("null", null).encode(),
        quote,
        values["escape"].encode() if "escape" in values else quote,
        None if forced == ALL else frozenset(forced),
    )


def _move_back(error: responses.ServerError, inserted: Sequence[tuple[int, int]]) -> None:
    """Make the position in an error one in the client's text."""
    if "P" not in error.fields:
        return
    position = int(error.fields["P"])
    shift = 0
    for place, length in inserted:
        if position - 1 >= place + shift + length:
            shift += length
    error.fields["P"] = str(position - shift)


def _columns(answer: Sequence[Message]) -> int:
    """How many columns the CopyOutResponse announces."""
    for message in answer:
        if message.kind == responses.COPY_OUT:
            return int.from_bytes(message.body[1:3], "big")
    raise PenstockError("the control database did not answer COPY with rows")


@asynccontextmanager
async def _time_limit(seconds: float | None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise PenstockError(
            "canceling statement due to statement timeout", sqlstate="57014"
        ) from None


async def _send(
    backend: Backend,
    client: Link,
    source: CopySource,
    form: CopyFormat,
    answer: Sequence[Message],
) -> None:
    """Send the whole answer."""
    header = b"" if form.kind == "binary" else _raw(answer, responses.COPY_DATA)
    client.write(_raw(answer, responses.COPY_OUT) + header)
    stream = _Stream(backend, source, form)
    try:
        async for piece in stream.pieces():
            client.write(piece)
            await client.drain()
            reach(Failpoint.COPY_OUT_PIECE_SENT)
            if client.lost.done():
                raise ConnectionLostError("the client has gone")
    finally:
        stream.stop()
    done = end_of_copy(form, stream.rows) + _raw(answer, responses.COPY_DONE)
    client.write(done + responses.command_complete(f"COPY {stream.rows}"))


def _raw(answer: Sequence[Message], kind: int) -> bytes:
    return b"".join(message.raw for message in answer if message.kind == kind)


class _Stream:
    """The rows of a source as CopyData messages; ``rows`` counts them.

    One task reads and hands batches on, each of which a thread encodes; the queue between it and
    the sender bounds how far it is ahead.
    """

    def __init__(self, backend: Backend, source: CopySource, form: CopyFormat) -> None:
        self.rows = 0
        self._backend = backend
        self._source = source
        self._form = form
        self._timezone = backend.parameters.get("TimeZone", "UTC")
        self._forms: BinaryForms | None = None
        self._queue: asyncio.Queue[asyncio.Future[bytes] | None] = asyncio.Queue(AHEAD)
        self._reader = asyncio.create_task(self._read())

    async def pieces(self) -> AsyncIterator[bytes]:
        """Whole messages; an error of any step is raised here."""
        while True:
            getting = asyncio.ensure_future(self._queue.get())
            await asyncio.wait({getting, self._reader}, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done():
                getting.cancel()
                self._reader.result()  # raises: it ends without an error only behind its last item
            encoding = await getting
            if encoding is None:
                return
            yield await encoding

    def stop(self) -> None:
        """End what runs; a thread ends with the piece that it works on."""
        running: list[asyncio.Future[Any]] = [self._reader]
        while not self._queue.empty():
            encoding = self._queue.get_nowait()
            if encoding is not None:
                running.append(encoding)
        for each in running:
            if not each.cancel() and not each.cancelled():
                each.exception()  # nobody else is going to ask for it

    async def _read(self) -> None:
        if self._form.kind == "binary":
            self._forms = await BinaryForms.find(self._backend, self._source.type_oids)
        while (batch := await asyncio.to_thread(next, self._source.rows, None)) is not None:
            asked = await self._asked(batch)
            encode = asyncio.to_thread(self._encode, batch, asked, self.rows == 0)
            self.rows += batch.num_rows
            await self._queue.put(asyncio.ensure_future(encode))
        await self._queue.put(None)

    async def _asked(self, batch: pa.RecordBatch) -> dict[int, pa.Array]:
        """The columns whose binary form the control database makes."""
        if self._forms is None:
            return {}
        return {
            place: await self._forms.ask(self._backend, batch.column(place), type_oid)
            for place, type_oid in enumerate(self._source.type_oids)
            if type_oid in self._forms.asked
        }

    def _encode(self, batch: pa.RecordBatch, asked: dict[int, pa.Array], first: bool) -> bytes:
        fields = [
            self._field(place, self._source.shown(place, batch.column(place)), asked)
            for place in range(len(self._source.type_oids))
        ]
        return copy_rows(fields, batch.num_rows, self._form, first=first)

    def _field(self, place: int, column: pa.Array, asked: dict[int, pa.Array]) -> Field:
        if place in asked:
            return Field(asked[place])
        if self._forms is not None:
            return Field(self._forms.written(column, self._source.type_oids[place]))
        forced = self._form.forced
        return Field(
            text_column(column, self._timezone),
            is_plain(column.type),
            forced is None or self._source.names[place] in forced,
        )
