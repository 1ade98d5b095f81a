# SPDX-License-Identifier: Apache-2.0
"""The commands of a replication connection (PostgreSQL's repl_gram.y), as far as a node runs them.

In:   the text of a Query message on a connection with ``replication=database``.
Out:  a ReplicationCommand, or None when the text is SQL.

The control database's walsender runs the commands; here they are read only so far that none of
them can show what is not the lake's.  A START_REPLICATION that is not read completely is refused:
the options that the node adds must be in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.errors import FeatureNotSupportedError, PenstockError, SqlSyntaxError

_KEYWORDS = re.compile(
    r"\s*(IDENTIFY_SYSTEM|READ_REPLICATION_SLOT|SHOW|BASE_BACKUP|START_REPLICATION"
    r"|CREATE_REPLICATION_SLOT|DROP_REPLICATION_SLOT|ALTER_REPLICATION_SLOT|TIMELINE_HISTORY"
    r"|UPLOAD_MANIFEST)(?![A-Za-z0-9_$])"
)
"""PostgreSQL, too, knows them in capitals only; everything else is SQL."""

_NAME = r'"(?:[^"]|"")+"|[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*'
_START = re.compile(
    rf"\s*START_REPLICATION\s+SLOT\s+(?P<slot>{_NAME})\s+LOGICAL\s+"
    r"(?P<lsn>[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8})\s*(?:\((?P<options>.*)\))?\s*;?\s*\Z",
    re.DOTALL,
)
_OPTION = re.compile(
    rf"\s*(?P<name>{_NAME})\s*(?P<value>'(?:[^']|'')*')?\s*(?P<end>,|\Z)", re.DOTALL
)
_CREATE = re.compile(
    rf"\s*CREATE_REPLICATION_SLOT\s+(?P<slot>{_NAME})\s+(?:TEMPORARY\s+)?"
    rf"(?P<kind>PHYSICAL|LOGICAL)\s*(?P<plugin>{_NAME})?"
)
_SLOT = re.compile(rf"\s*[A-Z_]+\s+(?P<slot>{_NAME})")

_REFUSED = {
    "BASE_BACKUP": "a base backup has the lake's definitions without its rows",
    "TIMELINE_HISTORY": "it belongs to physical replication",
    "UPLOAD_MANIFEST": "it belongs to physical replication",
}


@dataclass(frozen=True)
class ReplicationCommand:
    """A command that the walsender runs.

    ``slot`` is the slot that it names, empty without one; ``start`` what it says when it starts a
    stream.
    """

    keyword: str
    slot: str = ""
    start: StartReplication | None = None


@dataclass(frozen=True)
class StartReplication:
    """START_REPLICATION of a logical slot.  ``options`` are as given, their names folded."""

    slot: str
    lsn: str
    options: tuple[tuple[str, str | None], ...]

    def option(self, name: str) -> str | None:
        """The value of an option; None when it is not there."""
        return dict(self.options).get(name)

    def is_on(self, name: str) -> bool:
        """Whether a boolean option is on; PostgreSQL says what is wrong with another value."""
        options = dict(self.options)
        if name not in options:
            return False
        return options[name] is None or (options[name] or "").lower() in _TRUE

    @property
    def publications(self) -> tuple[str, ...]:
        """The names in ``publication_names`` (SplitIdentifierString); SqlSyntaxError."""
        text = self.option("publication_names") or ""
        names = []
        for part in _split_names(text):
            quoted = part.startswith('"')
            names.append(part[1:-1].replace('""', '"') if quoted else part.lower())
        return tuple(dict.fromkeys(names))

    def relayed(self) -> str:
        """The command for the control database: commit records come as messages, and whole."""
        kept = [each for each in self.options if each[0] not in ("messages", "streaming")]
        kept.append(("messages", "true"))
        options = ", ".join(f"{_quoted(name)}{_literal(value)}" for name, value in kept)
        return f"START_REPLICATION SLOT {_quoted(self.slot)} LOGICAL {self.lsn} ({options})"


_TRUE = frozenset({"true", "tru", "tr", "t", "on", "yes", "ye", "y", "1"})


def replication_command(text: str) -> ReplicationCommand | None:
    """Read a command; None for SQL.

    FeatureNotSupportedError (0A000) for what a node does not do, SqlSyntaxError (42601) for what is
    not understood.
    """
    found = _KEYWORDS.match(text)
    if found is None:
        return None
    keyword = found[1]
    if keyword in _REFUSED:
        raise FeatureNotSupportedError(
            f"{keyword} is not supported", detail=f"{_REFUSED[keyword].capitalize()}."
        )
    if keyword == "START_REPLICATION":
        start = _start(text)
        return ReplicationCommand(keyword, start.slot, start)
    if keyword == "CREATE_REPLICATION_SLOT":
        _check_created(text)
    named = None if keyword in ("IDENTIFY_SYSTEM", "SHOW") else _SLOT.match(text)
    return ReplicationCommand(keyword, _folded(named["slot"]) if named else "")


def _start(text: str) -> StartReplication:
    found = _START.match(text)
    if found is None:
        if "LOGICAL" not in text:
            raise _physical()
        raise SqlSyntaxError("syntax error in START_REPLICATION")
    return StartReplication(_folded(found["slot"]), found["lsn"], tuple(_options(found["options"])))


def _options(text: str | None) -> list[tuple[str, str | None]]:
    options: list[tuple[str, str | None]] = []
    at = 0
    while text is not None:
        found = _OPTION.match(text, at)
        if found is None:
            raise SqlSyntaxError("syntax error in the options of START_REPLICATION")
        value = found["value"]
        options.append(
            (_folded(found["name"]), None if value is None else value[1:-1].replace("''", "'"))
        )
        if not found["end"]:
            break
        at = found.end()
    names = [name for name, _ in options]
    if len(set(names)) < len(names):
        raise SqlSyntaxError("conflicting or redundant options")
    return options


def _check_created(text: str) -> None:
    found = _CREATE.match(text)
    if found is None:
        return  # PostgreSQL raises the error
    if found["kind"] == "PHYSICAL":
        raise _physical()
    if found["plugin"] is not None and _folded(found["plugin"]) != "pgoutput":
        raise FeatureNotSupportedError(
            f'output plugin "{_folded(found["plugin"])}" is not supported',
            detail="It would see the node's commit records in place of the changes.",
            hint="Use pgoutput.",
        )


def _physical() -> FeatureNotSupportedError:
    return FeatureNotSupportedError(
        "physical replication is not supported",
        detail="A copy of the control database would have no rows of the lake.",
        hint="Use logical replication.",
    )


def _split_names(text: str) -> list[str]:
    names = []
    rest = text.strip()
    while rest:
        found = re.match(rf"({_NAME})\s*(,|\Z)\s*", rest)
        if found is None or (found[2] and found.end() == len(rest)):
            raise PenstockError("invalid publication_names syntax", sqlstate="42602")
        names.append(found[1])
        rest = rest[found.end() :]
    return names


def _folded(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(value: str | None) -> str:
    return "" if value is None else " '" + value.replace("'", "''") + "'"
