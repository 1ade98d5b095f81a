# SPDX-License-Identifier: Apache-2.0
"""Places of rows: joined with others, and without others, whatever files they are in."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.placed import Places, merged, places_of, without

ROWS = st.dictionaries(st.sampled_from("abc"), st.sets(st.integers(0, 9), max_size=6))


def made(rows: dict[str, set[int]]) -> Places:
    """Places in the order of their files' names in the dictionary."""
    return places_of({path: np.array(sorted(each), np.int64) for path, each in rows.items()})


def named(places: Places) -> list[tuple[str, int]]:
    """Each place by its path."""
    return [(places.paths[f], int(r)) for f, r in zip(places.file, places.row, strict=True)]


@given(ROWS, ROWS)
def test_places_are_told_apart_and_put_together(
    one: dict[str, set[int]], two: dict[str, set[int]]
) -> None:
    """What is left without others, and both together again, in order, with what came from where."""
    first, second = made(one), made(two)
    left = without(first, second)
    assert named(left) == [each for each in named(first) if each not in set(named(second))]
    both, order = merged(left, second)
    assert named(both) == [[*named(left), *named(second)][at] for at in order]
    assert list(both.file) == sorted(both.file)
    for number in set(both.file):
        rows = both.row[both.file == number]
        assert list(rows) == sorted(set(rows))
