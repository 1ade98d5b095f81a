# SPDX-License-Identifier: Apache-2.0
"""Which rows of its tables a statement can touch, as the planner's scans say.

In:   the plan of a statement, as EXPLAIN (VERBOSE, FORMAT JSON) gives it.
Out:  every scan of a relation in it, with conditions that each row must meet to count.

A row that does not meet a condition of every scan of its table is not seen by the statement, so
the statement does the same without it.  A condition is one conjunct; it may be left out, as that
only lets more rows in.  Views, security barriers, WITH, partitions and what one equality implies of
another are the planner's; what it proves empty is in no scan.

    condition                       where the plan has it
    ---------                       ---------------------
    of the row alone                Filter, Index Cond, Recheck Cond of its scan
    of the row and one of another   the same of a scan inside of a nested loop;
      scan: some row of that one    Hash Cond, Merge Cond, Join Filter of a join above, on a side
      must meet it with the row     whose rows without a partner are nothing to the join's result

Between such a join and the scan there are only joins and nodes that pass rows on: what counts, cuts
or ranks rows might be changed by the absence of some.  Conditions above an Append name the parent
of its scans; which parent that is, is known of the leaves that the statement changes.  A full outer
join needs all rows, a left one those of its left side.  The Filter of a join is not used: it may
ask for null-extended rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from penstock.sql.tokens import Kind, Token, significant

_SCANS = frozenset({"Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Heap Scan"})
"""Scans whose rows are those that meet their conditions, and no others."""

_JOINS = frozenset({"Nested Loop", "Hash Join", "Merge Join"})
_PASSING = frozenset(
    {"Hash", "Sort", "Incremental Sort", "Materialize", "Memoize", "Gather", "Gather Merge"}
)
_APPENDS = frozenset({"Append", "Merge Append"})
_OWN = ("Filter", "Index Cond", "Recheck Cond")
_OF_JOIN = ("Hash Cond", "Merge Cond", "Join Filter")

_NEEDS_PARTNER: Mapping[str, tuple[bool, bool]] = {
    "Inner": (True, True),
    "Semi": (True, True),
    "Right Semi": (True, True),
    "Left": (False, True),
    "Anti": (False, True),
    "Right": (True, False),
    "Right Anti": (True, False),
}
"""By JoinType: whether only rows with a partner count, of the outer and of the inner side."""


@dataclass(frozen=True)
class Condition:
    """A conjunct as SQL; ``names`` are what its columns, and maybe functions, are qualified by."""

    text: str
    names: frozenset[str]


@dataclass(frozen=True)
class Scan:
    """A scan of a relation, or of a VALUES list or functions, whose ``name`` is empty.

    ``conditions`` are empty when all rows may count; they may call a leaf by its ``parent`` instead
    of its ``alias``.  ``functions`` are the calls of a function scan.
    """

    schema: str
    name: str
    alias: str
    conditions: tuple[Condition, ...] = ()
    parent: str = ""
    functions: str = ""


def read_scans(plan: Any, own_parameters: bool = False) -> tuple[Scan, ...]:
    """The scans of a plan, in its order.

    With ``own_parameters``, $1 may not be the client's, and conditions with it are left out.
    """
    reader = _Reader({})
    scans = tuple(scan for entry in plan for scan in reader.scans(entry["Plan"], ()))
    return tuple(map(_without_parameters, scans)) if own_parameters else scans


def _without_parameters(scan: Scan) -> Scan:
    return replace(scan, conditions=tuple(c for c in scan.conditions if "$" not in c.text))


@dataclass(frozen=True)
class _Reader:
    """Reads a plan; ``parents`` has the alias of the parent by that of a leaf."""

    parents: dict[str, str]

    def scans(self, node: Mapping[str, Any], above: tuple[Condition, ...]) -> Iterator[Scan]:
        """The scans in and below a node; ``above`` holds for the rows that it passes on."""
        kind = node["Node Type"]
        for target in node.get("Target Tables", ()):
            self.parents[target["Alias"]] = node.get("Alias", "")
        if kind in ("Values Scan", "Function Scan"):
            yield Scan("", "", node["Alias"], functions=node.get("Function Call", ""))
        elif "Relation Name" in node and kind != "ModifyTable":
            own = [each for name in _OWN for each in conjuncts(node.get(name, ""))]
            conditions = (*own, *above) if kind in _SCANS else ()
            parent = self.parents.get(node["Alias"], "")
            yield Scan(node["Schema"], node["Relation Name"], node["Alias"], conditions, parent)
        for child in node.get("Plans", ()):
            below = self.scans(child, _above(node, child, above))
            of_new_rows = kind == "ModifyTable" and child.get("Parent Relationship") == "SubPlan"
            yield from _of_their_own(list(below)) if of_new_rows else below


def _of_their_own(scans: Sequence[Scan]) -> Iterator[Scan]:
    """Scans of a subquery without conditions on what is outside of it.

    In RETURNING and WITH CHECK OPTION a column of the target is that of the new row.
    """
    known = {name for scan in scans for name in (scan.alias, scan.parent)}
    for scan in scans:
        yield replace(scan, conditions=tuple(c for c in scan.conditions if c.names <= known))


def _above(
    node: Mapping[str, Any], child: Mapping[str, Any], above: tuple[Condition, ...]
) -> tuple[Condition, ...]:
    """What holds for the rows that a child passes on, as far as they count for anything."""
    kind, place = node["Node Type"], child.get("Parent Relationship", "")
    if kind in _APPENDS:
        return above if place == "Member" else ()
    if place not in ("Outer", "Inner") or kind not in _JOINS | _PASSING:
        return ()
    outer, inner = _NEEDS_PARTNER.get(node.get("Join Type", ""), (False, False))
    if outer if place == "Outer" else inner:
        above += tuple(each for name in _OF_JOIN for each in conjuncts(node.get(name, "")))
    return above


def conjuncts(text: str) -> Iterator[Condition]:
    """The conjuncts of a condition as ruleutils.c writes it: every operation in parentheses."""
    tokens = significant(text)
    while len(tokens) > 2 and _closing(tokens) == len(tokens) - 1:
        tokens = tokens[1:-1]
    start = 0
    for end in [*_places_of_and(tokens), len(tokens)]:
        part = tokens[start:end]
        if part:
            yield Condition(text[part[0].start : part[-1].end], _qualifiers(part))
        start = end + 1


def _closing(tokens: list[Token]) -> int:
    """Where the parenthesis closes with which the tokens begin; -1 without one."""
    depth = 0
    for place, token in enumerate(tokens):
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0:
            return place if place else -1
    return -1


def _places_of_and(tokens: list[Token]) -> Iterator[int]:
    depth = 0
    for place, token in enumerate(tokens):
        depth += (token.text in ("(", "[")) - (token.text in (")", "]"))
        if depth == 0 and token.word == "and":
            yield place


def _qualifiers(tokens: list[Token]) -> frozenset[str]:
    return frozenset(
        each.name
        for each, dot in pairwise(tokens)
        if dot.kind is Kind.SYMBOL and dot.text == "." and each.name is not None
    )
