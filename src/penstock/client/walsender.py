# SPDX-License-Identifier: Apache-2.0
"""Begin and end a replication stream, and say why the publisher ended it.

In:   a replication connection (client/connection.py).
Out:  the connection in copy mode, in both directions, or an error with the publisher's SQLSTATE.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

from psycopg import pq

from penstock.client.connection import execute, server_error
from penstock.errors import ConnectionLostError, PenstockError, PublicationError, SlotError
from penstock.lsn import format_lsn
from penstock.names import quote_pg

PROTOCOL_BY_VERSION = ((160000, 4), (150000, 3))
"""Newest protocol of each server version, which PostgreSQL's apply worker asks for, too."""

END_TIMEOUT = 2.0
"""Seconds to end the stream in order, so that the slot is free; then the connection is cut."""

PAST_A_GAP = (
    "To go on without the changes in between, advance the subscription's origin with"
    " pg_replication_origin_advance; to get them, drop the subscription and create it again with"
    " a new copy."
)
"""The hint where the publisher cannot send what comes next."""


def start_replication(
    connection: pq.abc.PGconn,
    slot: str,
    start_lsn: int,
    publications: Sequence[str],
    origin: str = "any",
    streaming: str = "off",
    *,
    binary: bool = False,
    enable_two_phase: bool = False,
) -> None:
    """Enter copy mode; the connection does not block from then on.

    ``streaming`` is off, on or parallel; publishers before 16 do not know parallel and get on, and
    they do not know ``origin`` (as in worker.c, set_stream_options).  With ``binary`` values come
    as their types' send functions write them.  ``enable_two_phase`` makes the slot send
    transactions at their PREPARE, for good.

    SlotError when the slot cannot be used, ObjectInUseError while another connection has it.
    """
    version = connection.server_version
    protocol = next(number for least, number in PROTOCOL_BY_VERSION if version >= least)
    options = [f"proto_version '{protocol}'"]
    if streaming != "off":
        options.append(f"streaming '{streaming if version >= 160000 else 'on'}'")
    if enable_two_phase:
        options.append("two_phase 'on'")
    if version >= 160000:
        options.append(f"origin '{origin}'")
    # The replication grammar knows only doubled quotes inside a string.
    names = ",".join(quote_pg(name) for name in publications).replace("'", "''")
    options.append(f"publication_names '{names}'")
    if binary:
        options.append("binary 'true'")
    command = (
        f"START_REPLICATION SLOT {quote_pg(slot)} LOGICAL {format_lsn(start_lsn)}"
        f" ({', '.join(options)})"
    )
    result = execute(connection, command)
    if result.status != pq.ExecStatus.COPY_BOTH:
        error = server_error(connection, result)
        if error.sqlstate in ("42704", "55000"):
            raise SlotError(error.message, detail=error.detail, hint=error.hint)
        raise error
    connection.nonblocking = 1


def end_replication(connection: pq.abc.PGconn) -> None:
    """Leave copy mode in order, so that the walsender has left the slot; what it sends is lost.

    Returns after END_TIMEOUT if it does not answer.
    """
    connection.put_copy_end()
    deadline = time.monotonic() + END_TIMEOUT
    poll = select.poll()
    poll.register(connection.socket, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        connection.flush()
        size, _ = connection.get_copy_data(1)
        if size < 0:
            return
        if size == 0:
            poll.poll(int(left * 1000) + 1)
            connection.consume_input()


def stream_error(connection: pq.abc.PGconn) -> PenstockError:
    """Why the publisher has left copy mode; versions before 18 so report a lost publication."""
    result = connection.get_result()
    if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
        return ConnectionLostError("the publisher has ended the replication stream")
    error = server_error(connection, result)
    if error.sqlstate == "42704":
        return missing_publication(error.message)
    return error


def notice_error(notice: pq.abc.PGresult) -> PenstockError | None:
    """The error that a notice in the stream stands for, or None.

    PostgreSQL 18 warns ``skipped loading publication`` and goes on without its rows.  The text may
    be translated, so the SQLSTATE tells: pgoutput has no other warning with it.
    """
    severity = notice.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED)
    sqlstate = notice.error_field(pq.DiagnosticField.SQLSTATE)
    if severity == b"WARNING" and sqlstate == b"55000":
        return missing_publication(f"the publisher reports: {notice_text(notice)}")
    return None


def notice_text(notice: pq.abc.PGresult) -> str:
    """A notice's primary message."""
    field = notice.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
    return (field or b"").decode(errors="replace")


def missing_publication(message: str) -> PublicationError:
    """A subscribed publication does not exist, or did not at this place in the log."""
    return PublicationError(
        message,
        detail="Rows that are written while a publication is missing are not sent.",
        hint=f"Create the publication. {PAST_A_GAP}",
    )
