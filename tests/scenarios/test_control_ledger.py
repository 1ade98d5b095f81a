# SPDX-License-Identifier: Apache-2.0
"""The ledger: each commit of the lake once, in the order of the WAL, across restarts."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from penstock.control.commits import begin_commit
from penstock.control.connect import ControlConnection
from penstock.control.ledger import Ledger
from penstock.control.ledger_stream import LEDGER_NAME
from penstock.control.migrate import migrate
from penstock.errors import PenstockError
from tests.support.control import Control, following, one, relid
from tests.support.waits import wait_until


@pytest.fixture
def control(own_control: Control) -> Control:
    """The ledger is one for a database, so each test has its own."""
    return own_control


@pytest.fixture
def conn(control: Control) -> Iterator[ControlConnection]:
    with control.connect() as made:
        made.execute("CREATE TABLE public.t (id int PRIMARY KEY)")
        yield made


def commit(control: Control, conn: ControlConnection, version: int) -> str:
    table = relid(conn, "public.t")
    with begin_commit(conn, "apply", control.lake) as open_commit:
        locked = open_commit.lock([table])
        open_commit.moved(locked[table], version, [(version, version)], "append")
    return open_commit.xid


def versions(conn: ControlConnection) -> list[int]:
    """The Delta versions in the ledger, in its order."""
    rows = conn.execute(
        "SELECT (tables->0->>'version')::bigint FROM penstock.commit"
        " WHERE tables <> '[]' ORDER BY lsn"
    ).fetchall()
    return [version for (version,) in rows]


def wait_for(conn: ControlConnection, expected: list[int]) -> None:
    wait_until(lambda: len(versions(conn)) >= len(expected), 20, "the ledger to catch up")
    assert versions(conn) == expected


def test_users_see_no_publication_of_ours(conn: ControlConnection) -> None:
    """The ledger needs none on the embedded server, and one of an older version is dropped."""
    conn.execute(f"CREATE PUBLICATION {LEDGER_NAME}")
    migrate(conn)
    assert one(conn, "SELECT count(*) FROM pg_publication") == 0


def test_commits_become_rows_in_order(control: Control, conn: ControlConnection) -> None:
    """Row for row what was committed, also before the ledger was started; nothing else."""
    first = commit(control, conn, 0)
    with following(control.address):
        commit(control, conn, 1)
        with pytest.raises(ZeroDivisionError), begin_commit(conn, "x", control.lake) as aborted:
            table = aborted.lock([relid(conn, "public.t")])
            aborted.moved(next(iter(table.values())), 99, [(99, 99)], "append")
            raise ZeroDivisionError
        commit(control, conn, 2)
        wait_for(conn, [0, 1, 2])
        row = conn.execute(
            "SELECT xid::text, purpose, origin, tables->0->'ranges', lsn < end_lsn,"
            " now() - time < interval '1 minute' FROM penstock.commit"
            " WHERE tables <> '[]' ORDER BY lsn LIMIT 1"
        ).fetchone()
    assert row == (first, "apply", None, [[0, 0]], True, True)


def test_ddl_is_in_the_ledger_in_order_with_the_commits(
    control: Control, conn: ControlConnection
) -> None:
    """What a publication or a table was at a commit can be told from the WAL alone."""
    with following(control.address):
        commit(control, conn, 0)
        conn.execute("CREATE PUBLICATION pub FOR TABLE public.t")
        commit(control, conn, 1)
        wait_for(conn, [0, 1])
    rows = conn.execute(
        "SELECT coalesce(ddl->-1->>'tag', 'commit') FROM penstock.commit ORDER BY lsn"
    ).fetchall()
    assert [tag for (tag,) in rows] == ["CREATE TABLE", "commit", "CREATE PUBLICATION", "commit"]


def test_restart_neither_repeats_nor_misses(control: Control, conn: ControlConnection) -> None:
    """What the slot sends again is skipped, what was committed meanwhile is read."""
    with following(control.address):
        commit(control, conn, 0)
        wait_for(conn, [0])
    commit(control, conn, 1)
    with following(control.address):
        wait_for(conn, [0, 1])
    with following(control.address):
        commit(control, conn, 2)
        wait_for(conn, [0, 1, 2])


def test_nothing_is_lost_when_the_server_is_killed(
    control: Control, conn: ControlConnection
) -> None:
    """After kill -9 of the server the slot is behind the table, and the table decides."""
    with following(control.address):
        commit(control, conn, 0)
        commit(control, conn, 1)
        wait_for(conn, [0, 1])
        commit(control, conn, 2)
        wait_for(conn, [0, 1, 2])
    assert control.server.pid is not None
    os.kill(control.server.pid, signal.SIGKILL)
    wait_until(lambda: control.server.poll() is not None, 10, "the server's death to be seen")
    control.server.start()
    with control.connect() as again, following(control.address):
        commit(control, again, 3)
        wait_for(again, [0, 1, 2, 3])


def test_lost_server_is_an_error_that_says_so(control: Control, conn: ControlConnection) -> None:
    """The caller starts the loop again; the ledger itself never goes on blindly."""
    stop = threading.Event()
    caught: list[PenstockError] = []

    def run() -> None:
        try:
            Ledger(control.address).run(stop)
        except PenstockError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    wait_until(lambda: one(conn, active, LEDGER_NAME), 10, "the ledger to follow")
    conn.close()
    control.server.stop()
    thread.join(15)
    assert [error.sqlstate for error in caught] == ["08006"]


def test_idle_slot_lets_the_wal_go(control: Control, conn: ControlConnection) -> None:
    """Feedback follows the keepalives, so WAL without commits of ours is released too."""
    with following(control.address):
        conn.execute("CREATE TABLE penstock.noise AS SELECT generate_series(1, 1000) AS a")
        end = one(conn, "SELECT pg_current_wal_lsn()::text")
        passed = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots"
        wait_until(lambda: one(conn, passed, end), 25, "the idle slot to advance")


def test_missing_slot_is_made_again_with_a_warning(
    control: Control, conn: ControlConnection, caplog: pytest.LogCaptureFixture
) -> None:
    """A dropped slot leaves a gap that is named; the ledger goes on from there."""
    with following(control.address):
        commit(control, conn, 0)
        wait_for(conn, [0])
    drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
    wait_until(lambda: conn.execute(drop).rowcount == 1, 10, "the slot to be free")
    migrate(conn)
    assert "the ledger has no commits between" in caplog.text
    with following(control.address):
        commit(control, conn, 1)
        wait_for(conn, [0, 1])
