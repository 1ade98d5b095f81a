# SPDX-License-Identifier: Apache-2.0
"""One node for one control database.

The home's lock keeps two nodes from one home; an external control database can be named by the
nodes of two homes.  A node claims it with an advisory lock of a session that lives as long as the
node; when the session ends, however it ends, the claim is free.
"""

from __future__ import annotations

from penstock.control.connect import ControlConnection
from penstock.errors import ObjectInUseError

# Any constant does; it must only be the same in every node, and another than migrate's.
_CLAIM_LOCK = int.from_bytes(b"thenode!", "big")


def claim(conn: ControlConnection) -> None:
    """Claim the control database until ``conn`` ends.

    ObjectInUseError (55006) when another node has it, with where that node connects from.
    """
    row = conn.execute("SELECT pg_try_advisory_lock(%s)", [_CLAIM_LOCK]).fetchone()
    if row is not None and row[0]:
        return
    holder = conn.execute(
        "SELECT a.pid, coalesce(host(a.client_addr), 'this machine') FROM pg_locks l"
        " JOIN pg_stat_activity a ON a.pid = l.pid"
        " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1"
        " AND (l.classid::bigint << 32 | l.objid::bigint) = %s",
        [_CLAIM_LOCK],
    ).fetchone()
    raise ObjectInUseError(
        "the control database is in use by another node",
        detail=None
        if holder is None
        else f"The other node is connected from {holder[1]}, with server process {holder[0]}.",
        hint="Stop the other node, or give this one a control database of its own.",
    )
