# SPDX-License-Identifier: Apache-2.0
"""Prepared transactions of real publishers: durable at PREPARE, staged at COMMIT PREPARED."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from penstock.client.prepared import FOLDER
from penstock.client.receiver import Receiver
from penstock.staging.log import StagingLog
from tests.support.binaries import NEWEST
from tests.support.fix_servers import Database
from tests.support.streaming import Replay, Stream
from tests.support.waits import wait_until

VERSIONS = pytest.mark.parametrize("publisher", ["15", "16", NEWEST], indirect=True)
STREAMING = pytest.mark.parametrize("streaming", ["off", "on", "parallel"])

ROWS = "SELECT g, repeat(md5(g::text), 4) FROM generate_series({}, {}) g"


@pytest.fixture
def stream(publisher_db: Database, tmp_path: Path) -> Stream:
    """A slot over one table."""
    publisher_db.psql(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR ALL TABLES"
    )
    return Stream(publisher_db, tmp_path / "staging")


def ids(log: StagingLog) -> list[int]:
    return [row["id"] for row in Replay().apply(log.segments()).rows("t")]


def kept(stream: Stream) -> int:
    return len(list(stream.folder.glob(f"{FOLDER}/*.spool")))


def receiving(
    stream: Stream, log: StagingLog, streaming: str, enable_two_phase: bool
) -> AbstractContextManager[Receiver]:
    return stream.receiver(
        log, conninfo=stream.eager(), streaming=streaming, enable_two_phase=enable_two_phase
    )


@STREAMING
@VERSIONS
def test_a_prepared_transaction(stream: Stream, streaming: str) -> None:
    """Its rows are confirmed at PREPARE, outlive every restart, and come at COMMIT PREPARED."""
    db, log = stream.database, StagingLog(stream.folder)
    name, other = f"{db.name}_a", f"{db.name}_b"
    with receiving(stream, log, streaming, True) as receiver:
        db.psql("INSERT INTO t VALUES (1, 'one')")
        db.psql(f"""
            BEGIN; INSERT INTO t {ROWS.format(1001, 3000)}; SAVEPOINT s;
            INSERT INTO t {ROWS.format(5001, 7000)}; ROLLBACK TO s;
            INSERT INTO t VALUES (2, 'two'); PREPARE TRANSACTION '{name}';
            BEGIN; INSERT INTO t {ROWS.format(8001, 9000)}; PREPARE TRANSACTION '{other}';
            INSERT INTO t VALUES (3, 'three');
        """)
        stream.await_staged(log, receiver)
        assert ids(log) == [1, 3]
        assert kept(stream) == 2
        position = stream.wal_position()
        wait_until(
            lambda: stream.slot("confirmed_flush_lsn - '0/0'") >= position, 20, "PREPARE confirmed"
        )
    again = StagingLog(stream.folder)
    with receiving(stream, again, streaming, False) as receiver:
        db.psql("INSERT INTO t VALUES (4, 'four')")
        db.psql(f"COMMIT PREPARED '{name}'")
        db.psql("UPDATE t SET v = 'five' WHERE id = 1001")
        db.psql(f"ROLLBACK PREPARED '{other}'")
        stream.await_staged(again, receiver)
        wait_until(lambda: kept(stream) == 0, 20, "nothing to be prepared any more")
    replay = Replay().apply(again.segments())
    assert [row["id"] for row in replay.rows("t")] == [1, 2, 3, 4, *range(1001, 3001)]
    assert replay.rows("t")[4]["v"] == "five"
    assert replay.keys == sorted(set(replay.keys))


@VERSIONS
def test_prepared_before_two_phase_was_enabled(stream: Stream) -> None:
    """A transaction that was prepared before comes at its COMMIT PREPARED, once."""
    db, log = stream.database, StagingLog(stream.folder)
    name = f"{db.name}_early"
    with stream.receiver(log) as receiver:
        db.psql(f"BEGIN; INSERT INTO t VALUES (1, 'x'); PREPARE TRANSACTION '{name}'")
        stream.await_staged(log, receiver)
    assert kept(stream) == 0
    with stream.receiver(log, enable_two_phase=True) as receiver:
        db.psql("INSERT INTO t VALUES (2, 'y')")
        stream.await_staged(log, receiver)
        db.psql(f"COMMIT PREPARED '{name}'")
        stream.await_staged(log, receiver)
    replay = Replay().apply(log.segments())
    assert [row["id"] for row in replay.rows("t")] == [1, 2]
    assert replay.keys == sorted(set(replay.keys))
