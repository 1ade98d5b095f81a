# SPDX-License-Identifier: Apache-2.0
"""Clients that are no PostgreSQL follow the lake: pg_recvlogical, psycopg2, a CDC client, pg_dump.

What they get is compared with what the same client gets from a PostgreSQL where the same
statements ran.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
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
    " '{1,NULL,3}', 'glad', '{\"k\": [1, 2]}');"
    "INSERT INTO oc VALUES (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),"
    " (3, E'line\nbreak', -0.25, '1999-12-31Z', false, '', '{}', 'sad', 'null');"
    "UPDATE oc SET a = 'uno', m = 'sad' WHERE id = 1;"
    "BEGIN; INSERT INTO oc_other VALUES ('x', 1), ('y', 2); UPDATE oc SET n = 7 WHERE id = 3;"
    "DELETE FROM oc_other WHERE k = 'x'; COMMIT;"
    "INSERT INTO oc_hidden VALUES (1);"
    "DELETE FROM oc_other WHERE v > 0; DELETE FROM oc WHERE id = 2;"
    "TRUNCATE oc, oc_other; INSERT INTO oc VALUES (9)"
)
MESSAGES = (
    "SELECT pg_logical_emit_message(true, 'mine', 'first');"
    "BEGIN; SELECT pg_logical_emit_message(true, 'mine', 'second'); INSERT INTO oc VALUES (10);"
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


def wait_for(psql: Callable[..., str], slot: str, *, active: bool = True) -> None:
    """Wait until a slot is in use, or is not."""
    query = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'"
    wait_until(lambda: psql(query) == "ft"[active], 30, f"slot {slot} to be in use: {active}")


def run_both(lake: Node, native: Database, sql: str) -> None:
    lake.psql(sql)
    native.psql(sql)


@pytest.mark.parametrize("version", ["15", NEWEST])
def test_pg_recvlogical(lake: Node, native: Database, version: str) -> None:
    """Slot, stream and end as on a PostgreSQL; messages of users come, commit records never."""
    if version not in installations():
        pytest.skip(f"this machine has no PostgreSQL {version}")
    quiet, spoken = f"oc_quiet_{version}", f"oc_spoken_{version}"
    sides = ((conninfo(lake), lake.psql), (native.conninfo, native.psql))
    for info, _ in sides:
        create_slot(version, info, quiet)
        create_slot(version, info, spoken)
    run_both(lake, native, f"{CHANGES};{MESSAGES}")
    results = []
    for info, psql in sides:
        end = psql("SELECT pg_current_wal_lsn()")
        without = receive(version, info, quiet, end, *OPTIONS)
        messages = receive(version, info, spoken, end, *OPTIONS, "messages=true")
        results.append((told(without), emitted(without), told(messages), emitted(messages)))
        drop_slot(version, info, quiet)
        drop_slot(version, info, spoken)
        assert psql("SELECT FROM pg_replication_slots WHERE slot_name ~ 'oc_(quiet|spoken)'") == ""
    assert results[0] == results[1]
    assert len(results[0][0]) > 12
    assert (results[0][1], len(results[0][3])) == ([], 3)
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
        wait_for(psql, "oc_two", active=False)
        psql("SELECT pg_drop_replication_slot('oc_two')")
    lake.psql("TRUNCATE oc, oc_other, oc_hidden")


CDC_CHANGES = (
    "INSERT INTO oc (id, a, n) VALUES (1, 'one', 1.5), (2, NULL, NULL);"
    "UPDATE oc SET a = 'uno' WHERE id = 1; DELETE FROM oc WHERE id = 2;"
    "INSERT INTO oc_other VALUES ('x', 1); DELETE FROM oc_other; TRUNCATE oc"
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
    wait_for(lake.psql, "oc_cdc_lake")
    wait_for(native.psql, "oc_cdc_native")
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


DUMPED = (
    "CREATE SCHEMA od; CREATE DOMAIN od.posint AS int CHECK (VALUE > 0);"
    "CREATE TYPE od.mood AS ENUM ('glad', 'sad');"
    "CREATE TABLE od.one (id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, s serial, m od.mood,"
    " a text DEFAULT 'x' NOT NULL, p od.posint, g int GENERATED ALWAYS AS (id * 2) STORED,"
    " CHECK (id < 100000)); CREATE INDEX ON od.one (a); COMMENT ON TABLE od.one IS 'a table';"
    "CREATE TABLE od.parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
    "CREATE TABLE od.low PARTITION OF od.parts FOR VALUES FROM (0) TO (100);"
    "CREATE TABLE od.high PARTITION OF od.parts FOR VALUES FROM (100) TO (200);"
    "CREATE VIEW od.seen AS SELECT id, a FROM od.one WHERE id > 1;"
    "CREATE PUBLICATION od FOR TABLE od.one WHERE (id > 10), od.parts;"
    "INSERT INTO od.one (a, m, p) SELECT E'row\t\\\\' || g, 'sad', g"
    " FROM generate_series(1, 300) g;"
    "INSERT INTO od.one (m) VALUES (NULL), ('glad');"
    "INSERT INTO od.parts SELECT g, 'v' || g FROM generate_series(0, 190, 10) g"
)
SAME_AFTER_RESTORE = (
    "SELECT id, s, m, a, g FROM od.one",
    "SELECT * FROM od.low",
    "SELECT * FROM od.high",
    "SELECT c.oid::regclass, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,"
    " a.attidentity, a.attgenerated, pg_get_expr(d.adbin, d.adrelid) FROM pg_attribute a"
    " JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum)"
    " = (a.attrelid, a.attnum) WHERE c.relnamespace = 'od'::regnamespace AND a.attnum > 0",
    "SELECT conrelid::regclass, conname, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE connamespace = 'od'::regnamespace",
    "SELECT * FROM pg_publication_tables WHERE pubname = 'od'",
    "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'od'",
    "SELECT pg_get_viewdef('od.seen'), obj_description('od.one'::regclass)",
)


def test_a_whole_pg_dump_is_restored_into_a_postgresql(
    node: Node, publisher_db: Database, tmp_path: Path
) -> None:
    """In both formats a dump of the lake gives a PostgreSQL the definitions and the rows.

    The node's own schemas are left out; its event triggers, which come last, cannot be.
    """
    node.psql(DUMPED)
    programs = installations()[NEWEST] / "bin"
    whole: list[str | Path] = [programs / "pg_dump", "-d", node.conninfo()]
    whole += ["--no-owner", "--no-privileges"]
    refused = subprocess.run(
        [*whole, "-f", tmp_path / "not"], capture_output=True, text=True, env=client_environment()
    )
    assert 'permission denied for schema "penstock"' in refused.stderr
    whole.append("--exclude-schema=penstock*")
    plain, custom = tmp_path / "plain", tmp_path / "custom"
    loads: list[list[str | Path]] = [
        [programs / "psql", "-X", "-q", "-d", publisher_db.conninfo, "-f", plain],
        [programs / "pg_restore", "-d", publisher_db.conninfo, custom],
    ]
    for form, file, load in zip(("plain", "custom"), (plain, custom), loads, strict=True):
        dump = [*whole, "-F", form, "-f", file]
        subprocess.run(dump, check=True, env=client_environment(), timeout=120)
        done = subprocess.run(
            load, capture_output=True, text=True, env=client_environment(), timeout=120
        )
        for query in SAME_AFTER_RESTORE:
            assert assert_equal(node.psql, query, publisher_db.psql, query), done.stderr
        assert publisher_db.psql("SELECT count(p), sum(p) FROM od.one") == "300|45150"
        publisher_db.psql("DROP SCHEMA od CASCADE; DROP PUBLICATION od")
    assert publisher_db.psql("SELECT FROM pg_namespace WHERE nspname LIKE 'penstock%'") == ""
    node.psql("DROP PUBLICATION od; DROP SCHEMA od CASCADE")
