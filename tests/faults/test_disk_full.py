# SPDX-License-Identifier: Apache-2.0
"""A full disk below staging: nothing is confirmed that is not durable, and it goes on with room.

The disk is a small tmpfs, so this needs root and a machine that lets root mount.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client.receiver import Receiver, ReceiverState
from penstock.errors import DiskFullError
from penstock.staging.log import StagingLog
from tests.support.fix_servers import Database
from tests.support.streaming import Replay, Stream
from tests.support.waits import wait_until

DISK = 4 * 1024 * 1024  # bytes


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of DISK bytes."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"this machine does not let root mount a tmpfs: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def stream(publisher_db: Database, disk: Path) -> Stream:
    """A slot whose staging is on the small disk."""
    publisher_db.psql(
        "CREATE TABLE t (id int PRIMARY KEY, v bytea); CREATE PUBLICATION p FOR TABLE t"
    )
    return Stream(publisher_db, disk / "staging")


def insert(stream: Stream, first: int, rows: int) -> None:
    """Transactions of a row each; a row is 100 kB that cannot be compressed."""
    stream.database.psql(
        "".join(
            f"INSERT INTO t SELECT {n}, string_agg(sha512((random() || '-' || g)::bytea), '')"
            " FROM generate_series(1, 1600) g;"
            for n in range(first, first + rows)
        )
    )


def fill(disk: Path) -> Path:
    """Use up all the room that is left, in a file."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return filler
    raise AssertionError("the disk is not full")


def staged_ids(log: StagingLog) -> list[int]:
    """The rows that staging has."""
    return [row["id"] for row in Replay().apply(log.segments()).rows("t")]


def confirmed(stream: Stream) -> int:
    """The slot's confirmed_flush_lsn as a number."""
    position: int = stream.slot("(confirmed_flush_lsn - '0/0')::bigint")
    return position


def test_staging_without_room(stream: Stream, disk: Path) -> None:
    """The stream stops by name, the slot stays at what is durable, and then all of it comes."""
    log = StagingLog(stream.folder)
    with stream.receiver(log) as receiver:
        insert(stream, 0, 5)
        stream.await_staged(log, receiver)
        before = stream.wal_position()
        filler = fill(disk)
        insert(stream, 100, 10)
        wait_until(lambda: receiver.state is ReceiverState.FAILED, 30, "the stream to stop")
        with pytest.raises(DiskFullError) as caught:
            receiver.check()
    assert caught.value.sqlstate == "53100"
    assert str(stream.folder) in (caught.value.detail or "")
    assert "until there is room again" in (caught.value.hint or "")
    durable = StagingLog(stream.folder)
    assert log.end_lsn == durable.end_lsn <= before
    assert staged_ids(durable) == list(range(5))
    assert confirmed(stream) <= durable.end_lsn
    filler.unlink()
    with stream.receiver(durable) as receiver:
        stream.await_staged(durable, receiver)
    assert staged_ids(durable) == [*range(5), *range(100, 110)]


@pytest.mark.parametrize("room", [0, 4096])
def test_no_room_at_the_first_start(stream: Stream, disk: Path, room: int) -> None:
    """Without room for the first position, or only for it, a later start works all the same."""
    stream.folder.mkdir()
    filler = fill(disk)
    os.truncate(filler, filler.stat().st_size - room)
    receiver = Receiver(stream.options, StagingLog(stream.folder), lambda: 0)
    with pytest.raises(DiskFullError):
        receiver.start()
    receiver.stop()
    filler.unlink()
    log = StagingLog(stream.folder)
    with stream.receiver(log) as again:
        insert(stream, 0, 1)
        stream.await_staged(log, again)
    assert staged_ids(log) == [0]
