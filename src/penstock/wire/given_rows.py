# SPDX-License-Identifier: Apache-2.0
"""Rows as one parameter of a statement: an array of texts for each column, as texts.

    rows_literal(values)      the parameter
    given_rows(3)             what stands in FROM for it, ``ROWS FROM (...) AS u (x1, x2, x3)``

So a statement gets any number of rows in one message, made by Arrow and compiled code, and its text
does not depend on them.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from penstock.change.relation import LakeColumn
from penstock.wire.array_literal import array_literal
from penstock.wire.rows_text import shown_numerics, text_column


def rows_literal(values: Iterable[pa.ChunkedArray]) -> str:
    """The values of each column in their types' text form."""
    return _literal(_one_array(each) for each in values)


def lake_rows_literal(columns: Iterable[LakeColumn], values: Iterable[pa.ChunkedArray]) -> str:
    """The same for values of lake columns, which expressions and errors then show as queries do."""
    return _literal(
        shown_numerics(_one_array(each), column.type_oid, column.typmod)
        for column, each in zip(columns, values, strict=True)
    )


def given_rows(columns: int, place: bool = False) -> str:
    """The rows in $1 as a relation ``u`` of texts ``x1``, ``x2`` and so on.

    ``place``: and with ``place``, which counts them from 1.
    """
    places = range(1, columns + 1)
    arrays = ", ".join(
        f"pg_catalog.unnest((($1::pg_catalog.text[])[{n}])::pg_catalog.text[])" for n in places
    )
    names = ", ".join([*(f"x{n}" for n in places), *(["place"] if place else [])])
    return f"ROWS FROM ({arrays}){' WITH ORDINALITY' if place else ''} AS u ({names})"


def _literal(arrays: Iterable[pa.Array]) -> str:
    literals = [array_literal(text_column(each)) for each in arrays]
    return array_literal(pa.array(literals, pa.large_string()))


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    joined = column.combine_chunks()
    return joined if isinstance(joined, pa.Array) else joined.chunk(0)
