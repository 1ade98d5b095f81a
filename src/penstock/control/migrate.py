# SPDX-License-Identifier: Apache-2.0
"""Bring the schema ``penstock`` in the control database up to date.

``schema/NNN_name.sql`` are applied once, in order, each recorded with its SHA-256 in
``penstock.schema_version``, all in one transaction under an advisory lock: a crash leaves the
schema as it was, and two nodes at one database take turns.

At the end the ledger's slot is made when it is missing: no commit of the lake comes before it.
Recorded DDL of transactions that are long over is forgotten.

A recorded number that this program does not have was applied by a newer one, and a file that
differs from its recorded checksum was changed after it had been applied: both are errors, and
nothing is touched.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from penstock.control.connect import ControlConnection
from penstock.control.ledger import prepare_ledger
from penstock.errors import ConfigurationError

SCHEMA_PATH = Path(__file__).with_name("schema")

# Any constant does; it must only be the same in every node (the bytes of "penstock").
_MIGRATION_LOCK = int.from_bytes(b"penstock", "big")

DDL_KEPT_DAYS = 7
"""ddl_event is read by the transaction that writes it; afterwards only by people."""

_BASE = """
CREATE SCHEMA IF NOT EXISTS penstock;
CREATE TABLE IF NOT EXISTS penstock.schema_version (
    number integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied timestamptz NOT NULL DEFAULT clock_timestamp()
)"""


@dataclass(frozen=True)
class Migration:
    """One numbered file of SQL."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the file's text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrations() -> list[Migration]:
    """The numbered files, in order."""
    return [
        Migration(int(path.name[:3]), path.stem, path.read_text(encoding="utf-8"))
        for path in sorted(SCHEMA_PATH.glob("[0-9][0-9][0-9]_*.sql"))
    ]


def migrate(conn: ControlConnection, known: list[Migration] | None = None) -> list[str]:
    """Apply what is not applied yet; returns the names of what was.

    ``conn`` is a superuser's, outside a transaction.  ConfigurationError when the database's
    schema is newer than this program, or a file was changed after it had been applied.
    """
    known = migrations() if known is None else known
    with conn.transaction():
        conn.execute("SELECT pg_advisory_xact_lock(%s)", [_MIGRATION_LOCK])
        conn.execute("SET LOCAL client_min_messages = warning")
        conn.execute(_BASE)
        rows = conn.execute("SELECT number, name, checksum FROM penstock.schema_version").fetchall()
        applied = {number: (name, checksum) for number, name, checksum in rows}
        _refuse_foreign(applied, known)
        missing = [step for step in known if step.number not in applied]
        for step in missing:
            conn.execute(step.text.encode())
            conn.execute(
                "INSERT INTO penstock.schema_version (number, name, checksum) VALUES (%s, %s, %s)",
                [step.number, step.name, step.checksum],
            )
    conn.execute(
        "DELETE FROM penstock.ddl_event WHERE time < now() - make_interval(days => %s)",
        [DDL_KEPT_DAYS],
    )
    prepare_ledger(conn)
    return [step.name for step in missing]


def _refuse_foreign(applied: dict[int, tuple[str, str]], known: list[Migration]) -> None:
    by_number = {step.number: step for step in known}
    for number, (name, checksum) in sorted(applied.items()):
        step = by_number.get(number)
        if step is None:
            raise ConfigurationError(
                "the control database was written by a newer version of Penstock",
                detail=f'Its schema has step {number}, "{name}", unknown to this version.',
                hint="Use the newer version.",
            )
        if step.checksum != checksum:
            raise ConfigurationError(
                f'schema step "{step.name}" differs from what was applied to the control database',
                detail=f"Applied was {checksum}, this version has {step.checksum}.",
                hint="Use the version of Penstock that wrote this control database.",
            )
