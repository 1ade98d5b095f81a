# SPDX-License-Identifier: Apache-2.0
"""What the receiver asks of a publisher of each version: what PostgreSQL's own subscriber asks.

The publisher logs the commands.  Protocol 4 since 16, 3 on 15, which knows neither ``origin`` nor
``streaming 'parallel'``; transactions in progress need 2, prepared ones 3.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.staging.log import StagingLog
from tests.support.binaries import NEWEST
from tests.support.fix_servers import Database, Servers, drop_database
from tests.support.streaming import Stream
from tests.support.waits import wait_until

LOGGED = "-c log_replication_commands=on"

OPTIONS: list[dict[str, Any]] = [
    {"streaming": "off"},
    {"streaming": "on", "binary": True},
    {"streaming": "parallel", "origin": "none"},
    {"streaming": "off", "two_phase": True},
]


def asked(database: Database, slot: str) -> list[str]:
    """The options of each START_REPLICATION for a slot."""
    command = rf'command: START_REPLICATION SLOT "{slot}" LOGICAL [0-9A-F/]+ \((.*)\)'
    return re.findall(command, database.server.log_text())


def subscriber_asks(database: Database, here: Database, options: dict[str, Any]) -> list[str]:
    """What PostgreSQL's subscriber asks, the first time and when two_phase is enabled."""
    words = ", ".join(f"{name} = {value}" for name, value in options.items())
    conninfo = f"{database.conninfo} options=''{LOGGED}''"
    here.psql("CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY)")
    slot = f"native_{OPTIONS.index(options)}_{database.name}"
    here.psql(
        f"CREATE SUBSCRIPTION native CONNECTION '{conninfo}' PUBLICATION p"
        f" WITH (slot_name = {slot}, {words})"
    )
    times = 2 if options.get("two_phase") else 1
    wait_until(lambda: len(asked(database, slot)) >= times, 30, "the subscriber to stream")
    here.psql("DROP SUBSCRIPTION native")
    return asked(database, slot)[:times]


def receiver_asks(database: Database, folder: Path, options: dict[str, Any]) -> list[str]:
    """What ours asks, with two_phase the first time and when it is to be enabled."""
    stream = Stream(database, folder)
    conninfo = f"{database.conninfo} options='{LOGGED}'"
    given = {name: value for name, value in options.items() if name != "two_phase"}
    starts = [False, True] if options.get("two_phase") else [False]
    for enable in starts:
        log = StagingLog(folder)
        with stream.receiver(log, conninfo=conninfo, enable_two_phase=enable, **given):
            pass
    found = asked(database, stream.options.slot)[-len(starts) :]
    wait_until(lambda: not stream.slot("active"), 20, "the slot to be free")
    database.psql(f"SELECT pg_drop_replication_slot('{stream.options.slot}')")
    return found


@pytest.mark.parametrize("publisher", ["15", "16", NEWEST], indirect=True)
def test_the_same_is_asked(publisher_db: Database, servers: Servers, tmp_path: Path) -> None:
    """For each combination of options, word by word."""
    publisher_db.psql("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
    server = servers(NEWEST, "subscriber")
    here = Database(server, server.create_database())
    version = int(publisher_db.psql("SHOW server_version_num")) // 10000
    try:
        for number, options in enumerate(OPTIONS):
            wanted = subscriber_asks(publisher_db, here, options)
            assert receiver_asks(publisher_db, tmp_path / str(number), options) == wanted, options
            assert wanted[-1].startswith(f"proto_version '{4 if version >= 16 else 3}'")
    finally:
        drop_database(server, here.name)
