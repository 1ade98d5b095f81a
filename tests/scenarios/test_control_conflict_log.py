# SPDX-License-Identifier: Apache-2.0
"""penstock.conflict_log in a real control database: bounded, once for an error, and its words."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

from penstock.control.conflict_log import (
    KEPT,
    Conflicts,
    LoggedConflict,
    conflict_detail,
    log_error_once,
    record_conflicts,
)
from tests.support.changes import Shape
from tests.support.control import Control, one

SUBID = 4_000_000_001
TABLE = Shape().target(Path("t"))
CONFLICT = LoggedConflict(
    kind="insert_exists",
    resolution="keep_local",
    op="I",
    commit_lsn=0x16B374D848,
    xid=4_000_000_000,
    time_us=1_700_000_000_123_456,
    key={"id": "1"},
    local={"id": "1", "v": None, "big": "ä" * 40},
    remote={"id": "1", "v": "2", "big": "b"},
    local_origin=SUBID - 1,
    local_time_us=1_600_000_000_000_000,
)


def test_a_conflict_is_a_row_and_the_log_is_bounded(control: Control) -> None:
    """All fields arrive; more of a kind are one row; old rows go, those of others stay."""
    more = ("update_missing", "skip")
    conflicts = Conflicts(Counter({("insert_exists", "keep_local"): 1, more: 70_000}), [CONFLICT])
    columns = (
        "conflict, resolution, changes, relation, remote_xid, remote_lsn, remote_commit_time,"
        " local_origin, local_commit_time, key, local_row, remote_row"
    )
    with control.connect() as conn, conn.transaction(force_rollback=True):
        conn.execute(
            "INSERT INTO penstock.conflict_log (subid, relid, relation, conflict, resolution)"
            " SELECT sub::oid, 1, 'public.old', 'delete_missing', 'skip'"
            f" FROM unnest(ARRAY[{SUBID}, 7]) sub, generate_series(1, {KEPT})"
        )
        record_conflicts(conn, SUBID, TABLE, conflicts)
        rows = conn.execute(
            f"SELECT {columns} FROM penstock.conflict_log WHERE relation = 'public.t' ORDER BY id"
        ).fetchall()
        assert [row[:4] for row in rows] == [
            ("insert_exists", "keep_local", 1, "public.t"),
            ("update_missing", "skip", 70_000, "public.t"),
        ]
        assert rows[0][4:6] == (4_000_000_000, "16/B374D848")
        assert rows[0][6].isoformat() == "2023-11-14T22:13:20.123456+00:00"
        assert rows[0][7] == SUBID - 1
        assert rows[0][8].isoformat() == "2020-09-13T12:26:40+00:00"
        assert rows[0][9:] == (CONFLICT.key, CONFLICT.local, CONFLICT.remote)
        assert rows[1][4:] == (None,) * 8
        count = "SELECT count(*) FROM penstock.conflict_log WHERE subid ="
        assert one(conn, f"{count} {SUBID}") == KEPT
        assert one(conn, f"{count} 7") == KEPT
        counted = conn.execute(
            "SELECT confl_insert_exists, confl_update_missing, confl_delete_missing"
            f" FROM penstock.subscription_stats WHERE subid = {SUBID}"
        ).fetchone()
        assert counted == (1, 70_000, 0)


def test_an_error_is_logged_once(control: Control) -> None:
    """Attempts repeat it; the same key in another transaction is another conflict."""
    error = dataclasses.replace(CONFLICT, resolution="error")
    later = dataclasses.replace(error, commit_lsn=error.commit_lsn + 8)
    with control.connect() as conn, conn.transaction(force_rollback=True):
        for conflict in (error, error, later, error):
            log_error_once(conn, SUBID, TABLE, conflict)
        lsns = (
            f"SELECT array_agg(remote_lsn::text) FROM penstock.conflict_log WHERE subid = {SUBID}"
        )
        assert one(conn, lsns) == ["16/B374D848", "16/B374D850"]


def test_details_are_those_of_postgresql() -> None:
    """Values of rows are cut after 64 bytes, as PostgreSQL does; what is not known is not said."""
    assert conflict_detail(CONFLICT, "t_pkey") == (
        f'Key already exists in unique index "t_pkey", modified by origin "pg_{SUBID - 1}" at'
        " 2020-09-13 12:26:40+00:00.\n"
        f"Key (id)=(1); existing local row (1, null, {'ä' * 32}...); remote row (1, 2, b)."
    )
    unknown = dataclasses.replace(
        CONFLICT, kind="delete_origin_differs", remote=None, local_origin=None, local_time_us=None
    )
    assert conflict_detail(unknown, "t_pkey") == (
        "Deleting the row that was modified locally.\n"
        f"Existing local row (1, null, {'ä' * 32}...); replica identity (id)=(1)."
    )
