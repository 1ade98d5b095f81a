# SPDX-License-Identifier: Apache-2.0
"""What another program may do to a lake's Delta table, and what stops it.

The other program is deltalake, or our own code under another name where deltalake cannot write what
Spark does; Spark itself writes in tests/scenarios/test_external_writers.py.  The node's part is
``register``, with transactions that are told to have been aborted.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.change import types
from penstock.change.relation import LakeColumn, LakeTable
from penstock.errors import ConcurrentWriteError, TableStateError
from penstock.lake import tables
from penstock.lake.external import Registered, register, written_by_another
from penstock.lake.files import write_file
from penstock.lake.find import find_rows
from penstock.lake.log import Action, actions_of, commit, data_files, head_version, latest_action
from penstock.lake.settle import settle
from tests.support.no_spark import no_spark

OURS = '{"penstock": "n", "xid": "9", "purpose": "external"}'
ABORTED = '{"penstock": "n", "xid": "5", "purpose": "apply"}'
FOREIGN = '{"penstock": "another node", "xid": "5", "purpose": "apply"}'


def status(xid: str) -> str:
    """No transaction here has committed."""
    return "aborted"


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    """Keyed by id, rows 0 to 9 at version 1, written by one subscription alone."""
    columns = (
        LakeColumn(1, "id", types.INT8, -1, True),
        LakeColumn(2, "v", types.TEXT, -1, False),
    )
    made = LakeTable(
        1, "public", "t", "r", "d", columns, ("id",), str(tmp_path / "t"), None, "pg_1", "t_pkey"
    )
    made = at(made, tables.create(no_spark, made, ABORTED))
    return append(made, range(10), ABORTED)


def at(table: LakeTable, version: int | None) -> LakeTable:
    """The table with this version committed."""
    return dataclasses.replace(table, version=version)


def append(table: LakeTable, ids: Sequence[int | None], metadata: str) -> LakeTable:
    """One more file."""
    rows = pa.table(
        [pa.array(ids, pa.int64()), pa.array([f"v{each}" for each in ids])],
        schema=tables.arrow_schema(table),
    )
    return at(table, tables.append_files(table, [write_file(rows, table.location)], metadata))


def delete(table: LakeTable, ids: Sequence[int], metadata: str) -> LakeTable:
    """Take rows out by deletion vectors."""
    hits = find_rows(table, pa.table({"id": pa.array(ids, pa.int64())}))
    gone = {
        hits.files[file].add["path"]: np.sort(hits.row[hits.file == file]).astype(np.uint64)
        for file in np.unique(hits.file)
    }
    return at(table, tables.change_rows(table, gone, [], metadata))


def write(table: LakeTable, ids: Sequence[int], mode: str = "append") -> None:
    """A commit of deltalake's."""
    rows = pa.table({"id": pa.array(ids, pa.int64()), "v": [f"x{each}" for each in ids]})
    write_deltalake(table.location, rows, mode=mode)


def ids(table: LakeTable) -> list[int]:
    """The rows at the table's version, as deltalake finds them."""
    read = pa.table(DeltaTable(table.location, version=table.version).scan())
    return sorted(read.column("id").to_pylist())


def noticed(table: LakeTable) -> bool:
    """Whether the loop that looks for other programs' commits finds one."""
    assert table.version is not None
    return written_by_another(table.location, table.version, "n")


def registered(table: LakeTable) -> Registered:
    """Register what there must be; until then nothing of ours may be written."""
    with pytest.raises(ConcurrentWriteError):
        settle(no_spark, table, status, OURS)
    assert noticed(table)
    found = register(no_spark, table, status, OURS)
    assert found is not None
    assert not noticed(found.table)
    assert settle(no_spark, found.table, status, OURS) == found.table
    return found


def refused(table: LakeTable) -> TableStateError:
    """The error that stops the table; nothing was written."""
    head = head_version(table.location)
    with pytest.raises(TableStateError) as error:
        register(no_spark, table, status, OURS)
    assert head_version(table.location) == head
    return error.value


def test_nothing_of_another_program(table: LakeTable) -> None:
    """At the head, or with only our own commits ahead, there is nothing to register."""
    assert register(no_spark, table, status, OURS) is None
    append(table, [77], ABORTED)
    assert not noticed(table)
    assert register(no_spark, table, status, OURS) is None


def test_what_is_registered_as_it_is(table: LakeTable) -> None:
    """Appends, deletes and an overwrite, with their ranges and kinds; another node is another."""
    write(table, range(10, 13))
    found = registered(table)
    assert (found.ranges, found.kind) == (((2, 2),), "append")
    assert found.table.sole_writer is None
    assert ids(found.table) == list(range(13))
    append(delete(found.table, [3, 11], FOREIGN), [20, 21], FOREIGN)
    found = registered(found.table)
    assert (found.ranges, found.kind) == (((3, 4),), "merge")
    assert ids(found.table) == [*range(3), *range(4, 11), 12, 20, 21]
    write(found.table, range(5, 8), "overwrite")
    found = registered(found.table)
    assert (found.ranges, found.kind, ids(found.table)) == (((5, 5),), "merge", [5, 6, 7])


def test_what_changes_no_row(table: LakeTable) -> None:
    """After an OPTIMIZE the table still has its only writer, and no range is registered."""
    add = next(iter(data_files(table.location, 1).values()))
    rows = pa.table({"id": pa.array(range(10)), "v": pa.nulls(10, pa.string())})
    same = tables.added(write_file(rows, table.location), data_change=False)
    commit(table.location, 2, [add.removed(0, False), same], "OPTIMIZE", "")
    found = registered(table)
    assert (found.ranges, found.kind, found.table.version) == ((), "optimize", 2)
    assert found.table.sole_writer == "pg_1"


def test_appends_on_top_of_an_aborted_commit_are_put_back(table: LakeTable) -> None:
    """Ours is restored away, theirs before and after it stay, each row once."""
    write(table, [10, 11])
    delete(append(at(table, 2), [100, 101], ABORTED), [0], ABORTED)
    write(table, [20, 21])
    found = registered(table)
    assert (found.ranges, found.kind) == (((2, 2), (7, 7)), "append")
    assert found.table.version == 7 and found.table.sole_writer is None
    assert ids(found.table) == [*range(12), 20, 21]
    # As after a crash before the registration's commit: it comes to the same.
    assert ids(registered(table).table) == ids(found.table)


def test_an_append_on_top_of_an_aborted_commit_is_looked_at(table: LakeTable) -> None:
    """A row whose key only an aborted commit had is fine; one whose key is there is not."""
    append(table, [100], ABORTED)
    write(table, [100])
    assert ids(registered(table).table) == [*range(10), 100]
    write(table, [5])
    assert "Key (id)=(5)" in (refused(table).detail or "")


def test_a_change_on_top_of_an_aborted_commit_stops_until_it_is_restored(table: LakeTable) -> None:
    """What was read together with rows that never were is not trusted; a RESTORE mends it."""
    delete(append(table, [100, 101], ABORTED), [100], FOREIGN)
    error = refused(table)
    assert "on top of a commit that has been aborted" in error.message
    assert "TO VERSION AS OF 1" in (error.hint or "")
    tables.restore(no_spark, table.location, 1, FOREIGN)
    found = registered(table)
    assert (found.ranges, found.kind, found.table.version) == ((), "optimize", 4)
    assert ids(found.table) == list(range(10))


Redefine = Callable[[dict[str, Any], dict[str, Any]], None]


def _add_column(metadata: dict[str, Any], protocol: dict[str, Any]) -> None:
    schema = json.loads(metadata["schemaString"])
    schema["fields"].append({"name": "w", "type": "long", "nullable": True, "metadata": {}})
    metadata["schemaString"] = json.dumps(schema)


def _not_null(metadata: dict[str, Any], protocol: dict[str, Any]) -> None:
    metadata["schemaString"] = metadata["schemaString"].replace("true", "false")


def _partition(metadata: dict[str, Any], protocol: dict[str, Any]) -> None:
    metadata["partitionColumns"] = ["v"]


def _constrain(metadata: dict[str, Any], protocol: dict[str, Any]) -> None:
    metadata["configuration"]["delta.constraints.few"] = "id < 1000"


def _need_more(metadata: dict[str, Any], protocol: dict[str, Any]) -> None:
    protocol["writerFeatures"].append("rowTracking")


def _retain(metadata: dict[str, Any], protocol: dict[str, Any]) -> None:
    metadata["configuration"] |= {
        "delta.deletedFileRetentionDuration": "interval 2 days",
        "team": "sales",
    }
    protocol["writerFeatures"].append("vacuumProtocolCheck")


def redefine(table: LakeTable, how: Redefine) -> None:
    """Another program's commit with a new definition."""
    head = head_version(table.location)
    assert head is not None
    kinds = ("metaData", "protocol")
    new = [json.loads(json.dumps(latest_action(table.location, head, kind))) for kind in kinds]
    how(*new)
    actions: list[Action] = [{kind: each} for kind, each in zip(kinds, new, strict=True)]
    commit(table.location, head + 1, actions, "SET TBLPROPERTIES", "")


@pytest.mark.parametrize(
    ("how", "detail"),
    [
        (_add_column, "columns"),
        (_not_null, "columns"),
        (_partition, "columns"),
        (_constrain, "delta.constraints.few"),
        (_need_more, "rowTracking"),
    ],
)
def test_a_changed_definition_stops_the_table(table: LakeTable, how: Redefine, detail: str) -> None:
    """The control database would not know of it, nor our own commits keep it."""
    redefine(table, how)
    error = refused(table)
    assert "was changed by another program" in error.message and detail in (error.detail or "")


def test_a_changed_definition_can_be_taken_back(table: LakeTable) -> None:
    """When the definition is as it was, and for properties that harm nobody, the table goes on."""
    old = [next(a for a in actions_of(table.location, 0) if kind in a) for kind in ("metaData",)]
    redefine(table, _add_column)
    refused(table)
    commit(table.location, 3, old, "RESTORE", "")
    redefine(table, _retain)
    found = registered(table)
    assert (found.kind, found.table.version) == ("optimize", 4)


def test_a_definition_changed_on_top_of_an_aborted_one(table: LakeTable) -> None:
    """Files that were written under a definition that never was are not put back."""
    metadata = dict(latest_action(table.location, 1, "metaData"))
    commit(table.location, 2, [{"metaData": metadata}], "ADD COLUMNS", ABORTED)
    write(table, [10])
    assert "changes the table's definition" in (refused(table).detail or "")


@pytest.mark.parametrize(
    ("wrong", "detail"),
    [
        ([4], "Key (id)=(4)"),
        ([50, 50], "Key (id)=(50)"),
        ([None], 'column "id"'),
    ],
)
def test_rows_that_break_the_key(table: LakeTable, wrong: list[int | None], detail: str) -> None:
    """A key that is there twice, or null, stops the table until the rows are deleted."""
    append(table, wrong, FOREIGN)
    error = refused(table)
    assert "rows that table" in error.message and detail in (error.detail or "")
    [path] = data_files(table.location, 2).keys() - data_files(table.location, 1).keys()
    tables.change_rows(at(table, 2), {path: np.arange(len(wrong), dtype=np.uint64)}, [], FOREIGN)
    assert ids(registered(table).table) == list(range(10))


def test_rows_that_come_back(table: LakeTable) -> None:
    """A RESTORE to before a delete brings keys back, which others may have got meanwhile."""
    table = delete(table, [3], ABORTED)
    tables.restore(no_spark, table.location, 1, FOREIGN)
    found = registered(table)
    assert (found.kind, ids(found.table)) == ("merge", list(range(10)))
    table = append(delete(found.table, [3], ABORTED), [3], ABORTED)
    there = data_files(table.location, found.table.version or 0)
    [old] = there.values()
    now = data_files(table.location, table.version or 0)[old.add["path"]]
    commit(table.location, (table.version or 0) + 1, [now.removed(0), old.again()], "RESTORE", "")
    assert "Key (id)=(3)" in (refused(table).detail or "")


def test_ours_never_lands_on_top_of_theirs(table: LakeTable) -> None:
    """A commit that was made from a version fails when another program made the next one."""
    write(table, [10])
    with pytest.raises(ConcurrentWriteError):
        append(table, [30], OURS)
    with pytest.raises(ConcurrentWriteError):
        tables.truncate(table, OURS)
    assert head_version(table.location) == 2


def test_a_data_file_elsewhere(table: LakeTable) -> None:
    """A file outside of the table's folder is not the lake's to keep or to remove."""
    add = {
        **next(iter(data_files(table.location, 1).values())).add,
        "path": "file:///tmp/x.parquet",
    }
    commit(table.location, 2, [{"add": add}], "WRITE", "")
    assert "file:///tmp/x.parquet" in (refused(table).detail or "")


def test_a_file_that_is_gone(table: LakeTable) -> None:
    """A commit whose file cannot be read stops the table; one that was undone does not matter."""
    write(table, [10])
    [path] = data_files(table.location, 2).keys() - data_files(table.location, 1).keys()
    Path(table.location, path).unlink()
    assert "cannot be read" in refused(table).message
    tables.restore(no_spark, table.location, 1, FOREIGN)
    assert ids(registered(table).table) == list(range(10))
