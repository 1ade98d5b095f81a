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
    COMMIT, ROLLBACK, PREPARE           ends, as in PostgreSQL, which warns that there is no block
    SAVEPOINT, ... AND CHAIN            PostgreSQL's error: these are for blocks only

Whether a block is open after COMMIT or ROLLBACK, with or without AND CHAIN, their tags do not tell.
So a Sync of ours follows each: it ends nothing, and ReadyForQuery tells.
"""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.frontdoor.backend import ControlBackend
from penstock.frontdoor.link import Link
from penstock.sql.commands import Command, parse
from penstock.wire import responses

_BEGINS = frozenset({"BEGIN", "START TRANSACTION"})
_COMMITS = frozenset({"COMMIT", "END"})
_ENDS = _COMMITS | {"ROLLBACK", "ABORT"}
_SAVEPOINTS = frozenset({"SAVEPOINT", "RELEASE SAVEPOINT", "ROLLBACK TO SAVEPOINT"})
_PREPARES = "PREPARE TRANSACTION"
_BLOCK_COMMANDS = _BEGINS | _ENDS | _SAVEPOINTS | {_PREPARES}

_LEAST_TOLD = "SELECT pg_catalog.current_setting('client_min_messages')"


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


async def judge_deferred(backend: ControlBackend) -> None:
    """Check deferred constraints before the last tag of a text, if a block of ours ends with it.

    PostgreSQL commits an implicit transaction before it tells that its last statement is done.
    """
    if backend.own_block and backend.deferred:
        backend.deferred = False
        await own_command(backend, "SET CONSTRAINTS ALL IMMEDIATE")


async def commit_own_block(backend: ControlBackend) -> None:
    """Commit the block if it is ours and nothing in it has failed; call it before Sync."""
    if backend.own_block:
        await backend.settle()  # what was sent last may still fail
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


def is_block_command(sql: str) -> bool:
    """Whether a statement begins or ends a transaction block, or is about savepoints."""
    return _parsed(sql).name in _BLOCK_COMMANDS


async def judge_block_command(backend: ControlBackend, client: Link, sql: str) -> None:
    """Do as PostgreSQL, which sees no block where ours is, with a statement that comes next.

    25P01 for what is for blocks only, and the warning of that name for the end of a block
    (BeginTransactionBlock and the others in xact.c).
    """
    if not backend.own_block:
        return
    command = _parsed(sql)
    chained = {token.word for token in command.rest} >= {"and", "chain"}
    if command.name in _SAVEPOINTS:
        raise _only_in_blocks(command.name)
    if command.name in _ENDS and chained and "no" not in {each.word for each in command.rest}:
        raise _only_in_blocks(f"{'COMMIT' if command.name in _COMMITS else 'ROLLBACK'} AND CHAIN")
    if command.name in _ENDS or command.name == _PREPARES:
        await _warn_of_no_block(backend, client)


def _parsed(sql: str) -> Command:
    return parse(sql[:1000])


def _only_in_blocks(what: str) -> PenstockError:
    return PenstockError(f"{what} can only be used in transaction blocks", sqlstate="25P01")


async def _warn_of_no_block(backend: ControlBackend, client: Link) -> None:
    if await backend.query(_LEAST_TOLD) != [("error",)]:
        warning = PenstockError("there is no transaction in progress", sqlstate="25P01")
        client.write(responses.notice_response(warning, backend.client_encoding))
