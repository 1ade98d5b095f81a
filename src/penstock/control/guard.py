# SPDX-License-Identifier: Apache-2.0
"""The node's secret, and the guarded functions that take it.

In a client's own session the node must move table versions and write commit records inside the
client's transaction, with the client's rights.  The functions that do so run with the rights of
the schema's owner, and ask for a secret that only the node knows: 256 random bits in the file
``secret`` of the home, whose SHA-256 is in the control database.

Calls are values: ``sql`` with ``$1`` placeholders, and parameters as text.  Run ``hide_parameters``
first in each transaction: it takes away from the client the two ways to see bind parameters
(an error's context, and the plan in a LOG message) until the transaction ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.control.connect import ControlConnection


@dataclass(frozen=True)
class Call:
    """One statement for the client's session; parameters stay out of its repr."""

    sql: str
    parameters: tuple[str | None, ...] = field(default=(), repr=False)


HIDE_PARAMETERS = Call(
    "SELECT pg_catalog.set_config('log_parameter_max_length_on_error', '0', true),"
    " pg_catalog.set_config('debug_print_plan', 'off', true)"
)
"""First statement of ours in a transaction of a client that will carry the secret."""

NODE_AND_XID = Call("SELECT id::text, pg_catalog.pg_current_xact_id()::text FROM penstock.node")
"""What commits.commit_metadata and commits.commit_record need; gives the transaction its xid."""


@dataclass(frozen=True)
class Guard:
    """Builds the guarded calls with the node's secret."""

    secret: str = field(repr=False)

    def lock_tables(self, relids: Iterable[int]) -> Call:
        """Lock rows of table_version; gives relid, location, version, sole_writer by relid."""
        return Call(
            "SELECT * FROM penstock.lock_tables($1, $2::oid[])", (self.secret, _oids(relids))
        )

    def lock_for_write(self, relids: Iterable[int], written: Iterable[int]) -> Call:
        """Lock what a statement uses; gives JSON of its leaves (schema/140_foreign_keys.sql)."""
        return Call(
            "SELECT penstock.lock_for_write($1, $2::pg_catalog.oid[], $3::pg_catalog.oid[])",
            (self.secret, _oids(relids), _oids(written)),
        )

    def lock_referring(self, relids: Iterable[int]) -> Call:
        """Lock what refers to tables that lost keys; gives JSON as ``lock_for_write``."""
        return Call(
            "SELECT penstock.lock_referring($1, $2::pg_catalog.oid[])", (self.secret, _oids(relids))
        )

    def without_foreign_keys(self) -> Call:
        """Keep triggers of foreign keys from firing until the subtransaction's end."""
        return Call("SELECT penstock.without_foreign_keys($1)", (self.secret,))

    def violations(self) -> Call:
        """The transaction's violations of deferrable constraints (schema/141_…): OID, whether by
        rows that went, keys in base64."""
        return Call("SELECT * FROM penstock.violations($1)", (self.secret,))

    def set_violation(
        self,
        constraint: int,
        by_parent: bool,
        deferred: bool,
        keys: str | None,
        fields: Mapping[str, str],
    ) -> Call:
        """What a deferrable constraint's violation is now; ``fields`` are those of its error."""
        return Call(
            "SELECT penstock.set_violation($1, $2::oid, $3::boolean, $4::boolean, $5, $6::jsonb)",
            (
                self.secret,
                str(constraint),
                str(by_parent),
                str(deferred),
                keys,
                json.dumps(dict(fields)),
            ),
        )

    def open_written_rows(self, query: str) -> Call:
        """Open the cursor ``penstock_written`` on a query, with the owner's rights."""
        return Call("SELECT penstock.open_written_rows($1, $2)", (self.secret, query))

    def row_versions(self, relid: int, ctids: str) -> Call:
        """What became of rows of a relation (schema/128_row_versions.sql); an array literal."""
        return Call(
            "SELECT * FROM penstock.row_versions($1, $2::oid, $3::pg_catalog.tid[])",
            (self.secret, str(relid), ctids),
        )

    def load_rows(self, statement: str, columns: str) -> Call:
        """Put rows into an empty relation; gives a bigint for each (schema/090_writes.sql)."""
        return Call(
            "SELECT * FROM penstock.load_rows($1, $2, $3::pg_catalog.text[])",
            (self.secret, statement, columns),
        )

    def make_xid_durable(self) -> Call:
        """Flush the transaction's xid; gives false where the server cannot (before 17)."""
        return Call("SELECT penstock.make_xid_durable($1)", (self.secret,))

    def set_table_version(
        self, relid: int, version: int | None, sole_writer: str | None = None
    ) -> Call:
        """Move a table to a Delta version; 42P01 when the relation is not a lake table."""
        return Call(
            "SELECT penstock.set_table_version($1, $2::oid, $3::bigint, $4)",
            (self.secret, str(relid), None if version is None else str(version), sole_writer),
        )

    def set_table_columns(self, relid: int) -> Call:
        """Record that the Delta table now has the columns that the relation has."""
        return Call("SELECT penstock.set_table_columns($1, $2::oid)", (self.secret, str(relid)))

    def emit_commit(self, record: Mapping[str, Any]) -> Call:
        """Write the commit record (commits.commit_record makes it)."""
        return Call(
            "SELECT penstock.emit_commit($1, $2::jsonb)",
            (self.secret, json.dumps(record, separators=(",", ":"))),
        )


def _oids(relids: Iterable[int]) -> str:
    """An array literal."""
    return "{" + ",".join(str(relid) for relid in relids) + "}"


def node_secret(path: Path) -> str:
    """Read the secret of a home, or make one (mode 0600, durable on return)."""
    if not path.exists():
        write_private(path, secrets.token_hex(32) + "\n")
    return path.read_text(encoding="ascii").strip()


def register_secret(conn: ControlConnection, secret: str) -> None:
    """Make this secret the one that the guarded functions ask for; ``conn`` is a superuser's."""
    conn.execute(
        "INSERT INTO penstock.guard (secret_hash) VALUES (%s)"
        " ON CONFLICT (only_row) DO UPDATE SET secret_hash = excluded.secret_hash",
        [hashlib.sha256(secret.encode()).digest()],
    )


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
