# SPDX-License-Identifier: Apache-2.0
"""Functions of text and bytea, under collation C: only ASCII letters have upper and lower case."""

from __future__ import annotations

import string

from penstock.change import types
from penstock.names import quote_spark_literal
from penstock.sql.translate.casts import as_text
from penstock.sql.translate.registry import Call, Handler, constant_argument, register, template
from penstock.sql.translate.values import Expr, failure, let, literal, refusal

_UPPER, _LOWER = string.ascii_uppercase, string.ascii_lowercase


def lower(sql: str) -> str:
    """ASCII letters in lower case."""
    return f"translate({sql}, '{_UPPER}', '{_LOWER}')"


def _int(value: str) -> str:
    """A BIGINT brought into INT's range, where more makes no difference to a string's length."""
    return f"CAST(least({value}, 2147483647L) AS INT)"


template(lower("{0}"), "lower(text)")
template(f"translate({{0}}, '{_LOWER}', '{_UPPER}')", "upper(text)")
template("char_length({0})", "length(text)", "char_length(text)", "character_length(text)")
template("char_length(TRIM(TRAILING ' ' FROM {0}))", "length(bpchar)", "char_length(bpchar)",
         "character_length(bpchar)")  # fmt: skip
template("octet_length({0})", "octet_length(text)", "octet_length(bpchar)", "octet_length(bytea)",
         "length(bytea)")  # fmt: skip
template("bit_length({0})", "bit_length(text)", "bit_length(bytea)")
template("instr({0}, {1})", "strpos(text,text)", "position(text,text)")
template("replace({0}, {1}, {2})", "replace(text,text,text)")
template("startswith({0}, {1})", "starts_with(text,text)")
template("concat({0}, {1})", "textcat", "byteacat")
template("md5(CAST({0} AS BINARY))", "md5(text)")
template("md5({0})", "md5(bytea)")
template("reverse({0})", "reverse(text)")
template("translate({0}, {1}, {2})", "translate(text,text,text)")
template("TRIM(BOTH ' ' FROM {0})", "btrim(text)")
template("TRIM(LEADING ' ' FROM {0})", "ltrim(text)")
template("TRIM(TRAILING ' ' FROM {0})", "rtrim(text)")
template("TRIM(BOTH {1} FROM {0})", "btrim(text,text)")
template("TRIM(LEADING {1} FROM {0})", "ltrim(text,text)")
template("TRIM(TRAILING {1} FROM {0})", "rtrim(text,text)")
template("lpad({0}, {1}, ' ')", "lpad(text,int4)")
template("rpad({0}, {1}, ' ')", "rpad(text,int4)")
template("lpad({0}, {1}, {2})", "lpad(text,int4,text)")
template("rpad({0}, {1}, {2})", "rpad(text,int4,text)")
template("repeat({0}, {1})", "repeat(text,int4)")


@register("substr(text,int4)", "substring(text,int4)")
def _substring_from(call: Call) -> Expr:
    text, start = (arg.sql for arg in call.args)
    sql = let([start], lambda v: f"substring({text}, IF({v[0]} < 1, 1, {v[0]}))")
    return Expr(sql, types.TEXT)


@register("substr(text,int4,int4)", "substring(text,int4,int4)")
def _substring(call: Call) -> Expr:
    text, start, size = (arg.sql for arg in call.args)
    negative = failure("22011", "negative substring length not allowed")

    def cut(first: str, length: str) -> str:
        begin = f"IF({first} < 1, 1, {first})"
        end = f"(CAST({first} AS BIGINT) + {length})"
        # NULL in any argument makes the length NULL, but greatest() would skip it.
        left = f"IF({end} - {begin} < 0, 0L, {end} - {begin})"
        wrong = f"{length} < 0 AND {first} IS NOT NULL AND {text} IS NOT NULL"
        return f"IF({wrong}, {negative}, substring({text}, {begin}, {_null_int(left)}))"

    return Expr(let([start, size], lambda v: cut(v[0], v[1])), types.TEXT)


def _null_int(sql: str) -> str:
    return f"CAST(IF({sql} > 2147483647L, 2147483647L, {sql}) AS INT)"


@register("left(text,int4)")
def _left(call: Call) -> Expr:
    return _one_end(call, "left")


@register("right(text,int4)")
def _right(call: Call) -> Expr:
    return _one_end(call, "right")


def _one_end(call: Call, end: str) -> Expr:
    """A negative length is what to leave out at the other end."""
    sql = let(
        [arg.sql for arg in call.args],
        lambda v: (
            f"IF({v[1]} >= 0, {end}({v[0]}, {v[1]}), {end}({v[0]}, char_length({v[0]}) + {v[1]}))"
        ),
    )
    return Expr(sql, types.TEXT)


@register("split_part(text,text,int4)")
def _split_part(call: Call) -> Expr:
    text, delimiter, part = (arg.sql for arg in call.args)
    zero = failure("22023", "field position must not be zero")
    given = f"{text} IS NOT NULL AND {delimiter} IS NOT NULL"
    sql = let(
        [part],
        lambda v: f"IF({v[0]} = 0 AND {given}, {zero}, split_part({text}, {delimiter}, {v[0]}))",
    )
    return Expr(sql, types.TEXT)


def output(call: Call, arg: Expr) -> str:
    """What the argument's output function prints: for boolean, t or f."""
    if arg.oid == types.BOOL:
        return f"IF({arg.sql}, 't', IF({arg.sql} IS NULL, NULL, 'f'))"
    if arg.oid == types.BPCHAR:
        return arg.sql
    return as_text(call.session, arg).sql


@register("concat(any)")
def _concat(call: Call) -> Expr:
    parts = ", ".join(f"coalesce({output(call, arg)}, '')" for arg in call.args)
    return Expr(f"concat({parts})", types.TEXT)


@register("concat_ws(text,any)")
def _concat_ws(call: Call) -> Expr:
    separator = call.args[0].sql
    parts = ", ".join([separator, *(output(call, arg) for arg in call.args[1:])])
    return Expr(f"concat_ws({parts})", types.TEXT)


@register("textanycat")
def _text_any(call: Call) -> Expr:
    a, b = call.args
    return Expr(f"concat({a.sql}, {as_text(call.session, b).sql})", types.TEXT)


@register("anytextcat")
def _any_text(call: Call) -> Expr:
    a, b = call.args
    return Expr(f"concat({as_text(call.session, a).sql}, {b.sql})", types.TEXT)


@register("encode(bytea,text)")
def _encode(call: Call) -> Expr:
    if constant_argument(call, 1, "an encoding") != "hex":
        raise refusal("encode() to another form than hex")
    return Expr(f"lower(hex({call.args[0].sql}))", types.TEXT)


@register("like_escape(text,text)")
def _like_escape(call: Call) -> Expr:
    pattern = constant_argument(call, 0, "a LIKE pattern")
    escape = constant_argument(call, 1, "an ESCAPE character")
    assert isinstance(pattern, str) and isinstance(escape, str)
    if len(escape) > 1:
        raise refusal("an ESCAPE of several characters")
    parts, i = [], 0
    while i < len(pattern):
        if pattern[i] == escape and i + 1 < len(pattern):
            parts.append("\\" + pattern[i + 1])
            i += 2
            continue
        if pattern[i] == escape:
            raise refusal("a LIKE pattern that ends with the escape character")
        parts.append("\\\\" if pattern[i] == "\\" else pattern[i])
        i += 1
    return literal(types.TEXT, "".join(parts))


def spark_pattern(pattern: str) -> str:
    """A LIKE pattern for Spark, which allows its escape only before %, _ and itself."""
    parts, i = [], 0
    while i < len(pattern):
        if pattern[i] != "\\":
            parts.append(pattern[i])
            i += 1
            continue
        if i + 1 == len(pattern):
            raise refusal("a LIKE pattern that ends with the escape character")
        following = pattern[i + 1]
        parts.append("\\" + following if following in "%_\\" else following)
        i += 2
    return "".join(parts)


def _like(negated: bool, any_case: bool) -> Handler:
    def handler(call: Call) -> Expr:
        text = call.args[0].sql
        if call.args[1].value is None:
            return literal(types.BOOL, None)
        pattern = constant_argument(call, 1, "a LIKE pattern")
        assert isinstance(pattern, str)
        if any_case:
            text = lower(text)
            pattern = pattern.translate(str.maketrans(_UPPER, _LOWER))
        word = "NOT LIKE" if negated else "LIKE"
        quoted = quote_spark_literal(spark_pattern(pattern))
        return Expr(f"({text} {word} {quoted})", types.BOOL)

    return handler


for _stem in ("text", "bpchar", "name"):
    register(f"{_stem}like", f"{_stem}_like")(_like(negated=False, any_case=False))
    register(f"{_stem}nlike")(_like(negated=True, any_case=False))
    register(f"{_stem}iclike")(_like(negated=False, any_case=True))
    register(f"{_stem}icnlike")(_like(negated=True, any_case=True))
register("like(text,text)")(_like(negated=False, any_case=False))
register("notlike(text,text)")(_like(negated=True, any_case=False))
