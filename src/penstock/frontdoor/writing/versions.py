# SPDX-License-Identifier: Apache-2.0
"""Of which row of its relation a statement has made each row that came.

In:   the ctids of rows that the statement took out, and of rows that came; the client's session.
Out:  for each that came the number of the row that it was before the UPDATE; -1: it was inserted.

PostgreSQL links the versions of a row by their ctids, and currtid2() follows the links.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.control.guard import Guard
from penstock.frontdoor.backend import ControlBackend
from penstock.frontdoor.writing.write_targets import CTID, Target
from penstock.lake.reading import Ints
from penstock.pgoutput.data_rows import read_rows
from penstock.wire.array_literal import array_literal

PIECE_ROWS = 50_000
"""Rows that are asked for at a time."""


async def rows_before(
    backend: ControlBackend, guard: Guard, target: Target, gone: Ints, came: Ints
) -> Ints:
    """Indexes into ``gone`` for each of ``came``; neither is empty."""
    versions = [
        await _versions(backend, guard, target, gone[start : start + PIECE_ROWS])
        for start in range(0, len(gone), PIECE_ROWS)
    ]
    now = np.concatenate(versions)
    order = np.argsort(now)
    at = np.minimum(np.searchsorted(now, came, sorter=order), len(now) - 1)
    found = order[at]
    return np.where(now[found] == came, found, -1)


async def _versions(backend: ControlBackend, guard: Guard, target: Target, ctids: Ints) -> Ints:
    block, number = (pa.array(each).cast(pa.string()) for each in (ctids >> 16, ctids & 0xFFFF))
    texts = pc.binary_join_element_wise("(", block, ",", number, ")", "")
    call = guard.row_versions(target.table.relid, array_literal(texts))
    found = await backend.binary_rows(call.sql, call.parameters)
    versions: Ints = read_rows(found.blocks, [CTID], target.name).column(0).to_numpy()
    return versions
