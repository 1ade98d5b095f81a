# SPDX-License-Identifier: Apache-2.0
"""Two ends of a subscription, each a real PostgreSQL or a node, that take the same statements.

A scenario is told once and carried out in every topology.  PostgreSQL to PostgreSQL is the control:
what it shows is what the others must show.  Rows are read as ``COPY (query) TO STDOUT`` writes
them, which asks no more of a lake than its data files, so a subscribing node needs no Spark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import psycopg
import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.psql import PsqlError
from tests.support.published import NOT_READY, conninfo, make_replica
from tests.support.subscribing import SYNC_TIMEOUT
from tests.support.waits import wait_until

NULL = "\\N"
"""How COPY writes it."""

TOPOLOGIES = ("postgres_to_postgres", "postgres_to_lake", "lake_to_postgres", "lake_to_lake")


def topologies(*names: str) -> pytest.MarkDecorator:
    """For a scenario that has a meaning in some topologies only."""
    assert set(names) <= set(TOPOLOGIES)
    return pytest.mark.parametrize("ends", names, indirect=True)


_BEHIND = """SELECT FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid
    WHERE s.slot_name = %s AND r.replay_lsn >= %s::pg_lsn"""

_SLOT = "SELECT subslotname FROM pg_subscription WHERE subname = '{}'"

_SUBSCRIPTIONS = """SELECT quote_ident(subname) FROM pg_subscription
    JOIN pg_database d ON d.oid = subdbid WHERE datname = current_database()"""

_OBJECTS = """
    SELECT format('DROP PUBLICATION %I', pubname) FROM pg_publication
    UNION ALL
    SELECT format('DROP TABLE %s CASCADE', oid::regclass) FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
    UNION ALL
    SELECT format('DROP SCHEMA %I CASCADE', nspname) FROM pg_namespace
    WHERE nspname NOT LIKE 'pg\\_%' AND nspname NOT IN ('penstock', 'public', 'information_schema')
    UNION ALL
    SELECT format('DROP OWNED BY %1$I; DROP ROLE %1$I', rolname) FROM pg_roles
    WHERE rolname NOT LIKE 'pg\\_%'"""
"""Statements that drop what there is, in an order in which they work."""

_FINISHED = re.compile(r"finished at (\S+)")


def _has_applied(conn: psycopg.Connection[Any], slot: str, lsn: str) -> bool:
    return conn.execute(_BEHIND, [slot, lsn]).rowcount == 1


class End:
    """One seat of a topology: a database of a server, or a node."""

    def __init__(self, at: Database | Node) -> None:
        self.at = at
        self._before: frozenset[str] = frozenset()
        self._log_from = 0
        self._open()

    def _open(self) -> None:
        if isinstance(self.at, Node):
            make_replica(self.at)
        else:
            # A worker that failed tries again after this time.
            self.at.psql("ALTER SYSTEM SET wal_retrieve_retry_interval = '200ms'")
            self.at.psql("SELECT pg_reload_conf()")
            self._log_from = len(self.at.server.log_text())
        self._before = frozenset(self._objects())

    @property
    def is_lake(self) -> bool:
        """Whether it is a node."""
        return isinstance(self.at, Node)

    @property
    def conninfo(self) -> str:
        """How a subscriber connects to it."""
        return conninfo(self.at) if isinstance(self.at, Node) else self.at.conninfo

    def psql(self, *statements: str) -> str:
        """Run statements through psql, each text by a psql of its own; what the last printed."""
        printed = ""
        for each in statements:
            printed = self.at.psql(each)
        return printed

    def refuses(self, sql: str) -> str:
        """The primary message of the error with which a statement must end."""
        with pytest.raises(PsqlError) as caught:
            self.psql(sql)
        found = re.search(r"ERROR: +(.*)", caught.value.stderr)
        assert found, caught.value.stderr
        return found[1]

    def rows(self, query: str) -> list[str]:
        """The rows of a table or query in order, fields apart by ``|``, nulls as NULL."""
        query = query if " " in query else f"SELECT * FROM {query}"
        return sorted(self.psql(f"COPY ({query}) TO STDOUT").replace("\t", "|").splitlines())

    def publications_of(self, name: str) -> str:
        """The publications that a subscription names, in order."""
        return self.psql(
            "SELECT array_to_string(ARRAY(SELECT unnest(subpublications) ORDER BY 1), ',')"
            f" FROM pg_subscription WHERE subname = '{name}'"
        )

    def subscribe(self, to: End, name: str, publications: str, options: str = "") -> None:
        """CREATE SUBSCRIPTION, without waiting for anything."""
        with_options = f" WITH ({options})" if options else ""
        self.psql(
            f"CREATE SUBSCRIPTION {name} CONNECTION '{to.conninfo}'"
            f" PUBLICATION {publications}{with_options}"
        )

    def wait_in_sync(self, name: str) -> None:
        """Wait until every table of a subscription is copied and caught up."""
        query = NOT_READY.format(name)
        try:
            wait_until(lambda: self.psql(query) == "", SYNC_TIMEOUT, f"{name} to be in sync")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._errors(name)}") from error

    def wait_sent(self, *subscribers: tuple[End, str]) -> None:
        """Wait until subscriptions have applied all that is committed here."""
        end = self.psql("SELECT pg_current_wal_insert_lsn()")
        with self.at.connect() as conn:
            for subscriber, name in subscribers:
                slot = subscriber.psql(_SLOT.format(name))
                applied = partial(_has_applied, conn, slot, end)
                try:
                    wait_until(applied, SYNC_TIMEOUT, f"{name} to apply everything")
                except AssertionError as error:
                    raise AssertionError(f"{error}\n{subscriber._errors(name)}") from error

    def wait_error(self, name: str, message: str, lake: str | None = None) -> str:
        """Wait until a subscription fails with this message; the LSN it finished at, or ''.

        ``lake``: what a node says where it has the words of another version.
        """
        message = (lake or message) if self.is_lake else message
        found = ""

        def failed() -> bool:
            nonlocal found
            found = self._errors(name)
            return message in found

        try:
            wait_until(failed, SYNC_TIMEOUT, message)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{found}") from error
        if isinstance(self.at, Database):
            self._log_from = len(self.at.server.log_text())
        lsn = _FINISHED.search(found[found.index(message) :])
        return lsn[1] if lsn else ""

    def mend(self, name: str, *statements: str) -> None:
        """Run statements that mend what stopped a subscription; it tries again at once."""
        self.psql(
            f"ALTER SUBSCRIPTION {name} DISABLE",
            *statements,
            f"ALTER SUBSCRIPTION {name} ENABLE",
        )

    def drop_subscriptions(self) -> None:
        """Drop those of this database, with their slots where these can be reached."""
        for name in self.psql(_SUBSCRIPTIONS).splitlines():
            try:
                self.psql(f"DROP SUBSCRIPTION {name}")
            except PsqlError:
                self.psql(
                    f"ALTER SUBSCRIPTION {name} DISABLE",
                    f"ALTER SUBSCRIPTION {name} SET (slot_name = NONE)",
                    f"DROP SUBSCRIPTION {name}",
                )

    def clear(self) -> None:
        """Drop what was made since this seat was taken; a server's database goes as a whole."""
        for statement in self._objects():
            if statement not in self._before:
                with suppress(PsqlError):  # it went with what was dropped before it
                    self.psql(statement)

    def _objects(self) -> Sequence[str]:
        return self.psql(_OBJECTS).splitlines()

    def _errors(self, name: str) -> str:
        if isinstance(self.at, Node):
            return self.at.psql(
                "SELECT message || E'\\n' || coalesce(context, '') FROM"
                " penstock.subscription_error e JOIN pg_subscription s ON s.oid = e.subid"
                f" WHERE s.subname = '{name}'"
            )
        lines = self.at.server.log_text()[self._log_from :].splitlines()
        return "\n".join(each for each in lines if "ERROR" in each or "CONTEXT" in each)


class Ends:
    """A publisher and a subscriber, and the subscriptions between the two."""

    def __init__(self, publisher: End, subscriber: End) -> None:
        self.publisher = publisher
        self.subscriber = subscriber

    def both(self, *statements: str) -> None:
        """Run the same statements on both."""
        self.publisher.psql(*statements)
        self.subscriber.psql(*statements)

    def subscribe(self, name: str, publications: str, options: str = "") -> None:
        """CREATE SUBSCRIPTION, and wait until its tables are copied."""
        self.subscriber.subscribe(self.publisher, name, publications, options)
        self.subscriber.wait_in_sync(name)

    def refresh(self, name: str, options: str = "") -> None:
        """Take up what the publications publish by now, and wait until it is copied."""
        with_options = f" WITH ({options})" if options else ""
        self.subscriber.psql(f"ALTER SUBSCRIPTION {name} REFRESH PUBLICATION{with_options}")
        self.subscriber.wait_in_sync(name)

    def caught_up(self, *names: str) -> None:
        """Wait until subscriptions have applied all that the publisher has committed."""
        self.publisher.wait_sent(*((self.subscriber, name) for name in names))

    def sent(self, name: str, *statements: str) -> None:
        """Run statements on the publisher, and wait until they are applied."""
        self.publisher.psql(*statements)
        self.caught_up(name)

    def same(self, *queries: str) -> None:
        """Both must have the same rows of each table or query, at least one."""
        for query in queries:
            expected = self.publisher.rows(query)
            assert self.subscriber.rows(query) == expected, query
            assert expected, query
