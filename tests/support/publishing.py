# SPDX-License-Identifier: Apache-2.0
"""What a PostgreSQL sends for publications, beside what our plan and transformation make of it.

One slot of a real server keeps what some statements wrote.  It is read again and again, each time
through pgoutput for other publications: those under test, and raw ones, which have every change
without filters and lists.  Only the latter go through our code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.change.relation import Relation
from penstock.change.schema import change_schema
from penstock.control.connect import ControlConnection
from penstock.control.functions import read_functions
from penstock.control.publications import publication_facts
from penstock.lake.query import filter_session, postgres_errors
from penstock.pgoutput.decode import Decoder
from penstock.pgoutput.describe import relation_message
from penstock.pgoutput.encode import encode_changes
from penstock.publish.listed import filter_input
from penstock.publish.plain import sent_plainly
from penstock.publish.plan import ROW_ACTIONS, Plan, plan_relation
from penstock.publish.transform import CompiledPlan, compile_plan, published_changes
from penstock.sql.translate.facts import needs
from tests.support.fix_servers import Database
from tests.support.pgoutput_bytes import split, truncate
from tests.support.reference_decoder import Reference


@dataclass(frozen=True)
class Sent:
    """One change as it is sent, without its place in the transaction; the message's bytes.

    A TRUNCATE of several relations is one of each.
    """

    relation: Relation
    op: str
    commit_lsn: int
    old: dict[str, Any] | None
    new: dict[str, Any] | None
    unchanged: frozenset[str]
    message: bytes


Row = tuple[Relation, tuple[Any, ...], bytes]
"""A relation, a change of it, and its message."""


@dataclass
class _Together:
    """Changes of relations that only their names tell apart."""

    compiled: CompiledPlan
    tables: list[pa.Table] = field(default_factory=list)
    plans: dict[tuple[int, int], Plan] = field(default_factory=dict)

    def add(self, table: pa.Table, plan: Plan) -> None:
        self.tables.append(table)
        places = zip(table["commit_lsn"].to_pylist(), table["seq"].to_pylist(), strict=True)
        self.plans |= dict.fromkeys(places, plan)

    def published(self, changes: DataFrame) -> Iterator[tuple[Plan, Row]]:
        with postgres_errors():
            made = published_changes(changes, self.compiled).toArrow()
        assert made.schema.names == change_schema(self.compiled.plan.relation).names
        rows = made.to_pylist()
        plans = [self.plans[row["commit_lsn"], row["seq"]] for row in rows]
        if self.compiled.is_plain:
            self._compare_plain({(row["commit_lsn"], row["seq"]): row["op"] for row in rows})
        for relid in {plan.relid for plan in plans}:
            places = [number for number, plan in enumerate(plans) if plan.relid == relid]
            plan = plans[places[0]]
            encoded = split(encode_changes(made.take(places), plan.relation))
            for place, message in zip(places, encoded, strict=True):
                yield plan, (plan.relation, tuple(rows[place].values()), message)

    def _compare_plain(self, expected: dict[tuple[int, int], str]) -> None:
        """Arrow must send the changes without ``unchanged`` columns as the same operations."""
        for table in self.tables:
            complete = table.filter(pc.is_null(table["unchanged"]))
            found = sent_plainly(filter_input(complete, self.compiled), self.compiled)
            keys = complete["commit_lsn"].to_pylist(), complete["seq"].to_pylist()
            places = zip(*keys, strict=True)
            assert found.to_pylist() == [expected.get(place) for place in places]


class PublishingOracle:
    """A database whose changes since ``start`` are looked at through publications."""

    def __init__(self, database: Database, spark: SparkSession, folder: Path) -> None:
        self._session = filter_session(spark)
        self._folder = folder
        self.version = database.server.version
        self._slot = f"oracle_{database.name}"
        self.conn = ControlConnection.connect(database.conninfo, autocommit=True)
        self._raw: list[tuple[Relation, pa.Table]] = []
        self._roots: set[Relation] = set()

    def run(self, statements: Iterable[str]) -> None:
        """Run SQL statements, one after the other."""
        for statement in statements:
            self.conn.execute(statement.encode())

    def start(self) -> None:
        """Keep what is written from now on; all publications must exist."""
        self.run(["CREATE PUBLICATION raw_changes FOR ALL TABLES"])
        if self.conn.info.server_version >= 180000:
            self.run(["ALTER PUBLICATION raw_changes SET (publish_generated_columns = stored)"])
        self.run(
            f"CREATE PUBLICATION raw_{oid} FOR TABLE {name}"
            " WITH (publish = 'truncate', publish_via_partition_root)"
            for oid, name in self._partitioned()
        )
        self.conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [self._slot])

    def written(self) -> None:
        """Read what was written, as our decoder has it."""
        self._raw = list(self._decoded(["raw_changes"]))
        for oid, _ in self._partitioned():
            for relation, table in self._decoded([f"raw_{oid}"]):
                self._roots.add(relation)
                self._raw.append((relation, table))

    def _partitioned(self) -> list[tuple[int, str]]:
        """Tables whose own TRUNCATE is sent only if they are published as the root."""
        return self.conn.execute(
            "SELECT oid::int8, oid::regclass::text FROM pg_class WHERE relkind = 'p' ORDER BY 1"
        ).fetchall()

    def _decoded(self, publications: Sequence[str]) -> Iterator[tuple[Relation, pa.Table]]:
        messages = self.messages(publications)
        offsets = np.cumsum([0, *map(len, messages)], dtype=np.int64)
        yield from Decoder().feed(np.frombuffer(b"".join(messages), np.uint8), offsets).tables

    def messages(self, publications: Sequence[str]) -> list[bytes]:
        """What pgoutput sends for publications; psycopg's error when it cannot."""
        names = ",".join(publications)
        rows = self.conn.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL,"
            " 'proto_version', '1', 'publication_names', %s)",
            [self._slot, names],
        ).fetchall()
        return [data for (data,) in rows]

    def expected(self, publications: Sequence[str]) -> list[Sent]:
        """What PostgreSQL sends, in order."""
        messages = self.messages(publications)
        decoded = Reference().feed(messages)
        rows = sorted(
            ((relation, row) for relation, of in decoded.rows.items() for row in of),
            key=lambda each: each[1][1:3],
        )
        sent = chain.from_iterable(map(_one_by_one, messages))
        return _in_order((*row, message) for row, message in zip(rows, sent, strict=True))

    def plans(self, publications: Sequence[str]) -> dict[int, Plan]:
        """Our plans for all relations that were changed."""
        relids = [relation.oid for relation, _ in self._raw]
        facts = publication_facts(self.conn, publications, relids)
        plans = {relid: plan_relation(facts, relid) for relid in relids}
        return {relid: plan for relid, plan in plans.items() if plan is not None}

    def found(self, publications: Sequence[str], *, files: bool = False) -> list[Sent]:
        """What we would send, in order; with ``files`` the changes are read from Parquet.

        Relations whose changes are of one schema and go the same way go it together.
        """
        return _in_order(row for _, row in self._published(publications, files=files))

    def descriptions(self, publications: Sequence[str]) -> tuple[set[bytes], set[bytes]]:
        """The Relation messages that we would send, and those that PostgreSQL sends."""
        plans = [plan for plan, _ in self._published(publications)]
        ours = {each for plan in plans for each in (plan.relation, plan.own) if each is not None}
        theirs = {each for each in self.messages(publications) if each[:1] == b"R"}
        return set(map(relation_message, ours)), theirs

    def _published(
        self, publications: Sequence[str], *, files: bool = False
    ) -> Iterator[tuple[Plan, Row]]:
        plans = self.plans(publications)
        together: dict[Any, _Together] = {}
        for relation, table in self._raw:
            plan = plans.get(relation.oid)
            if plan is None:
                continue
            trees = [where.nodes for of in plan.filters.values() for where in of]
            compiled = compile_plan(plan, read_functions(self.conn, needs(trees)))
            filters = tuple((action, compiled.filters.get(action)) for action in ROW_ACTIONS)
            root = relation.oid if relation in self._roots else 0  # places of its own reading
            key = (table.schema, filters, plan.truncate, _names(plan.relation), root)
            together.setdefault(key, _Together(compiled)).add(table, plan)
        for each in together.values():
            yield from each.published(self._frame(pa.concat_tables(each.tables), files))

    def _frame(self, table: pa.Table, files: bool) -> DataFrame:
        if files:
            path = self._folder / f"{len(list(self._folder.iterdir()))}.parquet"
            pq.write_table(table, path)
            return self._session.read.parquet(str(path))
        schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
        return self._session.createDataFrame(table.combine_chunks(), schema=schema)

    def differences(self, publications: Sequence[str], *, files: bool = False) -> str:
        """Empty when both sent the same; else the first change that differs."""
        expected = self.expected(publications)
        found = self.found(publications, files=files)
        for number in range(max(len(expected), len(found))):
            ours, theirs = (each[number : number + 1] for each in (found, expected))
            if ours != theirs:
                return f"{publications}, change {number}:\nPostgreSQL {theirs}\nwe {ours}"
        return ""

    def failure(self, publications: Sequence[str]) -> tuple[str, str]:
        """SQLSTATE and message of PostgreSQL's error; empty without one."""
        try:
            self.messages(publications)
        except psycopg.Error as error:
            return error.sqlstate or "", error.diag.message_primary or ""
        return "", ""


def _names(relation: Relation) -> tuple[str, ...]:
    return tuple(each.name for each in relation.columns)


def _one_by_one(message: bytes) -> list[bytes]:
    """A change's message; of a TRUNCATE, one for each relation; of others, nothing."""
    if message[:1] == b"T":
        return [truncate(oid) for oid in struct.unpack(f">{len(message) // 4 - 1}I", message[6:])]
    return [message] if message[:1] in (b"I", b"U", b"D") else []


def _in_order(rows: Iterable[Row]) -> list[Sent]:
    """By commit and place in it; a partitioned table's TRUNCATE is before its partitions'."""
    ordered = sorted(rows, key=lambda each: (each[1][1], each[1][2]))
    return [
        Sent(relation, op, lsn, old, new, frozenset(unchanged or ()), message)
        for relation, (op, lsn, _, old, new, unchanged), message in ordered
    ]
