# SPDX-License-Identifier: Apache-2.0
"""Where the rows of a COPY TO come from, at the versions that the session's snapshot shows.

    what is copied                                        its rows come from
    --------------                                        ------------------
    a table, or columns of it                             the table's data files
    SELECT of columns of one table, WHERE plain           the same, or its leaves'
    any other query                                       Spark, by way of files that it writes

Plain conditions are those of sql/arrow_filter.py.  Spark's result goes through files so that it is
never in memory, and so that a slow client does not hold up Spark.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.change.types import ARRAY_ELEMENTS, arrow_type
from penstock.errors import PenstockError
from penstock.frontdoor.actions import Backend, CopyLake, RunOnLake
from penstock.frontdoor.reading.pruning import Asked
from penstock.frontdoor.reading.query import SparkQueries
from penstock.lake.table_rows import file_rows, table_rows
from penstock.sql.arrow_filter import Decide, arrow_filter
from penstock.sql.nodes import Node, walk
from penstock.wire.rows_text import shown_numerics

_RELATION = """
SELECT c.relkind::pg_catalog.text,
    (SELECT pg_catalog.json_agg(pg_catalog.json_build_array(
            a.attnum, a.attname, a.atttypid::pg_catalog.int8, a.atttypmod, a.attgenerated)
            ORDER BY a.attnum)
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
    EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid)::pg_catalog.text,
    CASE WHEN c.relkind = 'p' THEN
        (SELECT pg_catalog.json_agg(t.relid::pg_catalog.oid::pg_catalog.int8)
            FROM pg_catalog.pg_partition_tree(c.oid) t WHERE t.isleaf AND t.relid <> c.oid) END
FROM pg_catalog.pg_class c WHERE c.oid = $1::pg_catalog.oid"""

_jobs = count(1)


@dataclass(frozen=True)
class _Column:
    attnum: int
    name: str
    type_oid: int
    typmod: int
    generated: str

    @property
    def arrow(self) -> pa.DataType:
        """The type of its values in the lake."""
        return arrow_type(self.type_oid, self.typmod)


@dataclass(frozen=True)
class _Relation:
    """A table; ``parts`` are the relations that have its rows, None when more than that counts."""

    columns: tuple[_Column, ...]
    parts: tuple[int, ...] | None


_DECLARED = 4
"""The least typmod of a numeric with a scale: its values are as they are shown."""


@dataclass
class CopySource:
    """Rows to be copied: names and types of the columns, the rows, what is removed afterwards.

    ``typmods`` are those of the columns; None when each numeric comes as it is shown.
    """

    names: tuple[str, ...]
    type_oids: tuple[int, ...]
    settings: dict[str, str]
    rows: Iterator[pa.RecordBatch] = field(repr=False)
    typmods: tuple[int, ...] | None = None
    folder: Path | None = None

    def shown(self, place: int, column: pa.Array) -> pa.Array:
        """The values of a column as queries show them."""
        if self.typmods is None:
            return column
        return shown_numerics(column, self.type_oids[place], self.typmods[place])

    async def close(self) -> None:
        """Remove what Spark has written."""
        if self.folder is not None:
            await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)


class CopySources:
    """Finds the rows; ``scratch`` is the folder below which Spark writes."""

    def __init__(self, queries: SparkQueries, scratch: Path) -> None:
        self._queries = queries
        self._scratch = scratch

    async def open(self, backend: Backend, copy: CopyLake) -> CopySource:
        """The rows of a COPY that the control database has found right."""
        if copy.query is not None:
            return await self._query(backend, copy.query)
        relation = await self._relation(backend, copy.relids[0])
        if copy.columns is None:
            columns = [each for each in relation.columns if not each.generated]
        else:
            by_name = {each.name: each for each in relation.columns}
            columns = [by_name[name] for name in copy.columns]
        parts = relation.parts or copy.relids  # COPY of a table leaves out those that inherit it
        return await self._table(backend, columns, [each.name for each in columns], parts)

    async def _query(self, backend: Backend, query: RunOnLake) -> CopySource:
        tree = await self._queries.tree(backend, query.sql)
        simple = _simple(tree)
        found = None if simple is None else await self._simple(backend, tree, simple)
        return await self._spark(backend, tree, query.sql) if found is None else found

    async def _simple(self, backend: Backend, tree: Node, simple: _Simple) -> CopySource | None:
        """The rows of a SELECT of columns of one table, unless only Spark can find them."""
        relation = await self._relation(backend, simple.relid)
        stored = {each.attnum: each for each in relation.columns if each.generated != "v"}
        if relation.parts is None or not stored.keys() >= set(simple.attnums):
            return None
        decide = None
        if simple.condition is not None:
            facts, _ = await self._queries.catalog.facts(backend, tree)
            kinds = {n: (each.name, each.arrow) for n, each in stored.items()}
            decide = arrow_filter(simple.condition, kinds, facts)
            if decide is None:
                return None
        columns = [stored[number] for number in simple.attnums]
        used = {node["varattno"] for node in walk(simple.condition) if node.tag == "VAR"}
        read = [*columns, *(stored[n] for n in sorted(used - set(simple.attnums)))]
        source = await self._table(backend, read, simple.names, relation.parts)
        source.type_oids = source.type_oids[: len(columns)]
        if decide is not None:
            source.rows = _filtered(source.rows, decide, len(columns))
        return source

    async def _relation(self, backend: Backend, relid: int) -> _Relation:
        ((kind, columns, has_children, leaves),) = await backend.query(_RELATION, [str(relid)])
        parts: tuple[int, ...] | None = (relid,)
        if kind == "p":
            parts = tuple(json.loads(leaves or "[]"))
        elif has_children == "true":
            parts = None
        return _Relation(tuple(_Column(*each) for each in json.loads(columns or "[]")), parts)

    async def _table(
        self,
        backend: Backend,
        columns: Sequence[_Column],
        names: Sequence[str],
        parts: Sequence[int],
    ) -> CopySource:
        settings = await self._queries.catalog.settings(backend)
        tables = await self._queries.catalog.versions(backend, sorted(parts), self._queries.lake)
        schema = pa.schema([(each.name, each.arrow) for each in columns])
        rows = (table_rows(each.location, each.version, schema) for each in tables)
        return CopySource(
            tuple(names),
            tuple(each.type_oid for each in columns),
            settings,
            chain.from_iterable(rows),
            tuple(each.typmod for each in columns),
        )

    async def _spark(self, backend: Backend, tree: Node, sql: str) -> CopySource:
        prepared = await self._queries.prepare(backend, tree, (), Asked(sql))
        names = tuple(_name(entry) for entry in _visible(tree))
        kinds = prepared.translation.type_oids
        pairs = zip(kinds, prepared.translation.typmods, strict=True)
        # Other numerics than those in arrays come from Spark as they are shown.
        typmods = tuple(mod if oid in ARRAY_ELEMENTS else _DECLARED for oid, mod in pairs)
        source = CopySource(names, kinds, prepared.settings, iter(()), typmods)
        source.folder = self._scratch / f"copy-{uuid.uuid4()}"
        job = f"penstock client copy {next(_jobs)}"
        running = asyncio.ensure_future(self._queries.unload(prepared, job, source.folder))
        async with AsyncExitStack() as unless_done:
            unless_done.push_async_callback(source.close)
            # Spark is to end before its files are removed.
            unless_done.push_async_callback(asyncio.wait, [running])
            unless_done.callback(self._queries.cancel, job)
            files = await asyncio.shield(running)
            unless_done.pop_all()
        schema = pq.read_schema(files[0])
        source.rows = chain.from_iterable(file_rows(each, schema) for each in files)
        return source


@dataclass(frozen=True)
class _Simple:
    """SELECT of columns of one table; ``names`` are those of the result."""

    relid: int
    attnums: tuple[int, ...]
    names: tuple[str, ...]
    condition: Node | None


def _simple(tree: Node) -> _Simple | None:
    """A query of that form; None for any other."""
    tables, entries = tree.items("rtable"), tree.items("targetList")
    if tree["commandType"] != 1 or len(tables) != 1 or any(map(tree.get, _MORE)):
        return None
    source = tree["jointree"].items("fromlist")
    is_one = len(source) == 1 and source[0].tag == "RANGETBLREF"
    if not is_one or not _is_whole_table(tables[0]):
        return None
    if any(entry["resjunk"] or not _is_column(entry["expr"]) for entry in entries):
        return None
    return _Simple(
        tables[0]["relid"],
        tuple(entry["expr"]["varattno"] for entry in entries),
        tuple(_name(entry) for entry in entries),
        tree["jointree"].get("quals"),
    )


def _filtered(
    rows: Iterator[pa.RecordBatch], decide: Decide, columns: int
) -> Iterator[pa.RecordBatch]:
    """The first columns of the rows for which a condition is true."""
    for batch in rows:
        left = batch.filter(decide(batch)).select(range(columns))
        if left.num_rows:
            yield left


_MORE = (
    *(
        "hasAggs",
        "hasWindowFuncs",
        "hasTargetSRFs",
        "hasSubLinks",
        "hasDistinctOn",
        "hasRowSecurity",
    ),
    *("cteList", "groupClause", "groupingSets", "havingQual", "windowClause", "distinctClause"),
    *("sortClause", "limitOffset", "limitCount", "rowMarks", "setOperations"),
)
"""Fields of a Query node that are empty in a plain SELECT."""

_RELATION_KIND = 0
"""RTE_RELATION."""


def _is_whole_table(entry: Node) -> bool:
    """Whether a range table entry is a table, without ONLY on a partitioned one."""
    if entry["rtekind"] != _RELATION_KIND or entry.get("tablesample") is not None:
        return False
    return entry["relkind"] == "r" or (entry["relkind"] == "p" and bool(entry["inh"]))


def _is_column(expression: Any) -> bool:
    return isinstance(expression, Node) and expression.tag == "VAR" and expression["varattno"] > 0


def _visible(tree: Node) -> list[Any]:
    return [entry for entry in tree.items("targetList") if not entry["resjunk"]]


def _name(entry: Any) -> str:
    """A result column's name; the reader of node trees takes these two words for Booleans."""
    name = entry["resname"]
    return str(name).lower() if isinstance(name, bool) else str(name)


def check_count(source: CopySource, told: int) -> None:
    """The lake's columns must be as many as the client was told of (XX000)."""
    if told != len(source.type_oids):
        raise PenstockError(
            "the lake's rows do not have the columns of the COPY",
            detail=f"They have {len(source.type_oids)}, and PostgreSQL says {told}.",
        )
