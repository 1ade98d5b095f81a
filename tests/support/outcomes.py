# SPDX-License-Identifier: Apache-2.0
"""What a server answers to a text: each result, the error at the end, the state that is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import ExecStatus

SQLSTATE = 67  # PG_DIAG_SQLSTATE
MESSAGE = 77  # PG_DIAG_MESSAGE_PRIMARY
REFUSED = frozenset({"0A000", "42501"})
"""What the node says about what it does not do."""

_COPIES = (ExecStatus.COPY_OUT, ExecStatus.COPY_IN)


@dataclass(frozen=True)
class Outcome:
    """Results in order, each a tag with its rows in no order; ``error`` is a SQLSTATE."""

    results: tuple[tuple[str, Hashable], ...]
    error: str | None
    message: str
    status: int

    def agrees(self, expected: Outcome) -> bool:
        """Whether this is the answer ``expected``, errors and transaction status included."""
        same = (self.results, self.error) == (expected.results, expected.error)
        return same and self.status == expected.status

    def refuses(self, expected: Outcome) -> bool:
        """Whether the answer was the expected one until something was refused."""
        begin = expected.results[: len(self.results)]
        return self.error in REFUSED and self.results == begin


def ask(conn: psycopg.Connection[Any], text: bytes, extended: bool = False) -> Outcome:
    """Send a text as a simple query, or as a prepared statement; the session goes on after it."""
    pgconn = conn.pgconn
    if not extended:
        pgconn.send_query(text)
        return _outcome(conn, _results(conn))
    pgconn.send_prepare(b"", text)
    parsed = _results(conn)
    if parsed[-1].status == ExecStatus.FATAL_ERROR:
        return _outcome(conn, parsed)
    pgconn.send_query_prepared(b"", [])
    return _outcome(conn, _results(conn))


def _results(conn: psycopg.Connection[Any]) -> list[Any]:
    results = []
    while (result := _next(conn)) is not None:
        results.append(result)
    return results


def _next(conn: psycopg.Connection[Any]) -> Any:
    result = conn.pgconn.get_result()
    if result is None or result.status not in _COPIES:
        return result
    if result.status == ExecStatus.COPY_IN:
        conn.pgconn.put_copy_end(b"no rows")
        return result
    rows = []
    while (length_and_row := conn.pgconn.get_copy_data(0))[0] > 0:
        rows.append(bytes(length_and_row[1]))
    return Counter(rows)


def _outcome(conn: psycopg.Connection[Any], found: Sequence[Any]) -> Outcome:
    results: list[tuple[str, Hashable]] = []
    error, message = None, ""
    for each in found:
        if isinstance(each, Counter):
            results.append(("COPY OUT", frozenset(each.items())))
        elif (state := each.error_field(SQLSTATE)) is not None:
            error, message = state.decode(), (each.error_field(MESSAGE) or b"").decode()
        elif each.status != ExecStatus.COPY_IN:
            results.append(((each.command_status or b"").decode(), _rows(each)))
    return Outcome(tuple(results), error, message, conn.pgconn.transaction_status)


def _rows(result: Any) -> Hashable:
    rows = Counter(
        tuple(result.get_value(row, column) for column in range(result.nfields))
        for row in range(result.ntuples)
    )
    return frozenset(rows.items())
