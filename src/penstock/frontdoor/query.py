# SPDX-License-Identifier: Apache-2.0
"""SELECT on lake tables: analysed by the control database, translated, run by Spark.

In:   a statement that the router found to read lake tables, and its bound parameters.
Out:  its rows as Arrow, with PostgreSQL's types of the columns.

What is asked in the client's own session, in this order (each one round trip):

    1  the analysed tree of the statement            names, types, casts as PostgreSQL decides them
    2  catalog facts about what the tree names       once more for what views name
    3  values of now(), current_user, ...            only when the statement uses them
    4  parameters that came as text, in binary       only those that are not plain
    5  location and version of each table            one statement, so one snapshot for all

The router has already had the statement planned there, so privileges are checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.change import types
from penstock.control.connect import ControlConnection
from penstock.errors import FeatureNotSupportedError, PenstockError
from penstock.frontdoor.actions import Backend, LakeResult, Parameter, RunOnLake
from penstock.frontdoor.analysis import Analyst
from penstock.frontdoor.catalog import CatalogReader, timeout_of
from penstock.frontdoor.parameters import parameter_values
from penstock.lake.query import TableAt, cancel_query, run_query
from penstock.sql.translate.query import Translation, translate
from penstock.sql.translate.values import Session

_PLAIN_STYLES = {
    "IntervalStyle": ("postgres",),
    "DateStyle": ("ISO, MDY", "ISO, DMY", "ISO, YMD"),
    "TimeZone": ("UTC", "Etc/UTC", "GMT"),
    "bytea_output": ("hex",),
}
"""Settings under which every type's text is as the lake has it; the first is for the hint."""

_ENCODINGS = frozenset({"UTF8", "SQL_ASCII"})
_CANCEL_AGAIN = 0.2
"""Seconds."""


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
        self._lake = lake
        self._catalog = CatalogReader()
        self._cancelled: set[str] = set()
        self._running: set[str] = set()
        self._cancelling: set[asyncio.Task[None]] = set()

    async def run(
        self, backend: Backend, query: RunOnLake, parameters: Sequence[Parameter], job: str
    ) -> LakeResult:
        """Run one statement; see actions.LakeQueries."""
        translation, reads, timeout = await self._prepare(backend, query, parameters)
        self._running.add(job)
        try:
            rows = await self._in_spark(translation, reads, job, timeout)
        finally:
            self._running.discard(job)
            self._cancelled.discard(job)
        return LakeResult(rows, translation.type_oids, f"SELECT {rows.num_rows}")

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

    async def _in_spark(
        self, translation: Translation, reads: Sequence[TableAt], job: str, timeout: float | None
    ) -> pa.Table:
        work = asyncio.ensure_future(
            asyncio.to_thread(lambda: run_query(self._spark(), translation, reads, job))
        )
        done, _ = await asyncio.wait([work], timeout=timeout)
        by_user = job in self._cancelled
        if not done:
            self.cancel(job)
            await asyncio.wait([work])
        if not done or by_user:
            work.exception()
            reason = "user request" if by_user else "statement timeout"
            raise PenstockError(f"canceling statement due to {reason}", sqlstate="57014")
        return work.result()

    async def _prepare(
        self, backend: Backend, query: RunOnLake, parameters: Sequence[Parameter]
    ) -> tuple[Translation, list[TableAt], float | None]:
        kinds = [parameter.type_oid for parameter in parameters]
        tree = await self._analyst.tree(backend, query.sql, kinds)
        facts, settings = await self._catalog.facts(backend, tree)
        values = await parameter_values(backend, parameters)
        translation = translate(tree, facts, values, Session(settings["TimeZone"]))
        _refuse_styles(translation, settings)
        if any(settings[name] not in values for name, values in _PLAIN_STYLES.items()):
            styled = await self._catalog.styled_types(backend, set(translation.type_oids))
            _refuse_styled(styled, settings)
        reads = await self._catalog.versions(backend, sorted(translation.tables), self._lake)
        return translation, reads, timeout_of(settings)


def _refuse_styled(styled: set[int], settings: dict[str, str]) -> None:
    """Values that the lake keeps as text have the text of PostgreSQL's default settings."""
    for name, values in _PLAIN_STYLES.items():
        if styled and settings[name] not in values:
            raise FeatureNotSupportedError(
                f'{name} "{settings[name]}" is not supported for this query\'s result types',
                hint=f"SET {name} = '{values[0]}'.",
            )


def _refuse_styles(translation: Translation, settings: dict[str, str]) -> None:
    """Values are written in PostgreSQL's default styles only."""
    oids = {types.ARRAY_ELEMENTS.get(oid, oid) for oid in translation.type_oids}
    times = {types.DATE, types.TIMESTAMP, types.TIMESTAMPTZ}
    wrong = [
        (bool(oids & times), "DateStyle", settings["DateStyle"].startswith("ISO"), "ISO"),
        (types.BYTEA in oids, "bytea_output", settings["bytea_output"] == "hex", "hex"),
        (
            bool(oids & {types.FLOAT4, types.FLOAT8}),
            "extra_float_digits",
            int(settings["extra_float_digits"]) > 0,
            "1",
        ),
        (True, "client_encoding", settings["client_encoding"] in _ENCODINGS, "UTF8"),
    ]
    for matters, name, fine, value in wrong:
        if matters and not fine:
            raise FeatureNotSupportedError(
                f'{name} "{settings[name]}" is not supported for results from lake tables',
                hint=f"SET {name} = '{value}'.",
            )
