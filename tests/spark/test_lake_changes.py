# SPDX-License-Identifier: Apache-2.0
"""The change feed tells what each commit did to a table, whoever wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.change.relation import Column, LakeTable, Relation, ReplicaIdentity
from penstock.change.schema import change_schema
from penstock.errors import TableStateError
from penstock.lake import tables
from penstock.lake.changes import commit_changes
from penstock.lake.log import head_version
from penstock.lake.query import filter_session
from penstock.lake.scan import scan
from penstock.publish.filter import RowFilter
from penstock.publish.plan import Plan
from penstock.publish.transform import CompiledPlan, published_changes
from tests.support.delta_versions import Row, Writer, made

LSN = 77
Change = tuple[str, Row | None, Row | None]


def row(number: int, text: str | None = "x") -> Row:
    return {"id": number, "a b": text, "n": None}


def told(frame: DataFrame) -> list[Change]:
    """The changes in order; their key is unique."""
    rows = frame.toArrow().sort_by([("commit_lsn", "ascending"), ("seq", "ascending")]).to_pylist()
    assert {each["commit_lsn"] for each in rows} <= {LSN}
    assert len({each["seq"] for each in rows}) == len(rows)
    assert not any(each["unchanged"] for each in rows)
    return [(each["op"], each["old"], each["new"]) for each in rows]


def feed(spark: SparkSession, table: LakeTable, *ranges: tuple[int, int]) -> list[Change]:
    return told(commit_changes(spark, table, ranges, LSN))


def key_of(number: int) -> Row:
    return {"id": number, "a b": None, "n": None}


def test_inserts_updates_and_deletes_of_versions(
    spark_worker: SparkSession, tmp_path: Path
) -> None:
    """In the order of versions; in one, deletes first; an UPDATE of the key is two changes."""
    table = made(spark_worker, tmp_path)
    to = Writer(table)
    first = to.change([], [row(1), row(2), row(3)])
    to.change([row(1), row(3)], [row(4), row(1, "changed"), row(2 + 7)])
    last = to.change([row(2)], [])
    assert feed(spark_worker, table, (first, first)) == [("I", None, row(n)) for n in (1, 2, 3)]
    later = [
        ("D", key_of(3), None),
        ("I", None, row(4)),
        ("U", None, row(1, "changed")),
        ("I", None, row(9)),
        ("D", key_of(2), None),
    ]
    assert feed(spark_worker, table, (first + 1, last)) == later
    assert feed(spark_worker, table, (first, first), (last, last))[3:] == later[-1:]
    assert feed(spark_worker, table) == []


def test_a_feed_has_the_schema_of_changes(spark_worker: SparkSession, tmp_path: Path) -> None:
    """Column by column, also when there is nothing to tell."""
    table = made(spark_worker, tmp_path)
    version = Writer(table).change([], [row(1)])
    for ranges in ([], [(version, version)]):
        found = commit_changes(spark_worker, table, ranges, LSN)
        assert found.columns == change_schema(Relation(1, "public", "t", "d", ())).names
        for image in ("old", "new"):
            assert found.schema[image].dataType.simpleString() == (
                "struct<id:int,a b:string,n:decimal(9,2)>"
            )


@pytest.mark.parametrize(
    ("identity", "update", "delete"),
    [("f", row(1), row(2)), ("n", None, None), ("i", None, key_of(2))],
)
def test_old_rows_are_what_the_identity_carries(
    spark_worker: SparkSession,
    tmp_path: Path,
    identity: ReplicaIdentity,
    update: Row | None,
    delete: Row | None,
) -> None:
    """Of an UPDATE only with FULL, whose identity is the row; of a DELETE the identity."""
    table = made(spark_worker, tmp_path, identity)
    to = Writer(table)
    to.change([], [row(1), row(2)])
    version = to.change([row(1), row(2)], [row(1, "new")])
    assert feed(spark_worker, table, (version, version)) == [
        ("D", delete, None),
        ("U", update, row(1, "new")),
    ]


def test_table_without_a_key(spark_worker: SparkSession, tmp_path: Path) -> None:
    """An UPDATE is a DELETE and an INSERT; of equal rows only those that changed are told."""
    table = made(spark_worker, tmp_path, "f", ())
    to = Writer(table)
    to.change([], [row(1), row(1), row(1), row(2, None)])
    version = to.change([row(1), row(2, None)], [row(1), row(2, None), row(3)])
    assert feed(spark_worker, table, (version, version)) == [
        ("D", row(1), None),
        ("D", row(1), None),
        ("I", None, row(3)),
    ]


@pytest.mark.parametrize(
    ("identity", "key", "before"),
    [
        ("d", ("id",), [None, key_of(2), None]),
        ("f", ("id",), [row(1), row(2), row(3)]),
        ("f", (), [row(1), row(2), row(3)]),
        ("n", (), [None, None, None]),
    ],
)
def test_what_says_of_which_row_it_came_is_an_update(
    spark_worker: SparkSession,
    tmp_path: Path,
    identity: ReplicaIdentity,
    key: tuple[str, ...],
    before: list[Row | None],
) -> None:
    """Of any key, or none, also when it changes nothing; the old identity where it was another."""
    table = made(spark_worker, tmp_path / "a [b]*", identity, key)
    to = Writer(table)
    to.change([], [row(1), row(2), row(3), row(4), row(5)])
    version = to.change(
        [row(4), row(1), row(2), row(3)],
        [row(8, "inserted"), row(1), row(20, "moved"), row(3, "new")],
        [None, 1, 2, 3],
    )
    gone = {"f": row(4), "n": None}.get(identity, key_of(4))
    assert feed(spark_worker, table, (version, version)) == [
        ("D", gone, None),
        ("I", None, row(8, "inserted")),
        ("U", before[0], row(1)),
        ("U", before[1], row(20, "moved")),
        ("U", before[2], row(3, "new")),
    ]


def test_inserts_that_follow_each_other_are_one_scan(
    spark_worker: SparkSession, tmp_path: Path
) -> None:
    """However many statements a transaction had; in their order, also behind a TRUNCATE."""
    table = made(spark_worker, tmp_path)
    to = Writer(table)
    for number in (9, 3, 7):
        last = to.change([], [row(number), row(number + 1)])
    expected = [("I", None, row(number)) for number in (9, 10, 3, 4, 7, 8)]
    found = commit_changes(spark_worker, table, [(last - 2, last)], LSN)
    assert told(found) == expected
    assert "Union" not in str(found._jdf.queryExecution().executedPlan())
    first = tables.truncate(to.at_head(), "truncated")
    for number in (2, 1):
        last = to.change([], [row(number)])
    assert feed(spark_worker, table, (first, last)) == [
        ("T", None, None), ("I", None, row(2)), ("I", None, row(1))
    ]  # fmt: skip


def test_a_version_that_the_log_lost_is_an_error(
    spark_worker: SparkSession, tmp_path: Path
) -> None:
    """Never a feed without its changes."""
    table = made(spark_worker, tmp_path)
    with pytest.raises(TableStateError):
        feed(spark_worker, table, (5, 5))


STATEMENTS = """
    INSERT INTO {t} SELECT CAST(id AS INT), 'a' || id, id / 4 FROM range(20)
    MERGE INTO {t} t USING (SELECT CAST(id AS INT) i FROM range(15, 25)) s ON t.id = s.i
        WHEN MATCHED AND s.i = 15 THEN DELETE WHEN MATCHED THEN UPDATE SET `a b` = NULL
        WHEN NOT MATCHED THEN INSERT (id) VALUES (s.i)
    OPTIMIZE {t}
    SET spark.databricks.delta.update.deletionVectors.persistent = false
    UPDATE {t} SET `a b` = 'whole files' WHERE id % 5 = 0
    RESTORE TABLE {t} TO VERSION AS OF 2
"""


def test_changes_of_other_programs_lead_to_their_tables(
    spark_worker: SparkSession, tmp_path: Path
) -> None:
    """Played one after the other they give each version of what Spark wrote, and no row twice."""
    table = made(spark_worker, tmp_path)
    t = tables.delta_path(table.location)
    for text in STATEMENTS.strip().replace("\n        ", " ").splitlines():
        spark_worker.sql(text.strip().format(t=t))
    played: dict[int, Row] = {}
    told_of = []
    head = head_version(table.location)
    assert head is not None
    for version in range(1, head + 1):
        changes = feed(spark_worker, table, (version, version))
        told_of.append(len(changes))
        for op, old, new in changes:
            if op == "D":
                assert old is not None
                del played[old["id"]]
            else:
                assert new is not None
                assert (new["id"] in played) == (op == "U")
                assert played.get(new["id"]) != new
                played[new["id"]] = new
        rows = scan(spark_worker, table.location, version).toArrow()
        expected = {each["id"]: each for each in rows.to_pylist()}
        assert played == expected, f"after version {version}"
    assert told_of == [20, 10, 0, 4, 4]


def test_what_is_published_of_a_commit(spark: SparkSession, tmp_path: Path) -> None:
    """Feed, filter and column list together: UPDATEs over the filter's border, FULL identity."""
    session = filter_session(spark)
    table = made(session, tmp_path, "f")
    to = Writer(table)
    first = to.change([], [row(1, "in"), row(2, "out"), row(3, "in"), row(4, "out")])
    last = to.change(
        [row(1, "in"), row(2, "out"), row(3, "in"), row(4, "out")],
        [row(1, "out"), row(2, "in"), row(3, "in, too"), row(4, "out, too")],
    )
    sent = Relation(9, "public", "sent", "f", (Column("id", 23, -1, True),))
    passes = (RowFilter("old.`a b` LIKE 'in%'", "new.`a b` LIKE 'in%'", frozenset({"a b"})),)
    plan = CompiledPlan(Plan(1, sent, {}, False), {"insert": passes, "update": passes})
    changes = commit_changes(session, table, [(first, last)], LSN)
    assert told(published_changes(changes, plan)) == [
        ("I", None, {"id": 1}),
        ("I", None, {"id": 3}),
        ("D", {"id": 1}, None),
        ("I", None, {"id": 2}),
        ("U", {"id": 3}, {"id": 3}),
    ]
