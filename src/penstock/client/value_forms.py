# SPDX-License-Identifier: Apache-2.0
"""Ask a publisher what the binary form of its types is.

In:   OIDs of types that pgoutput/forms.py does not know.
Out:  their forms, as pg_type says now, from the send function and what a type is made of:

    enum, domain           text; the form of the type below
    array                  its elements'
    range, multirange      its bounds'
    composite              its fields', in their order

A type with another send function has no form here, nor has one that contains such a type; money's
text depends on the publisher's lc_monetary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from penstock.client.connection import open_publisher
from penstock.pgoutput.binary_nested import ARRAY, MULTIRANGE, RANGE, RECORD
from penstock.pgoutput.forms import BY_SEND_FUNCTION, Form

_TYPES = """
WITH RECURSIVE wanted(oid) AS (
    SELECT pg_catalog.unnest(%s::pg_catalog.oid[])
    UNION
    SELECT part.oid FROM wanted JOIN pg_catalog.pg_type t ON t.oid = wanted.oid
    LEFT JOIN pg_catalog.pg_range r ON t.oid IN (r.rngtypid, r.rngmultitypid)
    CROSS JOIN LATERAL (
        SELECT pg_catalog.unnest(ARRAY[t.typbasetype, t.typelem, r.rngsubtype])
        UNION ALL
        SELECT a.atttypid FROM pg_catalog.pg_attribute a
        WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    ) AS part(oid)
    WHERE part.oid <> 0)
SELECT t.oid::bigint, t.typtype::text, t.typbasetype::bigint, t.typelem::bigint,
    coalesce(r.rngsubtype, 0)::bigint,
    ARRAY(SELECT a.atttypid::bigint FROM pg_catalog.pg_attribute a
          WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0
              AND NOT a.attisdropped ORDER BY a.attnum),
    e.typdelim::text, coalesce(p.proname, '')
FROM wanted JOIN pg_catalog.pg_type t ON t.oid = wanted.oid
LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem
LEFT JOIN pg_catalog.pg_range r ON t.oid IN (r.rngtypid, r.rngmultitypid)
LEFT JOIN pg_catalog.pg_proc p
    ON p.oid = t.typsend AND p.pronamespace = 'pg_catalog'::pg_catalog.regnamespace
"""


class PublishedType(NamedTuple):
    """A row of pg_type, with what belongs to it; 0 where there is none."""

    oid: int
    kind: str
    base: int
    element: int
    bound: int
    fields: list[int]
    delimiter: str | None
    send: str


def publisher_forms(
    oids: Collection[int],
    conninfo: str,
    *,
    application_name: str,
    default_user: str | None,
    password_required: bool,
) -> Mapping[int, Form]:
    """The forms of these types, of those that have one; the errors of ``open_publisher``."""
    with open_publisher(
        conninfo,
        application_name=application_name,
        default_user=default_user,
        password_required=password_required,
    ) as connection:
        rows = connection.execute(_TYPES, [list(oids)]).fetchall()
    known = {row[0]: PublishedType(*row) for row in rows}
    found = {oid: _form(oid, known) for oid in oids}
    return {oid: form for oid, form in found.items() if form is not None}


def _form(oid: int, known: Mapping[int, PublishedType]) -> Form | None:
    published = known.get(oid)
    if published is None:
        return None
    if published.kind == "d":
        return _form(published.base, known)
    if published.send in BY_SEND_FUNCTION:
        return Form(BY_SEND_FUNCTION[published.send])
    if published.send == "array_send":
        return _of(ARRAY, [published.element], known, published.delimiter or ",")
    if published.send == "range_send":
        return _of(RANGE, [published.bound], known)
    if published.send == "multirange_send":
        ranges = _of(RANGE, [published.bound], known)
        return None if ranges is None else Form(MULTIRANGE, (ranges,))
    if published.send == "record_send":
        return _of(RECORD, published.fields, known)
    return None


def _of(
    kind: int, parts: list[int], known: Mapping[int, PublishedType], delimiter: str = ","
) -> Form | None:
    items = [_form(part, known) for part in parts]
    whole = tuple(item for item in items if item is not None)
    return Form(kind, whole, tuple(parts), delimiter) if len(whole) == len(items) else None
