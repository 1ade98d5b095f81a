# SPDX-License-Identifier: Apache-2.0
"""Delta's log without Spark: versions made by us, read by deltalake and by us."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyroaring import BitMap64

from penstock.change import types
from penstock.change.relation import LakeColumn, LakeTable
from penstock.errors import ConcurrentWriteError, TableStateError
from penstock.lake import tables
from penstock.lake.durable import decode_z85, encode_z85, log_entry
from penstock.lake.files import write_file
from penstock.lake.log import (
    DataFile,
    actions_of,
    commit,
    data_files,
    head_version,
    physical_names,
)
from penstock.lake.vectors import read_vector, write_vectors
from tests.support.no_spark import no_spark

"""For calls that need Spark only for tables with columns in need of mapping, or other changes."""


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    """An empty table at version 0."""
    columns = (
        LakeColumn(1, "id", types.INT8, -1, True),
        LakeColumn(2, "n", types.NUMERIC, -1, False),
    )
    made = LakeTable(1, "public", "t", "r", "d", columns, ("id",), str(tmp_path / "t"), None, None)
    return dataclasses.replace(made, version=tables.create(no_spark, made, "m"))


def append(table: LakeTable, ids: range) -> LakeTable:
    """One more file."""
    text = pa.array([f"{number}.123456789012345678" for number in ids])
    rows = pa.table(
        [pa.array(ids, pa.int64()), text.cast(pa.decimal128(38, 18))],
        schema=tables.arrow_schema(table),
    )
    version = tables.append_files(table, [write_file(rows, table.location)], "m")
    return dataclasses.replace(table, version=version)


def change(table: LakeTable, gone: dict[str, list[int]]) -> LakeTable:
    """Take rows out."""
    rows = {path: np.array(each, np.uint64) for path, each in gone.items()}
    return dataclasses.replace(table, version=tables.change_rows(table, rows, [], "m"))


def files(table: LakeTable) -> dict[str, DataFile]:
    """The data files of the table's version."""
    assert table.version is not None
    return data_files(table.location, table.version)


def left(table: LakeTable) -> int:
    """How many rows deltalake, a reader of its own, finds."""
    return int(pa.table(DeltaTable(table.location, version=table.version).scan()).num_rows)


def test_rows_go_by_deletion_vectors(table: LakeTable) -> None:
    """Vectors add up; a file without a row left goes; each version keeps what it had."""
    one = append(append(table, range(10)), range(10, 13))
    [first, second] = files(one)
    two = change(one, {first: [0, 9]})
    three = change(two, {first: [3], second: [0, 1, 2]})
    assert [left(each) for each in (one, two, three)] == [13, 11, 7]
    assert list(files(three)) == [first]
    vector = read_vector(table.location, files(three)[first].vector)
    assert vector.tolist() == [0, 3, 9]
    assert set(files(two)) == {first, second}
    assert json.loads(files(three)[first].add["stats"])["tightBounds"] is False


def test_truncate_takes_all_files_out(table: LakeTable) -> None:
    """Nothing is left, and the version before still has it."""
    one = append(table, range(5))
    two = dataclasses.replace(one, version=tables.truncate(one, "m"))
    assert (left(one), left(two), files(two)) == (5, 0, {})


def test_restore_brings_files_and_vectors_back(table: LakeTable) -> None:
    """The state of any version comes back as a new one, whatever happened since."""
    states = [table]
    states.append(append(states[-1], range(10)))
    [path] = files(states[-1])
    states.append(change(states[-1], {path: [1, 2]}))
    states.append(append(states[-1], range(10, 20)))
    states.append(change(states[-1], {path: [5]}))
    states.append(dataclasses.replace(table, version=tables.truncate(states[-1], "m")))
    for state in states:
        assert state.version is not None
        head = tables.restore(no_spark, table.location, state.version, "undone")
        restored = dataclasses.replace(table, version=head)
        assert left(restored) == left(state)
        assert files(restored).keys() == files(state).keys()
        assert '"undone"' in log_entry(table.location, head).read_text()


def test_a_checkpoint_says_what_the_commits_said(table: LakeTable) -> None:
    """Paths, statistics to the last digit, and vectors are the same with and without commits."""
    head = append(table, range(10))
    [path] = files(head)
    head = change(head, {path: [4]})
    while head.version != tables.CHECKPOINT_EVERY:
        head = append(head, range(10))
    before = {name: file.add for name, file in files(head).items()}
    log = Path(table.location, "_delta_log")
    for entry in log.glob("*.json"):
        if int(entry.stem) < tables.CHECKPOINT_EVERY:
            entry.unlink()
    after = {name: file.add for name, file in files(head).items()}
    kept = ("path", "partitionValues", "size", "deletionVector")
    for name, add in before.items():
        assert {k: add.get(k) for k in kept} == {k: after[name].get(k) for k in kept}
        assert json.loads(add["stats"], parse_float=str) == json.loads(
            after[name]["stats"], parse_float=str
        )
    with pytest.raises(TableStateError, match="lacks version"):
        data_files(table.location, 3)


def test_a_version_is_made_once(table: LakeTable) -> None:
    """Whoever comes second is told; nothing is overwritten, and no draft stays."""
    commit(table.location, 1, [], "WRITE", "first")
    with pytest.raises(ConcurrentWriteError, match="written by another"):
        commit(table.location, 1, [], "WRITE", "second")
    assert '"first"' in log_entry(table.location, 1).read_text()
    names = sorted(path.name for path in Path(table.location, "_delta_log").iterdir())
    assert names == [f"{version:020d}.json" for version in (0, 1)]


RENAMER = """
import os, sys
for version, line in enumerate(sys.stdin, 1):
    draft = f"theirs{version}"
    open(draft, "w").write("{}")
    print("ready", flush=True)
    while not os.path.exists(line.strip()):
        pass
    os.rename(draft, line.strip())
"""


def test_a_version_that_is_replaced_is_noticed(table: LakeTable, tmp_path: Path) -> None:
    """Spark looks, then renames over what came in between: ours is not there any more.

    Another process replaces each version as soon as it is there.  It may come too late for the
    look after the commit, but hardly ten times in turn.
    """
    command = [sys.executable, "-c", RENAMER]
    pipe = subprocess.PIPE
    with (
        pytest.raises(ConcurrentWriteError),
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=tmp_path) as theirs,
    ):
        assert theirs.stdin is not None
        assert theirs.stdout is not None
        for version in range(1, 11):
            print(log_entry(table.location, version), file=theirs.stdin, flush=True)
            assert theirs.stdout.readline() == "ready\n"
            commit(table.location, version, [], "WRITE", "ours")


def test_damaged_vectors_are_noticed(table: LakeTable) -> None:
    """A flipped bit in a deletion vector is an error, never another set of rows."""
    [vector] = write_vectors(table.location, {"f": BitMap64([1, 2**33])}).values()
    assert read_vector(table.location, vector).tolist() == [1, 2**33]
    [path] = Path(table.location).glob("deletion_vector_*.bin")
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    with pytest.raises(TableStateError, match="damaged"):
        read_vector(table.location, vector)


def test_vectors_inside_the_log(table: LakeTable) -> None:
    """Other writers put small vectors into the log itself."""
    [vector] = write_vectors(table.location, {"f": BitMap64([7, 9])}).values()
    [path] = Path(table.location).glob("deletion_vector_*.bin")
    data = path.read_bytes()[5 : 5 + vector["sizeInBytes"]]
    padded = data + b"\0" * (-len(data) % 4)
    inline = {**vector, "storageType": "i", "pathOrInlineDv": encode_z85(padded)}
    assert decode_z85(inline["pathOrInlineDv"]) == padded
    assert read_vector(table.location, inline).tolist() == [7, 9]


def test_every_version_of_a_long_log_is_read_right(table: LakeTable) -> None:
    """Before, at and after its checkpoints a version has the files that deltalake finds."""
    head = table
    for number in range(2 * tables.CHECKPOINT_EVERY + 3):
        head = append(head, range(number, number + 2))
        if number % 3 == 0:
            head = change(head, {next(iter(files(head))): [0, 1]})
    assert head.version == head_version(table.location) == DeltaTable(table.location).version()
    assert physical_names(table.location) == {"id": "id", "n": "n"}
    for version in (0, 5, tables.CHECKPOINT_EVERY, tables.CHECKPOINT_EVERY + 7, head.version):
        assert version is not None
        found = DeltaTable(table.location, version=version).file_uris()
        mine = {file.path for file in data_files(table.location, version).values()}
        assert mine == {uri.rsplit("/", 1)[1] for uri in found}


def test_no_table_no_version(tmp_path: Path) -> None:
    """A folder without a log, or that is not there, has no head."""
    assert head_version(str(tmp_path)) is None
    assert head_version(str(tmp_path / "missing")) is None


def test_a_restore_over_a_checkpoint_names_no_file_twice(table: LakeTable) -> None:
    """A checkpoint writes a file with other fields; what stays goes neither out nor in again."""
    head = append(table, range(10))
    [path] = files(head)
    head = change(head, {path: [4]})
    while head.version != tables.CHECKPOINT_EVERY - 1:
        head = append(head, range(10))
    ahead = append(append(head, range(5)), range(5))
    pointer = Path(table.location, "_delta_log", "_last_checkpoint")
    entry = next(pointer.parent.glob("*.checkpoint.parquet"))
    checkpoint = pq.read_table(entry)
    adds = checkpoint.column("add").to_pylist(maps_as_pydicts="strict")
    other = [each and {**each, "dataChange": False} for each in adds]
    number = checkpoint.schema.get_field_index("add")
    column = pa.array(other, checkpoint.schema.field("add").type)
    pq.write_table(checkpoint.set_column(number, checkpoint.schema.field("add"), column), entry)
    assert head.version is not None and ahead.version is not None
    version = tables.restore(no_spark, table.location, head.version, "undone")
    actions = list(actions_of(table.location, version))
    assert [len([a for a in actions if kind in a]) for kind in ("remove", "add")] == [2, 0]
    assert left(dataclasses.replace(table, version=version)) == left(head)


def test_a_torn_pointer_is_only_a_hint(table: LakeTable) -> None:
    """Without a readable pointer to the last checkpoint the log is listed."""
    head = table
    while head.version != tables.CHECKPOINT_EVERY + 2:
        head = append(head, range(2))
    before = set(files(head))
    Path(table.location, "_delta_log", "_last_checkpoint").write_text("")
    assert head_version(table.location) == head.version
    assert set(files(head)) == before


def test_lines_of_the_log_end_with_line_feeds_only(tmp_path: Path) -> None:
    """Spark writes U+2028 into a string of the log as it is; it ends no line for JSON."""
    log = tmp_path / "_delta_log"
    log.mkdir()
    spoken = {"commitInfo": {"note": "a\u2028b\u0085c"}}
    text = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in (spoken, spoken))
    (log / f"{0:020d}.json").write_text(text, encoding="utf-8")
    assert list(actions_of(str(tmp_path), 0)) == [spoken, spoken]
