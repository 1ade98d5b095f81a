# SPDX-License-Identifier: Apache-2.0
"""Who last changed a row of the lake, and when: two columns that only its data file has.

In:   nothing; these are names and types.
Out:  columns that apply, copy and SQL write beside a table's own, and that compaction keeps.

    column          value
    --------------  ------------------------------------------------------------------------------
    ORIGIN_COLUMN   OID of the subscription that wrote the row; null: SQL did
    TIME_COLUMN     microseconds since 1970-01-01 UTC: the commit time of the remote transaction
                    that last changed the row; of a copied row, when the copy began; of one
                    that SQL wrote, when it did

They are PostgreSQL's commit timestamps (``track_commit_timestamp``), for rows.  Delta's schema does
not have them, so no reader sees them.  Their names are longer than any of PostgreSQL's (63 bytes):
no column of a table is called so.  A row in a file without them was written by another program,
and no subscription is its origin; its time is that of the commit that brought the file, if that one
brought nothing but changed rows (lake/births.py), else it is not known.
"""

from __future__ import annotations

import pyarrow as pa

ORIGIN_COLUMN = "_penstock_origin_subscription_that_last_changed_the_row_in_this_file"
TIME_COLUMN = "_penstock_commit_time_of_the_transaction_that_last_changed_the_row_in_this_file"
LAST_CHANGE = (ORIGIN_COLUMN, TIME_COLUMN)

LAST_CHANGE_FIELDS = tuple(pa.field(name, pa.int64()) for name in LAST_CHANGE)


def with_last_change(schema: pa.Schema) -> pa.Schema:
    """A schema with the two columns at its end."""
    return pa.schema([*schema, *LAST_CHANGE_FIELDS])
