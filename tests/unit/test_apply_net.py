# SPDX-License-Identifier: Apache-2.0
"""The net effect of a batch on each key: compared with changes applied one at a time.

``replay`` does on a list of rows what apply does on a Delta table.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.apply.batch import TableBatch
from penstock.apply.index import read_index
from penstock.apply.keyed import DELETE, KeyedSource, keyed_source
from penstock.apply.net import CHECK, INSERT, REPLACE, UPDATE
from penstock.apply.rows import RowMapping
from penstock.change import types
from penstock.errors import UniqueViolationError, WrongStateError
from tests.support.changes import (
    TRUNCATE,
    Change,
    KeyViolation,
    Model,
    Row,
    Shape,
    delete,
    insert,
    staged,
    update,
)

ONE = Shape()
TWO = Shape({"a": types.INT4, "v": types.INT4, "b": types.TEXT, "big": types.TEXT}, ("b", "a"))


def net(folder: Path, shape: Shape, before: list[Row], changes: list[Change]) -> KeyedSource:
    """What to put and to delete for these changes on a table with these rows."""
    batch = TableBatch([staged(folder, shape.relation(), changes)], 0, 2**62)
    target = shape.target(folder, version=1)
    mappings = {shape.relation(): RowMapping(shape.relation(), target, {})}

    def look_up(keys: pa.Table, columns: list[str]) -> pa.Table:
        wanted = keys.to_pylist()
        names = [*keys.column_names, *columns]
        found = [row for row in before if {n: row[n] for n in keys.column_names} in wanted]
        fields = [(name, pa.string() if name == "big" else None) for name in names]
        schema = pa.schema([(n, t or keys.schema.field(n).type) for n, t in fields])
        return pa.Table.from_pylist([{n: row[n] for n in names} for row in found], schema=schema)

    return keyed_source(batch, target, mappings, read_index(batch, target, mappings), look_up)


def replay(source: KeyedSource, shape: Shape, before: list[Row]) -> list[Row]:
    """What this source makes of these rows."""
    columns = list(shape.columns)
    by_key = {tuple(row[name] for name in shape.key): dict(row) for row in before}
    touched = set()
    asked, ops = source.keys()
    for each, op in zip(asked.to_pylist(), ops, strict=True):
        key = tuple(each[name] for name in shape.key)
        assert key not in touched, "each key is put or deleted once"
        touched.add(key)
        if op == DELETE:
            by_key.pop(key, None)
    for table in source.puts():
        for each in table.to_pylist():
            row = {name: each[f"c{number}"] for number, name in enumerate(columns)}
            key = tuple(row[name] for name in shape.key)
            there = by_key.get(key)
            if each["op"] in (INSERT, CHECK) and there is not None:
                raise KeyViolation(key)
            if each["op"] in (INSERT, REPLACE) or (each["op"] == UPDATE and there is not None):
                for number, name in enumerate(source.partial):
                    if each[f"keep{number}"]:
                        assert there is not None
                        row[name] = there[name]
                by_key[key] = row
    return list(by_key.values())


def outcome(shape: Shape, before: list[Row], changes: list[Change]) -> list[Row] | str:
    """What the model says: rows in key order, or that a key was violated.

    What happens before a TRUNCATE is forgotten, violations included.
    """
    truncates = [number for number, change in enumerate(changes) if change.op == "T"]
    model = Model(shape, [dict(row) for row in before])
    try:
        model.apply(changes[truncates[-1] :] if truncates else changes)
    except KeyViolation:
        return "violation"
    return in_order(shape, model.rows)


def netted(shape: Shape, before: list[Row], changes: list[Change]) -> list[Row] | str:
    """What the net effect says."""
    with TemporaryDirectory() as folder:
        try:
            source = net(Path(folder), shape, before, changes)
            base = [] if any(change.op == "T" for change in changes) else before
            return in_order(shape, replay(source, shape, base))
        except (KeyViolation, UniqueViolationError):
            return "violation"


def in_order(shape: Shape, rows: list[Row]) -> list[Row]:
    """Rows in the order of their keys."""
    return sorted(rows, key=lambda row: tuple(str(row[name]) for name in shape.key))


keys = st.integers(1, 5)
values = st.integers(0, 99)
texts = st.one_of(st.none(), st.text("xy", max_size=2))


@st.composite
def histories(draw: st.DrawFn) -> list[Change]:
    """Changes of a table with key id; mostly possible ones, so that few end in a violation."""
    count = draw(st.integers(1, 14))
    return [draw(one_change()) for _ in range(count)]


@st.composite
def one_change(draw: st.DrawFn) -> Change:
    kind = draw(st.sampled_from("IUUUKKDDT" if draw(st.booleans()) else "UKD"))
    key, v, big = draw(keys), draw(values), draw(texts)
    if kind == "I":
        return insert(id=key, v=v, big=big)
    if kind == "D":
        return delete(id=key)
    if kind == "T":
        return TRUNCATE
    absent = draw(st.booleans())
    new: Row = {"id": key, "v": v} | ({} if absent else {"big": big})
    old: Row | None = {"id": draw(keys)} if kind == "K" else None
    return update(new, old, ("big",) if absent else ())


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    """Rows of the table before."""
    present = draw(st.sets(keys))
    return [{"id": key, "v": 1000 + key, "big": f"old {key}"} for key in sorted(present)]


def since_truncate(before: list[Row], changes: list[Change]) -> tuple[Model, int]:
    """A model with what is there after the last TRUNCATE, and the number of changes up to it."""
    forgotten = max([n + 1 for n, change in enumerate(changes) if change.op == "T"], default=0)
    return Model(ONE, [] if forgotten else [dict(row) for row in before]), forgotten


def violation(before: list[Row], changes: list[Change]) -> int | None:
    """Where a batch of these changes says that a key is violated; None when none is."""
    asked = [row for row in before if not any(change.op == "T" for change in changes)]
    with TemporaryDirectory() as folder:
        try:
            source = net(Path(folder), ONE, before, changes)
        except UniqueViolationError as error:
            return error.position
    keys, ops = source.keys()
    there = np.isin(keys.column("id").to_numpy(), [row["id"] for row in asked])
    wrong = np.flatnonzero(there & np.isin(ops, (INSERT, CHECK)))
    return source.duplicate(wrong).position if len(wrong) else None


@settings(max_examples=400, deadline=None)
@given(before=tables(), changes=histories())
def test_the_first_violation_is_found_by_cutting_before_each(
    before: list[Row], changes: list[Change]
) -> None:
    """A batch that fails is applied up to the change that it names: at last that is the first."""
    model, forgotten = since_truncate(before, changes)
    first = None
    try:
        model.apply(changes[forgotten:])
    except KeyViolation as violated:
        first = forgotten + violated.place
    found = None
    while changes:
        place = violation(before, changes)
        if place is None:
            break
        assert place < len(changes), "a batch is cut shorter each time"
        found, changes = place, changes[:place]
    assert found == first


@settings(max_examples=400, deadline=None)
@given(before=tables(), changes=histories())
def test_missing_rows_are_counted_as_one_at_a_time(
    before: list[Row], changes: list[Change]
) -> None:
    """However many changes of a key are in a batch, each that found no row is counted."""
    model, forgotten = since_truncate(before, changes)
    rows = [row["id"] for row in model.rows]
    assume(outcome(ONE, before, changes) != "violation")
    model.apply(changes[forgotten:])
    with TemporaryDirectory() as folder:
        source = net(Path(folder), ONE, before, changes)
    there = np.isin(source.keys()[0].column("id").to_numpy(), rows)
    assert source.missing(there) == (model.missing["U"], model.missing["D"])


@settings(max_examples=400, deadline=None)
@given(before=tables(), changes=histories())
def test_agrees_with_one_at_a_time(before: list[Row], changes: list[Change]) -> None:
    """Whatever the changes are, the net effect leaves what one after the other would leave."""
    assert netted(ONE, before, changes) == outcome(ONE, before, changes)


def row(key: int, v: int, big: str | None = None) -> Row:
    """A row of the table with key id."""
    return {"id": key, "v": v, "big": big}


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        pytest.param([], [insert(id=1, v=1), delete(id=1)], [], id="insert then delete"),
        pytest.param([row(1, 1)], [delete(id=1), insert(id=1, v=2)], [row(1, 2)], id="replaced"),
        pytest.param([], [update({"id": 1, "v": 2})], [], id="update of a missing row"),
        pytest.param(
            [],
            [update({"id": 2, "v": 2}, {"id": 1})],
            [],
            id="key change of a missing row",
        ),
        pytest.param(
            [row(1, 1, "kept")],
            [update({"id": 1, "v": 2}, None, ("big",))],
            [row(1, 2, "kept")],
            id="unchanged stays the target's",
        ),
        pytest.param(
            [row(1, 1, "x")],
            [update({"id": 1, "v": 2, "big": "y"}), update({"id": 1, "v": 3}, None, ("big",))],
            [row(1, 3, "y")],
            id="unchanged takes the last known",
        ),
        pytest.param(
            [row(1, 1, "far")],
            [
                update({"id": 2, "v": 2}, {"id": 1}, ("big",)),
                update({"id": 3, "v": 3}, {"id": 2}, ("big",)),
                update({"id": 3, "v": 4}, None, ("big",)),
            ],
            [row(3, 4, "far")],
            id="unchanged through a chain of keys",
        ),
        pytest.param(
            [row(1, 1, "one"), row(2, 2, "two")],
            [
                update({"id": 9, "v": 1}, {"id": 1}, ("big",)),
                update({"id": 1, "v": 2}, {"id": 2}, ("big",)),
                update({"id": 2, "v": 1}, {"id": 9}, ("big",)),
            ],
            [row(1, 2, "two"), row(2, 1, "one")],
            id="two keys swapped",
        ),
        pytest.param(
            [row(1, 1)],
            [insert(id=2, v=2), TRUNCATE, insert(id=3, v=3)],
            [row(3, 3)],
            id="truncate forgets",
        ),
        pytest.param([row(1, 1)], [insert(id=1, v=2)], "violation", id="key exists in target"),
        pytest.param(
            [row(1, 1)], [insert(id=1, v=2), delete(id=1)], "violation", id="checked all the same"
        ),
        pytest.param(
            [row(1, 1), row(2, 2)],
            [update({"id": 2, "v": 1}, {"id": 1})],
            "violation",
            id="moved onto a row",
        ),
    ],
)
def test_cases(before: list[Row], changes: list[Change], after: list[Row] | str) -> None:
    """The rules of the subscriber, one by one."""
    assert outcome(ONE, before, changes) == after
    assert netted(ONE, before, changes) == after


def test_key_of_two_columns() -> None:
    """A composite key, in another order than the columns, with partial updates."""
    before: list[Row] = [{"a": 1, "v": 1, "b": "x", "big": "B"}]
    changes = [
        insert(a=1, v=5, b="y", big=None),
        update({"a": 2, "v": 2, "b": "x"}, {"a": 1, "b": "x"}, ("big",)),
        delete(a=1, b="y"),
    ]
    assert netted(TWO, before, changes) == [{"a": 2, "v": 2, "b": "x", "big": "B"}]


def test_inserted_row_without_a_value_is_refused() -> None:
    """An INSERT that PostgreSQL made of an UPDATE lacks its unchanged columns: never a NULL."""
    change = Change("I", None, {"id": 1, "v": 1}, ("big",))
    with pytest.raises(WrongStateError, match='did not send column "big"'):
        netted(ONE, [], [change])


def test_old_rows_fill_in_with_replica_identity_full() -> None:
    """With replica identity full the old row has an unchanged column's value."""
    shape = Shape(identity="f")
    old: Row = {"id": 1, "v": 1, "big": "from old"}
    changes = [update({"id": 1, "v": 2}, old, ("big",))]
    assert netted(shape, [row(1, 1, "other")], changes) == [row(1, 2, "from old")]
