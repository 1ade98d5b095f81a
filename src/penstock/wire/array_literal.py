# SPDX-License-Identifier: Apache-2.0
"""A column of texts as one literal of a text[], which a statement takes as a parameter."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def array_literal(texts: Any, delimiter: str = ",") -> str:
    """The literal of a text[] with these values (array_out); ``delimiter`` is the type's."""
    strings = pc.cast(texts, pa.large_string())
    mark, nothing, between = (pa.scalar(each, pa.large_string()) for each in ('"', "", delimiter))
    escaped = pc.replace_substring_regex(strings, r'(["\\])', r"\\\1")
    quoted = pc.binary_join_element_wise(mark, escaped, mark, nothing)
    items = pc.fill_null(quoted, pa.scalar("NULL", pa.large_string()))
    whole = pa.ListArray.from_arrays(pa.array([0, len(items)], pa.int32()), items)
    return f"{{{pc.binary_join(whole, between)[0].as_py()}}}"
