# SPDX-License-Identifier: Apache-2.0
"""Rows as numbers: equal rows get the same code, from 0 up, nulls being equal to each other.

Equality is PostgreSQL's for the types that the lake holds, and so Spark's null-safe one: NaN
equals NaN and -0.0 equals 0.0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def row_codes(columns: Sequence[pa.ChunkedArray]) -> NDArray[np.int64]:
    """One code for each row of these columns, which have the same length."""
    codes = _column_codes(columns[0])
    for column in columns[1:]:
        more = _column_codes(column)
        both = codes * (int(more.max(initial=0)) + 1) + more
        codes = _dense(pa.array(both))
    return codes


def _column_codes(column: pa.ChunkedArray) -> NDArray[np.int64]:
    values = column.combine_chunks()
    if pa.types.is_floating(values.type):
        values = pc.add(values, 0.0)  # -0.0 becomes 0.0
        values = pc.if_else(pc.is_nan(values), float("nan"), values)
    elif pa.types.is_list(values.type):
        values = _list_texts(values)
    return _dense(values)


def _dense(values: pa.Array) -> NDArray[np.int64]:
    codes = pc.dictionary_encode(values, null_encoding="encode").indices
    wide: NDArray[np.int64] = codes.to_numpy(zero_copy_only=False).astype(np.int64)
    return wide


def _list_texts(lists: pa.ListArray) -> pa.Array:
    """Lists as texts that are equal when the lists are: the size, and the codes of the elements."""
    elements = pa.chunked_array([lists.flatten()])
    values = pc.cast(pa.array(_column_codes(elements)), pa.string())
    offsets = pc.cumulative_sum(pc.fill_null(pc.list_value_length(lists), 0))
    starts = pa.concat_arrays([pa.array([0], offsets.type), offsets])
    texts = pc.binary_join(pa.ListArray.from_arrays(starts, values), ",")
    sized = pc.binary_join_element_wise(
        pc.cast(pc.list_value_length(lists), pa.string()), texts, ":"
    )
    return pc.if_else(pc.is_null(lists), pa.scalar(None, pa.string()), sized)
