# SPDX-License-Identifier: Apache-2.0
"""Connections of the node itself to the control database, as its superuser.

Names are never looked up in a schema that a client could write to: the search path holds
pg_catalog only, so every other name in a statement is qualified.  Limits that were set for
clients (a role's or a database's statement_timeout) do not end the node's own work.

Its commits are flushed, but wait for no synchronous standby (synchronous_standby_names): the ledger
is among what a standby's changes are made from, and PostgreSQL's apply workers do not wait either.
"""

from __future__ import annotations

import psycopg
from psycopg.rows import TupleRow

from penstock.control.address import ControlAddress
from penstock.errors import ConfigurationError, ConnectionLostError

CONNECT_TIMEOUT_S = 10

_SESSION_SETTINGS = {
    "search_path": "pg_catalog",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "timezone": "UTC",
    "datestyle": "ISO",
    "default_transaction_isolation": "read\\ committed",
    "default_transaction_read_only": "off",
    "synchronous_commit": "local",
}


class ControlConnection(psycopg.Connection[TupleRow]):
    """A connection that remembers which replication origin its session has set up."""

    origin: str | None = None


def connect(
    address: ControlAddress, *, autocommit: bool = True, application_name: str = "penstock"
) -> ControlConnection:
    """Connect as the node's superuser.

    ConnectionLostError (08006) when the server cannot be reached; ConfigurationError when it
    refuses the password.
    """
    options = " ".join(f"-c {name}={value}" for name, value in _SESSION_SETTINGS.items())
    conninfo = address.conninfo(
        application_name=application_name,
        client_encoding="UTF8",
        connect_timeout=CONNECT_TIMEOUT_S,
        options=options,
    )
    try:
        return ControlConnection.connect(conninfo, autocommit=autocommit)
    except psycopg.OperationalError as error:
        raise connection_error(error) from error


def connection_error(error: psycopg.OperationalError) -> ConfigurationError | ConnectionLostError:
    """What a failed attempt to connect means for the node."""
    reason = str(error).strip()
    if "password authentication failed" in reason or "no password supplied" in reason:
        return ConfigurationError(
            "the control database refused the node's password",
            detail=f"{reason}.",
            hint='Put the current password of the superuser into the file "pgpass" in the home.',
            sqlstate="28P01",
        )
    return ConnectionLostError(
        "could not connect to the control database", detail=reason[:1].upper() + reason[1:] + "."
    )
