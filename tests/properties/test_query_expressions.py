# SPDX-License-Identifier: Apache-2.0
"""Generated expressions have PostgreSQL's values on the lake, or are refused; never others.

Expressions are typed by construction, so PostgreSQL accepts most of them.  Several go into one
query; when that fails on either side, each is tried alone, and both sides must fail alike.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.expressions import SHARED, Grammar, together
from tests.support.query_oracle import Oracle

COLUMNS = {
    "int": ["id", "boss", "small", "big", "length(name)", "nums[1]"],
    "numeric": ["salary", "rate", "salary::numeric(12,4)", "id::numeric"],
    "float": ["score", "r"],
    "text": ["name", "city", "code", "code::text"],
    "date": ["born", "seen::date"],
    "time": ["seen", "logged::timestamp"],
    "bool": ["ok", "id > 3", "name IS NULL"],
}
CONSTANTS = {
    "int": ["0", "1", "-3", "7", "32767", "2147483647", "NULL::int", "2::int2", "5::int8"],
    "numeric": ["0.5", "-1.25", "3", "0.00", "1000000.001", "NULL::numeric"],
    "float": ["1.5::float8", "0::float8", "'-Infinity'::float8", "'NaN'::float8", "1e10::float8"],
    "text": ["'a'", "''", "'Bob '", "'é_%'", "NULL::text", "'b'::char(3)"],
    "date": ["date '2024-02-29'", "date '1900-01-01'", "NULL::date"],
    "time": ["timestamp '2024-03-31 02:30:00.000001'", "timestamp '1969-12-31 23:59:59.5'"],
    "bool": ["true", "false", "NULL::bool"],
}
RULES = together(
    SHARED,
    {
        "numeric": ["({numeric} / {numeric})", "({int} / {numeric})"],
        "text": [
            "lpad({text}, {small}, {text})", "rpad({text}, {small})",
            "concat({text}, {int}, {bool}, {numeric})", "{int}::text", "{numeric}::text",
            "{date}::text", "{time}::text", "split_part({text}, {text}, {small})",
            "repeat({text}, {small})", "concat_ws('-', {text}, {int})",
        ],
        "bool": [
            "({int} < {int})", "({numeric} = {numeric})", "({float} >= {float})",
            "({text} = {text})", "({text} < {text})", "({date} <= {time})",
            "({int} IN ({int}, {int}))", "({text} LIKE '%a_')", "({bool} IS NOT TRUE)",
            "({int} = ANY (nums))", "({text} ILIKE 'B%')", "({int} = {numeric})",
            "({int} < {float})", "({numeric} > {float})",
        ],
    },
)  # fmt: skip
SMALL = {"small": ["-2", "0", "1", "2", "5", "id - 3"]}
GRAMMAR = Grammar(COLUMNS, CONSTANTS, RULES, SMALL)


KINDS = st.sampled_from(sorted(RULES))
LISTS = st.lists(KINDS.flatmap(lambda kind: GRAMMAR.expressions(kind, 3)), min_size=8, max_size=8)


def is_fine(difference: str | None) -> bool:
    return difference is None or difference.startswith("refused")


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(LISTS)
def test_expressions_have_postgresqls_values(oracle: Oracle, listed: list[str]) -> None:
    """Eight expressions over all rows."""
    if oracle.compare(f"SELECT {', '.join(listed)} FROM people") is None:
        return
    for each in listed:
        difference = oracle.compare(f"SELECT id, {each} FROM people")
        assert is_fine(difference), f"{each}\n{difference}"


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    GRAMMAR.expressions("bool", 3),
    GRAMMAR.expressions("text", 2),
    GRAMMAR.expressions("numeric", 2),
)
def test_generated_queries_have_postgresqls_rows(
    oracle: Oracle, condition: str, key: str, value: str
) -> None:
    """Conditions, grouping and aggregates over generated expressions."""
    query = (
        f"SELECT {key}, count(*), sum({value}), max({value}), avg(id) FROM people"
        f" WHERE {condition} OR id < 3 GROUP BY {key}"
    )
    difference = oracle.compare(query)
    assert is_fine(difference), f"{query}\n{difference}"
