# SPDX-License-Identifier: Apache-2.0
"""The keys that an INSERT with ON CONFLICT proposes, as far as they are constants of it.

In:   the analysed statement, and the values of its constants.
Out:  for each unique index of a target whose columns all have constants, their values.

The rows that have these keys are put in before the statement is run.  So it need not be run twice,
which would take values from its sequences twice, too.  Other keys are found when it has run once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.change.relation import LakeColumn
from penstock.change.types import arrow_type
from penstock.frontdoor.writing.write_targets import Target
from penstock.sql.nodes import Node
from penstock.sql.translate.facts import Facts
from penstock.sql.translate.plain import may_hold
from penstock.sql.translate.values import Expr

_INSERT, _VALUES_ENTRY = 3, 5
"""CmdType, RTEKind."""


def proposed_keys(
    statement: Node, targets: Sequence[Target], facts: Facts, constant: Callable[[Node], Expr]
) -> Iterator[tuple[int, pa.Table]]:
    """The OID of a table with rows of its own, and keys of one of its unique indexes.

    ``constant`` gives an expression's value, if it has one.
    """
    if statement["commandType"] != _INSERT or statement["onConflict"] is None:
        return
    root = statement["rtable"][statement["resultRelation"] - 1]["relid"]
    if root not in facts.relations:
        return
    names = {column.attnum: column.name for column in facts.relations[root].columns}
    values = {
        names[entry["resno"]]: _values(statement, entry["expr"], constant)
        for entry in statement["targetList"]
        if not entry["resjunk"] and entry["resno"] in names
    }
    for target in targets:
        if root != target.table.relid and root not in target.part_of:
            continue
        columns = {column.name: column for column in target.table.columns}
        for unique in target.uniques:
            if set(unique.columns) <= values.keys():
                keys = _keys([(columns[name], values[name]) for name in unique.columns])
                if keys is not None:
                    yield target.table.relid, keys


def _values(statement: Node, node: Node, constant: Callable[[Node], Expr]) -> list[Expr]:
    """What a column gets in each row; one value for all that are alike."""
    if node.tag == "VAR" and not node["varlevelsup"]:
        entry = statement["rtable"][node["varno"] - 1]
        if entry["rtekind"] == _VALUES_ENTRY:
            return [constant(row[node["varattno"] - 1]) for row in entry["values_lists"]]
    return [constant(node)]


def _keys(columns: Sequence[tuple[LakeColumn, list[Expr]]]) -> pa.Table | None:
    """The different keys without null; None when a value is not known."""
    count = max(len(values) for _, values in columns)
    rows: list[list[Any]] = []
    for column, values in columns:
        if not all(may_hold(column, each.oid) and each.constant for each in values):
            return None
        known = [each.value for each in values]
        rows.append(known if len(known) == count else known * count)
    distinct = {key for key in zip(*rows, strict=True) if None not in key}
    arrays = zip(*distinct, strict=True) if distinct else [()] * len(columns)
    return pa.table(
        {
            column.name: pa.array(values, arrow_type(column.type_oid, column.typmod))
            for (column, _), values in zip(columns, arrays, strict=True)
        }
    )
