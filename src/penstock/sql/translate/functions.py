# SPDX-License-Identifier: Apache-2.0
"""The whole allow-list: importing this module registers it.  Casts that are functions are here."""

from __future__ import annotations

from penstock.change import types
from penstock.sql.translate import (
    numeric,
    operators,
    patterns,
    text_functions,
    time_functions,
)
from penstock.sql.translate.casts import cast
from penstock.sql.translate.registry import Call, Function, find, register, template
from penstock.sql.translate.values import Expr, refusal

__all__ = ["Call", "Function", "find"]

_MODULES = (operators, patterns, text_functions, time_functions)

_CASTS = {
    "int2": ("int4", "int8", "float4", "float8", "numeric"),
    "int4": ("int2", "int8", "float4", "float8", "numeric", "bool"),
    "int8": ("int2", "int4", "float4", "float8", "numeric", "oid"),
    "oid": ("int8",),
    "float4": ("int2", "int4", "int8", "float8", "numeric"),
    "float8": ("int2", "int4", "int8", "float4", "numeric"),
    "numeric": ("int2", "int4", "int8", "float4", "float8"),
    "text": ("bool", "bpchar", "name"),
    "varchar": ("name",),
    "bool": ("int4",),
    "date": ("timestamp", "timestamptz"),
    "timestamp": ("date", "timestamptz"),
    "timestamptz": ("date", "timestamp"),
}


def _cast(call: Call) -> Expr:
    return cast(call.session, call.args[0], call.result)


for _target, _sources in _CASTS.items():
    for _source in _sources:
        register(f"{_target}({_source})")(_cast)


@register("numeric(numeric,int4)")
def _numeric_typmod(call: Call) -> Expr:
    return numeric.with_typmod(call.args[0], _typmod(call))


@register("varchar(varchar,int4,bool)")
def _varchar(call: Call) -> Expr:
    typmod = _typmod(call)
    return Expr(f"left({call.args[0].sql}, {typmod - 4})", types.VARCHAR, typmod)


@register("bpchar(bpchar,int4,bool)")
def _bpchar(call: Call) -> Expr:
    typmod = _typmod(call)
    text = f"TRIM(TRAILING ' ' FROM {call.args[0].sql})"
    return Expr(f"rpad({text}, {typmod - 4}, ' ')", types.BPCHAR, typmod)


def _typmod(call: Call) -> int:
    value = call.args[1].value
    explicit = len(call.args) < 3 or call.args[2].value is True
    if not isinstance(value, int) or value < 4 or not explicit:
        raise refusal("an implicit change of a value's length")
    return value


template("size({0})", "cardinality(anyarray)")


@register("array_length(anyarray,int4)")
def _array_length(call: Call) -> Expr:
    if call.args[1].value != 1:
        raise refusal("array_length() of another dimension than 1")
    return Expr(f"nullif(size({call.args[0].sql}), 0)", types.INT4)
