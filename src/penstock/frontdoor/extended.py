# SPDX-License-Identifier: Apache-2.0
"""The extended query protocol: Parse, Bind, Describe, Execute, Close, Sync, in pipelines.

Everything is passed on to the control database, which knows the types and checks the parameters,
but the Execute of a statement that Spark runs.

    message    of a statement that is relayed      of one that Spark runs
    -------    -------------------------------     ----------------------
    Parse      routed, passed on                   routed, passed on; then a Describe of ours
    Bind       passed on                           passed on; then Describe and Close of ours
    Describe   passed on                           of a portal: answered from ours
    Execute    passed on; hooks around it          run on the lake, rows sent by us

One that writes the lake is as a relayed one, but its Execute is that of writing/writer.py; that of
a COPY of lake tables is copying/copy_out.py's, that of a command around a query of them is
reading/relayed_rows.py's.

The portal of a lake statement is closed at once in the control database: FETCH would find the
empty relation in it.

A cycle ends with Sync.  Invariants of the routes that prepared statements keep:

* A route holds for a Bind when nothing else was bound since, in the same cycle: otherwise a name
  may mean another table by then, and the statement is routed again.
* Hooks belong to one execution: a statement that has some is routed again for each further one.
* A name that is taken keeps its statement until PostgreSQL has accepted another.
* SQL's DEALLOCATE may free a name, and PREPARE take it: then the name is no longer known here.
"""

from __future__ import annotations

from penstock.errors import FeatureNotSupportedError, PenstockError, SqlSyntaxError
from penstock.frontdoor.actions import (
    Action,
    CopyLake,
    LakeResult,
    MakeTable,
    Relay,
    RelayRows,
    RunOnLake,
    WriteLake,
)
from penstock.frontdoor.backend import raise_unreported
from penstock.frontdoor.blocks import is_block_command
from penstock.frontdoor.conversation import Conversation
from penstock.frontdoor.copying.copy_portal import CopyPortal
from penstock.frontdoor.exchange import ROWS, Exchange, Step
from penstock.frontdoor.lake_answer import check_columns, send_rows
from penstock.frontdoor.prepared import HookPortal, LakePortal, Prepared
from penstock.frontdoor.reading.rows_portal import RowsPortal
from penstock.frontdoor.statement import must_be_alone, plans_like_a_query, run_after, run_before
from penstock.frontdoor.writing.write_portal import WritePortal, bound_parameters
from penstock.sql.split import split_statements
from penstock.wire import requests, responses
from penstock.wire.framing import Message

Portal = LakePortal | HookPortal | WritePortal | CopyPortal | RowsPortal

_SQL_PREPARED = "SELECT from_sql FROM pg_catalog.pg_prepared_statements WHERE name = $1"

_UNNAMED = requests.Named(requests.STATEMENT, b"")

_SUSPENDABLE = ROWS | {responses.PORTAL_SUSPENDED}


class ExtendedQueries:
    """Prepared statements and portals of one session."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._backend = conversation.backend
        self._statements: dict[bytes, Prepared] = {}
        self._portals: dict[bytes, Portal] = {}
        self._cycle = 0
        self._switches = 0
        self._last_bound: Prepared | None = None
        self._has_bound = False
        conversation.write_portals = self._write_portals

    async def handle(self, message: Message) -> None:
        """Carry out one message but Sync; a PenstockError is that message's failure."""
        match message.kind:
            case requests.PARSE:
                await self._parse(message)
            case requests.BIND:
                await self._bind(message)
            case requests.DESCRIBE:
                await self._describe(message)
            case requests.EXECUTE:
                await self._execute(message)
            case requests.CLOSE:
                self._close(message)
            case _:
                self._backend.pass_on(message)  # Flush

    async def sync(self, message: Message) -> None:
        """End the cycle; ReadyForQuery waits for those who wait for the transaction's end."""
        backend, cycle = self._backend, self._cycle
        self._cycle += 1
        self._has_bound = False
        if not backend.endings.waiting and not backend.own_block:
            backend.send(Step.SYNC, message.raw, then=lambda: self._end_portals(cycle))
            return
        await self._conversation.end_transaction()
        await backend.endings.run_due()
        self._end_portals(cycle)
        self._conversation.client.write(responses.ready_for_query(backend.ready_status))

    def end_cycle(self) -> None:
        """A simple query has come: it ends a cycle, and its own statements are unnamed."""
        self._end_portals(self._cycle)
        self._cycle += 1
        self._has_bound = False
        self._statements.pop(b"", None)

    def _end_portals(self, cycle: int) -> None:
        """Forget the portals of a transaction that has ended."""
        if self._portals and self._backend.ready_status == "I":
            self._portals = {
                name: portal for name, portal in self._portals.items() if portal.cycle > cycle
            }

    # statements

    async def _parse(self, message: Message) -> None:
        conversation = self._conversation
        await conversation.settled()
        parse = requests.parse_parse(message)
        if parse.name == b"":
            self._statements.pop(b"", None)  # gone whatever becomes of this one
        sql = conversation.text(parse.sql)
        parts = split_statements(sql, conversation.standard_conforming_strings)
        if len(parts) > 1:
            raise SqlSyntaxError("cannot insert multiple commands into a prepared statement")
        action, raw = await self._route(sql, parse.oids) if parts else Relay(), message.raw
        if not parts:
            sql, raw = "", requests.parse(parse.name, b"", parse.oids)
        elif (text := _other_text(action)) is not None:
            raw = requests.parse(parse.name, conversation.raw(text), parse.oids)
        statement = Prepared(parse.name, sql, parse.oids, action, self._now)
        await self._register(statement, raw)
        if isinstance(action, RunOnLake):
            statement.described = self._ask_types(parse.name)

    async def _register(self, statement: Prepared, raw: bytes) -> None:
        if statement.name == b"" or statement.name not in self._statements:
            self._statements[statement.name] = statement
            self._backend.send(Step.PARSE, raw, then=lambda: self._note_accepted(statement))
            return
        exchange = self._backend.ask([(Step.PARSE, raw)], frozenset({responses.PARSE_COMPLETE}))
        await exchange.wait()
        self._statements[statement.name] = statement
        self._note_accepted(statement)

    def _note_accepted(self, statement: Prepared) -> None:
        statement.forgotten = self._backend.forgotten

    async def _route(self, sql: str, oids: tuple[int, ...]) -> Action:
        """Route; what is no query does not follow our questions in their transaction.

        Ending that loses nothing while the client has neither bound nor run anything in it.
        """
        backend = self._backend
        action = await self._conversation.route(sql, oids)
        only_ours = backend.asked and not (self._has_bound or backend.executed)
        if only_ours and backend.ready_status == "I" and not plans_like_a_query(sql):
            await backend.sync()
        return action

    async def _route_again(self, statement: Prepared) -> None:
        once = statement.used and _has_hooks(statement.action)
        if statement.routed_at == self._now and not once:
            return
        await self._conversation.settled()
        await self._check_name(statement)
        if statement.sql == "":
            return
        statement.action = await self._route(statement.sql, statement.oids)
        statement.used = False

    async def _check_name(self, statement: Prepared) -> None:
        """Refuse a name that a PREPARE has taken, after a DEALLOCATE or before the Parse."""
        backend = self._backend
        is_known = statement.name == b"" or statement.forgotten == backend.forgotten
        if is_known or (backend.synced and backend.ready_status == "E"):
            return  # in a failed block nothing is run
        text = self._conversation.text(statement.name)
        if await backend.query(_SQL_PREPARED, [text]) == [("t",)]:
            del self._statements[statement.name]
            raise _made_by_sql(text)
        self._note_accepted(statement)

    def _ask_types(self, name: bytes) -> Exchange:
        describe = requests.describe(requests.STATEMENT, name)
        return self._backend.ask([(Step.DESCRIBE, describe)])

    def _types_of(self, statement: Prepared) -> Exchange:
        if statement.described is None:
            statement.described = self._ask_types(statement.name)
        return statement.described

    @property
    def _now(self) -> tuple[int, int]:
        return self._cycle, self._switches

    def _note_bound(self, statement: Prepared | None) -> None:
        if statement is None or statement is not self._last_bound:
            self._switches += 1
            self._last_bound = statement
        if statement is not None:
            statement.used = True
            statement.routed_at = self._now

    # portals

    def _write_portals(self) -> list[str]:
        portals = self._portals.items()
        return [
            self._conversation.text(n) for n, portal in portals if isinstance(portal, WritePortal)
        ]

    async def _bind(self, message: Message) -> None:
        portal, name = requests.parse_bind_names(message)
        statement = self._statements.get(name)
        if statement is None:
            await self._refuse_unknown(name)
        else:
            await self._route_again(statement)
        self._note_bound(statement)
        self._has_bound = True
        if statement is not None and isinstance(statement.action, RunOnLake):
            self._bind_lake(message, statement, statement.action)
            return
        self._portals.pop(portal, None)
        if statement is not None and isinstance(statement.action, WriteLake):
            types = self._types_of(statement) if "$" in statement.sql else None
            self._portals[portal] = WritePortal(statement.action, message, types, self._cycle)
        if statement is not None and isinstance(statement.action, RelayRows | MakeTable):
            types = self._types_of(statement) if "$" in statement.sql else None
            self._portals[portal] = RowsPortal(statement.action, message, types, self._cycle)
        if statement is not None and isinstance(statement.action, CopyLake):
            self._portals[portal] = CopyPortal(statement.action, portal, self._cycle)
        if statement is not None and (
            _has_hooks(statement.action) or is_block_command(statement.sql)
        ):
            await self._bind_hooks(portal, statement)
        self._backend.send(Step.BIND, message.raw)

    def _bind_lake(self, message: Message, statement: Prepared, query: RunOnLake) -> None:
        bind = requests.parse_bind(message)
        types = self._types_of(statement)
        self._backend.send(Step.BIND, message.raw)
        described = self._backend.ask(
            [
                (Step.DESCRIBE, requests.describe(requests.PORTAL, bind.portal)),
                (Step.CLOSE, requests.close(requests.PORTAL, bind.portal)),
            ]
        )
        self._portals[bind.portal] = LakePortal(query, message, types, described, self._cycle)

    async def _bind_hooks(self, name: bytes, statement: Prepared) -> None:
        """Keep the hooks.  ``before`` of what must be alone runs here: its Sync ends portals."""
        assert isinstance(statement.action, Relay)
        backend = self._backend
        portal = HookPortal(statement.action, statement.sql, self._cycle)
        self._portals[name] = portal
        if portal.relay.before is None or backend.executed or not must_be_alone(portal.sql):
            return
        await self._conversation.settled()
        if backend.ready_status != "I":
            return
        if not backend.synced:
            await backend.sync()
        portal.before_has_run = True
        await run_before(self._conversation, portal.relay, portal.sql)

    async def _refuse_unknown(self, name: bytes) -> None:
        """A statement that was not routed is not bound: one of SQL's PREPARE, or of a question."""
        if name == b"":
            raise _no_unnamed_statement()
        await self._conversation.settled()
        if self._backend.synced and self._backend.ready_status == "E":
            return  # nothing can be asked in a failed block, and nothing can be run
        text = self._conversation.text(name)
        if await self._backend.query(_SQL_PREPARED, [text]):
            raise _made_by_sql(text)

    async def _describe(self, message: Message) -> None:
        named = requests.parse_named(message)
        portal = self._portals.get(named.name) if named.kind == requests.PORTAL else None
        if named == _UNNAMED and b"" not in self._statements:
            raise _no_unnamed_statement()
        if not isinstance(portal, LakePortal):
            self._backend.send(Step.DESCRIBE, message.raw)
            return
        await self._conversation.settled()
        for answer in portal.described.kept:
            if answer.kind in (responses.ROW_DESCRIPTION, responses.NO_DATA):
                self._conversation.client.write(answer.raw)

    def _close(self, message: Message) -> None:
        named = requests.parse_named(message)
        if named.kind == requests.PORTAL:
            self._portals.pop(named.name, None)
            self._backend.send(Step.CLOSE, message.raw)
        else:
            forget = self._statements.pop
            self._backend.send(Step.CLOSE, message.raw, then=lambda: forget(named.name, None))

    # execution

    async def _execute(self, message: Message) -> None:
        execute = requests.parse_execute(message)
        portal = self._portals.get(execute.portal)
        if isinstance(portal, LakePortal):
            await self._execute_on_lake(portal, execute.max_rows)
            return
        if isinstance(portal, HookPortal):
            await self._execute_with_hooks(portal, message)
            return
        if isinstance(portal, WritePortal | CopyPortal | RowsPortal):
            await self._conversation.settled()
            await portal.execute(self._conversation, execute.max_rows)
            return
        self._backend.executed = True
        self._backend.send(Step.EXECUTE, message.raw)

    async def _execute_with_hooks(self, portal: HookPortal, message: Message) -> None:
        await self._conversation.settled()
        await self._conversation.before_relayed(portal.sql)
        if not portal.before_has_run:
            portal.before_has_run = True
            await run_before(self._conversation, portal.relay, portal.sql)
        self._backend.executed = True
        exchange = self._backend.ask([(Step.EXECUTE, message.raw)], _SUSPENDABLE)
        await exchange.wait()
        if self._backend.block_ended:
            await self._backend.sync()
        await run_after(self._conversation, portal.relay, exchange)

    async def _execute_on_lake(self, portal: LakePortal, max_rows: int) -> None:
        conversation = self._conversation
        await conversation.settled()
        encoding = self._backend.client_encoding
        described = portal.described.only(responses.ROW_DESCRIPTION)
        columns = responses.parse_columns(described, encoding) if described else ()
        if portal.result is None:
            self._backend.executed = True
            parameters = bound_parameters(portal.types, portal.bind)
            portal.result = await conversation.lake.run(portal.query, parameters)
            raise_unreported(self._backend)
            check_columns(portal.result, columns)
        result, start = portal.result, portal.at
        left = result.rows.num_rows - start
        portal.at = start + (min(left, max_rows) if max_rows else left)
        formats = [column.format for column in columns]
        await send_rows(conversation.client, self._backend, result, formats, start, portal.at)
        conversation.client.write(_completion(result, start, portal.at, max_rows))


def _no_unnamed_statement() -> PenstockError:
    return PenstockError("unnamed prepared statement does not exist", sqlstate="26000")


def _made_by_sql(name: str) -> PenstockError:
    return FeatureNotSupportedError(
        f'prepared statement "{name}" cannot be bound',
        detail="It was made by PREPARE.",
        hint="Run it by EXECUTE, or let the driver prepare it.",
    )


def _has_hooks(action: Action) -> bool:
    return isinstance(action, Relay) and action != Relay(action.sql)


def _other_text(action: Action) -> str | None:
    """What the control database runs instead of the client's text."""
    if isinstance(action, Relay) or (isinstance(action, WriteLake) and action.reads_client):
        return action.sql
    return None


def _completion(result: LakeResult, start: int, stop: int, max_rows: int) -> bytes:
    """PostgreSQL suspends a portal that gave as many rows as were asked for, even the last."""
    if max_rows and stop - start == max_rows:
        return responses.portal_suspended()
    if stop - start == result.rows.num_rows:
        return responses.command_complete(result.tag)
    return responses.command_complete(f"SELECT {stop - start}")
