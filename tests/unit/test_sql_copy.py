# SPDX-License-Identifier: Apache-2.0
"""COPY ... TO STDOUT read from its text: the source, the columns, the options."""

from __future__ import annotations

import pytest

from penstock.sql.commands import parse
from penstock.sql.copy import ALL, CopyTo, is_copy_to, is_to_client, parse_copy_to, without_freeze


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("COPY t FROM STDIN WITH (FREEZE ON)", "COPY t FROM STDIN WITH (FREEZE 0 )"),
        ("copy t from stdin with (freeze)", "copy t from stdin with (freeze 0)"),
        ("COPY t (a) FROM STDIN (FORMAT csv, freeze 'true', HEADER)", "{} 0     , HEADER)"),
        ("COPY t FROM STDIN (FREEZE off)", "COPY t FROM STDIN (FREEZE off)"),
        ("COPY t FROM STDIN (FREEZE maybe)", "COPY t FROM STDIN (FREEZE maybe)"),
        ("COPY t FROM STDIN WITH CSV FREEZE", "COPY t FROM STDIN WITH CSV       "),
        ("COPY t FROM STDIN CSV FORCE NULL freeze", "COPY t FROM STDIN CSV FORCE NULL freeze"),
        ("COPY freeze FROM STDIN WHERE freeze > 1", "COPY freeze FROM STDIN WHERE freeze > 1"),
    ],
)
def test_freeze_is_left_out(sql: str, expected: str) -> None:
    """FREEZE is about the relation that the rows are read into, which keeps none of them."""
    assert without_freeze(parse(sql)) == expected.format(sql.partition(" 'true'")[0])


def understood(sql: str) -> CopyTo:
    found = parse_copy_to(parse(sql))
    assert found is not None, sql
    return found


@pytest.mark.parametrize(
    ("sql", "kind", "literals", "forced"),
    [
        ("COPY t TO STDOUT", None, {}, ()),
        ("COPY BINARY t TO STDOUT", "binary", {}, ()),
        ("COPY t TO STDOUT WITH BINARY", "binary", {}, ()),
        ("COPY t TO STDOUT CSV HEADER", "csv", {}, ()),
        ("COPY t TO STDOUT (FORMAT csv, HEADER)", None, {"format": "'csv'"}, ()),
        ("COPY t TO STDOUT WITH (FORMAT 'CSV')", None, {"format": "'CSV'"}, ()),
        ("COPY t TO STDOUT DELIMITER AS E'\\t'", None, {"delimiter": "E'\\t'"}, ()),
        ("COPY t TO STDOUT DELIMITERS '|'", None, {"delimiter": "'|'"}, ()),
        (
            "COPY t TO STDOUT USING DELIMITERS '|' WITH NULL AS $$$$",
            None,
            {"delimiter": "'|'", "null": "$$$$"},
            (),
        ),
        (
            "COPY t TO STDOUT CSV QUOTE '''' ESCAPE AS U&'!0041' UESCAPE '!' FORCE QUOTE a, \"B\"",
            "csv",
            {"quote": "''''", "escape": "U&'!0041' UESCAPE '!'"},
            ("a", "B"),
        ),
        ("COPY t TO STDOUT CSV FORCE QUOTE * HEADER", "csv", {}, ALL),
        ("COPY t TO STDOUT (FORMAT csv, FORCE_QUOTE *)", None, {"format": "'csv'"}, ALL),
        (
            "COPY t TO STDOUT (FORCE_QUOTE (a, \"B\"), NULL '', FREEZE false)",
            None,
            {"null": "''"},
            ("a", "B"),
        ),
        ("COPY (SELECT ')' FROM t) TO STDOUT (NULL 1)", None, {"null": "1"}, ()),
    ],
)
def test_options(
    sql: str, kind: str | None, literals: dict[str, str], forced: tuple[str, ...] | str
) -> None:
    """Today's list in parentheses, and both older forms."""
    options = understood(sql).options
    assert (options.kind, dict(options.literals), options.forced) == (kind, literals, forced)


def test_source() -> None:
    """A table with or without columns, or the place of a query."""
    assert understood("COPY a.t TO STDOUT").columns is None
    listed = understood('COPY "A".t (id, "X y") TO STDOUT')
    assert [token.text for token in listed.name] == ['"A"', ".", "t"]
    assert listed.columns == ("id", "X y")
    sql = "COPY ( SELECT (1) ) TO STDOUT"
    place = understood(sql).query
    assert place is not None
    assert sql[slice(*place)] == " SELECT (1) "


@pytest.mark.parametrize(
    "sql",
    [
        "COPY t TO 'file'",
        "COPY t FROM STDIN",
        "COPY t (U&\"a\") TO STDOUT",
        "COPY t TO STDOUT (FORMAT)",
        "COPY t TO STDOUT (unheard_of)",
        "COPY t TO STDOUT (NULL '', )",
        "COPY t TO STDOUT ()",
        "COPY t TO STDOUT (DELIMITER (a))",
        "COPY t TO STDOUT (FORCE_QUOTE a)",
        "COPY t TO STDOUT (NULL '') x",
        "COPY t TO STDOUT DELIMITER x",
        "COPY t TO STDOUT FORCE",
        "COPY t TO STDOUT WHERE true",
    ],
)  # fmt: skip
def test_other_forms(sql: str) -> None:
    """What is not known is not guessed: PostgreSQL has an error for it, or it is refused."""
    assert parse_copy_to(parse(sql)) is None


def test_directions() -> None:
    """STDIN and STDOUT both are the client, as in PostgreSQL."""
    for sql, sends, to_client in (
        ("COPY t TO STDIN", True, True),
        ("COPY (SELECT 1) TO STDOUT", True, True),
        ("COPY t (a) TO PROGRAM 'x'", True, False),
        ("COPY t FROM STDIN", False, False),
        ("COPY t", False, False),
    ):
        command = parse(sql)
        assert (is_copy_to(command), is_to_client(command)) == (sends, to_client)
