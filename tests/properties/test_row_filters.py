# SPDX-License-Identifier: Apache-2.0
"""Row filters decide as PostgreSQL does, for every row, or are refused when they are made.

``filters_supported.sql`` has filters by hand, all of PostgreSQL's accept list among them;
``filters_refused.sql`` what has no exact form, each with the expression and the reason.
"""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import FeatureNotSupportedError
from penstock.publish.filter import RowFilter
from tests.support.filter_grammar import GRAMMAR, edge_rows, random_rows
from tests.support.filter_oracle import FilterOracle

HERE = Path(__file__).parent
FILTERS = st.lists(GRAMMAR.expressions("bool", 3), min_size=30, max_size=30, unique=True)


def lines(name: str) -> list[str]:
    text = (HERE / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("--")]


def test_filters_by_hand_are_exact(filter_oracle: FilterOracle) -> None:
    """All are compiled, and decide as PostgreSQL on rows of edge values."""
    filter_oracle.fill(edge_rows())
    filters = lines("filters_supported.sql")
    compiled = zip(filters, filter_oracle.compile(filters), strict=True)
    refused = {text: str(made) for text, made in compiled if not isinstance(made, RowFilter)}
    assert not refused
    wrong = filter_oracle.differences(filters)
    assert not wrong, "\n".join(f"{text}\n    {how}" for text, how in wrong.items())


def test_plain_filters_by_hand_are_exact(filter_oracle: FilterOracle) -> None:
    """What Arrow decides alone, for a COPY of rows, it decides as PostgreSQL does."""
    filter_oracle.fill(edge_rows())
    plain = filter_oracle.by_arrow(lines("filters_supported.sql"))
    assert len(plain) >= 60
    wrong = {
        text: how for text, found in plain.items() if (how := filter_oracle.wrong(text, found))
    }
    assert not wrong


def test_filters_without_an_exact_form_are_refused(filter_oracle: FilterOracle) -> None:
    """PostgreSQL accepts them; the refusal is 0A000 and names the expression and the reason."""
    wrong = {}
    for line in lines("filters_refused.sql"):
        text, _, expected = line.partition(" -- ")
        (made,) = filter_oracle.compile([text])
        detail = str(getattr(made, "detail", made))
        if not isinstance(made, FeatureNotSupportedError) or not detail.startswith(expected):
            wrong[text] = detail
    assert not wrong, "\n".join(f"{text}\n    {how}" for text, how in wrong.items())


def test_what_postgresql_refuses_stays_its_own_error(filter_oracle: FilterOracle) -> None:
    """Mutable functions, system columns and subqueries never get as far as the translation."""
    texts = ["i4 > random()", "ctid = '(0,1)'", "i4 IN (SELECT 1)", "i4::text = '1'", "now() > tz"]
    for made in filter_oracle.compile(texts):
        assert isinstance(made, Exception)
        assert "invalid publication WHERE expression" in str(made)


@settings(max_examples=5, suppress_health_check=list(HealthCheck), derandomize=True)
@given(FILTERS, st.integers(0, 2**32))
def test_generated_filters_decide_as_postgresql(
    filter_oracle: FilterOracle, filters: list[str], seed: int
) -> None:
    """Thirty filters over eighty rows: true, false, NULL, and the SQLSTATE of an error."""
    filter_oracle.fill(random_rows(seed, 80))
    wrong = filter_oracle.differences(filters)
    assert not wrong, "\n".join(f"{text}\n    {how}" for text, how in wrong.items())


@settings(max_examples=5, suppress_health_check=list(HealthCheck), derandomize=True)
@given(FILTERS, st.integers(0, 2**32))
def test_generated_plain_filters_decide_as_postgresql(
    filter_oracle: FilterOracle, filters: list[str], seed: int
) -> None:
    """Those among thirty that Arrow decides alone, on eighty rows."""
    filter_oracle.fill(random_rows(seed, 80))
    plain = filter_oracle.by_arrow(filters)
    wrong = {
        text: how for text, found in plain.items() if (how := filter_oracle.wrong(text, found))
    }
    assert not wrong
