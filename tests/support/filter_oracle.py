# SPDX-License-Identifier: Apache-2.0
"""Row filters, two engines: PostgreSQL on its rows, and our compiled filter on the same rows.

A real PostgreSQL (collation C) has a table with a column of each kind of type.  A filter is put
into a publication there, so PostgreSQL's own rules for a WHERE clause hold; what its catalog has is
compiled; and the decisions on all rows are compared: true, false, NULL, or the error's SQLSTATE.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.change.relation import LakeColumn
from penstock.change.types import arrow_type
from penstock.control.connect import ControlConnection
from penstock.control.functions import read_functions
from penstock.errors import FeatureNotSupportedError, PenstockError
from penstock.lake.evaluate import Evaluator
from penstock.lake.query import filter_session, postgres_errors
from penstock.publish.filter import PublishedWhere, RowFilter, compile_filter
from penstock.sql.arrow_filter import Decide, arrow_filter
from penstock.sql.translate.facts import needs
from tests.support.query_oracle import lake_rows

TABLE = """
    CREATE TABLE filtered (id int PRIMARY KEY, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8,
        n numeric, n2 numeric(10,2), n38 numeric(38,0), b bool, t text, v varchar(20), c char(5),
        d date, ts timestamp, tz timestamptz, y bytea, u uuid, tm time, nm name, ch "char", o oid,
        j jsonb, iv interval, ip inet, ta text[], ia int[], fa float8[], "odd ""name" int)"""

_FUNCTIONS = """
CREATE FUNCTION filter_tree(condition text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE tree text;
BEGIN
    BEGIN
        EXECUTE 'CREATE PUBLICATION tried FOR TABLE filtered WHERE (' || condition || ')';
        SELECT prqual::text INTO tree FROM pg_publication_rel;
        RAISE EXCEPTION SQLSTATE 'PE000';
    EXCEPTION WHEN SQLSTATE 'PE000' THEN RETURN tree; WHEN others THEN
        RETURN '!' || SQLSTATE || ' ' || SQLERRM;
    END;
END $$;
CREATE FUNCTION decisions(condition text) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE found text[]; one text; number int;
BEGIN
    BEGIN
        EXECUTE 'SELECT array_agg((' || condition || ')::text ORDER BY id) FROM filtered'
            INTO found;
        RETURN found;
    EXCEPTION WHEN others THEN NULL;
    END;
    FOR number IN SELECT id FROM filtered ORDER BY id LOOP
        BEGIN
            EXECUTE 'SELECT (' || condition || ')::text FROM filtered WHERE id = $1'
                INTO one USING number;
        EXCEPTION WHEN others THEN one := SQLSTATE;
        END;
        found := found || one;
    END LOOP;
    RETURN found;
END $$"""

_COLUMNS = """
SELECT attnum, attname, atttypid::int8, atttypmod, attnotnull FROM pg_attribute
WHERE attrelid = 'filtered'::regclass AND attnum > 0 ORDER BY attnum"""

Decision = bool | str | None
"""A str is the SQLSTATE of an error."""

_WORDS: dict[str | None, Decision] = {"true": True, "false": False, None: None}


def _decided_row(decide: Decide, row: pa.RecordBatch) -> Decision:
    try:
        decision: bool | None = decide(row)[0].as_py()
        return decision
    except PenstockError as error:
        return error.sqlstate


class FilterOracle:
    """A database with the table, and Spark with its rows."""

    def __init__(self, conn: ControlConnection, spark: SparkSession, folder: Path) -> None:
        self.conn = conn
        self._session = filter_session(spark)
        self._folder = folder
        self._loads = 0
        self._rows: DataFrame
        self._given: pa.Table
        self._batch: pa.RecordBatch
        self._ids: list[int] = []
        conn.execute(TABLE.encode())
        conn.execute(_FUNCTIONS.encode())
        self.columns = tuple(LakeColumn(*row) for row in conn.execute(_COLUMNS).fetchall())

    def fill(self, rows: Sequence[dict[str, str | None]]) -> None:
        """Give the table these rows, as texts by column; ``id`` counts from 1."""
        records = [{"id": number, **row} for number, row in enumerate(rows, 1)]
        self.conn.execute("TRUNCATE filtered")
        self.conn.execute(
            "INSERT INTO filtered SELECT * FROM json_populate_recordset(NULL::filtered, %s)",
            [json.dumps(records)],
        )
        self._loads += 1
        table = lake_rows(self.conn, "filtered")
        self._ids = table["id"].to_pylist()
        (self._batch,) = table.sort_by("id").combine_chunks().to_batches()
        path = self._folder / f"rows{self._loads}.parquet"
        image = pa.chunked_array([pa.StructArray.from_arrays(
            [each.combine_chunks() for each in table.columns], fields=list(table.schema)
        )])  # fmt: skip
        self._given = pa.table({"id": table["id"], "new": image})
        pq.write_table(self._given, path)
        self._rows = self._session.read.parquet(str(path))

    def trees(self, conditions: Sequence[str]) -> list[str]:
        """The node trees; "!" and the error for a condition that PostgreSQL refuses."""
        return [self._one("SELECT filter_tree(%s)", each) for each in conditions]

    def compile(self, conditions: Sequence[str]) -> list[RowFilter | PenstockError]:
        """Compile filters; the error for each that PostgreSQL, or we, refuse."""
        return [self._compiled(tree) for tree in self.trees(conditions)]

    def _compiled(self, tree: str) -> RowFilter | PenstockError:
        if tree.startswith("!"):
            return PenstockError(tree[7:], sqlstate=tree[1:6])
        where = self.where(tree)
        facts = read_functions(self.conn, needs([where.nodes]))
        try:
            return compile_filter(where, facts)
        except FeatureNotSupportedError as error:
            return error

    def by_arrow(self, conditions: Sequence[str]) -> dict[str, list[Decision]]:
        """The decisions on all rows of the filters that are plain (``sql/arrow_filter.py``)."""
        kinds = {
            each.attnum: (each.name, arrow_type(each.type_oid, each.typmod))
            for each in self.columns
        }
        found = {}
        for condition, tree in zip(conditions, self.trees(conditions), strict=True):
            if not tree.startswith("!"):
                nodes = self.where(tree).nodes
                facts = read_functions(self.conn, needs([nodes]))
                decide = arrow_filter(nodes, kinds, facts)
                if decide is not None:
                    found[condition] = self._decided_by_arrow(decide)
        return found

    def _decided_by_arrow(self, decide: Decide) -> list[Decision]:
        """The decisions on all rows at once; one by one when that fails.

        What all rows fail with together must be what the first of them fails with alone.
        """
        try:
            return list(decide(self._batch).to_pylist())
        except PenstockError as error:
            rows = [self._batch.slice(i, 1) for i in range(self._batch.num_rows)]
            found = [_decided_row(decide, row) for row in rows]
            assert next(each for each in found if isinstance(each, str)) == error.sqlstate
            return found

    def where(self, tree: str) -> PublishedWhere:
        """A filter of the table, as the catalog has it."""
        return PublishedWhere("tried", "public", "filtered", self.columns, tree)

    def expected(self, condition: str) -> list[Decision]:
        """PostgreSQL's decisions on all rows."""
        found = self._one("SELECT decisions(%s)", condition)
        return [_WORDS.get(each, each) for each in found]

    def wrong(self, condition: str, found: Sequence[Decision]) -> str:
        """The first row on which PostgreSQL decides otherwise; empty when there is none."""
        for number, a, b in zip(self._ids, self.expected(condition), found, strict=True):
            if a != b:
                row = self._one("SELECT to_json(f) FROM filtered f WHERE id = %s", number)
                return f"PostgreSQL {a}, not {b}, for {row}"
        return ""

    def _one(self, query: str, *values: object) -> Any:
        row = self.conn.execute(query.encode(), values).fetchone()
        assert row is not None
        return row[0]

    def differences(self, conditions: Sequence[str]) -> dict[str, str]:
        """Compare filters; what differs, by filter.  Those that are refused are not compared."""
        compiled = zip(conditions, self.compile(conditions), strict=True)
        kept = {text: made for text, made in compiled if isinstance(made, RowFilter)}
        expected = {text: self.expected(text) for text in kept}
        texts = {text: self._without_errors(kept[text], expected[text]) for text in kept}
        found = self._decide(texts)
        given = self._decide_given(texts)
        wrong = {}
        for text, decisions in expected.items():
            wanted: list[Decision] = [None if isinstance(each, str) else each for each in decisions]
            for how in (found[text], given[text]):
                if how != wanted:
                    wrong[text] = self._explain(wanted, how)
        return wrong | self._wrong_errors(kept, expected)

    def _without_errors(self, made: RowFilter, expected: Sequence[Decision]) -> str:
        pairs = zip(self._ids, expected, strict=True)
        failing = [number for number, decision in pairs if isinstance(decision, str)]
        if not failing:
            return made.new
        return f"CASE WHEN id NOT IN ({', '.join(map(str, failing))}) THEN ({made.new}) END"

    def _decide(self, filters: dict[str, str]) -> dict[str, list[Decision] | str]:
        """All filters in one job; alone when that fails, to see which one did."""
        named = [f.expr(each).alias(f"f{i}") for i, each in enumerate(filters.values())]
        try:
            with postgres_errors():
                rows = self._rows.select("id", *named).toArrow().sort_by("id")
        except PenstockError as error:
            if len(filters) == 1:
                return dict.fromkeys(filters, str(error))
            found: dict[str, list[Decision] | str] = {}
            for text, each in filters.items():
                found |= self._decide({text: each})
            return found
        return {text: rows[f"f{i}"].to_pylist() for i, text in enumerate(filters)}

    def _decide_given(self, filters: dict[str, str]) -> dict[str, list[Decision] | str]:
        """The same on rows that Spark is given, as for a small commit."""
        evaluate = Evaluator(
            self._session, f"array({', '.join(filters.values())})", self._given.schema
        )
        try:
            found = evaluate(self._given).to_pylist()
        except PenstockError as error:
            return dict.fromkeys(filters, str(error))
        return dict(zip(filters, map(list, zip(*found, strict=True)), strict=True))

    def _explain(self, wanted: list[Decision], found: list[Decision] | str) -> str:
        if isinstance(found, str):
            return f"Spark: {found}"
        for number, a, b in zip(self._ids, wanted, found, strict=True):
            if a is not b:
                row = self._one("SELECT to_json(f) FROM filtered f WHERE id = %s", number)
                return f"PostgreSQL {a}, Spark {b} for {row}"
        return "equal"

    def _wrong_errors(
        self, kept: dict[str, RowFilter], expected: dict[str, list[Decision]]
    ) -> dict[str, str]:
        """The first row that PostgreSQL fails on must fail here, with the same SQLSTATE."""
        wrong = {}
        for text, decisions in expected.items():
            failing = [i for i, each in enumerate(decisions) if isinstance(each, str)]
            if not failing or len(failing) == len(decisions):
                continue  # constant parts that fail are found when the publication is made
            number, sqlstate = self._ids[failing[0]], decisions[failing[0]]
            try:
                with postgres_errors():
                    row = self._rows.where(f.col("id") == number).select(kept[text].column("new"))
                    wrong[text] = f"PostgreSQL {sqlstate}, Spark {row.collect()[0][0]}"
            except PenstockError as error:
                if error.sqlstate != sqlstate:
                    wrong[text] = f"PostgreSQL {sqlstate}, Spark {error.sqlstate} {error}"
            given = self._given.filter(pc.equal(self._given["id"], number))
            try:
                Evaluator(self._session, kept[text].new, given.schema)(given)
                wrong[text] = f"PostgreSQL {sqlstate}, Spark none on a given row"
            except PenstockError as error:
                if error.sqlstate != sqlstate:
                    wrong[text] = f"PostgreSQL {sqlstate}, Spark {error.sqlstate} on a given row"
        return wrong
