# SPDX-License-Identifier: Apache-2.0
"""What the router refuses, and in which words.

Every error here is 0A000 but those on what belongs to the node, which are 42501.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from penstock.errors import FeatureNotSupportedError, PenstockError
from penstock.frontdoor.actions import Backend, Relay, WriteLake
from penstock.frontdoor.routing.plans import Plan, PlanRelation, refuse_foreign
from penstock.sql.commands import Command, analyzes, explain_options, object_name
from penstock.sql.commands_table import EXTENSIONS, HINTS
from penstock.sql.copy import without_freeze

_NODE_SCHEMAS = ("penstock", "penstock_query")
_DUMP_HINT = "Run pg_dump with --exclude-schema='penstock*'."

_UNDONE = re.compile(
    "set_config|pg_notify|pg_logical_emit_message|pg_(try_)?advisory_xact_lock(_shared)?"
    "|lo_(creat|create|from_bytea|put|import|unlink|truncate|truncate64)|lowrite"
)
"""Functions that do something which a rollback takes back."""

_SUBSCRIPTIONS_CHANGED = """
SELECT FROM penstock.ddl_event WHERE object_type = 'subscription'
    AND xid = pg_catalog.pg_current_xact_id_if_assigned() LIMIT 1"""
_REFERRED_PARTITIONS = """
SELECT k.conname FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_class c ON c.oid = k.confrelid
WHERE k.contype = 'f' AND c.relkind = 'p' AND c.oid = pg_catalog.to_regclass($1) LIMIT 1"""
_DEFERRABLE = """
SELECT k.conname FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_class c ON c.oid = k.conrelid
WHERE k.contype = 'f' AND k.condeferrable AND c.relpersistence <> 't'
    AND k.conname IN (SELECT pg_catalog.json_array_elements_text($1::pg_catalog.json)) LIMIT 1"""
_ROW_SECURITY = "SELECT pg_catalog.current_setting('row_security')"
_MAY_INSERT = "SELECT pg_catalog.has_any_column_privilege($1::pg_catalog.oid, 'INSERT')"


def judge_writing(plan: Plan, command: Command) -> Relay | WriteLake:
    """A statement that writes: temporary tables only, or lake tables only."""
    lake = [target for target in plan.targets if target.kind == "lake"]
    if lake:
        return _judge_lake(plan, lake, command)
    refuse_foreign(plan.relations)
    for target in plan.targets:
        if target.kind != "temporary":
            raise read_only(target)
    refuse_lake(plan, command, "a statement that writes temporary tables")
    return Relay()


def _judge_lake(plan: Plan, lake: list[PlanRelation], command: Command) -> WriteLake:
    refuse_foreign(plan.relations)
    if len(lake) < len(plan.targets):
        raise _not_yet("writing lake tables together with others", lake[0])
    if plan.locks_rows:
        raise _not_yet("writing lake tables with FOR UPDATE or FOR SHARE", lake[0])
    _refuse_undone(command, lake[0])
    for relation in plan.of_kind("lake"):
        refuse_row_security(relation, uses_view=False)
    needed = {relation.oid for relation in plan.reads if relation.kind == "lake"}
    written = [target.oid for target in lake]
    if not plan.only_inserts:
        needed.update(written)
    return WriteLake(
        command.sql,
        tuple(written),
        tuple(sorted(needed)),
        scans=plan.scans,
        on_conflict=plan.on_conflict,
    )


async def judge_copy(backend: Backend, command: Command, relation: PlanRelation) -> WriteLake:
    """COPY FROM STDIN into a lake table; 42501 for who may insert into none of its columns."""
    refuse_row_security(relation, uses_view=False)
    _refuse_undone(command, relation)
    if await backend.query(_MAY_INSERT, [str(relation.oid)]) != [("t",)]:
        raise PenstockError(f"permission denied for table {relation.name}", sqlstate="42501")
    return WriteLake(without_freeze(command), (relation.oid,), reads_client=True)


def judge_truncate(
    tables: Sequence[PlanRelation], command: Command, options: int
) -> Relay | WriteLake:
    """TRUNCATE: of temporary tables only, or of lake tables only."""
    lake = [table for table in tables if table.kind == "lake"]
    if lake and len(lake) == len(tables):
        relids = tuple(table.oid for table in lake)
        return WriteLake(command.sql, relids, truncates=True, options=options)
    return judge_writing(Plan(tuple(tables), tuple(tables), False), command)


def _refuse_undone(command: Command, relation: PlanRelation) -> None:
    """Refuse functions whose effect would be lost with the savepoint of the statement."""
    for token in command.tokens:
        if token.name is not None and _UNDONE.fullmatch(token.name):
            raise _not_yet(f"{token.name} in a statement that writes lake tables", relation)


def _not_yet(what: str, relation: PlanRelation) -> PenstockError:
    return FeatureNotSupportedError(
        f"{what} is not supported yet", detail=f"{relation} is a table of the lake."
    )


def refuse_lake(plan: Plan, command: Command, where: str) -> None:
    """Refuse a plan that reads lake tables, or writes what is not temporary."""
    refuse_foreign(plan.relations)
    writes = any(target.kind != "temporary" for target in plan.targets)
    if writes and isinstance(judge_writing(plan, command), WriteLake):
        raise inside(command)
    lake = plan.of_kind("lake")
    if lake:
        raise FeatureNotSupportedError(
            f"reading lake tables in {where} is not supported yet",
            detail=f"{lake[0]} is a table of the lake.",
        )


async def refuse_affected(backend: Backend, relation: PlanRelation) -> None:
    """PostgreSQL's error for policies where ``row_security`` is off (42501, check_enable_rls)."""
    if relation.row_security_active and await backend.query(_ROW_SECURITY) == [("off",)]:
        raise PenstockError(
            f'query would be affected by row-level security policy for table "{relation.name}"',
            sqlstate="42501",
        )


def refuse_row_security(relation: PlanRelation, uses_view: bool) -> None:
    """Refuse policies; through a view they may be those of its owner, so none is allowed there."""
    if relation.row_security and (relation.row_security_active or uses_view):
        raise FeatureNotSupportedError(
            "row-level security on lake tables is not supported",
            detail=f"Policies of {relation} would apply to this query.",
            hint="Query the table, without a view, as a role with BYPASSRLS.",
        )


def refuse_node_schema(command: Command) -> None:
    """Refuse commands on the node's schemas (42501); roles and others may have these names."""
    tokens = command.tokens
    of_schema = command.name.endswith(" SCHEMA")
    for index, token in enumerate(tokens):
        if token.name not in _NODE_SCHEMAS:
            continue
        previous = tokens[index - 1].word if index else ""
        qualifies = index + 1 < len(tokens) and tokens[index + 1].text == "."
        is_schema = previous == "schema" or (of_schema and previous not in _BEFORE_ROLE)
        if qualifies or is_schema:
            raise PenstockError(
                f'permission denied for schema "{token.name}"',
                detail="It belongs to the node.",
                hint=_DUMP_HINT if command.name == "LOCK" else None,
                sqlstate="42501",
            )


async def refuse_detach(backend: Backend, command: Command) -> None:
    """Refuse to DETACH a partition of a table that others refer to.

    PostgreSQL would look for rows that refer to the partition's, in empty relations.
    """
    words = [token.word for token in command.rest]
    if "detach" not in words:
        return
    text = "".join(token.text for token in object_name(command.rest))
    for (constraint,) in await backend.query(_REFERRED_PARTITIONS, [text]):
        raise FeatureNotSupportedError(
            "DETACH PARTITION of a table that others refer to is not supported",
            detail=f'Rows that refer to the partition\'s by foreign key constraint "{constraint}"'
            " are not looked for.",
            hint="Drop the constraint, detach the partition, and add the constraint again.",
        )


async def refuse_named_constraints(backend: Backend, command: Command) -> None:
    """Refuse SET CONSTRAINTS of some of the lake's: the node follows ALL (schema/141_…)."""
    if [token.word for token in command.rest[:1]] == ["all"]:
        return
    names = json.dumps([token.name for token in command.rest if token.name is not None])
    for (constraint,) in await backend.query(_DEFERRABLE, [names]):
        raise FeatureNotSupportedError(
            "SET CONSTRAINTS with names of lake tables' constraints is not supported",
            detail=f'Constraint "{constraint}" is deferred together with all others.',
            hint="Use SET CONSTRAINTS ALL.",
        )


async def refuse_prepared_subscriptions(backend: Backend) -> None:
    """Refuse PREPARE TRANSACTION behind subscription commands.

    What the node does around them is done when the session's transaction ends.
    """
    if await backend.query(_SUBSCRIPTIONS_CHANGED):
        raise FeatureNotSupportedError(
            "PREPARE TRANSACTION of a transaction that has changed a subscription is not supported",
            hint="Change subscriptions in a transaction that is not prepared.",
        )


_BEFORE_ROLE = ("to", "authorization")


def refuse_extension(command: Command) -> None:
    """Refuse extensions whose functions run SQL or read tables."""
    name = object_name(command.rest)
    if len(name) == 1 and name[0].name not in EXTENSIONS:
        raise FeatureNotSupportedError(
            f'extension "{name[0].name}" is not supported',
            detail="Its functions could read tables of the lake without their rows.",
            hint=f"Supported extensions are {', '.join(sorted(EXTENSIONS))}.",
        )


def is_type_of_values(command: Command) -> bool:
    """Whether CREATE TYPE makes an enum, composite or range type."""
    behind = command.rest[len(object_name(command.rest)) :]
    return bool(behind) and behind[0].word == "as"


def refusal(command: Command) -> FeatureNotSupportedError:
    """A command that the table refuses."""
    return FeatureNotSupportedError(
        f"{command.name} is not supported",
        detail=command.reason,
        hint=HINTS.get(command.name),
    )


def inside(outer: Command) -> FeatureNotSupportedError:
    """A statement on lake tables inside of a command that PostgreSQL would run."""
    if outer.name == "EXPLAIN":
        return FeatureNotSupportedError(
            "EXPLAIN of other statements on lake tables than queries is not supported yet",
            detail="The control database's plan is not all that such a statement does.",
        )
    return FeatureNotSupportedError(
        f"{outer.name} of queries on lake tables is not supported yet",
        hint="Run the query itself.",
    )


def explains_verbosely(explain: Command) -> bool:
    """Whether an EXPLAIN of a lake query wants details; 0A000 for ANALYZE and other formats."""
    if analyzes(explain):
        raise FeatureNotSupportedError(
            "EXPLAIN ANALYZE of queries on lake tables is not supported yet",
            hint="EXPLAIN shows the plan; run the query itself for its rows.",
        )
    options = explain_options(explain)
    if options.get("format", "text") != "text":
        raise FeatureNotSupportedError(
            "EXPLAIN of queries on lake tables is not supported in this format",
            detail="It is Spark's plan, as text.",
        )
    return options.get("verbose", "off") not in ("off", "false", "0")


def mixed(plan: Plan) -> FeatureNotSupportedError:
    """A query of lake tables and of others."""
    lake = plan.of_kind("lake")[0]
    other = next(relation for relation in plan.relations if relation.kind != "lake")
    return FeatureNotSupportedError(
        "a query cannot use lake tables together with other relations",
        detail=f"{lake} is a table of the lake, {other} is not.",
    )


def read_only(relation: PlanRelation) -> PenstockError:
    """A relation that no client writes (42501)."""
    return PenstockError(
        f"relation {relation} cannot be written",
        detail="Through the node only temporary tables of the control database are written.",
        sqlstate="42501",
    )
