# SPDX-License-Identifier: Apache-2.0
"""Decide what becomes of each statement: relayed, run on the lake, or refused.

In:   one statement of a client, and the client's own session in the control database.
Out:  an Action; a PenstockError refuses the statement, and nothing was changed.

    the statement ...                                    becomes
    -----------------                                    -------
    names no user relation                               Relay, without asking PostgreSQL
    is a query whose plan has no lake table              Relay
    is a query whose plan has lake tables only           RunOnLake
    mixes lake tables with others, or locks their rows   0A000
    writes temporary tables, reading no lake table       Relay
    writes lake tables and no others                     WriteLake
    writes anything else                                 0A000 (lake), 42501 (system)
    copies lake tables, or a query of them, to the client CopyLake
    declares a cursor, or makes a temporary table, of    Relay if that would be; of lake tables only
    a query                                              RelayRows
    makes another table of a query                       MakeTable
    is EXPLAIN of a query with lake tables only          RunOnLake, for its plan
    contains another query (PREPARE, ...)                Relay if that would be, else 0A000
    changes a definition                                 Relay, then the lake is reconciled
    is any other command of sql/commands_table.py        as that table says
    is no known command                                  PostgreSQL's syntax error

Nothing is guessed from names: they only prove that a statement cannot reach a lake table.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Protocol

from penstock.errors import FeatureNotSupportedError, SqlSyntaxError
from penstock.frontdoor.actions import (
    Action,
    Backend,
    Explained,
    MakeTable,
    Relay,
    RelayRows,
    RunOnLake,
    WriteLake,
)
from penstock.frontdoor.copying.copy_routing import copy_of_query, judge_copy_to
from penstock.frontdoor.reading.explained import (
    FUNCTION,
    PublicationExplainer,
    explained_publication,
)
from penstock.frontdoor.routing.known_names import KnownNames
from penstock.frontdoor.routing.plans import explain, named_relations, refuse_foreign
from penstock.frontdoor.routing.refusals import (
    explains_verbosely,
    inside,
    is_type_of_values,
    judge_copy,
    judge_truncate,
    judge_writing,
    mixed,
    read_only,
    refusal,
    refuse_affected,
    refuse_detach,
    refuse_extension,
    refuse_named_constraints,
    refuse_node_schema,
    refuse_prepared_subscriptions,
    refuse_row_security,
)
from penstock.sql.commands import (
    Command,
    inner_range,
    inner_statement,
    object_name,
    parse,
    top_level,
    truncated,
)
from penstock.sql.commands_guards import (
    GUARDED_NAMES,
    check_embedded_set,
    check_functions,
    check_node_functions,
    check_set,
)
from penstock.sql.commands_table import Treatment
from penstock.sql.table_as import table_as
from penstock.sql.tokens import Kind, Token, depends_on_backslashes, fold

_QUERY_START = re.compile(r"[\s(]*(select|with|values|table)\b")
_WRITING_WORDS = frozenset({"insert", "update", "delete", "merge"})
_END_PREPARED = ("COMMIT PREPARED", "ROLLBACK PREPARED")
_SLOW_WORDS = GUARDED_NAMES | _WRITING_WORDS | {"into", FUNCTION}

Ended = Callable[[bool], Awaitable[None]]


class Reconciler(Protocol):
    """Makes the lake follow the definitions that a transaction has changed."""

    async def reconcile(self, backend: Backend) -> Ended | None:
        """Follow the ddl_event rows of the session's transaction; an error undoes the statement.

        What it returns runs when the transaction has ended, with True when it committed.
        """
        ...


class SubscriptionCommands(Protocol):
    """CREATE, ALTER and DROP SUBSCRIPTION."""

    async def route(self, backend: Backend, command: Command) -> Relay:
        """The relay of the command without our own options, with what must be done around it."""
        ...


class StatementRouter:
    """The Router of the front door (actions.Router); one serves all sessions of a node."""

    def __init__(
        self,
        names: KnownNames,
        reconciler: Reconciler,
        subscriptions: SubscriptionCommands,
        explainer: PublicationExplainer,
    ) -> None:
        self.names = names
        self._explainer = explainer
        self._reconciler = reconciler
        self._subscriptions = subscriptions

    async def route(self, backend: Backend, sql: str, parameter_oids: Sequence[int] = ()) -> Action:
        """The action for one statement; a PenstockError refuses it."""
        if self._is_plainly_relayed(sql):
            return Relay()
        command = await _parse(backend, sql)
        if not command.tokens:
            return Relay()
        check_functions(command.tokens)
        check_node_functions(command.tokens, self.names.node_functions)
        action = await self._route(backend, command, parameter_oids)
        explained = explained_publication(command.tokens)
        if explained is not None and action == Relay():
            count = partial(self._explainer.count, publication=explained)
            return Relay(before=count, after=self._explainer.forget)
        return action

    def _is_plainly_relayed(self, sql: str) -> bool:
        """One query that names no user relation and nothing that needs a closer look."""
        return (
            _QUERY_START.match(fold(sql[:80])) is not None
            and ";" not in sql.rstrip("; \t\r\n")
            and not self.names.may_name_any(sql, _SLOW_WORDS | self.names.node_functions.keys())
        )

    async def _route(self, backend: Backend, command: Command, oids: Sequence[int]) -> Action:
        if command.name == "" or any(token.kind is Kind.BROKEN for token in command.tokens):
            return await _refuse_unknown(backend, command)
        treatment = command.treatment
        if treatment is Treatment.REFUSED:
            raise refusal(command)
        if command.is_several:
            raise SqlSyntaxError("cannot insert multiple commands into a prepared statement")
        if treatment is Treatment.QUERY:
            return await self._query(backend, command, oids)
        if treatment is Treatment.DML:
            return await _write(backend, command, oids)
        if treatment is Treatment.CHECKED:
            return await self._checked(backend, command, oids)
        if treatment is Treatment.SUBSCRIPTION:
            return await self._subscriptions.route(backend, command)
        if treatment is Treatment.SETTING:
            check = check_set if command.name == "SET" else check_embedded_set
            check(command.rest)
            return Relay()
        if command.name == "PREPARE TRANSACTION":
            await refuse_prepared_subscriptions(backend)
        if command.name in _END_PREPARED and not self.names.knows_all:
            return Relay(after=self.names.prepared_ended)
        if command.name == "ALTER TABLE":
            await refuse_detach(backend, command)
        if command.name == "SET CONSTRAINTS":
            await refuse_named_constraints(backend, command)
        refuse_node_schema(command)
        return self._definition(command) if treatment is Treatment.DDL else Relay()

    async def _query(self, backend: Backend, command: Command, oids: Sequence[int]) -> Action:
        identifiers = {token.name for token in command.tokens}
        words = {token.word for token in command.tokens}
        names_none = self.names.knows_all and self.names.names.isdisjoint(identifiers)
        if names_none and _WRITING_WORDS.isdisjoint(words):
            return Relay()
        plan = await explain(backend, command, oids)
        if plan.targets:
            return judge_writing(plan, command)
        lake = plan.of_kind("lake")
        refuse_foreign(plan.relations)
        if not lake:
            return Relay()
        if len(lake) < len(plan.relations):
            raise mixed(plan)
        if plan.locks_rows:
            raise FeatureNotSupportedError(
                "locking rows of lake tables is not supported",
                detail=f"The query has FOR UPDATE or FOR SHARE on {lake[0]}.",
            )
        uses_view = not (self.names.knows_all and self.names.views.isdisjoint(identifiers))
        for relation in lake:
            refuse_row_security(relation, uses_view)
        return RunOnLake(command.sql, tuple(relation.oid for relation in lake))

    async def _checked(self, backend: Backend, command: Command, oids: Sequence[int]) -> Action:
        """A command that contains or names a query, which only COPY may read the lake with."""
        if command.name == "COPY":
            return await self._copy(backend, command)
        if command.name == "EXECUTE":
            await self._prepared(backend, object_name(command.rest))
            return Relay()
        if command.name in ("CREATE TABLE AS", "SELECT INTO"):
            return await self._table_as(backend, command, oids)
        inner = inner_statement(command)
        if inner is not None and command.name == "DECLARE":
            return await self._declare(backend, command, inner, oids)
        if inner is not None and command.name == "EXPLAIN":
            return await self._explain(backend, command, inner, oids)
        if inner is not None:  # PREPARE
            await self._inner(backend, command, inner, oids)
        return Relay()

    async def _inner(self, backend: Backend, outer: Command, sql: str, oids: Sequence[int]) -> None:
        """Route the statement inside of another one; only what would be relayed may stay there."""
        command = await _parse(backend, sql)
        action = await self._route(backend, command, oids)
        if not isinstance(action, Relay):
            raise inside(outer)

    async def _explain(
        self, backend: Backend, command: Command, sql: str, oids: Sequence[int]
    ) -> Action:
        found = await self._query_inside(backend, command, sql, oids)
        if found is None:
            return Relay()
        head, query = found
        await backend.query(f"{head} SELECT")  # PostgreSQL's check of options
        explained = Explained(query.sql, verbose=explains_verbosely(command))
        return RunOnLake(command.sql, query.relids, explained)

    async def _of_query(
        self, backend: Backend, outer: Command, sql: str, oids: Sequence[int]
    ) -> RunOnLake | None:
        """The query of a command that does something with its rows; None when it is relayed."""
        action = await self._route(backend, await _parse(backend, sql), oids)
        if not isinstance(action, Relay | RunOnLake):
            raise inside(outer)
        return action if isinstance(action, RunOnLake) else None

    async def _query_inside(
        self, backend: Backend, outer: Command, sql: str, oids: Sequence[int]
    ) -> tuple[str, RunOnLake] | None:
        """What a command has before its query, and that; None when it is relayed as it is."""
        query = await self._of_query(backend, outer, sql, oids)
        place = inner_range(outer)
        return None if query is None or place is None else (outer.sql[: place[0]], query)

    async def _declare(
        self, backend: Backend, command: Command, sql: str, oids: Sequence[int]
    ) -> Action:
        found = await self._query_inside(backend, command, sql, oids)
        if found is None:
            return Relay()
        head, query = found
        options = [token.word for token in command.tokens if token.start < len(head)]
        holds = ("with", "hold") in pairwise(options)  # either word may be the cursor's name
        return RelayRows(f"{head} ", query, in_block=not holds)

    async def _table_as(self, backend: Backend, command: Command, oids: Sequence[int]) -> Action:
        """A table made of a query's rows: a temporary one, or one of the lake."""
        executed = _executed_name(command)
        if executed and command.temporary:
            await self._prepared(backend, executed)
            return Relay()
        parts = table_as(command)
        if parts is None:
            if not executed:
                await explain(backend, command, oids)  # PostgreSQL's error for its syntax
            raise refusal(command)
        query = await self._of_query(backend, command, parts.query, oids)
        if not parts.temporary:
            if parts.if_missing and await named_relations(backend, [parts.name]):
                return Relay()  # PostgreSQL says that there is one
            if any(token.kind is Kind.PARAMETER for token in command.tokens):
                raise refusal(command)
            return MakeTable(parts, self._definition(command))
        if query is None:
            return Relay()
        return RelayRows(parts.before_query, query, parts.behind_query)

    async def _copy(self, backend: Backend, command: Command) -> Action:
        inner = inner_statement(command)
        if inner is not None:
            return await self._copy_query(backend, command, inner)
        is_old_syntax = [token.word for token in command.rest[:1]] == ["binary"]
        tokens = command.rest[1:] if is_old_syntax else command.rest
        name = object_name(tokens)
        behind = [token.word for token in top_level(tokens[len(name) :])]
        reads_client = behind[:1] == ["from"]
        for relation in await named_relations(backend, [_text(name)]):
            if relation.kind == "lake":
                if behind[:2] == ["from", "stdin"]:
                    return await judge_copy(backend, command, relation)
                if reads_client:
                    raise FeatureNotSupportedError(
                        "COPY into lake tables from a file is not supported",
                        detail=f"{relation} is a table of the lake.",
                        hint="COPY ... FROM STDIN is, and psql's \\copy.",
                    )
                await refuse_affected(backend, relation)
                return judge_copy_to(command, relation)
            refuse_foreign([relation])
            if reads_client and relation.kind != "temporary":
                raise read_only(relation)
        return Relay()

    async def _copy_query(self, backend: Backend, command: Command, inner: str) -> Action:
        query = await _parse(backend, inner)
        action = await self._route(backend, query, ())
        if isinstance(action, RunOnLake):
            return copy_of_query(command, action)
        if isinstance(action, WriteLake):
            raise inside(command)
        return Relay()

    async def _prepared(self, backend: Backend, name: Sequence[Token]) -> None:
        """Check a prepared statement again: views, search_path and tables may have changed."""
        if len(name) != 1:
            return  # PostgreSQL raises the error
        rows = await backend.query(_PREPARED, [name[0].name])
        for statement, from_sql, types in rows:
            command = await _parse(backend, statement or "")
            oids = [int(oid) for oid in (types or "{}")[1:-1].split(",") if oid]
            inner = inner_statement(command) if command.name == "PREPARE" else statement
            if inner is None or (from_sql == "t") != (command.name == "PREPARE"):
                raise FeatureNotSupportedError(
                    f'prepared statement "{name[0].name}" cannot be checked',
                    hint="Prepare it alone, not together with other statements.",
                )
            check_functions(command.tokens)
            await self._inner(backend, command, inner, oids)

    def _definition(self, command: Command) -> Relay:
        words = {token.word for token in top_level(command.tokens)}
        if command.name in ("CREATE EXTENSION", "ALTER EXTENSION"):
            refuse_extension(command)
        if command.name == "CREATE TYPE" and not is_type_of_values(command):
            raise FeatureNotSupportedError(
                "base types are not supported",
                detail="Only enum, composite and range types are.",
            )
        if "concurrently" in words:
            # Cannot run in a transaction block, so nothing of ours could be undone with it.
            if command.name == "DROP INDEX" or (
                command.name == "CREATE INDEX" and "unique" not in words
            ):
                return Relay()
            raise FeatureNotSupportedError(
                f"{command.name} ... CONCURRENTLY is not supported", hint="Leave CONCURRENTLY out."
            )
        definition = _Definition(self.names, self._reconciler)
        return Relay(after=definition.after, ended=definition.ended)


class _Definition:
    """What follows one statement that changes a definition."""

    def __init__(self, names: KnownNames, reconciler: Reconciler) -> None:
        self._names = names
        self._reconciler = reconciler
        self._ended: Ended | None = None

    async def after(self, backend: Backend) -> None:
        await self._names.take_changes(backend)
        self._ended = await self._reconciler.reconcile(backend)

    async def ended(self, committed: bool) -> None:
        if self._ended is not None:
            await self._ended(committed)


_PREPARED = """
SELECT statement, from_sql, parameter_types::pg_catalog.oid[]
FROM pg_catalog.pg_prepared_statements WHERE name = $1"""


async def _parse(backend: Backend, sql: str) -> Command:
    """Parse with the session's standard_conforming_strings.

    The reported value may be stale inside of a pipeline, so it is asked for when it matters.
    """
    conforming = backend.parameters.get("standard_conforming_strings", "on") == "on"
    command = parse(sql, conforming)
    if any(depends_on_backslashes(token) for token in command.tokens):
        rows = await backend.query(
            "SELECT pg_catalog.current_setting('standard_conforming_strings')"
        )
        if (rows[0][0] == "on") != conforming:
            return parse(sql, not conforming)
    return command


async def _write(backend: Backend, command: Command, oids: Sequence[int]) -> Action:
    """INSERT, UPDATE, DELETE, MERGE, TRUNCATE: of lake tables, or of temporary ones."""
    if command.name != "TRUNCATE":
        return judge_writing(await explain(backend, command, oids), command)
    emptied = truncated(command)
    if emptied is None:
        raise SqlSyntaxError("cannot tell which tables TRUNCATE names")
    tables = await named_relations(backend, [_text(name) for name in emptied.names])
    return judge_truncate(tables, command, emptied.options)


async def _refuse_unknown(backend: Backend, command: Command) -> Action:
    """Let PostgreSQL raise its syntax error; refuse what it would understand."""
    await explain(backend, command)
    raise FeatureNotSupportedError(
        "statement is not supported", detail="It is not a command that the node knows."
    )


def _executed_name(command: Command) -> Sequence[Token]:
    """The name behind CREATE TABLE ... AS EXECUTE."""
    tokens = list(top_level(command.tokens))
    words = [token.word for token in tokens]
    if "as" not in words or words[words.index("as") + 1 :][:1] != ["execute"]:
        return ()
    return object_name(tokens[words.index("as") + 2 :])


def _text(name: Sequence[Token]) -> str:
    return "".join(token.text for token in name)
