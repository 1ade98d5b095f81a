# SPDX-License-Identifier: Apache-2.0
"""What trees and relations name by OID: functions, operators, types; in a session of our own."""

from __future__ import annotations

from collections.abc import Collection

from penstock.control.connect import ControlConnection
from penstock.sql.translate.facts import Facts, Needs, Operator
from penstock.sql.translate.registry import Function

_FUNCTIONS = """
SELECT p.oid::bigint, n.nspname, p.proname, ARRAY(
    SELECT t.typname::text FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY a (type, place)
    JOIN pg_type t ON t.oid = a.type ORDER BY a.place)
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE p.oid = ANY (%s::oid[])
"""
_OPERATORS = """
SELECT o.oid::bigint, o.oprname, p.proname FROM pg_operator o JOIN pg_proc p ON p.oid = o.oprcode
WHERE o.oid = ANY (%s::oid[])
"""
_TYPE_NAMES = """
WITH RECURSIVE below AS (
    SELECT oid AS asked, oid FROM pg_type WHERE oid = ANY (%s::oid[])
    UNION ALL
    SELECT b.asked, t.typbasetype FROM below b JOIN pg_type t ON t.oid = b.oid
    WHERE t.typtype = 'd'
)
SELECT b.asked::bigint, n.nspname, t.typname FROM below b
JOIN pg_type t ON t.oid = b.oid AND t.typtype <> 'd' JOIN pg_namespace n ON n.oid = t.typnamespace
"""


def read_type_names(conn: ControlConnection, oids: Collection[int]) -> dict[int, tuple[str, str]]:
    """Schema and name of types by OID; of a domain, those of the type below all domains.

    As logicalrep_write_typ has them (proto.c).  Types that are not there are left out.
    """
    rows = conn.execute(_TYPE_NAMES, [list(oids)]).fetchall()
    return {oid: (schema, name) for oid, schema, name in rows}


def read_functions(conn: ControlConnection, wanted: Needs) -> Facts:
    """What a translation must know of them; nothing of relations."""
    functions = conn.execute(_FUNCTIONS, [list(wanted.functions)]).fetchall()
    operators = conn.execute(_OPERATORS, [list(wanted.operators)]).fetchall()
    return Facts(
        functions={
            oid: Function(schema, name, tuple(arguments))
            for oid, schema, name, arguments in functions
        },
        operators={oid: Operator(symbol, function) for oid, symbol, function in operators},
    )
