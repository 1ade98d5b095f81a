# SPDX-License-Identifier: Apache-2.0
"""The control database's commit records, as they come out of its WAL.

In:   a logical replication connection on the slot ``penstock_ledger``, for no publication: pgoutput
      sends nothing but messages, and leaves every transaction out that has none (those that only
      write ``penstock.commit`` among them).  Before 18 it wants the name of one, so an empty
      publication of the slot's name is made there.
Out:  one LedgerEntry for each transaction with a message of prefix ``penstock``.

    B(egin): LSN, time -> M(essage): commit record, DDL -> C(ommit): end LSN -> entry -> feedback

Durable here: nothing.  An entry counts as stored when the next one is asked for; then its end is
confirmed.  When nothing is pending, feedback follows the keepalives, so an idle slot holds no WAL.
"""

from __future__ import annotations

import json
import select
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg import pq

from penstock.control.address import ControlAddress
from penstock.control.commits import RECORD_PREFIX
from penstock.control.connect import CONNECT_TIMEOUT_S
from penstock.errors import ConnectionLostError, ProtocolError
from penstock.lsn import format_lsn

LEDGER_NAME = "penstock_ledger"
"""The slot; and the publication, where there must be one."""

NO_PUBLICATION_SINCE = 180000
"""The server version from which on pgoutput takes an empty list of publications."""

FEEDBACK_INTERVAL_S = 10.0
"""Well below wal_sender_timeout (60 s), after which the server drops a silent client."""

_STOP_NOTICED_S = 0.5
"""How long a wait for bytes lasts before the stop event is looked at."""

_POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_XLOG_DATA = struct.Struct(">cQQQ")
_KEEPALIVE = struct.Struct(">cQQ?")
_BEGIN = struct.Struct(">cQqI")
_BEGIN_PREPARE = struct.Struct(">cQQqI")
_MESSAGE = struct.Struct(">c?Q")
_COMMIT = struct.Struct(">cBQQq")
_STATUS = struct.Struct(">cQQQq?")


def no_publications(server_version: int) -> str:
    """The ``publication_names`` with which pgoutput sends messages and no rows."""
    return "" if server_version >= NO_PUBLICATION_SINCE else LEDGER_NAME


@dataclass
class LedgerEntry:
    """One commit of the lake; ``lsn`` is that of its commit record, ``end_lsn`` the next byte."""

    lsn: int
    end_lsn: int
    time: datetime
    xid: str = ""
    purpose: str | None = None
    origin: str | None = None
    tables: list[dict[str, Any]] = field(default_factory=list)
    ddl: list[dict[str, Any]] = field(default_factory=list)
    definitions: dict[tuple[str, int], dict[str, Any] | None] = field(default_factory=dict)
    """By kind and OID, what the transaction left (100_definitions.sql); None: it is dropped."""
    prepared: bool = False
    """It is between PREPARE TRANSACTION and its end; ``lsn`` is that of PREPARE's record."""

    @classmethod
    def begun(cls, begin: bytes) -> LedgerEntry:
        """That of a transaction whose Begin or Begin Prepare has come."""
        form = _BEGIN if begin[:1] == b"B" else _BEGIN_PREPARE
        _, lsn, *_, micros, _ = form.unpack_from(begin)
        time = _POSTGRES_EPOCH + timedelta(microseconds=micros)
        return cls(lsn, 0, time, prepared=form is _BEGIN_PREPARE)

    def add(self, message: bytes) -> None:
        """Take in one message of the transaction: a commit record, or what DDL changed.

        A transaction that changes a definition twice leaves the later one: its commit record is
        its last word, so all that it wrote is published by what it left.
        """
        try:
            record = json.loads(message)
            self.xid = record["xid"]
            self.ddl += record.get("ddl", [])
            for each in record.get("definitions", []):
                self.definitions[each["kind"], each["objid"]] = each["facts"]
            if "tables" in record:
                self.tables += record["tables"]
                self.purpose = record["purpose"]
                self.origin = record["origin"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProtocolError(
                f"commit record at {format_lsn(self.lsn)} cannot be read",
                detail=f"It is not one that this version of Penstock writes: {error!r}.",
            ) from error


class LedgerDecoder:
    """pgoutput messages -> entries; knows only Begin, Message and Commit, skips the others."""

    def __init__(self) -> None:
        self._entry: LedgerEntry | None = None
        self._recorded = False

    def decode(self, payload: bytes) -> LedgerEntry | None:
        """Take one message; the entry at the Commit of a transaction that has a record."""
        kind = payload[:1]
        if kind == b"B":
            self._entry = LedgerEntry.begun(payload)
            self._recorded = False
        elif kind == b"M" and self._entry is not None:
            self._message(payload, self._entry)
        elif kind == b"C" and self._entry is not None:
            entry, self._entry = self._entry, None
            entry.end_lsn = _COMMIT.unpack_from(payload)[3]
            return entry if self._recorded else None
        return None

    def _message(self, payload: bytes, entry: LedgerEntry) -> None:
        _, transactional, _ = _MESSAGE.unpack_from(payload)
        prefix_end = payload.index(b"\0", _MESSAGE.size)
        if transactional and payload[_MESSAGE.size : prefix_end] == RECORD_PREFIX.encode():
            entry.add(payload[prefix_end + 5 :])  # after the prefix's zero byte and the length
            self._recorded = True


class LedgerStream:
    """A replication connection on the ledger's slot."""

    def __init__(
        self, address: ControlAddress, feedback_interval: float = FEEDBACK_INTERVAL_S
    ) -> None:
        conninfo = address.conninfo(
            replication="database",
            application_name="penstock ledger",
            connect_timeout=CONNECT_TIMEOUT_S,
        )
        self._pgconn = pq.PGconn.connect(conninfo.encode())
        self._confirmed = 0
        self._interval = feedback_interval

    def __enter__(self) -> LedgerStream:
        if self._pgconn.status != pq.ConnStatus.OK:
            raise self._lost()
        names = no_publications(self._pgconn.server_version)
        result = self._pgconn.exec_(
            f"START_REPLICATION SLOT {LEDGER_NAME} LOGICAL 0/0 (proto_version '1',"
            f" publication_names '{names}', messages 'true')".encode()
        )
        if result.status != pq.ExecStatus.COPY_BOTH:
            self._pgconn.finish()
            raise self._lost()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(psycopg.OperationalError):  # a goodbye; the server may be gone
            self._pgconn.put_copy_end()
            self._pgconn.flush()
        self._pgconn.finish()

    def entries(self, stop: threading.Event) -> Iterator[LedgerEntry]:
        """Entries in the order of the WAL; one counts as stored when the next is asked for."""
        decoder = LedgerDecoder()
        due = time.monotonic() + self._interval
        while not stop.is_set():
            message = self._receive()
            if message is None:
                select.select([self._pgconn.socket], [], [], min(_STOP_NOTICED_S, self._interval))
                self._consume()
            elif message[:1] == b"w":
                entry = decoder.decode(message[_XLOG_DATA.size :])
                if entry is not None:
                    yield entry
                    self._confirm(entry.end_lsn)
            elif message[:1] == b"k":
                _, end, _, reply = _KEEPALIVE.unpack_from(message)
                # Sent in order: all that commits before ``end`` has come, and is stored.
                self._confirmed = max(self._confirmed, end)
                if reply:
                    self._confirm(end)
            else:
                raise ProtocolError(f"unexpected message {message[:1]!r} in the ledger's stream")
            if time.monotonic() > due:
                self._confirm(self._confirmed)
                due = time.monotonic() + self._interval

    def _receive(self) -> bytes | None:
        """The next message, or None when none has arrived."""
        try:
            length, message = self._pgconn.get_copy_data(1)
        except psycopg.OperationalError as error:
            raise self._lost() from error
        if length == 0:
            return None
        if length < 0:
            self._pgconn.get_result()
            raise self._lost()
        return bytes(message)

    def _consume(self) -> None:
        try:
            self._pgconn.consume_input()
        except psycopg.OperationalError as error:
            raise self._lost() from error

    def _confirm(self, lsn: int) -> None:
        self._confirmed = max(self._confirmed, lsn)
        now = (datetime.now(UTC) - _POSTGRES_EPOCH) // timedelta(microseconds=1)
        status = _STATUS.pack(b"r", self._confirmed, self._confirmed, self._confirmed, now, False)
        try:
            self._pgconn.put_copy_data(status)
            self._pgconn.flush()
        except psycopg.OperationalError as error:
            raise self._lost() from error

    def _lost(self) -> ConnectionLostError:
        reason = self._pgconn.error_message.decode(errors="replace").strip()
        return ConnectionLostError(
            "the ledger lost its connection to the control database", detail=reason or None
        )
