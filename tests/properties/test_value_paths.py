# SPDX-License-Identifier: Apache-2.0
"""Generated values of every type by copy and by stream: all show what the server shows.

One table has all types; each row that a publisher renders is read by the initial copy, and by the
stream in text and in binary form, there also with transactions that come while in progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock.change.mapping import ValueMapping
from penstock.staging.log import StagingLog
from penstock.wire.rows_text import text_column
from tests.support.binaries import NEWEST
from tests.support.copying import copying
from tests.support.edge_values import (
    COLUMNS,
    OTHER_COLUMNS,
    TEXT_COLUMNS,
    TYPES,
    EdgeColumn,
    create_table,
    insert,
    rows,
    shown,
)
from tests.support.fix_servers import Database
from tests.support.streaming import Stream

ROWS = 120
SEED = 20261121
AS_TEXT = ValueMapping(numeric_as="text", datetime_as="text", array_as="text")

VERSIONS = pytest.mark.parametrize("publisher", ["15", "16", NEWEST], indirect=True)

Shown = list[tuple[Any, ...]]


def filled(database: Database, columns: Sequence[EdgeColumn]) -> Shown:
    """Insert the rows, change each once, and return what the server shows of them."""
    with database.connect() as connection:
        settings = "SET bytea_output = hex; SET TimeZone = 'UTC'; SET intervalstyle = postgres"
        connection.execute(settings)
        with connection.transaction(), connection.cursor() as cursor:
            cursor.executemany(insert("vals", columns), rows(columns, ROWS, SEED))
        connection.execute("UPDATE vals SET changed = 1")
        return connection.execute(shown("vals", columns)).fetchall()


def staged(log: StagingLog, columns: Sequence[EdgeColumn]) -> dict[str, Shown]:
    """What is staged: the inserted rows, and the old and the new rows of the update, by id.

    What a new row leaves out as unchanged is taken from the old one.
    """
    tables = [pq.read_table(f.path) for segment in log.segments() for f in segment.files]
    changes = pa.concat_tables(tables).combine_chunks()
    found = {
        name: one_side(changes.filter(pc.equal(changes["op"], op)), which, columns)
        for name, op, which in (("inserted", "I", "new"), ("old", "U", "old"), ("new", "U", "new"))
    }
    updates = changes.filter(pc.equal(changes["op"], "U"))
    left_out = dict(
        zip(pc.struct_field(updates["new"], "id").to_pylist(), updates["unchanged"].to_pylist(),
            strict=True)
    )  # fmt: skip
    found["new"] = [
        tuple(
            old if column.name in (left_out[number] or ()) else new
            for column, old, new in zip(columns, *rows, strict=True)
        )
        for number, rows in enumerate(zip(found["old"], found["new"], strict=True))
    ]
    return found


def one_side(changes: pa.Table, which: str, columns: Sequence[EdgeColumn]) -> Shown:
    """The old or the new rows of changes, by id."""
    values = changes[which].combine_chunks()
    values = values.take(pc.sort_indices(values.field("id")))
    return texts([values.field(column.name) for column in columns])


def texts(arrays: list[pa.Array]) -> Shown:
    """Arrow columns as rows of what PostgreSQL shows of such values."""
    columns = [text_column(array).to_pylist() for array in arrays]
    decoded = [[None if v is None else v.decode() for v in column] for column in columns]
    return list(zip(*decoded, strict=True))


def check(found: Shown, expected: Shown, columns: Sequence[EdgeColumn], path: str) -> None:
    """Fail with the first values that differ, by column."""
    assert len(found) == len(expected) == ROWS
    wrong = []
    for number, column in enumerate(columns):
        pairs = ((a[number], b[number]) for a, b in zip(found, expected, strict=True))
        different = next((pair for pair in pairs if pair[0] != pair[1]), None)
        if different is not None:
            wrong.append(f"{path} {column.sql}: {different[0]!r:.300} is not {different[1]!r:.300}")
    assert not wrong, "\n".join(wrong)


@pytest.fixture
def tables(publisher_db: Database) -> Iterator[Database]:
    """A database with the user-defined types."""
    publisher_db.psql(TYPES)
    yield publisher_db


def streams(
    database: Database,
    folder: Path,
    columns: Sequence[EdgeColumn],
    mapping: ValueMapping,
    *,
    binary: bool = True,
) -> tuple[Shown, dict[str, dict[str, Shown]]]:
    """What the server shows, and what is staged by text, by binary, and by binary in progress."""
    database.psql(create_table("vals", columns) + "; ALTER TABLE vals REPLICA IDENTITY FULL")
    database.psql("CREATE PUBLICATION p FOR TABLE vals")
    first = Stream(database, folder / "first")
    slot = first.options.slot
    options: dict[str, dict[str, Any]] = {"text": {}}
    if binary:
        options["binary"] = {"binary": True}
        options["in progress"] = {"binary": True, "streaming": "on", "conninfo": first.eager()}
    with ExitStack() as stack:
        running = {}
        for number, (path, changes) in enumerate(options.items()):
            name = f"{slot}_{number}"
            database.psql(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
            log = StagingLog(folder / path)
            first.options = replace(first.options, slot=name, mapping=mapping, **changes)
            receiver = stack.enter_context(first.receiver(log))
            running[path] = (log, receiver)
        expected = filled(database, columns)
        if binary:
            first.await_streamed()
        found = {}
        for path, (log, receiver) in running.items():
            first.await_staged(log, receiver)
            found[path] = staged(log, columns)
    return expected, found


@VERSIONS
def test_every_type_at_its_edges(tables: Database, tmp_path: Path) -> None:
    """Copy, text and binary stream give each value exactly as the server shows it.

    In inserted, old and new rows, for types of the lake and for those that it holds as text.
    """
    expected, found = streams(tables, tmp_path, COLUMNS, ValueMapping())
    check_streams(found, expected, COLUMNS)
    check(copied(tables, tmp_path, COLUMNS), expected, COLUMNS, "copy:")


def test_types_without_a_binary_form_of_ours(tables: Database, tmp_path: Path) -> None:
    """As text they come by copy and by stream as the server shows them."""
    expected, found = streams(tables, tmp_path, OTHER_COLUMNS, ValueMapping(), binary=False)
    check_streams(found, expected, OTHER_COLUMNS)
    check(copied(tables, tmp_path, OTHER_COLUMNS), expected, OTHER_COLUMNS, "copy:")


def check_streams(
    found: dict[str, dict[str, Shown]], expected: Shown, columns: Sequence[EdgeColumn]
) -> None:
    """Every side of every path shows what the server shows."""
    for path, sides in found.items():
        for side, values in sides.items():
            check(values, expected, columns, f"{path}, {side}:")


def copied(database: Database, folder: Path, columns: Sequence[EdgeColumn]) -> Shown:
    """What the initial copy reads."""
    (folder / "copy").mkdir()
    with copying(database, folder / "copy") as copy:
        rows = copy.run(copy.table_copy("vals", ["p"])).rows.sort_by("id").combine_chunks()
    return texts([rows[column.name].combine_chunks() for column in columns])


@VERSIONS
def test_what_only_text_holds(tables: Database, tmp_path: Path) -> None:
    """With numeric_as, datetime_as and array_as = text nothing is refused and nothing changed."""
    expected, found = streams(tables, tmp_path, TEXT_COLUMNS, AS_TEXT)
    check_streams(found, expected, TEXT_COLUMNS)


def test_the_generator_is_repeatable() -> None:
    """The same seed gives the same rows, so a failure can be looked at again."""
    assert rows(COLUMNS, 40, 1) == rows(COLUMNS, 40, 1)
