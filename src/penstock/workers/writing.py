# SPDX-License-Identifier: Apache-2.0
"""What every writer of the lake does first: lock its tables and settle their Delta heads."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.change.relation import LakeTable
from penstock.control.commits import Commit, xact_status
from penstock.lake.session import GetSession
from penstock.lake.settle import settle


def lock_settled(
    session: GetSession, commit: Commit, relids: Iterable[int]
) -> dict[int, LakeTable]:
    """Lock tables for writing; a head that an aborted writer left ahead is brought back.

    ConcurrentWriteError when another program has written one of them; see retried (external.py).

    A head that was restored has a new version with the committed content: the table in the answer
    has it, and so has table_version when this commit commits.
    """
    settled = {}
    for relid, table in commit.lock(relids).items():
        if table.kind == "p":
            settled[relid] = table
            continue
        after = settle(session, table, lambda xid: xact_status(commit.conn, xid), commit.metadata)
        if after.version != table.version and after.version is not None:
            commit.moved(after, after.version, [], "restore", table.sole_writer)
        settled[relid] = after
    return settled
