# SPDX-License-Identifier: Apache-2.0
"""Which partitions a query reads, as PostgreSQL's planner prunes them.

In:   catalog facts about what a query names; its text and the values of its parameters.
Out:  the facts, where partitioned tables have those leaves alone that are in the plan.

Spark needs some ten milliseconds for each leaf, however little is in it.  The plan is made when the
query runs: so it has the values, and partitions that were attached since it was prepared.  A leaf
is left out when no use of its table may find a row there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from penstock.change import types
from penstock.frontdoor.actions import Backend, Parameter
from penstock.frontdoor.routing.plans import scanned
from penstock.sql.commands import parse
from penstock.sql.tokens import Kind
from penstock.sql.translate.facts import Facts, RelationFacts
from penstock.wire.encodings import decode

_LATER = "statement_timestamp()"
"""Spark's query gets a later one than the plan."""

_EPOCH = datetime(2000, 1, 1)

_TEXTS = frozenset({types.TEXT, types.VARCHAR, types.BPCHAR, types.NAME})
"""Their binary form is their text."""

_BINARY: dict[int, Callable[[int], str]] = {
    types.INT2: str,
    types.INT4: str,
    types.INT8: str,
    types.DATE: lambda days: (_EPOCH + timedelta(days=days)).date().isoformat(),
    types.TIMESTAMP: lambda us: (_EPOCH + timedelta(microseconds=us)).isoformat(),
    types.TIMESTAMPTZ: lambda us: f"{(_EPOCH + timedelta(microseconds=us)).isoformat()}+00",
}
"""The text of a value whose binary form is a number."""


@dataclass(frozen=True)
class Asked:
    """A query as the client sent it."""

    sql: str
    parameters: Sequence[Parameter] = ()


async def without_pruned(backend: Backend, facts: Facts, asked: Asked) -> Facts:
    """The facts without the leaves that the query does not read."""
    several = [each for each in facts.relations.values() if len(each.leaf_names) > 1]
    if not several or _LATER in facts.values:
        return facts
    conforming = backend.parameters.get("standard_conforming_strings", "on") == "on"
    command = parse(asked.sql, conforming)
    named = {token.text for token in command.tokens if token.kind is Kind.PARAMETER}
    encoding = backend.parameters.get("client_encoding", "UTF8")
    texts = _texts(asked.parameters, encoding)
    if texts is None or len(named) < len(texts):
        return facts  # the plan cannot be given the values
    read = await scanned(backend, command, [each.type_oid for each in asked.parameters], texts)
    kept = {each.relid: _only(each, read) for each in several}
    return replace(facts, relations=facts.relations | kept)


def _only(relation: RelationFacts, read: set[tuple[str, str]]) -> RelationFacts:
    leaves = zip(relation.leaves, relation.leaf_names, strict=True)
    return replace(relation, leaves=tuple(oid for oid, name in leaves if name in read))


def _texts(parameters: Sequence[Parameter], encoding: str) -> list[str | None] | None:
    """The values as PostgreSQL reads them; None when there is a binary form not read here."""
    texts: list[str | None] = []
    for each in parameters:
        if each.value is None:
            texts.append(None)
        elif each.format == 0 or each.type_oid in _TEXTS:
            texts.append(decode(each.value, encoding))
        elif each.type_oid in _BINARY:
            number = int.from_bytes(each.value, "big", signed=True)
            try:
                texts.append(_BINARY[each.type_oid](number))
            except OverflowError:  # infinity, or a year that Python does not have
                return None
        else:
            return None
    return texts
