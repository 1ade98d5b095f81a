# SPDX-License-Identifier: Apache-2.0
"""Commits of the lake: all of it at COMMIT or nothing, one after the other, readable in the WAL."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path

import psutil
import psycopg
import pytest

from penstock.change.relation import LakeTable
from penstock.control.catalog import (
    lake_table,
    lake_table_by_name,
    lake_tables,
    leaf_partitions,
    origin_progress,
)
from penstock.control.commits import CommitOutcomeUnknownError, begin_commit, xact_status
from penstock.control.connect import ControlConnection
from penstock.control.table_state import TableState
from penstock.errors import WrongStateError
from tests.support.control import Control, one, relid
from tests.support.waits import wait_until

_numbers = count(1)
NOON_US = 1_767_268_800_000_000  # 2026-01-01 12:00:00 UTC


@pytest.fixture
def conn(control: Control) -> Iterator[ControlConnection]:
    with control.connect() as made:
        yield made


@pytest.fixture
def table(control: Control, conn: ControlConnection) -> LakeTable:
    """A new table of the lake, without a Delta table."""
    name = f"t{next(_numbers)}"
    conn.execute(f"CREATE TABLE public.{name} (id int PRIMARY KEY, note text)")
    return lake_table(conn, relid(conn, f"public.{name}"), control.lake)


@pytest.fixture
def origin(conn: ControlConnection) -> str:
    """A new replication origin."""
    name = f"origin_{next(_numbers)}"
    conn.execute("SELECT pg_replication_origin_create(%s)", [name])
    return name


def test_an_xid_is_used_once(own_control: Control) -> None:
    """The xid that Delta commits name stays this transaction's when the server crashes at once."""
    with own_control.connect() as conn:
        conn.execute("CREATE TABLE public.crashed (id int PRIMARY KEY)")
        table = relid(conn, "public.crashed")
        with pytest.raises(psycopg.OperationalError):
            with begin_commit(conn, "test", own_control.lake) as commit:
                commit.lock([table])
                assert own_control.server.pid is not None
                family = [psutil.Process(own_control.server.pid)]
                family += family[0].children(recursive=True)
                for process in family:
                    process.kill()
                psutil.wait_procs(family, timeout=10)
                conn.execute("SELECT 1")
    own_control.server.start()
    with own_control.connect() as conn:
        assert int(one(conn, "SELECT pg_current_xact_id()::text")) > int(commit.xid)
        assert xact_status(conn, commit.xid) == "aborted"


def version(conn: ControlConnection, table: LakeTable) -> int | None:
    found: int | None = one(
        conn, "SELECT version FROM penstock.table_version WHERE relid = %s::oid", table.relid
    )
    return found


def append(control: Control, conn: ControlConnection, table: LakeTable, number: int) -> str:
    """Commit one move of a table; gives the transaction's xid."""
    with begin_commit(conn, "apply", control.lake) as commit:
        locked = commit.lock([table.relid])
        commit.moved(locked[table.relid], number, [(number, number)], "append")
    return commit.xid


# --- catalog ----------------------------------------------------------------------------------


def test_table_is_read_with_its_definition(control: Control, conn: ControlConnection) -> None:
    """Columns in order without dropped ones, the key, the absolute folder."""
    conn.execute(
        'CREATE TABLE public."Full One" (a int, gone int, b numeric(10, 2) NOT NULL, c text,'
        " PRIMARY KEY (b, a))"
    )
    conn.execute('ALTER TABLE public."Full One" DROP COLUMN gone')
    found = lake_table_by_name(conn, "public", "Full One", control.lake)
    assert found is not None
    assert [(c.attnum, c.name, c.type_oid, c.typmod, c.not_null) for c in found.columns] == [
        (1, "a", 23, -1, True),
        (3, "b", 1700, (10 << 16 | 2) + 4, True),
        (4, "c", 25, -1, False),
    ]
    assert (found.kind, found.identity, found.key) == ("r", "d", ("b", "a"))
    assert Path(found.location).parent == control.lake
    assert found.version is None and found.sole_writer is None


@pytest.mark.parametrize(
    ("change", "identity", "key"),
    [
        ("", "d", ("id",)),
        ("ALTER TABLE {t} REPLICA IDENTITY FULL", "f", ("id",)),
        ("ALTER TABLE {t} REPLICA IDENTITY NOTHING", "n", ("id",)),
        (
            "ALTER TABLE {t} ALTER note SET NOT NULL, ADD CONSTRAINT {t}_u UNIQUE (note, id);"
            "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_u",
            "i",
            ("note", "id"),
        ),
        ("ALTER TABLE {t} DROP CONSTRAINT {t}_pkey", "d", ()),
    ],
)
def test_key_is_that_of_the_identity_index_or_the_primary_key(
    control: Control,
    conn: ControlConnection,
    table: LakeTable,
    change: str,
    identity: str,
    key: tuple[str, ...],
) -> None:
    """Replica identity USING INDEX wins over the primary key; without both there is none."""
    conn.execute("SET search_path = public")
    if change:
        conn.execute(change.format(t=table.name).encode())
    found = lake_table(conn, table.relid, control.lake)
    assert (found.identity, found.key) == (identity, key)


def test_columns_of_an_including_index_are_no_key(
    control: Control, conn: ControlConnection
) -> None:
    """INCLUDE adds columns to the index, not to the key."""
    conn.execute("CREATE TABLE public.inc (a int, b int, PRIMARY KEY (a) INCLUDE (b))")
    assert lake_table(conn, relid(conn, "public.inc"), control.lake).key == ("a",)


def test_unknown_relations_are_not_tables_of_the_lake(
    control: Control, conn: ControlConnection
) -> None:
    """No answer for a name, nothing in the dictionary, 42P01 for an oid."""
    assert lake_table_by_name(conn, "public", "no_such", control.lake) is None
    assert lake_tables(conn, [1, 2], control.lake) == {}
    with pytest.raises(WrongStateError, match="not a table of the lake") as caught:
        lake_table(conn, 1259, control.lake)
    assert caught.value.sqlstate == "42P01"


def test_leaves_come_with_what_their_rows_satisfy(
    control: Control, conn: ControlConnection
) -> None:
    """All levels, leaves only, each with PostgreSQL's own constraint text."""
    conn.execute(
        "CREATE TABLE public.p (id int, b text) PARTITION BY LIST (b);"
        "CREATE TABLE public.px PARTITION OF public.p FOR VALUES IN ('x') PARTITION BY RANGE (id);"
        "CREATE TABLE public.px1 PARTITION OF public.px FOR VALUES FROM (1) TO (9);"
        "CREATE TABLE public.rest PARTITION OF public.p DEFAULT"
    )
    leaves = leaf_partitions(conn, relid(conn, "public.p"), control.lake)
    assert [(leaf.name, constraint) for leaf, constraint in leaves] == [
        (
            "px1",
            "((b IS NOT NULL) AND (b = 'x'::text) AND (id IS NOT NULL) AND (id >= 1) AND (id < 9))",
        ),
        ("rest", "(NOT ((b IS NOT NULL) AND (b = 'x'::text)))"),
    ]
    below = leaf_partitions(conn, relid(conn, "public.px"), control.lake)
    assert [leaf.name for leaf, _ in below] == ["px1"]
    assert leaf_partitions(conn, relid(conn, "public.px1"), control.lake) == [below[0]]


# --- commits ----------------------------------------------------------------------------------


def test_commit_moves_everything_at_once(
    control: Control, conn: ControlConnection, table: LakeTable, origin: str
) -> None:
    """Versions, columns and position are seen by others after COMMIT, and not before."""
    with control.connect() as other, begin_commit(conn, "apply", control.lake) as commit:
        locked = commit.lock([table.relid])[table.relid]
        commit.moved(locked, 3, [(0, 1), (3, 3)], "merge", origin)
        commit.set_columns(locked)
        commit.set_origin(origin, 0x1234, NOON_US)
        assert version(conn, table) == 3
        assert version(other, table) is None
        assert origin_progress(other, origin) == 0
    with control.connect() as other:
        found = lake_table(other, table.relid, control.lake)
        assert (found.version, found.sole_writer) == (3, origin)
        assert origin_progress(other, origin) == 0x1234
        columns = (
            "SELECT array_agg(name ORDER BY attnum) FROM penstock.table_column WHERE relid = %s"
        )
        assert one(other, columns, table.relid) == ["id", "note"]
        shown = "SELECT remote_lsn::text FROM pg_replication_origin_status WHERE external_id = %s"
        assert one(other, shown, origin) == "0/1234"
        at = "SELECT time::text FROM penstock.origin_position WHERE origin = %s"
        assert one(other, at, origin) == "2026-01-01 12:00:00+00"


def test_exception_leaves_nothing(
    control: Control, conn: ControlConnection, table: LakeTable, origin: str
) -> None:
    """After a ROLLBACK neither versions nor the origin have moved, now or by a later commit.

    PostgreSQL moves a session's origin when a transaction aborts: the reason for our own row.
    """
    append(control, conn, table, 0)
    with begin_commit(conn, "apply", control.lake) as commit:
        commit.set_origin(origin, 0x100, NOON_US)
    with pytest.raises(ZeroDivisionError), begin_commit(conn, "apply", control.lake) as commit:
        locked = commit.lock([table.relid])
        commit.moved(locked[table.relid], 1, [(1, 1)], "append")
        commit.set_origin(origin, 0x9999, NOON_US)
        raise ZeroDivisionError
    append(control, conn, table, 0)
    assert version(conn, table) == 0
    assert xact_status(conn, commit.xid) == "aborted"
    assert origin_progress(conn, origin) == 0x100
    shown = "SELECT remote_lsn::text FROM pg_replication_origin_status WHERE external_id = %s"
    assert one(conn, shown, origin) == "0/100"


def test_failed_statement_leaves_nothing(
    control: Control, conn: ControlConnection, table: LakeTable
) -> None:
    """An error of the server ends the commit; the connection can be used again."""
    with pytest.raises(psycopg.errors.CheckViolation):
        with begin_commit(conn, "apply", control.lake) as commit:
            commit.moved(commit.lock([table.relid])[table.relid], -1, [], "append")
    assert version(conn, table) is None
    append(control, conn, table, 0)
    assert version(conn, table) == 0


def test_manually_advanced_origin_counts(
    control: Control, conn: ControlConnection, origin: str
) -> None:
    """pg_replication_origin_advance is PostgreSQL's way to skip transactions by hand."""
    with control.connect() as worker, begin_commit(worker, "apply", control.lake) as commit:
        commit.set_origin(origin, 0x100, NOON_US)
    advance = "SELECT pg_replication_origin_advance(%s, '0/500')"
    wait_until(lambda: _executes(conn, advance, origin), 10, "the origin to be free")
    assert origin_progress(conn, origin) == 0x500


def _executes(conn: ControlConnection, statement: str, *parameters: object) -> bool:
    try:
        conn.execute(statement.encode(), parameters)
    except psycopg.errors.ObjectInUse:
        return False
    return True


def test_missing_origin_is_named(conn: ControlConnection) -> None:
    """42704 for an origin that does not exist."""
    with pytest.raises(WrongStateError, match='"no_such" does not exist'):
        origin_progress(conn, "no_such")


def test_connection_serves_one_origin(
    control: Control, conn: ControlConnection, origin: str
) -> None:
    """A worker's connection belongs to its subscription; a second holder is refused."""
    with begin_commit(conn, "apply", control.lake) as commit:
        commit.set_origin(origin, 1, NOON_US)
    with pytest.raises(WrongStateError, match="serves replication origin"):
        with begin_commit(conn, "apply", control.lake) as commit:
            commit.set_origin("another", 1, NOON_US)
    with control.connect() as other, pytest.raises(psycopg.errors.ObjectInUse):
        with begin_commit(other, "apply", control.lake) as commit:
            commit.set_origin(origin, 2, NOON_US)


def test_second_writer_waits_and_sees_the_first_ones_version(
    control: Control, conn: ControlConnection, table: LakeTable
) -> None:
    """Writers of one table take turns; what a writer reads under the lock is current."""
    order: list[str] = []

    def second() -> int | None:
        with control.connect() as other, begin_commit(other, "apply", control.lake) as commit:
            order.append("asks")
            seen = commit.lock([table.relid])[table.relid].version
            order.append("has")
            return seen

    with ThreadPoolExecutor(1) as pool:
        with begin_commit(conn, "apply", control.lake) as commit:
            locked = commit.lock([table.relid])
            waiting: Future[int | None] = pool.submit(second)
            wait_until(lambda: _lock_waiters(control) == 1, 10, "the second writer to wait")
            order.append("commits")
            commit.moved(locked[table.relid], 7, [(7, 7)], "append")
        assert waiting.result(10) == 7
    assert order == ["asks", "commits", "has"]


def test_ddl_waits_for_a_writer_and_a_writer_for_ddl(
    control: Control, conn: ControlConnection, table: LakeTable
) -> None:
    """Neither deadlocks; the writer that waited for a DROP is told that the table is gone."""
    dropped = threading.Event()

    def drop() -> None:
        with control.connect() as other, other.transaction():
            other.execute(f"DROP TABLE public.{table.name}".encode())
            dropped.set()
            wait_until(lambda: _lock_waiters(control) == 1, 10, "the writer to wait")

    with ThreadPoolExecutor(1) as pool:
        with begin_commit(conn, "apply", control.lake) as commit:
            commit.lock([table.relid])
            waiting = pool.submit(drop)
            wait_until(lambda: _lock_waiters(control) == 1, 10, "the DROP to wait")
        assert dropped.wait(10)
        with pytest.raises(WrongStateError) as caught:
            with begin_commit(conn, "apply", control.lake) as commit:
                commit.lock([table.relid])
        assert caught.value.sqlstate == "42P01"
        waiting.result(10)


def _lock_waiters(control: Control) -> int:
    with control.connect() as looker:
        waiting: int = one(looker, "SELECT count(*) FROM pg_locks WHERE NOT granted")
        return waiting


def test_renamed_table_is_locked_under_its_new_name(
    control: Control, conn: ControlConnection, table: LakeTable
) -> None:
    """Locks are by oid: a RENAME that was under way costs another look, no error."""
    with control.connect() as other, ThreadPoolExecutor(1) as pool:

        def lock() -> str:
            with begin_commit(conn, "apply", control.lake) as commit:
                return commit.lock([table.relid])[table.relid].name

        with other.transaction():
            other.execute(f"ALTER TABLE public.{table.name} RENAME TO renamed".encode())
            other.execute(f"CREATE TABLE public.{table.name} (a int)".encode())
            waiting = pool.submit(lock)
            wait_until(lambda: _lock_waiters(control) == 1, 10, "the writer to wait")
        assert waiting.result(10) == "renamed"


def test_unlocked_table_cannot_be_moved(
    control: Control, conn: ControlConnection, table: LakeTable
) -> None:
    """A programming error that would let two writers overlap."""
    with pytest.raises(WrongStateError, match="not locked"):
        with begin_commit(conn, "apply", control.lake) as commit:
            commit.moved(table, 1, [(1, 1)], "append")


def test_busy_connection_is_refused(control: Control, conn: ControlConnection) -> None:
    """A commit never becomes part of another transaction."""
    with conn.transaction(), pytest.raises(WrongStateError, match="idle connection"):
        with begin_commit(conn, "apply", control.lake):
            pass


def test_lost_connection_is_settled_by_xact_status(
    control: Control, conn: ControlConnection, table: LakeTable
) -> None:
    """When the answer to COMMIT does not come, the xid says what became of it."""
    with control.connect() as other:
        with pytest.raises(CommitOutcomeUnknownError) as caught:
            with begin_commit(conn, "apply", control.lake) as commit:
                commit.moved(commit.lock([table.relid])[table.relid], 1, [(1, 1)], "append")
                assert xact_status(other, commit.xid) == "in progress"
                other.execute("SELECT pg_terminate_backend(%s)", [conn.info.backend_pid])
                wait_until(
                    lambda: xact_status(other, commit.xid) == "aborted", 10, "the backend to end"
                )
                commit._moved.clear()  # nothing is sent before COMMIT, so that COMMIT finds it out
        assert xact_status(other, caught.value.xid) == "aborted"
        assert version(other, table) is None
        done = append(control, other, table, 1)
        assert xact_status(other, done) == "committed"


def test_relation_state_is_set_with_the_commit(
    control: Control, conn: ControlConnection, table: LakeTable
) -> None:
    """srsubstate and srsublsn move with the data; a table that was removed is an error."""
    conn.execute(
        "CREATE SUBSCRIPTION states CONNECTION 'dbname=x' PUBLICATION p WITH (connect = false)"
    )
    subid = one(conn, "SELECT oid::bigint FROM pg_subscription WHERE subname = 'states'")
    conn.execute(
        "INSERT INTO pg_subscription_rel VALUES (%s::oid, %s::oid, 'i', NULL)",
        [subid, table.relid],
    )
    with begin_commit(conn, "copy", control.lake) as commit:
        commit.set_relation_state(subid, table.relid, TableState.DATASYNC)
        commit.set_relation_state(subid, table.relid, TableState.FINISHEDCOPY, 0x16B374D848)
    state = "SELECT srsubstate::text, srsublsn::text FROM pg_subscription_rel WHERE srsubid = %s"
    assert one(conn, state, subid) == ("f", "16/B374D848")
    for which, wrong in ((table.relid, TableState.DATASYNC), (1, TableState.SYNCDONE)):
        with pytest.raises(WrongStateError, match=f'cannot come to state "{wrong.value}"'):
            with begin_commit(conn, "copy", control.lake) as commit:
                commit.set_relation_state(subid, which, wrong, 1)
    assert one(conn, state, subid) == ("f", "16/B374D848")
    conn.execute("ALTER SUBSCRIPTION states SET (slot_name = NONE)")
    conn.execute("DROP SUBSCRIPTION states")


def test_record_is_the_last_message_of_the_commit(
    control: Control, conn: ControlConnection, table: LakeTable, origin: str
) -> None:
    """A reader of the WAL finds one record: tables, ranges added up, origin, xid, node."""
    conn.execute("SELECT pg_create_logical_replication_slot('reader', 'pgoutput')")
    with begin_commit(conn, "apply", control.lake) as commit:
        locked = commit.lock([table.relid])[table.relid]
        commit.moved(locked, 0, [(0, 0)], "create")
        commit.moved(locked, 2, [(1, 2)], "append")
        commit.set_origin(origin, 0x10, NOON_US)
    with begin_commit(conn, "apply", control.lake):
        pass
    messages = conn.execute(
        "SELECT xid::text, data FROM pg_logical_slot_get_binary_changes('reader', NULL, NULL,"
        " 'proto_version', '1', 'publication_names', '', 'messages', 'true')"
    ).fetchall()
    conn.execute("SELECT pg_drop_replication_slot('reader')")
    # Without the message that carries the xid: it belongs to no transaction.
    messages = [(xid, data) for xid, data in messages if not data.startswith(b"M\0")]
    kinds = [data[:1] for _, data in messages]
    assert kinds == [b"B", b"O", b"M", b"C"]
    content = messages[2][1]
    assert json.loads(content[content.index(b"{") :]) == {
        "v": 1,
        "node": json.loads(commit.metadata)["penstock"],
        "xid": messages[2][0],
        "purpose": "apply",
        "origin": origin,
        "tables": [
            {
                "relid": table.relid,
                "location": Path(table.location).name,
                "version": 2,
                "ranges": [[0, 0], [1, 2]],
                "kind": "append",
            }
        ],
    }
