# SPDX-License-Identifier: Apache-2.0
"""The form in which COPY TO sends each column: text, binary as written here, or asked for.

Types that the lake keeps as text have binary forms of their own, of which only some are written
here (wire/rows_binary.py).  The others are made by their send functions, in the control database:
the texts of a batch's column are one parameter, the binary forms one value of the result.  So every
type that PostgreSQL can send in binary is sent.

    the type's send function              its binary form
    ------------------------              ---------------
    textsend, enum_send, json_send, ...   the text
    of a type in rows_binary.WRITTEN      written here
    any other                             asked for
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.frontdoor.actions import Backend
from penstock.wire.array_literal import array_literal
from penstock.wire.rows_binary import WRITTEN, binary_column
from penstock.wire.rows_text import from_parts, text_column, validity

_TEXT_SENDS = frozenset(
    f"pg_catalog.{name}"
    for name in ("textsend", "varcharsend", "bpcharsend", "namesend", "json_send", "enum_send")
)

_SENDS = """
WITH RECURSIVE base (top, oid) AS (
    SELECT oid, oid FROM pg_catalog.pg_type WHERE oid = ANY ($1::pg_catalog.oid[])
    UNION ALL
    SELECT b.top, t.typbasetype FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.oid
    WHERE t.typtype = 'd')
SELECT b.top::pg_catalog.text, pg_catalog.format_type(t.oid, -1),
    pg_catalog.format_type(t.typarray, -1), t.typdelim::pg_catalog.text,
    pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(p.proname)
FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.oid AND t.typtype <> 'd'
JOIN pg_catalog.pg_proc p ON p.oid = t.typsend
JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace"""

_ASK = """
SELECT pg_catalog.string_agg(pg_catalog.encode({send}(v::{type}), 'hex'), ',' ORDER BY n)
FROM pg_catalog.unnest($1::{texts}) WITH ORDINALITY AS u (v, n)"""
"""Texts become values by the type's input function.  So they do as items of an array; arrays
and composite types, which unnest takes apart, by a cast, where others may have one of their own."""

_CAST = frozenset({"pg_catalog.array_send", "pg_catalog.record_send"})
_COMMA = ord(",")


@dataclass(frozen=True)
class BinaryForms:
    """How binary forms are made.

    ``texts`` are types whose text it is; ``asked`` has for others the question, and what parts the
    items of its parameter.
    """

    texts: frozenset[int]
    asked: Mapping[int, tuple[str, str]]

    @classmethod
    async def find(cls, backend: Backend, type_oids: Collection[int]) -> BinaryForms:
        """For the types of a result."""
        others = sorted(set(type_oids) - WRITTEN)
        if not others:
            return cls(frozenset(), {})
        array = "{" + ",".join(map(str, others)) + "}"
        rows = await backend.query(_SENDS, [array])
        texts = frozenset(int(oid or 0) for oid, *_, send in rows if send in _TEXT_SENDS)
        asked = {int(oid or 0): _question(*more) for oid, *more in rows}
        return cls(texts, {oid: each for oid, each in asked.items() if oid not in texts})

    def written(self, column: pa.Array, type_oid: int) -> Any:
        """The binary forms of values whose type is not asked for."""
        return text_column(column) if type_oid in self.texts else binary_column(column, type_oid)

    async def ask(self, backend: Backend, column: pa.Array, type_oid: int) -> Any:
        """The binary forms of values of one of the types that are asked for."""
        sql, delimiter = self.asked[type_oid]
        valid = await asyncio.to_thread(
            lambda: array_literal(text_column(column.drop_null()), delimiter)
        )
        ((joined,),) = await backend.query(sql, [valid])
        return await asyncio.to_thread(_from_hex, joined or "", column)


def _question(
    kind: str | None, array: str | None, delimiter: str | None, send: str | None
) -> tuple[str, str]:
    is_cast = send in _CAST
    sql = _ASK.format(send=send, type=kind, texts="pg_catalog.text[]" if is_cast else array)
    return sql, "," if is_cast else delimiter or ","


def _from_hex(joined: str, column: pa.Array) -> Any:
    """The values that are not null, in hexadecimal with commas between them, as a column."""
    valid = validity(column)
    ends = np.append(
        np.flatnonzero(np.frombuffer(joined.encode(), np.uint8) == _COMMA), len(joined)
    )
    sizes = np.zeros(len(column), np.int64)
    if valid.any():
        sizes[valid] = np.diff(ends, prepend=-1) // 2
    offsets = np.zeros(len(column) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    content = np.frombuffer(bytes.fromhex(joined.replace(",", " ")), np.uint8)
    return from_parts(offsets, content, valid)
