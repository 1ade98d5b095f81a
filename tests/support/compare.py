# SPDX-License-Identifier: Apache-2.0
"""Are two sides equal?  ``EXCEPT ALL`` both ways, on the text form of every row.

Rows come through psql from both sides, so what is compared is what a user sees; the order of rows
counts for nothing, and how often a row occurs counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

FIELD, ROW, NULL = "\x1f", "\x1e", "\\N"
ROW_FLAGS = ("-At", "-F", FIELD, "-R", ROW, "-P", f"null={NULL}")
"""psql's flags for rows whose values may hold anything but the two separators."""

Psql = Callable[..., str]


@dataclass(frozen=True)
class Difference:
    """Rows that one side has and the other has not, each as often as it is too many."""

    rows: int
    missing: Counter[str]
    unexpected: Counter[str]

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected)

    def __str__(self) -> str:
        if not self:
            return f"equal, {self.rows} rows"
        parts = []
        for title, side in (("missing", self.missing), ("unexpected", self.unexpected)):
            shown = [row.replace(FIELD, "|") for row, _ in side.most_common(5)]
            parts.append(f"{title} {side.total()}: {shown}")
        return "; ".join(parts)


def rows_of(psql: Psql, query: str) -> Counter[str]:
    """The rows of a query as text, with how often each occurs."""
    output = psql(query, flags=ROW_FLAGS, timeout=600)
    return Counter(output.split(ROW)) if output else Counter()


def difference(expected: Psql, expected_query: str, found: Psql, found_query: str) -> Difference:
    """Compare the expected side's rows (the publisher's) with those found (the lake's)."""
    want, have = rows_of(expected, expected_query), rows_of(found, found_query)
    return Difference(want.total(), want - have, have - want)


def assert_equal(expected: Psql, expected_query: str, found: Psql, found_query: str) -> int:
    """Fail with the differing rows unless both sides are equal; return how many rows they have."""
    found_difference = difference(expected, expected_query, found, found_query)
    assert not found_difference, str(found_difference)
    return found_difference.rows
