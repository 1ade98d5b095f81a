# SPDX-License-Identifier: Apache-2.0
"""Apply one batch of changes to one table: staged files in, new Delta versions out.

The caller holds the table's lock and has settled its head.  Nothing here counts until the control
database's COMMIT says so; every version made here is on disk when the call returns.

    the batch                                     how it is done
    --------------------------------------------  ----------------------------------------------
    inserts only, and nobody else wrote the       files appended from Arrow, without Spark
    table (or it has no key)
    the table is empty by then                    its net effect is inserts: the same
    a key                                         net effect per key (keyed.py), one MERGE
    no key, replica identity FULL                 whole rows are counted (whole.py), one MERGE
    TRUNCATE                                      what came before is forgotten, one DELETE of all
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from penstock.apply.batch import TableBatch
from penstock.apply.frames import source_frame
from penstock.apply.keyed import keyed_source, read_index, source_schema
from penstock.apply.look_up import content_predicate, look_up_contents, look_up_keys
from penstock.apply.merge import (
    append,
    empty,
    in_leaf,
    job_settings,
    keyed_merge,
    whole_row_merge,
)
from penstock.apply.net import INSERT
from penstock.apply.prune import pruning_predicate
from penstock.apply.rows import RowMapping
from penstock.apply.whole import whole_source
from penstock.change.relation import LakeTable, Relation
from penstock.errors import RelationMismatchError, TableStateError
from penstock.lake.durable import sync_versions
from penstock.lake.files import NewFile, WrittenFile
from penstock.lake.tables import append_files, create, head_version, layout

FILE_BYTES = 256 * 1024 * 1024
"""Arrow bytes after which an append starts another file; about a fifth of that on disk."""


@dataclass(frozen=True)
class Counts:
    """Changes that a batch had for a table, as the publisher sent them."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncates: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.inserts + self.updates + self.deletes + self.truncates


@dataclass(frozen=True)
class Applied:
    """What became of a table.

    ``version`` is its Delta version now and ``ranges`` the versions that the batch made, both ends
    inclusive.  ``kind``: ``append`` (rows were only added), ``merge``, or ``truncate`` (the first
    version of the ranges empties the table).  ``created``: there was no Delta table before.
    ``sole_writer`` is what the table's record must say from now on.
    """

    version: int
    ranges: tuple[tuple[int, int], ...]
    kind: str
    counts: Counts
    created: bool
    sole_writer: str | None


def apply_changes(
    spark: SparkSession,
    target: LakeTable,
    batch: TableBatch,
    metadata: str,
    origin: str,
    defaults: Mapping[str, str] | None = None,
) -> Applied | None:
    """Apply a batch to a table; None when it changes nothing there.

    ``spark`` is a session of the worker's own.  ``metadata`` is the userMetadata of each Delta
    commit, ``origin`` names the subscription, ``defaults`` are Spark SQL literals for columns that
    the publisher does not have.

    RelationMismatchError, FeatureNotSupportedError, WrongStateError, UniqueViolationError,
    NotNullViolationError, ValueNotHeldError, InvalidTextError: the batch cannot be applied, and
    will not be by trying again.  TableStateError: Delta's head is not the table's version.
    """
    counts = count_changes(batch)
    if counts.total == 0:
        return None
    if target.version is not None and head_version(target.location) != target.version:
        raise TableStateError(
            f'the Delta table of "{target.schema}.{target.name}" is not at its committed version'
        )
    values = _default_values(spark, defaults or {})
    mappings = {each: RowMapping(each, target, values) for each in batch.relations}
    work = _Work(spark, target, batch, metadata, mappings)
    if counts.truncates:
        work.truncate()
    emptied = target.version is None or counts.truncates > 0
    alone = emptied or target.sole_writer == origin
    if counts.updates == counts.deletes == counts.truncates == 0 and (alone or not target.key):
        work.append_inserts()
    else:
        if counts.updates or counts.deletes:
            check_identity(batch.relations, target)
        if target.key:
            work.merge_by_key(emptied)
        else:
            work.merge_whole_rows(emptied)
    return work.applied(counts, origin if alone else None)


def check_identity(relations: Iterable[Relation], target: LakeTable) -> None:
    """Whether updates and deletes of these relations can find their rows in the target.

    PostgreSQL's rule and errors (logicalrep_rel_mark_updatable): the target's key must be in what
    the publisher sends of old rows; without a key the whole old row must be sent.
    """
    name = f'"{target.schema}.{target.name}"'
    for relation in relations:
        if not target.key and relation.identity != "f":
            raise RelationMismatchError(
                f"logical replication target relation {name} has neither REPLICA IDENTITY index"
                " nor PRIMARY KEY and published relation does not have REPLICA IDENTITY FULL"
            )
        sent = {c.name for c in relation.columns if c.key or relation.identity == "f"}
        if not sent.issuperset(target.key):
            raise RelationMismatchError(
                "publisher did not send replica identity column expected by the logical"
                f" replication target relation {name}"
            )


def count_changes(batch: TableBatch) -> Counts:
    """How many changes of each kind lie in the batch's range of commits."""
    found = {"I": 0, "U": 0, "D": 0, "T": 0}
    for _, rows in batch.read([]):
        for each in pc.value_counts(rows.column("op")).to_pylist():
            found[each["values"]] += each["counts"]
    return Counts(found["I"], found["U"], found["D"], found["T"])


@dataclass
class _Work:
    """One call of apply_changes: each method adds versions on top of the head."""

    spark: SparkSession
    target: LakeTable
    batch: TableBatch
    metadata: str
    mappings: dict[Relation, RowMapping]
    head: int | None = field(init=False)
    truncated: bool = field(init=False, default=False)
    merged: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.head = self.target.version

    def truncate(self) -> None:
        """Remove all rows that the table has."""
        if self.target.version is not None:
            with job_settings(self.spark, 0, self.metadata):
                empty(self.spark, self.target)
            self._moved()
            self.truncated = True

    def append_inserts(self) -> None:
        """Append all rows of a batch that only inserts."""
        schema = source_schema(self.target, [])
        rows = sum(file.inserts for file in self.batch.files)
        self._append(_inserts(self.batch, self.mappings, schema), schema, rows)

    def merge_by_key(self, emptied: bool) -> None:
        """Bring the net effect on each key into the table."""
        index = read_index(self.batch, self.target, self.mappings)
        source = keyed_source(
            self.batch,
            dataclasses.replace(self.target, version=None) if emptied else self.target,
            self.mappings,
            index,
            lambda keys, columns: look_up_keys(
                self.spark, [self.target, *self.batch.siblings], keys, columns
            ),
        )
        if source.rows == 0:
            return
        if emptied:
            puts = (each.filter(pc.equal(each["op"], INSERT)) for each in source.tables())
            self._append(puts, source.schema, source.rows)
            return
        keys = source.keys()
        predicate = pruning_predicate({n: keys.column(n) for n in keys.column_names}, "t")
        with self._merge_source(source.tables(), source.schema, source.rows) as frame:
            if frame is not None:
                keyed_merge(self.spark, self.target, frame, source.partial, predicate)
                self._merged()

    def merge_whole_rows(self, emptied: bool) -> None:
        """Bring the net effect on whole rows into a table without a key."""
        tables = [self.target, *self.batch.siblings]
        source = whole_source(
            self.batch,
            self.target,
            self.mappings,
            emptied,
            lambda contents: look_up_contents(self.spark, tables, contents),
        )
        rows, schema = source.table.num_rows, source.table.schema
        deletes = source.deletes
        if deletes.num_rows == 0:
            self._append([source.table], schema, rows)
            return
        places = {c.name: f"c{at}" for at, c in enumerate(self.target.columns)}
        contents = deletes.select([places[name] for name in source.columns])
        predicate = content_predicate(contents.rename_columns(source.columns), "t")
        with self._merge_source([source.table], schema, rows) as frame:
            if frame is not None:
                whole_row_merge(self.spark, self.target, frame, source.columns, predicate)
                self._merged()

    def applied(self, counts: Counts, sole_writer: str | None) -> Applied | None:
        """What all of it came to."""
        if self.head is None or self.head == self.target.version:
            return None
        created = self.target.version is None
        first = 0 if self.target.version is None else self.target.version + 1
        kind = "truncate" if self.truncated else "merge" if self.merged else "append"
        return Applied(self.head, ((first, self.head),), kind, counts, created, sole_writer)

    @contextmanager
    def _merge_source(
        self, tables: Iterable[pa.Table], schema: pa.Schema, rows: int
    ) -> Iterator[DataFrame | None]:
        """The source of one Delta commit, cut to the leaf; None when nothing is left of it."""
        location = self.target.location
        with (
            source_frame(self.spark, tables, schema, rows, location) as source,
            job_settings(self.spark, rows, self.metadata),
        ):
            if self.batch.only is None:
                yield source
                return
            frame = in_leaf(source, self.target, self.batch.only)
            yield None if frame.isEmpty() else frame

    def _merged(self) -> None:
        self.merged = True
        self._moved()

    def _append(self, tables: Iterable[pa.Table], schema: pa.Schema, rows: int) -> None:
        if self.batch.only is not None:
            self._append_leaf(tables, schema, rows)
            return
        full = (table for table in tables if table.num_rows)
        first = next(iter(full), None)
        if first is None:
            return
        self._create()
        files = self._write(first, full)
        self.head = append_files(self.target, files, self.metadata)

    def _append_leaf(self, tables: Iterable[pa.Table], schema: pa.Schema, rows: int) -> None:
        """Append those rows that satisfy the leaf's predicate: Spark evaluates it."""
        Path(self.target.location).mkdir(parents=True, exist_ok=True)
        with self._merge_source(tables, schema, rows) as frame:
            if frame is not None:
                self._create()
                append(frame, self.target)
                self._moved()

    def _write(self, first: pa.Table, rest: Iterable[pa.Table]) -> list[WrittenFile]:
        names = layout(self.target.location).names
        columns = [column.name for column in self.target.columns]
        places = [f"c{at}" for at in range(len(columns))]
        schema = pa.schema(
            [
                first.schema.field(place).with_name(names[name])
                for place, name in zip(places, columns, strict=True)
            ]
        )
        files: list[WrittenFile] = []
        pending: Iterator[pa.Table] = _chain(first, rest)
        table = next(pending, None)
        while table is not None:
            size = 0
            with NewFile(self.target.location, schema) as file:
                while table is not None and size < FILE_BYTES:
                    file.write(table.select(places))
                    size += table.nbytes
                    table = next(pending, None)
            assert file.written is not None
            files.append(file.written)
        return files

    def _create(self) -> None:
        if self.target.version is None:
            self.head = create(self.spark, self.target, self.metadata)

    def _moved(self) -> None:
        """Note where Spark has moved the head to, and put the new versions on disk."""
        before = -1 if self.head is None else self.head
        head = head_version(self.target.location)
        assert head is not None
        sync_versions(self.target.location, before + 1, head)
        self.head = head


def _inserts(
    batch: TableBatch, mappings: Mapping[Relation, RowMapping], schema: pa.Schema
) -> Iterator[pa.Table]:
    for relation, rows in batch.read(["new", "old", "unchanged"]):
        table = mappings[relation].new_rows(rows)
        op = pa.repeat(pa.scalar(INSERT, pa.int8()), table.num_rows)
        yield pa.table([op, *table.columns], schema=schema)


def _chain(first: pa.Table, rest: Iterable[pa.Table]) -> Iterator[pa.Table]:
    yield first
    yield from rest


def _default_values(spark: SparkSession, defaults: Mapping[str, str]) -> dict[str, pa.Scalar]:
    if not defaults:
        return {}
    row = spark.sql("SELECT " + ", ".join(defaults.values())).toArrow()
    return {name: row.column(at)[0] for at, name in enumerate(defaults)}
