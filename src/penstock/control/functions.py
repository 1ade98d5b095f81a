# SPDX-License-Identifier: Apache-2.0
"""The functions and operators that node trees name, read in a session of the node's own."""

from __future__ import annotations

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
