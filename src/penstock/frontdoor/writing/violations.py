# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL's errors for constraints that the node has looked at itself, with all their fields.

A key is shown to those who may read it, in the session's own forms, as PostgreSQL does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from penstock.change.relation import LakeColumn
from penstock.frontdoor.actions import Backend
from penstock.frontdoor.writing.write_targets import Target
from penstock.lake.references import ForeignKey, Missing
from penstock.lake.writes import DuplicateKeyError
from penstock.wire.responses import ServerError
from penstock.wire.rows_text import shown_numerics, text_column

RESTRICT_IS_ITS_OWN = 180000
"""The version from which on RESTRICT has another SQLSTATE and message than NO ACTION."""

_MAY_READ = """
SELECT pg_catalog.bool_and(pg_catalog.has_column_privilege($1::oid, name, 'SELECT')),
    pg_catalog.string_agg(pg_catalog.quote_ident(name), ', ' ORDER BY place)
FROM pg_catalog.json_array_elements_text($2::json) WITH ORDINALITY AS c (name, place)"""
_SERVER = "SELECT pg_catalog.current_setting('server_version_num')"


async def unique_violation(
    backend: Backend, target: Target, found: DuplicateKeyError
) -> ServerError:
    """_bt_check_unique(), nbtinsert.c."""
    names, table = found.key.column_names, target.table
    fields = _error("23505", f'duplicate key value violates unique constraint "{found.index.name}"')
    may_read, columns = await _may_read(backend, table.relid, names)
    if may_read:
        shown = _shown(backend, target.columns(names), found.key)
        fields["D"] = f"Key ({columns})=({shown}) already exists."
    return ServerError(fields | {"s": table.schema, "t": table.name, "n": found.index.name})


async def missing_violation(
    backend: Backend, key: ForeignKey, child: Target, found: Missing
) -> ServerError:
    """RI_FKey_check(), ri_triggers.c: a row of ``child`` refers to none."""
    table = child.table
    fields = _error(
        "23503",
        f'insert or update on table "{table.name}" violates foreign key constraint "{key.name}"',
    )
    if found.mixed:
        fields["D"] = "MATCH FULL does not allow mixing of null and nonnull key values."
    else:
        columns = child.columns(key.child.columns)
        shown = await _key(backend, table.relid, columns, found.key)
        fields["D"] = f'Key {shown}is not present in table "{key.parent.name}".'
    return ServerError(fields | {"s": table.schema, "t": table.name, "n": key.name})


async def referred_violation(
    backend: Backend,
    key: ForeignKey,
    columns: Sequence[LakeColumn],
    lost: pa.Table,
    restricts: bool,
) -> ServerError:
    """ri_ReportViolation(): rows refer to a key that is gone, or that RESTRICT keeps.

    ``columns`` are those of the key.
    """
    child, parent = key.child, key.parent
    own = False
    if restricts:
        ((version,),) = await backend.query(_SERVER)
        own = int(version or 0) >= RESTRICT_IS_ITS_OWN
    violates = "violates RESTRICT setting of" if own else "violates"
    fields = _error(
        "23001" if own else "23503",
        f'update or delete on table "{parent.name}" {violates} foreign key constraint'
        f' "{key.name}" on table "{child.name}"',
    )
    shown = await _key(backend, parent.relid, columns, lost)
    still = "" if own else "still "
    fields["D"] = f'Key {shown}is {still}referenced from table "{child.name}".'
    return ServerError(fields | {"s": child.schema, "t": child.name, "n": key.name})


def _error(state: str, message: str) -> dict[str, str]:
    return {"S": "ERROR", "V": "ERROR", "C": state, "M": message}


async def _key(backend: Backend, relid: int, columns: Sequence[LakeColumn], key: pa.Table) -> str:
    """``(a, b)=(1, x) ``; nothing for who may not read it."""
    names = [column.name for column in columns]
    may_read, _ = await _may_read(backend, relid, names)
    if not may_read:
        return ""
    return f"({', '.join(names)})=({_shown(backend, columns, key)}) "


async def _may_read(backend: Backend, relid: int, names: Sequence[str]) -> tuple[bool, str]:
    ((may_read, columns),) = await backend.query(_MAY_READ, [str(relid), json.dumps(list(names))])
    return may_read == "t", columns or ""


def _shown(backend: Backend, columns: Sequence[LakeColumn], key: pa.Table) -> str:
    """The values of the only row."""
    zone = backend.parameters.get("TimeZone", "UTC")
    values = []
    for column, array in zip(columns, key.columns, strict=True):
        shown = shown_numerics(array.combine_chunks(), column.type_oid, column.typmod)
        values.append(text_column(shown, zone)[0].as_py())
    return ", ".join("null" if value is None else value.decode() for value in values)
