# SPDX-License-Identifier: Apache-2.0
"""What a statement reads and writes, asked of PostgreSQL's planner.

In:   a statement's text and the types of its parameters, in the client's own session.
Out:  a Plan: every relation in it with its kind, those that are written, whether rows are locked.

The planner resolves names and views and checks privileges, by the session's role and search_path.
The plan is a generic one: nothing is missing because of a parameter's value or the time of day.
What it proves empty or superfluous for any data of the tables (WHERE false) is not in the plan.

PostgreSQL's error is the statement's own: its position is moved back to the statement's text.

    kind       what
    ----       ----
    lake       has a row in penstock.table_version
    temporary  of this session
    system     catalogs, information_schema, the schema penstock, sequences
    foreign    anything else (an external control database may have some): never read, never written
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from penstock.errors import FeatureNotSupportedError, InvisibleError, PenstockError
from penstock.frontdoor.actions import Backend, Row
from penstock.frontdoor.writing.scans import Scan, read_scans
from penstock.names import quote_pg_literal, quote_pg_qualified
from penstock.sql.commands import Command
from penstock.sql.commands_guards import check_plan
from penstock.sql.tokens import Kind
from penstock.wire.responses import ServerError

RelationKind = Literal["lake", "temporary", "system", "foreign"]

_PLAN_OF = "SELECT penstock.plan_of($1)"
_PREFIX = "EXPLAIN (VERBOSE, GENERIC_PLAN, COSTS OFF, FORMAT JSON) "
"""What penstock.plan_of puts before the statement; positions in errors count it."""
_RELATIONS_IN_PLAN = "SELECT penstock.relations_in_plan($1, $2)"
TEMPORARY_SCHEMA = "pg_temp"
_SYSTEM_SCHEMAS = ("pg_catalog", "information_schema", "pg_toast", "penstock")

_RELATION_COLUMNS = """
c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, v.relid IS NOT NULL"""
_BY_NAME = f"""
SELECT {_RELATION_COLUMNS},
    c.relrowsecurity OR coalesce(above.secured, false),
    pg_catalog.row_security_active(c.oid) OR coalesce(above.active, false)
FROM pg_catalog.json_to_recordset($1::pg_catalog.json) AS r(s pg_catalog.text, t pg_catalog.text)
LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = r.s
LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = r.t
LEFT JOIN penstock.table_version v ON v.relid = c.oid
LEFT JOIN LATERAL (
    SELECT pg_catalog.bool_or(p.relrowsecurity) AS secured,
        pg_catalog.bool_or(pg_catalog.row_security_active(p.oid)) AS active
    FROM pg_catalog.pg_partition_ancestors(c.oid) a
    JOIN pg_catalog.pg_class p ON p.oid = a.relid
) above ON c.relispartition"""
"""Of the relations of a plan: it names leaves where the statement may name what is above them."""
_BY_TEXT = f"""
SELECT {_RELATION_COLUMNS}, c.relrowsecurity, pg_catalog.row_security_active(c.oid)
FROM pg_catalog.json_array_elements_text($1::pg_catalog.json) AS r(t)
LEFT JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(r.t)
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN penstock.table_version v ON v.relid = c.oid
WHERE pg_catalog.to_regclass(r.t) IS NOT NULL"""


@dataclass(frozen=True)
class PlanRelation:
    """A relation that a statement touches.

    ``row_security`` is pg_class.relrowsecurity, ``row_security_active`` whether policies apply to
    the current role; of a partition in a plan both count for what is above it, too.  ``oid`` is 0
    for a temporary relation in a plan: nobody asks for it.
    """

    oid: int
    schema: str
    name: str
    kind: RelationKind
    row_security: bool = False
    row_security_active: bool = False

    def __str__(self) -> str:
        return f'"{self.schema}.{self.name}"'


@dataclass(frozen=True)
class Plan:
    """The relations of a plan.

    ``targets`` are those that ModifyTable nodes write, ``reads`` what other nodes name; a relation
    may be among both.  ``only_inserts``: no ModifyTable node does anything but insert
    rows, each of them or none; ``on_conflict``: one has an ON CONFLICT.  ``scans`` are those of a
    statement that writes.
    """

    relations: tuple[PlanRelation, ...]
    targets: tuple[PlanRelation, ...]
    locks_rows: bool
    reads: tuple[PlanRelation, ...] = ()
    only_inserts: bool = False
    on_conflict: bool = False
    scans: tuple[Scan, ...] = ()

    def of_kind(self, kind: RelationKind) -> list[PlanRelation]:
        """The relations of a kind, written ones too."""
        return [relation for relation in self.relations if relation.kind == kind]


async def explain(backend: Backend, command: Command, parameter_oids: Sequence[int] = ()) -> Plan:
    """Plan a statement; raises PostgreSQL's own error for it.

    0A000 for a plan that calls what is refused, and for relations that are not visible.
    """
    statement = _Substituted(command, await _casts(backend, command, parameter_oids))
    try:
        ((text,),) = await backend.query(_PLAN_OF, [statement.text])
    except PenstockError as error:
        statement.claim(error)
        raise
    text = text or "[]"
    check_plan(text, any(token.name == "set_config" for token in command.tokens))
    names: dict[tuple[str, str], None] = {}
    targets: set[tuple[str, str]] = set()
    reads: set[tuple[str, str]] = set()
    locks_rows, only_inserts, on_conflict = False, True, False
    plan = json.loads(text)
    for node in _nodes(plan):
        on_conflict = on_conflict or "Conflict Resolution" in node
        locks_rows = locks_rows or node.get("Node Type") == "LockRows"
        if node.get("Operation", "Insert") != "Insert" or "Conflict Resolution" in node:
            only_inserts = False
        if "Relation Name" in node:
            name = (node["Schema"], node["Relation Name"])
            names[name] = None
            is_target = node.get("Node Type") == "ModifyTable"
            (targets if is_target else reads).add(name)
    found = await _relations(backend, list(names))
    return Plan(
        tuple(found.values()),
        tuple(found[name] for name in sorted(targets)),
        locks_rows,
        tuple(found[name] for name in sorted(reads)),
        only_inserts,
        on_conflict,
        read_scans(plan, _has_own_parameters(backend, text)) if targets else (),
    )


async def scanned(
    backend: Backend,
    command: Command,
    parameter_oids: Sequence[int],
    values: Mapping[int, str | None],
    *,
    generic: bool,
) -> set[int] | None:
    """What a query reads when the parameters of these numbers have these values, as texts.

    What the plan leaves out because of the values is not among it; nor, unless it is ``generic``,
    because of the transaction's time.  Generic it is when a value is missing.  None when a name in
    the plan is not that of its relation any more.
    """
    written = await _casts(backend, command, parameter_oids)
    for name in {token.text for token in command.tokens if token.kind is Kind.PARAMETER}:
        number = int(name[1:])
        if number in values:
            value = values[number]
            literal = "NULL" if value is None else quote_pg_literal(value)
            written[name] = written.get(name, f"({name})").replace(name, literal, 1)
        else:
            generic = True
    statement = _Substituted(command, written)
    try:
        ((text,),) = await backend.query(
            _RELATIONS_IN_PLAN, [statement.text, "true" if generic else "false"]
        )
    except ServerError as error:
        for field in ("P", "p", "q", "W"):  # they would tell of our function and our text
            error.fields.pop(field, None)
        raise
    oids = (text or "{}").strip("{}").split(",")
    return None if "NULL" in oids else {int(oid) for oid in oids if oid}


def _has_own_parameters(backend: Backend, plan: str) -> bool:
    """Whether $1 in a plan may be a subquery's result: before 17 they were written like that."""
    version = backend.parameters.get("server_version", "0").partition(".")[0]
    return '"Subplan Name"' in plan and not (version.isdecimal() and int(version) >= 17)


async def named_relations(backend: Backend, texts: Sequence[str]) -> list[PlanRelation]:
    """The relations that these texts name, as in a statement; those that do not exist are left out.

    A view or an index has the kind system: a command that needs a table refuses it by itself.
    """
    found = []
    for row in await backend.query(_BY_TEXT, [json.dumps(list(texts))]):
        if row[0] is None:
            raise InvisibleError("a relation")
        found.append(_relation(row))
    return found


def _nodes(plan: Any) -> Iterator[dict[str, Any]]:
    """Every object in the JSON of a plan: nodes, and the target tables in a ModifyTable."""
    if isinstance(plan, list):
        for each in plan:
            yield from _nodes(each)
    elif isinstance(plan, dict):
        if "Target Tables" in plan:
            for target in plan["Target Tables"]:
                yield {**target, "Node Type": "ModifyTable"}
        yield plan
        for key, value in plan.items():
            if isinstance(value, list | dict) and key != "Target Tables":
                yield from _nodes(value)


async def _relations(
    backend: Backend, names: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], PlanRelation]:
    found = {
        name: PlanRelation(0, *name, "temporary") for name in names if name[0] == TEMPORARY_SCHEMA
    }
    others = [name for name in names if name not in found]
    if others:
        wanted = json.dumps([{"s": schema, "t": table} for schema, table in others])
        rows = await backend.query(_BY_NAME, [wanted])
        found |= {(each.schema, each.name): each for each in map(_relation, rows)}
    missing = [name for name in names if name not in found]
    if missing:
        raise InvisibleError(f"relation {quote_pg_qualified(*missing[0])}")
    return found


def _relation(row: Row) -> PlanRelation:
    oid, schema, name, relkind, persistence, is_lake, security, active = row
    if oid is None or schema is None or name is None:
        return PlanRelation(0, "", "", "foreign")
    kind: RelationKind = "foreign"
    if persistence == "t":
        kind = "temporary"
    elif is_lake == "t":
        kind = "lake"
    elif schema in _SYSTEM_SCHEMAS or relkind not in ("r", "p", "m", "f"):
        kind = "system"
    return PlanRelation(int(oid), schema, name, kind, security == "t", active == "t")


_COMMON_TYPES = {
    16: "bool",
    17: "bytea",
    20: "int8",
    21: "int2",
    23: "int4",
    25: "text",
    26: "oid",
    700: "float4",
    701: "float8",
    1043: "varchar",
    1082: "date",
    1114: "timestamp",
    1184: "timestamptz",
    1700: "numeric",
    2950: "uuid",
    3802: "jsonb",
}
_UNKNOWN = 705


async def _casts(
    backend: Backend, command: Command, parameter_oids: Sequence[int]
) -> dict[str, str]:
    """Text of a parameter -> the same with its declared type, which EXPLAIN is not told."""
    casts = {}
    for token in command.tokens:
        if token.kind is not Kind.PARAMETER or token.text in casts:
            continue
        number = int(token.text[1:])
        oid = parameter_oids[number - 1] if 0 < number <= len(parameter_oids) else 0
        if oid not in (0, _UNKNOWN):
            casts[token.text] = f"({token.text}::{await _type_name(backend, oid)})"
    return casts


async def _type_name(backend: Backend, oid: int) -> str:
    if oid in _COMMON_TYPES:
        return f"pg_catalog.{_COMMON_TYPES[oid]}"
    # Type modifier -1: format_type(bpchar) would be "character", which is character(1).
    rows = await backend.query("SELECT pg_catalog.format_type($1, -1)", [str(oid)])
    return rows[0][0] or "???"


class _Substituted:
    """A statement with types at its parameters, and the way back for positions."""

    def __init__(self, command: Command, casts: dict[str, str]) -> None:
        parts = []
        place = 0
        self._growth: list[tuple[int, int]] = []  # (end of a parameter in the text, longer by)
        for token in command.tokens:
            cast = casts.get(token.text) if token.kind is Kind.PARAMETER else None
            if cast is not None:
                parts += [command.sql[place : token.start], cast]
                self._growth.append((token.end, len(cast) - len(token.text)))
                place = token.end
        self.text = "".join([*parts, command.sql[place:]])

    def claim(self, error: PenstockError) -> None:
        """Make an error inside of plan_of one of the statement, its position too."""
        error.where = None
        if not isinstance(error, ServerError):
            return
        fields = error.fields
        internal = fields.pop("p", None)
        for name in ("q", "W"):
            fields.pop(name, None)
        if internal is not None:
            fields["P"] = str(self._place(int(internal) - len(_PREFIX)))

    def _place(self, position: int) -> int:
        """The statement's position for one in the substituted text; both count from 1."""
        shift = 0
        for end, longer in self._growth:
            if position > end + shift + longer:
                shift += longer
        return max(1, position - shift)


def refuse_foreign(relations: Sequence[PlanRelation]) -> None:
    """Refuse relations that are neither the lake's nor the system's nor temporary (0A000)."""
    for relation in relations:
        if relation.kind == "foreign":
            raise FeatureNotSupportedError(
                f"relation {relation} is not supported",
                detail="It is not a table of the lake, so it is neither read nor written.",
            )
