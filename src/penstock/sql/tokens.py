# SPDX-License-Identifier: Apache-2.0
"""A lexer of PostgreSQL's SQL, by the rules of its scan.l.

In:   the text of one or more statements, and whether standard_conforming_strings is on.
Out:  tokens; joined in order (white space and comments are tokens too) they give the text back.

    kind        examples
    ----        --------
    SPACE       white space
    COMMENT     -- to the end of the line, /* nested /* */ */
    WORD        select, Orders, _x$1              (keywords are words: PostgreSQL decides by place)
    QUOTED      "Orders"
    UNICODE     U&"d\\0061t"                       (its name depends on a later UESCAPE)
    STRING      'it''s', E'\\n', $tag$...$tag$, B'1', X'ff', N'x', U&'x', with continuation lines
    PARAMETER   $1
    NUMBER      1, 1_000, 0x1f, 1.5e-3
    OPERATOR    a run of operator characters, ::, :=, =>, ..
    SYMBOL      ( ) [ ] , ; . :
    BROKEN      a literal, quoted name or comment that never ends, up to the end of the text
    OTHER       any other character

Text that PostgreSQL's lexer refuses (numbers with trailing junk, for example) gives some tokens;
PostgreSQL then raises the error.  One deliberate difference: PostgreSQL takes a trailing + or -
off some operators; here they stay, which changes no token's borders but the operator's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

NAME_BYTES = 63
"""NAMEDATALEN - 1: PostgreSQL cuts longer identifiers, at a character's border."""


class Kind(StrEnum):
    """What a token is; see the module's table."""

    SPACE = "space"
    COMMENT = "comment"
    WORD = "word"
    QUOTED = "quoted"
    UNICODE = "unicode"
    STRING = "string"
    PARAMETER = "parameter"
    NUMBER = "number"
    OPERATOR = "operator"
    SYMBOL = "symbol"
    BROKEN = "broken"
    OTHER = "other"


class Token(NamedTuple):
    """One token; ``start`` counts characters of the whole text."""

    kind: Kind
    text: str
    start: int

    @property
    def end(self) -> int:
        """Where the token ends, counted as ``start``."""
        return self.start + len(self.text)

    @property
    def word(self) -> str:
        """An unquoted word in lower case; empty for every other kind of token."""
        return fold(self.text) if self.kind is Kind.WORD else ""

    @property
    def name(self) -> str | None:
        """The identifier that a word or a quoted name stands for; None for other tokens."""
        if self.kind is Kind.WORD:
            return truncate(fold(self.text))
        if self.kind is Kind.QUOTED:
            return truncate(self.text[1:-1].replace('""', '"'))
        return None


# White space with a newline between two quotes continues a string literal, whose first quote
# decides about backslashes.  Possessive quantifiers: no text makes the lexer slow.
_CONTINUE = r"'(?:[ \t\f\v]++|--[^\n\r]*+)*+[\n\r](?:[ \t\n\r\f\v]++|--[^\n\r]*+[\n\r])*+'"
_PLAIN_BODY = rf"(?:[^']++|''|{_CONTINUE})*+'"
_ESCAPE_BODY = rf"(?:[^'\\]++|''|\\[\s\S]|{_CONTINUE})*+'"

_LETTER = r"A-Za-z_\x80-\U0010ffff"
_OPERATOR = r"~!@#^&|`?+\-*/%<>="


def _pattern(standard_conforming_strings: bool) -> re.Pattern[str]:
    # U&'' is an error in PostgreSQL when standard_conforming_strings is off; N'' follows ''.
    plain = _PLAIN_BODY if standard_conforming_strings else _ESCAPE_BODY
    rules = (
        (Kind.SPACE, r"[ \t\n\r\f\v]+"),
        (Kind.STRING, rf"[nN]?'{plain}|[eE]'{_ESCAPE_BODY}|(?:[bBxX]|[uU]&)'{_PLAIN_BODY}"),
        (Kind.UNICODE, r'[uU]&"(?:[^"]++|"")*+"'),
        # Opened but not closed (the rules above did not match): everything that follows.
        (Kind.BROKEN, r"(?:[nNeEbBxX]|[uU]&)?'[\s\S]*|(?:[uU]&)?\"(?!(?:[^\"]++|\"\")*+\")[\s\S]*"),
        (Kind.WORD, rf"[{_LETTER}][{_LETTER}0-9$]*"),
        (Kind.SYMBOL, r"[()\[\],;]|\.(?![.0-9])|:(?![:=])"),
        (Kind.QUOTED, r'"(?:[^"]++|"")*+"'),
        (Kind.COMMENT, r"--[^\n\r]*"),
        ("block", r"/\*"),
        (Kind.PARAMETER, r"\$[0-9]+"),
        ("dollar", rf"\$(?:[{_LETTER}][{_LETTER}0-9]*)?\$"),
        (
            Kind.NUMBER,
            r"0[xX](?:_?[0-9A-Fa-f])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+"
            r"|(?:[0-9](?:_?[0-9])*(?:\.(?!\.)(?:[0-9](?:_?[0-9])*)?)?|\.[0-9](?:_?[0-9])*)"
            r"(?:[eE][+-]?[0-9](?:_?[0-9])*)?",
        ),
        (Kind.OPERATOR, rf"(?:(?!--|/\*)[{_OPERATOR}])+|::|:=|\.\."),
        (Kind.OTHER, r"[\s\S]"),
    )
    return re.compile("|".join(f"(?P<{name}>{rule})" for name, rule in rules))


_PATTERNS = {True: _pattern(True), False: _pattern(False)}
_COMMENT_BORDER = re.compile(r"/\*|\*/")
_KINDS: dict[str | None, Kind | None] = {kind.value: kind for kind in Kind}
_SIGNIFICANT = _KINDS | {Kind.SPACE.value: None, Kind.COMMENT.value: None}


def tokens(sql: str, standard_conforming_strings: bool = True) -> list[Token]:
    """All tokens of a text, white space and comments included."""
    return list(_scan(sql, _PATTERNS[standard_conforming_strings], _KINDS))


def significant(sql: str, standard_conforming_strings: bool = True) -> list[Token]:
    """The tokens without white space and comments."""
    return list(_scan(sql, _PATTERNS[standard_conforming_strings], _SIGNIFICANT))


def _scan(
    sql: str, pattern: re.Pattern[str], kinds: dict[str | None, Kind | None]
) -> Iterator[Token]:
    """Tokens of some kinds; None among the kinds stands for a token that is left out."""
    position = 0
    # One scanner runs to the end; it starts anew behind what no regular expression can match.
    while position < len(sql):
        for match in pattern.finditer(sql, position):
            name = match.lastgroup
            position = match.end()
            if name == "block":
                token = _block_comment(sql, match)
            elif name == "dollar":
                token = _dollar_quote(sql, match)
            else:
                kind = kinds[name]
                if kind is not None:
                    yield Token(kind, match.group(), match.start())
                continue
            position = token.end
            if kinds[token.kind] is not None:
                yield token
            break


def depends_on_backslashes(token: Token) -> bool:
    """Whether standard_conforming_strings decides what a literal is, or where it ends."""
    is_literal = token.kind in (Kind.STRING, Kind.BROKEN) and token.text[0] in "'nN"
    return is_literal and "\\" in token.text


def fold(word: str) -> str:
    """Lower case as PostgreSQL folds identifiers in a UTF-8 database: ASCII letters only."""
    return word.lower() if word.isascii() else word.translate(_ASCII_LOWER)


def truncate(name: str) -> str:
    """The identifier as PostgreSQL keeps it: at most ``NAME_BYTES`` bytes of UTF-8."""
    if len(name) <= NAME_BYTES // 4:
        return name
    return name.encode("utf-8", "surrogatepass")[:NAME_BYTES].decode("utf-8", "ignore")


_ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def _block_comment(sql: str, opening: re.Match[str]) -> Token:
    depth = 1
    for border in _COMMENT_BORDER.finditer(sql, opening.end()):
        depth += 1 if border.group() == "/*" else -1
        if depth == 0:
            return Token(Kind.COMMENT, sql[opening.start() : border.end()], opening.start())
    return Token(Kind.BROKEN, sql[opening.start() :], opening.start())


def _dollar_quote(sql: str, opening: re.Match[str]) -> Token:
    closing = sql.find(opening.group(), opening.end())
    if closing < 0:
        return Token(Kind.BROKEN, sql[opening.start() :], opening.start())
    return Token(
        Kind.STRING, sql[opening.start() : closing + len(opening.group())], opening.start()
    )
