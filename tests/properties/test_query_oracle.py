# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL is the oracle: what it answers, the lake answers with the same text, or refuses.

``answered.sql`` must be answered alike, errors included; ``refused.sql`` must be refused with the
reason that stands there.  Known and deliberate: a column of bare numeric counts as having the
least display scale that shows each value, so the tables hold no other.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import PenstockError
from tests.support.query_oracle import Oracle

HERE = Path(__file__).parent
PIECES = 4
"""Tests that the long list is cut into, so that a failure is found sooner."""


def lines(name: str) -> list[str]:
    text = (HERE / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("--")]


@pytest.mark.parametrize("piece", range(PIECES))
def test_queries_are_answered_as_postgresql_answers_them(oracle: Oracle, piece: int) -> None:
    """Every query of answered.sql has PostgreSQL's rows, or PostgreSQL's error."""
    wrong = oracle.compare_all(lines("answered.sql")[piece::PIECES])
    assert not wrong, "\n".join(f"{query}\n{how}" for query, how in wrong.items())


def test_queries_without_an_exact_translation_are_refused(oracle: Oracle) -> None:
    """Every query of refused.sql is refused with 0A000, and the refusal names the reason."""
    wrong = {}
    for line in lines("refused.sql"):
        query, _, reason = line.partition(" -- ")
        try:
            wrong[query] = str(oracle.translated(query))
        except PenstockError as error:
            if error.sqlstate != "0A000" or reason not in str(error):
                wrong[query] = f"{error.sqlstate} {error}"
    assert not wrong, "\n".join(f"{query}\n{how}" for query, how in wrong.items())
