# SPDX-License-Identifier: Apache-2.0
"""Rows that are made piece by piece and then needed as a whole, however many they are.

What is above SPOOL_BYTES is written to a file, and mapped: the columns that are then looked at are
read from it, and memory does not grow with the rows.  The file has no name any more by then, so it
ends with its last user.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa

SPOOL_BYTES = 32 * 1024 * 1024
"""Bytes of rows, as Arrow has them, that stay in memory."""


class SpooledRows:
    """Rows that are collected; above SPOOL_BYTES in a file in ``scratch``, unless that is None.

    ``none`` is a table of their schema.  ``close`` it, after ``whole`` if that is wanted.
    """

    def __init__(self, none: pa.Table, scratch: Path | None) -> None:
        self._parts = [none]
        self._scratch = scratch
        self._bytes = 0
        self._file: Path | None = None
        self._writer: pa.ipc.RecordBatchFileWriter | None = None

    def add(self, rows: pa.Table) -> None:
        """Take some more."""
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
        """All of them; nothing can be added any more."""
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
