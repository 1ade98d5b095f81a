# SPDX-License-Identifier: Apache-2.0
"""The parts of a change feed, from Delta's log alone: no row is read.

In:   a table's folder and the ranges of Delta versions that a commit's record names.
Out:  parts, in order.  Each is read by itself, by Spark (``changes.py``) or by the node
      (``change_batches.py``), and both tell the same changes under the same ``seq``.

    a part         is                                             its changes
    ------         ------------------------------------------     --------------------------
    inserts        versions that follow each other and only       I, in the order of the files
                   add rows
    deletes        a version that only takes rows out             D, in the order of the files
    pairs          a version that does both                       D, then U and I
    truncate       a TRUNCATE                                     T

``seq`` is a row's place in its data file, counted on from the files before it: it is the same
whenever and however the feed is read.  It has gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from penstock.lake.difference import Rows, difference


class Placed(NamedTuple):
    """Rows of a data file; the one at position i has the ``seq`` ``place`` + i."""

    rows: Rows
    place: int


@dataclass(frozen=True)
class FeedPart:
    """Changes that follow each other in a feed and are read together.

    ``place`` is its first ``seq``, ``version`` the one that has the files of ``come``; those of
    ``gone`` are in the version before it.  ``options`` are those of a TRUNCATE.
    """

    kind: Literal["inserts", "deletes", "pairs", "truncate"]
    version: int
    place: int
    gone: tuple[Placed, ...] = ()
    come: tuple[Placed, ...] = ()
    options: int = 0

    @property
    def rows(self) -> int:
        """Rows that are read for it: no less than it has changes."""
        return sum(each.rows.count for each in (*self.gone, *self.come))

    @property
    def bytes(self) -> int:
        """What these rows take in their files, if all rows of a file are alike."""
        return sum(
            each.rows.file.add["size"] * each.rows.count // max(1, each.rows.size)
            for each in (*self.gone, *self.come)
        )


def feed_parts(location: str, ranges: Iterable[tuple[int, int]]) -> Iterator[FeedPart]:
    """The parts of versions ``ranges`` (both ends inclusive, ascending).

    TableStateError when the log or a vector is not as it was written, or is there no more.
    """
    feed = _Feed(location)
    for first, last in ranges:
        for version in range(first, last + 1):
            yield from feed.add(version)
    yield from feed.inserts()


class _Feed:
    """Gives out parts; ``_place`` is the next row's ``seq``."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._place = 0
        self._inserts: list[Placed] = []
        self._inserts_until = 0

    def add(self, version: int) -> Iterator[FeedPart]:
        """Take what a version did; the parts that are complete by it."""
        found = difference(self._location, version)
        if not (found.truncated or found.gone):
            yield from self._add_inserts(version, found.come)
            return
        yield from self.inserts()
        if found.truncated:
            yield FeedPart("truncate", version, self._place, options=found.options)
            self._place += 1
        if not found.gone:
            yield from self._add_inserts(version, found.come)
            return
        first = self._place
        gone, come = self._placed(found.gone), self._placed(found.come)
        kind: Literal["pairs", "deletes"] = "pairs" if come else "deletes"
        yield FeedPart(kind, version, first, tuple(gone), tuple(come))

    def inserts(self) -> Iterator[FeedPart]:
        """The inserts that were added since the last part, if there are any."""
        if self._inserts:
            come, self._inserts = tuple(self._inserts), []
            yield FeedPart("inserts", self._inserts_until, come[0].place, (), come)

    def _add_inserts(self, version: int, come: Sequence[Rows]) -> Iterator[FeedPart]:
        """Keep files whose rows are all new: as many versions as follow each other are one part."""
        paths = {each.rows.file.path for each in self._inserts}
        if any(each.file.path in paths for each in come):
            yield from self.inserts()  # a file that gets rows back twice
        self._inserts += self._placed(come)
        self._inserts_until = version

    def _placed(self, rows: Sequence[Rows]) -> list[Placed]:
        placed = []
        for each in rows:
            placed.append(Placed(each, self._place))
            self._place += each.size
        return placed
