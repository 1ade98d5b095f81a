# SPDX-License-Identifier: Apache-2.0
"""A node: the only place that joins the parts.

Start: control database and Spark side by side, the schema, the workers, the front door; then the
ready line.  Stop (SIGTERM, SIGINT, ``penstock stop``, or the control database died): the front
door first, so that nothing new begins, then the workers, Spark, and the control database last,
since everything else needs it to end in order.  A batch that is not done by then is given up; the
next start restores what it wrote.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from penstock.config import Settings
from penstock.control.account import server_account
from penstock.control.address import ControlAddress
from penstock.control.claim import claim
from penstock.control.connect import connect
from penstock.control.external import check_external
from penstock.control.guard import Guard, node_secret, register_secret
from penstock.control.ledger import Ledger
from penstock.control.migrate import migrate
from penstock.control.retention import oldest_position
from penstock.control.server import EmbeddedServer
from penstock.errors import ConfigurationError, ConnectionLostError
from penstock.frontdoor.copying.copy_out import LakeCopies
from penstock.frontdoor.copying.copy_source import CopySources
from penstock.frontdoor.definitions.reconcile import Reconciler
from penstock.frontdoor.definitions.subscription import SubscriptionRouter
from penstock.frontdoor.listener import FrontDoor
from penstock.frontdoor.reading.explained import PublicationExplainer
from penstock.frontdoor.reading.query import SparkQueries
from penstock.frontdoor.replication.published import LakePublisher
from penstock.frontdoor.routing.known_names import KnownNames
from penstock.frontdoor.routing.router import StatementRouter
from penstock.frontdoor.writing.writer import LakeWriter
from penstock.home import HomeLock, keep_superuser
from penstock.lake.copy_spark import warm as warm_copy
from penstock.lake.dropped import remove_dropped
from penstock.lake.query import warm as warm_query
from penstock.lake.session import Spark, scratch_folder
from penstock.pgoutput.warm import warm
from penstock.workers.context import WorkerContext
from penstock.workers.external import watch
from penstock.workers.launcher import Launcher
from penstock.workers.loop import Loop
from penstock.workers.maintenance import maintain
from penstock.workers.reporting import report

log = logging.getLogger(__name__)

DRAIN = 5.0
"""Seconds that sessions have to end, and then workers; Spark and the server need the rest of 15."""

WATCH = 0.5
"""Seconds between two looks at whether the control database still runs."""


@dataclass(frozen=True)
class ControlDatabase:
    """The control database that this node uses; ``embedded`` is None for an external one.

    ``publisher_user`` is whom libpq takes when a connection string names no user, there.
    """

    address: ControlAddress
    publisher_user: str | None
    embedded: EmbeddedServer | None

    @property
    def died(self) -> bool:
        """Whether the embedded server has ended by itself."""
        return self.embedded is not None and self.embedded.poll() is not None


def run_node(settings: Settings, lock: HomeLock) -> None:
    """Run a node in the foreground until it is told to stop.

    ConnectionLostError when the control database died; the next start recovers it.
    """
    with ExitStack() as stack:
        spark = Spark(settings)
        with ThreadPoolExecutor(2) as starters:
            starting: list[Future[object]] = [starters.submit(warm)]
            if settings.warm_up:
                starting.append(starters.submit(spark.session))
            database = stack.enter_context(_control_database(settings))
            for each in starting:
                each.result()
        stack.callback(spark.stop)
        claimed = stack.enter_context(connect(database.address, application_name="penstock node"))
        claim(claimed)
        guard = _prepare(settings, database.address)
        context = WorkerContext(settings, database.address, spark, database.publisher_user)
        launcher = stack.enter_context(_workers(context))
        if settings.warm_up:
            threading.Thread(target=_warm_up, args=(context,), name="warm", daemon=True).start()
        asyncio.run(_serve(context, lock, database, guard, launcher))
    log.info("the node has stopped")


def _warm_up(context: WorkerContext) -> None:
    warm_copy(context.spark.session(), context.settings.max_sync_workers_per_subscription)
    warm_query(context.spark.session(), context.settings.home / "spark" / "warm")


@contextmanager
def _control_database(settings: Settings) -> Iterator[ControlDatabase]:
    if settings.control is not None:
        if settings.control_path.exists():
            raise ConfigurationError(
                f'home "{settings.home}" has a control database of its own',
                hint="Start it without --control, or give this node another --home.",
            )
        address = check_external(settings.control)
        keep_superuser(settings.pgpass_path, address.dbname, address.user, address.password)
        yield ControlDatabase(address, None, None)
        return
    server = EmbeddedServer(settings)
    account = server_account(settings.control_user).name or pwd.getpwuid(os.geteuid()).pw_name
    try:
        yield ControlDatabase(server.start(), account, server)
    finally:
        server.stop()


def _prepare(settings: Settings, address: ControlAddress) -> Guard:
    """Bring the schema up to date, register the node's secret, remove what was dropped."""
    secret = node_secret(settings.home / "secret")
    with connect(address, application_name="penstock start") as connection:
        migrate(connection)
        register_secret(connection, secret)
        if oldest_position(connection) is None:  # else maintenance knows what is needed
            remove_dropped(connection, settings.lake_path)
    return Guard(secret)


@contextmanager
def _workers(context: WorkerContext) -> Iterator[Launcher]:
    launcher = Launcher(context)
    retry = context.settings.wal_retrieve_retry_interval
    ledger = Loop("ledger", Ledger(context.control).run, "the ledger stopped", retry)
    reporter = Loop(
        "reporter",
        partial(report, context.control, launcher.reports),
        "pg_stat_subscription is not up to date",
        retry,
    )
    maintenance = Loop("maintenance", partial(maintain, context), "maintenance stopped", retry)
    external = Loop(
        "external", partial(watch, context), "other programs' writes are not noticed", retry
    )
    launcher.start()
    for loop in (ledger, reporter, maintenance, external):
        loop.start()
    try:
        yield launcher
    finally:
        if not launcher.shut_down(DRAIN):
            log.warning("giving up a batch that is not done; the next start applies it again")
            context.spark.cancel_all_jobs()
            launcher.shut_down(DRAIN / 2)
        for loop in (external, maintenance, ledger, reporter):
            loop.shut_down(DRAIN)


async def _serve(
    context: WorkerContext,
    lock: HomeLock,
    database: ControlDatabase,
    guard: Guard,
    launcher: Launcher,
) -> None:
    """Listen until a signal comes or the control database has died."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    front_door = _front_door(context, guard, launcher)
    await front_door.start()
    host, port = front_door.address
    lock.record_address(host, port)
    print(f"penstock: ready to accept connections on {host}:{port}", flush=True)
    while not stopping.is_set() and not database.died:
        with_timeout = asyncio.wait_for(stopping.wait(), WATCH)
        try:
            await with_timeout
        except TimeoutError:
            continue
    await front_door.stop(DRAIN)
    if database.died:
        raise ConnectionLostError(
            "the control database has died",
            hint="Start the node again: it recovers by itself. Its log is in the home.",
        )


def _front_door(context: WorkerContext, guard: Guard, launcher: Launcher) -> FrontDoor:
    settings = context.settings
    names = KnownNames()
    with connect(context.control, application_name="penstock start") as connection:
        names.load(connection)
    router = StatementRouter(
        names,
        Reconciler(context.spark, guard, context.control, settings.lake_path),
        SubscriptionRouter(
            context.control,
            names,
            launcher,
            context.publisher_user,
            settings.wal_receiver_timeout,
        ),
        PublicationExplainer(context.spark.session, settings.lake_path),
    )
    queries = SparkQueries(
        context.spark.session,
        settings.lake_path,
        lambda: connect(context.control, application_name="penstock query"),
    )
    scratch = scratch_folder(settings)
    writer = LakeWriter(
        context.spark,
        guard,
        context.control,
        settings.lake_path,
        settings.statement_rows,
        scratch,
    )
    publisher = LakePublisher(context.control, context.spark, settings.lake_path)
    copies = LakeCopies(CopySources(queries, scratch), queries)
    return FrontDoor(settings, context.control, router, queries, writer, copies, publisher)
