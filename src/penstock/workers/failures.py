# SPDX-License-Identifier: Apache-2.0
"""What becomes of an error of a subscription's workers.

    context      PostgreSQL's words about the change that failed (apply_error_callback in worker.c)
    shown        penstock.subscription_error, until the subscription makes progress again
    counted      pg_stat_subscription_stats: errors of apply and of table sync, with the conflicts
                 that raised them; each attempt counts, as each worker of PostgreSQL would
    disables     a subscription with disable_on_error (DisableSubscriptionAndExit)

A lost connection, to the publisher or to the control database, and whatever happens before the
stream has begun, is neither counted nor a reason to disable: nothing was applied.
"""

from __future__ import annotations

import logging
from enum import StrEnum

import psycopg

from penstock.apply.failing import FailedChangeError
from penstock.control.address import ControlAddress
from penstock.control.catalog import Subscription
from penstock.control.conflict_log import add_stats, log_error_once
from penstock.control.connect import ControlConnection, connect
from penstock.errors import ConnectionLostError, PenstockError, UniqueViolationError
from penstock.lsn import format_lsn
from penstock.pgoutput.decode import Transaction

log = logging.getLogger(__name__)

_MESSAGE_TYPES = {"I": "INSERT", "U": "UPDATE", "D": "DELETE", "T": "TRUNCATE"}
_EXISTS = {"I": "insert_exists", "U": "update_exists"}

_KEEP = """
INSERT INTO penstock.subscription_error (subid, sqlstate, message, detail, hint, context, lsn)
VALUES (%s, %s, %s, %s, %s, %s, %s::pg_lsn)
ON CONFLICT (subid, relid) DO UPDATE SET
    (time, sqlstate, message, detail, hint, context, lsn) = (clock_timestamp(), excluded.sqlstate,
     excluded.message, excluded.detail, excluded.hint, excluded.context, excluded.lsn)"""


class Stage(StrEnum):
    """What an attempt was at."""

    CONNECT = "connect"
    APPLY = "apply"
    SYNC = "sync"


def add_context(error: FailedChangeError, origin: str, transaction: Transaction) -> None:
    """Give the error the CONTEXT that PostgreSQL's apply worker has."""
    relation = f"{error.change.relation.schema}.{error.change.relation.name}"
    error.where = context(
        error.change.op, origin, relation, transaction.xid, transaction.commit_lsn, error.where
    )


def context(
    op: str, origin: str, relation: str, xid: int | None, commit_lsn: int, place: str | None = None
) -> str:
    """The CONTEXT of a change; ``relation`` is its qualified name, ``place`` is inside of it."""
    inside = f" {place}" if place else ""
    return (
        f'processing remote data for replication origin "{origin}"'
        f' during message type "{_MESSAGE_TYPES[op]}"'
        f' for replication target relation "{relation}"{inside}'
        f" in transaction {xid}, finished at {format_lsn(commit_lsn)}"
    )


def conflict(error: Exception) -> str | None:
    """PostgreSQL 18's name of the conflict that an error is, if it is one (conflict.h)."""
    if isinstance(error, FailedChangeError) and error.sqlstate == UniqueViolationError.sqlstate:
        return _EXISTS.get(error.change.op)
    return None


def report_error(
    address: ControlAddress, subscription: Subscription, error: Exception, stage: Stage
) -> bool:
    """Log, show, count, and disable; whether the subscription is disabled by it.

    All but the log in one transaction; it is logged when that fails.
    """
    expected = isinstance(error, PenstockError | psycopg.Error)
    log.error('subscription "%s": %s', subscription.name, error, exc_info=not expected and error)
    lost = isinstance(error, ConnectionLostError | psycopg.OperationalError)
    counts = stage is not Stage.CONNECT and not lost
    disables = counts and subscription.disable_on_error
    try:
        with connect(address, application_name="penstock worker") as connection:
            with connection.transaction():
                _keep(connection, subscription.oid, error)
                if counts:
                    kind = conflict(error)
                    met = {} if kind is None else {f"confl_{kind}": 1}
                    add_stats(connection, subscription.oid, {f"{stage}_error_count": 1, **met})
                if isinstance(error, FailedChangeError) and error.conflict is not None:
                    log_error_once(connection, subscription.oid, *error.conflict)
                if disables:
                    connection.execute(
                        "UPDATE pg_subscription SET subenabled = false WHERE oid = %s::oid",
                        [subscription.oid],
                    )
    except (PenstockError, psycopg.Error) as failed:
        log.warning("the error is not in penstock.subscription_error: %s", failed)
        return False
    return disables


def forget_error(connection: ControlConnection, subid: int) -> None:
    """The subscription works again; a table of it may still be stopped (workers/external.py)."""
    connection.execute(
        "DELETE FROM penstock.subscription_error WHERE subid = %s::oid AND relid = 0", [subid]
    )


def _keep(connection: ControlConnection, subid: int, error: Exception) -> None:
    known = error if isinstance(error, PenstockError) else PenstockError(str(error))
    lsn = format_lsn(error.change.commit_lsn) if isinstance(error, FailedChangeError) else None
    connection.execute(
        _KEEP.encode(),
        [subid, known.sqlstate, known.message, known.detail, known.hint, known.where, lsn],
    )
