# SPDX-License-Identifier: Apache-2.0
"""CREATE TABLE AS and SELECT INTO in their parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.sql.commands import (
    TEMPORARY,
    Command,
    closing,
    in_pg_temp,
    object_name,
    top_level,
    where_into,
)
from penstock.sql.tokens import Kind, Token

_KINDS = TEMPORARY | {"local", "global", "unlogged", "table"}
"""What may stand between INTO and the name; most can be the name itself."""

_BEHIND_NAME = frozenset(
    {"from", "where", "group", "having", "window", "union", "intersect", "except"}
    | {"order", "limit", "offset", "fetch", "for"}
)
"""Reserved words, one of which stands behind INTO and a name, if anything does."""


@dataclass(frozen=True)
class TableAs:
    """The parts: ``head name columns options AS query``.

    ``head`` is CREATE ... TABLE, with IF NOT EXISTS if ``if_missing``; ``columns`` a list of names
    in parentheses, or empty.  ``temporary``: of the session.  ``query`` stands where it does in
    the command, so that positions in it are those of the command.
    """

    head: str
    name: str
    columns: str
    options: str
    query: str
    temporary: bool
    with_data: bool = True
    if_missing: bool = False

    @property
    def before_query(self) -> str:
        """The command up to its query."""
        return f"{self.head} {self.name} {self.columns} {self.options} AS "

    @property
    def behind_query(self) -> str:
        """What follows the query."""
        return "" if self.with_data else " WITH NO DATA"


def table_as(command: Command) -> TableAs | None:
    """The parts of a command; None for another form, and for AS EXECUTE."""
    if command.name == "SELECT INTO":
        return _selected_into(command)
    rest, sql = command.rest, command.sql
    name = object_name(rest)
    begin = next((token for token in top_level(rest) if token.word == "as"), None)
    if not name or begin is None:
        return None
    tokens = [token for token in command.tokens if token.start >= begin.end]
    words = [token.word for token in tokens]
    if not words or words[0] == "execute":
        return None
    without = words[-3:] == ["with", "no", "data"]
    behind = 3 if without else 2 if words[-2:] == ["with", "data"] else 0
    end = tokens[-behind].start if behind else len(sql)
    options = [token for token in rest if name[-1].end <= token.start < begin.start]
    columns = name[-1].end
    if options and options[0].text == "(":
        columns = options[closing(options, 0)].end
    return TableAs(
        sql[: name[0].start],
        sql[name[0].start : name[-1].end],
        sql[name[-1].end : columns],
        sql[columns : begin.start],
        " " * begin.end + sql[begin.end : end],
        command.temporary,
        with_data=not without,
        if_missing="exists" in [token.word for token in rest if token.end <= name[0].start],
    )


def _selected_into(command: Command) -> TableAs | None:
    sql, tokens = command.sql, command.tokens
    into = where_into(tokens)
    if into is None:
        return None
    place = into + 1
    while tokens[place:] and tokens[place].word in _KINDS and _is_name(tokens, place + 1):
        place += 1
    name = object_name(tokens[place:])
    if not name:
        return None
    kinds = [token.word for token in tokens[into + 1 : place] if token.word != "table"]
    start, end = tokens[into].start, name[-1].end
    return TableAs(
        f"CREATE {' '.join(kinds)} TABLE",
        sql[name[0].start : end],
        "",
        "",
        sql[:start] + " " * (end - start) + sql[end:],
        not TEMPORARY.isdisjoint(kinds) or in_pg_temp(name),
    )


def _is_name(tokens: Sequence[Token], place: int) -> bool:
    if place >= len(tokens) or tokens[place].word in _BEHIND_NAME:
        return False
    return tokens[place].kind in (Kind.WORD, Kind.QUOTED, Kind.UNICODE)
