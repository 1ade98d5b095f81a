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
    another program's                         ConcurrentWriteError: they are to be registered
                                              (lake/external.py) before anything else is done

A crash while restoring leaves either the old head or a restored one; both are settled again.  The
restored version belongs to no commit, and a commit record names only ranges of its own versions.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.change.relation import LakeTable
from penstock.errors import ConcurrentWriteError, ObjectInUseError, TableStateError
from penstock.lake.durable import sync_path
from penstock.lake.log import actions_of, head_version
from penstock.lake.session import GetSession
from penstock.lake.tables import restore

XactStatus = Callable[[str], str | None]
"""xid -> ``committed``, ``aborted``, ``in progress``, or None when it is too old to be known."""


def settle(
    session: GetSession, table: LakeTable, xact_status: XactStatus, metadata: str
) -> LakeTable:
    """Settle the head of a locked table; ``metadata`` is the userMetadata of a RESTORE.

    The answer's version differs from the table's exactly when a RESTORE was needed.
    ObjectInUseError (55006) or TableStateError (XX001) when the head cannot be settled,
    ConcurrentWriteError (40001) when another program has written on top of it.
    """
    head = head_version(table.location)
    if head == table.version:
        return table
    ahead = commits_ahead(table, head, json.loads(metadata)["penstock"])
    if any(each.author is None for each in ahead):
        raise ConcurrentWriteError(
            f'the Delta table of "{table.schema}.{table.name}" was written by another program',
            detail=f"Its head is version {head}, version {table.version} is committed.",
            hint="Try again: its commits are registered within some seconds.",
        )
    check_undone(table, ahead, xact_status, metadata)
    if table.version is None:
        _empty(table)
        return table
    restored = restore(session, table.location, table.version, metadata)
    return dataclasses.replace(table, version=restored)


@dataclass(frozen=True)
class AheadCommit:
    """A Delta commit that table_version does not know of.

    ``author`` is what our own commits carry (xid, purpose), None for another program's.
    """

    version: int
    author: dict[str, str] | None


def commits_ahead(table: LakeTable, head: int | None, node: str) -> list[AheadCommit]:
    """The commits between a table's version and its head, in order.

    ``node`` is what this node calls itself in its commits.  TableStateError (XX001) when the head
    is behind the version.
    """
    if head is None or (table.version is not None and head < table.version):
        raise TableStateError(
            f'the Delta table of "{table.schema}.{table.name}" has lost commits',
            detail=f"Its head is version {head}, version {table.version} is committed.",
            hint="Restore the lake's files from a backup of the same time as the control database.",
        )
    first = 0 if table.version is None else table.version + 1
    return [
        AheadCommit(version, author_of(table.location, version, node))
        for version in range(first, head + 1)
    ]


def check_undone(
    table: LakeTable, ahead: Iterable[AheadCommit], xact_status: XactStatus, metadata: str
) -> None:
    """Whether our own commits ahead are aborted ones, so that they may be restored away.

    ``metadata`` is that of the transaction that asks, whose earlier commits are its to undo.
    """
    own = json.loads(metadata)["xid"]
    name = f'"{table.schema}.{table.name}"'
    for commit in ahead:
        if commit.author is None or commit.author["xid"] == own:
            continue
        xid = commit.author["xid"]
        status = xact_status(xid)
        if status == "in progress":
            raise ObjectInUseError(f"transaction {xid} is still writing the Delta table of {name}")
        if status == "committed" and commit.author.get("purpose") != "restore":
            raise TableStateError(
                f"the Delta table of {name} is ahead of its committed version",
                detail=f"Version {commit.version} belongs to the committed transaction {xid}.",
                hint="The control database was probably set back, by a restore from a backup.",
            )


def author_of(location: str, version: int, node: str) -> dict[str, str] | None:
    """What the node's own commits carry; None for anything else."""
    for action in actions_of(location, version):
        if "commitInfo" in action:
            try:
                author = json.loads(action["commitInfo"].get("userMetadata") or "null")
            except ValueError:
                return None
            ours = isinstance(author, dict) and author.get("penstock") == node and "xid" in author
            return author if ours else None
    return None


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
