# SPDX-License-Identifier: Apache-2.0
"""One large transaction, received by a process that does nothing else, and how much memory it took.

    python -m tests.faults.large_transaction --rows 5000000           (a part of make soak)

The publisher streams it while it is in progress, with a subtransaction of a tenth of its size that
is rolled back.  The receiving process spools, decodes and stages it as a node does.  What it may
take does not depend on the size of the transaction: LIMIT_MB is for all of the process.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.client.receiver import Receiver, StreamOptions
from penstock.staging.log import StagingLog
from tests.support.fix_servers import Database
from tests.support.folders import open_folder
from tests.support.interrupt import end_in_order_on_sigterm
from tests.support.servers import PostgresServer
from tests.support.waits import wait_until

LIMIT_MB = 1024
PATIENCE = 900  # seconds
SLOT = "large_transaction"


@dataclass(frozen=True)
class Received:
    """What the process says: rows in one segment, and the most memory that it ever had."""

    rows: int
    peak_mb: float


def receive(database: Database, rows: int, folder: Path) -> Received:
    """Make the transaction, let another process receive it."""
    database.psql(
        "CREATE TABLE lt (id bigint PRIMARY KEY, a text, n numeric(12,2), at timestamptz);"
        "CREATE PUBLICATION lt FOR TABLE lt;"
        f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')"
    )
    insert = (
        "INSERT INTO lt SELECT g, 'note number ' || g, g / 100.0, now()"
        " FROM generate_series({0}, {1}) g"
    )
    database.psql(
        f"BEGIN; {insert.format(1, rows // 2)}; SAVEPOINT s;"
        f"{insert.format(rows + 1, rows + rows // 10)}; ROLLBACK TO s;"
        f"{insert.format(rows // 2 + 1, rows)}; COMMIT",
        timeout=PATIENCE,
    )
    command = [sys.executable, "-m", "tests.faults.large_transaction", "--receive"]
    done = subprocess.run(
        [*command, database.conninfo, str(folder)], check=True, stdout=subprocess.PIPE
    )
    database.psql(f"SELECT pg_drop_replication_slot('{SLOT}'); DROP TABLE lt")
    return Received(**json.loads(done.stdout))


def _receive_here(conninfo: str, folder: Path) -> Received:
    log = StagingLog(folder)
    options = StreamOptions(SLOT, conninfo, SLOT, ("lt",), streaming="on")
    receiver = Receiver(options, log, lambda: log.end_lsn)
    receiver.start()
    try:
        wait_until(lambda: _staged(receiver, log), PATIENCE, "the transaction")
    finally:
        receiver.stop()
    (segment,) = log.segments()
    return Received(sum(file.inserts for file in segment.files), _peak_mb())


def _peak_mb() -> float:
    """The most that this program had; getrusage's figure also counts what its parent had."""
    status = Path("/proc/self/status").read_text()
    (kilobytes,) = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(kilobytes) / 1024


def _staged(receiver: Receiver, log: StagingLog) -> bool:
    receiver.check()
    return bool(log.segments())


def main() -> None:
    """Receive, or be the publisher of who does; exit status 1 when it took too much."""
    end_in_order_on_sigterm()
    parser = argparse.ArgumentParser(prog="python -m tests.faults.large_transaction")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--receive", nargs=2, metavar=("CONNINFO", "FOLDER"))
    given = parser.parse_args()
    if given.receive is not None:
        found = _receive_here(given.receive[0], Path(given.receive[1]))
        print(json.dumps(asdict(found)))
        return
    with open_folder("pst-large-") as folder:
        server = PostgresServer(folder / "publisher", settings={"max_wal_size": "8GB"})
        try:
            server.start()
            database = Database(server, server.create_database("large"))
            found = receive(database, given.rows, folder / "staging")
        finally:
            server.remove()
    print(f"{found.rows:,} rows, {found.peak_mb:,.0f} MB of {LIMIT_MB:,}")
    sys.exit(found.rows != given.rows or found.peak_mb > LIMIT_MB)


if __name__ == "__main__":
    main()
