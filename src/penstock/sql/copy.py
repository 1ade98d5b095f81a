# SPDX-License-Identifier: Apache-2.0
"""COPY, as far as the front door must understand it: above all COPY ... TO.

In:   the parsed command.
Out:  what it copies, where to, and the options that decide how values are written.

    COPY [BINARY] name [(column, ...)] TO STDOUT [[USING] DELIMITERS 'x'] [[WITH] options]
    COPY (query) TO STDOUT [[WITH] options]
    options:  (name [value], ...)   or those before 9.0:  CSV DELIMITER AS 'x' FORCE QUOTE a, b

PostgreSQL runs the same text, and raises every error in it.  So what has another form than these
gives None here: it is an error, or something that the node does not know yet.

Source: CopyStmt in gram.y, ProcessCopyOptions in copy.c.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from penstock.sql.commands import Command, closing, inner_range, object_name
from penstock.sql.tokens import Kind, Token

ALL = "*"
"""FORCE_QUOTE of all columns."""

_CLIENT = ("stdout", "stdin")
"""PostgreSQL takes either word for the client, whatever the direction."""

_TRUE = ("true", "on", "1")

_LITERALS = ("delimiter", "null", "quote", "escape", "encoding", "format")
_NAMES = ("force_quote", "force_not_null", "force_null")
_IGNORED = frozenset({"freeze", "header", "log_verbosity", "on_error", "default", "reject_limit"})
"""Options that PostgreSQL refuses here, or that do not change how a row is written."""


@dataclass(frozen=True)
class CopyOptions:
    """``literals``: option -> its value as an SQL expression; ``binary``, ``csv``: old options.

    ``forced`` are the columns of FORCE_QUOTE, or ALL.
    """

    literals: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    kind: str | None = None
    forced: tuple[str, ...] | str = ()


@dataclass(frozen=True)
class CopyTo:
    """One COPY TO STDOUT; ``columns`` is None without a list.

    ``name`` has the tokens of a table's name; it is empty for a query, which stands at ``query`` of
    the text.
    """

    name: tuple[Token, ...]
    columns: tuple[str, ...] | None
    query: tuple[int, int] | None
    options: CopyOptions


def is_copy_to(command: Command) -> bool:
    """Whether a COPY sends rows anywhere, to the client or not."""
    return [token.word for token in _behind(command)[:1]] == ["to"]


def is_to_client(command: Command) -> bool:
    """Whether a COPY is one TO STDOUT."""
    words = [token.word for token in _behind(command)[:2]]
    return words[:1] == ["to"] and words[1:] in [[each] for each in _CLIENT]


def parse_copy_to(command: Command) -> CopyTo | None:
    """Understand a COPY TO STDOUT; None for any other form, see above."""
    behind = _behind(command)
    if not is_to_client(command):
        return None
    query = inner_range(command)
    name, columns, old_binary = _source(command) if query is None else ((), None, False)
    try:
        options = _Options(list(behind[2:])).read(old_binary)
        return CopyTo(tuple(name), _columns(columns), query, options)
    except _UnknownFormError:
        return None


def without_freeze(command: Command) -> str:
    """The text of a COPY FROM STDIN whose rows are not for the relation that it names.

    FREEZE would then be about nothing.  What is not plainly true stays: PostgreSQL knows it.
    """
    behind = _behind(command)[2:]
    start = 1 if [token.word for token in behind[:1]] == ["with"] else 0
    if [token.text for token in behind[start : start + 1]] != ["("]:
        return _without_old_freeze(command.sql, behind)
    for option in _split(behind[start + 1 : closing(behind, start)]):
        if not option or option[0].name != "freeze":
            continue
        if len(option) == 1:
            return _replaced(command.sql, option[0].end, option[0].end, " 0")
        if option[1].text.strip("'").lower() in _TRUE:
            return _replaced(command.sql, option[1].start, option[1].end, "0")
    return command.sql


def _without_old_freeze(sql: str, tokens: Sequence[Token]) -> str:
    """FREEZE as it was written before 9.0; a column may have the name, too."""
    before = ""
    for token in tokens:
        if token.word == "where":
            break
        if token.word == "freeze" and before not in ("null", ","):
            return _replaced(sql, token.start, token.end, "")
        before = token.word or token.text
    return sql


def _replaced(sql: str, start: int, end: int, text: str) -> str:
    """What stands behind it keeps its place where that is possible."""
    return sql[:start] + text.ljust(end - start) + sql[end:]


class _UnknownFormError(Exception):
    """The text has not one of the forms that are known."""


def _behind(command: Command) -> Sequence[Token]:
    """The tokens behind the table with its columns, or behind the query."""
    rest = command.rest
    if inner_range(command) is not None:
        return rest[closing(rest, 0) + 1 :]
    start = 1 if [token.word for token in rest[:1]] == ["binary"] else 0
    place = start + len(object_name(rest[start:]))
    if place < len(rest) and rest[place].text == "(":
        place = closing(rest, place) + 1
    return rest[place:]


def _source(command: Command) -> tuple[Sequence[Token], Sequence[Token] | None, bool]:
    """Name, what stands between the parentheses behind it, whether BINARY stands before it."""
    rest = command.rest
    is_binary = [token.word for token in rest[:1]] == ["binary"]
    rest = rest[1:] if is_binary else rest
    name = object_name(rest)
    if len(name) < len(rest) and rest[len(name)].text == "(":
        return name, rest[len(name) + 1 : closing(rest, len(name))], is_binary
    return name, None, is_binary


def _columns(tokens: Sequence[Token] | None) -> tuple[str, ...] | None:
    return None if tokens is None else _names(tokens)


def _names(tokens: Sequence[Token]) -> tuple[str, ...]:
    """Identifiers with commas between them."""
    if not tokens:
        raise _UnknownFormError
    names = []
    for index, token in enumerate(tokens):
        if (token.text == ",") != bool(index % 2) or (index % 2 == 0 and token.name is None):
            raise _UnknownFormError
        if index % 2 == 0:
            names.append(token.name or "")
    return tuple(names)


class _Options:
    """The tokens behind STDOUT."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._literals: dict[str, str] = {}
        self._kind: str | None = None
        self._forced: tuple[str, ...] | str = ()

    def read(self, old_binary: bool) -> CopyOptions:
        """All of them."""
        self._kind = "binary" if old_binary else None
        if self._word() == "using" or self._word() == "delimiters":
            self._at += 1 if self._word() == "using" else 0
            self._at += 1
            self._literals["delimiter"] = self._literal()
        if self._word() == "with":
            self._at += 1
        if self._text() == "(":
            self._read_list()
        else:
            while self._at < len(self._tokens):
                self._read_old()
        return CopyOptions(MappingProxyType(self._literals), self._kind, self._forced)

    def _read_list(self) -> None:
        """Options in parentheses, which are all that is left."""
        end = closing(self._tokens, self._at)
        if end != len(self._tokens) - 1:
            raise _UnknownFormError
        for option in _split(self._tokens[self._at + 1 : end]):
            self._read_generic(option)

    def _read_generic(self, tokens: Sequence[Token]) -> None:
        name, value = (tokens[0].name if tokens else None), tokens[1:]
        if name in _NAMES:
            names = _parenthesised(value)
            if name == "force_quote":
                self._forced = names
        elif name in _LITERALS and value:
            self._literals[name] = _expression(value)
        elif name not in _IGNORED:
            raise _UnknownFormError

    def _read_old(self) -> None:
        word = self._word()
        self._at += 1
        if word in ("binary", "csv"):
            self._kind = word
        elif word in _LITERALS:
            self._at += 1 if self._word() == "as" else 0
            self._literals[word] = self._literal()
        elif word == "force":
            self._read_force()
        elif word not in _IGNORED:
            raise _UnknownFormError

    def _read_force(self) -> None:
        """QUOTE, NOT NULL or NULL, and columns."""
        is_quote = self._word() == "quote"
        self._at += 2 if self._word() == "not" else 1
        if self._text() == ALL:
            self._at += 1
            self._forced = ALL if is_quote else self._forced
            return
        start = self._at
        while self._at < len(self._tokens) and (self._at == start or self._text() == ","):
            self._at += 1 if self._at == start else 2
        names = _names(self._tokens[start : self._at])
        self._forced = names if is_quote else self._forced

    def _literal(self) -> str:
        """A string constant, with a UESCAPE perhaps."""
        start = self._at
        if self._kind_of(start) is not Kind.STRING:
            raise _UnknownFormError
        self._at += 3 if self._kind_of(start + 2) is Kind.STRING and self._is_uescape() else 1
        return _expression(self._tokens[start : self._at])

    def _is_uescape(self) -> bool:
        return self._tokens[self._at + 1].word == "uescape"

    def _kind_of(self, index: int) -> Kind | None:
        return self._tokens[index].kind if index < len(self._tokens) else None

    def _word(self) -> str:
        return self._tokens[self._at].word if self._at < len(self._tokens) else ""

    def _text(self) -> str:
        return self._tokens[self._at].text if self._at < len(self._tokens) else ""


def _split(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """The options of a list, which commas part; one may have a list itself."""
    start, depth = 0, 0
    for index, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if token.text == "," and depth == 0:
            yield tokens[start:index]
            start = index + 1
    yield tokens[start:]


def _parenthesised(tokens: Sequence[Token]) -> tuple[str, ...] | str:
    if [token.text for token in tokens] == [ALL]:
        return ALL
    if len(tokens) < 3 or tokens[0].text != "(" or closing(tokens, 0) != len(tokens) - 1:
        raise _UnknownFormError
    return _names(tokens[1:-1])


def _expression(tokens: Sequence[Token]) -> str:
    """The value of an option as an SQL expression: a word or a name stands for itself."""
    if len(tokens) == 1 and tokens[0].name is not None:
        return "'" + tokens[0].name.replace("'", "''") + "'"
    if tokens[0].kind not in (Kind.STRING, Kind.NUMBER):
        raise _UnknownFormError
    return " ".join(token.text for token in tokens)
