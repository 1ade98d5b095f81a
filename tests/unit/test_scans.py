# SPDX-License-Identifier: Apache-2.0
"""Conditions and scans as they are read from the text of a plan."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.frontdoor.writing.scans import conjuncts, read_scans


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("(t.id = 5)", ["t.id = 5"]),
        ("((t.id = 5) AND (t.a = 'x AND y'::text))", ["(t.id = 5)", "(t.a = 'x AND y'::text)"]),
        ("(t.b AND (NOT t.c))", ["t.b", "(NOT t.c)"]),
        ("((t.id = 5) OR (t.b AND t.c))", ["(t.id = 5) OR (t.b AND t.c)"]),
        (
            "(CASE WHEN (t.b AND t.c) THEN true ELSE false END AND (t.id > 1))",
            ["CASE WHEN (t.b AND t.c) THEN true ELSE false END", "(t.id > 1)"],
        ),
        ('((t."and" = 1) AND (t."a)b" = 2))', ['(t."and" = 1)', '(t."a)b" = 2)']),
        ("t.b", ["t.b"]),
        ("", []),
    ],
)
def test_a_condition_is_cut_at_its_outermost_ands(text: str, parts: list[str]) -> None:
    """Not inside of parentheses, CASE, texts or names."""
    assert [each.text for each in conjuncts(text)] == parts


def test_names_are_those_before_a_dot() -> None:
    """Aliases as they are written; not columns, fields, numbers or texts."""
    (one,) = conjuncts("""((t.id = "My T".x) OR ((s.c).f = 1.5) OR (t.a = 'u.v'::text))""")
    assert one.names == {"t", "My T", "s"}


def _scan(name: str, place: str = "Outer", **more: Any) -> dict[str, Any]:
    return {
        "Node Type": "Seq Scan",
        "Parent Relationship": place,
        "Schema": "public",
        "Relation Name": name,
        "Alias": name,
        **more,
    }


@pytest.mark.parametrize(
    ("kind", "outer", "inner"),
    [
        ("Inner", True, True),
        ("Left", False, True),
        ("Right", True, False),
        ("Full", False, False),
        ("Semi", True, True),
        ("Anti", False, True),
        ("Right Anti", True, False),
        ("Some New Kind", False, False),
    ],
)
def test_a_join_says_something_of_sides_that_need_a_partner(
    kind: str, outer: bool, inner: bool
) -> None:
    """Its condition holds for rows that count on these sides, through a Hash, not an Aggregate."""
    below = {"Node Type": "Hash", "Parent Relationship": "Inner", "Plans": [_scan("b")]}
    plan = {
        "Node Type": "Hash Join",
        "Join Type": kind,
        "Hash Cond": "(a.x = b.x)",
        "Plans": [_scan("a", Filter="(a.y > 1)"), below],
    }
    first, second = read_scans([{"Plan": plan}])
    assert [each.text for each in first.conditions] == ["a.y > 1", *(["a.x = b.x"] * outer)]
    assert [each.text for each in second.conditions] == ["a.x = b.x"] * inner
    below["Node Type"] = "Aggregate"
    assert not read_scans([{"Plan": plan}])[1].conditions


def test_scans_that_choose_their_rows_otherwise_want_all() -> None:
    """A sample's rows are not those that meet its filter."""
    sample = _scan("a", Filter="(a.y > 1)") | {"Node Type": "Sample Scan"}
    assert not read_scans([{"Plan": sample}])[0].conditions


def test_parameters_that_may_be_a_subquerys_are_left_out() -> None:
    """Before PostgreSQL 17 a plan wrote both as $1."""
    plan = [{"Plan": _scan("a", Filter="((a.y = $1) AND (a.x = 2))")}]
    assert len(read_scans(plan)[0].conditions) == 2
    assert [each.text for each in read_scans(plan, True)[0].conditions] == ["(a.x = 2)"]


def test_a_subquery_of_new_rows_is_not_one_of_those_that_were_scanned() -> None:
    """Below the ModifyTable itself, as RETURNING is, a column of the target is the new row's."""
    conditions = {"Filter": "((b.x = a.x) AND (b.y = 1))"}
    plan = {
        "Node Type": "ModifyTable",
        "Operation": "Update",
        "Plans": [
            _scan("a", Plans=[_scan("b", "SubPlan", **conditions)]),
            _scan("b", "SubPlan", **conditions),
        ],
    }
    _, before, after = read_scans([{"Plan": plan}])
    assert [each.text for each in before.conditions] == ["(b.x = a.x)", "(b.y = 1)"]
    assert [each.text for each in after.conditions] == ["(b.y = 1)"]
