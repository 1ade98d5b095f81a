# SPDX-License-Identifier: Apache-2.0
"""How COPY TO writes values, as its options say (``ProcessCopyOptions`` in copy.c)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CopyKind = Literal["text", "csv", "binary"]


@dataclass(frozen=True)
class CopyFormat:
    """The options of one COPY; what does not belong to its ``kind`` is not looked at.

    ``delimiter``, ``quote`` and ``escape`` are one byte each.  ``forced`` are the columns whose
    values are always in quotes (FORCE_QUOTE), None for all of them.
    """

    kind: CopyKind = "text"
    delimiter: bytes = b"\t"
    null: bytes = b"\\N"
    quote: bytes = b'"'
    escape: bytes = b'"'
    forced: frozenset[str] | None = frozenset()
