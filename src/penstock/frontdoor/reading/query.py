# SPDX-License-Identifier: Apache-2.0
"""SELECT on lake tables: analysed by the control database, translated, run by Spark.

In:   a statement that the router found to read lake tables, and its bound parameters.
Out:  its rows as Arrow, with PostgreSQL's types of the columns.

What is asked in the client's own session, in this order (each one round trip):

    1  the analysed tree of the statement            names, types, casts as PostgreSQL decides them
    2  catalog facts about what the tree names       once more for what views name
    3  values of now(), current_user, ...            only when the statement uses them
    4  parameters that came as text, in binary       only those that are not plain
    5  the plan with the parameters' values          only for partitioned tables, to prune them
    6  location and version of each table            one statement, so one snapshot for all

The router has already had the statement planned there, so privileges are checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from penstock.change import types
from penstock.control.connect import ControlConnection
from penstock.errors import PenstockError
from penstock.frontdoor.actions import Backend, LakeResult, Parameter, RunOnLake
from penstock.frontdoor.reading.analysis import Analyst
from penstock.frontdoor.reading.catalog import CatalogReader, timeout_of
from penstock.frontdoor.reading.parameters import parameter_values
from penstock.frontdoor.reading.pruning import Asked, without_pruned
from penstock.frontdoor.reading.styles import check_styles, other_styles
from penstock.lake.query import TableAt, cancel_query, explain_query, run_query, unload_query
from penstock.sql.nodes import Node
from penstock.sql.translate.query import Translation, translate
from penstock.sql.translate.values import Expr, Session
from penstock.wire.rows_text import shown_numerics

_CANCEL_AGAIN = 0.2
"""Seconds."""


T = TypeVar("T")
_Work = Callable[[Any, Translation, Sequence[TableAt], str], T]
"""Runs a translated statement in Spark, under a job's name."""


@dataclass(frozen=True)
class PreparedQuery:
    """A statement that Spark can run: the tables that it reads, the session's settings."""

    translation: Translation
    reads: tuple[TableAt, ...]
    settings: dict[str, str]


class SparkQueries:
    """``actions.LakeQueries`` on Spark.

    ``spark`` gives the node's Spark session, and may take seconds to start it: it is called on a
    thread.  ``lake`` is the folder of the Delta tables.
    ``connect`` opens a superuser's connection to the control database; without it, queries in
    read-only transactions are refused.
    """

    def __init__(
        self,
        spark: Callable[[], Any],
        lake: Path,
        connect: Callable[[], ControlConnection] | None = None,
    ) -> None:
        self._analyst = Analyst(connect)
        self._spark = spark
        self.lake = lake
        self.catalog = CatalogReader()
        self._cancelled: set[str] = set()
        self._running: set[str] = set()
        self._cancelling: set[asyncio.Task[None]] = set()

    async def run(
        self, backend: Backend, query: RunOnLake, parameters: Sequence[Parameter], job: str
    ) -> LakeResult:
        """Run one statement; see actions.LakeQueries."""
        kinds = [parameter.type_oid for parameter in parameters]
        explained = query.explained
        sql = explained.sql if explained else query.sql
        tree = await self.tree(backend, sql, kinds)
        values = await parameter_values(backend, parameters)
        prepared = await self.prepare(backend, tree, values, Asked(sql, parameters))
        if explained:
            work = partial(explain_query, verbose=explained.verbose)
            plan = await self._in_spark(prepared, work, job)
            return LakeResult(plan, (types.TEXT,), (types.TEXT,), "EXPLAIN")
        oids = prepared.translation.type_oids
        await check_styles(backend, self.catalog, oids, prepared.settings)
        described = await self.catalog.described_types(backend, oids)
        rows = _shown_arrays(await self._in_spark(prepared, run_query, job), prepared.translation)
        return LakeResult(rows, oids, described, f"SELECT {rows.num_rows}")

    async def tree(self, backend: Backend, sql: str, parameter_types: Sequence[int] = ()) -> Node:
        """The analysed tree of a statement."""
        return await self._analyst.tree(backend, sql, parameter_types)

    async def prepare(
        self, backend: Backend, tree: Node, values: Sequence[Expr], asked: Asked
    ) -> PreparedQuery:
        """Translate a statement; ``values`` are those of its parameters."""
        facts, settings = await self.catalog.facts(backend, tree)
        facts = await without_pruned(backend, facts, asked)
        session = Session(settings["TimeZone"], other_styles=other_styles(settings))
        translation = translate(tree, facts, values, session)
        reads = await self.catalog.versions(backend, sorted(translation.tables), self.lake)
        return PreparedQuery(translation, tuple(reads), settings)

    async def unload(self, prepared: PreparedQuery, job: str, folder: Path) -> list[Path]:
        """Write the rows of a statement to files, see lake.query.unload_query.

        ``folder`` may have been made also when this fails.
        """
        return await self._in_spark(prepared, partial(unload_query, folder=folder), job)

    def cancel(self, job: str) -> None:
        """Stop a query that runs under this name."""
        if job in self._running and job not in self._cancelled:
            self._cancelled.add(job)
            task = asyncio.ensure_future(self._cancel(job))
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)

    async def _cancel(self, job: str) -> None:
        """Cancel it until it has ended.

        Spark ends the jobs of a cancelled group that run, and does not start further ones, except
        a stage that writes a shuffle: one that is asked for after the cancel runs to its end.
        """
        while job in self._running:
            await asyncio.to_thread(lambda: cancel_query(self._spark(), job))
            await asyncio.sleep(_CANCEL_AGAIN)

    async def _in_spark(self, prepared: PreparedQuery, work: _Work[T], job: str) -> T:
        self._running.add(job)
        try:
            return await self._run_in_spark(prepared, work, job)
        finally:
            self._running.discard(job)
            self._cancelled.discard(job)

    async def _run_in_spark(self, prepared: PreparedQuery, work: _Work[T], job: str) -> T:
        running = asyncio.ensure_future(
            asyncio.to_thread(
                lambda: work(self._spark(), prepared.translation, prepared.reads, job)
            )
        )
        done, _ = await asyncio.wait([running], timeout=timeout_of(prepared.settings))
        by_user = job in self._cancelled
        if not done:
            self.cancel(job)
            await asyncio.wait([running])
        if not done or by_user:
            running.exception()
            reason = "user request" if by_user else "statement timeout"
            raise PenstockError(f"canceling statement due to {reason}", sqlstate="57014")
        return running.result()


def _shown_arrays(rows: pa.Table, translation: Translation) -> pa.Table:
    """The rows with arrays of numerics without a scale as texts; other numerics are already."""
    kinds = enumerate(zip(translation.type_oids, translation.typmods, strict=True))
    for place, (oid, typmod) in kinds:
        if types.ARRAY_ELEMENTS.get(oid) == types.NUMERIC:
            chunks = [shown_numerics(each, oid, typmod) for each in rows.column(place).chunks]
            if chunks:
                rows = rows.set_column(place, rows.field(place).name, pa.chunked_array(chunks))
    return rows
