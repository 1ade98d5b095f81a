# SPDX-License-Identifier: Apache-2.0
"""Lists of constants in a statement's FROM: VALUES, and unnest() of arrays.

In:   the analysed statement, and the scans in its plan.
Out:  for a scan of such a list: the list as an item of FROM, and the constants in its columns.

A scan is told from others of its kind by being the only one, in the plan and in the statement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.frontdoor.actions import Backend
from penstock.frontdoor.writing.scans import Scan
from penstock.names import quote_pg
from penstock.sql.nodes import Node, walk
from penstock.sql.translate.values import NOT_CONSTANT

_FUNCTION_ENTRY, _VALUES_ENTRY = 3, 5
"""RTEKind."""

_NAMES_OF_TYPES = """
SELECT pg_catalog.format_type(t.type, NULL)
FROM pg_catalog.unnest($1::pg_catalog.oid[]) WITH ORDINALITY AS t (type, place) ORDER BY place"""
_UNNEST = 2331
"""pg_proc's unnest(anyarray)."""


@dataclass(frozen=True)
class Listed:
    """One list; ``columns`` are its columns' expressions: scalars, or an array in ``arrays``."""

    item: str
    columns: Sequence[Sequence[Node]]
    arrays: bool

    def column(self, number: int, constant: Callable[[Node], Any]) -> list[Any] | None:
        """The constants in a column; None when one of them is not constant."""
        values = [constant(node) for node in self.columns[number - 1]]
        if any(each is NOT_CONSTANT for each in values):
            return None
        return (values[0] or []) if self.arrays else values


async def listed(backend: Backend, statement: Node, scans: Sequence[Scan]) -> dict[str, Listed]:
    """The lists of a statement, by the alias of their scan."""
    found: dict[str, Listed] = {}
    functions = _entries(statement, _FUNCTION_ENTRY)
    calls = [scan for scan in scans if not scan.name and scan.functions]
    if len(functions) == len(calls) == 1:
        unnested = _unnested(functions[0], calls[0])
        found |= {} if unnested is None else {calls[0].alias: unnested}
    values = _entries(statement, _VALUES_ENTRY)
    rows = [scan for scan in scans if not scan.name and not scan.functions]
    # A function that is written in place of its call may have a VALUES list.
    if len(values) == len(rows) == 1 and len(functions) == len(found):
        found[rows[0].alias] = await _values(backend, values[0], rows[0].alias)
    return found


def _entries(statement: Node, kind: int) -> list[Node]:
    entries = (node for node in walk(statement) if node.tag == "RANGETBLENTRY")
    return [entry for entry in entries if entry["rtekind"] == kind]


def _unnested(entry: Node, scan: Scan) -> Listed | None:
    """A function scan of nothing but unnest(), each of which makes one column."""
    calls = [function["funcexpr"] for function in entry["functions"]]
    if any(call.tag != "FUNCEXPR" or call["funcid"] != _UNNEST for call in calls):
        return None
    names = ", ".join(map(quote_pg, entry["eref"]["colnames"][: len(calls)]))
    item = f"ROWS FROM ({scan.functions}) AS {quote_pg(scan.alias)} ({names})"
    return Listed(item, [[call["args"][0]] for call in calls], arrays=True)


async def _values(backend: Backend, entry: Node, alias: str) -> Listed:
    kinds = "{" + ",".join(map(str, entry["coltypes"])) + "}"
    rows = await backend.query(_NAMES_OF_TYPES, [kinds])
    nulls = ", ".join(f"NULL::{name}" for (name,) in rows)
    names = ", ".join(f"column{n}" for n in range(1, len(rows) + 1))
    item = f"(VALUES ({nulls})) AS {quote_pg(alias)} ({names})"
    return Listed(item, list(zip(*entry["values_lists"], strict=True)), arrays=False)
