# SPDX-License-Identifier: Apache-2.0
"""The lexer and the splitter: nothing is lost, and no literal is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.sql.split import split_statements, statements
from penstock.sql.tokens import Kind, fold, significant, tokens, truncate

ATOMS = st.sampled_from(
    (
        *("'", '"', "\\", "$", "$a$", "$1", "a1$", "--", "/*", "*/", ";", "(", ")"),
        *("E", "e'", "U&", "U&'", 'u&"', "N'", "x", "ü", "begin", "atomic"),
        *("1", "1.5", "..", "::", "+", "@"),
    )
)
SPACES = st.sampled_from([" ", "\n", "\t", ""])
TEXTS = st.lists(ATOMS | SPACES, max_size=25).map("".join) | st.text(max_size=40)


@given(TEXTS, st.booleans())
def test_tokens_joined_are_the_text(text: str, conforming: bool) -> None:
    """Every character belongs to exactly one token, at the place that it tells."""
    found = tokens(text, conforming)
    assert "".join(token.text for token in found) == text
    assert [token.start for token in found] == [
        sum(len(each.text) for each in found[:index]) for index in range(len(found))
    ]


@given(TEXTS, st.booleans())
def test_statements_keep_their_text_and_place(text: str, conforming: bool) -> None:
    """A statement is a piece of the text; only semicolons and empty parts are between them."""
    for statement in statements(text, conforming):
        assert text[statement.start :].startswith(statement.text)
        assert significant(statement.text, conforming)
    kept = "".join(split_statements(text, conforming))
    dropped = [token for token in significant(text, conforming) if token.text != ";"]
    assert all(token.text.rstrip("; \t\n\r\f\v") in kept for token in dropped)


LITERALS = st.one_of(
    st.text(max_size=10).map(lambda body: "'" + body.replace("'", "''") + "'"),
    st.text(max_size=10).map(
        lambda body: "E'" + body.replace("\\", "\\\\").replace("'", "\\'") + "'"
    ),
    st.text(max_size=10).filter(lambda b: "$" not in b).map(lambda body: f"$x${body}$x$"),
    st.text(max_size=10).filter(bool).map(lambda body: '"' + body.replace('"', '""') + '"'),
    st.text(max_size=10)
    .filter(lambda b: "*/" not in b and "/*" not in b and b[-1:] not in ("/", "*") and b[:1] != "/")
    .map(lambda body: f"/*{body}*/"),
    st.text(max_size=10)
    .filter(lambda b: not {"\n", "\r"} & set(b))
    .map(lambda body: f"--{body}\n"),
)


@given(st.lists(LITERALS, min_size=1, max_size=5))
def test_a_semicolon_inside_of_a_literal_cuts_nothing(literals: list[str]) -> None:
    """Whatever stands in quotes or comments, a statement ends outside of it."""
    text = "SELECT " + " , ".join(literals) + " x"
    assert split_statements(f"{text};{text}") == [text, text]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        (" ;; -- nothing\n ; /* ; */", []),
        ("select 1", ["select 1"]),
        ("select 1;", ["select 1"]),
        (" select 1 ; select 2 ", [" select 1 ", " select 2 "]),
        ("select ';', \";\", $$;$$, $a$;$$;$a$", ["select ';', \";\", $$;$$, $a$;$$;$a$"]),
        ("select 'it''s;'; x", ["select 'it''s;'", " x"]),
        ("select E'\\';'; x", ["select E'\\';'", " x"]),
        ("select '\\'; x", ["select '\\'", " x"]),
        ("select E'a'\n'\\';'; x", ["select E'a'\n'\\';'", " x"]),
        ("select E'a' -- c\n '\\';'; x", ["select E'a' -- c\n '\\';'", " x"]),
        ("select E'a' '\\'; x", ["select E'a' '\\'", " x"]),
        ("select /* ; /* ; */ ; */ 1; x", ["select /* ; /* ; */ ; */ 1", " x"]),
        ("select a$$;b$$; x", ["select a$$", "b$$", " x"]),
        ("select $1;x", ["select $1", "x"]),
        ("create rule r as on insert to t do (select 1; select 2); x",
         ["create rule r as on insert to t do (select 1; select 2)", " x"]),
        ("create function f() returns int begin atomic select 1; select case when a then 1 end;"
         " end; x",
         ["create function f() returns int begin atomic select 1; select case when a then 1 end;"
          " end", " x"]),
        ("create or replace procedure f() begin atomic end; x",
         ["create or replace procedure f() begin atomic end", " x"]),
        ("begin; select 1; end; x", ["begin", " select 1", " end", " x"]),
        ("select 'open; x", ["select 'open; x"]),
    ],
)  # fmt: skip
def test_statements_end_where_postgresql_ends_them(text: str, parts: list[str]) -> None:
    """Semicolons in literals, rule actions and routine bodies do not count."""
    assert split_statements(text) == parts


def test_backslashes_count_when_strings_do_not_conform() -> None:
    """standard_conforming_strings = off makes '' an escape string, but not B'' and X''."""
    assert split_statements("select '\\'; x'; y", False) == ["select '\\'; x'", " y"]
    assert split_statements("select x'\\'; y", False) == ["select x'\\'", " y"]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("select", ["word"]),
        ('"a""b"', ["quoted"]),
        ('U&"a" u&"b"', ["unicode", "unicode"]),
        ("U&'a' N'b' b'1' X'f' e'\\''", ["string"] * 5),
        ("$1 $a$x$a$ a$1", ["parameter", "string", "word"]),
        ("1 1.5 .5 1e-3 0x1f 1_000 1.", ["number"] * 7),
        ("a::b a:=b a=>b 1..2", ["word", "operator", "word", "word", "operator", "word", "word",
                                 "operator", "word", "number", "operator", "number"]),
        ("+--x\n-", ["operator", "operator"]),
        ("@/*x*/@", ["operator", "operator"]),
        ("a[1:2]", ["word", "symbol", "number", "symbol", "number", "symbol"]),
        ('"open', ["broken"]),
        ("/* open", ["broken"]),
        ("$a$ open", ["broken"]),
    ],
)  # fmt: skip
def test_tokens_have_the_kinds_of_scan_l(text: str, kinds: list[str]) -> None:
    """Words, names, strings, parameters, numbers, operators."""
    assert [token.kind.value for token in significant(text)] == kinds


def test_names_are_those_of_postgresql() -> None:
    """ASCII letters fold, quotes double, and 63 bytes remain."""
    assert [token.name for token in significant('ÄbC "Ab""C" \'x\' 1')] == [
        "Äbc",
        'Ab"C',
        None,
        None,
    ]
    assert fold("ÄÖÜabcXYZ") == "ÄÖÜabcxyz"
    assert truncate("ä" * 40) == "ä" * 31
    assert truncate("x" * 70) == "x" * 63


def test_an_awkward_text_is_lexed_in_linear_time() -> None:
    """No text makes the lexer slow: each of these would, by backtracking."""
    for text in ("'" + " \n" * 20000, "'a' \n" * 20000, '"' * 40001, "$" * 40000, "/*" * 20000):
        assert "".join(token.text for token in tokens(text)) == text


def test_psqls_queries_are_one_statement_each() -> None:
    """A last semicolon, white space and comments do not make a second one."""
    assert split_statements("SELECT 1 AS x;\n") == ["SELECT 1 AS x"]
    assert [token.kind for token in significant("-- c\n")] == []
    assert significant("SELECT")[0].kind is Kind.WORD
