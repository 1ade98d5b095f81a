# SPDX-License-Identifier: Apache-2.0
"""Identifiers and literals: the one place that quotes them, for PostgreSQL and for Spark.

Names come from publishers, and so from strangers: no statement text is ever built from a name
that did not pass through here.  Paths are never built from names at all.
"""

from __future__ import annotations

from penstock.errors import PenstockError


def quote_pg(name: str) -> str:
    """Quote one identifier for PostgreSQL; always quoted, so keywords need no list."""
    _refuse_nul(name)
    return '"' + name.replace('"', '""') + '"'


def quote_pg_qualified(schema: str, name: str) -> str:
    """Quote ``schema.name`` for PostgreSQL."""
    return f"{quote_pg(schema)}.{quote_pg(name)}"


def quote_pg_literal(value: str) -> str:
    """Quote a string constant for PostgreSQL, whatever standard_conforming_strings says."""
    _refuse_nul(value)
    quoted = "'" + value.replace("'", "''") + "'"
    return " E" + quoted.replace("\\", "\\\\") if "\\" in value else quoted


def quote_spark(name: str) -> str:
    """Quote one identifier for Spark SQL."""
    _refuse_nul(name)
    return "`" + name.replace("`", "``") + "`"


def quote_spark_literal(value: str) -> str:
    """Quote a string constant for Spark SQL (backslash is its escape character)."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _refuse_nul(text: str) -> None:
    if "\0" in text:
        raise PenstockError("a name or string cannot contain a zero byte", sqlstate="22021")
