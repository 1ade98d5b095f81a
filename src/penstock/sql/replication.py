# SPDX-License-Identifier: Apache-2.0
"""The commands of a replication connection (PostgreSQL's repl_gram.y), as far as a node runs them.

In:   the text of a Query message on a connection with ``replication=database``.
Out:  a ReplicationCommand, or None when the text is SQL.

The control database's walsender runs the commands; here they are read only so far that none of
them can show what is not the lake's.  A START_REPLICATION is written anew from what was read, with
the options that the node needs; so nothing that is not understood reaches the walsender.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import FeatureNotSupportedError, PenstockError, SqlSyntaxError
from penstock.sql.replication_scan import Kind, Token, scan
from penstock.sql.tokens import fold, truncate

_REFUSED = {
    "BASE_BACKUP": "a base backup has the lake's definitions without its rows",
    "TIMELINE_HISTORY": "it belongs to physical replication",
    "UPLOAD_MANIFEST": "it belongs to physical replication",
}

_SPACE = " \t\n\r\f\v"
_NAME_IN_LIST = re.compile(r'"((?:[^"]|"")*)"|([^, \t\n\r\f\v"][^, \t\n\r\f\v]*)')

_ON = (None, "true", "on")
_OFF = ("false", "off")

Option = tuple[str, str | None]


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
    options: tuple[Option, ...]

    def option(self, name: str) -> str | None:
        """The value of an option; None when it is not there."""
        return dict(self.options).get(name)

    def is_on(self, name: str) -> bool:
        """Whether a boolean option is on (defGetBoolean); PostgreSQL refuses other values."""
        options = dict(self.options)
        return name in options and _folded(options[name]) in _ON

    @property
    def publications(self) -> tuple[str, ...]:
        """The names in ``publication_names``; PenstockError (42602) when it is no list."""
        return tuple(dict.fromkeys(_split_names(self.option("publication_names") or "")))

    def relayed(self, publication_names: str) -> str:
        """The command for the control database: commit records come as messages, and whole.

        ``publication_names`` stands in place of the subscriber's.  PenstockError, with PostgreSQL's
        words, for an option that is taken out or added here and that PostgreSQL would refuse.
        """
        _check_options(self.options)
        kept = [
            (name, publication_names if name == "publication_names" else value)
            for name, value in self.options
            if name not in ("messages", "streaming")
        ]
        kept.append(("messages", "true"))
        options = ", ".join(f"{_quoted(name)}{_literal(value)}" for name, value in kept)
        return f"START_REPLICATION SLOT {_quoted(self.slot)} LOGICAL {self.lsn} ({options})"


def replication_command(text: str) -> ReplicationCommand | None:
    """Read a command; None for SQL.

    FeatureNotSupportedError (0A000) for what a node does not do, SqlSyntaxError (42601) for what is
    not understood.
    """
    tokens = scan(text)
    if tokens is None:
        return None
    keyword = tokens[0].text
    if keyword in _REFUSED:
        raise FeatureNotSupportedError(
            f"{keyword} is not supported", detail=f"{_REFUSED[keyword].capitalize()}."
        )
    if keyword == "START_REPLICATION":
        start = _start(tokens)
        return ReplicationCommand(keyword, start.slot, start)
    if keyword in ("IDENTIFY_SYSTEM", "SHOW"):
        return ReplicationCommand(keyword)
    if len(tokens) < 2 or tokens[1].kind is not Kind.NAME:
        raise _syntax_error()
    if keyword == "CREATE_REPLICATION_SLOT":
        _check_created(tokens[2:])
    return ReplicationCommand(keyword, tokens[1].text)


def _start(tokens: Sequence[Token]) -> StartReplication:
    shape = [each.text if each.kind is Kind.KEYWORD else each.kind for each in tokens]
    if shape[1:5] == ["SLOT", Kind.NAME, "LOGICAL", Kind.POSITION]:
        return StartReplication(tokens[2].text, tokens[4].text, tuple(_options(tokens[5:])))
    behind = shape[3:] if shape[1:3] == ["SLOT", Kind.NAME] else shape[1:]
    if behind[:1] in (["PHYSICAL"], [Kind.POSITION]):
        raise _physical()
    raise _syntax_error()


def _options(tokens: Sequence[Token]) -> list[Option]:
    """The options in parentheses, if there are any, up to the end of the command."""
    rest = list(tokens)
    if rest and rest[-1] == (Kind.OTHER, ";"):
        rest.pop()
    if not rest:
        return []
    if len(rest) < 3 or rest[0] != (Kind.OTHER, "(") or rest[-1] != (Kind.OTHER, ")"):
        raise _syntax_error()
    options: list[Option] = []
    at = 1
    while True:
        if rest[at].kind is not Kind.NAME:
            raise _syntax_error()
        name, value = rest[at].text, None
        at += 1
        if rest[at].kind is Kind.STRING:
            value = rest[at].text
            at += 1
        options.append((name, value))
        if at == len(rest) - 1:
            return options
        if rest[at] != (Kind.OTHER, ","):
            raise _syntax_error()
        at += 1


def _check_options(options: Sequence[Option]) -> None:
    """Refuse what pgoutput does (parse_output_parameters), of options that it does not get.

    And two that must have a value: without one, pgoutput brings the server down (seen in 18.6).
    """
    given = dict(options)
    for name in ("proto_version", "publication_names"):
        if name in given and given[name] is None:
            raise SqlSyntaxError(f"{name} requires a parameter")
    names = [name for name, _ in options]
    if names.count("messages") > 1 or names.count("streaming") > 1:
        raise SqlSyntaxError("conflicting or redundant options")
    if "messages" in given and _folded(given["messages"]) not in _ON + _OFF:
        raise SqlSyntaxError("messages requires a Boolean value")
    if "streaming" in given:
        _check_streaming(_folded(given["streaming"]), given.get("proto_version"))


def _check_streaming(wanted: str | None, version: str | None) -> None:
    if wanted in _OFF:
        return
    if wanted not in (*_ON, "parallel"):
        raise SqlSyntaxError('streaming requires a Boolean value or "parallel"')
    needed, what = (4, "parallel streaming") if wanted == "parallel" else (2, "streaming")
    if version is not None and version.isdecimal() and int(version) < needed:
        raise PenstockError(
            f"requested proto_version={int(version)} does not support {what},"
            f" need {needed} or higher",
            sqlstate="22023",
        )


def _check_created(tokens: Sequence[Token]) -> None:
    """Refuse a slot of another kind or plugin; ``tokens`` are those behind its name."""
    if tokens and tokens[0] == (Kind.KEYWORD, "TEMPORARY"):
        tokens = tokens[1:]
    if tokens and tokens[0] == (Kind.KEYWORD, "PHYSICAL"):
        raise _physical()
    is_logical = bool(tokens) and tokens[0] == (Kind.KEYWORD, "LOGICAL")
    if not is_logical or len(tokens) < 2 or tokens[1].kind is not Kind.NAME:
        raise _syntax_error()
    if tokens[1].text != "pgoutput":
        raise FeatureNotSupportedError(
            f'output plugin "{tokens[1].text}" is not supported',
            detail="It would see the node's commit records in place of the changes.",
            hint="Use pgoutput.",
        )


def _physical() -> FeatureNotSupportedError:
    return FeatureNotSupportedError(
        "physical replication is not supported",
        detail="A copy of the control database would have no rows of the lake.",
        hint="Use logical replication.",
    )


def _syntax_error() -> SqlSyntaxError:
    return SqlSyntaxError("syntax error")


def _split_names(text: str) -> list[str]:
    """The names of a list (SplitIdentifierString): without quotes a name ends at space or comma."""
    names: list[str] = []
    rest = text.strip(_SPACE)
    while rest or names:
        found = _NAME_IN_LIST.match(rest)
        if found is None:
            raise _no_list()
        quoted, bare = found.groups()
        names.append(truncate(fold(bare) if quoted is None else quoted.replace('""', '"')))
        rest = rest[found.end() :].lstrip(_SPACE)
        if not rest:
            break
        if rest[0] != ",":
            raise _no_list()
        rest = rest[1:].lstrip(_SPACE)
    return names


def _no_list() -> PenstockError:
    return PenstockError("invalid publication_names syntax", sqlstate="42602")


def _folded(value: str | None) -> str | None:
    return None if value is None else fold(value)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(value: str | None) -> str:
    return "" if value is None else " '" + value.replace("'", "''") + "'"
