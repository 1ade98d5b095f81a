# SPDX-License-Identifier: Apache-2.0
"""CREATE, ALTER and DROP SUBSCRIPTION: PostgreSQL runs them, this does what is ours around them.

    command                           before it runs             when its transaction has ended
    -------                           --------------             ------------------------------
    CREATE                            hold the workers,          keep our options, or drop what
                                      create missing tables      was created; wake
    ALTER ... REFRESH, SET or ADD     stop the workers,          drop what was created when it
    PUBLICATION                       create missing tables      failed; wake
    DROP, ALTER ... DISABLE,          stop the workers           wake
    CONNECTION, DROP PUBLICATION,
    SKIP, SET (slot_name = ...)
    other ALTER                       nothing                    keep our options; wake

Workers are stopped where PostgreSQL stops its own, or where its command needs the slot or the
origin free, or writes what a worker writes (the LSN to skip).  Tables are created with the client's
role in the client's session, and only when PostgreSQL's own checks that come first would pass;
whatever they would refuse is relayed, so the error is PostgreSQL's.  The same holds for a publisher
that cannot be reached.  But a command that connects is not relayed when the publisher does not
answer, which PostgreSQL would wait for without end.

Our options are kept by the node itself once the subscription is committed: a crash between the two
leaves the defaults.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import psycopg
from psycopg.conninfo import conninfo_to_dict

from penstock.change.mapping import ValueMapping
from penstock.control.address import ControlAddress
from penstock.control.catalog import Subscription, subscriptions
from penstock.control.connect import connect
from penstock.errors import NoAnswerError, PenstockError
from penstock.frontdoor.actions import Backend, Relay, Subscriptions
from penstock.frontdoor.definitions.creation import (
    Created,
    TableDefinition,
    create_missing,
    published_tables,
)
from penstock.frontdoor.routing.known_names import KnownNames
from penstock.names import quote_pg, quote_pg_literal
from penstock.sql.commands import Command
from penstock.sql.subscription import (
    PUBLICATION_CHANGES,
    Change,
    SubscriptionCommand,
    parse_subscription,
)

log = logging.getLogger(__name__)

_STOPS = {
    Change.CREATE,  # holds the name, so that no worker starts without the options
    Change.DROP,
    Change.DISABLE,
    Change.CONNECTION,
    Change.REFRESH,
    Change.SET_PUBLICATION,
    Change.ADD_PUBLICATION,
    Change.DROP_PUBLICATION,
    Change.SKIP,
}

_MAY_CREATE = """
SELECT pg_catalog.pg_has_role('pg_create_subscription', 'USAGE')
   AND pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_subscription s JOIN pg_catalog.pg_database d
                   ON d.oid = s.subdbid AND d.datname = pg_catalog.current_database()
                   WHERE s.subname = $1),
   (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user)"""
_OWNS = """
SELECT pg_catalog.pg_has_role(oid, 'USAGE'), rolsuper FROM pg_catalog.pg_roles WHERE oid = $1"""
_KEEP = """
INSERT INTO penstock.subscription_option (subid, {columns})
SELECT s.oid, {values} FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid
WHERE s.subname = %(name)s AND d.datname = current_database()
ON CONFLICT (subid) DO UPDATE SET {changes}"""


@dataclass(frozen=True)
class Publisher:
    """Whom a command connects to, and how the subscription holds values.

    ``creates``: its tables are created when they are missing.
    """

    conninfo: str
    publications: Sequence[str]
    password_required: bool
    mapping: ValueMapping
    creates: bool


class SubscriptionRouter:
    """The router's SubscriptionCommands; one for a node.

    ``publisher_user`` is who connects when a connection string has no user: the OS user of the
    control database, since its own connections do so.  ``timeout``: seconds that a publisher may
    take to answer.
    """

    def __init__(
        self,
        control: ControlAddress,
        names: KnownNames,
        workers: Subscriptions,
        publisher_user: str | None,
        timeout: float,
    ) -> None:
        self.control = control
        self.names = names
        self.workers = workers
        self.publisher_user = publisher_user
        self.timeout = timeout

    async def route(self, backend: Backend, command: Command) -> Relay:
        """The relay of a subscription command, with what must be done around it.

        42601, 22023 for our own options, 0A000 for what the workers do not honour yet.
        """
        parsed = parse_subscription(command)
        sql = parsed.sql
        if sql is None:
            sql = await self._set_nothing(parsed.name)
        around = _Around(self, parsed, in_block=backend.transaction_status != "I")
        changed = None if sql == command.sql else sql
        return Relay(sql=changed, before=around.before, ended=around.ended)

    async def publisher(self, backend: Backend, command: SubscriptionCommand) -> Publisher | None:
        """Whom the command connects to; None when it connects to nobody, or is refused before."""
        if command.change is Change.CREATE:
            return await self._new_publisher(backend, command)
        drops = command.change is Change.DROP
        if command.change not in PUBLICATION_CHANGES and not drops:
            return None
        if not command.boolean("refresh", True):
            return None
        known = await asyncio.to_thread(self._subscription, command.name)
        if known is None or not (known.slot_name is not None if drops else known.enabled):
            return None
        ((owns, owner_is_superuser),) = await backend.query(_OWNS, [str(known.owner)])
        if owns != "t":
            return None
        publications = list(command.publications)
        if command.change is not Change.SET_PUBLICATION:
            publications += known.publications
        creates = (
            known.create_tables and not drops and command.change is not Change.DROP_PUBLICATION
        )
        needs_password = known.password_required and owner_is_superuser != "t"
        return Publisher(known.conninfo, publications, needs_password, known.mapping, creates)

    def keep_options(self, command: SubscriptionCommand) -> None:
        """Write our own options of a committed subscription; blocks."""
        keep = _KEEP.format(
            columns=", ".join(command.own),
            values=", ".join(f"%({option})s" for option in command.own),
            changes=", ".join(f"{option} = excluded.{option}" for option in command.own),
        )
        with connect(self.control, application_name="penstock subscription options") as conn:
            conn.execute(keep.encode(), {"name": command.name, **command.own})

    def _subscription(self, name: str) -> Subscription | None:
        with connect(self.control, application_name="penstock create tables") as conn:
            return next((each for each in subscriptions(conn) if each.name == name), None)

    async def _new_publisher(
        self, backend: Backend, command: SubscriptionCommand
    ) -> Publisher | None:
        connects = command.boolean("connect", True)
        if not connects and command.own.get("create_tables"):
            raise PenstockError(
                "connect = false and create_tables = true are mutually exclusive options",
                sqlstate="42601",
            )
        if not connects or command.conninfo is None:
            return None
        ((may, is_superuser),) = await backend.query(_MAY_CREATE, [command.name])
        if may != "t":
            return None
        # PostgreSQL knows what the literal means; it is the client's own.
        conninfo = (await backend.query(f"SELECT {command.conninfo}"))[0][0] or ""
        if is_superuser != "t" and not _has_password(conninfo):
            return None
        mapping = ValueMapping(**command.mapping)
        creates = bool(command.own.get("create_tables", True))
        return Publisher(conninfo, command.publications, is_superuser != "t", mapping, creates)

    async def _set_nothing(self, name: str) -> str:
        """An ALTER SUBSCRIPTION that changes nothing: PostgreSQL checks the name and the owner."""
        known = await asyncio.to_thread(self._subscription, name)
        value = known.synchronous_commit if known is not None else "off"
        return (
            f"ALTER SUBSCRIPTION {quote_pg(name)}"
            f" SET (synchronous_commit = {quote_pg_literal(value)})"
        )


class _Around:
    """What is done around one command; its hooks.

    Outside of a block of the client, ``before`` is committed before the command runs.
    """

    def __init__(
        self, router: SubscriptionRouter, command: SubscriptionCommand, *, in_block: bool
    ) -> None:
        self._router = router
        self._command = command
        self._in_block = in_block
        self._backend: Backend | None = None
        self._created = Created()

    async def before(self, backend: Backend) -> None:
        self._backend = backend
        with ExitStack() as on_error:
            on_error.callback(self._router.workers.wake, self._command.name)
            if self._command.change in _STOPS or self._command.has("slot_name"):
                await self._router.workers.stop(self._command.name)
            publisher = await self._router.publisher(backend, self._command)
            if publisher is not None:
                self._created = await self._create(backend, publisher)
            on_error.pop_all()

    async def ended(self, committed: bool) -> None:
        try:
            if committed:
                await self._keep_options()
            elif self._backend is not None and not self._in_block:
                await self._created.drop(self._backend)
        finally:
            self._router.workers.wake(self._command.name)

    async def _create(self, backend: Backend, publisher: Publisher) -> Created:
        tables = await self._ask(publisher)
        for table in tables:
            self._router.names.add(table.name)
        created = await create_missing(backend, tables, publisher.mapping)
        if created.tables:
            log.info('subscription "%s": created %s', self._command.name, ", ".join(created.tables))
        return created

    async def _ask(self, publisher: Publisher) -> list[TableDefinition]:
        """The published tables, if they are to be created.

        The question is put anyway: PostgreSQL is about to connect, and would wait for an answer
        without end (libpqrcv_connect, libpqrcv_PQexec).  The error is the one that it has for a
        connection that cannot be made.
        """
        name = self._command.name
        try:
            return await asyncio.to_thread(
                published_tables,
                publisher.conninfo,
                publisher.publications if publisher.creates else (),
                default_user=self._router.publisher_user,
                password_required=publisher.password_required,
                timeout=self._router.timeout,
            )
        except NoAnswerError as error:
            if self._command.change is Change.DROP:
                raise PenstockError(
                    "could not connect to publisher when attempting to drop replication slot:"
                    f" {error.message}",
                    hint="Use ALTER SUBSCRIPTION ... DISABLE to disable the subscription, and then"
                    " use ALTER SUBSCRIPTION ... SET (slot_name = NONE) to disassociate it from"
                    " the slot.",
                    sqlstate="08006",
                ) from error
            raise PenstockError(
                f'subscription "{name}" could not connect to the publisher: {error.message}',
                sqlstate="08006",
            ) from error
        except (PenstockError, psycopg.Error) as error:
            # PostgreSQL is about to ask the same publisher: it reports the error as its own.
            log.info('subscription "%s": tables are not created: %s', self._command.name, error)
            return []

    async def _keep_options(self) -> None:
        if self._command.own:
            await asyncio.to_thread(self._router.keep_options, self._command)


def _has_password(conninfo: str) -> bool:
    try:
        return bool(conninfo_to_dict(conninfo).get("password"))
    except psycopg.Error:
        return False
