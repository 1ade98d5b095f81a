# SPDX-License-Identifier: Apache-2.0
"""What docs/filters.md lists: operators and functions that some filter really compiles with.

Asked of PostgreSQL: its immutable built-in functions and the operators that they implement.  Of
those that the translation knows, each is tried in a filter, on columns and, where it wants them,
constants.
"""

from __future__ import annotations

from itertools import product

from penstock.publish.filter import RowFilter
from penstock.sql.translate.registry import FUNCTIONS
from tests.support.filter_oracle import FilterOracle

_SAMPLES = {
    "int2": ["i2"], "int4": ["i4", "5", "655366"], "int8": ["i8"], "float4": ["f4"],
    "float8": ["f8"], "numeric": ["n2"], "bool": ["b", "true"], "name": ["nm"], "char": ["ch"],
    "bpchar": ["c"], "text": ["t", "'hex'", "'year'", "'UTC'"], "varchar": ["v"], "oid": ["o"],
    "date": ["d"],
    "timestamp": ["ts"], "timestamptz": ["tz"], "bytea": ["y"], "uuid": ["u"], "time": ["tm"],
    "interval": ["interval '1 day'"], "anyarray": ["ia"],
}  # fmt: skip
_CASTS = frozenset(_SAMPLES)

_CATALOG = """
SELECT p.proname::text, ARRAY(
    SELECT t.typname::text FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY a (type, place)
    JOIN pg_type t ON t.oid = a.type ORDER BY a.place),
    ARRAY(SELECT DISTINCT o.oprname::text FROM pg_operator o WHERE o.oprcode = p.oid ORDER BY 1)
FROM pg_proc p
WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.provolatile = 'i' AND p.prokind = 'f'
ORDER BY 1, 2"""

Use = tuple[str, tuple[str, ...]]
"""An operator or function, and the types of its arguments."""


def supported(oracle: FilterOracle) -> tuple[list[Use], list[Use]]:
    """Operators, and functions that implement none."""
    operators, functions = [], []
    for name, arguments, symbols in oracle.conn.execute(_CATALOG).fetchall():
        known = name in FUNCTIONS or f"{name}({','.join(arguments)})" in FUNCTIONS
        if not known or not set(arguments) <= _SAMPLES.keys():
            continue
        for symbol in symbols:
            operators.append((symbol, tuple(arguments)))
        if not symbols:
            functions.append((name, tuple(arguments)))
    return _compiled(oracle, operators, True), _compiled(oracle, functions, False)


def _compiled(oracle: FilterOracle, uses: list[Use], infix: bool) -> list[Use]:
    return [use for use in uses if any(_compiles(oracle, text) for text in _texts(use, infix))]


def _texts(use: Use, infix: bool) -> list[str]:
    name, arguments = use
    texts = []
    for values in product(*(_SAMPLES[each] for each in arguments)):
        call = f'pg_catalog."{name}"({", ".join(values)})'
        if infix:
            *left, right = values
            call = f"{' '.join(left)} OPERATOR(pg_catalog.{name}) {right}"
        texts.append(f"({call}) IS NOT NULL")
    return texts


def _compiles(oracle: FilterOracle, text: str) -> bool:
    return isinstance(oracle.compile([text])[0], RowFilter)


def lists(oracle: FilterOracle) -> str:
    """The two tables of docs/filters.md."""
    operators, functions = supported(oracle)
    casts = [use for use in functions if use[0] in _CASTS]
    plain = [use for use in functions if use[0] not in _CASTS]
    return (
        "| operator | types |\n|---|---|\n"
        + _table(operators, infix=True)
        + "\n| function | arguments |\n|---|---|\n"
        + _table(plain)
        + "\n| cast to | from |\n|---|---|\n"
        + _table([(name, arguments[:1]) for name, arguments in casts])
    )


def _table(uses: list[Use], infix: bool = False) -> str:
    by_name: dict[str, list[str]] = {}
    for name, arguments in uses:
        same = infix and len(arguments) == 2 and len(set(arguments)) == 1
        text = arguments[0] if same else " ".join(arguments) or "none"
        listed = by_name.setdefault(name, [])
        if text not in listed:
            listed.append(text)
    by_types: dict[str, list[str]] = {}
    for name in sorted(by_name):
        by_types.setdefault(", ".join(sorted(by_name[name])), []).append(name)
    lines = []
    for types, names in by_types.items():
        shown = " ".join("`" + name.replace("|", "\\|") + "`" for name in names)
        lines.append(f"| {shown} | {types} |\n")
    return "".join(lines)
