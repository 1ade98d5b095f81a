# SPDX-License-Identifier: Apache-2.0
"""A commit of the lake is published as PostgreSQL publishes the same transaction, to the byte.

Statements run on a PostgreSQL, and what each did to a table becomes a version of a Delta table;
both go to a subscriber of the same publications.  The table has the same OID on both sides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.change.relation import LakeColumn, LakeTable
from penstock.change.schema import CASCADE, RESTART_IDENTITY
from penstock.control.connect import ControlConnection
from penstock.control.functions import read_functions, read_type_names
from penstock.control.publications import publication_facts
from penstock.lake import tables
from penstock.names import quote_pg
from penstock.pgoutput.encode import Encoding
from penstock.publish.expand import Expander, SentRelations, publish
from tests.support.binaries import NEWEST
from tests.support.delta_versions import Row, Writer
from tests.support.fix_servers import Database, Servers, drop_database
from tests.support.pgoutput_bytes import split

SLOT = "expand_oracle"
ZONE = "Asia/Kolkata"

SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'it''s so so');
CREATE DOMAIN "D d" AS int;
CREATE TABLE t_default (id int, "a ""b'" text, n numeric(9,2), at timestamptz, l text[],
    m mood, d "D d", PRIMARY KEY (id));
CREATE TABLE t_full (LIKE t_default);
ALTER TABLE t_full ADD PRIMARY KEY (id), REPLICA IDENTITY FULL;
CREATE PUBLICATION everything FOR TABLE t_default, t_full;
CREATE PUBLICATION filtered FOR TABLE t_default WHERE (id % 2 = 0),
    t_full WHERE (n > 5 OR "a ""b'" LIKE 'x%');
CREATE PUBLICATION listed FOR TABLE t_default (m, id, l) WITH (publish = 'insert, delete');
"""

STATEMENTS = """
INSERT INTO {t} SELECT g, 'x' || g, g, '2020-01-01 00:00+00'::timestamptz + g * interval '1 day',
    ARRAY['a b', NULL, g::text], 'sad', g FROM generate_series(1, 12) g
UPDATE {t} SET n = n + 4, "a ""b'" = 'y', m = NULL WHERE id IN (1, 2, 3, 4)
UPDATE {t} SET "a ""b'" = NULL, l = '{{}}', at = '0001-01-02 00:00+00' WHERE id = 8
DELETE FROM {t} WHERE id > 9
UPDATE {t} SET n = 20 - n, m = 'it''s so so'
TRUNCATE {t}
INSERT INTO {t} (id, n) VALUES (4, 9.99)
TRUNCATE {t} RESTART IDENTITY
TRUNCATE {t} RESTART IDENTITY CASCADE
TRUNCATE {t} CASCADE
INSERT INTO {t} (id, n) VALUES (4, 9.99)
"""


class Both:
    """A table on a server, and as a Delta table that follows it."""

    def __init__(self, conn: ControlConnection, name: str, lake: Path, spark: SparkSession) -> None:
        self.conn, self.name = conn, name
        row = conn.execute(
            "SELECT c.oid::int8, relreplident::text, ARRAY("
            " SELECT jsonb_build_array(attnum, attname, atttypid::int8, atttypmod, attnotnull)"
            " FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 ORDER BY attnum)"
            " FROM pg_class c WHERE relname = %s",
            [name],
        ).fetchone()
        assert row is not None
        columns = tuple(LakeColumn(*column) for column in row[2])
        table = LakeTable(
            row[0], "public", name, "r", row[1], columns, ("id",), str(lake / name), None, None
        )
        tables.create(lambda: spark, table, "made")
        self.writer = Writer(dataclasses.replace(table, version=0))
        self.entries: list[dict[str, Any]] = []

    def run(self, statement: str) -> None:
        """Run it, and let the lake follow in one version."""
        before = self.rows()
        self.conn.execute(statement.encode())
        after = self.rows()
        if statement.startswith("TRUNCATE"):
            options = RESTART_IDENTITY * ("RESTART" in statement) + CASCADE * ("CASC" in statement)
            version = tables.truncate(self.writer.at_head(), "truncated", options)
        else:
            gone = [row for row in before if row not in after]
            version = self.writer.change(gone, [row for row in after if row not in before])
        table = self.writer.table
        entry = {"relid": table.relid, "location": self.name, "version": version}
        self.entries.append({**entry, "ranges": [[version, version]], "kind": "merge"})

    def rows(self) -> list[Row]:
        columns = self.writer.table.columns
        shown = ", ".join(  # the lake keeps values of types that users made as text
            quote_pg(each.name) + "::text" * (each.type_oid >= 16384) for each in columns
        )
        found = self.conn.execute(f"SELECT {shown} FROM {self.name} ORDER BY id".encode())
        return [dict(zip([each.name for each in columns], row, strict=True)) for row in found]


@pytest.fixture(scope="module")
def both(
    servers: Servers, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Both]]:
    """The tables, after all statements."""
    server = servers(NEWEST)
    database = Database(server, server.create_database())
    database.psql(SETUP)
    lake = tmp_path_factory.mktemp("lake")
    with ControlConnection.connect(database.conninfo, autocommit=True) as conn:
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
        conn.execute("SET TimeZone = 'UTC'")
        made = [Both(conn, name, lake, spark) for name in ("t_default", "t_full")]
        for table in made:
            for statement in STATEMENTS.format(t=table.name).replace("\n    ", " ").splitlines():
                if statement:
                    table.run(statement)
        yield made
    drop_database(server, database.name)


def transactions(conn: ControlConnection, names: list[str]) -> list[list[bytes]]:
    """What a server sends for publications, without Begin and Commit, by transaction."""
    conn.execute(f"SET TimeZone = '{ZONE}'".encode())
    found: list[list[bytes]] = []
    for (message,) in conn.execute(
        "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL,"
        " 'proto_version', '1', 'publication_names', %s)",
        [SLOT, ",".join(names)],
    ):
        if message[:1] == b"B":
            found.append([])
        elif message[:1] != b"C":
            found[-1].append(message)
    return found


@pytest.mark.parametrize(
    "names", [["everything"], ["filtered"], ["listed"], ["filtered", "everything"]], ids="+".join
)
def test_commits_are_published_as_postgresql_does(
    both: list[Both], spark: SparkSession, names: list[str]
) -> None:
    """Descriptions first, then the changes; those of one statement in any order."""
    conn = both[0].conn
    lake_tables = [each.writer.table for each in both]
    published = publish(
        publication_facts(conn, names, [table.relid for table in lake_tables]),
        lake_tables,
        partial(read_functions, conn),
        partial(read_type_names, conn),
    )
    lake = Path(lake_tables[0].location).parent
    expander = Expander(lambda: spark, lake, Encoding(timezone=ZONE))
    sent = SentRelations()
    found = []
    for entry in (entry for table in both for entry in table.entries):
        messages = split(sent.described(expander.expand([entry], 1, published)))
        if messages:
            found.append(messages)
    expected = transactions(conn, names)
    assert len(found) == len(expected) > 2
    told: set[bytes] = set()  # a TRUNCATE's transaction makes PostgreSQL describe again
    for ours, theirs in zip(found, expected, strict=True):
        changes = [each for each in theirs if each[:1] not in (b"Y", b"R")]
        description = theirs[: len(theirs) - len(changes)]
        if b"".join(description) in told:
            description = []
        told.add(b"".join(description))
        assert ours[: len(description)] == description
        assert sorted(ours[len(description) :]) == sorted(changes)
