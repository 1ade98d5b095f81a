# SPDX-License-Identifier: Apache-2.0
"""What a type's binary form is: which send function writes its values.

The types of change/types.py and some more are known here.  Of any other (user-defined types,
arrays and ranges of these) the publisher is asked, since a Relation message has only its OID.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from penstock.change import types
from penstock.pgoutput import binary_geometry as geometry
from penstock.pgoutput import binary_text as kinds
from penstock.pgoutput.binary_nested import ARRAY

FLOAT4, FLOAT8 = 300, 301
"""Kinds beside those of binary_text.py, binary_nested.py and binary_geometry.py."""


@dataclass(frozen=True)
class Form:
    """One binary form; ``items`` are the forms inside, ``oids`` the types of a record's fields."""

    kind: int
    items: tuple[Form, ...] = ()
    oids: tuple[int, ...] = ()
    delimiter: str = ","


Ask = Callable[[Collection[int]], Mapping[int, Form]]
"""Find the forms of types by their OIDs; a type whose form is not known is left out."""

_BY_OID = {
    types.BOOL: kinds.BOOLEAN,
    types.BYTEA: kinds.HEX,
    types.CHAR: kinds.CHAR,
    types.NAME: kinds.TEXT,
    types.INT8: kinds.INTEGER,
    types.INT2: kinds.INTEGER,
    types.INT4: kinds.INTEGER,
    types.TEXT: kinds.TEXT,
    types.OID: kinds.UNSIGNED,
    types.FLOAT4: FLOAT4,
    types.FLOAT8: FLOAT8,
    types.BPCHAR: kinds.TEXT,
    types.VARCHAR: kinds.TEXT,
    types.DATE: kinds.DATE,
    types.TIMESTAMP: kinds.TIMESTAMP,
    types.TIMESTAMPTZ: kinds.TIMESTAMPTZ,
    types.NUMERIC: kinds.NUMERIC,
    114: kinds.TEXT,  # json
    142: kinds.TEXT,  # xml
    650: kinds.INET,  # cidr
    869: kinds.INET,
    829: kinds.MACADDR,
    774: kinds.MACADDR,  # macaddr8
    1083: kinds.TIME,
    1266: kinds.TIMETZ,
    1186: kinds.INTERVAL,
    1560: kinds.BITS,
    1562: kinds.BITS,  # varbit
    2950: kinds.UUID,
    3802: kinds.VERSIONED_TEXT,  # jsonb
}

BY_SEND_FUNCTION = {
    "boolsend": kinds.BOOLEAN,
    "byteasend": kinds.HEX,
    "charsend": kinds.CHAR,
    "namesend": kinds.TEXT,
    "int8send": kinds.INTEGER,
    "int2send": kinds.INTEGER,
    "int4send": kinds.INTEGER,
    "textsend": kinds.TEXT,
    "oidsend": kinds.UNSIGNED,
    "xidsend": kinds.UNSIGNED,
    "xid8send": kinds.UNSIGNED,
    "cidsend": kinds.UNSIGNED,
    "float4send": FLOAT4,
    "float8send": FLOAT8,
    "bpcharsend": kinds.TEXT,
    "varcharsend": kinds.TEXT,
    "date_send": kinds.DATE,
    "timestamp_send": kinds.TIMESTAMP,
    "timestamptz_send": kinds.TIMESTAMPTZ,
    "numeric_send": kinds.NUMERIC,
    "json_send": kinds.TEXT,
    "xml_send": kinds.TEXT,
    "jsonb_send": kinds.VERSIONED_TEXT,
    "jsonpath_send": kinds.VERSIONED_TEXT,
    "inet_send": kinds.INET,
    "cidr_send": kinds.INET,
    "macaddr_send": kinds.MACADDR,
    "macaddr8_send": kinds.MACADDR,
    "time_send": kinds.TIME,
    "timetz_send": kinds.TIMETZ,
    "interval_send": kinds.INTERVAL,
    "bit_send": kinds.BITS,
    "varbit_send": kinds.BITS,
    "uuid_send": kinds.UUID,
    "pg_lsn_send": kinds.LSN,
    "tidsend": kinds.TID,
    "tsvectorsend": kinds.TSVECTOR,
    "enum_send": kinds.TEXT,
    "point_send": geometry.POINT,
    "lseg_send": geometry.LSEG,
    "box_send": geometry.BOX,
    "path_send": geometry.PATH,
    "poly_send": geometry.POLYGON,
    "line_send": geometry.LINE,
    "circle_send": geometry.CIRCLE,
}
"""PostgreSQL's send functions (schema pg_catalog) -> kind; a type of an extension may use one."""

BUILT_IN: Mapping[int, Form] = {
    **{oid: Form(kind) for oid, kind in _BY_OID.items()},
    **{
        array: Form(ARRAY, (Form(_BY_OID[element]),))
        for array, element in types.ARRAY_ELEMENTS.items()
    },
}


def ask_nobody(oids: Collection[int]) -> Mapping[int, Form]:
    """The forms of these types are not known."""
    return {}


class Forms:
    """The forms of types as one connection uses them; each type is asked for once, if at all."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._known: dict[int, Form | None] = dict(BUILT_IN)
        self._noted: set[int] = set()

    def note(self, oids: Collection[int]) -> None:
        """Types that ``get`` may be asked for: one question then serves for all of them."""
        self._noted.update(oid for oid in oids if oid not in self._known)

    def get(self, oid: int) -> Form | None:
        """A type's form; None when its values cannot be read in binary form."""
        if oid not in self._known:
            self._noted.add(oid)
            found = self._ask(self._noted)
            self._known.update({noted: found.get(noted) for noted in self._noted})
            self._noted.clear()
        return self._known[oid]
