# SPDX-License-Identifier: Apache-2.0
"""Cut the text of a simple query into its statements.

Statements end at a top-level semicolon: one that is outside of literals, comments and parentheses
(rule actions) and outside of the BEGIN ATOMIC ... END body of a routine.  That is the grammar's
view for every text that PostgreSQL accepts; psql cuts a script the same way.

Concatenated, the parts and their semicolons are the text: a statement keeps its white space and
comments, so that positions in errors can be mapped back.  Parts without a token are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.sql.tokens import Kind, Token, significant

_SPACE = " \t\n\r\f\v"
_ROUTINES = {"function", "procedure"}


@dataclass(frozen=True)
class Statement:
    """One statement of a text; ``start`` counts the characters before it."""

    text: str
    start: int


def split_statements(sql: str, standard_conforming_strings: bool = True) -> list[str]:
    """The statements of a text, without the semicolons between them."""
    return [part.text for part in statements(sql, standard_conforming_strings)]


def statements(sql: str, standard_conforming_strings: bool = True) -> list[Statement]:
    """The statements of a text, with their places in it."""
    if (only := _only_statement(sql)) is not None:
        return [only]
    parts: list[Statement] = []
    state = _State()
    for token in significant(sql, standard_conforming_strings):
        if state.ends_at(token):
            if not state.empty:
                parts.append(Statement(sql[state.start : token.start], state.start))
            state = _State(start=token.end)
    if not state.empty:
        parts.append(Statement(sql[state.start :], state.start))
    return parts


def _only_statement(sql: str) -> Statement | None:
    """The statement of a text that has no semicolon but a last one: most texts, found quickly."""
    text = sql.rstrip(_SPACE)
    first = text.lstrip(_SPACE)[:1]
    if first in ("", "-", "/", ";"):  # nothing, or perhaps a comment
        return None
    if ";" not in text:
        return Statement(sql, 0)
    return Statement(text[:-1], 0) if text.index(";") == len(text) - 1 else None


class _State:
    """Where the lexer stands inside of one statement."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.empty = True
        self.parentheses = 0
        self.blocks = 0  # BEGIN ATOMIC, and the CASE ... END in it
        self.words: list[str] = []  # the first words, enough to know CREATE OR REPLACE FUNCTION
        self.previous = ""

    def ends_at(self, token: Token) -> bool:
        """Take one more token; True when it is the semicolon that ends the statement."""
        if token.kind is Kind.SYMBOL:
            if token.text == ";" and self.parentheses == 0 and self.blocks == 0:
                return True
            if token.text == "(":
                self.parentheses += 1
            elif token.text == ")" and self.parentheses:
                self.parentheses -= 1
        word = token.word
        if len(self.words) < 4:
            self.words.append(word)
        if word in ("atomic", "case", "end") and self._is_routine() and not self.parentheses:
            self._block(word)
        self.empty = False
        self.previous = word
        return False

    def _block(self, word: str) -> None:
        if word == "atomic" and self.previous == "begin":
            self.blocks += 1
        elif self.blocks:
            self.blocks += 1 if word == "case" else -1

    def _is_routine(self) -> bool:
        return self.words[0] == "create" and not _ROUTINES.isdisjoint(self.words)
