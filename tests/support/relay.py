# SPDX-License-Identifier: Apache-2.0
"""A front door in front of a real PostgreSQL, in a thread of the test's process.

Two routers: one relays everything; the other asks the session questions as the node's own does,
and knows some names:

    a statement with ...       becomes
    --------------------       -------
    lake_                      RunOnLake: the rows of MemoryQueries (a SELECT only)
    refused_                   0A000
    hooked_                    Relay with hooks, each of which is recorded
    bad_before_, bad_after_    the same, and that hook fails
    any other query            Relay, after a question
    anything else              Relay
"""

from __future__ import annotations

import asyncio
import select
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from penstock.config import Settings
from penstock.control.address import ControlAddress
from penstock.errors import FeatureNotSupportedError, PenstockError
from penstock.frontdoor.actions import (
    Action,
    Backend,
    LakeResult,
    Parameter,
    Relay,
    Router,
    RunOnLake,
)
from penstock.frontdoor.listener import FrontDoor
from penstock.wire.responses import ServerError
from tests.support.psql import NATIVE, run_psql
from tests.support.servers import SUPERUSER, PostgresServer

NUMBERS = 25_000
"""Rows of lake_numbers in memory: more than one slice, and PostgreSQL has none of them."""

LAKE_TABLE = "CREATE TABLE lake_numbers (n integer, label text)"


class RelayAll:
    """Relays everything."""

    async def route(self, _backend: Backend, _sql: str, _oids: Sequence[int] = ()) -> Action:
        return Relay()


class AskingRouter:
    """See the module's table; ``events`` records what the hooks saw."""

    def __init__(self) -> None:
        self.events: list[str] = []

    async def route(self, backend: Backend, sql: str, _oids: Sequence[int] = ()) -> Action:
        words = sql.lower()
        is_query = words.lstrip(" \n(").startswith(("select", "with", "values"))
        if "refused_" in words:
            raise FeatureNotSupportedError("refused", hint="Do not.")
        if is_query:
            await _plan(backend, sql)
            return RunOnLake(sql, ()) if "lake_" in words else Relay()
        if "hooked_" in words or "bad_" in words:
            return self._hooked(words)
        return Relay()

    def _hooked(self, words: str) -> Relay:
        async def before(backend: Backend) -> None:
            await self._note(backend, "before")
            if "bad_before_" in words:
                raise PenstockError("before fails", sqlstate="55000")

        async def after(backend: Backend) -> None:
            await self._note(backend, "after")
            if "bad_after_" in words:
                raise PenstockError("after fails", sqlstate="55000")

        async def ended(committed: bool) -> None:
            self.events.append("committed" if committed else "rolled back")

        return Relay(before=before, after=after, ended=ended)

    async def _note(self, backend: Backend, what: str) -> None:
        rows = await backend.query("SELECT count(*) FROM pg_class WHERE relname ~ $1", ["^hooked_"])
        self.events.append(f"{what} {rows[0][0]}")


async def _plan(backend: Backend, sql: str) -> None:
    """Have it planned; one with parameters is left to PostgreSQL, any question will do."""
    explain = "EXPLAIN "
    try:
        await backend.query("SELECT 1" if "$" in sql else explain + sql)
    except ServerError as error:
        if "P" in error.fields:
            error.fields["P"] = str(int(error.fields["P"]) - len(explain))
        raise


class MemoryQueries:
    """The LakeQueries port in memory: lake_numbers has NUMBERS rows.

    ``limit 3`` and a first parameter (a lower bound of n, an integer in either format) are
    understood; a text with ``slow`` runs until it is cancelled, one with ``broken`` fails.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, asyncio.Event] = {}
        self.cancelled: list[str] = []

    async def run(
        self, backend: Backend, query: RunOnLake, parameters: Sequence[Parameter], job: str
    ) -> LakeResult:
        await backend.query("SELECT 1")
        if "broken" in query.sql:
            raise PenstockError("the lake is broken", sqlstate="XX001")
        if "slow" in query.sql:
            await self._until_cancelled(job)
        lowest = _lower_bound(parameters)
        numbers = list(range(max(lowest, 1), NUMBERS + 1))
        labels = [None if n % 7 == 0 else f"label {n}" for n in numbers]
        rows = pa.table({"n": pa.array(numbers, pa.int32()), "label": pa.array(labels)})
        if "limit 3" in query.sql.lower():
            rows = rows.slice(0, 3)
        return LakeResult(rows, (23, 25), (23, 25), f"SELECT {rows.num_rows}")

    async def _until_cancelled(self, job: str) -> None:
        self.jobs[job] = asyncio.Event()
        await self.jobs[job].wait()
        raise PenstockError("canceling statement due to user request", sqlstate="57014")

    def cancel(self, job: str) -> None:
        self.cancelled.append(job)
        if job in self.jobs:
            self.jobs[job].set()


def _lower_bound(parameters: Sequence[Parameter]) -> int:
    if not parameters or parameters[0].value is None:
        return 0
    assert parameters[0].type_oid in (20, 21, 23)
    value = parameters[0].value
    return int.from_bytes(value, "big") if parameters[0].format else int(value)


class RunningRelay:
    """A front door that listens; ``close`` stops it."""

    def __init__(
        self,
        server: PostgresServer,
        router: Router | None = None,
        *,
        tcp: bool = False,
        **settings: Any,
    ) -> None:
        """``tcp``: reach the server by TCP, where it asks some roles for a password."""
        host = "127.0.0.1" if tcp else str(server.folder)
        self.server = server
        self.queries = MemoryQueries()
        self.host, self.port = "127.0.0.1", 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        address = ControlAddress(host, server.port, "postgres", SUPERUSER, "")
        node = Settings(listen="127.0.0.1:0", home=Path("/nonexistent"), **settings)
        self.front_door = self._run(self._open(node, address, router or RelayAll()))

    async def _open(self, node: Settings, address: ControlAddress, router: Router) -> FrontDoor:
        front_door = FrontDoor(node, address, router, self.queries)
        await front_door.start()
        self.port = front_door.address[1]
        return front_door

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self, drain: float = 0.5) -> None:
        """Stop the front door, then its thread."""
        if self._thread.is_alive():
            self._run(self.front_door.stop(drain))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    def conninfo(self, db: str = "postgres", user: str = SUPERUSER, **options: str) -> str:
        """libpq's connection string through the front door."""
        more = "".join(f" {name}={value}" for name, value in options.items())
        return f"host=127.0.0.1 port={self.port} dbname={db} user={user}{more}"

    def connect(self, db: str = "postgres", **options: Any) -> psycopg.Connection[Any]:
        """A connection in autocommit mode through the front door."""
        return psycopg.connect(self.conninfo(db), autocommit=True, **options)

    def psql(
        self, sql: str, db: str = "postgres", flags: Sequence[str] = NATIVE, **options: str
    ) -> str:
        """Run SQL through psql and the front door."""
        return run_psql(
            self.server.psql_program, self.conninfo(db, **options), sql, flags=flags, timeout=30
        )


def next_result(pgconn: psycopg.pq.abc.PGconn) -> psycopg.pq.abc.PGresult | None:
    """The next result; libpq's own wait would hold up the front door, which is in this process."""
    pgconn.flush()
    while pgconn.is_busy():
        assert select.select([pgconn.socket], [], [], 10)[0], "waited 10 s for a result"
        pgconn.consume_input()
    return pgconn.get_result()


def prepare(conn: psycopg.Connection[Any], name: bytes, sql: bytes) -> bytes:
    """Prepare a statement by the protocol; the error, or nothing."""
    conn.pgconn.send_prepare(name, sql)
    return _only_result(conn.pgconn).error_message


def run_prepared(conn: psycopg.Connection[Any], name: bytes) -> tuple[int, bytes]:
    """Run a statement prepared by the protocol; how many rows it gave, and the error."""
    conn.pgconn.send_query_prepared(name, [])
    result = _only_result(conn.pgconn)
    return result.ntuples, result.error_message


def parameters_of(conn: psycopg.Connection[Any], name: bytes) -> int:
    """How many parameters a prepared statement has."""
    conn.pgconn.send_describe_prepared(name)
    return _only_result(conn.pgconn).nparams


def _only_result(pgconn: psycopg.pq.abc.PGconn) -> psycopg.pq.abc.PGresult:
    result = next_result(pgconn)
    assert result is not None
    assert next_result(pgconn) is None
    return result
