# SPDX-License-Identifier: Apache-2.0
"""``penstock.conflict_log``: a row for each conflict, in the transaction of the batch that met it.

In:   the conflicts of a batch with a table: how many of each kind, and the first of them.
Out:  rows of the log, the statistics, and PostgreSQL 18's words for the node's log.

Both logs are bounded.  Of one batch at most LOGGED conflicts with a table are rows of their own;
the others of a kind and resolution are one row together (``changes``).  Of one subscription the
last KEPT rows stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from psycopg.types.json import Jsonb

from penstock.change.relation import LakeTable
from penstock.control.connect import ControlConnection
from penstock.lsn import format_lsn

LOGGED = 100
"""Conflicts of one batch with one table that are shown with their rows."""

KEPT = 10_000
"""Rows of the log that are kept for one subscription."""

VALUE_LIMIT = 8192
"""Characters of a value that the log shows; the rest is three dots."""

_CLIPPED = 64

KINDS = (
    "insert_exists",
    "update_exists",
    "update_missing",
    "delete_missing",
    "update_origin_differs",
    "delete_origin_differs",
)
"""The conflicts that can be, by PostgreSQL's names: counted as ``confl_...`` in
pg_stat_subscription_stats."""

Texts = Mapping[str, str | None]
"""Columns of a row with their values in PostgreSQL's text form."""


@dataclass(frozen=True)
class LoggedConflict:
    """One conflict.  ``time_us`` and ``local_time_us`` are microseconds since 1970-01-01 UTC.

    ``op`` is the change's, I, U or D.
    ``commit_lsn``, ``xid`` and ``time_us`` are the remote transaction's.  ``local`` is the row as
    it was before the batch, None when there was none; ``local_origin`` is the subscription that
    changed it last, ``local_time_us`` when it did, None when that is not known.  ``remote`` lacks
    the columns that the publisher did not send; it is None for a DELETE.
    """

    kind: str
    resolution: str
    op: str
    commit_lsn: int
    xid: int | None
    time_us: int | None
    key: Texts
    local: Texts | None
    remote: Texts | None
    local_origin: int | None
    local_time_us: int | None


@dataclass
class Conflicts:
    """The conflicts of a batch with one table: all counted by kind and resolution, some shown."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    shown: list[LoggedConflict] = field(default_factory=list)

    def number(self, kind: str) -> int:
        """How many there were of a kind."""
        return sum(count for (each, _), count in self.counts.items() if each == kind)

    def not_shown(self) -> Iterator[tuple[str, str, int]]:
        """Kinds and resolutions with the number of conflicts that are not shown."""
        shown = Counter((each.kind, each.resolution) for each in self.shown)
        for (kind, resolution), count in self.counts.items():
            if count > shown[kind, resolution]:
                yield kind, resolution, count - shown[kind, resolution]


def record_conflicts(
    conn: ControlConnection, subid: int, table: LakeTable, conflicts: Conflicts
) -> None:
    """Count and log the conflicts of a batch with a table, in the caller's transaction."""
    if not conflicts.counts:
        return
    add_stats(conn, subid, {f"confl_{kind}": conflicts.number(kind) for kind in KINDS})
    log_conflicts(conn, subid, table, conflicts)


def add_stats(conn: ControlConnection, subid: int, more: Mapping[str, int]) -> None:
    """Add to columns of a subscription's row in pg_stat_subscription_stats."""
    added = ", ".join(f"{column} = s.{column} + excluded.{column}" for column in more)
    conn.execute(
        f"INSERT INTO penstock.subscription_stats AS s (subid, {', '.join(more)})"
        f" VALUES (%s{', %s' * len(more)}) ON CONFLICT (subid) DO UPDATE SET {added}".encode(),
        [subid, *more.values()],
    )


_INSERT = """
INSERT INTO penstock.conflict_log (subid, relid, relation, conflict, resolution, changes,
    remote_xid, remote_lsn, remote_commit_time, local_origin, local_commit_time, key, local_row,
    remote_row)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s::pg_lsn, %s, %s, %s, %s, %s, %s)"""
_TRIM = """
DELETE FROM penstock.conflict_log WHERE subid = %(subid)s::oid AND id <= (
    SELECT id FROM penstock.conflict_log WHERE subid = %(subid)s::oid
    ORDER BY id DESC LIMIT 1 OFFSET %(kept)s)"""


def log_conflicts(
    conn: ControlConnection, subid: int, table: LakeTable, conflicts: Conflicts
) -> None:
    """Insert the rows, and remove the oldest ones of the subscription."""
    head = [subid, table.relid, f"{table.schema}.{table.name}"]
    rows: list[list[object]] = [
        [*head, kind, resolution, count, *[None] * 8]
        for kind, resolution, count in conflicts.not_shown()
    ]
    shown: list[list[object]] = [
        [
            *head,
            each.kind,
            each.resolution,
            1,
            each.xid,
            format_lsn(each.commit_lsn),
            moment(each.time_us),
            each.local_origin,
            moment(each.local_time_us),
            *(None if row is None else Jsonb(row) for row in (each.key, each.local, each.remote)),
        ]
        for each in conflicts.shown
    ]
    with conn.cursor() as cursor:
        cursor.executemany(_INSERT.encode(), shown + rows)
    conn.execute(_TRIM.encode(), {"subid": subid, "kept": KEPT})


def log_error_once(
    conn: ControlConnection, subid: int, table: LakeTable, conflict: LoggedConflict
) -> None:
    """Insert a conflict that is an error, unless an earlier attempt has."""
    same = conn.execute(
        "SELECT FROM penstock.conflict_log WHERE subid = %s::oid AND relid = %s::oid"
        " AND resolution = 'error' AND remote_lsn = %s::pg_lsn AND key = %s",
        [subid, table.relid, format_lsn(conflict.commit_lsn), Jsonb(conflict.key)],
    )
    if not same.rowcount:
        kind = (conflict.kind, conflict.resolution)
        log_conflicts(conn, subid, table, Conflicts(Counter({kind: 1}), [conflict]))


def moment(time_us: int | None) -> datetime | None:
    """A time in microseconds since 1970-01-01 UTC; None stays None."""
    if time_us is None:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)


def conflict_detail(conflict: LoggedConflict, key_index: str | None) -> str:
    """The DETAIL of PostgreSQL 18 (errdetail_apply_conflict in conflict.c).

    Without the number of a local transaction: a row of the lake has none.
    """
    key = _described("Key" if conflict.kind.endswith("exists") else "replica identity", conflict)
    values = [
        f"existing local row {_row(conflict.local)}" if conflict.local is not None else "",
        f"remote row {_row(conflict.remote)}" if conflict.remote is not None else "",
    ]
    shown = [key, *values] if conflict.kind.endswith("exists") else [*values, key]
    line = "; ".join(each for each in shown if each)
    return f"{_sentence(conflict, key_index)}\n{line[0].upper()}{line[1:]}."


def _sentence(conflict: LoggedConflict, key_index: str | None) -> str:
    if conflict.kind == "update_missing":
        return "Could not find the row to be updated."
    if conflict.kind == "delete_missing":
        return "Could not find the row to be deleted."
    at = moment(conflict.local_time_us)
    time = f" at {at.isoformat(' ')}" if at is not None else ""
    if conflict.kind.endswith("exists"):
        origin = conflict.local_origin
        who = "locally" if origin is None else f'by origin "pg_{origin}"'
        known = origin is not None or at is not None
        by = f", modified {who}{time}" if known else ""
        return f'Key already exists in unique index "{key_index}"{by}.'
    doing = "Updating" if conflict.kind.startswith("update") else "Deleting"
    if conflict.local_origin is None:
        return f"{doing} the row that was modified locally{time}."
    return (
        f'{doing} the row that was modified by a different origin "pg_{conflict.local_origin}"'
        f"{time}."
    )


def _described(word: str, conflict: LoggedConflict) -> str:
    return f"{word} ({', '.join(conflict.key)})={_row(conflict.key, clipped=False)}"


def _row(row: Texts, clipped: bool = True) -> str:
    values = ("null" if v is None else _clip(v) if clipped else v for v in row.values())
    return f"({', '.join(values)})"


def _clip(value: str) -> str:
    """As ExecBuildSlotValueDescription in execMain.c: whole characters of the first 64 bytes."""
    inside = value.encode()
    if len(inside) <= _CLIPPED:
        return value
    return inside[:_CLIPPED].decode(errors="ignore") + "..."
