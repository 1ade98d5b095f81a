# SPDX-License-Identifier: Apache-2.0
"""Changes become pgoutput messages: tuples of all kinds, descriptions, frames, forms of values."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.change import types
from penstock.change.relation import Column, Relation
from penstock.change.schema import change_schema
from penstock.errors import PenstockError
from penstock.pgoutput.decode import Decoder
from penstock.pgoutput.describe import (
    Messages,
    description,
    frame_messages,
    relation_message,
    truncate_message,
)
from penstock.pgoutput.encode import CHUNK_ROWS, Encoding, encode_changes
from tests.support import pgoutput_bytes as wire
from tests.support.reference_decoder import Reference

JSONB = 3802
ID = Column("id", types.INT4, -1, key=True)
NOTE = Column("a \"b\" `c`'d'\\ é", types.TEXT, -1, key=False)
KEYED = Relation(101, "public", "t1", "d", (ID, NOTE))
FULL = Relation(4294967295, 'a "b".c', "ü\\'", "f", (ID, NOTE))
Change = tuple[str, dict[str, Any] | None, dict[str, Any] | None, list[str] | None]


def row(number: int | None, note: str | None = None) -> dict[str, Any]:
    return {"id": number, NOTE.name: note}


def table(relation: Relation, changes: list[Change]) -> pa.Table:
    """Changes of one transaction, in order."""
    names = change_schema(relation).names
    rows = [
        dict(zip(names, (op, 8, seq, old, new, unchanged), strict=True))
        for seq, (op, old, new, unchanged) in enumerate(changes)
    ]
    return pa.Table.from_pylist(rows, schema=change_schema(relation))


def encoded(relation: Relation, changes: pa.Table, **how: Any) -> list[bytes]:
    return wire.split(encode_changes(changes, relation, Encoding(**how)))


def decoded(relation: Relation, messages: list[bytes]) -> list[Any]:
    """What our decoder and the independent one read, which must be the same."""
    sent = [relation_message(relation), *messages]
    whole = wire.transaction(8, *sent)
    found = Decoder().feed(*wire.framed(whole)).tables
    rows = [tuple(each.values()) for _, table in found for each in table.to_pylist()]
    assert [each for each, _ in found] == ([relation] if rows else [])
    assert rows == Reference().feed(whole).rows.get(relation, [])
    return rows


CHANGES: list[Change] = [
    ("I", None, row(1, "one"), None),
    ("I", None, row(2), None),
    ("I", None, row(3), [NOTE.name]),
    ("U", None, row(1, ""), None),
    ("U", None, row(1), [NOTE.name]),
    ("D", row(2), None, None),
    ("U", row(3), row(-4, "ü"), None),
    ("T", None, None, None),
    ("U", row(5, "old"), row(5), [NOTE.name]),
    ("D", row(5, "old"), None, None),
]


@pytest.mark.parametrize(("relation", "letter"), [(KEYED, b"K"), (FULL, b"O")])
def test_every_operation_and_tuple(relation: Relation, letter: bytes) -> None:
    """Old rows as key or whole by the identity, nulls, unchanged values; both decoders read it."""
    oid = relation.oid
    found = encoded(relation, table(relation, CHANGES))
    assert found == [
        wire.insert(oid, ["1", "one"]),
        wire.insert(oid, ["2", None]),
        wire.insert(oid, ["3", ...]),
        wire.update(oid, ["1", ""]),
        wire.update(oid, ["1", ...]),
        wire.delete(oid, ["2", None], letter),
        wire.update(oid, ["-4", "ü"], ["3", None], letter),
        wire.truncate(oid),
        wire.update(oid, ["5", ...], ["5", "old"], letter),
        wire.delete(oid, ["5", "old"], letter),
    ]
    if letter == b"O":  # an old key is whole, so its decoder does not take 'u' there
        assert decoded(relation, found) == [
            (op, 8, seq, old, new, unchanged)
            for seq, (op, old, new, unchanged) in enumerate(CHANGES)
        ]


def test_slices_and_chunks() -> None:
    """Rows of a table that begins anywhere, in several chunks and more than one piece of ours."""
    many = [("I", None, row(n, None if n % 3 else f"n{n}"), None) for n in range(CHUNK_ROWS + 5)]
    whole = table(KEYED, [*CHANGES, *many])
    expected = encoded(KEYED, whole)
    assert len(expected) == len(CHANGES) + len(many)
    pieces = pa.concat_tables([whole.slice(2, 1), whole.slice(3, 4), whole.slice(7)])
    assert encoded(KEYED, pieces) == expected[2:]
    assert encoded(KEYED, whole.slice(0, 0)) == []
    assert expected[-1] == wire.insert(101, [str(CHUNK_ROWS + 4), None])


VALUES: list[tuple[int, int, Any, bytes, bytes | None]] = [
    (types.BOOL, -1, True, b"t", b"\1"),
    (types.INT2, -1, -32768, b"-32768", b"\x80\0"),
    (types.INT8, -1, -(2**63), str(-(2**63)).encode(), struct.pack(">q", -(2**63))),
    (types.OID, -1, 2**32 - 1, b"4294967295", b"\xff" * 4),
    (types.FLOAT8, -1, 1e23, b"9.999999999999999e+22", struct.pack(">d", 1e23)),
    (types.FLOAT8, -1, float("-inf"), b"-Infinity", struct.pack(">d", float("-inf"))),
    (types.FLOAT4, -1, 1e6, b"1e+06", struct.pack(">f", 1e6)),
    (types.NUMERIC, (9 << 16 | 2) + 4, Decimal("-0.50"), b"-0.50",
     struct.pack(">hhHhh", 1, -1, 0x4000, 2, 5000)),
    (types.NUMERIC, -1, Decimal("1.5"), b"1.5", struct.pack(">hhHhhh", 2, 0, 0, 1, 1, 5000)),
    (types.NUMERIC, -1, Decimal("1200"), b"1200", struct.pack(">hhHhh", 1, 0, 0, 0, 1200)),
    (types.NUMERIC, -1, Decimal(0), b"0", struct.pack(">hhHh", 0, 0, 0, 0)),
    (types.DATE, -1, dt.date(1, 1, 1), b"0001-01-01", struct.pack(">i", -730119)),
    (types.TIMESTAMP, -1, dt.datetime(2000, 1, 1, 0, 0, 0, 500000), b"2000-01-01 00:00:00.5",
     struct.pack(">q", 500000)),
    (types.TIMESTAMPTZ, -1, dt.datetime(2000, 1, 1, tzinfo=dt.UTC), b"2000-01-01 05:30:00+05:30",
     struct.pack(">q", 0)),
    (types.BYTEA, -1, b"\0\xff", b"\\x00ff", b"\0\xff"),
    (types.BPCHAR, 9, "ab   ", b"ab   ", b"ab   "),
    (2950, -1, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
     bytes.fromhex("a0eebc999c0b4ef8bb6d6bb9bd380a11")),
    (JSONB, -1, '{"a": 1}', b'{"a": 1}', b'\1{"a": 1}'),
    (1186, -1, "1 day", b"1 day", None),
    (1231, -1, [Decimal("1.50"), None], b"{1.5,NULL}", None),
    (1009, -1, ["a b", "NULL", ""], b'{"a b","NULL",""}', None),
    (16999, -1, "it's", b"it's", None),
]  # fmt: skip


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(("oid", "typmod", "value", "text", "raw"), VALUES)
def test_values(
    oid: int, typmod: int, value: Any, text: bytes, raw: bytes | None, binary: bool
) -> None:
    """PostgreSQL's text in the session's zone; binary where asked for, else text all the same.

    Without a declared scale a numeric has the digits that it needs.
    """
    relation = Relation(7, "public", "t", "d", (Column("v", oid, typmod, key=False),))
    changes = table(relation, [("I", None, {"v": value}, None), ("I", None, {"v": None}, None)])
    sent = wire.Binary(raw) if binary and raw is not None else text
    found = encoded(relation, changes, binary=binary, timezone="Asia/Kolkata")
    assert found == [wire.insert(7, [sent]), wire.insert(7, [None])]
    if not binary or (raw is not None and oid != JSONB):  # which the reference does not know
        decoded(relation, found)


def test_a_delete_needs_its_old_row() -> None:
    """Without one there is no message: never a wrong one."""
    with pytest.raises(PenstockError, match="without an old row"):
        encoded(KEYED, table(KEYED, [("D", None, None, None)]))


def test_descriptions() -> None:
    """Types that PostgreSQL did not begin with come before the relation, once for each column."""
    columns = (
        ID,
        Column("a", 16500, -1, False),
        Column("b", 16501, 7, True),
        Column("c", 16500, -1, False),
    )
    relation = Relation(9, "pg_catalog", "t", "i", columns)
    names = {16500: ("public", "mood"), 23: ("pg_catalog", "int4")}
    found = wire.split([description([KEYED, relation], names)])
    assert found == [
        wire.describe(KEYED),
        b"Y" + struct.pack(">I", 16500) + b"public\0mood\0",
        b"Y" + struct.pack(">I", 16500) + b"public\0mood\0",
        wire.describe(Relation(9, "", "t", "i", columns)),
    ]
    assert Reference().feed(found).known == {101: KEYED, 9: relation}
    assert truncate_message([101, 9]) == wire.truncate(101, 9)


def test_frames() -> None:
    """Each message is an XLogData in a CopyData message of its own."""
    messages = [b"Ione", b"", b"D" * 300]
    framed = frame_messages(Messages.of(messages), 2**63, 5, -1)
    assert framed == b"".join(
        b"d" + struct.pack(">I", 29 + len(each)) + b"w" + struct.pack(">QQq", 2**63, 5, -1) + each
        for each in messages
    )
    assert frame_messages(Messages.of([]), 1, 1, 1) == b""
    assert not Messages.of([]) and Messages.of([b"x"])
