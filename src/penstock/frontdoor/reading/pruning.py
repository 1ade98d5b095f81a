# SPDX-License-Identifier: Apache-2.0
"""Which partitions a query reads, as PostgreSQL's planner prunes them.

In:   catalog facts about what a query names; its text and the values of its parameters.
Out:  the facts, where partitioned tables have those leaves alone that are in the plan.

Spark needs some ten milliseconds for each leaf, however little is in it.  The plan is made when the
query runs: so it has the values, and partitions that were attached since it was prepared.  A leaf
is left out when no use of its table may find a row there.  Where a value cannot be told, the plan
is one for any value of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from penstock.change import types
from penstock.frontdoor.actions import Backend, Parameter
from penstock.frontdoor.routing.plans import scanned
from penstock.sql.commands import parse
from penstock.sql.translate.facts import Facts, RelationFacts
from penstock.wire.encodings import decode

_EARLIER = "statement_timestamp()"
"""Spark's query has an earlier one than the plan: then it must not count for that."""

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
    several = [each for each in facts.relations.values() if each.kind == "p"]
    if all(len(each.leaves) < 2 for each in several):
        return facts
    conforming = backend.parameters.get("standard_conforming_strings", "on") == "on"
    encoding = backend.parameters.get("client_encoding", "UTF8")
    read = await scanned(
        backend,
        parse(asked.sql, conforming),
        [each.type_oid for each in asked.parameters],
        _texts(asked.parameters, encoding),
        generic=_EARLIER in facts.values,
    )
    if read is None:
        return facts
    kept = {each.relid: _only(each, read) for each in several}
    return replace(facts, relations=facts.relations | kept)


def _only(relation: RelationFacts, read: Set[int]) -> RelationFacts:
    return replace(relation, leaves=tuple(leaf for leaf in relation.leaves if leaf in read))


def _texts(parameters: Sequence[Parameter], encoding: str) -> dict[int, str | None]:
    """By number the values as PostgreSQL reads them, without binary forms not read here."""
    texts: dict[int, str | None] = {}
    for number, each in enumerate(parameters, 1):
        if each.value is None:
            texts[number] = None
        elif each.format == 0 or each.type_oid in _TEXTS:
            texts[number] = decode(each.value, encoding)
        elif each.type_oid in _BINARY:
            value = int.from_bytes(each.value, "big", signed=True)
            # Infinity, and years that Python does not have, are left out.
            with suppress(OverflowError):
                texts[number] = _BINARY[each.type_oid](value)
    return texts
