# SPDX-License-Identifier: Apache-2.0
"""The start-up contract: what must hold before the stream may go on.

In:   a replication connection to the publisher, the subscription's slot and publications, and the
      position up to which everything is durable here.
Out:  the publisher's identity, or a named error; nothing is skipped and nothing is guessed.

    the publisher is the one of the first start       system identifier and database
    the slot exists, is pgoutput's, and is not lost   pg_replication_slots
    confirmed_flush_lsn <= our flush                  else the slot skips what we never got
    our flush <= the publisher's flush LSN            else the publisher went back in time, and
                                                      the slot skips what it writes next
    every publication exists                          else rows are silently not sent

PostgreSQL's own subscriber checks neither line about positions: it skips silently.

``identity.json`` in the staging folder remembers the publisher.  Without it this is the first
start, and the slot's position is taken as ours: nothing was promised before it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from psycopg import pq

from penstock.client.connection import run
from penstock.client.walsender import PAST_A_GAP
from penstock.errors import FeatureNotSupportedError, PublicationError, SlotError, StagingError
from penstock.lsn import format_lsn, parse_lsn
from penstock.names import quote_pg_literal
from penstock.staging.files import replace_durably, room_needed
from penstock.staging.log import StagingLog

MIN_VERSION = 150000
IDENTITY_FILE = "identity.json"


@dataclass(frozen=True)
class Publisher:
    """Which server a publisher is; ``database`` is the one that the slot belongs to."""

    system_identifier: str
    database: str


def check_contract(
    connection: pq.abc.PGconn,
    *,
    slot: str,
    publications: Sequence[str],
    staging: StagingLog,
    origin_lsn: int,
) -> int:
    """Check each line; return the position to start from.

    ``origin_lsn`` is the applied position, 0 when there is none.  Our flush is that or the end of
    staging, whichever is later.  SlotError, PublicationError or FeatureNotSupportedError with a
    hint when a line does not hold.
    """
    if connection.server_version < MIN_VERSION:
        raise FeatureNotSupportedError(
            "the publisher's PostgreSQL is too old",
            detail=f"It has version {connection.server_version // 10000}, 15 is needed.",
        )
    ((system, _, flushed, database, *_),) = run(connection, "IDENTIFY_SYSTEM")
    publisher = Publisher(system or "", database or "")
    known = _known_publisher(staging.folder)
    if known is not None:
        _check_identity(known, publisher, staging.folder)
    confirmed = _confirmed_flush(connection, slot)
    flush = max(origin_lsn, staging.end_lsn)
    if known is None and flush == 0:
        flush = confirmed
    _check_positions(slot, confirmed, flush, parse_lsn(flushed or ""))
    _check_publications(connection, publications)
    staging.advance(flush)
    if known is None:
        content = json.dumps(asdict(publisher)).encode()
        with room_needed(staging.folder):
            replace_durably(staging.folder / IDENTITY_FILE, content)
    return flush


def _known_publisher(folder: Path) -> Publisher | None:
    path = folder / IDENTITY_FILE
    if not path.exists():
        return None
    try:
        return Publisher(**json.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise StagingError(f"the publisher's identity in {path} is not readable") from error


def _check_identity(known: Publisher, found: Publisher, folder: Path) -> None:
    if known == found:
        return
    raise SlotError(
        "the publisher is not the one that this subscription has followed",
        detail=f'It was database "{known.database}" of system {known.system_identifier}, now it is'
        f' database "{found.database}" of system {found.system_identifier}.',
        hint="Correct the connection, or create the subscription again with a new copy. If the"
        " same publisher was moved together with its slots, as pg_upgrade does, remove"
        f" {folder / IDENTITY_FILE}.",
    )


def _confirmed_flush(connection: pq.abc.PGconn, slot: str) -> int:
    reason = "invalidation_reason" if connection.server_version >= 170000 else "NULL"
    rows = run(
        connection,
        f"SELECT plugin, database, wal_status, {reason}, confirmed_flush_lsn"
        f" FROM pg_catalog.pg_replication_slots WHERE slot_name = {quote_pg_literal(slot)}",
    )
    if not rows:
        raise SlotError(
            f'replication slot "{slot}" does not exist on the publisher',
            hint="Create the subscription again with a new copy: what was written since the slot"
            " was dropped cannot be sent any more.",
            sqlstate="42704",
        )
    ((plugin, database, status, invalid, confirmed),) = rows
    if plugin != "pgoutput" or confirmed is None:
        raise SlotError(
            f'replication slot "{slot}" is not a logical slot of plugin pgoutput',
            hint="Choose another slot with ALTER SUBSCRIPTION ... SET (slot_name = ...).",
        )
    if status == "lost" or invalid:
        raise SlotError(
            f'replication slot "{slot}" is lost: the publisher removed what it still needed',
            detail=f"The reason is {invalid or 'wal_removed'}.",
            hint="Drop the subscription and create it again with a new copy.",
        )
    if database != connection.db.decode():
        raise SlotError(
            f'replication slot "{slot}" belongs to database "{database}"',
            hint="Name that database in the subscription's connection string.",
        )
    return parse_lsn(confirmed)


def _check_positions(slot: str, confirmed: int, flush: int, publisher_flush: int) -> None:
    if confirmed > flush:
        raise SlotError(
            f'replication slot "{slot}" is ahead of this subscription',
            detail=f"Everything up to {format_lsn(flush)} is here, but the slot goes on at"
            f" {format_lsn(confirmed)}; it was advanced or created again by someone else.",
            hint=PAST_A_GAP,
        )
    if flush > publisher_flush:
        raise SlotError(
            "the publisher is behind this subscription",
            detail=f"Everything up to {format_lsn(flush)} is here, but the publisher's write-ahead"
            f" log ends at {format_lsn(publisher_flush)}; it was set back, by a restore or by a"
            " failover to a server that had not received everything.",
            hint="Create the subscription again with a new copy.",
        )


def _check_publications(connection: pq.abc.PGconn, publications: Sequence[str]) -> None:
    names = ", ".join(quote_pg_literal(name) for name in publications)
    query = f"SELECT pubname FROM pg_catalog.pg_publication WHERE pubname IN ({names})"
    existing = {name for (name,) in run(connection, query)}
    missing = [name for name in publications if name not in existing]
    if missing:
        raise PublicationError(
            "publications do not exist on the publisher: "
            + ", ".join(f'"{name}"' for name in missing),
            hint="Create them, or take them out with ALTER SUBSCRIPTION ... DROP PUBLICATION."
            " Rows that were written while a publication was missing are not sent.",
        )
