# SPDX-License-Identifier: Apache-2.0
"""A copy's connection to the publisher: a transaction under the exported snapshot.

ADBC needs some 80 ms to connect, as long as it takes to read several MB: it asks the publisher for
all its types.  So an executor's process keeps the connection of its last range for KEPT seconds,
for the next range of the same copy.  Longer it must not stay: its transaction holds back vacuum on
the publisher, and a lock on the table.  A connection with an error is closed at once.  The node
itself has its connection made while it prepares the copy (``Ahead``).

No Spark here: this module is what executors import.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import adbc_driver_manager
import adbc_driver_postgresql.dbapi as adbc

from penstock.errors import ConnectionLostError, PenstockError
from penstock.names import quote_pg_literal
from penstock.threads import beside

WHERE = "initial copy, on the publisher"

KEPT = 1.0
"""Seconds; the driver needs 20 ms from one range to the next."""


@dataclass(frozen=True)
class Source:
    """Where ranges are read: a libpq connection string and an exported snapshot.

    ``last_change`` is the subscription and the time that the copied rows get
    (change/last_change.py); None leaves them open.
    """

    conninfo: str
    snapshot: str
    last_change: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"Source(snapshot={self.snapshot!r})"  # The connection string has a password.


@contextlib.contextmanager
def reading(source: Source) -> Iterator[adbc.Cursor]:
    """A cursor whose statements see the snapshot; for executors.

    ConnectionLostError when the snapshot or the connection is gone, or the publisher's own error.
    """
    with contextlib.ExitStack() as on_error, _errors_as_ours():
        cursor = _kept.take(source) or _begin(source, adbc.connect(source.conninfo))
        on_error.callback(_close, cursor)
        yield cursor
        on_error.pop_all()
    _kept.keep(source, cursor)


@contextlib.contextmanager
def reading_once(source: Source, ahead: Ahead) -> Iterator[adbc.Cursor]:
    """As ``reading``, on a connection made ahead, which is closed at the end."""
    with contextlib.ExitStack() as at_end, _errors_as_ours():
        try:
            cursor = _begin(source, ahead.take())
        except adbc_driver_manager.Error:
            # The publisher may have ended it: until the snapshot was there, it did nothing.
            cursor = _begin(source, adbc.connect(source.conninfo))
        at_end.callback(_close, cursor)
        yield cursor


class Ahead:
    """A connection that a thread makes meanwhile; ``close`` it, whether it was taken or not.

    A thread that may hang: nobody waits for it but ``take``.
    """

    def __init__(self, conninfo: str) -> None:
        """Begin to connect."""
        self._taken = False
        self._connection: Future[adbc.Connection] = beside(
            partial(adbc.connect, conninfo), "copy connection", (adbc_driver_manager.Error,)
        )

    def take(self) -> adbc.Connection:
        """The connection, which the caller closes from now on; raises what ADBC raised."""
        self._taken = True
        return self._connection.result()

    def close(self) -> None:
        """Close it when it is there, unless it was taken."""
        if not self._taken:
            self._connection.add_done_callback(_close_unused)


def publisher_error(error: adbc_driver_manager.Error) -> PenstockError:
    """ADBC's error as ours: without a SQLSTATE, or in class 08 or 57P, the connection is gone."""
    fields = dict(error.details)
    message = fields.get(b"PG_DIAG_MESSAGE_PRIMARY", b"").decode(errors="replace")
    if not error.sqlstate or error.sqlstate.startswith(("08", "57P")):
        return lost(message or str(error))
    return PenstockError(message or str(error), sqlstate=error.sqlstate, where=WHERE)


def lost(reason: str) -> ConnectionLostError:
    """The error for a connection that is gone."""
    return ConnectionLostError(
        "lost the connection to the publisher", detail=reason.strip(), where=WHERE
    )


@contextlib.contextmanager
def _errors_as_ours() -> Iterator[None]:
    try:
        yield
    except adbc_driver_manager.Error as error:
        raise publisher_error(error) from error


def _close_unused(connection: Future[adbc.Connection]) -> None:
    if connection.exception() is None:
        connection.result().close()


def _begin(source: Source, connection: adbc.Connection) -> adbc.Cursor:
    with contextlib.ExitStack() as on_error:
        cursor = connection.cursor()
        on_error.callback(_close, cursor)
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        try:
            cursor.execute(f"SET TRANSACTION SNAPSHOT {quote_pg_literal(source.snapshot)}")
        except adbc_driver_manager.Error as error:
            raise ConnectionLostError(
                "the snapshot of the initial copy is gone",
                detail=publisher_error(error).message,
                hint="The copy begins again with a new snapshot.",
            ) from error
        cursor.execute("SET LOCAL search_path = ''")  # names in filters are qualified
        on_error.pop_all()
        return cursor


def _close(cursor: adbc.Cursor) -> None:
    # What is wrong with a connection that is given up was reported where it was noticed.
    with contextlib.suppress(adbc_driver_manager.Error), cursor.connection, cursor:
        pass


class _Kept:
    """The connection that waits for this process's next range, if one does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: tuple[Source, adbc.Cursor, threading.Timer] | None = None

    def take(self, source: Source) -> adbc.Cursor | None:
        """The cursor, if it is of this source; any other is closed."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is None:
            return None
        kept, cursor, timer = waiting
        timer.cancel()
        if kept == source:
            return cursor
        _close(cursor)
        return None

    def keep(self, source: Source, cursor: adbc.Cursor) -> None:
        """Keep it for KEPT seconds, in place of what another thread has left."""
        timer = threading.Timer(KEPT, self._expire, (cursor,))
        timer.daemon = True
        with self._lock:
            before, self._waiting = self._waiting, (source, cursor, timer)
            timer.start()
        if before is not None:
            before[2].cancel()
            _close(before[1])

    def _expire(self, cursor: adbc.Cursor) -> None:
        with self._lock:
            if self._waiting is None or self._waiting[1] is not cursor:
                return  # taken meanwhile
            self._waiting = None
        _close(cursor)


_kept = _Kept()
