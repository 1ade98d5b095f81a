# SPDX-License-Identifier: Apache-2.0
"""What one subscriber is sent of each commit: definitions of then, changes, messages, frames.

In:   commits with a record or DDL, in the order of the WAL, from the subscriber's own stream.
Out:  CopyData messages.

What is published of a relation is found out once (``control/definitions.py``, ``publish/``) and
kept until a definition changes: that is in the same WAL, so what is kept is never too old or too
new.  Nothing is durable here.

A transaction that is prepared is expanded before it is committed, from Delta versions that are
ahead of ``table_version``; one that is rolled back by then publishes nothing, as its files may be
gone, and the subscriber will be told to roll it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from penstock.control.address import ControlAddress
from penstock.control.commits import xact_status
from penstock.control.connect import ControlConnection, connect
from penstock.control.definitions import definitions_at, definitions_of_prepared
from penstock.control.functions import read_functions, read_type_names
from penstock.control.ledger_stream import LedgerEntry
from penstock.frontdoor.actions import StreamOptions
from penstock.frontdoor.replication.shared import SharedExpansions
from penstock.lake.session import Spark
from penstock.pgoutput.describe import frame_messages
from penstock.pgoutput.encode import Encoding
from penstock.publish.expand import Expander, Piece, Published, SentRelations, publish
from penstock.wire.replication import XLogHeader


class LakePublisher:
    """``actions.Publisher`` of a node."""

    def __init__(self, control: ControlAddress, spark: Spark, lake: Path) -> None:
        self._control = control
        self._spark = spark
        self._lake = lake
        self._shared = SharedExpansions()

    def stream(self, options: StreamOptions) -> LakeStream:
        """A stream that has sent nothing yet."""
        encoding = Encoding(binary=options.binary, timezone=options.timezone)
        expander = Expander(self._spark.own_session(), self._lake, encoding)
        return LakeStream(options, expander, self._shared, self._control, self._lake)


class LakeStream:
    """``actions.PublishedStream``."""

    def __init__(
        self,
        options: StreamOptions,
        expander: Expander,
        shared: SharedExpansions,
        control: ControlAddress,
        lake: Path,
    ) -> None:
        self._options = options
        self._expander = expander
        self._shared = shared
        self._control = control
        self._lake = lake
        self._connection: ControlConnection | None = None
        self._sent = SentRelations()
        self._published: dict[int, Published | None] = {}
        """By relid; None when nothing of the relation is published."""

    def expand(self, commit: LedgerEntry, header: XLogHeader) -> Iterator[bytes]:
        """See actions.PublishedStream; PenstockError with PostgreSQL's SQLSTATE."""
        if commit.prepared and xact_status(self._connected(), commit.xid) == "aborted":
            return
        if commit.definitions:
            self._published.clear()
        pieces = self._shared.pieces((self._options, commit.lsn), lambda: self._pieces(commit))
        for messages in self._sent.described(pieces):
            yield frame_messages(messages, *header)
        if commit.prepared and commit.definitions:
            self._published.clear()  # they do not hold for others yet

    def prepared_ended(self) -> None:
        """See actions.PublishedStream."""
        self._published.clear()

    def close(self) -> None:
        """Let go of the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _pieces(self, commit: LedgerEntry) -> Iterator[Piece]:
        self._find_out(commit)
        published = {relid: found for relid, found in self._published.items() if found is not None}
        yield from self._expander.expand(commit.tables, commit.lsn, published)

    def _find_out(self, commit: LedgerEntry) -> None:
        versions = {table["relid"]: table["version"] for table in commit.tables}
        unknown = {relid: at for relid, at in versions.items() if relid not in self._published}
        if unknown:
            found = self._publish(unknown, commit)
            # Also what is published of their ancestors: one that was emptied is named by them.
            self._published |= {**dict.fromkeys(unknown), **found}

    def _publish(self, versions: Mapping[int, int], commit: LedgerEntry) -> dict[int, Published]:
        conn, names = self._connected(), self._options.publications
        if commit.prepared:
            definitions = definitions_of_prepared(conn, names, versions, commit, self._lake)
        else:
            definitions = definitions_at(conn, names, versions, commit.lsn, self._lake)
        return publish(
            definitions.facts,
            definitions.tables.values(),
            partial(read_functions, conn),
            partial(read_type_names, conn),
        )

    def _connected(self) -> ControlConnection:
        if self._connection is None:
            self._connection = connect(self._control, application_name="penstock publisher")
        return self._connection
