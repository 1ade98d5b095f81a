# SPDX-License-Identifier: Apache-2.0
"""How the initial copy is cut: pieces of tables into ranges of pages, ranges into packs.

In:   the pieces of all tables to copy (a plain table is one piece, a partitioned one has one for
      each leaf), with their sizes.
Out:  packs.  A pack is one task: a large range alone, or several small ones together.

Every page of a piece is in exactly one range, and the last range has no end: pages that are added
after the sizes were read hold no row that the snapshot sees, but that need not be relied on.

Packs come in order of size, largest first, so that no large one is left over at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

MIN_RANGE_BYTES = 16 * 1024 * 1024
"""A range costs a Spark job, some 20 ms, the first of a process a connection, too, some 80 ms;
reading 16 MB takes about 150 ms."""

MAX_RANGE_BYTES = 256 * 1024 * 1024
"""Progress is told range by range, so a range should take seconds, not minutes."""

RANGES_PER_READER = 4
"""Ranges that each reader gets at least, so that all readers end at about the same time."""

RANGES_IN_PACK = 50
"""Ranges that one pack has at most, so that progress is seen with many tiny tables too."""


@dataclass(frozen=True)
class Size:
    """Size of a piece: ``pages`` of its main fork, None when it cannot be read by pages.

    ``size`` is in bytes, TOAST included.
    """

    pages: int | None
    size: int


@dataclass(frozen=True)
class PageRange:
    """Pages ``first`` up to, not including, ``end``; None for the last page of the piece."""

    first: int
    end: int | None
    size: int

    @property
    def whole(self) -> bool:
        """Whether it is the whole piece, so that no condition is needed."""
        return self.first == 0 and self.end is None


@dataclass(frozen=True)
class Sized(Generic[T]):
    """Something to pack, with its size in bytes."""

    item: T
    size: int


def range_bytes(total: int, readers: int) -> int:
    """The size that ranges should have when ``readers`` read ``total`` bytes at the same time."""
    wanted = total // (RANGES_PER_READER * readers)
    return min(max(wanted, MIN_RANGE_BYTES), MAX_RANGE_BYTES)


def page_ranges(piece: Size, target: int) -> list[PageRange]:
    """Cut a piece into ranges of about ``target`` bytes each, all of nearly equal size."""
    count = -(-piece.size // target)
    if piece.pages is None or piece.pages < 2 or count < 2:
        return [PageRange(0, None, piece.size)]
    count = min(count, piece.pages)
    firsts = [number * piece.pages // count for number in range(count)]
    ends = [*firsts[1:], None]
    return [
        PageRange(first, end, piece.size // count) for first, end in zip(firsts, ends, strict=True)
    ]


def packs(items: Iterable[Sized[T]], target: int) -> list[Sequence[T]]:
    """Put items together up to ``target`` bytes and RANGES_IN_PACK items, largest first."""
    result: list[list[T]] = []
    room = 0
    for each in sorted(items, key=lambda sized: sized.size, reverse=True):
        if not result or each.size > room or len(result[-1]) >= RANGES_IN_PACK:
            result.append([])
            room = target
        result[-1].append(each.item)
        room -= each.size
    return list(result)
