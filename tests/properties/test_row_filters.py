# SPDX-License-Identifier: Apache-2.0
"""Row filters decide as PostgreSQL does, for every row, or are refused when they are made."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.filter_grammar import GRAMMAR, random_rows
from tests.support.filter_oracle import FilterOracle

FILTERS = st.lists(GRAMMAR.expressions("bool", 3), min_size=40, max_size=40, unique=True)


@settings(max_examples=8, suppress_health_check=list(HealthCheck), derandomize=True)
@given(FILTERS, st.integers(0, 2**32))
def test_generated_filters_decide_as_postgresql(
    filter_oracle: FilterOracle, filters: list[str], seed: int
) -> None:
    """Forty filters over a hundred rows: true, false, NULL, and the SQLSTATE of an error."""
    filter_oracle.fill(random_rows(seed, 100))
    wrong = filter_oracle.differences(filters)
    assert not wrong, "\n".join(f"{text}\n    {how}" for text, how in wrong.items())
