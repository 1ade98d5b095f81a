# SPDX-License-Identifier: Apache-2.0
"""Ranges cover every page once, and packs hold every range once."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sync.copy_plan import (
    MAX_RANGE_BYTES,
    MIN_RANGE_BYTES,
    RANGES_IN_PACK,
    PageRange,
    Size,
    Sized,
    packs,
    page_ranges,
    range_bytes,
)


@given(pages=st.integers(0, 10**6), toast=st.integers(0, 10**9), target=st.integers(2**23, 10**9))
def test_ranges_cover_every_page_once(pages: int, toast: int, target: int) -> None:
    """They follow each other without a gap, the last one is open, none is empty."""
    ranges = page_ranges(Size(pages, pages * 8192 + toast), target)
    assert ranges[0].first == 0
    assert ranges[-1].end is None
    for one, following in pairwise(ranges):
        assert one.end == following.first
        assert following.first > one.first


def test_sizes_are_nearly_equal() -> None:
    """A table of 1000 pages in 3 ranges: no range is more than a page longer than another."""
    ranges = page_ranges(Size(1000, 3000), 1000)
    assert ranges == [
        PageRange(0, 333, 1000),
        PageRange(333, 666, 1000),
        PageRange(666, None, 1000),
    ]


@pytest.mark.parametrize("size", [Size(None, 10**12), Size(0, 0), Size(1, 10**9), Size(50, 100)])
def test_what_cannot_be_cut_stays_whole(size: Size) -> None:
    """No pages, one page, or smaller than a range: one range without a condition."""
    (only,) = page_ranges(size, 1000)
    assert only.whole


def test_range_bytes_are_bounded() -> None:
    """Not below what a job costs, not above what progress needs; else four for each reader."""
    assert range_bytes(0, 2) == MIN_RANGE_BYTES
    assert range_bytes(10**15, 2) == MAX_RANGE_BYTES
    assert range_bytes(800 * 2**20, 2) == 100 * 2**20


@given(sizes=st.lists(st.integers(0, 2000), max_size=200))
def test_packs_hold_everything_once(sizes: list[int]) -> None:
    """No pack is larger than the target unless one item is, and none has too many items."""
    result = packs([Sized((number, size), size) for number, size in enumerate(sizes)], 1000)
    found = [item for pack in result for item in pack]
    assert sorted(found) == list(enumerate(sizes))
    for pack in result:
        assert len(pack) == 1 or sum(size for _, size in pack) <= 1000
        assert len(pack) <= RANGES_IN_PACK


def test_large_packs_come_first() -> None:
    """So that no large one is left over at the end."""
    result = packs([Sized(size, size) for size in (1, 900, 5, 1000)], 1000)
    assert result == [[1000], [900, 5, 1]]
