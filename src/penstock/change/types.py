# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL's types as Arrow types: one table, used by copy, stream, queries and the lake.

int2/4/8, float4/8, bool, date, bytea, text-like and timestamp types have an exact counterpart;
numeric(p,s) up to 38 digits is a decimal, bare numeric is decimal(38,18); one-dimensional arrays
of these are lists.  Everything else is PostgreSQL's own text form in a string.  The PostgreSQL
type stays in the control database, so nothing is lost by that.

OIDs are those of pg_type.dat; they are the same in every version.
"""

from __future__ import annotations

import pyarrow as pa
from psycopg import postgres

from penstock.errors import FeatureNotSupportedError

BOOL, BYTEA, CHAR, NAME, INT8, INT2, INT4, TEXT = 16, 17, 18, 19, 20, 21, 23, 25
OID, FLOAT4, FLOAT8, BPCHAR, VARCHAR, DATE = 26, 700, 701, 1042, 1043, 1082
TIMESTAMP, TIMESTAMPTZ, NUMERIC = 1114, 1184, 1700

MAX_DECIMAL_DIGITS = 38
BARE_NUMERIC = pa.decimal128(38, 18)

_SCALARS: dict[int, pa.DataType] = {
    BOOL: pa.bool_(),
    BYTEA: pa.binary(),
    INT2: pa.int16(),
    INT4: pa.int32(),
    INT8: pa.int64(),
    OID: pa.int64(),
    FLOAT4: pa.float32(),
    FLOAT8: pa.float64(),
    DATE: pa.date32(),
    TIMESTAMP: pa.timestamp("us"),
    TIMESTAMPTZ: pa.timestamp("us", "UTC"),
}

ARRAY_ELEMENTS: dict[int, int] = {
    1000: BOOL,
    1001: BYTEA,
    1005: INT2,
    1007: INT4,
    1016: INT8,
    1028: OID,
    1021: FLOAT4,
    1022: FLOAT8,
    1182: DATE,
    1115: TIMESTAMP,
    1185: TIMESTAMPTZ,
    1231: NUMERIC,
    1009: TEXT,
    1014: BPCHAR,
    1015: VARCHAR,
    1002: CHAR,
    1003: NAME,
}
"""Array type -> element type, for the arrays that become lists; other arrays stay text."""


KEPT_AS_TEXT: dict[str, int] = {
    "bit": 1560,
    "box": 603,
    "cidr": 650,
    "circle": 718,
    "daterange": 3912,
    "inet": 869,
    "int4range": 3904,
    "int8range": 3926,
    "interval": 1186,
    "json": 114,
    "jsonb": 3802,
    "jsonpath": 4072,
    "line": 628,
    "lseg": 601,
    "macaddr": 829,
    "macaddr8": 774,
    "money": 790,
    "numrange": 3906,
    "path": 602,
    "pg_lsn": 3220,
    "point": 600,
    "polygon": 604,
    "time": 1083,
    "timetz": 1266,
    "tsquery": 3615,
    "tsrange": 3908,
    "tstzrange": 3910,
    "tsvector": 3614,
    "uuid": 2950,
    "varbit": 1562,
    "xml": 142,
}
"""PostgreSQL's types that are kept in their text form and are no strings, by name."""


def arrow_type(type_oid: int, typmod: int) -> pa.DataType:
    """The Arrow type that holds values of a PostgreSQL type.

    FeatureNotSupportedError (0A000) for a numeric with more digits than a decimal can have.
    """
    element = ARRAY_ELEMENTS.get(type_oid)
    if element is not None:
        return pa.list_(arrow_type(element, typmod))
    if type_oid == NUMERIC:
        return numeric_type(typmod)
    return _SCALARS.get(type_oid, pa.string())


def numeric_type(typmod: int) -> pa.Decimal128Type:
    """The decimal for numeric's typmod (numeric.c: precision << 16 | 11-bit signed scale, + 4)."""
    if typmod < 4:
        return BARE_NUMERIC
    precision = (typmod - 4) >> 16
    scale = ((typmod - 4) & 0x7FF ^ 1024) - 1024
    digits = max(precision, scale) if scale >= 0 else precision - scale
    if digits > MAX_DECIMAL_DIGITS:
        raise FeatureNotSupportedError(
            f"type numeric({precision},{scale}) is not supported by the lake",
            detail=f"The lake's decimals have at most {MAX_DECIMAL_DIGITS} digits.",
            hint="Use a numeric with fewer digits, or text, which a subscription makes of it with"
            " numeric_as = text.",
        )
    return pa.decimal128(digits, max(scale, 0))


def type_name(oid: int) -> str:
    """A type in an error's text, as format_type() has it; of other people's the OID is known."""
    known = postgres.types.get(oid)
    if known is None:
        return f"the type with OID {oid}"
    return f"type {known.regtype}{'[]' if oid == known.array_oid else ''}"
