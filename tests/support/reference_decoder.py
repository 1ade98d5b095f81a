# SPDX-License-Identifier: Apache-2.0
"""pgoutput decoded the slow and obvious way: one message, one value at a time.

The oracle for the compiled decoder: for any messages both give the same rows, or both refuse them.
Written from PostgreSQL's protocol documentation, without a look at the compiled one.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from penstock.change import types
from penstock.change.relation import Relation
from penstock.errors import ProtocolError
from penstock.pgoutput.messages import parse_relation
from tests.support.reference_binary import binary_value


class Refused(Exception):
    """The messages are wrong, or a value cannot be held."""


@dataclass
class Reference:
    """Rows by relation, as (op, commit LSN, seq, old, new, unchanged), and transactions."""

    rows: dict[Relation, list[tuple[Any, ...]]] = field(default_factory=dict)
    transactions: list[tuple[int, ...]] = field(default_factory=list)
    known: dict[int, Relation] = field(default_factory=dict)
    begun: tuple[int, int, int] | None = None
    seq: int = 0

    def feed(self, messages: list[bytes]) -> Reference:
        for message in messages:
            try:
                self._message(message)
            except (struct.error, IndexError, ProtocolError, UnicodeDecodeError) as error:
                raise Refused from error
        return self

    def _message(self, message: bytes) -> None:
        kind = chr(message[0])
        if kind == "B":
            lsn, time, xid = struct.unpack(">QqI", message[1:])
            _require(self.begun is None and lsn < 2**63)
            self.begun, self.seq = (lsn, time, xid), 0
        elif kind == "C":
            _, lsn, end, _ = struct.unpack(">BQQq", message[1:])
            _require(self.begun is not None and self.begun[0] == lsn and lsn <= end < 2**63)
            assert self.begun is not None
            self.transactions.append((lsn, end, self.begun[1] + 946_684_800_000_000, self.begun[2]))
            self.begun = None
        elif kind == "R":
            relation = parse_relation(message)
            self.known[relation.oid] = relation
        elif kind in "IUD":
            self._row(kind, message)
        elif kind == "T":
            _require(self.begun is not None)
            count, _ = struct.unpack_from(">IB", message, 1)
            _require(len(message) == 6 + 4 * count)
            for oid in struct.unpack_from(f">{count}I", message, 6):
                self._add(oid, "T", None, None, None)
        elif kind == "Y":
            strings = message[5:].split(b"\0")
            _require(len(strings) == 3 and strings[2] == b"")
            message[5:].decode()
        else:
            _require(kind in "OM")

    def _row(self, kind: str, message: bytes) -> None:
        _require(self.begun is not None)
        (oid,) = struct.unpack_from(">I", message, 1)
        _require(oid in self.known)
        relation = self.known[oid]
        at, old, new, unchanged = 5, None, None, None
        if kind in "UD" and message[at : at + 1] in (b"K", b"O"):
            old, missing, at = _tuple(relation, message, at + 1)
            _require(not missing)
        else:
            _require(kind != "D")
        if kind in "IU":
            _require(message[at : at + 1] == b"N")
            new, missing, at = _tuple(relation, message, at + 1)
            unchanged = missing or None
        _require(at == len(message))
        self._add(oid, kind, old, new, unchanged)

    def _add(self, oid: int, kind: str, old: Any, new: Any, unchanged: Any) -> None:
        _require(oid in self.known)
        assert self.begun is not None
        row = (kind, self.begun[0], self.seq, old, new, unchanged)
        self.rows.setdefault(self.known[oid], []).append(row)
        self.seq += 1


def _tuple(relation: Relation, message: bytes, at: int) -> tuple[dict[str, Any], list[str], int]:
    (count,) = struct.unpack_from(">H", message, at)
    _require(count == len(relation.columns))
    at += 2
    values: dict[str, Any] = {}
    unchanged = []
    for column in relation.columns:
        kind, at = message[at : at + 1], at + 1
        values[column.name] = None
        if kind == b"u":
            unchanged.append(column.name)
        elif kind in (b"t", b"b"):
            (size,) = struct.unpack_from(">I", message, at)
            text = message[at + 4 : at + 4 + size]
            _require(len(text) == size)
            at += 4 + size
            try:
                if kind == b"t":
                    values[column.name] = value(text.decode(), column.type_oid, column.typmod)
                else:
                    values[column.name] = binary_value(text, column.type_oid, column.typmod)
            except (ValueError, ArithmeticError) as error:
                raise Refused from error
        else:
            _require(kind == b"n")
    return values, unchanged, at


def value(text: str, type_oid: int, typmod: int) -> Any:
    """One value as Python's own type; Refused or ValueError when it is not one."""
    if type_oid in types.ARRAY_ELEMENTS:
        element = types.ARRAY_ELEMENTS[type_oid]
        return [None if item is None else value(item, element, typmod) for item in _elements(text)]
    if type_oid in _RANGES:
        _match(r"-?[0-9]+", text)
        low, high = _RANGES[type_oid]
        _require(low <= int(text) <= high)
        return int(text)
    if type_oid == types.BOOL:
        return {"t": True, "f": False}[_match("[tf]", text)]
    if type_oid in (types.FLOAT4, types.FLOAT8):
        _match(r"NaN|-?Infinity|[-+]?[0-9]*\.?[0-9]*(e[-+]?[0-9]+)?", text)
        return pa.scalar(float(text)).cast(types.arrow_type(type_oid, typmod), safe=False).as_py()
    if type_oid == types.NUMERIC:
        return _numeric(text, types.numeric_type(typmod))
    if type_oid == types.BYTEA:
        return bytes.fromhex(_match(r"\\x(?:[0-9a-f]{2})*", text)[2:])
    if type_oid in (types.DATE, types.TIMESTAMP, types.TIMESTAMPTZ):
        return _moment(text, type_oid)
    return text


_RANGES = {
    types.INT2: (-(2**15), 2**15 - 1),
    types.INT4: (-(2**31), 2**31 - 1),
    types.INT8: (-(2**63), 2**63 - 1),
    types.OID: (0, 2**32 - 1),
}


def _numeric(text: str, held: pa.Decimal128Type) -> Decimal:
    _match(r"-?[0-9]+(\.[0-9]+)?", text)
    exact = Decimal(text)
    sign, digits, exponent = exact.as_tuple()
    assert isinstance(exponent, int)
    scaled = int("".join(map(str, digits))) * 10 ** max(0, exponent + held.scale)
    rest = 10 ** max(0, -exponent - held.scale)
    _require(scaled % rest == 0 and scaled // rest < 10**held.precision)
    return Decimal((sign, tuple(map(int, str(scaled // rest))), -held.scale))


_DAY = r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})"
_TIME = r" (?P<time>[0-9]{2}:[0-9]{2}:[0-9]{2})(\.(?P<part>[0-9]{1,6}))?"
_OFFSET = r"(?P<sign>[-+])(?P<offset>[0-9]{2}(:[0-9]{2}){0,2})"


def _moment(text: str, type_oid: int) -> date | datetime:
    pattern = _DAY if type_oid == types.DATE else _DAY + _TIME
    found = re.fullmatch(pattern + (_OFFSET if type_oid == types.TIMESTAMPTZ else ""), text, re.A)
    _require(found is not None)
    assert found is not None
    day = date.fromisoformat(found["day"])
    if type_oid == types.DATE:
        return day
    moment = datetime.fromisoformat(f"{day} {found['time']}")
    moment = moment.replace(microsecond=int((found["part"] or "0").ljust(6, "0")))
    if type_oid == types.TIMESTAMP:
        return moment
    hours, minutes, seconds = (*map(int, found["offset"].split(":")), 0, 0)[:3]
    _require(hours <= 15 and minutes < 60 and seconds < 60)
    east = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    return (moment - east if found["sign"] == "+" else moment + east).replace(
        tzinfo=ZoneInfo("UTC")
    )


def _elements(text: str) -> list[str | None]:
    _match(r"\{.*\}", text)
    if text == "{}":
        return []
    items: list[str | None] = []
    at = 1
    while True:
        found = re.compile(r'"((?:[^"\\]|\\.)*)"|([^"\\{},]+)', re.S).match(text, at, len(text) - 1)
        _require(found is not None)
        assert found is not None
        if found[2] is None:
            items.append(re.sub(r"\\(.)", r"\1", found[1], flags=re.S))
        else:
            items.append(None if found[2].lower() == "null" else found[2])
        at = found.end()
        if at == len(text) - 1:
            return items
        _require(text[at] == ",")
        at += 1


def _match(pattern: str, text: str) -> str:
    _require(re.fullmatch(pattern, text, re.A | re.S) is not None)
    return text


def _require(condition: bool) -> None:
    if not condition:
        raise Refused
