# SPDX-License-Identifier: Apache-2.0
"""Partition constraints of lake tables as Spark SQL predicates.

The control database analyses the constraint as the condition of a query on the partition, so
names, types and operators are resolved there; the tree is translated like any query.  HASH
partitions call satisfies_hash_partition, which has no translation: applying changes through their
root is refused.
"""

from __future__ import annotations

from penstock.change.relation import LakeTable
from penstock.control.connect import ControlConnection
from penstock.control.functions import read_functions
from penstock.errors import FeatureNotSupportedError
from penstock.names import quote_pg_qualified
from penstock.sql.nodes import Node, parse_nodes
from penstock.sql.translate.condition import translate_condition
from penstock.sql.translate.facts import needs


def leaf_predicate(conn: ControlConnection, leaf: LakeTable, constraint: str) -> str:
    """The predicate over the leaf's columns that its rows satisfy.

    ``constraint`` is PostgreSQL's (pg_get_partition_constraintdef).
    """
    query = f"SELECT 1 FROM ONLY {quote_pg_qualified(leaf.schema, leaf.name)} WHERE {constraint}"
    row = conn.execute("SELECT penstock.analysed(%s, '{}')", [query]).fetchone()
    trees = [each for part in parse_nodes(row[0] if row else "()") for each in part]
    if len(trees) != 1 or not isinstance(trees[0], Node):
        raise FeatureNotSupportedError(f"cannot translate the partition constraint {constraint}")
    try:
        return translate_condition(trees[0], leaf.columns, read_functions(conn, needs(trees)))
    except FeatureNotSupportedError as error:
        raise FeatureNotSupportedError(
            f'cannot apply changes to partition "{leaf.schema}.{leaf.name}": {error.message}',
            detail=f"Its partition constraint is {constraint}.",
            hint="Publish with publish_via_partition_root = false, or partition by range or list.",
        ) from error
