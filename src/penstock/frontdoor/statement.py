# SPDX-License-Identifier: Apache-2.0
"""Carry out one statement of a simple query: relayed with what goes around it, or on the lake.

In:   an action, the statement's text; the session is settled.
Out:  the statement's messages, up to CommandComplete.  An error is raised, never written.

CommandComplete waits for ``after``: a client must not see a success that is then undone.

``before`` of a statement that must be alone in its transaction (CREATE SUBSCRIPTION with a slot)
runs in one of its own, which is committed first.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import PenstockError
from penstock.frontdoor.actions import (
    Action,
    CopyLake,
    MakeTable,
    Parameter,
    Relay,
    RelayRows,
    RunOnLake,
    WriteLake,
)
from penstock.frontdoor.backend import OWN_NAME, raise_unreported
from penstock.frontdoor.blocks import judge_deferred
from penstock.frontdoor.conversation import Conversation
from penstock.frontdoor.definitions.made_table import make_table
from penstock.frontdoor.exchange import ROWS, Exchange, Step
from penstock.frontdoor.lake_answer import check_columns, send_rows
from penstock.frontdoor.reading.relayed_rows import command_over
from penstock.sql.tokens import Kind, significant
from penstock.wire import requests, responses

_QUERIES = frozenset(
    {"select", "with", "values", "table", "insert", "update", "delete", "merge", "explain"}
)
"""First words of statements that may follow others in a pipeline, whatever they are."""

_ALONE = (
    ("create", "subscription"),
    ("alter", "subscription"),
    ("drop", "subscription"),
    ("create", "database"),
    ("alter", "database"),
    ("drop", "database"),
    ("create", "tablespace"),
    ("drop", "tablespace"),
    ("alter", "system"),
    ("vacuum",),
    ("cluster",),
    ("reindex",),
    ("discard",),
)
"""First words of statements that PostgreSQL may refuse inside of a transaction block."""

_NO_NAME = b""

_COPY_IN = frozenset({responses.COPY_IN})

_IS_BINARY = "SELECT is_binary FROM pg_catalog.pg_cursors WHERE name = $1"

_MISSING_VALUES = "bind message supplies 0 parameters"


def plans_like_a_query(sql: str) -> bool:
    """Whether a statement is planned, so that it may run in the transaction of a question."""
    words = [token.word for token in significant(sql[:1000]) if token.text != "("]
    return bool(words) and words[0] in _QUERIES


def must_be_alone(sql: str) -> bool:
    """Whether a statement may have to be the only one in its transaction."""
    words = tuple(token.word for token in significant(sql[:1000])[:2])
    return words in _ALONE or words[:1] in _ALONE


async def carry_out(
    conversation: Conversation, action: Action, sql: str, start: int = 0, *, last: bool = False
) -> None:
    """Carry out one statement that stands ``start`` characters into the client's text.

    ``last``: it is the last one there.
    """
    try:
        if last and not isinstance(action, Relay | WriteLake):
            await judge_deferred(conversation.backend)
        if isinstance(action, RunOnLake):
            await _run_on_lake(conversation, action, sql)
        elif isinstance(action, WriteLake):
            await _write_lake(conversation, action, sql, last=last)
        elif isinstance(action, CopyLake):
            await conversation.copy(action)
        elif isinstance(action, RelayRows):
            await relay_rows(conversation, action, ())
        elif isinstance(action, MakeTable):
            await make_table(conversation, action)
        else:
            await _relay(conversation, action, sql)
    except responses.ServerError as error:
        if error.message.startswith(_MISSING_VALUES):
            error = _no_parameter(sql)
        is_other = isinstance(action, MakeTable) or (isinstance(action, Relay) and action.sql)
        move_position(error, start, same_text=not is_other)
        raise error from None


def _no_parameter(sql: str) -> responses.ServerError:
    """PostgreSQL's error for a parameter in a simple query, where there are none."""
    first = next((token for token in significant(sql) if token.kind is Kind.PARAMETER), None)
    fields = {"S": "ERROR", "V": "ERROR", "C": "42P02", "M": "there is no parameter"}
    if first is not None:
        fields |= {"M": f"there is no parameter {first.text}", "P": str(first.start + 1)}
    return responses.ServerError(fields)


def move_position(error: responses.ServerError, start: int, *, same_text: bool = True) -> None:
    """Make the position in an error one in the client's text, or take it out."""
    if "P" not in error.fields:
        return
    if same_text:
        error.fields["P"] = str(int(error.fields["P"]) + start)
    else:
        del error.fields["P"]


async def run_before(conversation: Conversation, relay: Relay, sql: str) -> None:
    """Run ``before``, in the statement's transaction unless the statement must be alone.

    ``ended`` then hears of the statement's transaction, also when ``before`` fails.
    """
    backend = conversation.backend
    alone = backend.synced and backend.ready_status == "I" and must_be_alone(sql)
    if relay.before is None or not alone:
        _await_end(conversation, relay)
        if relay.before is not None:
            backend.hold_open = backend.ready_status == "I"
            try:
                await relay.before(backend)
            finally:
                backend.hold_open = False
            raise_unreported(backend)
        return
    await backend.query("BEGIN")
    try:
        await relay.before(backend)
        raise_unreported(backend)
    except PenstockError:
        await backend.query("ROLLBACK")
        backend.unreported = None
        _await_end(conversation, relay)
        raise
    await backend.query("COMMIT")
    _await_end(conversation, relay)


def _await_end(conversation: Conversation, relay: Relay) -> None:
    if relay.ended is not None:
        conversation.backend.endings.add(relay.ended)


async def run_after(conversation: Conversation, relay: Relay, exchange: Exchange) -> None:
    """Run ``after``, then let the client see that the statement has succeeded."""
    if relay.after is not None:
        await relay.after(conversation.backend)
        raise_unreported(conversation.backend)
    for message in exchange.kept:
        if message.kind in (responses.COMMAND_COMPLETE, responses.EMPTY_QUERY):
            conversation.client.write(message.raw)


async def _relay(conversation: Conversation, relay: Relay, sql: str) -> None:
    text = sql if relay.sql is None else relay.sql
    await conversation.before_relayed(text)
    await run_before(conversation, relay, text)
    backend = conversation.backend
    backend.executed = True
    exchange = await _run_whole(
        conversation,
        text,
        ROWS,
        reads_client=_first_word(text) == "copy",
        binary_results=await _fetches_binary(conversation, text),
    )
    backend.ask([(Step.CLOSE, requests.close(requests.PORTAL, _NO_NAME))])
    await run_after(conversation, relay, exchange)


async def _write_lake(
    conversation: Conversation, write: WriteLake, sql: str, *, last: bool
) -> None:
    backend = conversation.backend

    async def execute() -> Exchange:
        text = write.sql if write.reads_client else sql
        return await _run_whole(conversation, text, _COPY_IN, reads_client=write.reads_client)

    async def no_parameters() -> Sequence[Parameter]:
        return ()

    answer = await conversation.write(write, execute, no_parameters)
    if last:
        await judge_deferred(backend)
    backend.ask([(Step.CLOSE, requests.close(requests.PORTAL, _NO_NAME))])
    told = (responses.ROW_DESCRIPTION, responses.DATA_ROW, responses.COMMAND_COMPLETE)
    conversation.client.write(b"".join(each.raw for each in answer.kept if each.kind in told))


async def _fetches_binary(conversation: Conversation, sql: str) -> bool:
    """Whether it is a FETCH from a BINARY cursor: a simple query then has rows in that format."""
    if _first_word(sql) != "fetch":
        return False
    cursor = significant(sql)[-1].name  # the last word, whatever else is said
    return await conversation.backend.query(_IS_BINARY, [cursor]) == [("t",)]


async def _run_whole(
    conversation: Conversation,
    sql: str,
    pass_on: frozenset[int],
    *,
    reads_client: bool,
    binary_results: bool = False,
) -> Exchange:
    """Run a statement in the control database to its end; its portal stays."""
    exchange = conversation.backend.ask(
        [
            (Step.PARSE, requests.parse(_NO_NAME, conversation.raw(sql))),
            (Step.BIND, requests.bind(_NO_NAME, _NO_NAME, binary_results=binary_results)),
            (Step.DESCRIBE, requests.describe(requests.PORTAL, _NO_NAME)),
            (Step.EXECUTE, requests.execute(_NO_NAME)),
        ],
        pass_on=pass_on,
    )
    if reads_client:
        await conversation.feed_copy(exchange)
    await exchange.wait()
    return exchange


async def _run_on_lake(conversation: Conversation, query: RunOnLake, sql: str) -> None:
    backend, client = conversation.backend, conversation.client
    described = backend.ask(
        [
            (Step.PARSE, requests.parse(_NO_NAME, conversation.raw(sql))),
            (Step.DESCRIBE, requests.describe(requests.STATEMENT, _NO_NAME)),
        ]
    )
    await described.wait()
    columns = _columns(conversation, described, sql, 0)
    row_description = described.only(responses.ROW_DESCRIPTION)
    result = await conversation.lake.run(query, ())
    raise_unreported(backend)
    check_columns(result, columns)
    if row_description:
        client.write(row_description.raw)
    formats = [column.format for column in columns]
    await send_rows(client, backend, result, formats, 0, result.rows.num_rows)
    client.write(responses.command_complete(result.tag))


async def relay_rows(
    conversation: Conversation, action: RelayRows, parameters: Sequence[Parameter]
) -> None:
    """Run a query on the lake, and the command around it in the control database."""
    backend = conversation.backend
    if action.in_block and backend.ready_status == "I" and not backend.executed:
        raise PenstockError(
            "DECLARE CURSOR can only be used in transaction blocks", sqlstate="25P01"
        )
    sql, oids = action.query.sql, [each.type_oid for each in parameters]
    described = backend.ask(
        [
            (Step.CLOSE, requests.close(requests.STATEMENT, OWN_NAME)),
            (Step.PARSE, requests.parse(OWN_NAME, conversation.raw(sql), oids)),
            (Step.DESCRIBE, requests.describe(requests.STATEMENT, OWN_NAME)),
        ]
    )
    await described.wait()
    backend.executed = True
    columns = _columns(conversation, described, sql, len(parameters))
    held, backend.hold_open = backend.hold_open, True
    try:
        result = await conversation.lake.run(action.query, parameters)
        raise_unreported(backend)
        check_columns(result, columns)
        command, given = await command_over(backend, action, columns, result)
        tag = await backend.command(command, given)
    finally:
        backend.hold_open = held
    raise_unreported(backend)
    conversation.client.write(responses.command_complete(tag))


def _columns(
    conversation: Conversation, described: Exchange, sql: str, parameters: int
) -> tuple[responses.Column, ...]:
    """The columns of a statement; 42P02 for parameters that it has not been given."""
    types = described.only(responses.PARAMETER_DESCRIPTION)
    if types is not None and len(responses.parse_parameter_oids(types)) > parameters:
        raise _no_parameter(sql)
    rows = described.only(responses.ROW_DESCRIPTION)
    return responses.parse_columns(rows, conversation.backend.client_encoding) if rows else ()


def _first_word(sql: str) -> str:
    return next((token.word for token in significant(sql[:1000])[:1]), "")
