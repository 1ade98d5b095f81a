# SPDX-License-Identifier: Apache-2.0
"""Transactions that real publishers stream while they are in progress, up to their end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.client.receiver import Receiver, ReceiverState
from penstock.client.streamed import FOLDER
from penstock.staging.log import StagingLog
from tests.support.binaries import NEWEST
from tests.support.fix_servers import Database
from tests.support.streaming import Replay, Stream
from tests.support.waits import wait_until

VERSIONS = pytest.mark.parametrize("publisher", ["15", "16", NEWEST], indirect=True)
STREAMING = pytest.mark.parametrize("streaming", ["on", "parallel"])

IMMEDIATE = "debug_logical_replication_streaming=immediate"
"""The publisher's setting, since 16, that streams every single change."""

SCHEMA = """
CREATE TABLE one (id int PRIMARY KEY, v text);
CREATE TABLE two (id int PRIMARY KEY, v text);
CREATE TABLE unpublished (id int, v text);
CREATE PUBLICATION p FOR TABLE one, two;
"""

ROWS = "SELECT g, repeat(md5(g::text), 4) FROM generate_series({}, {}) g"

SAVEPOINTS = f"""
BEGIN;
INSERT INTO one {ROWS.format(1, 2000)};
SAVEPOINT a;
INSERT INTO two {ROWS.format(1, 2000)};
UPDATE one SET v = 'lost' WHERE id % 2 = 0;
ROLLBACK TO a;
INSERT INTO two {ROWS.format(3000, 4000)};
SAVEPOINT b;
UPDATE one SET v = 'kept' WHERE id % 3 = 0;
SAVEPOINT c;
DELETE FROM one WHERE id % 5 = 0;
ALTER TABLE two ADD gone text DEFAULT 'x';
INSERT INTO two {ROWS.format(5000, 6000)};
ROLLBACK TO c;
DELETE FROM two WHERE id % 7 = 0;
RELEASE b;
INSERT INTO one {ROWS.format(9000, 9500)};
COMMIT;
BEGIN;
INSERT INTO one {ROWS.format(20000, 22000)};
SAVEPOINT a;
TRUNCATE two;
ROLLBACK;
BEGIN;
INSERT INTO unpublished {ROWS.format(1, 3000)};
COMMIT;
BEGIN;
INSERT INTO one {ROWS.format(30000, 32000)};
ALTER TABLE one ADD more text DEFAULT 'd';
UPDATE one SET more = v WHERE id > 31000;
ALTER TABLE one DROP v;
INSERT INTO one SELECT g, 'new' FROM generate_series(40000, 42000) g;
COMMIT;
INSERT INTO one VALUES (50000, 'last');
"""

EXCEPTIONS = """
DO $$
BEGIN
    FOR number IN 1..300 LOOP
        BEGIN
            INSERT INTO one SELECT number * 100 + g, repeat(md5(g::text), 4)
            FROM generate_series(0, 19) g;
            IF number % 3 = 0 THEN
                RAISE 'undo this round';
            END IF;
        EXCEPTION WHEN raise_exception THEN
            INSERT INTO two VALUES (number, 'undone');
        END;
    END LOOP;
END $$
"""


@pytest.fixture
def stream(publisher_db: Database, tmp_path: Path) -> Stream:
    """A slot over two tables."""
    publisher_db.psql(SCHEMA)
    return Stream(publisher_db, tmp_path / "staging")


def select(database: Database, table: str) -> list[dict[str, Any]]:
    with database.connect() as connection:
        cursor = connection.execute(f"SELECT * FROM {table} ORDER BY id")
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def check_equal(stream: Stream, log: StagingLog) -> Replay:
    """What is staged is what the publisher holds, each change once and in order."""
    replay = Replay().apply(log.segments())
    for table in ("one", "two"):
        published = select(stream.database, table)
        names = set(published[0]) if published else set()
        staged = [
            {name: value for name, value in row.items() if name in names}
            for row in replay.rows(table)
        ]
        assert staged == published
    assert replay.keys == sorted(set(replay.keys))
    assert not list(stream.folder.glob(f"{FOLDER}/*"))
    return replay


@contextmanager
def transaction(database: Database) -> Iterator[psycopg.Connection[Any]]:
    """An open transaction of its own; rolled back at the end unless the block commits it."""
    connection = psycopg.connect(database.conninfo)
    try:
        yield connection
    finally:
        connection.close()


def await_spooled(stream: Stream, receiver: Receiver, count: int = 1) -> None:
    """Wait until something of so many transactions in progress has arrived."""

    def spooled() -> bool:
        receiver.check()
        return len(list(stream.folder.glob(f"{FOLDER}/*"))) == count

    wait_until(spooled, 20, f"{count} transactions to be spooled")


@STREAMING
@VERSIONS
def test_savepoints_ddl_and_rollbacks(stream: Stream, streaming: str) -> None:
    """Rolled back parts leave no trace, and each row has the definition of its moment."""
    log = StagingLog(stream.folder)
    with stream.receiver(log, conninfo=stream.eager(), streaming=streaming) as receiver:
        stream.database.psql(SAVEPOINTS)
        stream.await_staged(log, receiver)
        stream.await_streamed(3)  # 18 does not begin to stream what has been rolled back already
        replay = Replay().apply(log.segments())
        rows = {row["id"]: row for row in replay.rows("one")}
        published = {row["id"]: row for row in select(stream.database, "one")}
        assert rows.keys() == published.keys()
        assert {number: row.get("more") for number, row in rows.items() if number > 31000} == {
            number: row["more"] for number, row in published.items() if number > 31000
        }
        assert {row["v"] for row in rows.values() if row["id"] < 2000 and row["id"] % 3 == 0} == {
            "kept"
        }
        assert "lost" not in {row.get("v") for row in rows.values()}
        assert replay.rows("two") == select(stream.database, "two")
        assert replay.keys == sorted(set(replay.keys))
        assert not list(stream.folder.glob(f"{FOLDER}/*"))


@VERSIONS
def test_subtransactions_that_fail_in_a_loop(stream: Stream) -> None:
    """Hundreds of subtransactions, a third of them undone."""
    log = StagingLog(stream.folder)
    with stream.receiver(log, conninfo=stream.eager(), streaming="parallel") as receiver:
        stream.database.psql(EXCEPTIONS)
        stream.await_staged(log, receiver)
        stream.await_streamed()
        replay = check_equal(stream, log)
    assert len(replay.rows("one")) == 4000
    assert len(replay.rows("two")) == 100


@pytest.mark.parametrize("publisher", ["16", NEWEST], indirect=True)
def test_every_change_streamed_at_once(stream: Stream) -> None:
    """A publisher that streams each change by itself: blocks of one row, aborts of each kind."""
    log = StagingLog(stream.folder)
    with stream.receiver(log, conninfo=stream.eager(IMMEDIATE), streaming="parallel") as receiver:
        stream.database.psql("INSERT INTO one VALUES (-1, 'small')")
        stream.database.psql(EXCEPTIONS)
        stream.await_staged(log, receiver, timeout=60)
        replay = check_equal(stream, log)
    assert len(replay.rows("one")) == 4001


@STREAMING
@VERSIONS
def test_transactions_in_progress_side_by_side(stream: Stream, streaming: str) -> None:
    """Two that commit and one that does not, their blocks mixed, small commits in between."""
    log = StagingLog(stream.folder)
    db = stream.database
    with (
        stream.receiver(log, conninfo=stream.eager(), streaming=streaming) as receiver,
        transaction(db) as first,
        transaction(db) as second,
        transaction(db) as third,
    ):
        for part in range(5):
            begin = part * 10000
            first.execute(f"INSERT INTO one {ROWS.format(begin, begin + 700)}".encode())
            second.execute(f"INSERT INTO two {ROWS.format(begin, begin + 700)}".encode())
            third.execute(f"INSERT INTO one {ROWS.format(begin + 5000, begin + 5700)}".encode())
            db.psql(f"INSERT INTO two VALUES ({begin + 5000}, 'small')")
        await_spooled(stream, receiver, 3)
        stream.await_staged(log, receiver)
        assert [row["v"] for row in Replay().apply(log.segments()).rows("two")] == ["small"] * 5
        second.execute("UPDATE two SET v = 'changed' WHERE id % 2 = 0 AND id < 5000")
        second.commit()
        db.psql("UPDATE two SET v = 'after' WHERE id = 10")
        third.rollback()
        first.commit()
        stream.await_staged(log, receiver)
        stream.await_streamed(3)
        replay = check_equal(stream, log)
    assert {row["v"] for row in replay.rows("two") if row["id"] == 10} == {"after"}


@VERSIONS
def test_a_connection_lost_while_a_transaction_is_in_progress(stream: Stream) -> None:
    """What has arrived of it is dropped, and all of it comes again, although the slot went on.

    An idle position is confirmed between its blocks, as PostgreSQL's own subscriber does.
    """
    log = StagingLog(stream.folder)
    db = stream.database
    with transaction(db) as open_transaction:
        with stream.receiver(log, conninfo=stream.eager(), streaming="on") as receiver:
            open_transaction.execute(f"INSERT INTO one {ROWS.format(1, 3000)}".encode())
            db.psql("INSERT INTO two VALUES (1, 'x')")
            await_spooled(stream, receiver)
            db.psql(f"INSERT INTO unpublished {ROWS.format(1, 100)}")
            position = db.psql("SELECT pg_current_wal_lsn()")
            flushed = f"confirmed_flush_lsn >= '{position}'"
            wait_until(lambda: stream.slot(flushed), 20, "the slot to advance")
            db.psql(f"SELECT pg_terminate_backend({stream.slot('active_pid')})")
            wait_until(lambda: receiver.state is ReceiverState.FAILED, 20, "the receiver to end")
        assert not list(stream.folder.glob(f"{FOLDER}/*"))
        again = StagingLog(stream.folder)
        with stream.receiver(again, conninfo=stream.eager(), streaming="on") as receiver:
            open_transaction.execute(f"INSERT INTO one {ROWS.format(5000, 8000)}".encode())
            await_spooled(stream, receiver)
            open_transaction.commit()
            stream.await_staged(again, receiver)
            check_equal(stream, again)


def test_a_spool_that_a_killed_process_left(stream: Stream) -> None:
    """It is removed at the next start; nothing reads it."""
    (stream.folder / FOLDER).mkdir(parents=True)
    (stream.folder / FOLDER / "700.spool").write_bytes(b"rubbish")
    log = StagingLog(stream.folder)
    with stream.receiver(log, conninfo=stream.eager(), streaming="parallel") as receiver:
        stream.database.psql(f"INSERT INTO one {ROWS.format(1, 3000)}")
        stream.await_staged(log, receiver)
        check_equal(stream, log)


def test_stop_in_the_middle_of_a_transaction(stream: Stream) -> None:
    """Stopping does not wait for its end; the next receiver stages it whole."""
    log = StagingLog(stream.folder)
    with transaction(stream.database) as open_transaction:
        with stream.receiver(log, conninfo=stream.eager(), streaming="parallel") as receiver:
            open_transaction.execute(f"INSERT INTO one {ROWS.format(1, 3000)}".encode())
            await_spooled(stream, receiver)
        assert receiver.state is ReceiverState.STOPPED
        assert log.segments() == ()
        open_transaction.commit()
    with stream.receiver(log, conninfo=stream.eager(), streaming="parallel") as receiver:
        stream.await_staged(log, receiver)
        check_equal(stream, log)


@pytest.fixture
def origin(publisher_db: Database) -> Iterator[str]:
    """A replication origin on the publisher; its changes come from elsewhere."""
    name = f"elsewhere_{publisher_db.name}"
    publisher_db.psql(f"SELECT pg_replication_origin_create('{name}')")
    yield name
    publisher_db.psql(f"SELECT pg_replication_origin_drop('{name}')")


def receiving(
    stream: Stream, log: StagingLog, streaming: str, origin: str
) -> AbstractContextManager[Receiver]:
    return stream.receiver(log, conninfo=stream.eager(), streaming=streaming, origin=origin)


@pytest.mark.parametrize("streaming", ["off", "parallel"])
@VERSIONS
def test_changes_of_another_origin(stream: Stream, origin: str, streaming: str) -> None:
    """With origin = none they are not sent; a publisher before 16 sends them all the same.

    This is what PostgreSQL's own subscriber does with such a publisher.
    """
    log = StagingLog(stream.folder)
    with receiving(stream, log, streaming, "none") as receiver:
        stream.database.psql(f"""
            SELECT pg_replication_origin_session_setup('{origin}');
            INSERT INTO one {ROWS.format(1, 2000)};
            INSERT INTO two VALUES (1, 'from elsewhere');
        """)
        stream.database.psql(f"INSERT INTO one {ROWS.format(5000, 7000)}")
        stream.database.psql("INSERT INTO two VALUES (2, 'own')")
        stream.await_staged(log, receiver)
    replay = Replay().apply(log.segments())
    old = stream.database.server.version == "15"
    assert [row["id"] for row in replay.rows("two")] == ([1, 2] if old else [2])
    assert len(replay.rows("one")) == (4001 if old else 2001)
    with receiving(stream, log, streaming, "any") as receiver:
        stream.database.psql(f"""
            SELECT pg_replication_origin_session_setup('{origin}');
            INSERT INTO one {ROWS.format(8000, 9999)};
        """)
        stream.await_staged(log, receiver)
    assert len(Replay().apply(log.segments()).rows("one")) == (6001 if old else 4001)
