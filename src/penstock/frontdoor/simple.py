# SPDX-License-Identifier: Apache-2.0
"""Simple queries: a text of one or several statements, one transaction unless it says otherwise.

    the text has ...                     what is done
    ----------------                     ------------
    no statement                         the control database answers (EmptyQueryResponse)
    one, in a failed block               passed on: PostgreSQL refuses it or ends the block
    one, relayed without a question      passed on
    one query, relayed after a question  carried out in the question's transaction, whose locks keep
                                         true what was found out about it
    one, relayed, not a query            the question's transaction ends, then it is passed on or,
                                         when there is something to do around it, carried out
    anything else                        carried out, statement by statement

Statements are carried out with messages of the extended protocol and no Sync between them: that is
PostgreSQL's own implicit transaction.  With several statements PostgreSQL makes it an implicit
block, and so do we.  Inside of an explicit block, and where one begins or ends, a Sync between
statements changes nothing but tells the status.
"""

from __future__ import annotations

from penstock.errors import ConnectionLostError, FeatureNotSupportedError, PenstockError
from penstock.frontdoor.actions import Action, Relay
from penstock.frontdoor.backend import OWN_NAME
from penstock.frontdoor.conversation import Conversation
from penstock.frontdoor.exchange import Step
from penstock.frontdoor.statement import carry_out, move_position, plans_like_a_query
from penstock.names import quote_pg_literal
from penstock.sql.split import Statement, statements
from penstock.sql.tokens import depends_on_backslashes, significant
from penstock.wire import requests, responses
from penstock.wire.framing import Message

_OPEN_BLOCK = "SHOW server_version_num"
"""A statement that needs no snapshot: what follows it in a pipeline is in an implicit block."""

_ENDS_CHECK = "DO 'BEGIN RAISE SQLSTATE $s$PE000$s$; END';"
"""A statement before a text that is parsed and not run."""

_PLAIN = Relay()


async def run_simple(conversation: Conversation, message: Message) -> None:
    """Answer one Query message, with ReadyForQuery at the end."""
    backend = conversation.backend
    await backend.settle()
    if backend.skipping:
        return  # PostgreSQL ignores it too, up to Sync
    try:
        text = conversation.text(requests.parse_query(message))
        parts = statements(text, conversation.standard_conforming_strings)
        if not parts:
            _pass_on(conversation, requests.query(b""))
            return
        if len(parts) == 1:
            if await _run_single(conversation, message, parts[0]):
                return
        else:
            await _check_syntax(conversation, text)
            await _run_several(conversation, parts)
    except ConnectionLostError:
        raise
    except PenstockError as error:
        await conversation.fail(error)
    await conversation.finish_simple()


async def _run_single(conversation: Conversation, message: Message, part: Statement) -> bool:
    """Answer a text of one statement; True when ReadyForQuery is on its way too."""
    backend = conversation.backend
    failed = backend.ready_status == "E" and backend.synced
    action = _PLAIN if failed else await _route(conversation, part)
    asked = not backend.synced and not backend.executed
    if asked and isinstance(action, Relay) and not plans_like_a_query(part.text):
        await backend.sync()  # it may have to be alone
    if action == _PLAIN and not backend.endings.waiting and backend.synced:
        _pass_on(conversation, message.raw)
        return True
    await carry_out(conversation, action, part.text, part.start, last=True)
    return False


async def _check_syntax(conversation: Conversation, text: str) -> None:
    """Raise PostgreSQL's error for a text that it cannot parse: then no statement of it is run.

    EXECUTE parses all of its text first, too; then the statement in front of it ends it.
    """
    backend = conversation.backend
    if backend.ready_status == "E":
        await _check_syntax_in_failed_block(conversation, text)
        return
    execute = f"EXECUTE {quote_pg_literal(_ENDS_CHECK + text)}"
    body = f"BEGIN {execute}; EXCEPTION WHEN SQLSTATE 'PE000' THEN NULL; END"
    try:
        await backend.query(f"DO {quote_pg_literal(body)}")
    except responses.ServerError as error:
        fields = error.fields
        place = int(fields.pop("p", "0")) - len(_ENDS_CHECK)
        for name in ("q", "W", "P"):
            fields.pop(name, None)
        if place > 0:
            fields["P"] = str(place)
        raise


async def _check_syntax_in_failed_block(conversation: Conversation, text: str) -> None:
    """The same where nothing can be run: Parse refuses the text, but with a place only if that is
    what it is about."""
    parse = requests.parse(OWN_NAME, conversation.raw(text))
    asked = conversation.backend.ask([(Step.PARSE, parse), (Step.SYNC, requests.sync())])
    try:
        await asked.wait()
    except responses.ServerError as error:
        if "P" in error.fields:
            raise


async def _run_several(conversation: Conversation, parts: list[Statement]) -> None:
    backend = conversation.backend
    conforming = conversation.standard_conforming_strings
    for part in parts:
        await conversation.settled()
        if conversation.standard_conforming_strings != conforming:
            _refuse_backslashes(part, conforming)
        if backend.synced and backend.ready_status == "I":
            await _open_block(conversation)
        if backend.synced and backend.ready_status == "E":
            action: Action = _PLAIN
        else:
            action = await _route(conversation, part)
        tags = backend.block_tags
        last = part is parts[-1]
        await carry_out(conversation, action, part.text, part.start, last=last)
        if backend.ready_status != "I" or backend.block_tags != tags:
            await backend.sync()


def _refuse_backslashes(part: Statement, conforming: bool) -> None:
    """Refuse a statement that PostgreSQL would read as the setting was when the text came."""
    if any(depends_on_backslashes(token) for token in significant(part.text, conforming)):
        raise FeatureNotSupportedError(
            "standard_conforming_strings was changed by an earlier statement of the same query",
            detail="The strings with backslashes in this statement would be read differently.",
            hint="Send the statements one by one.",
        )


async def _open_block(conversation: Conversation) -> None:
    backend = conversation.backend
    backend.hold_open = True
    try:
        await backend.query(_OPEN_BLOCK)
    finally:
        backend.hold_open = False
    backend.executed = True  # from here on nothing is alone in its transaction


async def _route(conversation: Conversation, part: Statement) -> Action:
    try:
        return await conversation.route(part.text)
    except responses.ServerError as error:
        move_position(error, part.start)
        raise


def _pass_on(conversation: Conversation, raw: bytes) -> None:
    conversation.backend.send(Step.QUERY, raw)
