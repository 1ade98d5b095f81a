# SPDX-License-Identifier: Apache-2.0
"""What is known of the tables on the publisher's side, and what follows from it.

In:   the publisher's catalogs (client/standing.py): with the snapshot of each copy, when the first
      batch of a stream is applied, and whenever the publisher has described a relation again.
Out:  rows of penstock.subscription_published; which tables' inserted keys are new for sure.

    the catalogs say              what follows
    ----------------------------  ------------------------------------------------------------
    the same as before            all that happened to the rows in between was sent
    something else, or the table  rows may have gone unsent: keys are looked for in all that was
    was not known yet             sent until now, and in what the table has by now
    not all operations published  keys are always looked for

What is asked is as it is now, not as it was at the batch's place in the stream.  That is enough:
what has changed by now and has not been sent yet is described again, and asked again, when it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from psycopg.types.json import Jsonb

from penstock.client.connection import answers_within, open_publisher
from penstock.client.standing import Connection, Standing, position, standings
from penstock.control.catalog import (
    Subscription,
    SubscriptionRelation,
    subscription_relations,
)
from penstock.control.commits import begin_commit
from penstock.control.connect import ControlConnection
from penstock.control.table_state import NEEDS_COPY, TableState
from penstock.lsn import format_lsn, parse_lsn
from penstock.sync.work import QualifiedName
from penstock.workers.context import WorkerContext


@dataclass(frozen=True)
class Known:
    """A row of penstock.subscription_published."""

    standing: Standing
    since: int
    columns: frozenset[str]


_READ = """
SELECT relid::bigint, remote_oid::bigint, publications, definition, complete, natts, files,
       since::text, columns
FROM penstock.subscription_published WHERE subid = %s::oid"""
_KEEP = """
INSERT INTO penstock.subscription_published (subid, relid, remote_oid, publications, definition,
    complete, since, natts, columns, files)
VALUES (%s, %s, %s, %s, %s, %s, %s::pg_lsn, %s, %s, %s)
ON CONFLICT (subid, relid) DO UPDATE SET (remote_oid, publications, definition, complete, since,
    natts, columns, files) = (excluded.remote_oid, excluded.publications, excluded.definition,
    excluded.complete, excluded.since, excluded.natts, excluded.columns, excluded.files)"""
_FORGET_OTHERS = """
DELETE FROM penstock.subscription_published p
WHERE subid = %s::oid AND (relid = ANY (%s::oid[]) OR NOT EXISTS (
    SELECT FROM pg_subscription_rel r WHERE r.srsubid = p.subid AND r.srrelid = p.relid))"""


def known_tables(conn: ControlConnection, subid: int) -> dict[int, Known]:
    """What is known of a subscription's tables, by the relid here."""
    return {
        relid: Known(Standing(*standing), parse_lsn(since), frozenset(columns))
        for relid, *standing, since, columns in conn.execute(_READ, [subid]).fetchall()
    }


def keep(conn: ControlConnection, subid: int, relid: int, known: Known) -> None:
    """Write what is known of a table, in the connection's transaction."""
    standing = known.standing
    conn.execute(
        _KEEP,
        [
            *(subid, relid, standing.oid, standing.publications, standing.definition),
            *(standing.complete, format_lsn(known.since), standing.natts),
            *(sorted(known.columns), Jsonb(dict(standing.files))),
        ],
    )


class PublishedTables:
    """Of one attempt of a subscription; ``described`` counts the publisher's Relation messages."""

    def __init__(
        self,
        context: WorkerContext,
        subscription: Subscription,
        connection: ControlConnection,
        described: Callable[[], int],
    ) -> None:
        self._context = context
        self._subscription = subscription
        self._connection = connection
        self._described = described
        self._asked: tuple[int, frozenset[SubscriptionRelation]] | None = None
        self._since: dict[int, int] = {}

    def look(self) -> None:
        """Ask the publisher if there is a reason to; before each batch, once it is chosen.

        ConnectionLostError, or the publisher's error.
        """
        tables = [
            replace(table, lsn=None, state=TableState.READY)
            for table in subscription_relations(self._connection, self._subscription.oid)
            if table.state not in NEEDS_COPY
        ]
        asked = (self._described(), frozenset(tables))  # before the question: it may be late
        if asked != self._asked:
            with self.connect() as publisher:
                now = standings(
                    publisher,
                    self._subscription.publications,
                    [(table.schema, table.name) for table in tables],
                )
                lsn = position(publisher)
            self._compare(tables, now, lsn)
            self._asked = asked

    def all_is_sent(self, relid: int, from_lsn: int) -> bool:
        """Whether all that happens to a table's rows is sent, in commits from an LSN on."""
        since = self._since.get(relid)
        return since is not None and since <= from_lsn

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A connection to the publisher for some short questions.

        ConnectionLostError, also when it does not answer in time; the publisher's error.
        """
        subscription = self._subscription
        with (
            open_publisher(
                subscription.conninfo,
                application_name=subscription.name,
                default_user=self._context.publisher_user,
                password_required=subscription.password_required,
            ) as connection,
            answers_within(connection.fileno(), self._context.settings.wal_receiver_timeout),
        ):
            yield connection

    def _compare(
        self,
        tables: Sequence[SubscriptionRelation],
        now: Mapping[QualifiedName, Standing],
        lsn: int,
    ) -> None:
        subid = self._subscription.oid
        before = known_tables(self._connection, subid)
        self._since = {}
        with begin_commit(self._connection, "publications", self._context.settings.lake_path) as c:
            doubtful = []
            for table in tables:
                standing = now.get((table.schema, table.name))
                known = before.get(table.relid)
                if standing is not None and not (known is not None and _same(known, standing)):
                    known = _known_anew(known, standing, lsn)
                    keep(self._connection, subid, table.relid, known)
                    doubtful.append(table.relid)
                if standing is None or known is None:
                    doubtful.append(table.relid)
                elif standing.complete and self._subscription.origin == "any":
                    self._since[table.relid] = known.since
                else:
                    doubtful.append(table.relid)
            unknown = [t.relid for t in tables if (t.schema, t.name) not in now]
            self._connection.execute(_FORGET_OTHERS, [subid, unknown])
            c.forget_sole_writer(self._subscription.origin_name, doubtful)


def _same(known: Known, now: Standing) -> bool:
    before = known.standing
    return (before.publications, before.definition, before.complete) == (
        now.publications,
        now.definition,
        now.complete,
    )


def _known_anew(known: Known | None, now: Standing, lsn: int) -> Known:
    """What is known from now on.

    As long as it is published in the same way, a column above ``natts`` has been added since.
    """
    if known is None or known.standing.publications != now.publications:
        return Known(now, lsn, frozenset())
    before = known.standing
    return Known(
        replace(now, oid=before.oid, natts=before.natts, files=before.files), lsn, known.columns
    )
