# SPDX-License-Identifier: Apache-2.0
"""The order in which updated rows can be told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lake.updates import safe_order


def ordered(before: list[int], after: list[int], of: list[int]) -> list[int] | None:
    arrays = (np.array(each, np.int64) for each in (before, after, of))
    order = safe_order(*arrays)
    return None if order is None else [int(each) for each in order]


@pytest.mark.parametrize(
    ("before", "after", "of", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], [0, 1, 2], None),
        ([1, 2, 3], [0, 1, 2], [0, 1, 2], None),
        ([1, 2, 3], [2, 3, 4], [0, 1, 2], [2, 1, 0]),
        ([5, 6], [6, 9], [0, -1], None),
        ([5, 6, 7], [7, 5, 8], [-1, 1, 2], [1, 2, 0]),
        ([5], [5, 6], [-1, 0], [1, 0]),
    ],
)
def test_keys_are_left_before_they_are_taken(
    before: list[int], after: list[int], of: list[int], expected: list[int] | None
) -> None:
    """Rows stay in their order where no key forbids it."""
    assert ordered(before, after, of) == expected


@given(st.data())
def test_any_order_of_an_update_can_be_told(data: st.DataObject) -> None:
    """Changes that were possible one after the other are so again, however they are mixed."""
    keys = set(data.draw(st.lists(st.integers(0, 20), unique=True, max_size=12)))
    of_key = {key: number for number, key in enumerate(sorted(keys))}
    before, came = sorted(keys), []
    for _ in range(data.draw(st.integers(0, 20))):
        free = sorted(set(range(22)) - keys)
        new = data.draw(st.sampled_from(free))
        left = sorted(of_key)
        old = data.draw(st.sampled_from([None, *left]))
        came.append((-1 if old is None else of_key.pop(old), new))
        keys.discard(-1 if old is None else old)
        keys.add(new)
        if len(keys) > 20:
            break
    deleted = [before[number] for number in of_key.values()]
    mixed = data.draw(st.permutations(came))
    if not mixed:
        return
    order = ordered(before, [new for _, new in mixed], [of for of, _ in mixed])
    there = set(before) - set(deleted)
    for at in range(len(mixed)) if order is None else order:
        of, new = mixed[at]
        there.discard(before[of] if of >= 0 else -1)
        assert new not in there
        there.add(new)
