# SPDX-License-Identifier: Apache-2.0
"""Which command of the SQL reference a statement is, and the statement inside of it.

In:   the text of one statement.
Out:  a Command: the name as psql's ``\\h`` writes it, its treatment, and the tokens.

PostgreSQL's grammar is led by keywords, so the first ones decide; two commands are told apart by a
later one (CREATE TABLE AS, SELECT INTO).  A text that is none of these commands has the treatment
REFUSED and no reason.  Keywords count only unquoted, as in PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from penstock.change.schema import CASCADE, RESTART_IDENTITY
from penstock.sql.commands_table import REASONS, TREATMENTS, Treatment
from penstock.sql.tokens import Kind, Token, significant

_MODIFIERS = {
    *("or", "replace", "unique", "temp", "temporary", "global", "local", "unlogged"),
    *("recursive", "constraint", "trusted", "procedural"),
}
"""Words between CREATE, ALTER or DROP and the kind of object."""

TEMPORARY = frozenset({"temp", "temporary"})
_LONGEST = 4
"""Words of the longest name: ALTER TEXT SEARCH CONFIGURATION, CREATE FOREIGN DATA WRAPPER."""


@dataclass(frozen=True)
class Command:
    """One statement: ``name`` is empty for a text that is no known command.

    ``tokens`` are without white space and comments; ``after`` is the index of the first token
    behind the command's name.
    """

    sql: str
    name: str
    tokens: tuple[Token, ...]
    after: int

    @property
    def treatment(self) -> Treatment:
        """What the front door does with it."""
        return TREATMENTS.get(self.name, Treatment.REFUSED)

    @property
    def reason(self) -> str | None:
        """Why it is refused; None for a text that is no known command."""
        return REASONS.get(self.name)

    @property
    def is_several(self) -> bool:
        """Whether the text has a semicolon in it, so that it is more than one statement."""
        return any(token.text == ";" for token in self.tokens)

    @property
    def rest(self) -> Sequence[Token]:
        """The tokens behind the command's name."""
        return self.tokens[self.after :]

    @property
    def temporary(self) -> bool:
        """Whether TEMPORARY or TEMP stands before the kind of object, or pg_temp before a name."""
        words = [token.word for token in self.tokens[: self.after]]
        return not TEMPORARY.isdisjoint(words) or in_pg_temp(object_name(self.rest))


def parse(sql: str, standard_conforming_strings: bool = True) -> Command:
    """Find out which command a statement is; semicolons around it do not belong to it.

    Those before it become spaces, so that the statement keeps its place.
    """
    tokens = tuple(significant(sql, standard_conforming_strings))
    while tokens and tokens[0].text == ";":
        sql, tokens = f"{sql[: tokens[0].start]} {sql[tokens[0].end :]}", tokens[1:]
    while tokens and tokens[-1].text == ";":
        sql, tokens = sql[: tokens[-1].start], tokens[:-1]
    start = 0
    while start < len(tokens) and tokens[start].text == "(":
        start += 1
    name, after = _name(tokens, start)
    if start and TREATMENTS.get(name) is not Treatment.QUERY:
        name = ""  # only queries stand in parentheses
    if name == "CREATE TABLE" and any(token.word == "as" for token in top_level(tokens[after:])):
        name = "CREATE TABLE AS"
    elif name in ("SELECT", "WITH") and where_into(tokens) is not None:
        name = "SELECT INTO"
    return Command(sql, name, tokens, after)


def top_level(tokens: Sequence[Token]) -> Iterator[Token]:
    """The tokens outside of parentheses and brackets."""
    depth = 0
    for token in tokens:
        if token.kind is Kind.SYMBOL and token.text in "([":
            depth += 1
        elif token.kind is Kind.SYMBOL and token.text in ")]":
            depth -= 1
        elif depth == 0:
            yield token


def object_name(tokens: Sequence[Token]) -> Sequence[Token]:
    """The leading tokens that are a name, perhaps qualified, behind IF [NOT] EXISTS and ONLY."""
    start = 0
    words = [token.word for token in tokens[:3]]
    if words == ["if", "not", "exists"]:
        start = 3
    elif words[:2] == ["if", "exists"]:
        start = 2
    if start < len(tokens) - 1 and tokens[start].word == "only" and tokens[start + 1].text != ".":
        start += 1
    end = start
    while end < len(tokens) and tokens[end].kind in (Kind.WORD, Kind.QUOTED, Kind.UNICODE):
        end += 1
        if end == len(tokens) or tokens[end].text != ".":
            break
        end += 1
    return tokens[start:end]


def inner_statement(command: Command) -> str | None:
    """The statement that one of ``_INNER`` contains; None when there is none.

    Its text starts where it starts in the command; what precedes it is blank.  So a position in
    an error of PostgreSQL about it is the position in the command.
    """
    place = inner_range(command)
    if place is None:
        return None
    start, end = place
    return " " * start + command.sql[start:end]


def inner_range(command: Command) -> tuple[int, int] | None:
    """Where the statement that one of ``_INNER`` contains begins and ends."""
    return _INNER[command.name](command) if command.name in _INNER else None


def _name(tokens: Sequence[Token], start: int) -> tuple[str, int]:
    """The command that starts at ``start``, and the index behind its name."""
    if start >= len(tokens):
        return "", start
    first = tokens[start].word
    used = [start]
    place = start + 1
    if first in ("create", "alter", "drop"):
        while place < len(tokens) and tokens[place].word in _MODIFIERS:
            place += 1
    while place < len(tokens) and len(used) < _LONGEST and tokens[place].word:
        used.append(place)
        place += 1
    special = _special(tokens, start, first)
    if special is not None:
        return special
    for count in range(len(used), 0, -1):
        name = " ".join(tokens[index].word for index in used[:count]).upper()
        if name in TREATMENTS:
            return name, used[count - 1] + 1
    return "", start


def _special(tokens: Sequence[Token], start: int, first: str) -> tuple[str, int] | None:
    """Commands whose first words do not tell all."""
    words = [token.word for token in tokens[start : start + 4]] + [""] * 4
    if first == "set":
        return _set(words, start)
    if first == "release":
        return "RELEASE SAVEPOINT", start + (2 if words[1] == "savepoint" else 1)
    if first == "rollback":
        place = 2 if words[1] in ("work", "transaction") else 1
        if words[place] == "to":
            return "ROLLBACK TO SAVEPOINT", start + place + 1
    if first == "prepare" and words[1] == "transaction":
        third = tokens[start + 2] if len(tokens) > start + 2 else None
        if third is not None and third.kind is not Kind.STRING:
            return "PREPARE", start + 1  # a statement of the name "transaction"
    if words[:3] == ["create", "default", "conversion"]:
        return "CREATE CONVERSION", start + 3
    return None


def _set(words: Sequence[str], start: int) -> tuple[str, int]:
    place = 1
    if words[1] in ("session", "local") and words[2] not in ("", "to"):
        if words[1:3] == ["session", "authorization"]:
            return "SET SESSION AUTHORIZATION", start + 3
        place = 2
    if words[place : place + 2] == ["session", "authorization"]:
        return "SET SESSION AUTHORIZATION", start + place + 2
    if words[place] == "constraints":
        return "SET CONSTRAINTS", start + place + 1
    if words[place] == "role" and words[place + 1] != "to":
        return "SET ROLE", start + place + 1
    if words[place] in ("transaction", "characteristics") and words[place + 1] != "to":
        return "SET TRANSACTION", start + place + 1
    return "SET", start + place


def where_into(tokens: Sequence[Token]) -> int | None:
    """Where the INTO of a SELECT INTO stands; INTO is a reserved word."""
    for index, token in enumerate(tokens):
        if token.word == "into" and index:
            previous = tokens[index - 1]
            if previous.text != "." and previous.word not in ("as", "insert", "merge"):
                return index
    return None


def in_pg_temp(tokens: Sequence[Token]) -> bool:
    """Whether a name is qualified by pg_temp."""
    return len(tokens) > 1 and tokens[0].name == "pg_temp" and tokens[1].text == "."


Range = tuple[int, int]


def _prepared(command: Command) -> Range | None:
    for token in top_level(command.rest):
        if token.word == "as":
            return token.end, len(command.sql)
    return None


def _explained(command: Command) -> Range | None:
    rest = command.rest
    index = closing(rest, 0) + 1 if rest and rest[0].text == "(" and is_option_list(rest) else 0
    if index == 0:
        while index < len(rest) and rest[index].word in ("analyze", "analyse", "verbose"):
            index += 1
    return (rest[index].start, len(command.sql)) if index < len(rest) else None


def _copied(command: Command) -> Range | None:
    rest = command.rest
    if not rest or rest[0].text != "(":
        return None
    end = closing(rest, 0)
    return (rest[0].end, rest[end].start) if end < len(rest) else None


def _declared(command: Command) -> Range | None:
    for token in top_level(command.rest):
        if token.word == "for":
            return token.end, len(command.sql)
    return None


_INNER = {
    "PREPARE": _prepared,
    "EXPLAIN": _explained,
    "COPY": _copied,
    "DECLARE": _declared,
}


def closing(tokens: Sequence[Token], opening: int) -> int:
    """Index of the parenthesis that closes the one at ``opening``; the length when none does."""
    depth = 0
    for index in range(opening, len(tokens)):
        if tokens[index].text == "(":
            depth += 1
        elif tokens[index].text == ")":
            depth -= 1
            if depth == 0:
                return index
    return len(tokens)


def is_option_list(tokens: Sequence[Token]) -> bool:
    """Whether the parenthesis that EXPLAIN is followed by holds options, not a query."""
    return len(tokens) > 1 and tokens[1].word not in ("", "select", "with", "values", "table")


def explain_options(explain: Command) -> dict[str, str]:
    """The options of an EXPLAIN with their values, folded; ``on`` for one without a value."""
    rest = explain.rest
    if not (rest and rest[0].text == "(" and is_option_list(rest)):
        words = takewhile((*_ANALYZE, "verbose").__contains__, (token.word for token in rest))
        return dict.fromkeys(words, "on")
    options, name = {}, ""
    for token in rest[1 : closing(rest, 0)]:
        if token.text == ",":
            name = ""
        elif name:
            options[name] = token.name or token.text.strip("'").lower()
        else:
            name = token.name or ""
            options[name] = "on"
    return options


def analyzes(explain: Command) -> bool:
    """Whether an EXPLAIN runs its statement; an ANALYZE option that is off counts as on."""
    return not explain_options(explain).keys().isdisjoint(_ANALYZE)


_ANALYZE = ("analyze", "analyse")


class Truncated(NamedTuple):
    """What TRUNCATE names, and its options (change/schema.py)."""

    names: list[Sequence[Token]]
    options: int


def truncated(command: Command) -> Truncated | None:
    """What TRUNCATE names; None when the statement has another form than the manual's."""
    tokens = [token for token in command.rest if token.text not in ("(", ")")]  # ONLY (name)
    place = 1 if tokens and tokens[0].word == "table" else 0
    names = []
    while name := object_name(tokens[place:]):
        names.append(name)
        place = tokens.index(name[-1], place) + 1
        if place < len(tokens) and tokens[place].text == "*":
            place += 1
        if place == len(tokens) or tokens[place].word in _AFTER_TRUNCATED:
            said = {token.word for token in tokens[place:]}
            return Truncated(names, sum(_TRUNCATE_OPTIONS.get(word, 0) for word in said))
        if tokens[place].text != ",":
            break
        place += 1
    return None


_AFTER_TRUNCATED = ("restart", "continue", "cascade", "restrict")
_TRUNCATE_OPTIONS = {"restart": RESTART_IDENTITY, "cascade": CASCADE}
