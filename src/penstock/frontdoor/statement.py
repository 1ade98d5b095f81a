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
    Parameter,
    Relay,
    RunOnLake,
    WriteLake,
)
from penstock.frontdoor.backend import raise_unreported
from penstock.frontdoor.conversation import Conversation
from penstock.frontdoor.exchange import ROWS, Exchange, Step
from penstock.frontdoor.lake_answer import check_columns, send_rows
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

_MISSING_VALUES = "bind message supplies 0 parameters"


def plans_like_a_query(sql: str) -> bool:
    """Whether a statement is planned, so that it may run in the transaction of a question."""
    words = [token.word for token in significant(sql[:1000]) if token.text != "("]
    return bool(words) and words[0] in _QUERIES


def must_be_alone(sql: str) -> bool:
    """Whether a statement may have to be the only one in its transaction."""
    words = tuple(token.word for token in significant(sql[:1000])[:2])
    return words in _ALONE or words[:1] in _ALONE


async def carry_out(conversation: Conversation, action: Action, sql: str, start: int = 0) -> None:
    """Carry out one statement that stands ``start`` characters into the client's text."""
    try:
        if isinstance(action, RunOnLake):
            await _run_on_lake(conversation, action, sql)
        elif isinstance(action, WriteLake):
            await _write_lake(conversation, action, sql)
        elif isinstance(action, CopyLake):
            await conversation.copy(action)
        else:
            await _relay(conversation, action, sql)
    except responses.ServerError as error:
        if error.message.startswith(_MISSING_VALUES):
            error = _no_parameter(sql)
        move_position(error, start, same_text=not (isinstance(action, Relay) and action.sql))
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
    await run_before(conversation, relay, text)
    backend = conversation.backend
    backend.executed = True
    exchange = await _run_whole(conversation, text, ROWS, reads_client=_is_copy(text))
    backend.ask([(Step.CLOSE, requests.close(requests.PORTAL, _NO_NAME))])
    await run_after(conversation, relay, exchange)


async def _write_lake(conversation: Conversation, write: WriteLake, sql: str) -> None:
    backend = conversation.backend

    async def execute() -> Exchange:
        return await _run_whole(conversation, sql, _COPY_IN, reads_client=write.reads_client)

    async def no_parameters() -> Sequence[Parameter]:
        return ()

    answer = await conversation.write(write, execute, no_parameters)
    backend.ask([(Step.CLOSE, requests.close(requests.PORTAL, _NO_NAME))])
    told = (responses.ROW_DESCRIPTION, responses.DATA_ROW, responses.COMMAND_COMPLETE)
    conversation.client.write(b"".join(each.raw for each in answer.kept if each.kind in told))


async def _run_whole(
    conversation: Conversation, sql: str, pass_on: frozenset[int], *, reads_client: bool
) -> Exchange:
    """Run a statement in the control database to its end; its portal stays."""
    exchange = conversation.backend.ask(
        [
            (Step.PARSE, requests.parse(_NO_NAME, conversation.raw(sql))),
            (Step.BIND, requests.bind(_NO_NAME, _NO_NAME)),
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
    types = described.only(responses.PARAMETER_DESCRIPTION)
    if types is not None and responses.parse_parameter_oids(types):
        raise _no_parameter(sql)
    row_description = described.only(responses.ROW_DESCRIPTION)
    columns = (
        responses.parse_columns(row_description, backend.client_encoding) if row_description else ()
    )
    result = await conversation.lake.run(query, ())
    raise_unreported(backend)
    check_columns(result, columns)
    if row_description:
        client.write(row_description.raw)
    formats = [column.format for column in columns]
    await send_rows(client, backend, result, formats, 0, result.rows.num_rows)
    client.write(responses.command_complete(result.tag))


def _is_copy(sql: str) -> bool:
    words = [token.word for token in significant(sql[:1000])[:1]]
    return words == ["copy"]
