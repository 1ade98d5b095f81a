# SPDX-License-Identifier: Apache-2.0
"""Keys as 64-bit numbers: equal keys have equal numbers, in every process and for good.

A single column of whole numbers, dates or times is its own number.  Any other key is hashed, so
that different keys may have one number; who looks by it compares the keys, too.  Equality is that
of ``row_codes`` (change/codes.py).  The numbers are kept in files (key_index.py): another way to
compute them needs another VERSION there.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.compiled import Bytes, compiled

Words = NDArray[np.uint64]

_PRIME = np.uint64(0x100000001B3)  # of FNV-1a
_BASIS = np.uint64(0xCBF29CE484222325)


def is_number(schema: pa.Schema) -> bool:
    """Whether the number of a key with these columns is the key itself."""
    return len(schema) == 1 and _is_whole(schema.field(0).type)


def has_numbers(schema: pa.Schema) -> bool:
    """Whether keys with these columns have numbers at all; lists have none."""
    return all(
        _is_whole(field.type)
        or pa.types.is_boolean(field.type)
        or pa.types.is_floating(field.type)
        or pa.types.is_decimal128(field.type)
        or _is_bytes(field.type)
        for field in schema
    )


def key_numbers(keys: pa.Table) -> NDArray[np.int64]:
    """The number of each key, of which no value is null."""
    columns = [column.combine_chunks() for column in keys.columns]
    if is_number(keys.schema):
        return _whole(columns[0])
    numbers = np.full(keys.num_rows, _BASIS)
    for column in columns:
        for words in _words(column):
            numbers = _mix(numbers ^ words)
    return numbers.view(np.int64)


def _is_whole(kind: pa.DataType) -> bool:
    times = pa.types.is_date, pa.types.is_time, pa.types.is_timestamp
    return bool(pa.types.is_integer(kind) or any(each(kind) for each in times))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _whole(values: pa.Array) -> NDArray[np.int64]:
    if not pa.types.is_integer(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    wide: NDArray[np.int64] = values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return wide


def _words(values: pa.Array) -> list[Words]:
    """One word for each value, of decimals two."""
    kind = values.type
    if _is_bytes(kind):
        offsets = np.frombuffer(values.buffers()[1], np.int32)
        data = values.buffers()[2]
        content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        return [_hash_bytes(content, offsets[values.offset : values.offset + len(values) + 1])]
    if pa.types.is_decimal(kind):
        both = np.frombuffer(values.buffers()[1], np.uint64).reshape(-1, 2)
        both = both[values.offset : values.offset + len(values)]
        return [both[:, 0], both[:, 1]]
    if pa.types.is_floating(kind):
        floats = values.to_numpy(zero_copy_only=False).astype(np.float64) + 0.0  # no -0.0
        floats[np.isnan(floats)] = np.nan
        return [floats.view(np.uint64)]
    if pa.types.is_boolean(kind):
        values = pc.cast(values, pa.uint8())
    return [_whole(values).view(np.uint64)]


def _mix(words: Words) -> Words:
    """Spread each bit over the whole word (the finalizer of SplitMix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@compiled
def _hash_bytes(content: Bytes, offsets: NDArray[np.int32]) -> Words:
    """FNV-1a of each value."""
    hashes = np.empty(len(offsets) - 1, np.uint64)
    for i in range(len(hashes)):
        found = _BASIS
        for place in range(offsets[i], offsets[i + 1]):
            found = (found ^ np.uint64(content[place])) * _PRIME
        hashes[i] = found
    return hashes
