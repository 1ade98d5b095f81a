# SPDX-License-Identifier: Apache-2.0
"""COPY TO STDOUT of lake tables: what the control database is to run, and what the lake sends."""

from __future__ import annotations

from penstock.errors import FeatureNotSupportedError
from penstock.frontdoor.actions import CopyLake, RunOnLake
from penstock.frontdoor.routing.plans import PlanRelation
from penstock.frontdoor.routing.refusals import refuse_row_security
from penstock.sql.commands import Command
from penstock.sql.copy import is_copy_to, is_to_client, parse_copy_to

_BEFORE, _BEHIND = "SELECT * FROM (", ") AS copied LIMIT 0"
"""Around a query: it then gives no row, and computes none, whatever the tables have."""


def judge_copy_to(command: Command, relation: PlanRelation) -> CopyLake:
    """COPY of a lake table to the client; 0A000 for any other target."""
    _refuse_files(command)
    refuse_row_security(relation, uses_view=False)
    parsed = parse_copy_to(command)
    return CopyLake(
        command.sql,
        (relation.oid,),
        parsed.options if parsed else None,
        parsed.columns if parsed else None,
    )


def copy_of_query(command: Command, query: RunOnLake) -> CopyLake:
    """COPY of a query that reads lake tables to the client; 0A000 for any other target."""
    _refuse_files(command)
    parsed = parse_copy_to(command)
    if parsed is None or parsed.query is None:
        return CopyLake(command.sql, query.relids, None, query=query)
    (start, end), text = parsed.query, command.sql
    return CopyLake(
        f"{text[:start]}{_BEFORE}{text[start:end]}{_BEHIND}{text[end:]}",
        query.relids,
        parsed.options,
        query=query,
        inserted=((start, len(_BEFORE)), (end, len(_BEHIND))),
    )


def _refuse_files(command: Command) -> None:
    """What is neither FROM nor TO is a syntax error, which PostgreSQL raises."""
    if is_copy_to(command) and not is_to_client(command):
        raise FeatureNotSupportedError(
            "COPY of lake tables is supported to the client only",
            hint="Use COPY ... TO STDOUT, or psql's \\copy.",
        )
