# SPDX-License-Identifier: Apache-2.0
"""Which rows one Delta commit took out and put in, from its log entry alone.

In:   a table's folder and a version.
Out:  rows that are gone, and rows that came, as data files and positions in them.

    the commit                        gone                         come
    ------------------------------    -------------------------    ---------------------------
    adds a file                                                    its rows
    takes a file out                  the rows that it still had
    gives a file another vector       rows of the new vector       rows of the old vector that
                                      that were not in the old     are not in the new (RESTORE)
    changes no data (OPTIMIZE)        nothing                      nothing
    is a TRUNCATE                     not told one by one          nothing

No row is read.  This works for every writer of Delta Lake.  Delta's own change data feed is not
used: it has to be on before a version is written, costs a second copy of each changed row in it,
and neither our log entries nor other programs' appends would have one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pyroaring import BitMap64

from penstock.change.schema import TRUNCATE_OPTIONS
from penstock.lake.log import DataFile, actions_of, data_files
from penstock.lake.reading import Ints
from penstock.lake.vectors import inline_vector, read_bitmap


@dataclass(frozen=True)
class Rows:
    """Rows of a data file with ``size`` rows: these positions, else all that its vector leaves."""

    file: DataFile
    size: int
    only: BitMap64 | None = None

    @property
    def count(self) -> int:
        """How many there are."""
        if self.only is not None:
            return len(self.only)
        vector = self.file.vector
        return self.size - (vector["cardinality"] if vector is not None else 0)

    @cached_property
    def masked(self) -> DataFile:
        """The file with a deletion vector that leaves just these rows."""
        if self.only is None:
            return self.file
        vector = inline_vector(self.only.flip(0, self.size))
        return DataFile({**self.file.add, "deletionVector": vector})

    def positions(self, location: str) -> Ints | None:
        """Their positions in the file, ascending; None for all of its rows."""
        only = self.only
        if only is None:
            if self.file.vector is None:
                return None
            only = read_bitmap(location, self.file.vector).flip(0, self.size)
        return np.frombuffer(only.to_array(), np.uint64).astype(np.int64)


@dataclass(frozen=True)
class Difference:
    """What a commit did; ``truncated``: it emptied the table, and all of ``gone`` is left out.

    ``options`` are those of the TRUNCATE (change/schema.py).
    """

    truncated: bool = False
    options: int = 0
    gone: list[Rows] = field(default_factory=list)
    come: list[Rows] = field(default_factory=list)


def difference(location: str, version: int) -> Difference:
    """What a version changed; TableStateError when the log, or a vector, is not as written."""
    added: dict[str, DataFile] = {}
    removed: set[str] = set()
    info: dict[str, Any] = {}
    for action in actions_of(location, version):
        if "add" in action and action["add"].get("dataChange", True):
            added[action["add"]["path"]] = DataFile(action["add"])
        elif "remove" in action and action["remove"].get("dataChange", True):
            removed.add(action["remove"]["path"])
        elif "commitInfo" in action:
            info = action["commitInfo"]
    there = data_files(location, version - 1) if removed else {}
    found = Difference(info.get("operation") == "TRUNCATE", _options(info))
    # In the order of the log: what is told of a version is the same whenever it is told.
    for path in sorted(removed):
        if path in added:
            _compare(location, there[path], added[path], found)
        elif not found.truncated:
            found.gone.append(_whole(location, there[path]))
    found.come.extend(_whole(location, file) for path, file in added.items() if path not in removed)
    return found


def _options(info: Mapping[str, Any]) -> int:
    said = info.get("operationParameters", {})
    return sum(bit for name, bit in TRUNCATE_OPTIONS.items() if said.get(name) == "true")


def _compare(location: str, before: DataFile, after: DataFile, found: Difference) -> None:
    size = _size(location, before)
    old, new = (read_bitmap(location, file.vector) for file in (before, after))
    for rows, into in ((new - old, found.gone), (old - new, found.come)):
        if rows:
            into.append(Rows(before, size, rows))


def _whole(location: str, file: DataFile) -> Rows:
    return Rows(file, _size(location, file))


def _size(location: str, file: DataFile) -> int:
    """Rows in a file, gone ones too; the footer knows what another program's log may not."""
    return file.rows or pq.read_metadata(Path(location) / file.path).num_rows
