# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL's errors for constraints that the node has looked at itself, with all their fields.

A key is shown to those who may read it, in the session's own forms, as PostgreSQL does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from penstock.frontdoor.actions import Backend
from penstock.frontdoor.writing.write_targets import Target
from penstock.lake.references import ForeignKey, Missing, Relation
from penstock.lake.writes import DuplicateKeyError
from penstock.wire.responses import ServerError
from penstock.wire.rows_text import text_column

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
        fields["D"] = f"Key ({columns})=({_shown(backend, found.key)}) already exists."
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
        shown = await _key(backend, table.relid, key.child, found.key)
        fields["D"] = f'Key {shown}is not present in table "{key.parent.name}".'
    return ServerError(fields | {"s": table.schema, "t": table.name, "n": key.name})


async def referred_violation(
    backend: Backend, key: ForeignKey, lost: pa.Table, restricts: bool
) -> ServerError:
    """ri_ReportViolation(): rows refer to a key that is gone, or that RESTRICT keeps."""
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
    shown = await _key(backend, parent.relid, parent, lost)
    still = "" if own else "still "
    fields["D"] = f'Key {shown}is {still}referenced from table "{child.name}".'
    return ServerError(fields | {"s": child.schema, "t": child.name, "n": key.name})


def _error(state: str, message: str) -> dict[str, str]:
    return {"S": "ERROR", "V": "ERROR", "C": state, "M": message}


async def _key(backend: Backend, relid: int, side: Relation, key: pa.Table) -> str:
    """``(a, b)=(1, x) ``; nothing for who may not read it."""
    may_read, _ = await _may_read(backend, relid, side.columns)
    if not may_read:
        return ""
    return f"({', '.join(side.columns)})=({_shown(backend, key)}) "


async def _may_read(backend: Backend, relid: int, names: Sequence[str]) -> tuple[bool, str]:
    ((may_read, columns),) = await backend.query(_MAY_READ, [str(relid), json.dumps(list(names))])
    return may_read == "t", columns or ""


def _shown(backend: Backend, key: pa.Table) -> str:
    """The values of the only row."""
    zone = backend.parameters.get("TimeZone", "UTC")
    texts = [text_column(column.combine_chunks(), zone) for column in key.columns]
    values = [text.to_pylist()[0] for text in texts]
    return ", ".join("null" if value is None else value.decode() for value in values)
