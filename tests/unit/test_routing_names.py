# SPDX-License-Identifier: Apache-2.0
"""Names prove that a statement cannot reach a lake table, and never prove it wrongly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.frontdoor.routing.known_names import KnownNames
from penstock.names import quote_pg
from penstock.sql.tokens import fold, truncate

NONE: frozenset[str] = frozenset()
NAMES = (
    st.text(alphabet="abAB1_$ .\"'ü漢-", min_size=1, max_size=40)
    | st.text(
        alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1
    )
).map(truncate)


def known(*names: str) -> KnownNames:
    """The set of these names."""
    result = KnownNames()
    for name in names:
        result.add(name)
    return result


@given(NAMES)
def test_a_quoted_name_is_always_found(name: str) -> None:
    """Whatever characters a relation's name has, a statement with it is not relayed unseen."""
    assert known(name).may_name_any(f"SELECT * FROM {quote_pg(name)}", NONE)
    assert known(name).may_name_any(f'SELECT 1"x"FROM{quote_pg(name)}y', NONE)


@given(st.from_regex(r"[a-zA-Z_ü][a-zA-Z0-9_ü]*", fullmatch=True).filter(lambda n: len(n) < 30))
def test_an_unquoted_name_is_found_however_it_is_written(name: str) -> None:
    """PostgreSQL folds it, and so do we."""
    for text in (name, name.swapcase() if name.isascii() else name):
        assert known(fold(name)).may_name_any(f"SELECT $a$x$a${text},1 FROM({text})", NONE)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "SELECT relname FROM pg_class WHERE relname ~ '^(x)$'",
        'SELECT a AS "Orders" FROM b',
        "SELECT lakeside, my_lake FROM x",
    ],
)
def test_other_words_are_not_names(sql: str) -> None:
    """Catalog queries stay quick."""
    assert not known("lake", "order items").may_name_any(sql, NONE)


def test_strings_and_comments_count() -> None:
    """They may: nothing is lexed here, and True is the safe answer."""
    assert known("lake").may_name_any("SELECT 'lake'", NONE)
    assert known("lake").may_name_any("SELECT 1 -- LAKE", NONE)


def test_what_cannot_be_seen_is_not_proved() -> None:
    """Unicode escapes, names that PostgreSQL may have cut, names without letters."""
    assert known("lake").may_name_any('SELECT * FROM U&"l\\0061ke"', NONE)
    assert known("x" * 63).may_name_any("SELECT 1", NONE)
    assert known("---").may_name_any('SELECT * FROM "---"', NONE)
    assert not known("---").may_name_any("SELECT 1", NONE)


def test_other_words_are_found_too() -> None:
    """Words that need a closer look are found like names."""
    assert known().may_name_any("SELECT Set_Config()", frozenset({"set_config"}))
    assert not known().may_name_any("SELECT reset_config()", frozenset({"set_config"}))


def test_views_are_remembered_as_such() -> None:
    """Row-level security needs to know them."""
    names = KnownNames()
    names.add("v", is_view=True)
    names.add("t")
    assert names.views == {"v"}
    assert names.names == {"v", "t"}
