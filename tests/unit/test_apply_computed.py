# SPDX-License-Identifier: Apache-2.0
"""Columns that are not published: filled in inserted rows, kept by updates, generated last.

The rows must be those of changes applied one after the other, as PostgreSQL does.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.apply.batch import Generated, TableBatch
from penstock.apply.changes import apply_changes
from penstock.apply.failing import FailingChange, failing_change
from penstock.apply.fill import computed_columns
from penstock.change import types
from penstock.change.relation import LakeTable
from penstock.errors import (
    ComputedValueError,
    FeatureNotSupportedError,
    NotNullViolationError,
    RelationMismatchError,
)
from penstock.lake.table_rows import table_rows
from penstock.lake.tables import arrow_schema
from penstock.staging.segment import ChangeFile
from tests.support.changes import TRUNCATE, Change, Row, Shape, delete, insert, staged, update
from tests.support.no_spark import no_spark

SENT = {"id": types.INT8, "v": types.INT4, "big": types.TEXT}
LATER = SENT | {"x": types.INT4}
HELD = SENT | {"x": types.INT4, "n": types.INT8, "g": types.INT8}
DEFAULTS = {"x": pa.scalar(7, pa.int32())}


def target(folder: Path, key: tuple[str, ...]) -> LakeTable:
    """The lake's table: n has a value of its own in each row, g is generated, x has a default."""
    shape = Shape(HELD, key, "d" if key else "f")
    made = shape.target(folder / "t")
    columns = [replace(c, generated=c.name == "g", not_null=c.name in "ng") for c in made.columns]
    return replace(made, columns=tuple(columns))


def generate(rows: pa.Table) -> pa.Table:
    """The column g: v * 1000 + n."""
    made = pc.add(pc.multiply(pc.cast(rows.column("v"), pa.int64()), 1000), rows.column("n"))
    return rows.set_column(rows.column_names.index("g"), "g", made)


GENERATED = Generated(frozenset({"v", "n"}), generate)


@dataclass
class Numbers:
    """A sequence."""

    at: int = 0

    def next(self, names: Collection[str], rows: int, restarted: bool) -> dict[str, pa.Array]:
        """Its next values, for the column n."""
        assert set(names) == {"n"}
        assert not restarted
        self.at += rows
        return {"n": pa.array(range(self.at - rows, self.at), pa.int64())}


@dataclass
class Model:
    """Rows by id, and the changes that a publisher with some of their columns makes."""

    chance: random.Random
    full: bool
    rows: dict[int, Row] = field(default_factory=dict)
    number: count[int] = field(default_factory=count)

    def change(self, sent: dict[str, int]) -> Change:
        """One change, which is applied to the model."""
        kind, new_id = self.chance.random(), self.chance.randrange(60)
        there = list(self.rows)
        if kind < 0.01:
            self.rows.clear()
            return TRUNCATE
        if (new_id not in self.rows and kind < 0.5) or not there:
            new = {name: self.value(name, new_id) for name in sent}
            self.rows[new_id] = {"x": 7} | new | {"n": next(self.number)}
            return insert(**new)
        at = self.chance.choice(there)
        old = {name: self.rows[at][name] for name in sent}
        if kind > 0.85:
            del self.rows[at]
            return delete(**(old if self.full else {"id": at}))
        to = new_id if new_id not in self.rows else at
        new = {name: self.value(name, to) for name in sent}
        unchanged = ("big",) if self.chance.random() < 0.4 else ()
        if unchanged:
            new["big"] = old["big"]
        self.rows[to] = self.rows.pop(at) | new
        told = {name: value for name, value in new.items() if name not in unchanged}
        moved = old if self.full else {"id": at} if to != at else None
        return update(told, moved, unchanged)

    def value(self, name: str, key: int) -> int | str:
        """Any value."""
        if name == "id":
            return key
        chosen = self.chance.randrange(100)
        return str(chosen) if name == "big" else chosen

    def expected(self) -> list[Row]:
        """The rows, with what is generated."""
        return [row | {"g": row["v"] * 1000 + row["n"]} for _, row in sorted(self.rows.items())]


def apply(table: LakeTable, files: list[ChangeFile], numbers: Numbers, scratch: Path) -> LakeTable:
    """Apply files as one batch."""
    batch = TableBatch(files, 0, 2**62, generated=GENERATED)
    columns = [column for column in table.columns if column.name == "n"]
    computed = computed_columns(batch, columns, "I", numbers.next, scratch)
    batch = replace(batch, computed=computed)
    applied = apply_changes(no_spark, table, batch, "{}", "pg_1", DEFAULTS)
    assert applied is not None
    return replace(table, version=applied.version, sole_writer=applied.sole_writer)


@pytest.mark.parametrize("key", [("id",), ()])
@pytest.mark.parametrize("seed", range(3))
def test_histories(tmp_path: Path, key: tuple[str, ...], seed: int) -> None:
    """Batches of two definitions of the published table, with a column more in the second."""
    model, numbers = Model(random.Random(seed), not key), Numbers()
    table = target(tmp_path, key)
    for number in range(3):
        files = []
        for sent in (SENT, LATER):
            shape = Shape(sent, key, "d" if key else "f")
            changes = [model.change(sent) for _ in range(150)]
            lsn = 1000 + 1000 * number + len(sent) * 150
            files.append(staged(tmp_path / "staging", shape.relation(), changes, lsn))
        table = apply(table, files, numbers, tmp_path)
        found = table_rows(Path(table.location), table.version, arrow_schema(table))
        rows = [row for batch in found for row in batch.to_pylist()]
        assert sorted(rows, key=lambda row: row["id"]) == model.expected()


def test_an_error_names_its_change(tmp_path: Path) -> None:
    """A default's is that of the first row that needs it, a generated column's that of its row."""
    relation, table = Shape(SENT).relation(), target(tmp_path, ("id",))
    changes = [delete(id=9), *(insert(id=n, v=n) for n in range(50)), update({"id": 1, "v": 2})]
    batch = TableBatch([staged(tmp_path / "s", relation, changes)], 0, 2**62)

    def refuse(names: Collection[str], rows: int, restarted: bool) -> dict[str, pa.Array]:
        raise ComputedValueError("no more", sqlstate="2200H")

    n = [column for column in table.columns if column.name == "n"]
    with pytest.raises(ComputedValueError) as caught:
        computed_columns(batch, n, "I", refuse, tmp_path)
    assert failing_change(caught.value, batch, table, {}) == FailingChange("I", relation, 1001)

    computed = computed_columns(batch, n, "I", Numbers().next, tmp_path)

    def fails_at_17(rows: pa.Table) -> pa.Table:
        if 17 in rows.column("id").to_pylist():
            raise ComputedValueError("division by zero", sqlstate="22012")
        return rows.set_column(rows.column_names.index("g"), "g", rows.column("n"))

    failing = replace(batch, computed=computed, generated=Generated(frozenset("v"), fails_at_17))
    with pytest.raises(ComputedValueError) as caught:
        apply_changes(no_spark, table, failing, "{}", None)
    assert failing_change(caught.value, failing, table, {}) == FailingChange("I", relation, 1018)

    nothing = replace(failing, generated=Generated(frozenset("v"), lambda rows: rows))
    table = replace(table, location=str(tmp_path / "other"))
    with pytest.raises(NotNullViolationError, match='column "g" of relation "t"'):
        apply_changes(no_spark, table, nothing, "{}", None)


def test_sequences_start_again_at_the_last_restart(tmp_path: Path) -> None:
    """What is inserted after that TRUNCATE, and nothing before, sees them started again."""
    relation, table = Shape(SENT).relation(), target(tmp_path, ("id",))
    first = [insert(id=1), TRUNCATE, insert(id=2), insert(id=3), TRUNCATE, insert(id=4)]
    files = [
        replace(staged(tmp_path / "s", relation, first, 1000), restarts=(1001, 1004)),
        staged(tmp_path / "s", relation, [insert(id=5), TRUNCATE, insert(id=6)], 2000),
    ]
    asked: list[tuple[int, bool]] = []

    def compute(names: Collection[str], rows: int, restarted: bool) -> dict[str, pa.Array]:
        asked.append((rows, restarted))
        return {"n": pa.repeat(pa.scalar(len(asked), pa.int64()), rows)}

    n = [column for column in table.columns if column.name == "n"]
    found = computed_columns(TableBatch(files, 0, 2**62), n, "I", compute, tmp_path)
    assert asked == [(3, False), (1, True), (2, True)]
    assert found.column("n").to_pylist() == [1, None, 1, 1, None, 2, 3, None, 3]
    computed_columns(TableBatch(files, 1005, 2**62), n, "I", compute, tmp_path)
    assert asked[3:] == [(1, False), (2, False)]


def test_what_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    """A published column that is generated here; a generated column in the key."""
    table = target(tmp_path, ("id",))
    files = [staged(tmp_path / "s", Shape(HELD).relation(), [insert(id=1, v=1, n=1)])]
    generated = 'relation "public.t" has incompatible generated column: "g"'
    with pytest.raises(RelationMismatchError, match=generated):
        apply_changes(no_spark, table, TableBatch(files, 0, 2**62), "{}", None)
    files = [staged(tmp_path / "s", Shape(SENT).relation(), [insert(id=1, v=1)])]
    with pytest.raises(FeatureNotSupportedError, match='key has the generated column "g"'):
        apply_changes(no_spark, replace(table, key=("g",)), TableBatch(files, 0, 2**62), "{}", None)
