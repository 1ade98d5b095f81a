# SPDX-License-Identifier: Apache-2.0
"""Commits of the lake as pgoutput messages: the node and Spark read the same of them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.change import types
from penstock.change.relation import Column, LakeColumn, LakeTable, Relation, ReplicaIdentity
from penstock.errors import PenstockError, TableStateError
from penstock.lake import tables
from penstock.lake.changes import commit_changes
from penstock.lake.query import filter_session
from penstock.pgoutput.describe import relation_message
from penstock.pgoutput.encode import Encoding, encode_changes
from penstock.publish.expand import Expander, Piece, Published, SentRelations
from penstock.publish.filter import RowFilter
from penstock.publish.plan import ROW_ACTIONS, Plan, RowAction
from penstock.publish.transform import CompiledPlan, published_changes
from tests.support import pgoutput_bytes as wire
from tests.support.delta_versions import Row, Writer, made

LSN = 4711

COLUMNS = (
    LakeColumn(1, "id", types.INT4, -1, True),
    LakeColumn(2, "a b", types.TEXT, -1, False),
    LakeColumn(3, "f", types.FLOAT8, -1, False),
    LakeColumn(4, "n", types.NUMERIC, -1, False),
    LakeColumn(5, "at", types.TIMESTAMPTZ, -1, False),
    LakeColumn(6, "l", 1007, -1, False),
)


def published(
    table: LakeTable,
    names: Sequence[str],
    filters: Sequence[str] = (),
    actions: Sequence[RowAction] = ROW_ACTIONS,
    **fields: Any,
) -> Published:
    """A plan for a table's columns; ``filters`` are over the struct ``row``."""
    of = {column.name: column for column in table.columns}
    columns = tuple(
        Column(name, of[name].type_oid, of[name].typmod, name in table.key) for name in names
    )
    sent = Relation(table.relid, table.schema, table.name, table.identity, columns)
    compiled = tuple(
        RowFilter(each.replace("row.", "old."), each.replace("row.", "new."), frozenset(of))
        for each in filters
    )
    plan = Plan(table.relid, sent, dict.fromkeys(actions, ()), truncate=True)
    plan = dataclasses.replace(plan, **fields)
    return Published(table, CompiledPlan(plan, dict.fromkeys(actions, compiled)))


def sent(pieces: Iterable[Piece]) -> list[bytes]:
    return wire.split(piece.messages for piece in pieces)


def entry(table: LakeTable, first: int, last: int, kind: str = "merge") -> dict[str, Any]:
    """A table of a commit's record."""
    location = Path(table.location).name
    return {
        "relid": table.relid,
        "location": location,
        "version": last,
        "ranges": [[first, last]],
        "kind": kind,
    }


def no_spark() -> SparkSession:
    raise AssertionError("Spark was asked for")


class History:
    """Versions with random changes, and what is in the table."""

    def __init__(self, writer: Writer, seed: int) -> None:
        self.random = random.Random(seed)
        self.writer = writer
        self.rows: list[Row] = []

    def row(self, number: int) -> Row:
        r = self.random
        return {
            "id": number,
            "a b": r.choice([None, "", "ü", "x" * 40]),
            "f": r.choice([None, 0.0, -0.0, float("nan"), 1.5]),
            "n": r.choice([None, 0, 12]),
            "at": r.choice([None, 0, 1_700_000_000_000_001]),
            "l": r.choice([None, [], [1, None]]),
        }

    def change(self) -> None:
        """Take rows out and put rows in, some as they were, some under a key that was there.

        Half of the times the version says which row was which.
        """
        r, rows = self.random, self.rows
        shown = {repr(row): row for row in r.sample(rows, min(len(rows), r.randrange(0, 9)))}
        gone = list(shown.values())
        kept = [row for row in rows if repr(row) not in shown]
        keyed = bool(self.writer.table.key)
        used = {row["id"] for row in kept} if keyed else set()
        come = [row for row in gone if r.random() < 0.3]
        again = [row["id"] for row in gone if row not in come and r.random() < 0.5]
        new = [n for n in r.sample(range(60), r.randrange(1, 9)) if n not in used]
        taken = {row["id"] for row in come} if keyed else set()
        for number in [*again, *new]:
            if number not in taken:
                come.append(self.row(number))
                taken.add(number)
        of: list[int | None] | None = None
        if r.random() < 0.5:
            left = list(range(len(gone)))
            of = [left.pop(r.randrange(len(left))) if left and r.random() < 0.7 else None
                  for _ in come]  # fmt: skip
        self.writer.change(gone, come, of)
        self.rows = kept + come


ENCODING = Encoding(binary=True, timezone="Europe/Berlin")


@pytest.mark.parametrize(
    ("identity", "key", "names", "filters", "actions"),
    [
        ("i", ("id", "f"), ["id", "l", "n"], ["row.id % 2 = 0", "row.`a b` > 'a'"], ROW_ACTIONS),
        ("f", ("id",), ["id", "f"], ["row.id > 20"], ("insert", "delete")),
        ("f", (), ["id", "a b", "f", "n", "at", "l"], [], ROW_ACTIONS),
    ],
)
def test_node_and_spark_send_the_same(
    spark: SparkSession,
    tmp_path: Path,
    identity: ReplicaIdentity,
    key: tuple[str, ...],
    names: list[str],
    filters: list[str],
    actions: tuple[RowAction, ...],
) -> None:
    """Of generated commits, part by part: the messages of Spark's whole feed."""
    session = filter_session(spark)
    session.conf.set("spark.sql.shuffle.partitions", "1")
    table = made(session, tmp_path, identity, key, COLUMNS)
    writer = Writer(table)
    history = History(writer, seed=ord(identity) + len(key))
    history.change()
    history.change()
    before = writer.at_head()
    for _ in range(4):
        history.change()
    tables.restore(lambda: session, table.location, before.version or 0, "back")
    tables.truncate(writer.at_head(), "truncated")
    history.rows = []
    history.change()
    last = writer.at_head().version or 0
    plan = published(table, names, filters, actions)
    changes = commit_changes(session, table, [(1, last)], LSN)
    whole = published_changes(changes, plan.compiled).toArrow().sort_by("seq")
    expected = wire.split(encode_changes(whole, plan.plan.relation, ENCODING))
    assert len(expected) > 10
    for paired_rows in (1000, 0):
        expander = Expander(lambda: session, tmp_path, ENCODING, paired_rows)
        found = sent(expander.expand([entry(table, 1, last)], LSN, {1: plan}))
        assert found == expected, f"up to {paired_rows} rows are paired by the node"


def plain(folder: Path, relid: int, identity: ReplicaIdentity = "d") -> Writer:
    """A table for which no Spark is needed."""
    columns = (
        LakeColumn(1, "id", types.INT4, -1, True),
        LakeColumn(2, "t", types.TEXT, -1, False),
    )
    location = str(folder / f"t{relid}")
    name = f"t{relid}"
    table = LakeTable(relid, "s", name, "r", identity, columns, ("id",), location, None, None)
    tables.create(no_spark, table, "made")
    return Writer(dataclasses.replace(table, version=0))


def row(number: int, text: str | None = None) -> Row:
    return {"id": number, "t": text}


def test_tables_of_a_commit(tmp_path: Path) -> None:
    """In the record's order, each with its changes in order; without a plan, nothing is read."""
    one, two = plain(tmp_path, 1), plain(tmp_path, 2, "f")
    one.change([], [row(1), row(2)])
    two.change([], [row(1, "a")])
    one.change([row(1), row(2)], [row(2, "b"), row(3)])
    two.change([row(1, "a")], [row(1, "b")])
    record = [
        entry(one.table, 1, 1),
        entry(one.table, 2, 2),
        entry(two.table, 1, 2),
        {"relid": 3, "location": "gone", "version": 5, "ranges": [[5, 5]], "kind": "merge"},
    ]
    plans = {1: published(one.table, ["t", "id"]), 2: published(two.table, ["id", "t"])}
    expander = Expander(no_spark, tmp_path)
    assert sent(expander.expand(record, LSN, plans)) == [
        wire.insert(1, [None, "1"]),
        wire.insert(1, [None, "2"]),
        wire.delete(1, [None, "1"]),
        wire.update(1, ["b", "2"]),
        wire.insert(1, [None, "3"]),
        wire.insert(2, ["1", "a"]),
        wire.update(2, ["1", "b"], ["1", "a"], letter=b"O"),
    ]
    only = {1: published(one.table, ["id"], actions=["delete"])}
    assert sent(expander.expand(record, LSN, only)) == [wire.delete(1, ["1"])]
    assert not list(expander.expand(record, LSN, {}))
    with pytest.raises(TableStateError):
        list(expander.expand([entry(one.table, 7, 7)], LSN, plans))


def test_truncates_of_a_commit_are_sent_together(tmp_path: Path) -> None:
    """As far as nothing of a table is to come before its own; where it is published."""
    writers = [plain(tmp_path, relid) for relid in (1, 2, 3)]
    record = []
    for writer in writers:
        writer.change([], [row(1)])
        last = tables.truncate(writer.at_head(), "truncated")
        last = writer.change([], [row(2)])
        first = 1 if writer is writers[1] else 2
        record.append(entry(writer.table, first, last))
    plans = {writer.table.relid: published(writer.table, ["id"]) for writer in writers}
    expander = Expander(no_spark, tmp_path)
    found = list(expander.expand(record, LSN, plans))
    assert sent(found) == [
        wire.truncate(1, 3),
        wire.insert(1, ["2"]),
        wire.insert(2, ["1"]),
        wire.truncate(2),
        wire.insert(2, ["2"]),
        wire.insert(3, ["2"]),
    ]
    assert [each.plan.relid for each in found[0].relations] == [1, 3]
    plans[1] = published(writers[0].table, ["id"], truncate=False)
    assert sent(expander.expand(record, LSN, plans))[:2] == [
        wire.insert(1, ["2"]),
        wire.insert(2, ["1"]),
    ]


def test_a_truncate_of_a_partitioned_table(tmp_path: Path) -> None:
    """Is the root's where that is published, once each time, between the rows of its time."""
    writers = [plain(tmp_path, relid) for relid in (1, 2)]
    record = []
    for number in (1, 2):
        for writer in writers:
            table = writer.table
            last = tables.truncate(writer.at_head(), "truncated")
            record.append({**entry(table, last, last, "truncate"), "truncated": [9]})
        for writer in writers:
            last = writer.change([], [row(number)])
            record.append(entry(writer.table, last, last, "append"))
    leaves = {writer.table.relid: published(writer.table, ["id"]) for writer in writers}
    expander = Expander(no_spark, tmp_path)
    each = [wire.insert(1, ["1"]), wire.insert(2, ["1"])]
    found = sent(expander.expand(record, LSN, leaves))
    assert found[:4] == [wire.truncate(1, 2), *each, wire.truncate(1, 2)]
    columns = leaves[1].plan.relation.columns
    sent_as = Relation(9, "s", "root", "d", columns)
    root = published(
        dataclasses.replace(writers[0].table, relid=9, kind="p"), ["id"], relation=sent_as
    )
    below = {
        relid: published(leaf.table, ["id"], relation=sent_as, truncate=False)
        for relid, leaf in leaves.items()
    }
    assert sent(expander.expand(record, LSN, {9: root, **below})) == [
        wire.truncate(9),
        wire.insert(9, ["1"]),
        wire.insert(9, ["1"]),
        wire.truncate(9),
        wire.insert(9, ["2"]),
        wire.insert(9, ["2"]),
    ]
    joined = [
        {**entry(writers[0].table, 1, 2), "truncated": [9]},
        {**entry(writers[1].table, 1, 2), "truncated": [9]},
    ]
    assert sent(expander.expand(joined, LSN, {9: root, **below})) == [
        wire.truncate(9),
        wire.insert(9, ["1"]),
        wire.insert(9, ["1"]),
    ]


def test_a_stream_is_told_of_relations_once(tmp_path: Path) -> None:
    """Before the first change, and again when a definition has changed; a partition's root, too."""
    one = plain(tmp_path, 1)
    one.change([], [row(1)])
    plan = published(one.table, ["id"])
    root = Relation(9, "s", "root", "d", plan.plan.relation.columns)
    below = published(one.table, ["id"], relation=root, own=plan.plan.relation)
    expander = Expander(no_spark, tmp_path)
    stream = SentRelations()

    def told(by: Published) -> list[bytes]:
        pieces = expander.expand([entry(one.table, 1, 1)], LSN, {1: by})
        return wire.split(stream.described(pieces))

    assert told(plan) == [wire.describe(plan.plan.relation), wire.insert(1, ["1"])]
    assert told(plan) == [wire.insert(1, ["1"])]
    assert told(published(one.table, ["id"], actions=["update"])) == []
    own = relation_message(plan.plan.relation)
    assert told(below) == [wire.describe(root), own, wire.insert(9, ["1"])]
    assert told(below) == [wire.insert(9, ["1"])]


@pytest.mark.parametrize("paired_rows", [1000, 0])
def test_a_definition_that_the_commit_changes(
    spark: SparkSession, tmp_path: Path, paired_rows: int
) -> None:
    """Its changes are told with the columns that the table has at its end."""
    one, two = plain(tmp_path, 1, "f"), plain(tmp_path, 2)
    one.change([], [row(1)])
    one.change([row(1)], [row(1, "new")])
    two.change([], [row(5)])
    spark.sql(f"ALTER TABLE {tables.delta_path(one.table.location)} ADD COLUMNS (added INT)")
    columns = (*one.table.columns, LakeColumn(3, "added", types.INT4, -1, False))
    table = dataclasses.replace(one.table, columns=columns)
    plans = {1: published(table, ["id", "added", "t"]), 2: published(two.table, ["id"])}
    ddl = {**entry(table, 3, 3, "ddl"), "ranges": []}
    record = [entry(table, 1, 2), entry(two.table, 1, 1), ddl]
    expander = Expander(lambda: spark, tmp_path, paired_rows=paired_rows)
    assert sent(expander.expand(record, LSN, plans)) == [
        wire.insert(1, ["1", None, None]),
        wire.update(1, ["1", None, "new"], ["1", None, None], letter=b"O"),
        wire.insert(2, ["5"]),
    ]


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """Never a commit without its rows."""
    one = plain(tmp_path, 1)
    one.change([], [row(1)])
    for file in Path(one.table.location).glob("*.parquet"):
        file.unlink()
    record = [entry(one.table, 1, 1)]
    with pytest.raises(TableStateError, match="no more"):
        list(Expander(no_spark, tmp_path).expand(record, LSN, {1: published(one.table, ["id"])}))


@pytest.mark.parametrize("paired_rows", [1000, 0])
def test_a_row_that_a_filter_fails_on_ends_the_stream(
    spark: SparkSession, tmp_path: Path, paired_rows: int
) -> None:
    """With PostgreSQL's error, whoever evaluates the filter."""
    one = plain(tmp_path, 1)
    one.change([], [row(1)])
    one.change([row(1)], [row(0), row(1, "new")])
    plan = published(one.table, ["id"], ["10 / row.id > 1"])
    expander = Expander(lambda: spark, tmp_path, paired_rows=paired_rows)
    with pytest.raises(PenstockError) as error:
        list(expander.expand([entry(one.table, 1, 2)], LSN, {1: plan}))
    assert (error.value.sqlstate, error.value.message) == ("22012", "division by zero")
