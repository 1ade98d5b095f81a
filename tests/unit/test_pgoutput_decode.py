# SPDX-License-Identifier: Apache-2.0
"""Messages become changes: operations, order, relations that change, transactions in pieces."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from penstock.change import types
from penstock.change.relation import Column, Relation
from penstock.change.schema import change_schema
from penstock.errors import FeatureNotSupportedError, PenstockError, ProtocolError
from penstock.pgoutput.decode import Decoded, Decoder
from tests.support import pgoutput_bytes as wire

ID = Column("id", types.INT4, -1, key=True)
NOTE = Column("note", types.TEXT, -1, key=False)
T1 = Relation(101, "public", "t1", "d", (ID, NOTE))
T2 = Relation(102, "s", "T 2", "f", (ID, NOTE))
INTRO = [wire.describe(T1), wire.describe(T2)]


def decode(*messages: bytes, decoder: Decoder | None = None) -> Decoded:
    return (decoder or Decoder()).feed(*wire.framed(messages))


def changes(decoded: Decoded) -> dict[str, list[Any]]:
    """Per table name the rows as (op, commit LSN, seq, old, new, unchanged)."""
    found: dict[str, list[Any]] = {}
    for relation, table in decoded.tables:
        assert table.schema.equals(change_schema(relation))
        table.validate(full=True)
        rows = [tuple(row.values()) for row in table.to_pylist()]
        found.setdefault(relation.name, []).extend(rows)
    return found


def test_every_operation() -> None:
    """Each operation gives one row with what the message carries, in the order sent."""
    decoded = decode(
        wire.begin(1000, time_us=5),
        *INTRO,
        wire.insert(101, ["1", "one"]),
        wire.update(101, ["1", None]),
        wire.update(101, ["2", ...], old=["1", None]),
        wire.update(102, ["3", "c"], old=["3", "b"], letter=b"O"),
        wire.delete(101, ["2", None]),
        wire.truncate(101, 102),
        wire.commit(1000, 1040, time_us=5),
    )
    assert changes(decoded) == {
        "t1": [
            ("I", 1000, 0, None, {"id": 1, "note": "one"}, None),
            ("U", 1000, 1, None, {"id": 1, "note": None}, None),
            ("U", 1000, 2, {"id": 1, "note": None}, {"id": 2, "note": None}, ["note"]),
            ("D", 1000, 4, {"id": 2, "note": None}, None, None),
            ("T", 1000, 5, None, None, None),
        ],
        "T 2": [
            ("U", 1000, 3, {"id": 3, "note": "b"}, {"id": 3, "note": "c"}, None),
            ("T", 1000, 6, None, None, None),
        ],
    }
    assert decoded.last == (1000, 1040, 946_684_800_000_005, 7)
    assert not decoded.open


def test_restarts_of_identity() -> None:
    """Of each table, the transactions with a TRUNCATE that restarts identity, and no others."""
    decoded = decode(
        *wire.transaction(8, *INTRO, wire.truncate(101), wire.insert(102, ["1", ""])),
        *wire.transaction(24, wire.truncate(101, 102, flags=3), wire.truncate(101, flags=2)),
        *wire.transaction(40, wire.truncate(102, flags=1)),
        *wire.transaction(56, wire.truncate(101, flags=2)),
    )
    assert [relation.name for relation, _ in decoded.tables] == ["t1", "T 2"]
    assert decoded.restarts == ((24, 56), (24,))


def test_insert_may_hold_unchanged_columns() -> None:
    """An UPDATE that a row filter made an INSERT keeps the list of what it does not carry."""
    decoded = decode(*wire.transaction(8, *INTRO, wire.insert(101, ["1", ...])))
    assert changes(decoded)["t1"] == [("I", 8, 0, None, {"id": 1, "note": None}, ["note"])]


def test_order_starts_again_with_each_transaction() -> None:
    """seq counts over all relations of a transaction, from 0 in each."""
    decoded = decode(
        *wire.transaction(8, *INTRO, wire.insert(101, ["1", ""]), wire.insert(102, ["1", ""])),
        *wire.transaction(24, wire.insert(102, ["2", ""]), wire.insert(101, ["2", ""])),
    )
    keys = {name: [(row[1], row[2]) for row in rows] for name, rows in changes(decoded).items()}
    assert keys == {"t1": [(8, 0), (24, 1)], "T 2": [(8, 1), (24, 0)]}
    assert decoded.transactions[:, :2].tolist() == [[8, 16], [24, 32]]


@pytest.mark.parametrize("inside", [True, False])
def test_a_relation_that_changes_gets_a_new_table(inside: bool) -> None:
    """A new definition counts from its message on, inside a transaction or between two."""
    wider = Relation(
        101, "public", "t1", "d", (ID, NOTE, Column("more", types.BOOL, -1, key=False))
    )
    border = [] if inside else [wire.commit(8, 16), wire.begin(24)]
    decoded = decode(
        wire.begin(8),
        *INTRO,
        wire.insert(101, ["1", "a"]),
        *border,
        wire.describe(wider),
        wire.insert(101, ["2", "b", "t"]),
        wire.describe(wider),
        wire.insert(101, ["3", "c", "f"]),
        wire.commit(8 if inside else 24, 40),
    )
    assert [(relation, table.num_rows) for relation, table in decoded.tables] == [
        (T1, 1),
        (wider, 2),
    ]


def test_a_definition_that_comes_back() -> None:
    """Rows under a definition, another one, and the first one again stay in that order."""
    full = Relation(101, "public", "t1", "f", (ID, NOTE))
    decoder = Decoder()
    decode(wire.begin(8), *INTRO, wire.insert(101, ["0", "a"]), wire.commit(8, 16), decoder=decoder)
    decoded = decode(
        wire.begin(24),
        *(wire.describe(full), wire.insert(101, ["1", "b"])),
        *(wire.describe(T1), wire.insert(101, ["2", "c"])),
        *(wire.describe(full), wire.insert(101, ["3", "d"])),
        wire.commit(24, 40),
        decoder=decoder,
    )
    found = [(relation, table["seq"].to_pylist()) for relation, table in decoded.tables]
    assert found == [(full, [0]), (T1, [1]), (full, [2])]
    assert decoder.described == 5


def test_a_transaction_may_come_in_pieces() -> None:
    """A piece without the end is marked open, and the order goes on in the next one."""
    decoder = Decoder()
    first = decode(wire.begin(8), *INTRO, wire.insert(101, ["1", "a"]), decoder=decoder)
    assert first.open
    assert first.last is None
    assert first.first_commit_lsn == 8
    second = decode(wire.insert(101, ["2", "b"]), wire.commit(8, 16), decoder=decoder)
    assert not second.open
    assert second.last is not None
    assert second.last.end_lsn == 16
    assert changes(second)["t1"] == [("I", 8, 1, None, {"id": 2, "note": "b"}, None)]


def test_known_transactions_are_left_out() -> None:
    """What was staged before is dropped, but the relations described in it count."""
    decoded = decode(
        *wire.transaction(8, *INTRO, wire.insert(101, ["1", "a"]), end_lsn=16),
        *wire.transaction(16, wire.insert(101, ["2", "b"]), end_lsn=24),
        decoder=Decoder(after_lsn=16),
    )
    assert [row[4]["id"] for row in changes(decoded)["t1"]] == [2]
    assert decoded.transactions[:, 0].tolist() == [16]


def test_messages_without_rows_are_passed_over() -> None:
    """Origin, Type and logical messages change nothing, inside or between transactions."""
    logical = b"M\1" + bytes(8) + b"prefix\0" + b"\0\0\0\1x"
    decoded = decode(
        logical,
        *wire.transaction(
            8, b"O" + bytes(8) + b"name\0", b"Y\0\0\x40\0public\0mood\0", *INTRO, logical
        ),
    )
    assert decoded.tables == ()
    assert decoded.last is not None


def test_many_relations() -> None:
    """Relations are found by their OID, however many there are."""
    many = [Relation(oid, "public", f"t{oid}", "d", (ID,)) for oid in range(5, 5000, 64)]
    decoder = Decoder()
    decode(*map(wire.describe, many), decoder=decoder)
    decoded = decode(
        *wire.transaction(8, *(wire.insert(r.oid, [str(r.oid)]) for r in many)), decoder=decoder
    )
    found = {name: rows[0][4]["id"] for name, rows in changes(decoded).items()}
    assert found == {relation.name: relation.oid for relation in many}


ROW = wire.insert(101, ["1", "a"])


@pytest.mark.parametrize(
    "messages",
    [
        [ROW],
        [wire.begin(8), ROW],
        [wire.begin(8), wire.begin(16)],
        [wire.commit(8, 16)],
        [wire.begin(8), wire.commit(9, 16)],
        [wire.begin(8), wire.commit(8, 7)],
        [wire.begin(2**63), wire.commit(2**63, 2**63 + 8)],
        [wire.begin(8), wire.commit(8, 2**63 + 8)],
        [wire.begin(2**62), wire.commit(2**62 + 1, 2**62 + 8)],
        [b""],
        [b"S" + bytes(5)],
        [wire.begin(8), *INTRO, ROW[:-1]],
        [wire.begin(8), *INTRO, ROW + b"x"],
        [wire.begin(8), *INTRO, ROW[:7]],
        [wire.begin(8), *INTRO, ROW[:5] + b"K" + ROW[6:]],
        [wire.begin(8), *INTRO, wire.insert(101, ["1"])],
        [wire.begin(8), *INTRO, wire.insert(101, ["1", "a", "b"])],
        [wire.begin(8), *INTRO, wire.update(101, ["1", "a"], old=["1", ...])],
        [wire.begin(8), *INTRO, wire.update(101, ["1", "a"], old=["1", None])[:-15]],
        [wire.begin(8), *INTRO, wire.truncate(101, 999)],
        [wire.begin(8), *INTRO, wire.truncate(101)[:-1]],
        [wire.begin(8), *INTRO, wire.insert(101, ["1", b"\xff"])],
        [wire.describe(T1)[:-1]],
        [wire.describe(T1) + b"x"],
        [b"R"],
    ],
)
def test_wrong_messages_are_protocol_errors(messages: list[bytes]) -> None:
    """What pgoutput never sends is refused, and never read beyond its end."""
    with pytest.raises(ProtocolError):
        decode(*messages)


def test_a_binary_value_whose_form_is_not_known() -> None:
    """It is refused with its table, column and transaction, and what mends it."""
    relation = Relation(7, "s", "t", "d", (Column("c", 20000, -1, key=False),))
    change = wire.insert(7, [wire.Binary(b"?")])
    with pytest.raises(FeatureNotSupportedError, match="20000") as caught:
        decode(*wire.transaction(8, wire.describe(relation), change))
    for part in ('"s.t"', '"c"', "0/8", "binary = false"):
        assert part in str(caught.value)


def test_both_forms_of_a_column_in_one_buffer() -> None:
    """What was prepared before ``binary`` was changed comes beside what is sent after that."""
    relation = Relation(7, "s", "t", "d", (Column("c", 23, -1, True), Column("l", 1009, -1, False)))
    array = bytes.fromhex("00000001000000000000001900000001000000010000000178")
    rows: list[tuple[wire.Value, wire.Value]]
    rows = [("5", "{y}"), (wire.Binary(b"\0\0\0\6"), wire.Binary(array)), (None, None)]
    changes = [wire.insert(7, row) for row in rows]
    ((_, table),) = decode(*wire.transaction(8, wire.describe(relation), *changes)).tables
    table.validate(full=True)
    assert [tuple(row["new"].values()) for row in table.to_pylist()] == [
        (5, ["y"]),
        (6, ["x"]),
        (None, None),
    ]


def test_errors_name_the_relation_and_the_position() -> None:
    """A reader of the log can find the transaction."""
    with pytest.raises(PenstockError) as caught:
        decode(wire.begin(0x1600000028), *INTRO, wire.insert(101, ["x", "a"]))
    assert '"public.t1"' in str(caught.value)
    assert "16/28" in str(caught.value)
    assert '"id"' in str(caught.value)


WARMED = """
from penstock.pgoutput import parse, scan
from penstock.pgoutput.warm import warm
def signatures():
    found = [*vars(scan).values(), *vars(parse).values()]
    return {k.__name__: len(k.signatures) for k in found if hasattr(k, "signatures")}
warm()
before = signatures()
from tests.unit.test_pgoutput_decode import test_every_operation, test_many_relations
from tests.unit.test_pgoutput_values import READABLE, test_values
test_every_operation()
test_many_relations()
for case in READABLE:
    test_values(*case)
after = signatures()
assert before == after, {k: (n, after[k]) for k, n in before.items() if n != after[k]}
assert sum(before.values()) > 10
"""


def test_warming_compiles_everything() -> None:
    """After it, decoding compiles nothing more, whatever the types and operations are."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", WARMED], env=env, check=True)
