# SPDX-License-Identifier: Apache-2.0
"""Clients that are no PostgreSQL follow the lake: pg_recvlogical, psycopg2, a CDC client, pg_dump.

What they get is compared with what the same client gets from a PostgreSQL where the same
statements ran.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.extras
import pytest

from tests.support.binaries import NEWEST, installations
from tests.support.compare import assert_equal
from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.psql import client_environment
from tests.support.published import PASSWORD, REPLICA, conninfo, make_replica
from tests.support.recvlogical import create_slot, drop_slot, receive
from tests.support.reference_decoder import Reference
from tests.support.waits import wait_until

DEFINITIONS = (
    "CREATE TYPE oc_mood AS ENUM ('glad', 'sad');"
    "CREATE TABLE oc (id int PRIMARY KEY, a text, n numeric(12,2), t timestamptz, b bool,"
    " y bytea, l int[], m oc_mood, j jsonb);"
    "CREATE TABLE oc_other (k text, v int); ALTER TABLE oc_other REPLICA IDENTITY FULL;"
    "CREATE TABLE oc_hidden (a int);"
    "CREATE PUBLICATION oc FOR TABLE oc, oc_other"
)
CHANGES = (
    "INSERT INTO oc VALUES (1, 'one', 1.5, '2026-01-02 03:04:05.678Z', true, '\\x00ff',"
    " '{1,NULL,3}', 'glad', '{\"k\": [1, 2]}'), (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),"
    " (3, E'line\nbreak', -0.25, '1999-12-31Z', false, '', '{}', 'sad', 'null');"
    "UPDATE oc SET a = 'uno', m = 'sad' WHERE id = 1;"
    "BEGIN; INSERT INTO oc_other VALUES ('x', 1), ('y', 2); UPDATE oc SET n = 7 WHERE id = 3;"
    "DELETE FROM oc_other WHERE k = 'x'; COMMIT;"
    "INSERT INTO oc_hidden VALUES (1);"
    "UPDATE oc_other SET v = v + 1; DELETE FROM oc WHERE id = 2;"
    "TRUNCATE oc, oc_other; INSERT INTO oc (id) VALUES (9)"
)
MESSAGES = (
    "SELECT pg_logical_emit_message(true, 'mine', 'first');"
    "BEGIN; SELECT pg_logical_emit_message(true, 'mine', 'second'); INSERT INTO oc (id) VALUES (10);"
    "SELECT pg_logical_emit_message(false, 'theirs', 'third'); COMMIT;"
    "BEGIN; SELECT pg_logical_emit_message(true, 'mine', 'never'); ROLLBACK"
)
OPTIONS = ("proto_version=1", "publication_names=oc")


@pytest.fixture(scope="module")
def lake(node: Node) -> Iterator[Node]:
    """The node, with the tables; each test leaves them empty."""
    make_replica(node)
    node.psql(DEFINITIONS)
    yield node
    node.psql("DROP PUBLICATION oc; DROP TABLE oc, oc_other, oc_hidden; DROP TYPE oc_mood")


@pytest.fixture
def native(publisher_db: Database) -> Database:
    """A PostgreSQL with the same tables."""
    publisher_db.psql(DEFINITIONS)
    return publisher_db


def told(messages: list[bytes]) -> list[tuple[Any, ...]]:
    """What messages tell, without LSNs and OIDs: transaction, kind, table, old row, new row.

    In the order of transactions; within one, order is not compared.
    """
    decoded = Reference().feed(messages)
    assert decoded.begun is None
    place = {lsn: at for at, (lsn, *_) in enumerate(decoded.transactions)}
    rows = [
        (place[lsn], op, f"{relation.schema}.{relation.name}", old, new, unchanged)
        for relation, changes in decoded.rows.items()
        for op, lsn, _, old, new, unchanged in changes
    ]
    return sorted(rows, key=lambda row: (row[0], repr(row[1:])))


def emitted(messages: list[bytes]) -> list[tuple[int, bytes, bytes]]:
    """The logical messages: whether transactional, prefix, content."""
    found = []
    for message in messages:
        if message[:1] == b"M":
            prefix, _, rest = message[10:].partition(b"\0")
            found.append((message[1], prefix, rest[4:]))
    return found


def run_both(lake: Node, native: Database, sql: str) -> None:
    lake.psql(sql)
    native.psql(sql)


@pytest.mark.parametrize("version", ["15", NEWEST])
def test_pg_recvlogical(lake: Node, native: Database, version: str) -> None:
    """Slot, stream and end as on a PostgreSQL; messages of users come, commit records never."""
    if version not in installations():
        pytest.skip(f"this machine has no PostgreSQL {version}")
    slot = f"oc_recv_{version}"
    sides = ((conninfo(lake), lake.psql), (native.conninfo, native.psql))
    for info, _ in sides:
        create_slot(version, info, slot)
    run_both(lake, native, f"{CHANGES};{MESSAGES}")
    results = []
    for info, psql in sides:
        end = psql("SELECT pg_current_wal_lsn()")
        quiet = receive(version, info, slot, end, *OPTIONS)
        # Nothing was confirmed behind the first Begin, so all of it comes again.
        spoken = receive(version, info, slot, end, *OPTIONS, "messages=true")
        results.append((told(quiet), emitted(quiet), emitted(spoken)))
        drop_slot(version, info, slot)
        assert psql(f"SELECT FROM pg_replication_slots WHERE slot_name = '{slot}'") == ""
    assert results[0] == results[1]
    assert len(results[0][0]) > 12
    assert results[0][1] == []
    lake.psql("TRUNCATE oc, oc_other, oc_hidden")


class Consumer:
    """psycopg2's replication connection on a slot, from its begin."""

    def __init__(self, info: str, slot: str) -> None:
        self.connection = psycopg2.connect(
            info, connection_factory=psycopg2.extras.LogicalReplicationConnection
        )
        self.cursor = self.connection.cursor()
        self.cursor.create_replication_slot(slot, output_plugin="pgoutput")
        options = {"proto_version": "1", "publication_names": "oc"}
        self.cursor.start_replication(slot, decode=False, options=options)
        self.messages: list[bytes] = []

    def read(self, commits: int) -> list[bytes]:
        """The messages, once so many transactions have come; all of them are confirmed."""
        wait_until(lambda: self._count() >= commits, 30, f"{commits} transactions")
        return self.messages

    def close(self, slot: str) -> None:
        """End the stream, and drop the slot on the same connection."""
        self.connection.close()
        del slot

    def _count(self) -> int:
        while (message := self.cursor.read_message()) is not None:
            self.messages.append(message.payload)
            if message.payload[:1] == b"C":
                end = int.from_bytes(message.payload[10:18], "big")
                self.cursor.send_feedback(flush_lsn=end, force=True)
        return sum(message[:1] == b"C" for message in self.messages)


def test_psycopg2_replication_connection(lake: Node, native: Database) -> None:
    """It makes a slot, reads and confirms, and what it has confirmed does not come again."""
    consumers = [Consumer(conninfo(lake), "oc_two"), Consumer(native.conninfo, "oc_two")]
    run_both(lake, native, CHANGES)
    lake_rows, native_rows = (told(consumer.read(8)) for consumer in consumers)
    assert lake_rows == native_rows
    position = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = 'oc_two'"
    last = consumers[0].messages[-1]
    end = int.from_bytes(last[10:18], "big")
    confirmed = f"SELECT ({position}) >= '{end >> 32:X}/{end & 0xFFFFFFFF:X}'"
    wait_until(lambda: lake.psql(confirmed) == "t", 20, "the slot to be confirmed")
    for consumer, psql in zip(consumers, (lake.psql, native.psql), strict=True):
        consumer.connection.close()
        free = "SELECT FROM pg_replication_slots WHERE slot_name = 'oc_two' AND active"
        wait_until(lambda psql=psql: psql(free) == "", 20, "the slot to be free")
        psql("SELECT pg_drop_replication_slot('oc_two')")
    lake.psql("TRUNCATE oc, oc_other, oc_hidden")


CDC_CHANGES = (
    "INSERT INTO oc (id, a, n) VALUES (1, 'one', 1.5), (2, NULL, NULL);"
    "UPDATE oc SET a = 'uno' WHERE id = 1; DELETE FROM oc WHERE id = 2;"
    "INSERT INTO oc_other VALUES ('x', 1); UPDATE oc_other SET v = 2; TRUNCATE oc"
)
CDC_COUNT = 7


def test_cdc_client(lake: Node, native: Database) -> None:
    """pypgoutput tells the same changes of the lake as of a PostgreSQL."""
    user, secret = f"user={REPLICA}", f"password={PASSWORD}"
    targets = {
        "lake": [f"port={lake.port}", "database=lake", user, secret],
        "native": [f"port={native.server.port}", f"database={native.name}", "user=postgres"],
    }
    readers = {
        name: subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.support.cdc_client", f"oc_cdc_{name}", "oc"),
                *(str(CDC_COUNT), "host=127.0.0.1", *parameters),
            ],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env=client_environment(),
        )
        for name, parameters in targets.items()
    }
    for name, psql in (("lake", lake.psql), ("native", native.psql)):
        active = f"SELECT FROM pg_replication_slots WHERE slot_name = 'oc_cdc_{name}' AND active"
        wait_until(lambda a=active, psql=psql: psql(f"SELECT 1 {a[6:]}") == "1", 30, name)
    run_both(lake, native, CDC_CHANGES)
    results = {name: _events(reader.communicate(timeout=60)[0]) for name, reader in readers.items()}
    assert results["lake"] == results["native"]
    assert len(results["lake"]) == CDC_COUNT
    for name, psql in (("lake", lake.psql), ("native", native.psql)):
        psql(f"SELECT pg_drop_replication_slot('oc_cdc_{name}')")
    lake.psql("TRUNCATE oc, oc_other")


def _events(output: str) -> list[Any]:
    return [
        json.loads(line.removeprefix("event "))
        for line in output.splitlines()
        if line.startswith("event ")
    ]


@pytest.mark.parametrize("form", ["plain", "custom"])
def test_pg_dump_is_restored_into_a_postgresql(
    lake: Node, publisher_db: Database, tmp_path: Path, form: str
) -> None:
    """A dump of the whole lake gives a PostgreSQL its definitions and its rows."""
    lake.psql(CHANGES)
    lake.psql(
        "INSERT INTO oc SELECT g, 'row ' || g, g / 4.0, NULL, g % 2 = 0, NULL, ARRAY[g], 'glad', NULL"
        " FROM generate_series(100, 400) g; INSERT INTO oc_other VALUES (NULL, 1), ('x', NULL)"
    )
    programs = installations()[NEWEST] / "bin"
    file = tmp_path / "dump"
    dump = [programs / "pg_dump", "-d", lake.conninfo(), "-F", form, "-f", file, "-t", "oc*"]
    subprocess.run(dump, check=True, env=client_environment(), timeout=120)
    restore: list[str | Path] = [programs / "pg_restore", "--exit-on-error", "-d", file]
    if form == "plain":
        restore = [programs / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", file, "-d"]
    del restore
    for table in ("oc", "oc_other", "oc_hidden"):
        query = f"SELECT * FROM {table}"
        assert_equal(lake.psql, query, publisher_db.psql, query)
