# SPDX-License-Identifier: Apache-2.0
"""The words of a replication command, cut as PostgreSQL's walsender cuts them (repl_scanner.l).

In:   the text of a Query message on a connection with ``replication=database``.
Out:  tokens, or None when the text is SQL: its first word is not one of KEYWORDS.

White space may be missing between words, comments are not known, keywords count in capitals only.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

from penstock.errors import SqlSyntaxError
from penstock.sql.tokens import fold, truncate

KEYWORDS = frozenset(
    {
        "ALTER_REPLICATION_SLOT",
        "BASE_BACKUP",
        "CREATE_REPLICATION_SLOT",
        "DROP_REPLICATION_SLOT",
        "IDENTIFY_SYSTEM",
        "READ_REPLICATION_SLOT",
        "SHOW",
        "START_REPLICATION",
        "TIMELINE_HISTORY",
        "UPLOAD_MANIFEST",
    }
)
"""What a command begins with."""

_INNER = frozenset(
    {
        "EXPORT_SNAPSHOT",
        "LOGICAL",
        "NOEXPORT_SNAPSHOT",
        "PHYSICAL",
        "RESERVE_WAL",
        "SLOT",
        "TEMPORARY",
        "TIMELINE",
        "TWO_PHASE",
        "USE_SNAPSHOT",
        "WAIT",
    }
)


class Kind(StrEnum):
    """What a token is."""

    KEYWORD = "keyword"
    NAME = "name"
    STRING = "string"
    NUMBER = "number"
    POSITION = "position"
    OTHER = "other"


class Token(NamedTuple):
    """One token; ``text`` of a name or a string is its value, folded and cut as PostgreSQL does."""

    kind: Kind
    text: str


_TOKEN = re.compile(
    r"""[ \t\n\r\f\v]*(?:
        (?P<position>[0-9A-Fa-f]+/[0-9A-Fa-f]+)
      | (?P<word>[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*)
      | (?P<number>[0-9]+)
      | '(?P<string>(?:[^']|'')*)'
      | "(?P<quoted>(?:[^"]|"")*)"
      | (?P<other>[^ \t\n\r\f\v])
    )""",
    re.VERBOSE,
)


def scan(text: str) -> list[Token] | None:
    """The tokens of a command; None for SQL.  SqlSyntaxError for a quote that does not end."""
    first = _TOKEN.match(text)
    if first is None or first["word"] not in KEYWORDS:
        return None
    tokens = []
    at = 0
    while (found := _TOKEN.match(text, at)) is not None:
        tokens.append(_token(found))
        at = found.end()
    return tokens


def _token(found: re.Match[str]) -> Token:
    value = found[found.lastgroup or 0]
    match found.lastgroup:
        case "word" if value in KEYWORDS or value in _INNER:
            return Token(Kind.KEYWORD, value)
        case "word":
            return Token(Kind.NAME, truncate(fold(value)))
        case "quoted":
            return Token(Kind.NAME, truncate(value.replace('""', '"')))
        case "string":
            return Token(Kind.STRING, value.replace("''", "'"))
        case "number":
            return Token(Kind.NUMBER, value)
        case "position":
            return Token(Kind.POSITION, value)
    if value in ("'", '"'):
        raise SqlSyntaxError("unterminated quoted string")
    return Token(Kind.OTHER, value)
