# SPDX-License-Identifier: Apache-2.0
"""What the control database knows: tables of the lake, partitions, subscriptions.

Every function is one query in the caller's transaction, so it shows what that snapshot shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from psycopg.rows import dict_row

from penstock.change.mapping import OPTIONS, ValueMapping
from penstock.change.relation import LakeColumn, LakeTable
from penstock.control.connect import ControlConnection
from penstock.control.table_state import TableState
from penstock.errors import WrongStateError
from penstock.lsn import parse_lsn

_TABLES = """
SELECT c.oid::bigint AS relid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind,
       c.relreplident::text AS identity, v.location, v.version, v.sole_writer,
       coalesce(a.columns, '[]') AS columns, coalesce(k.key, '{}') AS key,
       (SELECT relname FROM pg_class WHERE oid = k.index) AS key_index
FROM penstock.table_version v
JOIN pg_class c ON c.oid = v.relid
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN LATERAL (
    SELECT jsonb_agg(jsonb_build_array(
        attnum, attname, atttypid::bigint, atttypmod, attnotnull,
        attgenerated <> '') ORDER BY attnum) AS columns
    FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped) a ON true
LEFT JOIN LATERAL (
    SELECT array_agg(att.attname::text ORDER BY pos.ordinality) AS key,
           min(i.indexrelid) AS index
    FROM (SELECT indexrelid, indkey, indnkeyatts FROM pg_index
          WHERE indrelid = c.oid AND (indisreplident OR indisprimary)
          ORDER BY indisreplident DESC LIMIT 1) i
    CROSS JOIN LATERAL unnest(i.indkey::smallint[]) WITH ORDINALITY pos (attnum, ordinality)
    JOIN pg_attribute att ON att.attrelid = c.oid AND att.attnum = pos.attnum
    WHERE pos.ordinality <= i.indnkeyatts) k ON true
"""


def lake_tables(
    conn: ControlConnection, relids: Iterable[int], lake_root: Path
) -> dict[int, LakeTable]:
    """The lake's tables among these relations; others are absent from the answer."""
    rows = _rows(conn, _TABLES + "WHERE v.relid = ANY(%s::oid[])", [list(relids)])
    return {row["relid"]: _lake_table(row, lake_root) for row in rows}


def committed_versions(conn: ControlConnection) -> dict[int, int]:
    """The committed Delta version of each relation that has a Delta table."""
    query = "SELECT relid::bigint, version FROM penstock.table_version WHERE version IS NOT NULL"
    return dict(conn.execute(query).fetchall())


def committed_places(conn: ControlConnection, lake_root: Path) -> dict[int, tuple[str, int]]:
    """Folder and committed Delta version of each relation that has a Delta table."""
    query = """
        SELECT relid::bigint, location, version FROM penstock.table_version
        WHERE version IS NOT NULL AND location <> ''"""
    return {
        relid: (str(lake_root / location), version)
        for relid, location, version in conn.execute(query).fetchall()
    }


def lake_table(conn: ControlConnection, relid: int, lake_root: Path) -> LakeTable:
    """One table of the lake; WrongStateError (42P01) when the relation is not one."""
    table = lake_tables(conn, [relid], lake_root).get(relid)
    if table is None:
        raise not_a_lake_table(relid)
    return table


def lake_table_by_name(
    conn: ControlConnection, schema: str, name: str, lake_root: Path
) -> LakeTable | None:
    """The table of the lake with exactly this name, or None."""
    rows = _rows(conn, _TABLES + "WHERE n.nspname = %s AND c.relname = %s", [schema, name])
    return _lake_table(rows[0], lake_root) if rows else None


def leaf_partitions(
    conn: ControlConnection, relid: int, lake_root: Path
) -> list[tuple[LakeTable, str | None]]:
    """The tables below a partitioned table that hold rows, in the order of their oids.

    With each comes what its rows satisfy, as PostgreSQL's SQL over the column names of the
    partition (``pg_get_partition_constraintdef``; it includes all levels above).  It is None for a
    default partition without siblings, which takes every row.
    """
    query = """
        SELECT relid::bigint, pg_get_partition_constraintdef(relid)
        FROM pg_partition_tree(%s::oid::regclass) WHERE isleaf ORDER BY relid"""
    constraints: dict[int, str | None] = dict(conn.execute(query, [relid]).fetchall())
    tables = lake_tables(conn, constraints, lake_root)
    return [(tables[leaf], constraint) for leaf, constraint in constraints.items()]


def not_a_lake_table(relid: int) -> WrongStateError:
    """The error for a relation without a row in table_version."""
    return WrongStateError(
        f"relation with OID {relid} is not a table of the lake", sqlstate="42P01"
    )


@dataclass(frozen=True)
class Subscription:
    """A row of pg_subscription, with our own options.

    ``slot_name`` is None when no slot belongs to it (slot_name = NONE).  ``two_phase`` is d, p or
    e, ``streaming`` f, t or p.
    ``password_required`` is false for a superuser's subscription, whatever the option says.
    """

    oid: int
    name: str
    owner: int
    enabled: bool
    conninfo: str = field(repr=False)
    slot_name: str | None
    publications: tuple[str, ...]
    binary: bool
    streaming: str
    two_phase: str
    disable_on_error: bool
    password_required: bool
    run_as_owner: bool
    origin: str
    failover: bool
    synchronous_commit: str
    create_tables: bool
    schema_changes: Literal["add", "error"]
    on_conflict: Literal["error", "apply_remote", "keep_local", "last_update_wins"]
    mapping: ValueMapping

    @property
    def origin_name(self) -> str:
        """The replication origin in the control database that holds this one's position."""
        return f"pg_{self.oid}"


def subscriptions(conn: ControlConnection) -> list[Subscription]:
    """The subscriptions of this database, by oid."""
    query = """
        SELECT s.oid::bigint, s.subname::text AS name, s.subowner::bigint AS owner,
               s.subenabled AS enabled, s.subconninfo AS conninfo,
               s.subslotname::text AS slot_name, s.subpublications AS publications,
               s.subbinary AS binary, s.substream::text AS streaming,
               s.subtwophasestate::text AS two_phase, s.subdisableonerr AS disable_on_error,
               -- as must_use_password() in worker.c
               s.subpasswordrequired AND NOT u.rolsuper AS password_required,
               s.subrunasowner AS run_as_owner,
               s.suborigin AS origin,
               coalesce((to_jsonb(s)->>'subfailover')::boolean, false) AS failover,  -- since 17
               s.subsynccommit AS synchronous_commit,
               coalesce(o.create_tables, true) AS create_tables,
               coalesce(o.schema_changes, 'add') AS schema_changes,
               coalesce(o.on_conflict, 'error') AS on_conflict,
               coalesce(o.numeric_as, 'decimal') AS numeric_as,
               coalesce(o.datetime_as, 'timestamp') AS datetime_as,
               coalesce(o.array_as, 'list') AS array_as,
               coalesce(o.infinity_as, 'error') AS infinity_as
        FROM pg_subscription s JOIN pg_roles u ON u.oid = s.subowner
        LEFT JOIN penstock.subscription_option o ON o.subid = s.oid
        WHERE s.subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())
        ORDER BY s.oid"""
    found = []
    for row in _rows(conn, query, []):
        row["publications"] = tuple(row["publications"])
        row["mapping"] = ValueMapping(**{option: row.pop(option) for option in OPTIONS})
        found.append(Subscription(**row))
    return found


def skip_lsn(conn: ControlConnection, subid: int) -> int:
    """What ALTER SUBSCRIPTION ... SKIP has set; 0 when nothing is to be skipped.

    Not part of ``Subscription``: a worker clears it by itself, and is not started again for that.
    """
    query = "SELECT subskiplsn::text FROM pg_subscription WHERE oid = %s::oid"
    row = conn.execute(query, [subid]).fetchone()
    return parse_lsn(row[0]) if row else 0


def two_phase_enabled(conn: ControlConnection, subid: int) -> None:
    """Note that a subscription's slot sends prepared transactions (UpdateTwoPhaseState)."""
    conn.execute(
        "UPDATE pg_subscription SET subtwophasestate = 'e'"
        " WHERE oid = %s::oid AND subtwophasestate = 'p'",
        [subid],
    )


@dataclass(frozen=True)
class SubscriptionRelation:
    """A row of pg_subscription_rel; ``lsn`` is None where srsublsn is null."""

    relid: int
    schema: str
    name: str
    state: TableState
    lsn: int | None


def subscription_relations(conn: ControlConnection, subid: int) -> list[SubscriptionRelation]:
    """The tables of a subscription with their states, by oid."""
    query = """
        SELECT r.srrelid::bigint, n.nspname, c.relname, r.srsubstate::text, r.srsublsn::text
        FROM pg_subscription_rel r JOIN pg_class c ON c.oid = r.srrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE r.srsubid = %s::oid AND c.relkind IN ('r', 'p') ORDER BY r.srrelid"""
    return [
        SubscriptionRelation(
            relid, schema, name, TableState(state), None if lsn is None else parse_lsn(lsn)
        )
        for relid, schema, name, state, lsn in conn.execute(query, [subid]).fetchall()
    ]


def origin_progress(conn: ControlConnection, name: str) -> int:
    """Position of a subscription: where its stream goes on.  0 when it has none yet.

    It is what the last commit wrote, unless someone moved the origin beyond that with
    pg_replication_origin_advance, which is PostgreSQL's way to skip transactions by hand.
    WrongStateError (42704) when the origin does not exist.
    """
    query = """
        SELECT greatest(p.lsn, pg_replication_origin_progress(o.roname, true), '0/0')::text
        FROM pg_replication_origin o LEFT JOIN penstock.origin_position p ON p.origin = o.roname
        WHERE o.roname = %s"""
    row = conn.execute(query, [name]).fetchone()
    if row is None:
        raise WrongStateError(f'replication origin "{name}" does not exist', sqlstate="42704")
    return parse_lsn(row[0])


def origin_was_advanced(conn: ControlConnection, name: str) -> bool:
    """Whether pg_replication_origin_advance has moved an origin beyond what was applied."""
    query = """
        SELECT pg_replication_origin_progress(o.roname, true) > coalesce(p.lsn, '0/0')
        FROM pg_replication_origin o LEFT JOIN penstock.origin_position p ON p.origin = o.roname
        WHERE o.roname = %s"""
    row = conn.execute(query, [name]).fetchone()
    return bool(row and row[0])


def _lake_table(row: dict[str, Any], lake_root: Path) -> LakeTable:
    row["columns"] = tuple(LakeColumn(*column) for column in row["columns"])
    row["key"] = tuple(row["key"])
    row["location"] = str(lake_root / row["location"]) if row["location"] else ""
    return LakeTable(**row)


def _rows(conn: ControlConnection, query: str, parameters: list[object]) -> list[dict[str, Any]]:
    with conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query.encode(), parameters).fetchall()
