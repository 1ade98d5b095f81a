# SPDX-License-Identifier: Apache-2.0
"""Binary values read the slow and obvious way, from what the send functions are documented to do.

The oracle for the compiled readers, as reference_decoder.py is for the messages.
"""

from __future__ import annotations

import struct
import uuid
from datetime import date, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any
from zoneinfo import ZoneInfo

from penstock.change import types
from penstock.pgoutput.forms import BUILT_IN

UUID = 2950

_TEXTS = {types.NAME, types.TEXT, types.BPCHAR, types.VARCHAR, 114, 142}
"""Types whose binary form is the text itself; json and xml among them."""

_FIXED = {
    types.BOOL: "?",
    types.INT2: "h",
    types.INT4: "i",
    types.INT8: "q",
    types.OID: "I",
    types.FLOAT4: "f",
    types.FLOAT8: "d",
}
_SIGNS = {0: 1, 0x4000: -1}


class WrongBinary(ValueError):
    """The bytes are no value of the type, or one that the lake cannot hold."""


class NoReference(Exception):
    """A type whose binary form the decoder knows, and this reference does not."""


def binary_value(raw: bytes, type_oid: int, typmod: int) -> Any:
    """One value as Python's own type; WrongBinary also when nobody knows the type's form."""
    if type_oid in types.ARRAY_ELEMENTS:
        return _array(raw, types.ARRAY_ELEMENTS[type_oid], typmod)
    if type_oid in _FIXED:
        return _unpack(f">{_FIXED[type_oid]}", raw)[0]
    if type_oid == types.NUMERIC:
        return _numeric(raw, typmod)
    if type_oid == types.BYTEA:
        return raw
    if type_oid == UUID:
        _require(len(raw) == 16)
        return str(uuid.UUID(bytes=raw))
    if type_oid in (types.DATE, types.TIMESTAMP, types.TIMESTAMPTZ):
        return _moment(raw, type_oid)
    if type_oid in _TEXTS:
        return raw.decode()
    raise NoReference if type_oid in BUILT_IN else WrongBinary


def _unpack(form: str, raw: bytes) -> tuple[Any, ...]:
    _require(struct.calcsize(form) == len(raw))
    return struct.unpack(form, raw)


def _moment(raw: bytes, type_oid: int) -> Any:
    try:
        if type_oid == types.DATE:
            return date(2000, 1, 1) + timedelta(days=_unpack(">i", raw)[0])
        zone = ZoneInfo("UTC") if type_oid == types.TIMESTAMPTZ else None
        moment = datetime(2000, 1, 1, tzinfo=zone)
        return moment + timedelta(microseconds=_unpack(">q", raw)[0])
    except OverflowError as error:
        raise WrongBinary from error


def _numeric(raw: bytes, typmod: int) -> Decimal:
    _require(len(raw) >= 8)
    count, weight, sign, scale = struct.unpack_from(">HhHH", raw)
    digits = _unpack(f">{count}H", raw[8:])
    _require(sign in _SIGNS and scale <= 0x3FFF and all(digit < 10000 for digit in digits))
    held = types.numeric_type(typmod)
    with localcontext(prec=300_000, Emax=400_000, Emin=-400_000):
        number = sum(
            (Decimal(digit).scaleb(4 * (weight - place)) for place, digit in enumerate(digits)),
            Decimal(0),
        )
        scaled = number.scaleb(held.scale)
        _require(scaled == scaled.to_integral_value() and scaled < 10**held.precision)
        return _SIGNS[sign] * number.quantize(Decimal(1).scaleb(-held.scale)) + 0


def _array(raw: bytes, element: int, typmod: int) -> list[Any]:
    _require(len(raw) >= 12)
    (dimensions,) = struct.unpack_from(">I", raw)
    if dimensions == 0:
        _require(len(raw) == 12)
        return []
    _require(dimensions == 1 and len(raw) >= 20)
    count, lower = struct.unpack_from(">II", raw, 12)
    _require(lower == 1)
    items: list[Any] = []
    at = 20
    for _ in range(min(count, len(raw))):
        _require(at + 4 <= len(raw))
        (size,) = struct.unpack_from(">i", raw, at)
        at += 4
        if size == -1:
            items.append(None)
            continue
        _require(0 <= size <= len(raw) - at)
        items.append(binary_value(raw[at : at + size], element, typmod))
        at += size
    _require(at == len(raw) and len(items) == count)
    return items


def _require(right: bool) -> None:
    if not right:
        raise WrongBinary
