# SPDX-License-Identifier: Apache-2.0
"""A column of values as PostgreSQL's output functions print them, without a loop over rows.

In:   an Arrow array whose type is that of change/types.py for the PostgreSQL type; a numeric may
      also come as text (where each value has its own display scale), and is then left as it is.
Out:  a binary array of the same length, null where the value is NULL.

Output is that of DateStyle ISO, bytea_output hex, extra_float_digits 1 (PostgreSQL's defaults).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.change import types
from penstock.change.float_text import float_texts
from penstock.errors import FeatureNotSupportedError
from penstock.wire import rows_kernels as kernels

UTC_NAMES = frozenset({"UTC", "Etc/UTC", "Etc/UCT", "UCT", "Zulu", "Etc/Zulu", "GMT", "Etc/GMT"})
"""Zones whose offset is always zero."""

_POSIX_OFFSET = re.compile(r"([+-])(\d{1,2})(?::(\d{2}))?")
"""A zone without a name, as PostgreSQL and Arrow both take it."""

_LAST_TRANSITIONS = 2_145_916_800_000_000
"""2038-01-01: tzdata lists transitions up to there, later ones follow its rule for the zone."""

_INT64_DIGITS = 18
"""Digits that every int64 has room for."""
_MIN_INT64 = -(2**63)

_HOUR = 3_600_000_000
_YEAR_2400 = datetime(2400, 1, 1, tzinfo=UTC)
_YEAR_2400_HOURS = int(_YEAR_2400.timestamp()) // 3600
_CYCLE_HOURS = 146_097 * 24


def text_column(array: Any, timezone: str = "UTC") -> Any:
    """Render one array; 0A000 for an array type without a text form here."""
    kind = array.type
    if pa.types.is_boolean(kind):
        return _plain(pc.if_else(array, "t", "f"))
    if pa.types.is_integer(kind):
        return _plain(pc.cast(array, pa.string()))
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return _floats(array)
    if pa.types.is_decimal(kind):
        return _decimals(array)
    if pa.types.is_date(kind):
        return _dates(array)
    if pa.types.is_timestamp(kind):
        return _timestamps(array, timezone)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _hex(array)
    if pa.types.is_list(kind):
        return _lists(array, timezone)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind):
        return _plain(array)
    raise FeatureNotSupportedError(f"values of Arrow type {kind} have no text form")


def decimal_text(array: Any) -> Any:
    """Decimals as strings with exactly the scale of their type (Arrow would write 1E-18)."""
    scale = array.type.scale
    whole = pa.Array.from_buffers(
        pa.decimal128(38, 0), len(array), array.buffers(), array.null_count, array.offset
    )
    digits = pc.cast(whole, pa.string())
    if scale == 0:
        return digits
    negative = pc.starts_with(digits, "-")
    padded = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), scale + 1, "0")
    before = pc.utf8_slice_codeunits(padded, 0, -scale)
    after = pc.utf8_slice_codeunits(padded, -scale)
    return pc.binary_join_element_wise(
        pc.if_else(negative, "-", ""), before, pc.if_else(pc.is_valid(digits), ".", None), after, ""
    )


def shown_numerics(array: Any, type_oid: int, typmod: int) -> Any:
    """Numerics, or arrays of them, of a column without a declared scale: as texts, else as it is.

    Such a column is decimal(38,18), which knows no display scales: each value is shown with the
    least scale that it has (PostgreSQL's trim_scale), as queries show it.
    """
    if typmod >= 4 or types.ARRAY_ELEMENTS.get(type_oid, type_oid) != types.NUMERIC:
        return array
    if pa.types.is_decimal(array.type):
        return pc.replace_substring_regex(decimal_text(array), r"\.?0+$", "")
    if not pa.types.is_list(array.type) or not pa.types.is_decimal(array.type.value_type):
        return array
    values = shown_numerics(array.values, types.NUMERIC, typmod)
    return pa.ListArray.from_arrays(array.offsets, values, mask=pc.is_null(array))


def whole_numbers(array: Any) -> Any:
    """Decimals without their point as int64, anything for NULL; None when one has no room."""
    words = np.frombuffer(array.buffers()[1], np.int64)
    words = words[2 * array.offset : 2 * (array.offset + len(array))].reshape(-1, 2)
    low, high = words[:, 0], words[:, 1]
    fit = (high == low >> 63) & (low != _MIN_INT64)  # which has no positive counterpart
    return low if array.type.scale <= _INT64_DIGITS and fit[validity(array)].all() else None


def binary_parts(array: Any) -> tuple[Any, Any, Any]:
    """Offsets (int64, from 0), bytes and validity of a binary or string array."""
    wide = pc.cast(_plain(array), pa.large_binary())
    offsets = np.frombuffer(wide.buffers()[1], np.int64)[wide.offset : wide.offset + len(wide) + 1]
    buffer = wide.buffers()[2]
    content = np.frombuffer(buffer, np.uint8) if buffer else np.zeros(0, np.uint8)
    if not len(offsets):
        offsets = np.zeros(1, np.int64)
    return offsets - offsets[0], content[offsets[0] : offsets[-1]], validity(array)


def validity(array: Any) -> Any:
    """True where the array is not null."""
    return np.asarray(pc.is_valid(array).to_numpy(zero_copy_only=False))


def from_parts(offsets: Any, content: Any, valid: Any) -> Any:
    """The binary array with these offsets and bytes; the reverse of ``binary_parts``."""
    return pa.Array.from_buffers(
        pa.large_binary(),
        len(offsets) - 1,
        [_bitmap(valid), pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(content)],
    )


def _bitmap(valid: Any) -> Any:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _plain(array: Any) -> Any:
    return pc.cast(array, pa.large_binary())


def _packed(wide: Any, used: Any, valid: Any) -> Any:
    used[~valid] = 0
    offsets = np.zeros(len(used) + 1, np.int64)
    np.cumsum(used, out=offsets[1:])
    content = np.empty(offsets[-1], np.uint8)
    kernels.pack(wide, used, offsets, content)
    return from_parts(offsets, content, valid)


def _dates(array: Any) -> Any:
    days = pc.fill_null(pc.cast(pc.cast(array, pa.date32()), pa.int32()), 0).to_numpy()
    out, out_offsets, valid = _room(array, kernels.DATE_WIDTH)
    kernels.dates(days.astype(np.int64), valid, out, out_offsets)
    return _written(out, out_offsets, valid)


def _timestamps(array: Any, timezone: str) -> Any:
    zoned = array.type.tz is not None
    instants = pc.cast(array, pa.timestamp("us", array.type.tz))
    micros = pc.fill_null(pc.cast(instants, pa.int64()), 0).to_numpy()
    shift = zone_offsets(micros, timezone) if zoned else np.zeros(len(micros), np.int64)
    out, out_offsets, valid = _room(array, kernels.TIMESTAMP_WIDTH)
    kernels.timestamps(micros, valid, zoned, shift, out, out_offsets)
    return _written(out, out_offsets, valid)


def _room(array: Any, width: int) -> tuple[Any, Any, Any]:
    """Bytes for texts of so many each, their offsets, and which of them there will be."""
    rows = len(array)
    return np.empty(rows * width, np.uint8), np.zeros(rows + 1, np.int64), validity(array)


def _written(out: Any, offsets: Any, valid: Any) -> Any:
    return from_parts(offsets, out[: offsets[-1]], valid)


def zone_offsets(micros: Any, timezone: str) -> Any:
    """Seconds east of UTC in a zone at each instant; 0A000 for a zone that is not in tzdata.

    +05:30 is a zone of POSIX to PostgreSQL, so it lies west of UTC; Arrow has it east, as ISO.
    """
    if timezone in UTC_NAMES:
        return np.zeros(len(micros), np.int64)
    west = _POSIX_OFFSET.fullmatch(timezone)
    if west is not None:
        sign, hours, minutes = west.groups()
        seconds = 3600 * int(hours) + 60 * int(minutes or 0)
        return np.full(len(micros), -seconds if sign == "+" else seconds, np.int64)
    try:
        local = pc.local_timestamp(pa.array(micros, pa.timestamp("us", timezone)))
    except pa.ArrowInvalid as error:
        raise FeatureNotSupportedError(
            f'time zone "{timezone}" is not supported for lake data',
            hint="Set TimeZone to a name of the IANA time zone database, or to UTC.",
        ) from error
    offsets = (pc.cast(local, pa.int64()).to_numpy() - micros) // 1_000_000
    late = np.nonzero(micros >= _LAST_TRANSITIONS)[0]
    if len(late):
        hours, places = np.unique(micros[late] // _HOUR, return_inverse=True)
        rules = ZoneInfo(timezone)
        offsets[late] = np.array([_rule_offset(rules, int(hour)) for hour in hours])[places]
    return offsets


def _rule_offset(rules: ZoneInfo, hour: int) -> int:
    """Offset in an hour after 2037; the calendar, with its weekdays, repeats every 400 years."""
    instant = _YEAR_2400 + timedelta(hours=(hour - _YEAR_2400_HOURS) % _CYCLE_HOURS)
    offset = instant.astimezone(rules).utcoffset()
    return int(offset.total_seconds()) if offset is not None else 0


def _decimals(array: Any) -> Any:
    numbers, scale = whole_numbers(array), array.type.scale
    if numbers is None:
        return _plain(decimal_text(array))
    out, out_offsets, valid = _room(array, kernels.DECIMAL_WIDTH + scale)
    kernels.decimals(numbers, valid, scale, out, out_offsets)
    return _written(out, out_offsets, valid)


def _floats(array: Any) -> Any:
    wide, used = float_texts(pc.fill_null(array, 0.0).to_numpy())
    return _packed(wide, used, validity(array))


def _hex(array: Any) -> Any:
    offsets, content, valid = binary_parts(array)
    sizes = np.where(valid, np.diff(offsets) * 2 + 2, 0)
    out_offsets = np.zeros(len(offsets), np.int64)
    np.cumsum(sizes, out=out_offsets[1:])
    out = np.empty(out_offsets[-1], np.uint8)
    kernels.hex_text(offsets, content, out_offsets, out)
    return from_parts(out_offsets, out, valid)


def _lists(array: Any, timezone: str) -> Any:
    if pa.types.is_list(array.type.value_type):
        raise FeatureNotSupportedError("arrays of several dimensions are not supported")
    valid = validity(array)
    lists = array.offsets.to_numpy().astype(np.int64)
    items = text_column(array.values, timezone)
    offsets, content, items_valid = binary_parts(items)
    out_offsets = np.zeros(len(lists), np.int64)
    room = 2 * len(lists) + kernels.ITEM_OVERHEAD * len(items) + 2 * len(content)
    out = np.empty(room, np.uint8)
    kernels.array_text(lists, valid, offsets, content, items_valid, out, out_offsets)
    return from_parts(out_offsets, out[: out_offsets[-1]], valid)
