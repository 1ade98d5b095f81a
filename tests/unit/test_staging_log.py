# SPDX-License-Identifier: Apache-2.0
"""The staging log: what was appended is there after a crash, what was not is gone."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from penstock.apply.batch import TableBatch
from penstock.change import types
from penstock.change.relation import Column, Relation
from penstock.change.schema import change_schema
from penstock.errors import DiskFullError, StagingError
from penstock.pgoutput.decode import Decoded, Decoder
from penstock.staging.log import StagingLog
from penstock.staging.segment import ChangeFile, Segment
from tests.support import pgoutput_bytes as wire

ID = Column("id", types.INT4, -1, key=True)
NUMERIC = Column('odd "näme"', types.NUMERIC, (12 << 16 | 2) + 4, key=False)
T1 = Relation(101, "public", "t1", "d", (ID,))
T2 = Relation(102, "s", "t2", "f", (ID, NUMERIC))


class Publisher:
    """Sends transactions at given positions; each has a row for both tables."""

    def __init__(self) -> None:
        self.decoder = Decoder()
        self.feed(wire.describe(T1), wire.describe(T2))

    def feed(self, *messages: bytes) -> Decoded:
        return self.decoder.feed(*wire.framed(messages))

    def transaction(self, lsn: int) -> Decoded:
        rows = [wire.insert(101, [str(lsn)]), wire.update(102, [str(lsn), "1.5"])]
        return self.feed(*wire.transaction(lsn, *rows))


def ids(file: ChangeFile) -> list[int]:
    table = pq.read_table(file.path)
    assert table.schema.equals(change_schema(file.relation))
    found: list[int] = table["new"].combine_chunks().field("id").to_pylist()
    return found


def test_a_segment_survives_reopening(tmp_path: Path) -> None:
    """Another process finds the same segment, with its relations, counts and rows."""
    log = StagingLog(tmp_path / "1")
    segment = log.append(Publisher().transaction(8))
    assert segment is not None
    assert (segment.first_commit_lsn, segment.last_commit_lsn, segment.end_lsn) == (8, 8, 16)
    assert (segment.transactions, segment.commit_time_us) == (1, 946_684_800_000_000)
    assert [(f.relation, f.rows, f.inserts, f.updates) for f in segment.files] == [
        (T1, 1, 1, 0),
        (T2, 1, 0, 1),
    ]
    again = StagingLog(tmp_path / "1")
    assert again.segments() == (segment,)
    assert again.end_lsn == 16
    assert [ids(file) for file in segment.files] == [[8], [8]]


def test_a_segment_knows_where_identity_restarts(tmp_path: Path) -> None:
    """After reopening, too; the batches of a table that such a transaction is in say so."""
    publisher = Publisher()
    truncates = [
        *wire.transaction(8, wire.truncate(101, flags=2)),
        *wire.transaction(24, wire.truncate(101, 102)),
    ]
    StagingLog(tmp_path).append(publisher.feed(*truncates))
    [segment] = StagingLog(tmp_path).segments()
    assert [(f.relation, f.truncates, f.restarts) for f in segment.files] == [
        (T1, 2, (8,)),
        (T2, 1, ()),
    ]
    assert TableBatch(segment.files[:1], 0, 8).restarts
    assert not TableBatch(segment.files[:1], 9, 24).restarts
    assert not TableBatch(segment.files[1:], 0, 24).restarts


def test_a_segment_knows_its_transactions(tmp_path: Path) -> None:
    """Position, end, time and xid of each, after reopening, too; also those without rows."""
    publisher = Publisher()
    rows = [wire.insert(101, ["1"])]
    decoded = publisher.feed(
        *wire.transaction(8, *rows), *wire.transaction(24), *wire.transaction(40, *rows)
    )
    segment = StagingLog(tmp_path).append(decoded)
    assert segment is not None and segment.transactions == 3
    [again] = StagingLog(tmp_path).segments()
    assert again.transaction_rows().tolist() == decoded.transactions.tolist()
    assert again.transaction_rows()[:, 0].tolist() == [8, 24, 40]


def test_segments_after_a_position(tmp_path: Path) -> None:
    """A reader gets what ends after its position, in commit order."""
    log, publisher = StagingLog(tmp_path), Publisher()
    for lsn in (8, 24, 40):
        log.append(publisher.transaction(lsn))
    assert [s.end_lsn for s in log.segments()] == [16, 32, 48]
    assert [s.end_lsn for s in log.segments(16)] == [32, 48]
    assert log.segments(48) == ()
    assert log.bytes == sum(s.bytes for s in log.segments())


def test_what_a_crash_left_is_removed(tmp_path: Path) -> None:
    """Files without a manifest are not part of the log."""
    log, publisher = StagingLog(tmp_path), Publisher()
    log.append(publisher.transaction(8))
    log.append(publisher.feed(wire.begin(24), wire.insert(101, ["1"])))
    (tmp_path / f"{24:016X}.json.tmp").write_bytes(b"{")
    kept = {Path(file.path).name for segment in log.segments() for file in segment.files}
    assert StagingLog(tmp_path).end_lsn == 16
    assert {path.name for path in tmp_path.iterdir()} == {*kept, f"{8:016X}.json"}


def test_a_transaction_in_pieces_is_one_segment(tmp_path: Path) -> None:
    """Nothing exists before its end was appended; then it is a whole."""
    log, publisher = StagingLog(tmp_path), Publisher()
    assert log.append(publisher.feed(wire.begin(8), wire.insert(101, ["1"]))) is None
    assert log.append(publisher.feed(wire.insert(101, ["2"]))) is None
    assert (log.segments(), log.end_lsn) == ((), 0)
    segment = log.append(publisher.feed(wire.insert(101, ["3"]), wire.commit(8, 16)))
    assert segment is not None
    assert [ids(file) for file in segment.files] == [[1], [2], [3]]
    assert StagingLog(tmp_path).segments() == (segment,)


def test_an_open_transaction_can_be_forgotten(tmp_path: Path) -> None:
    """After a lost connection the transaction comes again from its beginning."""
    log, publisher = StagingLog(tmp_path), Publisher()
    log.append(publisher.feed(wire.begin(8), wire.insert(101, ["1"])))
    log.forget_open()
    assert list(tmp_path.iterdir()) == []
    segment = log.append(Publisher().transaction(8))
    assert segment is not None
    assert [ids(file) for file in segment.files] == [[8], [8]]


def test_transactions_without_rows_advance_the_log(tmp_path: Path) -> None:
    """A transaction that changed nothing of ours has a segment without files."""
    log = StagingLog(tmp_path)
    segment = log.append(Publisher().feed(*wire.transaction(8)))
    assert segment is not None
    assert segment.files == ()
    assert StagingLog(tmp_path).end_lsn == 16
    assert log.append(Publisher().feed()) is None


def test_a_staged_transaction_is_refused(tmp_path: Path) -> None:
    """The same transaction cannot be staged twice."""
    log = StagingLog(tmp_path)
    log.append(Publisher().transaction(8))
    with pytest.raises(StagingError, match="staged already"):
        log.append(Publisher().transaction(8))
    assert len(log.segments()) == 1


def test_trim_deletes_whole_segments(tmp_path: Path) -> None:
    """What ends at or before the position goes, the end of the log stays known."""
    log, publisher = StagingLog(tmp_path), Publisher()
    for lsn in (8, 24, 40):
        log.append(publisher.transaction(lsn))
    log.trim(40)
    assert [s.end_lsn for s in log.segments()] == [48]
    log.trim(48)
    assert [path.name for path in tmp_path.iterdir()] == ["position"]
    assert (log.end_lsn, StagingLog(tmp_path).end_lsn) == (48, 48)


def test_advance_is_remembered(tmp_path: Path) -> None:
    """A confirmed position of an idle publisher is known after a restart; it never goes back."""
    log = StagingLog(tmp_path)
    log.advance(0x1600000000)
    log.advance(5)
    assert (log.end_lsn, StagingLog(tmp_path).end_lsn) == (0x1600000000, 0x1600000000)
    assert not log.wait(0, timeout=0)


def test_a_wake_is_not_lost(tmp_path: Path) -> None:
    """It ends the wait that follows, and only that one."""
    log = StagingLog(tmp_path / "1")
    log.wake()
    assert log.wait(0, timeout=60)
    assert not log.wait(0, timeout=0)


def test_wait_sees_a_new_segment(tmp_path: Path) -> None:
    """A reader that waits is woken by the segment, not by the clock."""
    log, publisher = StagingLog(tmp_path), Publisher()
    assert not log.wait(0, timeout=0)
    seen: list[bool] = []
    reader = threading.Thread(target=lambda: seen.append(log.wait(0, timeout=60)))
    reader.start()
    log.append(publisher.transaction(8))
    reader.join(60)
    assert seen == [True]


@pytest.mark.parametrize("damage", ["missing", "short", "manifest"])
def test_damage_is_found(tmp_path: Path, damage: str) -> None:
    """A log whose files are not as recorded is refused, not read in part."""
    segment = StagingLog(tmp_path).append(Publisher().transaction(8))
    assert segment is not None
    if damage == "missing":
        Path(segment.files[0].path).unlink()
    elif damage == "short":
        os.truncate(segment.files[0].path, 10)
    else:
        (tmp_path / f"{8:016X}.json").write_text('{"format": 1}')
    with pytest.raises(StagingError):
        StagingLog(tmp_path)


@contextmanager
def no_room_for_files_above(size: int) -> Iterator[None]:
    """Let the operating system refuse to make any file of this process larger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 1000])
def test_no_room_leaves_the_log_valid(tmp_path: Path, size: int) -> None:
    """A full disk is a named error; the log is as before and goes on when there is room."""
    log, publisher = StagingLog(tmp_path), Publisher()
    first = log.append(publisher.transaction(8))
    change = publisher.transaction(24)
    with no_room_for_files_above(size), pytest.raises(DiskFullError):
        log.append(change)
    assert log.segments() == StagingLog(tmp_path).segments() == (first,)
    second = log.append(change)
    assert StagingLog(tmp_path).segments() == (first, second)


def test_no_room_for_the_first_position(tmp_path: Path) -> None:
    """A position that could not be recorded leaves a log that can be opened, without it."""
    with no_room_for_files_above(0), pytest.raises(DiskFullError):
        StagingLog(tmp_path).advance(8)
    log = StagingLog(tmp_path)
    assert log.end_lsn == 0
    log.advance(8)
    assert StagingLog(tmp_path).end_lsn == 8


def test_what_was_not_staged_has_no_manifest(tmp_path: Path) -> None:
    """Files that the log does not know go together with the manifest that names them."""
    log, publisher = StagingLog(tmp_path), Publisher()
    first = log.append(publisher.transaction(8))
    assert StagingLog(tmp_path).append(publisher.transaction(24)) is not None
    log.forget_open()
    assert StagingLog(tmp_path).segments() == log.segments() == (first,)


CRASH = """
import sys
from pathlib import Path
from tests.unit.test_staging_log import Publisher
from penstock.staging.log import StagingLog
log, publisher = StagingLog(Path(sys.argv[1])), Publisher()
log.append(publisher.transaction(8))
log.append(publisher.transaction(24))
"""


@pytest.mark.parametrize(
    ("failpoint", "staged"),
    [
        ("staging_segment_written:3", [16]),
        ("staging_segment_synced:2", [16]),
        ("staging_segment_registered:2", [16, 32]),
    ],
)
def test_kill_during_append(tmp_path: Path, failpoint: str, staged: list[int]) -> None:
    """SIGKILL at any place leaves whole segments, and the log goes on from there."""
    env = {**os.environ, "PENSTOCK_FAILPOINT": failpoint, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", CRASH, tmp_path], env=env, check=False)
    assert done.returncode == -9
    log = StagingLog(tmp_path)
    assert [s.end_lsn for s in log.segments()] == staged
    assert isinstance(log.append(Publisher().transaction(40)), Segment)
