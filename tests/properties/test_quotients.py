# SPDX-License-Identifier: Apache-2.0
"""Quotients of numerics have PostgreSQL's digits and scale, for every pair of types and sizes.

Values are powers of ten, their neighbours and random ones, of every number of digits: where the
weight to base 10000 or its first digit changes, the scale does.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal

import pytest

from tests.support.query_oracle import Oracle

TYPES = [(1, 0), (4, 0), (5, 5), (6, 2), (8, 4), (9, 9), (12, 2), (13, 6), (15, 0), (17, 0)]
WIDE = (28, 8)
EACH = 60
"""Values of each type."""


def values(precision: int, scale: int) -> Iterator[Decimal]:
    """Of a type, as many as EACH."""
    drawn = random.Random(f"{precision},{scale}")
    most = 10**precision - 1
    for _ in range(EACH):
        edge = 10 ** drawn.randint(0, precision) + drawn.choice([-1, 0, 0, 1])
        digits = drawn.randint(0, 10 ** drawn.randint(1, precision) - 1)
        unscaled = min(drawn.choice([edge, digits, digits]), most) * drawn.choice([1, -1])
        yield Decimal(unscaled).scaleb(-scale)


@pytest.fixture(scope="module")
def quotients(oracle: Oracle) -> Oracle:
    """A table with a column of each type."""
    columns = [f"v{at} numeric{each}" for at, each in enumerate(TYPES)]
    oracle.conn.execute(
        f"CREATE TABLE quotients"
        f" (id int, {', '.join(columns)}, w numeric{WIDE}, f int, g bigint)".encode()
    )
    rows = zip(*(values(*each) for each in (*TYPES, WIDE)), strict=True)
    with oracle.conn.cursor() as cursor, cursor.copy("COPY quotients FROM STDIN") as copy:
        for number, row in enumerate(rows):
            copy.write_row((number, *row, number - 3, 10 ** (number % 19)))
        copy.write_row((EACH, *[None] * (len(TYPES) + 3)))
    oracle.load("quotients")
    return oracle


def shown(oracle: Oracle, pair: str) -> str | None:
    """A quotient where it has up to 18 digits and 20 decimals; others are refused."""
    query = f"SELECT id FROM quotients WHERE scale({pair}) <= 20 AND abs({pair}) < 1e18"
    ids = [str(id) for (id,) in oracle.conn.execute(query.encode())]
    return f"CASE WHEN id IN ({', '.join(ids)}) THEN {pair} END" if ids else None


@pytest.mark.parametrize("at", range(len(TYPES)))
def test_quotients_are_postgresqls(quotients: Oracle, at: int) -> None:
    """By columns of each type, integers and constants; shown, computed with and compared."""
    divisors = [f"v{other}" for other in range(len(TYPES))]
    divisors += ["f", "g", "3", "0.07", "-100", "99999.9999", f"(v{at} + 1)", f"abs(v{at})"]
    tried = (shown(quotients, f"v{at} / nullif({divisor}, 0)") for divisor in divisors)
    pairs = [pair for pair in tried if pair is not None]
    assert len(pairs) > 15
    for some in (pairs[:7], pairs[7:13], pairs[13:]):
        assert quotients.compare(f"SELECT id, {', '.join(some)} FROM quotients ORDER BY id") is None
    computed = [f"round({pair}, 5), {pair} > 0.5" for pair in pairs[:4]]
    assert quotients.compare(f"SELECT id, {', '.join(computed)} FROM quotients ORDER BY id") is None


def test_what_spark_has_no_digits_for_is_refused(quotients: Oracle) -> None:
    """Not answered with other digits: quotients with more than 20 decimals, of 28 and 38 digits."""
    refused = 0
    for pair in (
        "v1 / (1 + w)",
        "v8 / 1000000007",
        "w / 3",
        "w / nullif(v1, 0)",
        "w * w / 7",
        "1 / g",
    ):
        found = quotients.compare(f"SELECT id, {pair} FROM quotients")
        assert found is None or found.startswith("refused"), f"{pair}\n{found}"
        refused += found is not None
    assert refused > 1


def test_nothing_is_divided_by_zero(quotients: Oracle) -> None:
    """22012 for a zero, not for one in a row that does not count, nor for NULL / 0."""
    assert quotients.compare("SELECT v6 / 0 FROM quotients") is None
    assert quotients.compare("SELECT v6 / v0 FROM quotients") is None
    assert quotients.compare("SELECT v6 / f FROM quotients WHERE f > 0") is None
    case = "SELECT CASE WHEN f <> 0 THEN v6 / f END FROM quotients"
    assert quotients.compare(case) is None
    assert quotients.compare(f"SELECT v6 / 0.0 FROM quotients WHERE id = {EACH}") is None
