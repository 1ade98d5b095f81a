# SPDX-License-Identifier: Apache-2.0
"""The lake in a Spark program: its tables, and what its publications publish, as DataFrames.

And DataFrames as rows of its tables.

    import penstock

    lake = penstock.connect("~/.penstock")
    lake.table("public.orders")                          as it is
    lake.table("public.orders", at="0/1A2B3C8")          as it was after the commit with that LSN
    lake.changes("big_orders", "0/1A2B3C8")              published since then, up to now
    lake.changes("big_orders", a, b, table="public.orders")
    with lake.transaction() as tx:                       one commit (transaction.py)
        tx.append("public.orders", frame)
    frame.write.format("delta").mode("append").save(str(lake.location("public.orders")))

Spark runs in the caller's process: ``connect`` takes the caller's session, or makes one with the
settings and jars of the home.  So rows that are read never pass through the node: they come from
Delta's files with all of the caller's executors, and frames can be joined with the caller's own.

What is asked of the node, about definitions and commits, goes through its front door, with the
home's password file: that is the one place where clients are let in, it is the same for an external
control database, and the control database's own socket stays the node's.

LSNs are those of commits (``SELECT lsn, time FROM penstock.commit``), as text or as int.  What an
older version or change needs is there for Delta's retention (7 days), and longer for as long as a
replication slot needs it; after that it is an error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial, reduce
from itertools import groupby, pairwise
from pathlib import Path
from types import TracebackType

from psycopg.conninfo import make_conninfo
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.change.relation import LakeTable, Relation
from penstock.change.schema import change_schema
from penstock.config import Settings, default_home, load_settings
from penstock.control.catalog import leaf_partitions
from penstock.control.connect import ControlConnection
from penstock.control.definitions import changed_between, definitions_at, leaves_at
from penstock.control.functions import read_functions
from penstock.control.ledger import commits_between, last_entry, versions_at, wait_for_ledger
from penstock.errors import InvalidParameterError, WrongStateError
from penstock.lake.query import filter_session
from penstock.lake.session import Spark, scratch_folder
from penstock.lake.tables import read
from penstock.lsn import format_lsn, parse_lsn
from penstock.names import quote_spark
from penstock.publish.expand import Published, publish
from penstock.publish.frames import ChangeFrames, Commit, PublishedFrame
from penstock.running import find_front_door
from penstock.transaction import Transaction, table_name, table_now, transaction_on

Lsn = int | str


def connect(
    home: str | Path | None = None,
    spark: SparkSession | None = None,
    user: str | None = None,
    password: str | None = None,
) -> Lake:
    """The lake of the node that runs on a home; by default on the default one.

    ``spark`` must know Delta Lake (``penstock.lake.session.session_settings`` has all settings that
    a node uses); without it, the active session is taken, or one is made.
    ``user`` is the role whose rights count for what is written, by default the node's superuser;
    files are read with those of the process.
    NotRunningError (57P03) when no node runs there.
    """
    folder = Path(home).expanduser().absolute() if home is not None else default_home()
    door = find_front_door(folder)
    settings = load_settings(home=folder)
    conninfo = make_conninfo(
        host=door.host,
        port=door.port,
        dbname=door.database,
        user=user or door.user,
        password=password,
        passfile=str(door.passfile),
        application_name="penstock reader",
        client_encoding="UTF8",
    )

    def connected() -> ControlConnection:
        return ControlConnection.connect(conninfo, autocommit=True)

    conn = connected()
    session = spark or SparkSession.getActiveSession() or Spark(settings).session()
    return Lake(conn, session, settings, connected)


class Lake:
    """A connection to a lake; ``close`` it, or use it in ``with``.  For one thread at a time."""

    def __init__(
        self,
        conn: ControlConnection,
        spark: SparkSession,
        settings: Settings,
        connected: Callable[[], ControlConnection],
    ) -> None:
        """``connected`` makes another connection like ``conn``."""
        self.spark = spark
        self._conn = conn
        self._settings = settings
        self._root = settings.lake_path
        self._connected = connected

    def __enter__(self) -> Lake:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; DataFrames stay usable."""
        self._conn.close()

    @property
    def lsn(self) -> str:
        """The LSN of the last commit that the ledger has; it has one milliseconds after it."""
        return format_lsn(last_entry(self._conn))

    def table(self, name: str, at: Lsn | None = None) -> DataFrame:
        """The rows of a table: now, or after the commit at ``at``; of a partitioned one all.

        ``name`` as in SQL, ``schema.table``; without a schema it is ``public``.
        WrongStateError (42P01) when there is, or was, no such table.
        """
        schema, relation = self._names(name)
        if at is None:
            with self._conn.transaction():
                self._conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                top, leaves = self._now(schema, relation)
        else:
            top, leaves = self._then(schema, relation, _lsn(at))
        columns = [quote_spark(column.name) for column in top.columns]
        frames = [read(self.spark, leaf).select(*columns) for leaf in leaves]
        return reduce(DataFrame.unionAll, frames or [read(self.spark, replace(top, version=None))])

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Write DataFrames as one commit, on a connection of its own (see ``Transaction``).

        It is committed at the end of the ``with``; an exception in it leaves no trace.
        """
        return transaction_on(self._connected, self._root, scratch_folder(self._settings))

    def location(self, name: str) -> Path:
        """The folder of a table's Delta table, for Spark to write into.

        The node notices a commit there, checks the key and NOT NULL, and registers it like any.
        WrongStateError (55000) for a partitioned table, and before the table's first rows.
        """
        schema, relation = self._names(name)
        table, _ = self._now(schema, relation)
        if table.version is None:
            raise WrongStateError(
                f'table "{schema}.{relation}" has no Delta table',
                hint="One is made with the first rows that SQL, a transaction of DataFrames or a"
                " subscription writes; a partitioned table has one for each partition.",
            )
        return Path(table.location)

    def changes(
        self,
        publication: str,
        from_lsn: Lsn,
        to_lsn: Lsn | None = None,
        table: str | None = None,
    ) -> DataFrame:
        """What a publication publishes of the commits above ``from_lsn``, up to ``to_lsn``.

        By default up to ``lsn``, as it is now.  So ranges that follow each other have each commit
        once.

        Row filters, column lists and operations are applied, as they were at each commit.  The
        columns are those of ``penstock.change.schema``; ``(commit_lsn, seq)`` has the order, which
        the frame itself has not.

        With ``table``, the name under which its changes are published, ``old`` and ``new`` are
        structs of the published columns.  Without it the changes of all tables come, with their
        ``schema`` and ``table``, and ``old`` and ``new`` are variants: ``variant_get(new, '$.id',
        'int')``.  A variant has a decimal without its trailing zeros, so name its type there.

        PublicationError (42704) when the publication did not exist at one of the commits;
        WrongStateError (55000) when what is published of ``table`` has other columns at some of
        them, or too little is known or left of then.  A row that a filter fails on is an error of
        Spark's when the frame is read, as it would end a subscriber's stream.
        """
        first = _lsn(from_lsn)
        last = last_entry(self._conn) if to_lsn is None else _lsn(to_lsn)
        if last < first:
            raise InvalidParameterError(
                f"changes from {format_lsn(first)} cannot end at {format_lsn(last)}"
            )
        wait_for_ledger(self._conn, last)
        session = filter_session(self.spark)
        found = self._published(session, publication, first, last)
        if table is None:
            return _as_variants(session, list(found))
        names = self._names(table)
        of_table = [change for change in found if _names_of(change) == names]
        _refuse_other_columns(table, of_table)
        if not of_table:
            empty = from_arrow_schema(
                change_schema(self._relation(publication, names, last)), prefer_timestamp_ntz=True
            )
            return session.createDataFrame([], empty)
        return reduce(DataFrame.unionAll, (change.frame for change in of_table))

    def _published(
        self, session: SparkSession, publication: str, first: int, last: int
    ) -> Iterator[PublishedFrame]:
        """Changes by relation; definitions are asked for once between two DDLs."""
        commits = [Commit(*each) for each in commits_between(self._conn, first, last)]
        changed = changed_between(self._conn, first, last)
        frames = ChangeFrames(session, self._root)
        for _, alike in groupby(commits, lambda commit: bisect_right(changed, commit.lsn)):
            group = list(alike)
            wanted = {t["relid"]: None for commit in group for t in commit.tables if t["ranges"]}
            if wanted:
                found = self._plans(publication, wanted, group[0].lsn)
                yield from frames.published(group, found)

    def _plans(
        self, publication: str, wanted: Mapping[int, int | None], lsn: int
    ) -> dict[int, Published]:
        """What is published of relations and of their ancestors, which a TRUNCATE may name."""
        then = definitions_at(self._conn, [publication], wanted, lsn, self._root)
        functions = partial(read_functions, self._conn)
        return publish(then.facts, then.tables.values(), functions, lambda _oids: {})

    def _relation(self, publication: str, names: tuple[str, str], lsn: int) -> Relation:
        """As which relation a table is published at ``lsn``; 55000 when it is not."""
        _, leaves = leaves_at(self._conn, *names, lsn)
        plans = self._plans(publication, dict.fromkeys(leaves), lsn)
        for plan in plans.values():
            if (plan.plan.relation.schema, plan.plan.relation.name) == names:
                return plan.plan.relation
        raise WrongStateError(
            f'publication "{publication}" does not publish table "{".".join(names)}"',
            hint="A partition is published under the name of its root if the publication has"
            " publish_via_partition_root.",
        )

    def _now(self, schema: str, name: str) -> tuple[LakeTable, list[LakeTable]]:
        table = table_now(self._conn, schema, name, self._root)
        if table.kind == "r":
            return table, [table]
        leaves = leaf_partitions(self._conn, table.relid, self._root)
        return table, [leaf for leaf, _ in leaves]

    def _then(self, schema: str, name: str, lsn: int) -> tuple[LakeTable, list[LakeTable]]:
        top, leaves = leaves_at(self._conn, schema, name, lsn)
        wanted = dict.fromkeys([top, *leaves])
        tables = definitions_at(self._conn, [], wanted, lsn, self._root).tables
        folders = {relid: Path(tables[relid].location).name for relid in leaves}
        versions = versions_at(self._conn, list(folders.values()), lsn)
        return tables[top], [
            replace(tables[relid], version=versions.get(folder))
            for relid, folder in folders.items()
        ]

    def _names(self, name: str) -> tuple[str, str]:
        return table_name(self._conn, name)


def _lsn(lsn: Lsn) -> int:
    return parse_lsn(lsn) if isinstance(lsn, str) else lsn


def _names_of(change: PublishedFrame) -> tuple[str, str]:
    """Schema and name that subscribers see."""
    return change.relation.schema, change.relation.name


def _columns_of(change: PublishedFrame) -> list[tuple[str, int, int]]:
    """Name, type and typmod of each published column."""
    return [(each.name, each.type_oid, each.typmod) for each in change.relation.columns]


def _refuse_other_columns(table: str, changes: list[PublishedFrame]) -> None:
    """Structs of different columns are not put together: a renamed column would be two."""
    for before, after in pairwise(changes):
        if _columns_of(before) != _columns_of(after):
            at = format_lsn(after.first)
            raise WrongStateError(
                f'the published columns of table "{table}" have changed at {at}',
                hint=f"Ask for the changes up to {format_lsn(before.last)} and then from there on,"
                " or for those of all tables, without naming one.",
            )


def _as_variants(session: SparkSession, changes: list[PublishedFrame]) -> DataFrame:
    frames = [
        change.frame.select(
            f.lit(change.relation.schema).alias("schema"),
            f.lit(change.relation.name).alias("table"),
            "op",
            "commit_lsn",
            "seq",
            f.to_variant_object("old").alias("old"),
            f.to_variant_object("new").alias("new"),
            "unchanged",
        )
        for change in changes
    ]
    schema = (
        "schema string, table string, op string, commit_lsn bigint, seq bigint,"
        " old variant, new variant, unchanged array<string>"
    )
    return reduce(DataFrame.unionAll, frames or [session.createDataFrame([], schema)])
