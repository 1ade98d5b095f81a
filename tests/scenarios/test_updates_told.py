# SPDX-License-Identifier: Apache-2.0
"""What SQL changes in lake tables is sent as PostgreSQL sends it: an UPDATE is one, of any key."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import zip_longest

import pytest

from tests.support.binaries import NEWEST
from tests.support.fix_servers import Database, Servers, drop_database
from tests.support.node import Node
from tests.support.published import conninfo, make_replica, subscribed_to, wait_same
from tests.support.walsender import Walsender

Change = tuple[str, bytes]
"""A relation's name, and a message without its OID."""

SETUP = """
CREATE TABLE ut_key (id int PRIMARY KEY, a text, n numeric(6,2));
CREATE TABLE ut_full (id int PRIMARY KEY, a text);
ALTER TABLE ut_full REPLICA IDENTITY FULL;
CREATE TABLE ut_none (id int, a text);
ALTER TABLE ut_none REPLICA IDENTITY FULL;
CREATE TABLE ut_index (id int PRIMARY KEY, a text NOT NULL, b int NOT NULL);
CREATE UNIQUE INDEX ut_other ON ut_index (b, a);
ALTER TABLE ut_index REPLICA IDENTITY USING INDEX ut_other;
CREATE TABLE ut_part (r int PRIMARY KEY, a text) PARTITION BY RANGE (r);
CREATE TABLE ut_low PARTITION OF ut_part FOR VALUES FROM (0) TO (10);
CREATE TABLE ut_high PARTITION OF ut_part FOR VALUES FROM (10) TO (20);
CREATE TABLE ut_end (a int);
CREATE PUBLICATION ut FOR TABLE ut_key, ut_full, ut_none, ut_index, ut_part, ut_end;
CREATE PUBLICATION ut_some FOR TABLE ut_key (a, id) WHERE (id < 100), ut_full WHERE (a <> 'x'),
    ut_none, ut_part, ut_end WITH (publish_via_partition_root);
CREATE PUBLICATION ut_inserts FOR TABLE ut_key, ut_none, ut_end
    WITH (publish = 'insert, truncate');
CREATE PUBLICATION ut_updates FOR TABLE ut_key, ut_none, ut_end
    WITH (publish = 'update, truncate');
"""

STATEMENTS = """
INSERT INTO ut_key SELECT g, 'a' || g, g FROM generate_series(1, 6) g;
UPDATE ut_key SET id = id - 1;
UPDATE ut_key SET id = id + 1 WHERE id = 5;
UPDATE ut_key SET id = id + 100 WHERE id % 2 = 0;
UPDATE ut_key SET a = a;
UPDATE ut_key SET id = id - 100, a = NULL WHERE id > 100;
UPDATE ut_key SET n = n + 1 WHERE id = 3;
DELETE FROM ut_key WHERE id = 3;
MERGE INTO ut_key t USING (VALUES (2, 20), (5, 7), (9, 0)) s (id, new) ON t.id = s.id \
 WHEN MATCHED AND s.id = 5 THEN DELETE WHEN MATCHED THEN UPDATE SET id = s.new \
 WHEN NOT MATCHED THEN INSERT (id, a) VALUES (s.id, 'merged');
INSERT INTO ut_key (id, a) VALUES (20, 'x'), (21, 'y') ON CONFLICT (id) \
 DO UPDATE SET id = 30, a = excluded.a;
INSERT INTO ut_full VALUES (1, 'a'), (2, 'b'), (3, 'x');
UPDATE ut_full SET id = id + 1, a = 'x' WHERE id = 3;
UPDATE ut_full SET a = a || a;
INSERT INTO ut_none VALUES (1, 'a'), (1, 'a'), (2, NULL), (NULL, NULL);
UPDATE ut_none SET a = 'b' WHERE id = 1;
UPDATE ut_none SET id = 7 WHERE id IS NULL;
UPDATE ut_none SET id = id;
DELETE FROM ut_none WHERE id = 2;
INSERT INTO ut_index VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3);
UPDATE ut_index SET id = id + 10;
UPDATE ut_index SET b = b + 1;
UPDATE ut_index SET a = a || '!' WHERE b = 2;
INSERT INTO ut_part VALUES (1, 'one'), (2, 'two'), (11, 'eleven');
UPDATE ut_part SET r = r + 3 WHERE r < 10;
UPDATE ut_part SET r = r + 9 WHERE r = 4;
BEGIN; UPDATE ut_key SET id = id + 50; UPDATE ut_key SET id = id - 50; DELETE FROM ut_none; COMMIT;
WITH moved AS (UPDATE ut_key SET id = id + 40 RETURNING id) UPDATE ut_full SET a = 'cte' \
 WHERE id IN (SELECT id - 40 FROM moved) OR id = 1;
TRUNCATE ut_end;
"""


PUBLICATIONS = ["ut", "ut_some", "ut_inserts", "ut_updates"]


@pytest.fixture(scope="module")
def sent(node: Node, servers: Servers) -> Iterator[dict[str, list[list[list[Change]]]]]:
    """By publication what a server and the node send, transaction by transaction."""
    server = servers(NEWEST)
    database = Database(server, server.create_database())
    make_replica(node)
    found: dict[str, list[list[list[Change]]]] = {name: [] for name in PUBLICATIONS}
    for end, info in ((database, database.conninfo), (node, conninfo(node))):
        end.psql(SETUP)
        streams = {name: _slot(info, name) for name in PUBLICATIONS}
        for statement in STATEMENTS.splitlines()[1:]:
            end.psql(statement)
        for name, stream in streams.items():
            options = f"proto_version '1', publication_names '{name}'"
            command = f"START_REPLICATION SLOT {name} LOGICAL 0/0 ({options})"
            found[name].append(_transactions(stream.frames(command, b"T")))
            stream.close()
    yield found
    drop_database(server, database.name)
    node.psql(
        "DROP PUBLICATION ut, ut_some, ut_inserts, ut_updates;"
        "DROP TABLE ut_key, ut_full, ut_none, ut_index, ut_part, ut_end"
    )


def _slot(info: str, name: str) -> Walsender:
    stream = Walsender(info)
    options = "TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing')"
    stream.rows(f"CREATE_REPLICATION_SLOT {name} {options}")
    return stream


def _transactions(frames: list[bytes]) -> list[list[Change]]:
    """The changes of each transaction that has some."""
    names: dict[int, str] = {}
    found: list[list[Change]] = []
    for frame in frames:
        kind = frame[:1]
        if kind == b"B":
            found.append([])
        elif kind == b"R":
            names[struct.unpack_from(">I", frame, 1)[0]] = frame[5:].split(b"\0")[1].decode()
        elif kind in b"IUD":
            name = names[struct.unpack_from(">I", frame, 1)[0]]
            found[-1].append((name, kind + frame[5:]))
    return [each for each in found if each]


@pytest.mark.parametrize("publication", PUBLICATIONS)
def test_changes_are_sent_as_postgresql_sends_them(
    sent: dict[str, list[list[list[Change]]]], publication: str
) -> None:
    """Every message to the byte; those of a transaction in any order."""
    theirs, ours = sent[publication]
    assert len(theirs) >= 4
    nothing: list[Change] = []
    for number, (expected, found) in enumerate(zip_longest(theirs, ours, fillvalue=nothing)):
        assert sorted(found) == sorted(expected), f"transaction {number}"


def test_a_subscriber_applies_them(node: Node, sent: object, publisher_db: Database) -> None:
    """Every key is free when it is taken: a PostgreSQL that applies the same has no duplicate."""
    publisher_db.psql(SETUP)
    node.psql("TRUNCATE ut_key, ut_full, ut_none, ut_index, ut_part")
    with subscribed_to(node, publisher_db, "ut_subscriber", "ut"):
        node.psql(STATEMENTS)
        for table in ("ut_key", "ut_full", "ut_none", "ut_index", "ut_part"):
            wait_same(node, publisher_db, "ut_subscriber", f"SELECT * FROM {table}")
