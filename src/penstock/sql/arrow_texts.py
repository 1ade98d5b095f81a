# SPDX-License-Identifier: Apache-2.0
"""Functions of text that Arrow computes as PostgreSQL does under collation C, by name or signature.

Only ASCII letters have an upper and a lower case; lengths and places count characters.  Patterns,
places, lengths and sets of characters are constants.

    LIKE, ILIKE, ESCAPE    as a prefix, an end, a part, or a pattern of RE2 (like_match.c)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.sql.arrow_values import NotPlainError, Value

MakeText = Callable[[Sequence[Value]], Callable[..., Any]]
"""From a call's arguments to how it is computed; NotPlainError for arguments that are not exact."""

TEXT_FUNCTIONS: dict[str, MakeText] = {}

ANY_ONE, ANY_MANY = object(), object()
"""``_`` and ``%``."""


def like_parts(pattern: str) -> list[Any]:
    """A LIKE pattern: literal texts, ANY_ONE, ANY_MANY; escapes are resolved.

    NotPlainError when it ends with the escape character: PostgreSQL fails only if it gets there.
    """
    parts: list[Any] = []
    literal, at = "", 0
    while at < len(pattern):
        char = pattern[at]
        if char in "%_":
            parts += [literal] if literal else []
            literal = ""
            if char == "_" or parts[-1:] != [ANY_MANY]:
                parts.append(ANY_MANY if char == "%" else ANY_ONE)
        else:
            at += char == "\\"
            if at == len(pattern):
                raise NotPlainError
            literal += pattern[at]
        at += 1
    return [*parts, literal] if literal else parts


def matcher(pattern: str) -> Callable[[Any], Any]:
    """Whether texts are LIKE a pattern; ``\\`` is its escape."""
    parts = like_parts(pattern)
    texts = [part for part in parts if isinstance(part, str)]
    wild = [part is ANY_MANY for part in parts if not isinstance(part, str)]
    if len(texts) == 1 and all(wild) and len(parts) <= 3:
        (text,) = texts
        at = parts.index(text)
        if len(parts) == 1:
            return lambda a: pc.equal(a, text)
        if len(parts) == 3:
            return lambda a: pc.match_substring(a, text)
        match = pc.starts_with if at == 0 else pc.ends_with
        return lambda a: match(a, text)
    expression = "".join(map(_expression, parts))
    return lambda a: pc.match_substring_regex(a, rf"(?s)\A{expression}\z")


def _expression(part: Any) -> str:
    if isinstance(part, str):
        # Every sign by its number: none is special then.
        return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):x}}}" for c in part)
    return "." if part is ANY_ONE else ".*"


def _like(*, negated: bool, any_case: bool) -> MakeText:
    def make(args: Sequence[Value]) -> Callable[..., Any]:
        pattern = _text(args[1])
        match = matcher(_lower(pattern) if any_case else pattern)

        def run(text: Any, _pattern: Any) -> Any:
            found = match(pc.ascii_lower(text) if any_case else text)
            return pc.invert(found) if negated else found

        return run

    return make


def escaped(pattern: str, escape: str) -> str:
    """A LIKE pattern with another escape character, or none, as one with ``\\``."""
    if len(escape) > 1:
        raise NotPlainError
    if escape == "\\":
        return pattern
    found, at = "", 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == escape:
            if at == len(pattern):
                raise NotPlainError
            found += "\\" + pattern[at]
            at += 1
        else:
            found += "\\\\" if char == "\\" else char
    return found


def _like_escape(args: Sequence[Value]) -> Callable[..., Any]:
    pattern = pa.scalar(escaped(_text(args[0]), _text(args[1])))
    return lambda a, b: pattern if isinstance(a, pa.Scalar) else pa.array([], pa.string())


def _substring(args: Sequence[Value]) -> Callable[..., Any]:
    """Places count from 1 and may lie before the text (varlena.c, text_substring)."""
    start = _whole(args[1])
    end = None if len(args) == 2 else start + _whole(args[2])
    if end is not None and end < start:
        raise NotPlainError  # PostgreSQL's error 22011
    first = max(start, 1) - 1
    last = None if end is None else max(end - 1, first)
    return lambda text, *_: pc.utf8_slice_codeunits(text, first, last)


def _left(args: Sequence[Value]) -> Callable[..., Any]:
    count = _whole(args[1])
    return lambda text, _: pc.utf8_slice_codeunits(text, 0, count)


def _right(args: Sequence[Value]) -> Callable[..., Any]:
    count = _whole(args[1])
    if count == 0:
        return lambda text, _: pc.utf8_slice_codeunits(text, 0, 0)
    return lambda text, _: pc.utf8_slice_codeunits(text, -count, None)


def _trim(trim: Callable[..., Any]) -> MakeText:
    def make(args: Sequence[Value]) -> Callable[..., Any]:
        characters = _text(args[1]) if len(args) == 2 else " "
        if not characters:
            return lambda text, *_: text
        return lambda text, *_: trim(text, characters=characters)

    return make


def _replace(args: Sequence[Value]) -> Callable[..., Any]:
    old, new = _text(args[1]), _text(args[2])
    if not old:
        return lambda text, *_: text
    return lambda text, *_: pc.replace_substring(text, pattern=old, replacement=new)


def _starts_with(args: Sequence[Value]) -> Callable[..., Any]:
    start = _text(args[1])
    return lambda text, _: pc.starts_with(text, start)


def _plain(compute: Callable[..., Any]) -> MakeText:
    return lambda _args: compute


def _text(value: Value) -> str:
    """A constant text."""
    found = value.constant.as_py() if value.is_constant else None
    if not isinstance(found, str):
        raise NotPlainError
    return found


def _whole(value: Value) -> int:
    """A constant whole number."""
    found = value.constant.as_py() if value.is_constant else None
    if not isinstance(found, int):
        raise NotPlainError
    return found


def _lower(text: str) -> str:
    return re.sub("[A-Z]", lambda found: found.group().lower(), text)


def _length(text: Any) -> Any:
    return pc.cast(pc.utf8_length(text), pa.int32())


def _octets(content: Any) -> Any:
    return pc.cast(pc.binary_length(content), pa.int32())


def _register() -> None:
    for stem in ("text", "bpchar", "name"):
        for name, negated, any_case in (
            ("like", False, False),
            ("nlike", True, False),
            ("iclike", False, True),
            ("icnlike", True, True),
        ):
            TEXT_FUNCTIONS[stem + name] = _like(negated=negated, any_case=any_case)
    for signatures, make in (
        (("like_escape(text,text)",), _like_escape),
        (("lower(text)",), _plain(pc.ascii_lower)),
        (("upper(text)",), _plain(pc.ascii_upper)),
        (("length(text)", "char_length(text)", "character_length(text)"), _plain(_length)),
        (("octet_length(text)", "octet_length(bytea)", "length(bytea)"), _plain(_octets)),
        (("reverse(text)",), _plain(pc.utf8_reverse)),
        (("textcat",), _plain(lambda a, b: pc.binary_join_element_wise(a, b, ""))),
        (("substr(text,int4)", "substr(text,int4,int4)"), _substring),
        (("substring(text,int4)", "substring(text,int4,int4)"), _substring),
        (("left(text,int4)",), _left),
        (("right(text,int4)",), _right),
        (("btrim(text)", "btrim(text,text)"), _trim(pc.utf8_trim)),
        (("ltrim(text)", "ltrim(text,text)"), _trim(pc.utf8_ltrim)),
        (("rtrim(text)", "rtrim(text,text)"), _trim(pc.utf8_rtrim)),
        (("replace(text,text,text)",), _replace),
        (("starts_with(text,text)",), _starts_with),
    ):
        for signature in signatures:
            TEXT_FUNCTIONS[signature] = make


_register()
