# SPDX-License-Identifier: Apache-2.0
"""What the front door does with one statement; the router decides, the session carries it out.

A statement is relayed to the session's own control connection, run on the lake, or refused
(the router raises a PenstockError, and nothing was changed).  Hooks get the session's backend:
what they ask there runs in the client's own transaction.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import pyarrow as pa

from penstock.control.ledger_stream import LedgerEntry
from penstock.frontdoor.writing.scans import Scan
from penstock.sql.copy import CopyOptions
from penstock.sql.table_as import TableAs
from penstock.wire.replication import XLogHeader

Row = tuple[str | None, ...]


class Backend(Protocol):
    """The session's own connection to the control database.

    ``transaction_status`` is that of the last ReadyForQuery: I idle, T in a block, E failed; but T
    too in an open pipeline, or a text of several statements, that has done work of the client.
    ``query`` runs one statement of ours there: in the client's transaction when there is one (or
    when a pipeline is open), otherwise in one of its own.  Parameters and results are text.
    It raises a PenstockError with the fields of the ErrorResponse.
    """

    parameters: dict[str, str]

    @property
    def transaction_status(self) -> Literal["I", "T", "E"]:
        """See above."""
        ...

    async def query(self, sql: str, parameters: Sequence[str | None] = ()) -> list[Row]:
        """See above."""
        ...


Hook = Callable[[Backend], Awaitable[None]]


@dataclass(frozen=True)
class Relay:
    """Send the statement on, with ``sql`` instead of its own text when that is given.

    ``before`` runs first, and its refusal is the statement's.  ``after`` runs when the statement
    succeeded, in the same transaction; an error there undoes the statement.  ``ended`` runs when
    that transaction has ended, with True when it committed.
    """

    sql: str | None = None
    before: Hook | None = None
    after: Hook | None = None
    ended: Callable[[bool], Awaitable[None]] | None = None


@dataclass(frozen=True)
class Explained:
    """A query whose plan is wanted; ``verbose`` with what each of its nodes does."""

    sql: str
    verbose: bool


@dataclass(frozen=True)
class RunOnLake:
    """Spark runs the statement; ``sql`` is its text, ``relids`` the lake relations in its plan.

    ``explained``: it is an EXPLAIN of this query.
    """

    sql: str
    relids: tuple[int, ...]
    explained: Explained | None = None


@dataclass(frozen=True)
class WriteLake:
    """The control database computes the statement's rows, and they go to the lake.

    ``relids`` are the relations that it writes, each a table of the lake or a partitioned one,
    ``needed`` those whose rows it has to see, some of them perhaps the same.  ``reads_client``: it
    is a COPY FROM STDIN, and ``sql`` what the control database runs.  ``truncates``: it is a
    TRUNCATE, with ``options`` (change/schema.py).  ``scans`` are those of its plan, and
    ``on_conflict`` says that it has an ON CONFLICT.
    """

    sql: str
    relids: tuple[int, ...]
    needed: tuple[int, ...] = ()
    reads_client: bool = False
    truncates: bool = False
    options: int = 0
    scans: tuple[Scan, ...] = ()
    on_conflict: bool = False


@dataclass(frozen=True)
class CopyLake:
    """A COPY TO STDOUT whose rows are the lake's; ``sql`` is what the control database runs.

    It copies ``columns`` (None: all) of the table ``relids[0]``, or ``query``.  ``options`` is None
    when they are of a form that the node does not know.  ``inserted``: where in the client's text
    something was put in, and how many characters, in order.
    """

    sql: str
    relids: tuple[int, ...]
    options: CopyOptions | None
    columns: tuple[str, ...] | None = None
    query: RunOnLake | None = None
    inserted: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class RelayRows:
    """A command with a query that Spark runs: DECLARE, or one that makes a temporary table.

    The control database is given ``head``, a query of the rows that Spark has found for ``query``,
    and ``tail``.  ``in_block``: outside of a transaction block it is an error.
    """

    head: str
    query: RunOnLake
    tail: str = ""
    in_block: bool = False


@dataclass(frozen=True)
class MakeTable:
    """CREATE TABLE AS, or SELECT INTO, of a table of the lake.

    ``definition`` is what goes around the definition of the table.
    """

    parts: TableAs
    definition: Relay


Action = Relay | RunOnLake | WriteLake | CopyLake | RelayRows | MakeTable


@dataclass(frozen=True)
class Parameter:
    """A bound parameter: its type's OID, its format (0 text, 1 binary), its bytes or NULL."""

    type_oid: int
    format: Literal[0, 1]
    value: bytes | None


@dataclass(frozen=True)
class LakeResult:
    """A finished query: rows in the order of the result, one Arrow column per result column.

    ``type_oids`` are PostgreSQL's types of the columns; ``described`` the same as the control
    database describes them: of a domain, the type that it is over.  ``tag`` is the command tag, for
    example ``SELECT 3``.
    """

    rows: pa.Table
    type_oids: tuple[int, ...]
    described: tuple[int, ...]
    tag: str


class Router(Protocol):
    """Decides what becomes of a statement."""

    async def route(self, backend: Backend, sql: str, parameter_oids: Sequence[int] = ()) -> Action:
        """The action for one statement (never several); a PenstockError refuses it."""
        ...


class LakeQueries(Protocol):
    """Runs queries on lake tables, at the versions that the session's snapshot shows."""

    async def run(
        self, backend: Backend, query: RunOnLake, parameters: Sequence[Parameter], job: str
    ) -> LakeResult:
        """Run it; ``job`` names it for ``cancel``.  57014 when it was cancelled."""
        ...

    def cancel(self, job: str) -> None:
        """Ask Spark to stop the query that runs under this name; nothing happens without one."""
        ...


@dataclass(frozen=True)
class StreamOptions:
    """What a subscriber asked for; ``timezone`` is that of its session."""

    publications: tuple[str, ...]
    binary: bool
    timezone: str


class PublishedStream(Protocol):
    """The lake's commits as one subscriber is sent them, in the order of the WAL.

    For one thread.
    """

    def expand(self, commit: LedgerEntry, header: XLogHeader) -> Iterator[bytes]:
        """What is published of a transaction, as CopyData messages, many in each piece.

        Blocks.  Nothing comes when nothing is published; an error ends the
        stream.
        """
        ...

    def prepared_ended(self) -> None:
        """A prepared transaction was committed or rolled back; definitions may be others now."""
        ...

    def close(self) -> None:
        """The stream has ended."""
        ...


class Publisher(Protocol):
    """Publishes the lake."""

    def stream(self, options: StreamOptions) -> PublishedStream:
        """A stream that has sent nothing yet."""
        ...


class Subscriptions(Protocol):
    """What the front door asks of the workers around subscription commands."""

    async def stop(self, name: str) -> None:
        """Stop the workers of a subscription and keep them stopped until ``wake``."""
        ...

    def wake(self, name: str) -> None:
        """Look at pg_subscription again: this subscription may have changed, or may run again."""
        ...
