# SPDX-License-Identifier: Apache-2.0
"""docs/filters.md lists what row filters may use, no more and no less."""

from __future__ import annotations

from pathlib import Path

from tests.support.filter_docs import lists
from tests.support.filter_oracle import FilterOracle

PAGE = Path(__file__).parents[2] / "docs" / "filters.md"
BEGIN, END = "<!-- tested: begin -->\n", "<!-- tested: end -->\n"


def test_the_lists_are_what_compiles(filter_oracle: FilterOracle) -> None:
    """Each operator and function of the page compiles, and none that does is missing.

    When this fails, the lists are what ``found`` holds.
    """
    found = lists(filter_oracle)
    written = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert written == found
