# SPDX-License-Identifier: Apache-2.0
"""Connections to a publisher, set up as PostgreSQL's own subscriber sets up its own.

In:   the connection string of a subscription, which may hold a password.
Out:  a psycopg connection for SQL, or a ``PGconn`` for the replication protocol; on both the
      search path is empty and every value has one text form, whatever the publisher's settings.

Errors are ConnectionLostError when there is no connection (any more), else PenstockError with the
server's SQLSTATE.  No error has the password in it: libpq's own messages about a connection
string can quote a part of it, so they are not passed on.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, overload

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock.errors import (
    ConnectionLostError,
    InvalidParameterError,
    NoAnswerError,
    ObjectInUseError,
    PenstockError,
)

OPTIONS = (
    " -c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=3"
    " -c TimeZone=UTC -c bytea_output=hex"
)
"""PostgreSQL's walreceiver sets the first three; the others fix two more text forms."""

CLEAR_SEARCH_PATH = "SELECT pg_catalog.set_config('search_path', '', false)"

ANSWER_TIMEOUT = 60.0
"""Seconds for the answer to a short command: libpq itself waits for one without end."""

CANCEL_TIMEOUT = 2.0
"""Seconds for the request to cancel; it has a connection of its own."""

_DEFAULTS = {
    # Seconds.  A publisher that does not answer at all is found out by these, a silent one by
    # wal_receiver_timeout.
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",  # milliseconds
}


def publisher_conninfo(
    conninfo: str,
    *,
    replication: bool,
    application_name: str | None = None,
    default_user: str | None = None,
) -> str:
    """The connection string with all that a subscriber adds to it; it may hold a password.

    ``application_name`` is a fallback: the string's own name wins.  ``default_user`` is who
    connects when neither the string nor the environment says so.  InvalidParameterError (22023)
    when libpq cannot read the string.
    """
    try:
        given = conninfo_to_dict(conninfo)
    except psycopg.Error:
        raise InvalidParameterError(
            "invalid connection string syntax",
            hint="See PostgreSQL's documentation of libpq connection strings.",
        ) from None
    added: dict[str, Any] = {name: v for name, v in _DEFAULTS.items() if name not in given}
    added["options"] = str(given.get("options") or "") + OPTIONS
    added["client_encoding"] = "UTF8"
    if application_name is not None:
        added["fallback_application_name"] = application_name
    if replication:
        added["replication"] = "database"
    if default_user is not None and not _names_user(given):
        added["user"] = default_user
    return make_conninfo(conninfo, **added)


class _Lent(psycopg.Connection[Any]):
    """psycopg's connection around a ``PGconn`` that outlives it.

    Only this way to connect, and to cancel, leaves Python's lock to the other threads: with
    ``PGconn.connect`` a publisher that accepts and says nothing stops the whole node.
    """

    def __del__(self, *_: object) -> None:
        """Nothing is closed, and there is nothing to warn of."""


@overload
def open_publisher(
    conninfo: str,
    *,
    replication: Literal[True],
    application_name: str | None = None,
    default_user: str | None = None,
    password_required: bool = False,
) -> pq.abc.PGconn: ...


@overload
def open_publisher(
    conninfo: str,
    *,
    replication: Literal[False] = False,
    application_name: str | None = None,
    default_user: str | None = None,
    password_required: bool = False,
) -> psycopg.Connection[Any]: ...


def open_publisher(
    conninfo: str,
    *,
    replication: bool = False,
    application_name: str | None = None,
    default_user: str | None = None,
    password_required: bool = False,
) -> psycopg.Connection[Any] | pq.abc.PGconn:
    """Connect to a publisher: autocommit and SQL, or the replication protocol.

    ``password_required`` refuses a connection for which the server asked no password, as
    PostgreSQL does for subscriptions of ordinary users (2F003).
    """
    full = publisher_conninfo(
        conninfo,
        replication=replication,
        application_name=application_name,
        default_user=default_user,
    )
    if replication:
        try:
            connection = _Lent.connect(full, autocommit=True).pgconn
        except psycopg.Error as error:
            raise connection_lost(error, conninfo) from None
        connection.nonblocking = 0
        _check_password(connection, password_required)
        with answers_within(connection.socket, ANSWER_TIMEOUT):
            run(connection, CLEAR_SEARCH_PATH)
        return connection
    try:
        session = psycopg.connect(full, autocommit=True)
    except psycopg.Error as error:
        raise connection_lost(error, conninfo) from None
    _check_password(session.pgconn, password_required)
    try:
        with answers_within(session.fileno(), ANSWER_TIMEOUT):
            session.execute(CLEAR_SEARCH_PATH)
    except psycopg.Error as error:
        raise connection_lost(error, conninfo) from None
    return session


@contextmanager
def answers_within(descriptor: int, seconds: float) -> Iterator[None]:
    """Cut a connection, given by its socket, when the block's commands take longer.

    A peer that accepts and then says nothing (a hung server, a half-open path through a proxy)
    keeps TCP alive, so nothing else would end the wait.  NoAnswerError then.
    """
    late = threading.Event()
    with cutter(descriptor) as cut:

        def give_up() -> None:
            late.set()
            cut()

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (ConnectionLostError, psycopg.Error) as error:
            if not late.is_set():
                raise
            raise NoAnswerError(
                f"lost the connection to the publisher: it did not answer within {seconds:g} s"
            ) from error
        finally:
            timer.cancel()
            timer.join()


@contextmanager
def cutter(descriptor: int) -> Iterator[Callable[[], None]]:
    """For the block, a function that ends a connection at once, from any thread.

    Whoever reads from it sees its end.  It has a descriptor of its own: libpq may close its one
    meanwhile, and the number may then be another connection's.
    """
    with socket.socket(fileno=os.dup(descriptor)) as connected:

        def cut() -> None:
            try:
                connected.shutdown(socket.SHUT_RDWR)
            except OSError:  # the peer was quicker
                return

        yield cut


def cancel(connection: pq.abc.PGconn) -> None:
    """Ask the publisher to cancel what runs on a connection; whether it does is not known."""
    try:
        _Lent(connection).cancel_safe(timeout=CANCEL_TIMEOUT)
    except psycopg.Error:  # it is gone already, or does not answer
        return


def run(connection: pq.abc.PGconn, command: str) -> list[tuple[str | None, ...]]:
    """Run one command by the simple protocol and return its rows as text.

    PenstockError with the server's SQLSTATE when it fails; ConnectionLostError when the
    connection does.
    """
    result = execute(connection, command)
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise server_error(connection, result)
    return [
        tuple(_text(result.get_value(row, column)) for column in range(result.nfields))
        for row in range(result.ntuples)
    ]


def execute(connection: pq.abc.PGconn, command: str) -> pq.abc.PGresult:
    """Run one command and return its result, whatever it is; ConnectionLostError without one."""
    try:
        return connection.exec_(command.encode())
    except psycopg.Error as error:
        raise ConnectionLostError(f"lost the connection to the publisher: {error}") from error


def server_error(connection: pq.abc.PGconn, result: pq.abc.PGresult | None) -> PenstockError:
    """The error in a result, or that the connection is gone."""
    sqlstate = _field(result, pq.DiagnosticField.SQLSTATE)
    if result is None or sqlstate is None:
        text = result.get_error_message() if result is not None else connection.get_error_message()
        return ConnectionLostError(f"lost the connection to the publisher: {text.strip()}")
    message = _field(result, pq.DiagnosticField.MESSAGE_PRIMARY) or "unknown error"
    kinds: dict[str, type[PenstockError]] = {
        "55006": ObjectInUseError,
        # The publisher shuts down, has crashed, or somebody has ended the connection there.
        **dict.fromkeys(("57P01", "57P02", "57P03"), ConnectionLostError),
    }
    return kinds.get(sqlstate, PenstockError)(
        f"the publisher reports: {message}",
        detail=_field(result, pq.DiagnosticField.MESSAGE_DETAIL),
        hint=_field(result, pq.DiagnosticField.MESSAGE_HINT),
        sqlstate=sqlstate,
    )


def connection_lost(error: psycopg.Error, conninfo: str) -> ConnectionLostError:
    """That there is no connection, with libpq's reason and without the password."""
    password = conninfo_to_dict(conninfo).get("password")
    reason = str(error).strip()
    if password:
        reason = reason.replace(str(password), "********")
    late = isinstance(error, psycopg.errors.ConnectionTimeout)
    kind = NoAnswerError if late else ConnectionLostError
    return kind(f"could not connect to the publisher: {reason}")


def _check_password(connection: pq.abc.PGconn, password_required: bool) -> None:
    if password_required and not connection.used_password:
        connection.finish()
        raise PenstockError(
            "password is required",
            detail="Non-superuser cannot connect if the server does not request a password.",
            hint="Target server's authentication method must be changed, or set"
            " password_required=false in the subscription parameters.",
            sqlstate="2F003",
        )


def _names_user(given: dict[str, Any]) -> bool:
    """Whether libpq takes the user from the string, from a service or from the environment."""
    environment = any(os.environ.get(name) for name in ("PGUSER", "PGSERVICE"))
    return bool(given.get("user") or given.get("service") or environment)


def _field(result: pq.abc.PGresult | None, field: pq.DiagnosticField) -> str | None:
    return None if result is None else _text(result.error_field(field))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
