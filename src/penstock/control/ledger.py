# SPDX-License-Identifier: Apache-2.0
"""The ledger: ``penstock.commit``, one row for each commit of the lake, in the order of the WAL.

In:   the control database's own WAL, through the slot ``penstock_ledger`` (ledger_stream.py).
Out:  rows of ``penstock.commit``; then feedback, which lets the WAL go.

Each transaction with a message of prefix ``penstock`` becomes one row exactly once: the position
is the highest ``lsn`` of the table itself, so row and position are one insert, and what the slot
sends again after a restart is skipped.  What the transaction changed of publications and tables is
stored with it, in ``penstock.definition`` (definitions.py).

The slot is made by ``migrate``, before anything can commit, so the ledger starts at the beginning.

Its own commits wait for no synchronous standby: a subscriber may be one, and what it is to confirm
is published only once the ledger has it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from penstock.control.address import ControlAddress
from penstock.control.commits import RECORD_PREFIX, commit_record
from penstock.control.connect import ControlConnection, connect
from penstock.control.ledger_stream import (
    FEEDBACK_INTERVAL_S,
    LEDGER_NAME,
    NO_PUBLICATION_SINCE,
    LedgerEntry,
    LedgerStream,
)
from penstock.errors import ConnectionLostError, ObjectInUseError
from penstock.lsn import format_lsn, parse_lsn

_log = logging.getLogger(__name__)

LEDGER_PATIENCE = 30.0
"""Seconds to wait for the ledger; it is behind for so long only when it has stopped."""

_LOOK_AGAIN_S = 0.005
"""The ledger reads the same WAL at the same time as whoever waits for it."""


def prepare_ledger(conn: ControlConnection) -> None:
    """Make the slot when it is missing, and the publication; ``conn`` is a superuser's.

    A slot that went missing while the ledger has rows leaves a gap, which is logged.
    """
    if conn.info.server_version >= NO_PUBLICATION_SINCE:
        conn.execute(f"DROP PUBLICATION IF EXISTS {LEDGER_NAME}")  # an older version made one
    elif not _exists(conn, "SELECT FROM pg_publication WHERE pubname = %s"):
        conn.execute(f"CREATE PUBLICATION {LEDGER_NAME}")
    if not _exists(conn, "SELECT FROM pg_replication_slots WHERE slot_name = %s"):
        made = conn.execute(
            "SELECT lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput')", [LEDGER_NAME]
        ).fetchone()
        if last_entry(conn):
            _log.warning(
                'replication slot "%s" was missing: the ledger has no commits between %s and now',
                LEDGER_NAME,
                format_lsn(last_entry(conn)),
            )
            conn.execute("SELECT penstock.begin_definitions(%s::pg_lsn)", made)


def _exists(conn: ControlConnection, query: str) -> bool:
    return conn.execute(query.encode(), [LEDGER_NAME]).fetchone() is not None


def last_entry(conn: ControlConnection) -> int:
    """The highest LSN in the ledger, 0 when it is empty."""
    row = conn.execute("SELECT coalesce(max(lsn), '0/0')::text FROM penstock.commit").fetchone()
    assert row is not None
    return parse_lsn(row[0])


def wait_for_ledger(conn: ControlConnection, lsn: int, patience: float = LEDGER_PATIENCE) -> None:
    """Return when the ledger has all commits up to ``lsn``.

    That is at once after the commit at ``lsn`` itself; up to an LSN between commits, or behind the
    last one, it comes with its next feedback (FEEDBACK_INTERVAL_S).
    ObjectInUseError (55006) after ``patience`` seconds; it may be tried again.
    """
    deadline = time.monotonic() + patience
    while last_entry(conn) < lsn and (come_to := _confirmed(conn)) < lsn:
        if time.monotonic() > deadline:
            raise _behind(come_to, lsn)
        time.sleep(_LOOK_AGAIN_S)


def commit_of(conn: ControlConnection, xid: str, patience: float = LEDGER_PATIENCE) -> int | None:
    """The LSN of the commit of a transaction that has just ended; None when it moved no table.

    ObjectInUseError (55006) when the ledger has not come so far in ``patience`` seconds.
    """
    row = conn.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    end, deadline = parse_lsn(row[0]), time.monotonic() + patience
    query = "SELECT lsn::text FROM penstock.commit WHERE xid = %s::xid8"
    while True:
        come_to = _confirmed(conn)
        found = conn.execute(query, [xid]).fetchone()
        if found is not None:
            return parse_lsn(found[0])
        if come_to >= end:
            return None
        if time.monotonic() > deadline:
            raise _behind(come_to, end)
        time.sleep(_LOOK_AGAIN_S)


def _behind(come_to: int, wanted: int) -> ObjectInUseError:
    return ObjectInUseError(
        "the ledger is behind the commit that is asked for",
        detail=f"It has come to {format_lsn(come_to)}, and is to come to {format_lsn(wanted)}.",
        hint="The node's log says whether the ledger has stopped, and why.",
    )


def let_ledger_catch_up(
    conn: ControlConnection, purpose: str, patience: float = LEDGER_PATIENCE
) -> None:
    """Commit a record that says nothing but ``purpose``, and wait until the ledger has come to it.

    Then it has all that was in the WAL before.  ObjectInUseError as for ``wait_for_ledger``.
    """
    row = conn.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    with conn.transaction():
        marked = conn.execute(
            "SELECT id::text, pg_current_xact_id()::text FROM penstock.node"
        ).fetchone()
        assert marked is not None  # the schema's first step inserts it
        record = commit_record(marked[0], marked[1], purpose, None, [])
        conn.execute(
            "SELECT pg_logical_emit_message(true, %s, %s)", [RECORD_PREFIX, json.dumps(record)]
        )
    wait_for_ledger(conn, parse_lsn(row[0]), patience)


def _confirmed(conn: ControlConnection) -> int:
    row = conn.execute(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
        [LEDGER_NAME],
    ).fetchone()
    return parse_lsn(row[0]) if row and row[0] else 0


def commits_between(
    conn: ControlConnection, first: int, last: int
) -> list[tuple[int, list[dict[str, Any]]]]:
    """Commits above ``first``, up to ``last``, in order: LSN, and the tables of their records."""
    rows = conn.execute(
        "SELECT lsn::text, tables FROM penstock.commit"
        " WHERE lsn > %s::pg_lsn AND lsn <= %s::pg_lsn AND tables <> '[]' ORDER BY lsn",
        [format_lsn(first), format_lsn(last)],
    ).fetchall()
    return [(parse_lsn(lsn), tables) for lsn, tables in rows]


def versions_at(conn: ControlConnection, locations: Sequence[str], lsn: int) -> dict[str, int]:
    """The Delta versions that tables had after the commit at ``lsn``, by the names of folders.

    Those that had no rows yet are absent.  A commit of several statements tells of a table several
    times; the last one counts.
    """
    rows = conn.execute(
        "SELECT DISTINCT ON (t.moved->>'location')"
        " t.moved->>'location', (t.moved->>'version')::bigint"
        " FROM penstock.commit c,"
        " jsonb_array_elements(c.tables) WITH ORDINALITY t (moved, place)"
        " WHERE c.lsn <= %s::pg_lsn AND t.moved->>'location' = ANY (%s::text[])"
        " ORDER BY 1, c.lsn DESC, t.place DESC",
        [format_lsn(lsn), list(locations)],
    ).fetchall()
    return dict(rows)


class Ledger:
    """Follows the WAL; one instance, run by one thread."""

    def __init__(
        self, address: ControlAddress, feedback_interval: float = FEEDBACK_INTERVAL_S
    ) -> None:
        self._address = address
        self._feedback_interval = feedback_interval

    def run(self, stop: threading.Event) -> None:
        """Follow until ``stop`` is set, which is noticed within a second.

        ConnectionLostError when the server goes away; calling it again continues.
        """
        with connect(self._address, application_name="penstock ledger") as conn:
            with LedgerStream(self._address, self._feedback_interval) as stream:
                try:
                    self._follow(conn, stream, stop)
                except psycopg.OperationalError as error:
                    raise ConnectionLostError(
                        "the ledger lost its connection to the control database",
                        detail=str(error).strip(),
                    ) from error

    def _follow(self, conn: ControlConnection, stream: LedgerStream, stop: threading.Event) -> None:
        last = last_entry(conn)
        for entry in stream.entries(stop):
            if entry.lsn > last:
                store(conn, entry)
                last = entry.lsn


def store_definitions(conn: ControlConnection, entry: LedgerEntry) -> None:
    """Insert the definitions of one entry."""
    definitions = [
        {"kind": kind, "objid": objid, "facts": facts}
        for (kind, objid), facts in entry.definitions.items()
    ]
    conn.execute(
        "INSERT INTO penstock.definition (kind, objid, lsn, relid, facts)"
        " SELECT d->>'kind', (d->>'objid')::oid, %s::pg_lsn, (d->'facts'->>'relid')::oid,"
        " nullif(d->'facts', 'null') FROM jsonb_array_elements(%s) d",
        [format_lsn(entry.lsn), Jsonb(definitions)],
    )


def store(conn: ControlConnection, entry: LedgerEntry) -> None:
    """Insert one entry with its definitions, in one transaction; durable on return."""
    if not entry.definitions:
        _store_commit(conn, entry)
        return
    with conn.transaction():
        store_definitions(conn, entry)
        _store_commit(conn, entry)


def _store_commit(conn: ControlConnection, entry: LedgerEntry) -> None:
    conn.execute(
        "INSERT INTO penstock.commit (lsn, end_lsn, xid, time, purpose, origin, tables, ddl)"
        " VALUES (%(lsn)s::pg_lsn, %(end_lsn)s::pg_lsn, %(xid)s::xid8, %(time)s, %(purpose)s,"
        " %(origin)s, %(tables)s, %(ddl)s)",
        {
            "lsn": format_lsn(entry.lsn),
            "end_lsn": format_lsn(entry.end_lsn),
            "xid": entry.xid,
            "time": entry.time,
            "purpose": entry.purpose,
            "origin": entry.origin,
            "tables": Jsonb(entry.tables),
            "ddl": Jsonb(entry.ddl),
        },
    )
