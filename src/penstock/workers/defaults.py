# SPDX-License-Identifier: Apache-2.0
"""What the columns of a lake table get that the publisher does not send (slot_fill_defaults).

Which it does not send depends on the definition that a row was sent under: a batch may have rows of
several.

    default                              is computed
    -----------------------------------  ---------------------------------------------------------
    without functions                    once per batch, by the node's own session
    of functions that are not volatile   once per batch; all rows have the same, as in a statement
    an identity, any other default       for each row that is inserted
    GENERATED ALWAYS AS                  for each row that is written, over the row (generated.py)

All but the first run in the session for a user's code (row_values.py), with the rights of the role
that apply acts as; an identity's sequence belongs to its column, and nobody is asked.  Even to read
a default again as an expression may run a user's code (the check of a domain in an array), so what
it is made of is taken from its tree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.change.relation import LakeTable
from penstock.client.copy import FIRST_USER_OID
from penstock.control.connect import ControlConnection
from penstock.sql.nodes import Node, parse_nodes, walk
from penstock.sql.translate.facts import needs
from penstock.workers.row_values import Expression, RowValues, assigned
from penstock.workers.sequences import Restarted

_EXTRA = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), pg_get_expr(d.adbin, d.adrelid),
    d.adbin::text, CASE WHEN a.attidentity <> '' THEN format('nextval(%%L::regclass)',
        pg_get_serial_sequence(a.attrelid::regclass::text, a.attname)) END
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %s::oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attname <> ALL (%s)
    AND (d.oid IS NOT NULL OR a.attidentity <> '') AND a.attgenerated = ''
ORDER BY a.attnum
"""
_VALUE = "CASE WHEN {0} IS NOT NULL THEN format('%s', {0}) END"  # the output function's
_VARIES = """
SELECT EXISTS (SELECT FROM pg_proc WHERE oid = ANY (%s::oid[])
               AND (provolatile = 'v' OR oid >= 16384))  -- FirstNormalObjectId
    OR EXISTS (SELECT FROM pg_type WHERE oid = ANY (%s::oid[]) AND oid >= 16384 AND typtype <> 'e')
"""
_SESSION = "SQLVALUEFUNCTION"
"""The node of CURRENT_USER, CURRENT_TIMESTAMP and others."""


@dataclass(frozen=True)
class Defaults:
    """What columns that are not always published get.

    ``constants``: in output form; nulls are left out.  ``identities`` and ``own`` have another
    value in each row; ``own`` are computed by ``role``, the identities by nobody.
    """

    constants: dict[str, str]
    identities: tuple[Expression, ...]
    own: tuple[Expression, ...]
    role: str

    @property
    def varying(self) -> frozenset[str]:
        """The columns with a value of its own in each row."""
        return frozenset(each.column.name for each in (*self.identities, *self.own))


def column_defaults(
    conn: ControlConnection,
    values: RowValues,
    table: LakeTable,
    published: Iterable[str],
    role: str,
) -> Defaults:
    """The default of each column that is not published; ``role`` is who computes them.

    ComputedValueError when one that all rows share cannot be computed.
    """
    columns = {column.name: column for column in table.columns}
    rows = conn.execute(_EXTRA, [table.relid, list(published)]).fetchall()
    plain: list[Expression] = []
    shared: list[Expression] = []
    own: list[Expression] = []
    identities: list[Expression] = []
    for name, kind, expression, tree, identity in rows:
        column = columns[name]
        part = identities if identity is not None else plain
        if identity is None:
            nodes = parse_nodes(tree)
            if _varies(conn, nodes, column.type_oid):
                part = own
            elif needs([nodes]).functions or any(n.tag == _SESSION for n in walk([nodes])):
                part = shared
        part.append(Expression(column, assigned(identity or expression, column, kind)))
    found: list[str | None] = []
    if plain:
        query = ", ".join(_VALUE.format(f"({each.sql})") for each in plain)
        found += conn.execute(f"SELECT {query}".encode()).fetchall()[0]
    if shared:
        found += values.once(shared, role)
    constants = {
        each.column.name: value
        for each, value in zip([*plain, *shared], found, strict=True)
        if value is not None
    }
    return Defaults(constants, tuple(identities), tuple(own), role)


def compute_defaults(
    values: RowValues,
    defaults: Defaults,
    names: Collection[str],
    rows: int,
    restarted: Restarted | None = None,
) -> dict[str, pa.Array]:
    """So many values of each of these columns, which have one of their own in each row.

    ``restarted``: see RowValues.  ComputedValueError.
    """
    found: dict[str, pa.Array] = {}
    for expressions, role in ((defaults.identities, None), (defaults.own, defaults.role)):
        chosen = [each for each in expressions if each.column.name in names]
        if chosen:
            arrays = values.repeated(chosen, rows, role, restarted)
            found |= {each.column.name: one for each, one in zip(chosen, arrays, strict=True)}
    return found


def _varies(conn: ControlConnection, tree: Any, type_oid: int) -> bool:
    """Whether a default has another value in each row, or a user's code may run in it."""
    functions, types = needs([tree]).functions, {type_oid, *_types(tree)}
    if not functions and max(types) < FIRST_USER_OID:
        return False
    row = conn.execute(_VARIES.encode(), [list(functions), list(types)]).fetchone()
    return bool(row and row[0])


def _types(tree: Any) -> set[int]:
    """The types that a tree names."""
    return {
        value
        for node in walk([tree])
        if isinstance(node, Node)
        for field, value in node.fields.items()
        if field.endswith(("type", "typeid")) and isinstance(value, int)
    }
