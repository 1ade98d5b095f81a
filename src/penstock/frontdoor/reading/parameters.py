# SPDX-License-Identifier: Apache-2.0
"""Bound parameters as constants of a translation.

Those that came as text are read by PostgreSQL, in the client's own session, unless they are plain.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from penstock.change import types
from penstock.errors import FeatureNotSupportedError
from penstock.frontdoor.actions import Backend, Parameter
from penstock.sql import constants
from penstock.sql.translate.facts import FIRST_OWN_OID
from penstock.sql.translate.values import Expr, literal, null
from penstock.wire.encodings import decode

_UNKNOWN = Expr("", 0)

_ENUMS = """
SELECT oid::pg_catalog.text FROM pg_catalog.pg_type
WHERE oid = ANY ($1::pg_catalog.oid[]) AND typtype = 'e'"""

_PLAIN_INTEGER = re.compile(r"-?[0-9]{1,9}\Z")
_INTEGERS = frozenset({types.INT4, types.INT8})
_TEXTS = frozenset({types.TEXT, types.VARCHAR, types.BPCHAR, constants.UNKNOWN})

_SEND = {
    types.BOOL: ("bool", "boolsend"),
    types.INT2: ("int2", "int2send"),
    types.INT4: ("int4", "int4send"),
    types.INT8: ("int8", "int8send"),
    types.OID: ("oid", "oidsend"),
    types.FLOAT4: ("float4", "float4send"),
    types.FLOAT8: ("float8", "float8send"),
    types.NUMERIC: ("numeric", "numeric_send"),
    types.DATE: ("date", "date_send"),
    types.TIMESTAMP: ("timestamp", "timestamp_send"),
    types.TIMESTAMPTZ: ("timestamptz", "timestamptz_send"),
    types.BYTEA: ("bytea", "byteasend"),
    constants.UUID: ("uuid", "uuid_send"),
    constants.INTERVAL: ("interval", "interval_send"),
    constants.TIME: ("time", "time_send"),
    1005: ("int2[]", "array_send"),
    1007: ("int4[]", "array_send"),
    1016: ("int8[]", "array_send"),
    1009: ("text[]", "array_send"),
    1015: ("varchar[]", "array_send"),
    1022: ("float8[]", "array_send"),
    1182: ("date[]", "array_send"),
    1000: ("bool[]", "array_send"),
}
"""Type name, and the function that writes it in binary, of parameters that may come as text."""


async def parameter_values(backend: Backend, parameters: Sequence[Parameter]) -> list[Expr]:
    """The values; FeatureNotSupportedError for a type or a value that Spark does not get."""
    enums = await _enums(backend, parameters)
    asked = [each for each in parameters if each.type_oid not in enums]
    contents = iter(await _in_binary(backend, asked))
    return [
        _label(backend, each) if each.type_oid in enums else _value(backend, each, next(contents))
        for each in parameters
    ]


async def _enums(backend: Backend, parameters: Sequence[Parameter]) -> frozenset[int]:
    """Which of the parameters' types are enums."""
    own = {each.type_oid for each in parameters if each.type_oid >= FIRST_OWN_OID}
    if not own:
        return frozenset()
    rows = await backend.query(_ENUMS, ["{" + ",".join(map(str, own)) + "}"])
    return frozenset(int(oid or 0) for (oid,) in rows)


def _label(backend: Backend, parameter: Parameter) -> Expr:
    """An enum's value is its label in both formats, and PostgreSQL has read it at Bind."""
    if parameter.value is None:
        return null(parameter.type_oid)
    return literal(parameter.type_oid, decode(parameter.value, _encoding(backend)))


def _encoding(backend: Backend) -> str:
    return backend.parameters.get("client_encoding", "UTF8")


async def known_values(backend: Backend, parameters: Sequence[Parameter]) -> list[Expr]:
    """The same, but what Spark does not get has a type that no use of it expects."""
    readable = _TEXTS if backend.parameters.get("client_encoding") == "UTF8" else frozenset()
    known = [each.type_oid in _SEND or each.type_oid in readable for each in parameters]
    asked = [each for each, is_known in zip(parameters, known, strict=True) if is_known]
    contents = iter(await _in_binary(backend, asked))
    values = []
    for parameter, is_known in zip(parameters, known, strict=True):
        try:
            values.append(_value(backend, parameter, next(contents)) if is_known else _UNKNOWN)
        except FeatureNotSupportedError:
            values.append(_UNKNOWN)
    return values


def _value(backend: Backend, parameter: Parameter, content: bytes | None) -> Expr:
    oid, text = parameter.type_oid, partial(decode, client_encoding=_encoding(backend))
    if content is None:
        return null(oid)
    if parameter.format == 0 and oid in _TEXTS:
        value: Any = text(content)
    elif parameter.format == 0 and _is_plain(parameter):
        value = int(content)
    else:
        value = constants.from_binary(oid, content, text)
    if oid == constants.INTERVAL:
        return Expr("", oid, value=value)
    return literal(oid, value)


def _is_plain(parameter: Parameter) -> bool:
    """An integer whose text needs no help to be read."""
    value = parameter.value or b""
    return parameter.type_oid in _INTEGERS and bool(_PLAIN_INTEGER.match(value.decode()))


async def _in_binary(backend: Backend, parameters: Sequence[Parameter]) -> list[bytes | None]:
    """The parameters' bytes, in binary where their text is for PostgreSQL to read."""
    contents = [parameter.value for parameter in parameters]
    asked: list[int] = []
    for at, parameter in enumerate(parameters):
        given = parameter.value is not None and parameter.format == 0
        if given and parameter.type_oid not in _TEXTS and not _is_plain(parameter):
            asked.append(at)
    if not asked:
        return contents
    items = [_send(parameters[at].type_oid, n) for n, at in enumerate(asked, 1)]
    texts = [decode(contents[at] or b"", _encoding(backend)) for at in asked]
    rows = await backend.query(f"SELECT {', '.join(items)}", texts)
    for at, text in zip(asked, rows[0], strict=True):
        contents[at] = bytes.fromhex(text or "")
    return contents


def _send(type_oid: int, number: int) -> str:
    if type_oid not in _SEND:
        raise FeatureNotSupportedError(
            f"a parameter of {types.type_name(type_oid)} is not supported on lake tables"
        )
    name, send = _SEND[type_oid]
    return f"pg_catalog.encode(pg_catalog.{send}(${number}::pg_catalog.{name}), 'hex')"
