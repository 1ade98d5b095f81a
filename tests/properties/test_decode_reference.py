# SPDX-License-Identifier: Apache-2.0
"""The compiled decoder against the reference decoder, on messages that Hypothesis makes up.

Two kinds: streams of right messages, cut anywhere, which must give the same rows; and streams that
were damaged, for which both must refuse or both must give the same.  Nothing but a PenstockError
may come out.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from penstock.change import types
from penstock.change.relation import Column, Relation
from penstock.errors import PenstockError
from penstock.pgoutput.decode import Decoder
from tests.support import pgoutput_bytes as wire
from tests.support.reference_binary import NoReference, binary_value
from tests.support.reference_decoder import Reference, Refused, value

EXAMPLES = settings(max_examples=120, deadline=None)

TWO_DECIMALS = (9 << 16 | 2) + 4
ARRAYS = [1000, 1007, 1009, 1016, 1182, 1231]
TYPES = [
    types.BOOL, types.INT2, types.INT4, types.INT8, types.OID, types.FLOAT4, types.FLOAT8,
    types.NUMERIC, types.DATE, types.TIMESTAMP, types.TIMESTAMPTZ, types.BYTEA, types.TEXT,
    2950, *ARRAYS,
]  # fmt: skip


def texts(type_oid: int) -> st.SearchStrategy[str]:
    """Right values of a type in PostgreSQL's text form."""
    if type_oid in types.ARRAY_ELEMENTS:
        item = texts(types.ARRAY_ELEMENTS[type_oid]).map(quoted) | st.just("NULL")
        return st.lists(item, max_size=4).map(lambda items: "{" + ",".join(items) + "}")
    return {
        types.BOOL: st.sampled_from("tf"),
        types.INT2: st.integers(-(2**15), 2**15 - 1).map(str),
        types.INT4: st.integers(-(2**31), 2**31 - 1).map(str),
        types.INT8: st.integers(-(2**63), 2**63 - 1).map(str),
        types.OID: st.integers(0, 2**32 - 1).map(str),
        types.FLOAT4: st.floats(width=32, allow_nan=False).map(float_text),
        types.FLOAT8: st.floats(allow_nan=False).map(float_text),
        types.NUMERIC: st.decimals(-999999, 999999, places=2).map(lambda d: f"{d:f}"),
        types.DATE: st.dates().map(str),
        types.TIMESTAMP: st.datetimes().map(lambda moment: moment.isoformat(" ")),
        types.TIMESTAMPTZ: st.datetimes().map(lambda moment: moment.isoformat(" ") + "+00"),
        types.BYTEA: st.binary(max_size=5).map(lambda raw: "\\x" + raw.hex()),
    }.get(type_oid, st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))


def binaries(type_oid: int) -> st.SearchStrategy[wire.Binary]:
    """Right values of a type as its send function writes them."""
    if type_oid in types.ARRAY_ELEMENTS:
        item = binaries(types.ARRAY_ELEMENTS[type_oid])
        return st.lists(st.none() | item, max_size=4).map(binary_array)
    if type_oid == types.NUMERIC:
        return st.decimals(-999999, 999999, places=2).map(binary_numeric)
    if type_oid in _PACKED:
        form, values = _PACKED[type_oid]
        return values.map(lambda value: wire.Binary(struct.pack(">" + form, value)))
    raw = st.binary(max_size=5) if type_oid == types.BYTEA else texts(type_oid).map(str.encode)
    return raw.map(wire.Binary)


_PACKED: dict[int, tuple[str, st.SearchStrategy[Any]]] = {
    types.BOOL: ("?", st.booleans()),
    types.INT2: ("h", st.integers(-(2**15), 2**15 - 1)),
    types.INT4: ("i", st.integers(-(2**31), 2**31 - 1)),
    types.INT8: ("q", st.integers(-(2**63), 2**63 - 1)),
    types.OID: ("I", st.integers(0, 2**32 - 1)),
    types.FLOAT4: ("f", st.floats(width=32, allow_nan=False)),
    types.FLOAT8: ("d", st.floats(allow_nan=False)),
    types.DATE: ("i", st.integers(-730119, 2921939)),
    types.TIMESTAMP: ("q", st.integers(-(2**55), 2**55)),
    types.TIMESTAMPTZ: ("q", st.integers(-(2**55), 2**55)),
    2950: ("16s", st.binary(min_size=16, max_size=16)),
}


def binary_array(items: list[wire.Binary | None]) -> wire.Binary:
    parts = [
        struct.pack(">i", -1) if item is None else struct.pack(">i", len(item[0])) + item[0]
        for item in items
    ]
    head = struct.pack(">III", 1 if items else 0, 1, 0)
    sizes = struct.pack(">II", len(items), 1) if items else b""
    return wire.Binary(head + sizes + b"".join(parts))


def binary_numeric(number: Decimal) -> wire.Binary:
    """Two groups of four digits before the point, and one behind it."""
    hundredths = int(abs(number) * 100)
    digits = (hundredths // 10**6, hundredths // 100 % 10**4, hundredths % 100 * 100)
    sign = 0x4000 if number < 0 else 0
    return wire.Binary(struct.pack(">HhHH3H", 3, 1, sign, 2, *digits))


def quoted(item: str) -> str:
    return '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'


def float_text(number: float) -> str:
    return repr(number).replace("inf", "Infinity")


@st.composite
def relations(draw: st.DrawFn) -> Relation:
    """A relation of any types; its OID is one of three, so definitions replace each other."""
    oids = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=6))
    columns = tuple(
        Column(f"c{n}", oid, TWO_DECIMALS if oid in (types.NUMERIC, 1231) else -1, key=n == 0)
        for n, oid in enumerate(oids)
    )
    number = draw(st.integers(1, 3))
    return Relation(number, "s", f"t{number}", draw(st.sampled_from("dnfi")), columns)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Whole transactions with changes of up to three relations."""
    messages = []
    known: dict[int, Relation] = {}
    lsn = 8
    for _ in range(draw(st.integers(1, 4))):
        messages.append(wire.begin(lsn, draw(st.integers(0, 2**50))))
        for _ in range(draw(st.integers(0, 6))):
            if not known or draw(st.integers(0, 5)) == 0:
                relation = draw(relations())
                known[relation.oid] = relation
                messages.append(wire.describe(relation))
            messages.append(draw(change(known)))
        messages.append(wire.commit(lsn, lsn + 8))
        lsn += draw(st.integers(8, 2**40))
    return messages


@st.composite
def change(draw: st.DrawFn, known: dict[int, Relation]) -> bytes:
    relation = known[draw(st.sampled_from(sorted(known)))]
    kind = draw(st.sampled_from("IIUUDT"))
    if kind == "T":
        return wire.truncate(*draw(st.lists(st.sampled_from(sorted(known)), max_size=3)))
    letter = draw(st.sampled_from([b"K", b"O"]))
    old = draw(row(relation, st.none()))
    if kind == "D":
        return wire.delete(relation.oid, old, letter)
    new = draw(row(relation, st.sampled_from([None, ...])))
    if kind == "I":
        return wire.insert(relation.oid, new)
    return wire.update(relation.oid, new, draw(st.sampled_from([None, old])), letter)


def row(relation: Relation, absent: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    values = (texts(c.type_oid) | binaries(c.type_oid) | absent for c in relation.columns)
    return st.tuples(*values).map(list)


def compiled(pieces: list[list[bytes]]) -> tuple[dict[Relation, list[Any]], list[Any]]:
    decoder = Decoder()
    rows: dict[Relation, list[Any]] = {}
    transactions: list[Any] = []
    for piece in pieces:
        decoded = decoder.feed(*wire.framed(piece))
        transactions += [tuple(each) for each in decoded.transactions.tolist()]
        for relation, table in decoded.tables:
            table.validate(full=True)
            found = [tuple(entry.values()) for entry in table.to_pylist()]
            rows.setdefault(relation, []).extend(found)
    return rows, transactions


@EXAMPLES
@given(streams(), st.data())
def test_right_messages(messages: list[bytes], data: st.DataObject) -> None:
    """The same rows and transactions, wherever the stream is cut into buffers."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(messages)), max_size=4)))
    bounds = [0, *cuts, len(messages)]
    pieces = [messages[a:b] for a, b in pairwise(bounds)]
    expected = Reference().feed(messages)
    rows, transactions = compiled(pieces)
    assert transactions == expected.transactions
    assert rows == expected.rows


@EXAMPLES
@given(streams(), st.data())
def test_damaged_messages(messages: list[bytes], data: st.DataObject) -> None:
    """Refused by both, or the same for both; a PenstockError and nothing else."""
    for _ in range(data.draw(st.integers(1, 3))):
        number = data.draw(st.integers(0, len(messages) - 1))
        messages[number] = damaged(messages[number], data)
        if data.draw(st.booleans()):
            del messages[data.draw(st.integers(0, len(messages) - 1))]
        if not messages:
            return
    try:
        expected = Reference().feed(messages)
    except Refused:
        with pytest.raises(PenstockError):
            compiled([messages])
        return
    except NoReference:
        reject()  # the damage made a type of it that the reference does not read
    rows, transactions = compiled([messages])
    assert transactions == expected.transactions
    # As texts, so that NaN equals NaN.
    assert {each: repr(found) for each, found in rows.items()} == {
        each: repr(found) for each, found in expected.rows.items()
    }


def damaged(message: bytes, data: st.DataObject) -> bytes:
    at = data.draw(st.integers(0, len(message)))
    how = data.draw(st.sampled_from(["cut", "more", "change"]))
    if how == "cut":
        return message[:at]
    if how == "more":
        return message[:at] + data.draw(st.binary(min_size=1, max_size=4)) + message[at:]
    return message[:at] + data.draw(st.binary(min_size=1, max_size=1)) + message[at + 1 :]


@EXAMPLES
@given(st.lists(st.binary(max_size=60), max_size=10))
def test_any_bytes(messages: list[bytes]) -> None:
    """Whatever comes, the result is a table, or an error of ours."""
    try:
        compiled([messages])
    except PenstockError:
        return
    Reference().feed(messages)


@pytest.mark.parametrize("type_oid", TYPES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_text(type_oid: int, data: st.DataObject) -> None:
    """A text that is nearly a value is read as the reference reads it, or refused by both."""
    text = data.draw(texts(type_oid))
    letter = st.sampled_from('0123456789-+.: {}"\\,NtfxeBCIn٣')
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(letter) + text[at + data.draw(st.integers(0, 1)) :]
    typmod = TWO_DECIMALS if type_oid in (types.NUMERIC, 1231) else -1
    relation = Relation(1, "s", "t", "d", (Column("c", type_oid, typmod, key=False),))
    messages = wire.transaction(8, wire.describe(relation), wire.insert(1, [text]))
    try:
        rows, _ = compiled([messages])
    except PenstockError:
        with pytest.raises((Refused, ValueError, OverflowError, ArithmeticError)):
            value(text, type_oid, typmod)
        return
    found = rows[relation][0][4]["c"]
    expected = value(text, type_oid, typmod)
    assert pa.scalar(found, types.arrow_type(type_oid, typmod)) == pa.scalar(
        expected, types.arrow_type(type_oid, typmod)
    ) or repr(found) == repr(expected)


@pytest.mark.parametrize("type_oid", TYPES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_binary_value(type_oid: int, data: st.DataObject) -> None:
    """Bytes that are nearly a value are read as the reference reads them, or refused by both."""
    content = data.draw(binaries(type_oid)).content
    for _ in range(data.draw(st.integers(0, 2))):
        content = damaged(content, data)
    typmod = TWO_DECIMALS if type_oid in (types.NUMERIC, 1231) else -1
    relation = Relation(1, "s", "t", "d", (Column("c", type_oid, typmod, key=False),))
    change = wire.insert(1, [wire.Binary(content)])
    try:
        rows, _ = compiled([wire.transaction(8, wire.describe(relation), change)])
    except PenstockError:
        with pytest.raises((ValueError, OverflowError)):
            binary_value(content, type_oid, typmod)
        return
    found = rows[relation][0][4]["c"]
    assert repr(found) == repr(binary_value(content, type_oid, typmod)) or found == binary_value(
        content, type_oid, typmod
    )
