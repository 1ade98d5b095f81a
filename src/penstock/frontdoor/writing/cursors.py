# SPDX-License-Identifier: Apache-2.0
"""Read what a relation of a lake table has for a moment, in the client's own session.

In:   a query on it, which runs with the rights of the schema's owner.
Out:  its rows as Arrow; they come through a cursor, some MB at a time.

Rows of a whole statement are as many as the client likes.  So what is above SPOOL_BYTES is written
to a file, and mapped: the columns that are then looked at are read from it, and memory does not
grow with the rows.  The file has no name any more by then, so it ends with its last user.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

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

SPOOL_BYTES = FETCH_BYTES
"""Bytes of rows, as Arrow has them, that stay in memory."""

_ENCODING = "SELECT pg_catalog.set_config('client_encoding', $1, true)"


class _Rows:
    """The rows so far; above SPOOL_BYTES in a file in ``scratch``, unless that is None."""

    def __init__(self, none: pa.Table, scratch: Path | None) -> None:
        self._parts = [none]
        self._scratch = scratch
        self._bytes = 0
        self._file: Path | None = None
        self._writer: pa.ipc.RecordBatchFileWriter | None = None

    def add(self, rows: pa.Table) -> None:
        self._bytes += rows.nbytes
        if self._writer is None:
            self._parts.append(rows)
            if self._scratch is None or self._bytes <= SPOOL_BYTES:
                return
            self._open(self._scratch)
            rows = pa.concat_tables(self._parts)
            self._parts.clear()
        assert self._writer is not None
        self._writer.write_table(rows)

    def whole(self) -> pa.Table:
        if self._writer is None or self._file is None:
            return pa.concat_tables(self._parts)
        self._writer.close()
        return pa.ipc.open_file(pa.memory_map(str(self._file))).read_all()

    def close(self) -> None:
        """Without its name the file is there for as long as it is mapped."""
        if self._file is not None:
            self._file.unlink()

    def _open(self, scratch: Path) -> None:
        with tempfile.NamedTemporaryFile(dir=scratch, prefix="rows-", delete=False) as made:
            self._file = Path(made.name)
        self._writer = pa.ipc.new_file(str(self._file), self._parts[0].schema)


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
    found = _Rows(read_rows([], columns, name), scratch)
    with closing(found):
        count = FIRST_FETCH
        while blocks := await backend.binary_rows(f"FETCH FORWARD {count} FROM penstock_written"):
            rows = await asyncio.to_thread(read_rows, blocks, columns, name)
            await asyncio.to_thread(found.add, rows)
            if rows.num_rows < count:
                break
            size = sum(map(len, blocks)) / rows.num_rows
            count = max(1, int(FETCH_BYTES / size))
        await backend.query("CLOSE penstock_written")
        if encoding != "UTF8":
            await backend.query(_ENCODING, [encoding])
        return await asyncio.to_thread(found.whole)
