# SPDX-License-Identifier: Apache-2.0
"""What a statement's scans want of the tables whose rows it needs (scans.py), in terms of the lake.

In:   the scans in a statement's plan, its bound parameters, the session.
Out:  for each scan what its rows meet by constants, and which tables' rows they must match.

The planner's conditions are SQL.  Each is analysed again in the client's session, as the WHERE of a
query of its table alone, so that names, types and collations are PostgreSQL's; what then is no
plain condition and has no exact translation, or fails, is left out.  So is what calls
``statement_timestamp()``, which will be later.  A condition that names another scan too is of use
when it is an equality of their columns: with a lake table, whose rows are put in first, with a
temporary table, which has its rows, or with a list of constants (listed.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import product
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.change.relation import LakeColumn, LakeTable
from penstock.errors import FeatureNotSupportedError
from penstock.frontdoor.actions import Backend, Parameter, WriteLake
from penstock.frontdoor.reading.catalog import CatalogReader
from penstock.frontdoor.reading.parameters import known_values
from penstock.frontdoor.writing.listed import Listed, listed
from penstock.frontdoor.writing.proposed import proposed_keys
from penstock.frontdoor.writing.scans import Condition, Scan
from penstock.frontdoor.writing.write_targets import Target
from penstock.lake.chosen import Wanted
from penstock.names import quote_pg, quote_pg_qualified
from penstock.sql.nodes import Node, parse_nodes, walk
from penstock.sql.translate.condition import columns_of, no_subquery
from penstock.sql.translate.expressions import Expressions
from penstock.sql.translate.facts import Facts
from penstock.sql.translate.plain import PlainConditions, constants_of
from penstock.sql.translate.scope import Scope
from penstock.sql.translate.values import Expr, Session, SubqueryInLet

MOST_KEYS = 100_000
"""Keys that the constants of a statement may make up."""

_ANALYSED = """
SELECT tree FROM pg_catalog.unnest(penstock.analysed_each(
    ARRAY(SELECT pg_catalog.json_array_elements_text($1::pg_catalog.json)),
    $2::pg_catalog.oid[])) AS t (tree)"""
_TEMPORARY_SCHEMA = "pg_temp"
"""As a plan calls the session's own."""

_TEMPORARY = """
SELECT c.relname, c.oid::pg_catalog.text, pg_catalog.json_agg(pg_catalog.json_build_array(
    a.attnum, a.attname, a.atttypid::pg_catalog.int8, a.atttypmod, a.attnotnull))
FROM pg_catalog.json_array_elements_text($1::pg_catalog.json) AS t (name)
JOIN pg_catalog.pg_class c
    ON c.relnamespace = pg_catalog.pg_my_temp_schema() AND c.relname = t.name
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
GROUP BY c.relname, c.oid"""
_NO_VALUE = Expr("", 0)
_TOO_EARLY = "statement_timestamp()"


@dataclass(frozen=True)
class TemporaryTable:
    """A table of the session, which has its rows; ``columns`` by attnum."""

    relid: int
    name: str
    columns: Mapping[int, LakeColumn]

    @property
    def quoted(self) -> str:
        """The name, for a statement."""
        return quote_pg_qualified(_TEMPORARY_SCHEMA, self.name)


@dataclass(frozen=True)
class Matched:
    """Columns of a scan's table that must equal columns of a row of another table (its OID).

    That is a lake table whose rows the statement needs, or ``temporary``.
    """

    relid: int
    columns: tuple[str, ...]
    theirs: tuple[int, ...]
    temporary: TemporaryTable | None = None


@dataclass(frozen=True)
class Narrowed:
    """What the rows of one scan meet: ``wanted``, and a row of each of ``matched``."""

    wanted: Wanted
    matched: tuple[Matched, ...] = ()


@dataclass
class _Question:
    """A condition of a scan: alone, or with another scan."""

    scan: int
    condition: Condition
    other: Scan | None
    tree: Node | None = None


@dataclass
class _Parts:
    """What was found out about a scan."""

    plain: list[pc.Expression] = field(default_factory=list)
    plain_columns: set[str] = field(default_factory=set)
    predicates: list[str] = field(default_factory=list)
    needs_spark: bool = False
    values: dict[str, pa.Array] = field(default_factory=dict)
    listed: list[pa.Table] = field(default_factory=list)
    matched: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """By alias of the other scan, names here and numbers there."""


class Narrowing:
    """Asks about the scans of one statement; ``targets`` are the tables whose rows are needed."""

    def __init__(
        self, catalog: CatalogReader, backend: Backend, write: WriteLake, targets: Sequence[Target]
    ) -> None:
        self._catalog = catalog
        self._backend = backend
        self._write = write
        self._targets = targets
        self._tables = {(each.table.schema, each.table.name): each.table for each in targets}
        self._scans = [
            scan
            for scan in write.scans
            if not scan.name or self._is_lake(scan) or scan.schema == _TEMPORARY_SCHEMA
        ]
        self._by_alias = {scan.alias: scan for scan in self._scans}
        self._kinds = "{}"
        self._listed: dict[str, Listed] = {}
        self._temporary: dict[str, TemporaryTable] = {}

    async def scans(self, parameters: Sequence[Parameter]) -> dict[int, list[Narrowed]]:
        """By OID of the table what each scan of it wants; a table without any is not read."""
        found: dict[int, list[Narrowed]] = {table.relid: [] for table in self._tables.values()}
        self._kinds = "{" + ",".join(str(each.type_oid) for each in parameters) + "}"
        questions = self._questions()
        statement = await self._ask(questions)
        self._temporary = await self._temporary_tables()
        trees = [each.tree for each in questions if each.tree is not None]
        facts, settings = await self._catalog.facts(self._backend, [*trees, statement])
        values = await known_values(self._backend, parameters)
        expressions = Expressions(Session(settings["TimeZone"]), facts, values, no_subquery)
        if any(each.kind == "v" for each in facts.relations.values()):
            self._listed = {}  # a view may have another list, which is the scan's
        parts = [_Parts() for _ in self._scans]
        for question in questions:
            text = question.condition.text
            if question.tree is None or not _is_read_back(text, settings):
                continue
            if not _is_too_early(question.tree, facts):
                table = self._table(self._scans[question.scan])
                reader = _Reader(table, question.tree, facts, expressions)
                self._take(reader, question, parts[question.scan])
        for scan, each in zip(self._scans, parts, strict=True):
            if self._is_lake(scan):
                table = self._table(scan)
                found[table.relid].append(self._narrowed(table, each))
        if self._write.on_conflict and statement is not None:
            scope = Scope(statement, None)
            constants = partial(_constant, expressions, scope=scope)
            for relid, keys in proposed_keys(statement, self._targets, facts, constants):
                found[relid].append(Narrowed(Wanted((keys,))))
        return found

    def _is_lake(self, scan: Scan) -> bool:
        return (scan.schema, scan.name) in self._tables

    async def _temporary_tables(self) -> dict[str, TemporaryTable]:
        names = {scan.name for scan in self._scans if scan.schema == _TEMPORARY_SCHEMA}
        if not names:
            return {}
        rows = await self._backend.query(_TEMPORARY, [json.dumps(sorted(names))])
        return {
            name or "": TemporaryTable(
                int(oid or 0),
                name or "",
                {each[0]: LakeColumn(*each) for each in json.loads(columns or "[]")},
            )
            for name, oid, columns in rows
        }

    def _table(self, scan: Scan) -> LakeTable:
        return self._tables[scan.schema, scan.name]

    def _narrowed(self, table: LakeTable, parts: _Parts) -> Narrowed:
        asked = [*parts.listed, *_keys(table, parts.values)]
        wanted = Wanted(
            tuple(asked),
            reduce(and_, parts.plain) if parts.plain else None,
            frozenset(parts.plain_columns),
            " AND ".join(f"({each})" for each in parts.predicates) if parts.needs_spark else None,
        )
        matched = (self._matched(alias, pairs) for alias, pairs in parts.matched.items())
        return Narrowed(wanted, tuple(each for each in matched if each is not None))

    def _matched(self, alias: str, pairs: Sequence[tuple[str, int]]) -> Matched | None:
        columns, theirs = (tuple(each) for each in zip(*pairs, strict=True))
        scan = self._by_alias[alias]
        if self._is_lake(scan):
            return Matched(self._table(scan).relid, columns, theirs)
        table = self._temporary.get(scan.name)
        return None if table is None else Matched(table.relid, columns, theirs, table)

    def _questions(self) -> list[_Question]:
        questions = []
        for number, scan in enumerate(self._scans):
            for condition in scan.conditions if self._is_lake(scan) else ():
                others = condition.names - {scan.alias, scan.parent}
                other = self._by_alias.get(next(iter(others))) if len(others) == 1 else None
                if not others or other is not None:
                    questions.append(_Question(number, condition, other))
        return questions

    async def _ask(self, questions: Sequence[_Question]) -> Node | None:
        """Have all conditions analysed, and before them the statement if its constants matter."""
        statement = None
        lists = any(each.other is not None and not each.other.name for each in questions)
        if lists or self._write.on_conflict:
            (statement,) = await self._trees([self._write.sql.strip().rstrip(";")])
        if lists and statement is not None:
            self._listed = await listed(self._backend, statement, self._scans)
        asked = [each for each in questions if self._from(each) is not None]
        texts = [f"SELECT FROM {self._from(each)} WHERE {each.condition.text}" for each in asked]
        for question, tree in zip(asked, await self._trees(texts), strict=True):
            question.tree = tree
        return statement

    def _from(self, question: _Question) -> str | None:
        scan, other = self._scans[question.scan], question.other
        alias = scan.parent if scan.parent in question.condition.names else scan.alias
        item = _item(scan, alias)
        if other is None:
            return item
        if other.name:
            return f"{item}, {_item(other, other.alias)}"
        return f"{item}, {self._listed[other.alias].item}" if other.alias in self._listed else None

    async def _trees(self, statements: Sequence[str]) -> list[Node | None]:
        if not statements:
            return []
        rows = await self._backend.query(_ANALYSED, [json.dumps(statements), self._kinds])
        return [_query(text) for (text,) in rows]

    def _take(self, reader: _Reader, question: _Question, parts: _Parts) -> None:
        if question.other is None:
            reader.take_local(parts)
            return
        found = reader.plain.partner(reader.quals)
        if found is None:
            return
        column, theirs = found
        if question.other.name:
            parts.matched.setdefault(question.other.alias, []).append((column.name, theirs))
        elif question.other.alias in self._listed:
            values = self._listed[question.other.alias].column(theirs, reader.constant)
            if values is not None:
                known = constants_of(column, values)
                parts.listed.append(pa.table({column.name: known}))


class _Reader:
    """One analysed condition."""

    def __init__(
        self, table: LakeTable, tree: Node, facts: Facts, expressions: Expressions
    ) -> None:
        self.quals: Node = tree["jointree"]["quals"]
        self._scope = Scope(tree, None, columns={1: columns_of(table.columns, "")})
        self._names = {column.attnum: column for column in table.columns}
        self._expressions = expressions
        self.plain = PlainConditions(self._names, facts, self.constant)

    def take_local(self, parts: _Parts) -> None:
        """A condition of the row alone."""
        plain = self.plain(self.quals)
        if plain is not None:
            parts.plain.append(plain.expression)
            parts.plain_columns.update(self._columns())
            if plain.column is not None and plain.values is not None:
                parts.values.setdefault(plain.column, plain.values)
        try:
            predicate = self._expressions.condition(self.quals, self._scope)
        except (FeatureNotSupportedError, SubqueryInLet):
            return
        if predicate is not None:
            parts.predicates.append(predicate)
            parts.needs_spark |= plain is None

    def _columns(self) -> set[str]:
        return {
            self._names[node["varattno"]].name for node in walk(self.quals) if node.tag == "VAR"
        }

    def constant(self, node: Node) -> Any:
        """The value of an expression; NOT_CONSTANT when it has none."""
        return _constant(self._expressions, node, self._scope).value


def _constant(expressions: Expressions, node: Node, scope: Scope) -> Expr:
    """An expression, whose value is NOT_CONSTANT if it has none that is known here."""
    if any(each.tag == "VAR" for each in walk(node)) or _is_too_early(node, expressions.facts):
        return _NO_VALUE
    try:
        return expressions(node, scope)
    except (FeatureNotSupportedError, SubqueryInLet):
        return _NO_VALUE


def _is_read_back(text: str, settings: Mapping[str, str]) -> bool:
    """Whether constants in a plan's text are read again as what they are under these settings.

    Floats may have lost digits, and a time zone's abbreviation may be that of another one.
    """
    floats = "double precision" in text or "real" in text
    rounded = floats and int(settings["extra_float_digits"]) <= 0
    return not rounded and (settings["DateStyle"].startswith("ISO") or "time zone" not in text)


def _is_too_early(tree: Node, facts: Facts) -> bool:
    called = {each["funcid"] for each in walk(tree) if each.tag == "FUNCEXPR"}
    return any(facts.functions[oid].signature == _TOO_EARLY for oid in called)


def _item(scan: Scan, alias: str) -> str:
    return f"ONLY {quote_pg_qualified(scan.schema, scan.name)} AS {quote_pg(alias)}"


def _query(text: str | None) -> Node | None:
    queries = [each for part in parse_nodes(text or "()") for each in part]
    return queries[0] if len(queries) == 1 and isinstance(queries[0], Node) else None


def _keys(table: LakeTable, values: Mapping[str, pa.Array]) -> list[pa.Table]:
    """The keys that constants make up, when they say all columns of the key."""
    if not table.key or not set(table.key) <= values.keys():
        return []
    count = reduce(lambda total, name: total * len(values[name]), table.key, 1)
    if count > MOST_KEYS and len(table.key) > 1:
        return []
    if len(table.key) == 1:
        return [pa.table({table.key[0]: values[table.key[0]]})]
    rows = list(product(*(range(len(values[name])) for name in table.key)))
    chosen = list(zip(*rows, strict=True)) or [()] * len(table.key)
    return [
        pa.table(
            {
                name: values[name].take(pa.array(places, pa.int64()))
                for name, places in zip(table.key, chosen, strict=True)
            }
        )
    ]
