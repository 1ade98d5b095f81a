# SPDX-License-Identifier: Apache-2.0
"""Regular expressions: PostgreSQL's as Java's, where both match exactly the same texts.

Only whether a text matches is asked, so which part of it would match does not matter, and with
that neither greediness nor the order of alternatives.  Under collation C classes and case are
those of ASCII in both.  Translated (PostgreSQL's documentation, "Regular Expression Details"):

    characters, .  ^  $  |  ( )  (?: )       ^ and $ are the ends of the text
    [ ] with characters, ranges, \\d \\s \\w, [:alpha:] and the other classes of POSIX
    * + ? {m} {m,} {m,n}, also with ?        behind a character, . or [ ]; groups see below
    \\d \\s \\w \\D \\S \\W \\t \\n \\r \\f \\A \\Z, and \\ before what is no letter or digit

A group may be repeated up to a number of times, and then nothing in it without an end: Java would
take time, or stack, without bounds.  Refused: back references, look-ahead and look-behind, word
borders, collating elements, embedded options, directors, and what PostgreSQL refuses.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.change import types
from penstock.names import quote_spark_literal
from penstock.sql.translate.registry import Call, Handler, constant_argument, register
from penstock.sql.translate.values import Expr, literal, refusal

_CLASSES = {
    "alnum": "Alnum", "alpha": "Alpha", "blank": "Blank", "cntrl": "Cntrl", "digit": "Digit",
    "graph": "Graph", "lower": "Lower", "print": "Print", "punct": "Punct", "space": "Space",
    "upper": "Upper", "xdigit": "XDigit",
}  # fmt: skip
_ESCAPES = {"t": "\\t", "n": "\\n", "r": "\\r", "f": "\\f"}
_ENDS = {"A": "^", "Z": "\\z"}
_SETS = "dsw"
_SPECIAL = frozenset("*+?{")
_MAX_REPEAT = 255


@dataclass(frozen=True)
class _Part:
    """Java's text of a part; whether it is a group, and repeats something without an end."""

    text: str
    group: bool = False
    endless: bool = False
    anchor: bool = False


def java_pattern(pattern: str, any_case: bool = False) -> str:
    """The Java pattern; refusal names what has no exact form."""
    if pattern.startswith("***"):
        raise _refused(pattern, "a director")
    reader = _Reader(pattern)
    text = reader.alternatives().text
    if reader.at < len(pattern):
        raise _refused(pattern, "an unbalanced parenthesis")
    return f"(?{'i' if any_case else ''}s){text}"


def _refused(pattern: str, what: str) -> Exception:
    return refusal(f'{what} in the regular expression "{pattern}"')


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.at = 0

    def _peek(self) -> str:
        return self._pattern[self.at : self.at + 1]

    def _next(self) -> str:
        if self.at == len(self._pattern):
            raise self._refused("an unfinished part")
        self.at += 1
        return self._pattern[self.at - 1]

    def _refused(self, what: str) -> Exception:
        return _refused(self._pattern, what)

    def alternatives(self) -> _Part:
        texts, endless, text = [], False, ""
        while self._peek() not in ("", ")"):
            if self._peek() == "|":
                self.at += 1
                texts.append(text)
                text = ""
                continue
            part = self._repeated(self._atom())
            text += part.text
            endless |= part.endless
        return _Part("|".join([*texts, text]), endless=endless)

    def _atom(self) -> _Part:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return _Part(self._bracket())
        if char == "\\":
            return self._escape()
        if char in "^$":
            return _Part("^" if char == "^" else "\\z", anchor=True)
        if char in _SPECIAL:
            raise self._refused(f'"{char}" that repeats nothing')
        return _Part("." if char == "." else _quoted(char))

    def _group(self) -> _Part:
        if self._peek() == "?":
            if self._pattern[self.at : self.at + 2] != "?:":
                raise self._refused("an option or a look around")
            self.at += 2
        inner = self.alternatives()
        if self._peek() != ")":
            raise self._refused("an unbalanced parenthesis")
        self.at += 1
        return _Part(f"(?:{inner.text})", group=True, endless=inner.endless)

    def _escape(self) -> _Part:
        char = self._next()
        if char.lower() in _SETS:
            return _Part("\\" + char)
        if char in _ESCAPES:
            return _Part(_ESCAPES[char])
        if char in _ENDS:
            return _Part(_ENDS[char], anchor=True)
        if char.isalnum() or char == "_":
            raise self._refused(f'the escape "\\{char}"')
        return _Part(_quoted(char))

    def _repeated(self, part: _Part) -> _Part:
        sign = self._peek()
        if sign == "" or sign not in _SPECIAL:
            return part
        if part.anchor:
            raise self._refused(f'"{sign}" that repeats nothing')
        self.at += 1
        endless, most = sign in "*+", 1
        if sign == "{":
            sign, endless, most = self._bound()
        if self._peek() == "?":
            self.at += 1
        if self._peek() and self._peek() in _SPECIAL:
            raise self._refused("a repetition of a repetition")
        if part.group and (endless or (part.endless and most > 1)):
            raise self._refused("a group repeated without an end")
        return _Part(part.text + sign, part.group, endless or part.endless)

    def _bound(self) -> tuple[str, bool, int]:
        end = self._pattern.find("}", self.at)
        least, comma, most = self._pattern[self.at : max(end, self.at)].partition(",")
        numbers = [text for text in (least, most) if text]
        valid = end > 0 and least and all(n.isascii() and n.isdigit() for n in numbers)
        if not valid or any(int(n) > _MAX_REPEAT for n in numbers) or int(numbers[-1]) < int(least):
            raise self._refused("this repetition count")
        self.at = end + 1
        return f"{{{least}{comma}{most}}}", bool(comma and not most), int(numbers[-1])

    def _bracket(self) -> str:
        negated = self._peek() == "^"
        self.at += negated
        items: list[str] = []
        while self._peek() != "]" or not items:
            items.append(self._bracket_item(not items))
        self.at += 1
        return f"[{'^' if negated else ''}{''.join(items)}]"

    def _bracket_item(self, leading: bool) -> str:
        first = self._bracket_char()
        if first == "-" and not leading and self._peek() != "]":
            raise self._refused("this range")
        following = self._pattern[self.at : self.at + 2]
        if len(first) > 1 or not following.startswith("-") or following == "-]":
            return first if len(first) > 1 else _quoted(first)
        self.at += 1
        last = self._bracket_char()
        if len(last) > 1 or last < first or "-" in (first, last):
            raise self._refused("this range")
        return f"{_quoted(first)}-{_quoted(last)}"

    def _bracket_char(self) -> str:
        """One character; or Java's text of a class, or of an escaped character."""
        char = self._next()
        if char == "[" and self._peek() in (":", ".", "="):
            end = self._pattern.find(":]", self.at)
            name = _CLASSES.get(self._pattern[self.at + 1 : end]) if self._peek() == ":" else None
            if name is None:
                raise self._refused("this class or collating element")
            self.at = end + 2
            return f"\\p{{{name}}}"
        if char != "\\":
            return char
        char = self._next()
        if char in _SETS:
            return "\\" + char
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char.isalnum() or char == "_":
            raise self._refused(f'the escape "\\{char}" in brackets')
        return _quoted(char)


def _quoted(char: str) -> str:
    """A literal character; ASCII signs by their number, so none is special."""
    return char if char.isalnum() or ord(char) > 127 else f"\\x{ord(char):02x}"


def _matches(negated: bool, any_case: bool) -> Handler:
    def handler(call: Call) -> Expr:
        if call.args[1].value is None:
            return literal(types.BOOL, None)
        pattern = constant_argument(call, 1, "a regular expression")
        quoted = quote_spark_literal(java_pattern(str(pattern), any_case))
        word = "NOT RLIKE" if negated else "RLIKE"
        return Expr(f"({call.args[0].sql} {word} {quoted})", types.BOOL)

    return handler


for _stem in ("text", "bpchar", "name"):
    register(f"{_stem}regexeq")(_matches(negated=False, any_case=False))
    register(f"{_stem}regexne")(_matches(negated=True, any_case=False))
    register(f"{_stem}icregexeq")(_matches(negated=False, any_case=True))
    register(f"{_stem}icregexne")(_matches(negated=True, any_case=True))
