# SPDX-License-Identifier: Apache-2.0
"""Sequences of a table that a TRUNCATE ... RESTART IDENTITY of the publisher starts again.

PostgreSQL's apply does the same (apply_handle_truncate, ExecuteTruncateGuts): the sequences that
columns of the target own, and those of its partitions, in the transaction that empties it.

Rows that are inserted after that in the same batch get their values in another session, which
starts the sequences again, too, and is rolled back (row_values.py).  Where they are by then, the
batch's own session is told.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from psycopg import sql

from penstock.control.connect import ControlConnection
from penstock.names import quote_pg_qualified

_OWNED = """
SELECT s.oid::bigint, n.nspname, s.relname FROM pg_depend d
JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S' JOIN pg_namespace n ON n.oid = s.relnamespace
WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
    AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i')  -- OWNED BY, IDENTITY
    AND d.refobjid IN (SELECT relid FROM pg_partition_tree(%(relid)s::oid)
                       UNION SELECT %(relid)s::oid)
ORDER BY s.oid"""


@dataclass(frozen=True)
class Sequence:
    """A sequence, with its name as SQL."""

    oid: int
    name: str


@dataclass
class Restarted:
    """Sequences that start again, and the last value of each, by OID, that has given one since."""

    sequences: tuple[Sequence, ...]
    positions: dict[int, int] = field(default_factory=dict)

    @property
    def statements(self) -> str:
        """What brings them there, in a transaction in which nothing else has run."""
        again = "".join(f"; ALTER SEQUENCE {each.name} RESTART" for each in self.sequences)
        moved = self.positions.items()
        return again + "".join(f"; SELECT pg_catalog.setval({oid:d}, {at:d})" for oid, at in moved)

    @property
    def query(self) -> str:
        """Their last values, by OID: what has run before may have given their names to others."""
        items = (f"pg_catalog.pg_sequence_last_value({each.oid:d})" for each in self.sequences)
        return f"SELECT {', '.join(items)}"

    def moved(self, values: tuple[int | None, ...]) -> None:
        """Take note of what ``query`` gave."""
        for each, value in zip(self.sequences, values, strict=True):
            if value is not None:
                self.positions[each.oid] = value


def owned_sequences(conn: ControlConnection, relid: int) -> tuple[Sequence, ...]:
    """The sequences that columns of a relation, and of its partitions, own."""
    rows = conn.execute(_OWNED, {"relid": relid}).fetchall()
    return tuple(Sequence(oid, quote_pg_qualified(*name)) for oid, *name in rows)


def restart_sequences(conn: ControlConnection, restarted: Restarted, role: str) -> None:
    """Start them again, as ``role``, where they are by now; 42501 when it does not own one."""
    conn.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
    for each in restarted.sequences:
        conn.execute(f"ALTER SEQUENCE {each.name} RESTART".encode())
    conn.execute("SET LOCAL ROLE NONE")
    for oid, value in restarted.positions.items():
        conn.execute("SELECT setval(%s::oid::regclass, %s)", [oid, value])
