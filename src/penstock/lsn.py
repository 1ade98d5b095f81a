# SPDX-License-Identifier: Apache-2.0
"""Log sequence numbers: an int in the program, ``16/B374D848`` in text (PostgreSQL's pg_lsn)."""

from __future__ import annotations

from penstock.errors import InvalidTextError

MAX_LSN = 2**64 - 1


def parse_lsn(text: str) -> int:
    """Read PostgreSQL's text form of a pg_lsn; InvalidTextError (22P02) for anything else."""
    high, slash, low = text.partition("/")
    try:
        parts = (int(high, 16), int(low, 16))
    except ValueError:
        slash = ""
    else:
        if max(len(high), len(low)) > 8 or min(parts) < 0:
            slash = ""
    if not slash or not (high + low).isalnum():
        raise InvalidTextError(f'invalid input syntax for type pg_lsn: "{text}"')
    return parts[0] << 32 | parts[1]


def format_lsn(lsn: int) -> str:
    """PostgreSQL's text form, as ``%X/%X`` prints it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
