# SPDX-License-Identifier: Apache-2.0
"""What ``penstock status`` knows: read from the running node's catalogs through its front door.

In:   pg_subscription, pg_subscription_rel, pg_stat_subscription's rows as the workers report them,
      the origins' positions and the last errors.
Out:  one SubscriptionStatus for each subscription, tables in order of their names.

All in one read-only transaction, so the lines of one status belong together.  A password in a
connection string is masked here, before anything can print it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from penstock.logs import mask_passwords
from penstock.running import FrontDoor, NotRunningError

STATES = {"i": "waiting", "d": "copying", "f": "copied", "s": "catching up", "r": "ready"}
"""srsubstate in words; the letters are PostgreSQL's."""

CONNECT_TIMEOUT = 10  # seconds

_SUBSCRIPTIONS = """
    SELECT s.oid, s.subname AS name, s.subenabled AS enabled, s.subconninfo AS conninfo,
           s.subpublications AS publications, w.pid IS NOT NULL AS streaming,
           w.received_lsn::text AS received, o.remote_lsn::text AS applied,
           greatest(0, w.received_lsn - greatest(o.remote_lsn, w.latest_end_lsn))::bigint
               AS lag_bytes,
           CASE WHEN w.pid IS NULL THEN NULL
                WHEN w.pending_since IS NULL THEN 0
                ELSE greatest(0, extract(epoch FROM clock_timestamp() - w.pending_since))
           END::float8 AS lag_seconds
    FROM pg_subscription s
    LEFT JOIN penstock.subscription_worker w ON w.subid = s.oid AND w.worker_type = 'apply'
    LEFT JOIN pg_replication_origin n ON n.roname = 'pg_' || s.oid
    LEFT JOIN pg_replication_origin_status o ON o.local_id = n.roident
    WHERE s.subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())
    ORDER BY s.subname"""

_TABLES = """
    SELECT r.srsubid AS subid, r.srrelid::regclass::text AS name, r.srsubstate AS state,
           CASE WHEN r.srsubstate IN ('i', 'd') THEN w.rows_copied
                ELSE coalesce(t.rows_copied, w.rows_copied) END AS rows_copied,
           w.rows_total,
           t.copy_seconds
    FROM pg_subscription_rel r
    LEFT JOIN penstock.subscription_worker w ON w.subid = r.srsubid AND w.relid = r.srrelid
    LEFT JOIN penstock.subscription_table t ON t.subid = r.srsubid AND t.relid = r.srrelid
    ORDER BY 2"""

_ERRORS = """
    SELECT subid, CASE WHEN relid <> 0 THEN relid::regclass::text END AS "table",
           to_char(time AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC' AS time,
           sqlstate, message, detail, hint, context
    FROM penstock.subscription_error ORDER BY penstock.subscription_error.time"""


@dataclass(frozen=True)
class TableStatus:
    """One table of a subscription; rows are None where nobody counted them."""

    name: str
    state: str
    rows_copied: int | None
    rows_total: int | None
    """The publisher's estimate, while the copy runs."""
    copy_seconds: float | None

    @property
    def state_words(self) -> str:
        """The state for people."""
        return STATES.get(self.state, self.state)


@dataclass(frozen=True)
class LastError:
    """What went wrong last, for the subscription or for the copy of one table."""

    table: str | None
    time: str
    sqlstate: str
    message: str
    detail: str | None
    hint: str | None
    context: str | None


@dataclass(frozen=True)
class SubscriptionStatus:
    """One subscription; positions are LSN texts, lag is None while no worker runs."""

    name: str
    enabled: bool
    streaming: bool
    publisher: str
    publications: tuple[str, ...]
    received: str | None
    applied: str | None
    lag_bytes: int | None
    lag_seconds: float | None
    tables: tuple[TableStatus, ...]
    errors: tuple[LastError, ...]

    @property
    def state_words(self) -> str:
        """disabled, streaming, or waiting when its worker does not run."""
        if not self.enabled:
            return "disabled"
        return "streaming" if self.streaming else "not connected"


def connect_to_node(door: FrontDoor) -> psycopg.Connection[Any]:
    """A connection to the front door as superuser; NotRunningError when it does not answer."""
    try:
        connection = psycopg.connect(
            host=door.host,
            port=door.port,
            dbname=door.database,
            user=door.user,
            passfile=str(door.passfile),
            connect_timeout=CONNECT_TIMEOUT,
            application_name="penstock status",
        )
    except psycopg.OperationalError as error:
        raise NotRunningError(
            f"the node (PID {door.pid}) does not answer on {door.host}:{door.port}: {error}"
        ) from error
    connection.read_only = True
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    return connection


def read_status(connection: psycopg.Connection[Any]) -> list[SubscriptionStatus]:
    """The state of every subscription, by name."""
    with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        subscriptions = cursor.execute(_SUBSCRIPTIONS).fetchall()
        tables = cursor.execute(_TABLES).fetchall()
        errors = cursor.execute(_ERRORS).fetchall()
    return [_subscription(row, tables, errors) for row in subscriptions]


def _subscription(
    row: dict[str, Any], tables: Sequence[dict[str, Any]], errors: Sequence[dict[str, Any]]
) -> SubscriptionStatus:
    oid = row["oid"]
    return SubscriptionStatus(
        name=row["name"],
        enabled=row["enabled"],
        streaming=row["streaming"],
        publisher=mask_passwords(row["conninfo"]),
        publications=tuple(row["publications"]),
        received=row["received"],
        applied=row["applied"],
        lag_bytes=row["lag_bytes"],
        lag_seconds=row["lag_seconds"],
        tables=tuple(TableStatus(**_without_subid(t)) for t in tables if t["subid"] == oid),
        errors=tuple(_last_error(e) for e in errors if e["subid"] == oid),
    )


def _last_error(row: dict[str, Any]) -> LastError:
    masked = {
        name: mask_passwords(text) if isinstance(text, str) else text for name, text in row.items()
    }
    return LastError(**_without_subid(masked))


def _without_subid(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "subid"}
