# SPDX-License-Identifier: Apache-2.0
"""Regular expressions have a Java form that matches the same texts, or are refused."""

from __future__ import annotations

import pytest

from penstock.errors import FeatureNotSupportedError
from penstock.sql.translate.patterns import java_pattern


@pytest.mark.parametrize(
    ("pattern", "java"),
    [
        ("", "(?s)"),
        ("ab.c", "(?s)ab.c"),
        ("^a$", "(?s)^a\\z"),
        ("a*?b+c?d{2}e{2,}f{0,3}", "(?s)a*b+c?d{2}e{2,}f{0,3}"),
        ("(a|)(?:b)?", "(?s)(?:a|)(?:b)?"),
        ("(ab*){1}", "(?s)(?:ab*){1}"),
        ("[]a-c-]", "(?s)[\\x5da-c\\x2d]"),
        ("[^\\]\\d[:alpha:]]", "(?s)[^\\x5d\\d\\p{Alpha}]"),
        ("\\.\\W\\t\\A\\Z", "(?s)\\x2e\\W\\t^\\z"),
        ("a&&-é😀", "(?s)a\\x26\\x26\\x2dé😀"),
    ],
)
def test_patterns_have_a_java_form(pattern: str, java: str) -> None:
    """Signs are written by number, so that none of them is special to Java."""
    assert java_pattern(pattern) == java


@pytest.mark.parametrize(
    "pattern",
    ["*a", "a**", "^*", "(a", "a)", "(?i)a", "(?=a)", "(?!a)", "a\\1", "\\ma", "\\u0061", "[a",
     "[b-a]", "[[=a=]]", "[a-c-e]", "[\\w-z]", "a{1", "a{2,1}", "a{256}", "a{,2}", "(a)*",
     "(a|b)+", "(a*){2}", "***:a", "a\\", "[a\\D]", "a{2}{3}"],
)  # fmt: skip
def test_other_patterns_are_refused(pattern: str) -> None:
    """What PostgreSQL refuses, what Java reads otherwise, and what could take it forever."""
    with pytest.raises(FeatureNotSupportedError) as refused:
        java_pattern(pattern)
    assert pattern in refused.value.message


def test_case_is_ascii() -> None:
    """~* ignores the case of ASCII letters, as PostgreSQL does under collation C."""
    assert java_pattern("é", any_case=True) == "(?is)é"
