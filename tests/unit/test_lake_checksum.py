# SPDX-License-Identifier: Apache-2.0
"""Checksum files of Delta's log; that Delta reads them as its own is in spark/test_lake_scan.py."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from penstock.lake.checksum import write_checksum
from penstock.lake.log import commit, contents, latest_action


@contextmanager
def no_room() -> Iterator[None]:
    """No file can be written further than some bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def table(folder: Path) -> tuple[str, Path]:
    """A table with version 0, and where the log is."""
    write_deltalake(folder, pa.table({"id": [1, 2, 3]}))
    return str(folder), folder / "_delta_log"


def test_without_room_there_is_none(tmp_path: Path) -> None:
    """It is no error, nothing half is left, and the next query writes it."""
    location, log = table(tmp_path / "t")
    found = contents(location, 0)
    before = set(log.iterdir())
    with no_room():
        write_checksum(location, 0, found)
    assert set(log.iterdir()) == before
    write_checksum(location, 0, found)
    told = json.loads((log / f"{0:020d}.crc").read_text())
    assert told["numFiles"] == 1
    assert told["metadata"] == latest_action(location, 0, "metaData")


def test_a_table_whose_checksum_has_more_in_it_has_none(tmp_path: Path) -> None:
    """Of features that it would have to tell of, such as commit times in the log."""
    location, log = table(tmp_path / "t")
    protocol = {
        "minReaderVersion": 1,
        "minWriterVersion": 7,
        "writerFeatures": ["appendOnly", "inCommitTimestamp"],
    }
    commit(location, 1, [{"protocol": protocol}], "UPGRADE PROTOCOL", "m")
    write_checksum(location, 1, contents(location, 1))
    assert not list(log.glob("*.crc"))


def test_what_is_there_stays(tmp_path: Path) -> None:
    """Spark's own may say more."""
    location, log = table(tmp_path / "t")
    path = log / f"{0:020d}.crc"
    path.write_text("of somebody else")
    write_checksum(location, 0, contents(location, 0))
    assert path.read_text() == "of somebody else"
