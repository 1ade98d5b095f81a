# SPDX-License-Identifier: Apache-2.0
"""kill -9 at each step from received bytes to a staged segment: every change is staged once.

A receiver is a process of its own here, without a node, so that a kill costs no JVM.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from itertools import count
from pathlib import Path

from penstock.failpoints import Failpoint
from penstock.staging.log import StagingLog
from tests.support.fix_servers import Database
from tests.support.streaming import Replay, Stream
from tests.support.waits import wait_until

IN_STAGING = [
    Failpoint.STREAM_BYTES_RECEIVED,
    Failpoint.STAGING_SEGMENT_WRITTEN,
    Failpoint.STAGING_SEGMENT_SYNCED,
    Failpoint.STAGING_SEGMENT_REGISTERED,
]


def test_kill_during_staging(publisher_db: Database, tmp_path: Path) -> None:
    """What was confirmed is staged, what was not comes again; nothing is lost, nothing twice."""
    publisher_db.psql(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY, v text);"
        "CREATE PUBLICATION p FOR TABLE a, b"
    )
    stream = Stream(publisher_db, tmp_path / "staging")
    points = [f"{point}{times}" for point in IN_STAGING for times in ("", ":3")]
    numbers = count(1)
    with publisher_db.connect() as connection:

        def write_until_dead(process: subprocess.Popen[bytes]) -> bool:
            n = next(numbers)
            with connection.transaction():
                connection.execute("INSERT INTO a VALUES (%s)", [n])
                connection.execute("INSERT INTO b VALUES (%s, 'x')", [n])
                connection.execute("UPDATE b SET v = 'y' WHERE id = %s", [n - 1])
            return process.poll() is not None

        for point in points:
            wait_until(lambda: not stream.slot("active"), 20, "the slot to be free")
            process = _receive(stream, point)
            wait_until(partial(write_until_dead, process), 60, f"the kill at {point}")
            assert process.returncode == -9, point
    log = StagingLog(stream.folder)
    with stream.receiver(log) as receiver:
        stream.await_staged(log, receiver)
    replay = Replay().apply(log.segments())
    assert replay.keys == sorted(set(replay.keys))
    with publisher_db.connect() as connection:
        a = connection.execute("SELECT id FROM a ORDER BY id").fetchall()
        b = connection.execute("SELECT id, v FROM b ORDER BY id").fetchall()
    assert [(row["id"],) for row in replay.rows("a")] == a
    assert [(row["id"], row["v"]) for row in replay.rows("b")] == b


def _receive(stream: Stream, failpoint: str) -> subprocess.Popen[bytes]:
    """Start a receiver that dies at a failpoint."""
    options = stream.options
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.support.receive", stream.folder),
            *(options.conninfo, options.slot, *options.publications),
        ],
        env={
            **os.environ,
            "PENSTOCK_FAILPOINT": failpoint,
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
