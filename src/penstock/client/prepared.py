# SPDX-License-Identifier: Apache-2.0
"""Transactions between PREPARE TRANSACTION and COMMIT PREPARED, durable on disk.

In:   a prepared transaction's messages, as a publisher sends them at the PREPARE.
Out:  the same messages at COMMIT PREPARED, also on another connection and after a crash.

    FOLDER/<xid>.open      it is being received; of no use after the connection's end
    FOLDER/<xid>.spool     it is prepared: the publisher does not send it again

Each is complete in itself: its relations are described in it.
"""

from __future__ import annotations

from pathlib import Path

from penstock.client.spool import SUFFIX, Spool
from penstock.staging.files import room_needed, sync

FOLDER = "prepared"
"""Below the subscription's staging folder."""

_OPEN = ".open"


class PreparedTransactions:
    """One subscription's prepared transactions, by their publisher's xid."""

    def __init__(self, staging_folder: Path) -> None:
        self._folder = staging_folder / FOLDER

    def forget_open(self) -> None:
        """Remove what is not prepared: it will be sent again."""
        for path in self._folder.glob(f"*{_OPEN}"):
            path.unlink()

    def begin(self, xid: int) -> Spool:
        """Where a transaction's messages go until ``keep``; what is there of it is removed."""
        spool = Spool(self._folder / f"{xid}{_OPEN}")
        spool.remove()
        return spool

    def keep(self, xid: int) -> None:
        """The transaction is prepared; durable on return.  DiskFullError when there is no room."""
        opened = self._folder / f"{xid}{_OPEN}"
        with room_needed(self._folder.parent):
            self._folder.mkdir(exist_ok=True)
            opened.touch()  # it may have no messages
            sync(opened)
            opened.replace(self._folder / f"{xid}{SUFFIX}")
            sync(self._folder)
            sync(self._folder.parent)

    def get(self, xid: int) -> Spool | None:
        """A prepared transaction, or None when there is none with this xid."""
        spool = Spool(self._folder / f"{xid}{SUFFIX}")
        return spool if spool.exists else None
