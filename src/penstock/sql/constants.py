# SPDX-License-Identifier: Apache-2.0
"""Constants of an analysed query, and bound parameters, as Python values.

A constant comes as it lies in the server's memory (``Datum``), a parameter in its type's binary
format.  Both give the same values:

    PostgreSQL                     Python
    ----------                     ------
    bool                           bool
    int2, int4, int8, oid          int
    float4, float8                 float
    numeric                        Decimal, with the display scale as its exponent
    text, varchar, bpchar, name    str
    "char", json, uuid             str
    bytea                          bytes
    date                           int, days since 1970-01-01
    timestamp, timestamptz         int, microseconds since 1970-01-01 (00:00 UTC)
    time                           int, microseconds since midnight
    interval                       Interval
    one-dimensional array          list (None for NULL)

FeatureNotSupportedError for any other type and for what the lake cannot hold (infinity, NaN).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

from penstock.change import types
from penstock.errors import FeatureNotSupportedError
from penstock.sql.nodes import Datum

JSON, TIME, INTERVAL, UUID, UNKNOWN = 114, 1083, 1186, 2950, 705

ENUM_EQUALS = 3516
"""The operator = of all enums, whose text tells them apart, but not their order."""

_EPOCH_DAYS = 10_957
_EPOCH_MICROS = _EPOCH_DAYS * 86_400_000_000
_TEXTS = frozenset({types.TEXT, types.VARCHAR, types.BPCHAR, JSON})


class Interval(NamedTuple):
    """An interval's three fields, as PostgreSQL keeps them."""

    micros: int
    days: int
    months: int


def from_datum(type_oid: int, datum: Datum) -> Any:
    """The value of a constant."""
    if type_oid in _BY_VALUE:
        layout, convert = _BY_VALUE[type_oid]
        return convert(struct.unpack_from("<" + layout, datum.content)[0])
    if type_oid in (types.NAME, UNKNOWN):  # a cstring, as the name is in effect
        return datum.content.rstrip(b"\0").decode()
    if type_oid == UUID:
        return str(uuid.UUID(bytes=datum.content))
    if type_oid == INTERVAL:
        return Interval(*struct.unpack("<qii", datum.content))
    content = _varlena(datum.content)
    if type_oid in _TEXTS:
        return content.decode()
    if type_oid == types.BYTEA:
        return content
    if type_oid == types.NUMERIC:
        return _numeric_datum(content)
    if type_oid in types.ARRAY_ELEMENTS:
        return _array_datum(content, types.ARRAY_ELEMENTS[type_oid])
    raise _unsupported(type_oid)


def from_binary(type_oid: int, content: bytes, text: Callable[[bytes], str] = bytes.decode) -> Any:
    """The value of a bound parameter, given in its type's binary format.

    ``text`` decodes what is text in it, which is in the client's encoding.
    """
    if type_oid in _BY_VALUE:
        layout, convert = _BY_VALUE[type_oid]
        return convert(struct.unpack(">" + layout, content)[0])
    if type_oid in _TEXTS or type_oid in (types.NAME, UNKNOWN):
        return text(content)
    if type_oid == types.BYTEA:
        return content
    if type_oid == UUID:
        return str(uuid.UUID(bytes=content))
    if type_oid == INTERVAL:
        return Interval(*struct.unpack(">qii", content))
    if type_oid == types.NUMERIC:
        count, weight, sign, scale = struct.unpack_from(">hhHH", content)
        return _numeric(struct.unpack_from(f">{count}h", content, 8), weight, sign, scale)
    if type_oid in types.ARRAY_ELEMENTS:
        return _array_binary(content, types.ARRAY_ELEMENTS[type_oid], text)
    raise _unsupported(type_oid)


def _finite_days(days: int) -> int:
    if days in (-(2**31), 2**31 - 1):
        raise FeatureNotSupportedError("infinite dates are not supported by the lake")
    return days + _EPOCH_DAYS


def _finite_micros(micros: int) -> int:
    if micros in (-(2**63), 2**63 - 1):
        raise FeatureNotSupportedError("infinite timestamps are not supported by the lake")
    if micros + _EPOCH_MICROS >= 2**63:
        raise FeatureNotSupportedError("timestamps after year 294246 are not supported by the lake")
    return micros + _EPOCH_MICROS


_BY_VALUE: dict[int, tuple[str, Callable[[Any], Any]]] = {
    types.BOOL: ("?", bool),
    types.INT2: ("h", int),
    types.INT4: ("i", int),
    types.INT8: ("q", int),
    types.OID: ("I", int),
    types.FLOAT4: ("f", float),
    types.FLOAT8: ("d", float),
    types.DATE: ("i", _finite_days),
    types.TIMESTAMP: ("q", _finite_micros),
    types.TIMESTAMPTZ: ("q", _finite_micros),
    TIME: ("q", int),
    types.CHAR: ("c", lambda byte: byte.decode("latin-1").rstrip("\0")),
}


def _varlena(content: bytes) -> bytes:
    """Without the length: one byte with its lowest bit set, or four."""
    return content[1:] if content[0] & 1 else content[4:]


def _numeric_datum(content: bytes) -> Decimal:
    (header,) = struct.unpack_from("<H", content)
    if header & 0xC000 == 0xC000:
        raise _not_a_number()
    if header & 0x8000:
        sign = 0x4000 if header & 0x2000 else 0
        scale = (header & 0x1F80) >> 7
        weight = (header & 0x3F) - (0x40 if header & 0x40 else 0)
        start = 2
    else:
        sign, scale = header & 0xC000, header & 0x3FFF
        (weight,) = struct.unpack_from("<h", content, 2)
        start = 4
    digits = struct.unpack_from(f"<{(len(content) - start) // 2}h", content, start)
    return _numeric(digits, weight, sign, scale)


def _numeric(digits: tuple[int, ...], weight: int, sign: int, scale: int) -> Decimal:
    if sign & 0xC000 == 0xC000:
        raise _not_a_number()
    whole = 0
    for digit in digits:
        whole = whole * 10_000 + digit
    exponent = (weight - len(digits) + 1) * 4
    shift = exponent + scale
    whole = whole * 10**shift if shift >= 0 else whole // 10**-shift
    text = ("-" if sign == 0x4000 else "") + str(whole)
    return Decimal(f"{text}E-{scale}")


def _not_a_number() -> FeatureNotSupportedError:
    return FeatureNotSupportedError("numeric NaN and infinity are not supported by the lake")


def _array_datum(content: bytes, element: int) -> list[Any]:
    # ArrayType behind its length: ndim, dataoffset (0: no nulls), elemtype, dims, lower bounds.
    dimensions, offset, _ = struct.unpack_from("<iiI", content)
    if dimensions == 0:
        return []
    count, lower = struct.unpack_from("<ii", content, 12)
    _one_dimension(dimensions, lower)
    base = 4  # alignment counts from the start of the datum, which has a length of four bytes
    at = (offset - base) if offset else _aligned(20 + base, 8) - base
    bitmap = content[20 : 20 + (count + 7) // 8] if offset else None
    values: list[Any] = []
    for i in range(count):
        if bitmap is not None and not bitmap[i // 8] >> i % 8 & 1:
            values.append(None)
            continue
        size, align = _ELEMENT_SIZES.get(element, (-1, 4))
        if size < 0:
            short = content[at] & 1
            at = at if short else _aligned(at + base, align) - base
            size = content[at] >> 1 if short else struct.unpack_from("<I", content, at)[0] >> 2
        else:
            at = _aligned(at + base, align) - base
        values.append(from_datum(element, Datum(size, content[at : at + size])))
        at += size
    return values


_ELEMENT_SIZES = {
    types.BOOL: (1, 1),
    types.INT2: (2, 2),
    types.INT4: (4, 4),
    types.OID: (4, 4),
    types.FLOAT4: (4, 4),
    types.DATE: (4, 4),
    types.INT8: (8, 8),
    types.FLOAT8: (8, 8),
    types.TIMESTAMP: (8, 8),
    types.TIMESTAMPTZ: (8, 8),
    types.NAME: (64, 1),
    types.CHAR: (1, 1),
}
"""Size and alignment of elements with a fixed size."""


def _aligned(offset: int, align: int) -> int:
    return (offset + align - 1) // align * align


def _array_binary(content: bytes, element: int, text: Callable[[bytes], str]) -> list[Any]:
    dimensions, _, _ = struct.unpack_from(">iiI", content)
    if dimensions == 0:
        return []
    count, lower = struct.unpack_from(">ii", content, 12)
    _one_dimension(dimensions, lower)
    at, values = 20, []
    for _ in range(count):
        (size,) = struct.unpack_from(">i", content, at)
        at += 4
        values.append(None if size < 0 else from_binary(element, content[at : at + size], text))
        at += max(size, 0)
    return values


def _one_dimension(dimensions: int, lower: int) -> None:
    if dimensions != 1 or lower != 1:
        raise FeatureNotSupportedError(
            "arrays of several dimensions or with another lower bound than 1 are not supported"
        )


def _unsupported(type_oid: int) -> FeatureNotSupportedError:
    return FeatureNotSupportedError(
        f"a constant of {types.type_name(type_oid)} is not supported in queries on lake tables"
    )
