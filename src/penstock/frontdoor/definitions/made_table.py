# SPDX-License-Identifier: Apache-2.0
"""CREATE TABLE AS, and SELECT INTO, of a table of the lake.

In:   the parts of the command, and the client's session.
Out:  in one transaction a table with the columns that PostgreSQL says the query has, and an INSERT
      of the query into it.

So the definition is that of any CREATE TABLE, and the rows take the way of any INSERT.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.frontdoor.actions import MakeTable, Parameter, WriteLake
from penstock.frontdoor.backend import OWN_NAME, raise_unreported
from penstock.frontdoor.conversation import Conversation
from penstock.frontdoor.exchange import Exchange, Step
from penstock.wire import requests, responses

_COLUMNS = "SELECT penstock.described($1::pg_catalog.text, $2::pg_catalog.text)"


async def make_table(conversation: Conversation, made: MakeTable) -> None:
    """Answer one such command; the session is settled."""
    backend, parts = conversation.backend, made.parts
    if made.definition.ended is not None:
        backend.endings.add(made.definition.ended)
    backend.executed = True
    held, backend.hold_open = backend.hold_open, True
    try:
        ((columns,),) = await backend.query(_COLUMNS, [parts.query, parts.columns])
        await backend.command(f"{parts.head} {parts.name} ({columns}) {parts.options}", ())
        if made.definition.after is not None:
            await made.definition.after(backend)
        raise_unreported(backend)
    finally:
        backend.hold_open = held
    tag = "CREATE TABLE AS"
    if parts.with_data:
        tag = await _insert(conversation, f"INSERT INTO {parts.name} {parts.query}")
    conversation.client.write(responses.command_complete(tag))


async def _insert(conversation: Conversation, sql: str) -> str:
    backend = conversation.backend
    action = await conversation.route(sql)

    async def execute() -> Exchange:
        exchange = backend.ask(
            [
                (Step.CLOSE, requests.close(requests.STATEMENT, OWN_NAME)),
                (Step.PARSE, requests.parse(OWN_NAME, conversation.raw(sql))),
                (Step.BIND, requests.bind(OWN_NAME, OWN_NAME)),
                (Step.EXECUTE, requests.execute(OWN_NAME)),
                (Step.CLOSE, requests.close(requests.PORTAL, OWN_NAME)),
            ]
        )
        await exchange.wait()
        return exchange

    async def no_parameters() -> Sequence[Parameter]:
        return ()

    assert isinstance(action, WriteLake)
    answer = await conversation.write(action, execute, no_parameters)
    return f"SELECT {answer.tag.rpartition(' ')[2]}"
