# SPDX-License-Identifier: Apache-2.0
"""What slots need stays: versions of tables, folders of dropped ones, definitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from penstock.control.address import ControlAddress
from penstock.control.commits import Range, begin_commit
from penstock.control.connect import ControlConnection, connect
from penstock.control.retention import forgettable, needed_by_slots, oldest_position
from penstock.errors import ObjectInUseError
from penstock.lsn import parse_lsn
from tests.support.control import following, one, relid
from tests.support.fix_servers import Servers
from tests.support.slots import lose, small_slots

LAKE = Path("/lake")


@pytest.fixture
def conn(any_control: ControlAddress) -> Iterator[ControlConnection]:
    with connect(any_control) as made:
        made.execute("CREATE TABLE public.t (id int); CREATE TABLE public.u (id int)")
        yield made


def move(conn: ControlConnection, name: str, version: int, *ranges: Range) -> None:
    """One commit of a table, without a Delta table."""
    table = relid(conn, name)
    with begin_commit(conn, "test", LAKE) as commit:
        locked = commit.lock([table])
        commit.moved(locked[table], version, ranges, "append")


def versions(conn: ControlConnection, names: Sequence[str]) -> list[int | None]:
    needed = needed_by_slots(conn).versions
    return [needed.get(relid(conn, name)) for name in names]


def test_versions_and_folders_stay_for_the_oldest_slot(
    conn: ControlConnection, any_control: ControlAddress
) -> None:
    """From before its first commit on; what moved a table without changes, or earlier, is none."""
    both = ("public.t", "public.u")
    make = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
    advance = "SELECT pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())"
    with following(any_control):
        move(conn, "public.t", 3, (0, 3))
        move(conn, "public.u", 1, (0, 1))
        assert needed_by_slots(conn).lsn is None
        assert versions(conn, both) == [3, 1]
        conn.execute(make, ["first"])
        move(conn, "public.u", 2)
        assert versions(conn, both) == [3, 2]
        move(conn, "public.t", 6, (5, 6))
        move(conn, "public.t", 7, (7, 7))
        assert versions(conn, both) == [4, 2]
        conn.execute(make, ["second"])
        conn.execute(advance, ["first"])
        assert versions(conn, both) == [7, 2]

        conn.execute("DROP TABLE public.u")
        assert needed_by_slots(conn).dropped == []
        conn.execute(advance, ["first"])
        assert needed_by_slots(conn).dropped == []
        conn.execute("SELECT pg_drop_replication_slot('second')")
        assert len(needed_by_slots(conn).dropped) == 1
        conn.execute("SELECT pg_drop_replication_slot('first')")
        assert len(needed_by_slots(conn).dropped) == 1


def test_definitions_stay_for_slots_and_for_their_days(
    conn: ControlConnection, any_control: ControlAddress
) -> None:
    """Forgotten is what both have passed."""
    with following(any_control):
        conn.execute("SELECT pg_create_logical_replication_slot('first', 'pgoutput')")
        held = forgettable(conn, needed_by_slots(conn), 0)
        conn.execute("ALTER TABLE public.t ADD a int")
        assert forgettable(conn, needed_by_slots(conn), 0) == held
        conn.execute("SELECT pg_drop_replication_slot('first')")
        needed = needed_by_slots(conn)
        newest = parse_lsn(one(conn, "SELECT max(lsn)::text FROM penstock.definition"))
        assert forgettable(conn, needed, 0) == newest > held
        assert forgettable(conn, needed, 1) == 0


def test_a_lost_slot_needs_nothing(
    conn: ControlConnection, any_control: ControlAddress, servers: Servers
) -> None:
    """PostgreSQL has invalidated it: its subscriber cannot go on."""
    version = str(conn.info.server_version // 10000)
    conn.execute("SELECT pg_create_logical_replication_slot('first', 'pgoutput')")
    assert oldest_position(conn) is not None
    with small_slots(servers(version, "control")):
        lose("first", servers(version, "control"))
    assert oldest_position(conn) is None


def test_without_a_ledger_nothing_is_said(conn: ControlConnection) -> None:
    """What it has not read yet might be needed."""
    conn.execute("SELECT pg_create_logical_replication_slot('first', 'pgoutput')")
    with pytest.raises(ObjectInUseError):
        needed_by_slots(conn, patience=0.1)
