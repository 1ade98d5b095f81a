# SPDX-License-Identifier: Apache-2.0
"""A commit of the lake as the pgoutput messages of its changes.

In:   the tables of a commit's record (``LedgerEntry.tables``), its LSN, and what is published of
      which relation, as it was at that commit (``Published``).
Out:  pieces: pgoutput messages in the order in which they are to be sent, without Begin and Commit.

    published = publish(facts, tables, functions, type_names)
    expander = Expander(spark.own_session(), lake_root, Encoding(binary=False, timezone="UTC"))
    sent = SentRelations()                                    one for each stream
    for entry in ...:
        for messages in sent.described(expander.expand(entry.tables, entry.lsn, published)):
            send(frame_messages(messages, start_lsn, end_lsn, time_us))

``expand`` is a generator that reads files and waits for Spark, so it is to be run in a thread.  An
error that it raises ends the stream, as it ends a walsender: PostgreSQL's 22012 where a row filter
divides by zero, and so on.  It yields nothing for a commit of which nothing is published, and does
nothing for tables without a plan.  What it yields is the same for all streams with the same
``published`` and encoding; only what a stream has been told of relations is its own.

How a part of a table's feed (``lake/feed.py``) is read:

    a part                         is read by                     its row filters are evaluated
    ----------------------------   ----------------------------   ------------------------------
    inserts, deletes               the node, piece by piece       by Arrow, or by Spark's code on
    pairs, up to PAIRED_ROWS and   the node, in memory            given rows
      PAIRED_BYTES
    more pairs                     Spark, in ranges, one by one   where it reads

All give the same messages.  The node reads a small commit in milliseconds, without a Spark job;
Spark is started by the first filter that is not plain (``sql/arrow_filter.py``), or the first
large commit with updates.

Tables come in the order of the commit's records, each table's changes in their own.  A TRUNCATE of
several tables is one message, as foreign keys between them would forbid each alone; so a table's
TRUNCATE is sent early, with the first of the others', if nothing of that table is to come before.
One of a partitioned table is told by its partitions (``truncated`` in the record), once; so
``published`` must have the relations that are named there, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.change.publication import PublicationFacts
from penstock.change.relation import LakeTable
from penstock.lake.change_batches import PIECE_BYTES, PIECE_ROWS, ChangeReader
from penstock.lake.changes import part_changes
from penstock.lake.evaluate import Evaluator
from penstock.lake.feed import FeedPart, feed_parts
from penstock.lake.ordered import ordered_tables
from penstock.lake.query import filter_session, postgres_errors
from penstock.lake.session import GetSession
from penstock.pgoutput.describe import (
    FIRST_GENBKI_OID,
    Messages,
    TypeNames,
    description,
    truncate_message,
)
from penstock.pgoutput.encode import AS_TEXT, Encoding, encode_changes
from penstock.publish.listed import filter_input, listed_changes
from penstock.publish.plain import sent_plainly
from penstock.publish.plan import Plan, RowAction, plan_relation
from penstock.publish.transform import CompiledPlan, compile_plan, published_changes, sent_as
from penstock.sql.translate.facts import Facts, Needs, needs

PAIRED_ROWS = 1_000_000
PAIRED_BYTES = 32 * 1024 * 1024
"""Rows that are gone and rows that came, and bytes that they take in data files, up to which the
node pairs them: it has all of them in memory, in about ten times those bytes.  Half a million
updates of an orders table take 0.2 GB."""

ACTIONS: dict[str, tuple[RowAction, ...]] = {
    "inserts": ("insert",),
    "deletes": ("delete",),
    "pairs": ("insert", "update", "delete"),
}
"""What a part of a feed may have."""


_SAME = ("relid", "location", "truncated")


@dataclass(frozen=True)
class Published:
    """What is published of the changes in one relation.

    ``table`` is its definition at the commit, when it ended; location and version are the record's.
    ``type_names`` has the types of its columns that a subscriber is told of.
    """

    table: LakeTable
    compiled: CompiledPlan
    type_names: TypeNames = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.compiled.plan

    @property
    def is_filtered(self) -> bool:
        """Whether there is a row filter."""
        return any(self.compiled.filters.values())

    @cached_property
    def description(self) -> Messages:
        """What a subscriber is told before the first change: the ancestor, then the relation."""
        own = [] if self.plan.own is None else [self.plan.own]
        return description([self.plan.relation, *own], self.type_names)

    def has(self, part: FeedPart) -> bool:
        """Whether changes of a part may be published."""
        if part.kind == "truncate":
            return self.plan.truncate
        return any(action in self.plan.filters for action in ACTIONS[part.kind])


def publish(
    facts: PublicationFacts,
    tables: Iterable[LakeTable],
    functions: Callable[[Needs], Facts],
    type_names: Callable[[Collection[int]], TypeNames],
) -> dict[int, Published]:
    """What a subscriber is sent of these tables, by relid; those that are not published are absent.

    ``functions`` and ``type_names`` look up what filters and relations name by OID
    (control/functions.py).  FeatureNotSupportedError (0A000) when publications do not fit together
    or a filter has no exact form.
    """
    found = {}
    for table in tables:
        plan = plan_relation(facts, table.relid)
        if plan is None:
            continue
        trees = [where.nodes for of in plan.filters.values() for where in of]
        compiled = compile_plan(plan, functions(needs(trees)) if trees else Facts())
        described = (*plan.relation.columns, *(plan.own.columns if plan.own else ()))
        oids = {each.type_oid for each in described if each.type_oid >= FIRST_GENBKI_OID}
        names = type_names(sorted(oids)) if oids else {}
        found[table.relid] = Published(table, compiled, names)
    return found


class Piece(NamedTuple):
    """Messages, and the relations whose descriptions must have been sent before them."""

    relations: tuple[Published, ...]
    messages: Messages


class SentRelations:
    """What one stream has been told of relations: each once, and again when it has changed."""

    def __init__(self) -> None:
        self._sent: dict[int, bytes] = {}

    def described(self, pieces: Iterable[Piece]) -> Iterator[Messages]:
        """The pieces' messages, with the descriptions that are missing before them."""
        for piece in pieces:
            for relation in piece.relations:
                content = relation.description.content.tobytes()
                if self._sent.get(relation.plan.relid) != content:
                    self._sent[relation.plan.relid] = content
                    yield relation.description
            yield piece.messages


class Step(NamedTuple):
    """A part of the feed of ``table``, of which something may be published, and as what that is.

    ``number`` counts the tables of the record, by whose order changes of one commit are told.
    """

    published: Published
    table: LakeTable
    part: FeedPart
    number: int


class Expander:
    """Expands commits; serves any number of streams with one encoding, one call at a time."""

    def __init__(
        self,
        session: GetSession,
        lake_root: Path,
        encoding: Encoding = AS_TEXT,
        paired_rows: int = PAIRED_ROWS,
    ) -> None:
        """``session`` is asked for when Spark is needed first."""
        self._get_session = session
        self._lake_root = lake_root
        self._encoding = encoding
        self._paired_rows = paired_rows
        self._evaluators: dict[tuple[str, str], Evaluator] = {}

    def expand(
        self,
        tables: Sequence[Mapping[str, Any]],
        commit_lsn: int,
        published: Mapping[int, Published],
    ) -> Iterator[Piece]:
        """The messages of a commit.

        TableStateError when Delta's log or files are not as they were written, or are there no
        more; what Spark and the filters raise, as PenstockError with PostgreSQL's SQLSTATE.
        """
        steps = list(feed_steps(tables, published, self._lake_root))
        readers: dict[LakeTable, ChangeReader] = {}
        while steps:
            step = steps.pop(0)
            if step.part.kind == "truncate":
                together, steps = _truncated_together(step, steps)
                yield _truncation(together)
                continue
            if step.table not in readers:
                readers[step.table] = ChangeReader(step.table, commit_lsn)
            for changes in self._changes(step, readers[step.table], commit_lsn):
                relation = step.published.plan.relation
                for messages in encode_changes(changes, relation, self._encoding):
                    yield Piece((step.published,), messages)

    def _changes(self, step: Step, reader: ChangeReader, commit_lsn: int) -> Iterator[pa.Table]:
        """What is published of a part, in order, without empty tables."""
        published, part = step.published, step.part
        fits = part.rows <= self._paired_rows and part.bytes <= PAIRED_BYTES
        found: Iterator[pa.Table]
        if fits or part.kind != "pairs":
            read = _pieces(reader.changes(part))
            found = map(partial(self._sent, published), read)
        else:
            found = self._from_spark(step, commit_lsn)
        yield from (changes for changes in found if changes.num_rows)

    def _sent(self, published: Published, changes: pa.Table) -> pa.Table:
        """What is published of changes that the node has read."""
        if not published.is_filtered:
            return listed_changes(changes, published.plan)
        given = filter_input(changes, published.compiled)
        if published.compiled.is_plain:
            return listed_changes(changes, published.plan, sent_plainly(given, published.compiled))
        decide = self._evaluator(sent_as(published.compiled), given.schema)
        return listed_changes(changes, published.plan, decide(given))

    def _from_spark(self, step: Step, commit_lsn: int) -> Iterator[pa.Table]:
        """What is published of a part that Spark reads."""
        published, table, part, _ = step
        with postgres_errors():
            changes = part_changes(self._session, table, part, commit_lsn)
            sent = published_changes(changes, published.compiled)
            yield from _pieces(ordered_tables(sent, "seq", part.rows))

    def _evaluator(self, expression: str, schema: pa.Schema) -> Evaluator:
        """The expression for rows of a schema; it is compiled once."""
        key = expression, str(schema)
        if key not in self._evaluators:
            self._evaluators[key] = Evaluator(self._session, expression, schema)
        return self._evaluators[key]

    @cached_property
    def _session(self) -> SparkSession:
        return filter_session(self._get_session())


def feed_steps(
    tables: Sequence[Mapping[str, Any]], published: Mapping[int, Published], lake_root: Path
) -> Iterator[Step]:
    """What is to be read of a commit, in order; arguments as those of ``Expander.expand``."""
    truncates: Counter[tuple[int, int]] = Counter()
    # What is published is what the transaction left, whose columns the last version has.
    versions = {(entry["relid"], entry["location"]): entry["version"] for entry in tables}
    for number, entry in enumerate(_joined(tables)):
        own = published.get(entry["relid"])
        roots = [published[oid] for oid in entry.get("truncated", ()) if oid in published]
        if own is None and not roots:
            continue
        location = str(lake_root / entry["location"])
        version = versions[entry["relid"], entry["location"]]
        table = replace((own or roots[0]).table, location=location, version=version)
        for part in feed_parts(location, entry["ranges"]):
            for root in roots if part.kind == "truncate" else ():
                # Each of its partitions tells of it, so the first one's counts.
                truncates[root.plan.relid, entry["relid"]] += 1
                nth = truncates[root.plan.relid, entry["relid"]]
                if nth > truncates[root.plan.relid, 0] and root.has(part):
                    truncates[root.plan.relid, 0] = nth
                    yield Step(
                        root, replace(root.table, location=location, version=version), part, number
                    )
            if own is not None and own.has(part):
                yield Step(own, table, part, number)


def _joined(tables: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The record's tables; what follows each other of one table is together, as in a feed."""
    last: dict[str, Any] = {}
    for entry in tables:
        if last and all(last.get(name) == entry.get(name) for name in _SAME):
            last["ranges"] = [*last["ranges"], *entry["ranges"]]
            continue
        if last:
            yield last
        last = dict(entry)
    if last:
        yield last


def _truncated_together(first: Step, later: list[Step]) -> tuple[list[Step], list[Step]]:
    """The TRUNCATEs that can be sent with the first one, as one statement, and the other steps."""
    together, others = [first], []
    passed: set[int] = set()
    for step in later:
        oid = step.published.plan.relation.oid
        alike = step.part.kind == "truncate" and step.part.options == first.part.options
        if alike and oid not in passed:
            together.append(step)
        else:
            others.append(step)
            passed.add(oid)
    return together, others


def _truncation(steps: Sequence[Step]) -> Piece:
    relations = tuple({step.published.plan.relid: step.published for step in steps}.values())
    oids = [each.plan.relation.oid for each in relations]
    options = steps[0].part.options
    return Piece(relations, Messages.of([truncate_message(oids, options)]))


def _pieces(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Tables joined, and cut, to about PIECE_ROWS rows and PIECE_BYTES bytes."""
    held: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        for start in range(0, table.num_rows, PIECE_ROWS):
            part = table.slice(start, PIECE_ROWS)
            held.append(part)
            rows, size = rows + part.num_rows, size + part.nbytes
            if rows >= PIECE_ROWS or size >= PIECE_BYTES:
                yield pa.concat_tables(held)
                held, rows, size = [], 0, 0
    if held:
        yield pa.concat_tables(held)
