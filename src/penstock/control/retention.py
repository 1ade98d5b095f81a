# SPDX-License-Identifier: Apache-2.0
"""What logical slots still need of the lake, so that nothing of it is removed.

A slot's subscriber is sent each commit from ``confirmed_flush_lsn`` on, however late it comes, and
a commit is told by the difference of Delta versions (lake/changes.py).  So of each table, all
versions stay readable from the one before the first that such a commit made; and a dropped table's
folder stays while a slot has not passed the drop.

A slot that PostgreSQL has invalidated (max_slot_wal_keep_size, idle_replication_slot_timeout) or
that was dropped holds nothing.  The ledger's own never does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.control.catalog import committed_versions
from penstock.control.connect import ControlConnection
from penstock.control.ledger import LEDGER_PATIENCE, last_entry, let_ledger_catch_up
from penstock.control.ledger_stream import LEDGER_NAME
from penstock.lsn import format_lsn, parse_lsn

# invalidation_reason is there since 17.  A slot that is being made has no confirmed_flush_lsn yet.
_OLDEST = """
SELECT min(coalesce(confirmed_flush_lsn, restart_lsn))::text FROM pg_replication_slots s
WHERE slot_type = 'logical' AND slot_name <> %s AND database = current_database()
    AND wal_status IS DISTINCT FROM 'lost' AND to_jsonb(s)->>'invalidation_reason' IS NULL"""

_FIRST_VERSIONS = """
SELECT v.relid::bigint, min((r.versions->>0)::bigint)
FROM penstock.commit c, jsonb_array_elements(c.tables) t (moved),
    jsonb_array_elements(t.moved->'ranges') r (versions), penstock.table_version v
WHERE c.lsn >= %s::pg_lsn AND v.location = t.moved->>'location' GROUP BY v.relid"""

_DROPPED_BEFORE = """
SELECT d.location FROM penstock.dropped_table d WHERE d.location = ANY (%s)
    AND NOT EXISTS (SELECT FROM penstock.commit c WHERE c.lsn >= %s::pg_lsn AND c.xid = d.xid)"""


@dataclass(frozen=True)
class Needed:
    """What must stay.

    ``lsn``: commits from there on will be sent; None without a slot.  ``versions``: of each table
    with a Delta table, by relid, the version from which on all stay readable; those that a commit
    makes while this is asked for are above it.  ``dropped``: folders that nobody needs.
    """

    lsn: int | None
    versions: Mapping[int, int]
    dropped: Sequence[str]


def oldest_position(conn: ControlConnection) -> int | None:
    """The LSN from which on some logical slot of this database needs commits; None without one."""
    row = conn.execute(_OLDEST.encode(), [LEDGER_NAME]).fetchone()
    return None if row is None or row[0] is None else parse_lsn(row[0])


def needed_by_slots(conn: ControlConnection, patience: float = LEDGER_PATIENCE) -> Needed:
    """Ask what slots need; ``conn`` is idle, in autocommit mode.

    ObjectInUseError (55006) when the ledger, which knows the commits, is behind for ``patience``
    seconds.
    """
    versions = committed_versions(conn)
    dropped = [
        location
        for (location,) in conn.execute("SELECT location FROM penstock.dropped_table").fetchall()
    ]
    oldest = oldest_position(conn)
    if oldest is None:
        return Needed(None, versions, dropped)
    # Tables and drops were read first: the ledger has come to whatever committed before that.
    let_ledger_catch_up(conn, "retention", patience)
    at = format_lsn(oldest)
    for relid, first in conn.execute(_FIRST_VERSIONS.encode(), [at]).fetchall():
        if relid in versions:
            versions[relid] = min(versions[relid], max(first - 1, 0))
    passed = conn.execute(_DROPPED_BEFORE.encode(), [dropped, at]).fetchall()
    return Needed(oldest, versions, [location for (location,) in passed])


def forgettable(conn: ControlConnection, needed: Needed, days: float) -> int:
    """The LSN before which definitions need not be known.

    No slot needs them then, and they were replaced ``days`` ago at least.  0: all are kept.
    """
    until = last_entry(conn) if needed.lsn is None else needed.lsn
    row = conn.execute(
        "SELECT coalesce(max(d.lsn), '0/0')::text FROM penstock.definition d"
        " JOIN penstock.commit c ON c.lsn = d.lsn"
        " WHERE d.lsn <= %s::pg_lsn AND c.time < now() - make_interval(secs => %s)",
        [format_lsn(until), days * 86400],
    ).fetchone()
    assert row is not None
    return parse_lsn(row[0])
