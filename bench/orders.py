# SPDX-License-Identifier: Apache-2.0
"""The table that everything is measured on: seven columns, one bigint key."""

from __future__ import annotations

from dataclasses import dataclass

COLUMNS = """
(id bigint PRIMARY KEY, region text, customer int, amount numeric(12,2), status text, note text,
ts timestamptz)"""
DEFINITION = f"CREATE TABLE orders {COLUMNS}"


def insert(first: int, rows: int, table: str = "orders") -> str:
    """One statement that inserts ``rows`` orders from id ``first`` on."""
    return (
        f"INSERT INTO {table} SELECT g, (array['NSW','QLD','VIC','ACT','NT'])[1 + g % 5],"
        " g % 100000, (g % 100000) / 100.0, 'new', 'note number ' || g, now()"
        f" FROM generate_series({first}, {first + rows - 1}) g"
    )


@dataclass(frozen=True)
class Workload:
    """Statements for the publisher; ``changes`` is how many rows they change.

    ``goal``: how many times as fast as native its stream must be applied.
    """

    name: str
    changes: int
    sql: str
    goal: float | None


TURNS = 3
"""How often each load can be repeated: deletes take other rows each time."""


def workloads(copied: int, scale: float, turn: int) -> list[Workload]:
    """The loads of a stream, on a table that has ``copied`` rows; scale 1 is the full size.

    ``turn`` counts from 0 to TURNS - 1.
    """
    million, half, singles, fours = (int(n * scale) for n in (1_000_000, 500_000, 100_000, 50_000))
    first = copied + 1 + turn * (million + singles + fours)
    kept = copied - turn * half
    next_id = first + million
    return [
        Workload(f"{million:,} inserts, one transaction", million, insert(first, million), 1.0),
        Workload(
            f"{half:,} updates, one transaction",
            half,
            f"UPDATE orders SET status = 'paid', amount = amount + 1 WHERE id <= {half}",
            0.8,
        ),
        Workload(
            f"{half:,} deletes, one transaction",
            half,
            f"DELETE FROM orders WHERE id > {kept - half} AND id <= {kept}",
            None,
        ),
        Workload(
            f"{singles:,} single-row transactions",
            singles,
            _in_a_loop(next_id, singles, f"INSERT INTO orders VALUES (g, {_VALUES})"),
            1.2,
        ),
        Workload(
            f"{fours:,} four-row transactions",
            4 * fours,
            _in_a_loop(
                next_id + singles,
                fours,
                f"UPDATE orders SET amount = amount + 1 WHERE id IN (g % {half} + 1,"
                f" (g::bigint * 7919) % {half} + 1); UPDATE orders SET status = 'sent' WHERE id ="
                f" (g::bigint * 104729) % {half} + 1; INSERT INTO orders VALUES (g, "
                + _VALUES
                + ")",
            ),
            0.9,
        ),
    ]


_VALUES = "'NSW', g % 1000, 1.5, 'new', 'note number ' || g, now()"


def _in_a_loop(first: int, count: int, statements: str) -> str:
    """A transaction for each g; the publisher's own flushes are not what is measured."""
    return (
        "DO $$ BEGIN PERFORM set_config('synchronous_commit', 'off', false);"
        f" FOR g IN {first}..{first + count - 1} LOOP {statements}; COMMIT; END LOOP; END $$"
    )
