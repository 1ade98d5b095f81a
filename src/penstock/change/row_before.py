# SPDX-License-Identifier: Apache-2.0
"""Which row an UPDATE found before it wrote this one: two columns that only its data file has.

In:   nothing; these are names and types.
Out:  columns that SQL's statements write beside a table's own, for the change feed of their commit.

    column         value
    -------------  -----------------------------------------------------------------------------
    FILE_COLUMN    the data file of the row before, as the Delta log has its path; null: none
    PLACE_COLUMN   its position in that file; -1: the row was inserted

They tell an UPDATE that changes the key, or one of a table without a key, from a DELETE and an
INSERT.  They count in the version that brought the file and no longer: compaction leaves them out.
A file without them was written by a subscription or another program, and nothing is known; their
names, as those of ``last_change.py``, are longer than any of PostgreSQL's.
"""

from __future__ import annotations

import pyarrow as pa

FILE_COLUMN = "_penstock_data_file_that_had_the_row_before_it_was_updated_in_this_commit"
PLACE_COLUMN = "_penstock_position_in_that_data_file_of_the_row_before_it_was_updated"
ROW_BEFORE = (FILE_COLUMN, PLACE_COLUMN)

ROW_BEFORE_FIELDS = (pa.field(FILE_COLUMN, pa.string()), pa.field(PLACE_COLUMN, pa.int64()))
