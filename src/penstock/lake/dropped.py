# SPDX-License-Identifier: Apache-2.0
"""Folders of dropped tables, which are removed when nobody needs them.

A DROP TABLE leaves a row in ``penstock.dropped_table`` in its transaction.  Whoever sees the row
may remove the folder, unless a slot needs it (control/retention.py): the session that has dropped
it, maintenance, or the next start.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from penstock.control.connect import ControlConnection
from penstock.errors import TableStateError

log = logging.getLogger(__name__)


def remove_dropped(
    conn: ControlConnection, lake_root: Path, locations: Sequence[str] | None = None
) -> None:
    """Remove the folders of tables whose drop was committed; all of them, or these.

    A row that another transaction sees is committed, so a drop that was undone, also by a rollback
    to a savepoint, is not among them.
    """
    while _remove_one(conn, lake_root, locations):
        pass


def _remove_one(conn: ControlConnection, lake_root: Path, locations: Sequence[str] | None) -> bool:
    """Remove one folder that no other session is removing; False when there is none."""
    with conn.transaction():
        row = conn.execute(
            "SELECT location FROM penstock.dropped_table"
            " WHERE %(these)s::text[] IS NULL OR location = ANY (%(these)s)"
            " LIMIT 1 FOR UPDATE SKIP LOCKED",
            {"these": None if locations is None else list(locations)},
        ).fetchone()
        if row is None:
            return False
        remove_folder(lake_root, row[0])
        conn.execute("DELETE FROM penstock.dropped_table WHERE location = %s", [row[0]])
    log.info("removed the Delta table %s of a dropped table", row[0])
    return True


def remove_folder(lake_root: Path, location: str) -> None:
    """Remove a table's folder; TableStateError when it would not lie in the lake."""
    folder = (lake_root / location).resolve()
    if folder.parent != lake_root.resolve():
        raise TableStateError(f'"{location}" is not the folder of a table')
    if folder.exists():
        shutil.rmtree(folder)
