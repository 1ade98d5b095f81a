# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL is the oracle for the lexer: both see the same statements in awkward texts."""

from __future__ import annotations

import random

import pytest

from penstock.sql.split import split_statements
from tests.support.servers import PostgresServer

ATOMS = (
    *("'", "''", "\\", "\\'", "E'", "e'", "U&'", "N'", "B'", "X'", "$$", "$a$", "$1", "$b", '"'),
    *('""', 'U&"', "--", "/*", "*/", "\n", " ", "  \n ", "\r", "\f", "\v", ";", ";SELECT", ","),
    *("-", "*", "/", "+", "||", "1", "1e5", "0x1", "a", "x", "é", "_", "(", ")", "::text", "AS"),
    *("..", "."),
)
TAILS = ("", "; SELECT 2", " -- ; SELECT 3", "';SELECT 2", "$$;SELECT 3", "*/;select 1")


@pytest.mark.parametrize("conforming", [True, False])
def test_texts_have_the_statements_that_postgresql_finds(
    publisher: PostgresServer, conforming: bool
) -> None:
    """What PostgreSQL parses as one statement is one here; what it finds to be several, several.

    Of 4,000 texts about 200 are valid; the others show nothing.
    """
    chance = random.Random(18)
    judged = 0
    with publisher.connect() as conn:
        conn.execute(f"SET standard_conforming_strings = {'on' if conforming else 'off'}")
        conn.execute("SET escape_string_warning = off")
        for _ in range(4000):
            middle = "".join(chance.choices(ATOMS, k=chance.randint(1, 9)))
            text = f"SELECT 1{chance.choice((',', ' ', ' AS ', ''))}{middle}{chance.choice(TAILS)}"
            message = conn.pgconn.prepare(b"", text.encode()).error_message.decode()
            if not message or "multiple commands" in message:
                judged += 1
                assert (len(split_statements(text, conforming)) > 1) == bool(message), text
    assert judged > 50
