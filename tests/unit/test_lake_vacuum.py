# SPDX-License-Identifier: Apache-2.0
"""Which files of a table nobody needs any more, and which log entries."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.change import types
from penstock.change.relation import LakeColumn, LakeTable
from penstock.lake import tables
from penstock.lake.checksum import write_checksum
from penstock.lake.difference import difference
from penstock.lake.files import write_file
from penstock.lake.log import actions_of, commit, contents, data_files, latest_action
from penstock.lake.vacuum import (
    FILES_KEPT,
    LOG_KEPT,
    clean_log,
    expired_files,
    needed_files,
    remove_files,
    retention,
)
from tests.support.no_spark import no_spark

DAY = 86400


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    """An empty table at version 0."""
    columns = (LakeColumn(1, "id", types.INT8, -1, True),)
    made = LakeTable(1, "public", "t", "r", "d", columns, ("id",), str(tmp_path / "t"), None, None)
    return at(made, tables.create(no_spark, made, "m"))


def at(table: LakeTable, version: int) -> LakeTable:
    """The table with this version committed."""
    return dataclasses.replace(table, version=version)


def append(table: LakeTable, rows: int = 4) -> LakeTable:
    """One more file."""
    file = write_file(pa.table({"id": pa.array(range(rows), pa.int64())}), table.location)
    return at(table, tables.append_files(table, [file], "m"))


def age(table: LakeTable, days: float) -> None:
    """All files of the table, and of its log, were written so many days ago."""
    then = time.time() - days * DAY
    for path in Path(table.location).rglob("*.*"):
        os.utime(path, (then, then))


def removed_days_ago(table: LakeTable, days: float) -> LakeTable:
    """All files are removed by a commit of that day."""
    assert table.version is not None
    then = int((time.time() - days * DAY) * 1000)
    actions = [file.removed(then) for file in data_files(table.location, table.version).values()]
    return at(table, tables.commit_actions(table, actions, "TRUNCATE", "m"))


def set_retention(table: LakeTable, text: str) -> None:
    """Version 1 has this retention of files; Delta's default when it is empty."""
    metadata = json.loads(json.dumps(latest_action(table.location, 0, "metaData")))
    if text:
        metadata["configuration"][FILES_KEPT[0]] = text
    commit(table.location, 1, [{"metaData": metadata}], "SET TBLPROPERTIES", "m")


def test_what_expires(table: LakeTable) -> None:
    """By age since removal; files without a commit by age; what counts never."""
    table = append(table)
    [old] = data_files(table.location, 1)
    table = removed_days_ago(table, 8)
    table = append(table)
    [recent] = data_files(table.location, 3)
    table = removed_days_ago(table, 6)
    table = append(append(table))
    [counts, masked] = data_files(table.location, 6)
    table = at(table, tables.change_rows(table, {masked: np.array([1], np.uint64)}, [], "m"))
    first_vector = {path.name for path in Path(table.location).glob("*.bin")}
    table = at(table, tables.change_rows(table, {masked: np.array([2], np.uint64)}, [], "m"))
    orphan = write_file(pa.table({"id": [1]}), table.location).path
    age(table, 30)
    assert set(expired_files(table, set())) == {old, orphan}
    assert Path(table.location, recent).exists() and first_vector
    Path(table.location, orphan).touch()
    assert expired_files(table, set()) == [old]
    # A checkpoint must keep the memory of what was removed lately.
    while table.version is None or table.version < tables.CHECKPOINT_EVERY:
        table = append(table)
    age(table, 30)
    for entry in Path(table.location, "_delta_log").glob("*.json"):
        if int(entry.stem) < tables.CHECKPOINT_EVERY:
            entry.unlink()
    found = set(expired_files(table, set()))
    assert found == {old, orphan}, (recent, first_vector)
    assert counts not in found


def test_what_a_slot_needs_stays(table: LakeTable) -> None:
    """However old: each version from the one on can be told from the one before it."""
    set_retention(table, "interval 0 hours")
    table = append(at(table, 1))
    [old] = data_files(table.location, 2)
    table = at(table, tables.change_rows(table, {old: np.array([1], np.uint64)}, [], "m"))
    table = at(table, tables.change_rows(table, {old: np.array([2], np.uint64)}, [], "m"))
    table = append(removed_days_ago(table, 0))
    age(table, 40)
    assert table.version == 6
    for first, count in ((2, 0), (3, 0), (4, 1), (5, 3), (6, 3)):
        expired = expired_files(table, needed_files(table.location, first, table.version))
        assert len(expired) == count
    remove_files(table, expired_files(table, needed_files(table.location, 3, table.version)))
    assert len(difference(table.location, 4).gone) == 1
    assert difference(table.location, 5).truncated
    remove_files(table, expired_files(table, needed_files(table.location, 5, table.version)))
    assert not Path(table.location, old).exists()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("interval 2 days", 2 * DAY),
        ("interval 1 week", 7 * DAY),
        ("INTERVAL 1 day 12 hours", 1.5 * DAY),
        ("interval 0 hours", 0),
        ("", 7 * DAY),
    ],
)
def test_the_property_of_a_table(table: LakeTable, text: str, seconds: float) -> None:
    """Delta's intervals, and its default."""
    set_retention(table, text)
    assert retention(at(table, 1), FILES_KEPT) == seconds
    assert retention(at(table, 1), LOG_KEPT) == 30 * DAY


def test_old_log_entries_go(table: LakeTable) -> None:
    """All that the version needs stays, whatever its age; without a checkpoint nothing goes."""
    table = append(table)
    assert not clean_log(table, table.version or 0)
    age(table, 40)
    clean_log(table, table.version or 0)
    assert list(actions_of(table.location, 0))
    while table.version is None or table.version < 2 * tables.CHECKPOINT_EVERY + 2:
        table = append(table)
    before = set(data_files(table.location, table.version))
    for version in (0, 1, table.version):
        write_checksum(table.location, version, contents(table.location, version))
    age(table, 40)
    assert not clean_log(table, table.version - 1)
    assert clean_log(table, table.version)
    left = sorted(int(p.stem) for p in Path(table.location, "_delta_log").glob("*.json"))
    assert left == list(range(2 * tables.CHECKPOINT_EVERY, table.version + 1))
    checksums = [int(p.stem) for p in Path(table.location, "_delta_log").glob("*.crc")]
    assert checksums == [table.version]
    assert set(data_files(table.location, table.version)) == before
    rows = pa.table(DeltaTable(table.location, version=table.version).scan()).num_rows
    assert rows == 4 * len(before)
