# SPDX-License-Identifier: Apache-2.0
"""Catalog facts for a translation, asked in the client's own session.

Functions and operators that PostgreSQL brings never change their meaning, so they are asked for
once; relations are asked for with every statement, since the session may just have changed them.
All names in the queries here are qualified: the client's search_path must not matter.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.change.relation import LakeColumn
from penstock.errors import TableStateError
from penstock.frontdoor.actions import Backend
from penstock.lake.query import TableAt
from penstock.sql.nodes import parse_nodes
from penstock.sql.translate.facts import (
    FIRST_OWN_OID,
    SESSION_FUNCTIONS,
    Facts,
    Needs,
    Operator,
    RelationFacts,
    needs,
)
from penstock.sql.translate.registry import Function

STYLED = frozenset(
    {1186, 1187, 3908, 3909, 3910, 3911, 3912, 3913, 4533, 4534, 4535, 6152, 6153, 6155}
)
"""interval, ranges and multiranges of dates and timestamps, and arrays of them."""

_SETTINGS = (
    "TimeZone",
    "DateStyle",
    "IntervalStyle",
    "bytea_output",
    "extra_float_digits",
    "client_encoding",
    "statement_timeout",
)

_COLUMNS = """
    (SELECT coalesce(json_agg(json_build_array(a.attnum, a.attname, a.atttypid::int8, a.atttypmod,
            a.attnotnull) ORDER BY a.attnum), '[]'::json)
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)"""

_FACTS = f"""
SELECT
(SELECT json_agg(json_build_object(
    'relid', c.oid::int8, 'schema', n.nspname, 'name', c.relname, 'kind', c.relkind,
    'columns', {_COLUMNS},
    'children', EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid),
    'lake', EXISTS (SELECT FROM penstock.table_version v WHERE v.relid = c.oid),
    'leaves', CASE WHEN c.relkind = 'p' THEN
        (SELECT json_agg(t.relid::oid::int8) FROM pg_catalog.pg_partition_tree(c.oid) t
            WHERE t.isleaf AND t.relid <> c.oid) END,
    'view', CASE WHEN c.relkind = 'v' THEN
        (SELECT r.ev_action::text FROM pg_catalog.pg_rewrite r
            WHERE r.ev_class = c.oid AND r.rulename = '_RETURN') END))
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = ANY ($1::oid[])),
(SELECT json_agg(json_build_array(p.oid::int8, n.nspname, p.proname,
    (SELECT coalesce(json_agg(t.typname ORDER BY a.place), '[]'::json)
        FROM pg_catalog.unnest(p.proargtypes::oid[]) WITH ORDINALITY a (type, place)
        JOIN pg_catalog.pg_type t ON t.oid = a.type)))
    FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    WHERE p.oid = ANY ($2::oid[])),
(SELECT json_agg(json_build_array(o.oid::int8, o.oprname, p.proname))
    FROM pg_catalog.pg_operator o JOIN pg_catalog.pg_proc p ON p.oid = o.oprcode
    WHERE o.oid = ANY ($3::oid[])),
(SELECT json_agg(json_build_array(e.enumtypid::int8, e.oid::int8, e.enumlabel))
    FROM pg_catalog.pg_enum e WHERE e.oid = ANY ($4::oid[])),
json_build_object({
    ", ".join(f"'{name}', pg_catalog.current_setting('{name}')" for name in _SETTINGS)
})
"""

_SHOWN = [f"pg_catalog.current_setting('{name}')" for name in _SETTINGS]

_VERSIONS = f"""
SELECT c.oid::text, v.location, v.version::text, {_COLUMNS}::text
FROM pg_catalog.pg_class c JOIN penstock.table_version v ON v.relid = c.oid
WHERE c.oid = ANY ($1::oid[])
ORDER BY c.oid
"""

_NUMBERS = {
    "now()": "({} AT TIME ZONE 'UTC')",
    "transaction_timestamp()": "({} AT TIME ZONE 'UTC')",
    "statement_timestamp()": "({} AT TIME ZONE 'UTC')",
    "current_timestamp": "({} AT TIME ZONE 'UTC')",
    "localtimestamp": "{}",
}
"""Session values that are times, as a timestamp without time zone."""


_BASE_TYPES = """
WITH RECURSIVE base (oid, type) AS (
    SELECT oid, oid FROM pg_catalog.pg_type WHERE oid = ANY ($1::pg_catalog.oid[])
    UNION ALL
    SELECT b.oid, t.typbasetype FROM base b
    JOIN pg_catalog.pg_type t ON t.oid = b.type WHERE t.typtype = 'd')
SELECT b.oid::pg_catalog.text, b.type::pg_catalog.text FROM base b
JOIN pg_catalog.pg_type t ON t.oid = b.type WHERE t.typtype <> 'd'"""


class CatalogReader:
    """Reads facts; remembers what PostgreSQL brings."""

    def __init__(self) -> None:
        self._functions: dict[int, Function] = {}
        self._operators: dict[int, Operator] = {}

    async def facts(self, backend: Backend, tree: Any) -> tuple[Facts, dict[str, str]]:
        """Everything that a tree, and the views in it, name; and the session's settings."""
        relations: dict[int, RelationFacts] = {}
        functions, operators = dict(self._functions), dict(self._operators)
        keywords: set[str] = set()
        labels: dict[tuple[int, int], str] = {}
        wanted = needs([tree])
        settings: dict[str, str] = {}
        while True:
            keywords |= wanted.keywords
            found, settings = await self._ask(
                backend, wanted, relations, functions, operators, labels
            )
            views = [each.view for each in found if each.view is not None]
            if not views:
                break
            wanted = needs(views)
        self._remember(functions, operators)
        asked = {SESSION_FUNCTIONS[f.signature] for f in self._used(tree, functions, relations)}
        values = await _session_values(backend, sorted(asked | keywords))
        return Facts(relations, functions, operators, values, labels), settings

    def _used(
        self, tree: Any, functions: dict[int, Function], relations: dict[int, RelationFacts]
    ) -> list[Function]:
        trees = [tree, *(each.view for each in relations.values() if each.view is not None)]
        used = [functions[oid] for oid in needs(trees).functions if oid in functions]
        return [
            each
            for each in used
            if each.schema == "pg_catalog" and each.signature in SESSION_FUNCTIONS
        ]

    async def _ask(
        self,
        backend: Backend,
        wanted: Needs,
        relations: dict[int, RelationFacts],
        functions: dict[int, Function],
        operators: dict[int, Operator],
        labels: dict[tuple[int, int], str],
    ) -> tuple[list[RelationFacts], dict[str, str]]:
        rows = await backend.query(
            _FACTS,
            [
                _oids(wanted.relations - relations.keys()),
                _oids(wanted.functions - functions.keys()),
                _oids(wanted.operators - operators.keys()),
                _oids({oid for _, oid in wanted.labels}),
            ],
        )
        named, called, compared, labelled, settings = (json.loads(text or "[]") for text in rows[0])
        found = [_relation(entry) for entry in named]
        relations.update((each.relid, each) for each in found)
        functions.update(
            (oid, Function(schema, name, tuple(arguments)))
            for oid, schema, name, arguments in called
        )
        operators.update((oid, Operator(symbol, name)) for oid, symbol, name in compared)
        labels.update(((kind, oid), label) for kind, oid, label in labelled)
        return found, settings

    def _remember(self, functions: dict[int, Function], operators: dict[int, Operator]) -> None:
        self._functions |= {o: f for o, f in functions.items() if o < FIRST_OWN_OID}
        self._operators |= {o: f for o, f in operators.items() if o < FIRST_OWN_OID}

    async def settings(self, backend: Backend) -> dict[str, str]:
        """The session's settings, as ``facts`` gives them."""
        (values,) = await backend.query(f"SELECT {', '.join(_SHOWN)}")
        return {name: value or "" for name, value in zip(_SETTINGS, values, strict=True)}

    async def described_types(self, backend: Backend, oids: Sequence[int]) -> tuple[int, ...]:
        """The types as a RowDescription has them: a domain's is the type that it is over."""
        own = {oid for oid in oids if oid >= FIRST_OWN_OID}
        if not own:
            return tuple(oids)
        rows = await backend.query(_BASE_TYPES, [_oids(own)])
        bases = {int(oid or 0): int(base or 0) for oid, base in rows}
        return tuple(bases.get(oid, oid) for oid in oids)

    async def styled_types(self, backend: Backend, oids: set[int]) -> set[int]:
        """Those of the types whose text depends on the session's settings, as far as known."""
        own = {oid for oid in oids if oid >= FIRST_OWN_OID}
        styled = oids & STYLED
        if own:
            rows = await backend.query(
                "SELECT t.oid::text FROM pg_catalog.pg_type t"
                " WHERE t.oid = ANY ($1::oid[]) AND t.typtype <> 'e'",
                [_oids(own)],
            )
            styled |= {int(oid or 0) for (oid,) in rows}
        return styled

    async def versions(self, backend: Backend, relids: list[int], lake: Path) -> list[TableAt]:
        """Location, version and columns of tables, all in the snapshot of one statement."""
        if not relids:
            return []
        rows = await backend.query(_VERSIONS, [_oids(frozenset(relids))])
        if len(rows) != len(relids):
            raise TableStateError("a table of the query is gone from the lake", sqlstate="42P01")
        return [
            TableAt(
                int(relid or 0),
                lake / (location or ""),
                None if version is None else int(version),
                _columns(json.loads(columns or "[]")),
            )
            for relid, location, version, columns in rows
        ]


def timeout_of(settings: dict[str, str]) -> float | None:
    """statement_timeout in seconds, None when it is off."""
    text = settings["statement_timeout"]
    for unit, factor in (("ms", 0.001), ("min", 60), ("s", 1), ("h", 3600), ("d", 86400)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    return float(text) * 0.001 or None


def _oids(oids: frozenset[int] | set[int]) -> str:
    return "{" + ",".join(str(oid) for oid in sorted(oids)) + "}"


def _columns(entries: list[list[Any]]) -> tuple[LakeColumn, ...]:
    return tuple(LakeColumn(*entry) for entry in entries)


def _relation(entry: dict[str, Any]) -> RelationFacts:
    kind = entry["kind"]
    leaves = (entry["relid"],) if kind == "r" else tuple(entry["leaves"] or ())
    view = parse_nodes(entry["view"]) if entry["view"] else None
    return RelationFacts(
        entry["relid"],
        entry["schema"],
        entry["name"],
        kind,
        _columns(entry["columns"]),
        leaves,
        view[0] if view else None,
        bool(entry["children"]) and kind == "r",
        bool(entry["lake"]),
    )


async def _session_values(backend: Backend, names: list[str]) -> dict[str, Any]:
    if not names:
        return {}
    rows = await backend.query(f"SELECT {', '.join(_session_value(name) for name in names)}")
    return {
        name: int(text) if text is not None and _is_number(name) else text
        for name, text in zip(names, rows[0], strict=True)
    }


def _is_number(name: str) -> bool:
    return name in _NUMBERS or name in ("current_date", "pg_backend_pid()")


def _session_value(name: str) -> str:
    if name in _NUMBERS:
        time = _NUMBERS[name].format(name)
        return f"(extract(epoch from {time}) * 1000000)::pg_catalog.int8::pg_catalog.text"
    if name == "current_date":
        return "(current_date - '1970-01-01'::pg_catalog.date)::pg_catalog.text"
    return f"{name}::pg_catalog.text"
