# SPDX-License-Identifier: Apache-2.0
"""Decoding of the ledger's messages: Begin, Message, Commit; everything else is passed over."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime

import pytest

from penstock.control.ledger_stream import LedgerDecoder, LedgerEntry
from penstock.errors import ProtocolError

TABLES = [{"relid": 16410, "location": "x", "version": 8, "ranges": [[8, 8]], "kind": "merge"}]
RECORD = {"v": 1, "xid": "99", "purpose": "apply", "origin": "pg_1", "tables": TABLES}
DDL = {"v": 1, "xid": "99", "ddl": [{"tag": "CREATE TABLE", "relid": 16410}]}


def begin(lsn: int = 0x100, micros: int = 1_000_000) -> bytes:
    return struct.pack(">cQqI", b"B", lsn, micros, 99)


def message(content: bytes, prefix: bytes = b"penstock", *, transactional: bool = True) -> bytes:
    head = struct.pack(">c?Q", b"M", transactional, 0x90)
    return head + prefix + b"\0" + struct.pack(">I", len(content)) + content


def commit(end_lsn: int = 0x130) -> bytes:
    return struct.pack(">cBQQq", b"C", 0, 0x100, end_lsn, 1_000_000)


def decode(*payloads: bytes) -> list[LedgerEntry]:
    decoder = LedgerDecoder()
    return [entry for entry in map(decoder.decode, payloads) if entry is not None]


def test_record_becomes_an_entry_at_commit() -> None:
    """The entry has the commit's positions and time, and what the record says."""
    assert decode(begin(), message(json.dumps(RECORD).encode()), commit()) == [
        LedgerEntry(
            lsn=0x100,
            end_lsn=0x130,
            time=datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC),
            xid="99",
            purpose="apply",
            origin="pg_1",
            tables=TABLES,
        )
    ]


def test_ddl_and_record_of_one_transaction_are_one_entry() -> None:
    """DDL messages come before the commit record, and both belong to the same commit."""
    [entry] = decode(
        begin(),
        message(json.dumps(DDL).encode()),
        message(json.dumps(DDL).encode()),
        message(json.dumps(RECORD).encode()),
        commit(),
    )
    assert entry.tables == TABLES
    assert entry.ddl == [*DDL["ddl"], *DDL["ddl"]]  # type: ignore[misc]  # the literal is a list


@pytest.mark.parametrize(
    "foreign",
    [
        message(b"{}", b"other"),
        message(b"{}", b"penstock2"),
        message(b"{}", transactional=False),
        b"R whatever a relation says",
        b"O whatever an origin says",
    ],
)
def test_what_is_not_ours_makes_no_entry(foreign: bytes) -> None:
    """Other prefixes, messages outside the transaction, other kinds: no row in the ledger."""
    assert decode(begin(), foreign, commit()) == []


def test_entries_do_not_mix() -> None:
    """A transaction without a record leaves nothing behind for the next one."""
    [entry] = decode(
        begin(), commit(), begin(0x200), message(json.dumps(RECORD).encode()), commit(0x230)
    )
    assert (entry.lsn, entry.end_lsn) == (0x200, 0x230)


@pytest.mark.parametrize("content", [b"", b"not json", b"[]", b'{"tables": []}', b"\xff"])
def test_unreadable_record_is_named_by_its_lsn(content: bytes) -> None:
    """The ledger stops at a record that it cannot read, and says where it is."""
    with pytest.raises(ProtocolError, match="commit record at 0/100 cannot be read"):
        decode(begin(), message(content), commit())
