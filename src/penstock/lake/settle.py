# SPDX-License-Identifier: Apache-2.0
"""Bring a Delta table's head back to the committed version, before anything is written on top.

In:   a locked lake table, and who may tell how a transaction ended.
Out:  the table with the version that its head has now; its content is the committed one.

What lies ahead of ``table_version`` was written by somebody, and each Delta commit says by whom
(userMetadata: node and xid):

    the commits ahead                         what is done
    -----------------                         ------------
    ours, transaction aborted or forgotten    RESTORE to the committed version
    ours, no Delta table was committed yet    the folder is emptied
    ours, transaction in progress             ObjectInUseError: its owner has the lock, not we
    ours, transaction committed               TableStateError: table_version contradicts it
    a restore that did not come to its end    as aborted: it is repeated
    not ours                                  TableStateError: another program wrote the table

A crash while restoring leaves either the old head or a restored one; both are settled again.  The
restored version belongs to no commit, and a commit record names only ranges of its own versions.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from penstock.change.relation import LakeTable
from penstock.errors import ObjectInUseError, TableStateError
from penstock.lake.durable import sync_path
from penstock.lake.log import head_version
from penstock.lake.session import GetSession
from penstock.lake.tables import restore

XactStatus = Callable[[str], str | None]
"""xid -> ``committed``, ``aborted``, ``in progress``, or None when it is too old to be known."""


def settle(
    session: GetSession, table: LakeTable, xact_status: XactStatus, metadata: str
) -> LakeTable:
    """Settle the head of a locked table; ``metadata`` is the userMetadata of a RESTORE.

    The answer's version differs from the table's exactly when a RESTORE was needed.
    ObjectInUseError (55006) or TableStateError (XX001) when the head cannot be settled.
    """
    head = head_version(table.location)
    if head == table.version:
        return table
    if head is None or (table.version is not None and head < table.version):
        raise TableStateError(
            f'the Delta table of "{table.schema}.{table.name}" has lost commits',
            detail=f"Its head is version {head}, version {table.version} is committed.",
            hint="Restore the lake's files from a backup of the same time as the control database.",
        )
    own = json.loads(metadata)
    for entry in _ahead(table, head):
        _check_author(table, entry, own, xact_status)
    if table.version is None:
        _empty(table)
        return table
    restored = restore(session, table.location, table.version, metadata)
    return dataclasses.replace(table, version=restored)


def _ahead(table: LakeTable, head: int) -> list[dict[str, Any]]:
    """Delta's commit information of each version ahead, newest first."""
    first = 0 if table.version is None else table.version + 1
    history: list[dict[str, Any]] = DeltaTable(table.location).history(limit=head - first + 1)
    return history


def _check_author(
    table: LakeTable, entry: dict[str, Any], own: dict[str, str], xact_status: XactStatus
) -> None:
    """Whether a commit ahead is an aborted one of ours, so that it may be restored away."""
    name = f'"{table.schema}.{table.name}"'
    author = _author(entry.get("userMetadata"))
    if author is None or author.get("penstock") != own["penstock"]:
        raise TableStateError(
            f"the Delta table of {name} was written by another program",
            detail=f"Version {entry['version']} ({entry.get('operation')}) is not this node's.",
            hint="Writing a subscribed Delta table from outside is not supported yet. Restore the"
            f" table to version {table.version} to go on without those writes.",
        )
    xid = author["xid"]
    if xid == own["xid"]:
        return
    status = xact_status(xid)
    if status == "in progress":
        raise ObjectInUseError(f"transaction {xid} is still writing the Delta table of {name}")
    if status == "committed" and author.get("purpose") != "restore":
        raise TableStateError(
            f"the Delta table of {name} is ahead of its committed version",
            detail=f"Version {entry['version']} belongs to the committed transaction {xid}.",
            hint="The control database was probably set back, by a restore from a backup.",
        )


def _author(metadata: str | None) -> dict[str, str] | None:
    """What our own commits carry; None for anything else."""
    try:
        author = json.loads(metadata or "null")
    except ValueError:
        return None
    if not isinstance(author, dict) or not {"penstock", "xid"} <= author.keys():
        return None
    return author


def _empty(table: LakeTable) -> None:
    """Remove a Delta table that was never committed, log first: then it is none at once."""
    folder = Path(table.location)
    shutil.rmtree(folder / "_delta_log")
    sync_path(folder)
    for leftover in folder.iterdir():
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
