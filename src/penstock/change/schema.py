# SPDX-License-Identifier: Apache-2.0
"""The one schema of a change, in both directions.

``op``          string: I insert, U update, D delete, T truncate
``commit_lsn``  int64: LSN of the transaction's commit record (pgoutput Begin's final LSN)
``seq``         int64: order inside the transaction, from 0, over all its relations
``old``         struct of the relation's columns, or null: what the replica identity carries
``new``         struct of the relation's columns, or null
``unchanged``   list<string>, or null: columns of ``new`` that were unchanged TOAST, so absent

``(commit_lsn, seq)`` is a change's key: unique, and its order is the publisher's order.
In ``old``, columns outside the identity are null; in ``new``, unchanged columns are null too, so
a null says nothing there without a look into ``unchanged``.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.change.relation import Relation
from penstock.change.types import arrow_type

INSERT, UPDATE, DELETE, TRUNCATE = "I", "U", "D", "T"

CASCADE, RESTART_IDENTITY = 1, 2
TRUNCATE_OPTIONS = {"cascade": CASCADE, "restartIdentity": RESTART_IDENTITY}
"""Options of a TRUNCATE: bits in pgoutput (proto.c: TRUNCATE_CASCADE, TRUNCATE_RESTART_SEQS), by
their names in a Delta commit's parameters."""


def row_type(relation: Relation) -> pa.StructType:
    """The struct of a relation's columns, in the publisher's order."""
    return pa.struct(
        [
            pa.field(column.name, arrow_type(column.type_oid, column.typmod))
            for column in relation.columns
        ]
    )


def change_schema(relation: Relation) -> pa.Schema:
    """The Arrow schema of a relation's changes."""
    row = row_type(relation)
    return pa.schema(
        [
            pa.field("op", pa.string(), nullable=False),
            pa.field("commit_lsn", pa.int64(), nullable=False),
            pa.field("seq", pa.int64(), nullable=False),
            pa.field("old", row),
            pa.field("new", row),
            pa.field("unchanged", pa.list_(pa.string())),
        ]
    )
