# SPDX-License-Identifier: Apache-2.0
"""Savepoints of ours in what is an implicit transaction for the client.

PostgreSQL has savepoints in transaction blocks only.  So a statement that needs one outside of a
block makes a block of the implicit transaction (BEGIN in a pipeline does that, and keeps what was
done in it), and the block ends where the implicit transaction would: at the next Sync, or at the
end of the query's text.

    what the client does until then     its transaction
    -------------------------------     ---------------
    nothing that fails                  committed before Sync
    anything that fails                 rolled back after Sync
    BEGIN                               goes on as its block, as in PostgreSQL, which does not warn
    COMMIT, ROLLBACK                    ends, as in PostgreSQL, which warns that there is no block
    SAVEPOINT                           PostgreSQL's error: see ``refuse_savepoint``
"""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.frontdoor.backend import ControlBackend
from penstock.sql.tokens import significant


async def own_command(backend: ControlBackend, sql: str) -> None:
    """Run a transaction command of ours in the client's transaction."""
    held, backend.hold_open = backend.hold_open, True
    backend.own_commands = True
    try:
        await backend.query(sql)
    finally:
        backend.hold_open, backend.own_commands = held, False


async def open_block(backend: ControlBackend) -> None:
    """Make a block of an implicit transaction; nothing to do in a block."""
    if backend.ready_status == "I" and not backend.own_block and not backend.block_begun:
        await own_command(backend, "BEGIN")
        backend.own_block = True


async def commit_own_block(backend: ControlBackend) -> None:
    """Commit the block if it is ours and nothing in it has failed; call it before Sync."""
    if backend.own_block and not backend.skipping and not backend.ended:
        backend.own_block = False
        await own_command(backend, "COMMIT")


async def end_pipeline(backend: ControlBackend) -> None:
    """Sync; a block of ours that has failed is rolled back."""
    await backend.sync()
    if backend.own_block:
        backend.own_block = False
        backend.own_commands = True
        try:
            await backend.query("ROLLBACK")
        finally:
            backend.own_commands = False


def refuse_savepoint(backend: ControlBackend, sql: str) -> None:
    """Raise PostgreSQL's error for SAVEPOINT outside of the client's own block (25P01)."""
    if backend.own_block and [token.word for token in significant(sql[:1000])[:1]] == ["savepoint"]:
        raise PenstockError("SAVEPOINT can only be used in transaction blocks", sqlstate="25P01")
