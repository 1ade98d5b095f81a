# SPDX-License-Identifier: Apache-2.0
"""Partition constraints of lake tables, decided for rows that are in no table yet.

The control database analyses the constraint as the condition of a query on the partition, so
names, types and operators are resolved there.  Arrow decides what it decides exactly
(sql/arrow_filter.py).  Everything else the control database decides itself, row by row: HASH
(satisfies_hash_partition), texts that are compared by a collation, types that users made.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from penstock.apply.batch import Takes
from penstock.change import types
from penstock.change.relation import LakeColumn, LakeTable
from penstock.control.connect import ControlConnection
from penstock.control.functions import read_functions
from penstock.errors import FeatureNotSupportedError
from penstock.names import quote_pg_qualified
from penstock.sql.arrow_filter import arrow_filter
from penstock.sql.nodes import Node, parse_nodes
from penstock.sql.translate.facts import needs
from penstock.workers.row_values import Expression, RowValues, read_by

HASH = "satisfies_hash_partition"

_PARTITIONED_BY = """
SELECT DISTINCT a.attname::text FROM pg_partition_tree(%s::oid) t
JOIN pg_partitioned_table p ON p.partrelid = t.relid
JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = ANY (p.partattrs::int2[])"""

_TAKEN = LakeColumn(0, "taken", types.BOOL, -1, False)


def publisher_knows_leaves(
    conn: ControlConnection,
    table: LakeTable,
    constraints: Iterable[str | None],
    published: Iterable[str],
) -> bool:
    """Whether the publisher can say which partition a copied row is in.

    It cannot for HASH, whose constraint names a table by its OID, and when it does not publish a
    column that the table is partitioned by.
    """
    if any(constraint is not None and HASH in constraint for constraint in constraints):
        return False
    known = set(published)
    if known.issuperset(column.name for column in table.columns):
        return True
    columns = {name for (name,) in conn.execute(_PARTITIONED_BY, [table.relid]).fetchall()}
    return columns <= known


def takes(
    conn: ControlConnection, values: RowValues, leaf: LakeTable, constraint: str | None, role: str
) -> Takes:
    """Which rows, in the leaf's columns, belong into it; null counts as false.

    ``constraint`` is PostgreSQL's (pg_get_partition_constraintdef), None when all do; ``role``
    computes it.  What is returned raises ComputedValueError, with PostgreSQL's error.
    """
    if constraint is None:
        return lambda rows: pa.repeat(True, rows.num_rows)
    query = f"SELECT 1 FROM ONLY {quote_pg_qualified(leaf.schema, leaf.name)} WHERE {constraint}"
    row = conn.execute("SELECT penstock.analysed(%s, '{}')", [query]).fetchone()
    trees = [each for part in parse_nodes(row[0] if row else "()") for each in part]
    if len(trees) != 1 or not isinstance(trees[0], Node):
        raise FeatureNotSupportedError(f"cannot analyse the partition constraint {constraint}")
    condition = trees[0]["jointree"]["quals"]
    columns = read_by(conn, leaf, [condition])
    kinds = {
        column.attnum: (column.name, types.arrow_type(column.type_oid, column.typmod))
        for column, _ in columns
    }
    decide = arrow_filter(condition, kinds, read_functions(conn, needs(trees)))
    if decide is None:
        expressions = [Expression(_TAKEN, constraint)]
        return lambda rows: values.over(expressions, leaf.relid, columns, rows, role)[0]
    names = [name for name, _ in kinds.values()]
    return lambda rows: pa.chunked_array(
        [decide(batch) for batch in rows.select(names).to_batches()], pa.bool_()
    )
