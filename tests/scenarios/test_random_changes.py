# SPDX-License-Identifier: Apache-2.0
"""Random transactions over tables of every replica identity: publisher, PostgreSQL and node agree.

Values of ``big`` are kept out of line, so an UPDATE of another column leaves them out of the
stream.  Rounds are applied in batches of many transactions.
"""

from __future__ import annotations

import random

import psycopg
import pytest

from tests.support.compare import difference
from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.triple import tripled

HERE = """
CREATE TABLE ra_mark (n int PRIMARY KEY);
CREATE TABLE ra_key (id int PRIMARY KEY, v int, big text);
CREATE TABLE ra_index (serial int, a int NOT NULL, b text NOT NULL, big text);
CREATE UNIQUE INDEX ra_index_ab ON ra_index (a, b);
ALTER TABLE ra_index REPLICA IDENTITY USING INDEX ra_index_ab;
CREATE TABLE ra_bag (v int, w text, f float8, big text);
CREATE TABLE ra_log (v int, big text);
"""
CHILD = "CREATE TABLE ra_child (id int PRIMARY KEY, parent int, big text);"
PUBLISHER = """
CREATE TABLE ra_child (id int PRIMARY KEY, big text,
    parent int REFERENCES ra_key ON DELETE CASCADE ON UPDATE CASCADE);
ALTER TABLE ra_bag REPLICA IDENTITY FULL;
ALTER TABLE ra_key ALTER COLUMN big SET STORAGE EXTERNAL;
ALTER TABLE ra_index ALTER COLUMN big SET STORAGE EXTERNAL;
ALTER TABLE ra_bag ALTER COLUMN big SET STORAGE EXTERNAL;
ALTER TABLE ra_child ALTER COLUMN big SET STORAGE EXTERNAL;
CREATE PUBLICATION ra FOR TABLE ra_mark, ra_key, ra_index, ra_bag, ra_child;
CREATE PUBLICATION ra_inserts FOR TABLE ra_log WITH (publish = 'insert');
"""
TABLES = ("ra_key", "ra_index", "ra_bag", "ra_child", "ra_log")
KEYS = 40


class Statements:
    """Random statements; none of them fails on the publisher."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def transaction(self) -> str:
        """Some statements, sometimes with a part that is rolled back."""
        parts = [self.statement() for _ in range(self.chance.randint(1, 6))]
        if self.chance.random() < 0.15:
            undone = "; ".join(self.statement() for _ in range(2))
            at = self.chance.randint(0, len(parts))
            parts.insert(at, f"SAVEPOINT s; {undone}; ROLLBACK TO SAVEPOINT s")
        return "; ".join(parts)

    def statement(self) -> str:
        """One change."""
        kinds = [self.of_key, self.of_index, self.of_bag, self.of_child, self.truncate]
        return self.chance.choices(kinds, (8, 4, 5, 4, 0.25))[0]()

    def key(self) -> int:
        return self.chance.randrange(KEYS)

    def value(self) -> str:
        """Null, short, or out of line."""
        return self.chance.choice(
            [
                "NULL",
                f"'{self.key()}'",
                f"repeat('{self.key()}-', {self.chance.choice((900, 1500))})",
            ]
        )

    def of_key(self) -> str:
        a, b = self.key(), self.key()
        free = f"NOT EXISTS (SELECT FROM ra_key WHERE id = {b})"
        return self.chance.choice(
            [
                f"INSERT INTO ra_key VALUES ({a}, {b}, {self.value()}) ON CONFLICT DO NOTHING",
                f"INSERT INTO ra_key SELECT g, {b}, {self.value()}"
                f" FROM generate_series({a}, {a + 5}) g ON CONFLICT DO NOTHING",
                f"UPDATE ra_key SET v = v + 1 WHERE id = {a}",
                f"UPDATE ra_key SET v = {b}, big = {self.value()} WHERE id % 5 = {a % 5}",
                f"UPDATE ra_key SET v = v WHERE id % 3 = {a % 3}",
                f"UPDATE ra_key SET id = {b} WHERE id = {a} AND {free}",
                f"UPDATE ra_key SET id = {b}, v = 0 WHERE id = {a} AND {free};"
                f"UPDATE ra_key SET id = {a} WHERE id = {b} AND v = 0"
                f" AND NOT EXISTS (SELECT FROM ra_key WHERE id = {a})",
                f"UPDATE ra_key SET id = -1 WHERE id = {a};"
                f"UPDATE ra_key SET id = {a} WHERE id = {b} AND {a} <> {b};"
                f"UPDATE ra_key SET id = {b} WHERE id = -1 AND {free};"
                f"DELETE FROM ra_key WHERE id = -1",
                f"DELETE FROM ra_key WHERE id = {a}",
                f"DELETE FROM ra_key WHERE id = {a};"
                f"INSERT INTO ra_key VALUES ({a}, {b}, {self.value()})",
                f"DELETE FROM ra_key WHERE id % 7 = {a % 7}",
            ]
        )

    def of_index(self) -> str:
        a, b = self.key() % 8, self.key() % 6
        return self.chance.choice(
            [
                f"INSERT INTO ra_index VALUES ({a}, {a}, '{b}', {self.value()})"
                " ON CONFLICT DO NOTHING",
                f"UPDATE ra_index SET serial = serial + 1 WHERE a = {a}",
                f"UPDATE ra_index SET b = b || '.' WHERE a = {a} AND length(b) < 4"
                f" AND NOT EXISTS (SELECT FROM ra_index WHERE a = {a} AND b LIKE '_.%')",
                f"UPDATE ra_index SET big = {self.value()} WHERE b = '{b}'",
                f"DELETE FROM ra_index WHERE a = {a} AND b >= '{b}'",
            ]
        )

    def of_bag(self) -> str:
        a, b = self.key() % 6, self.key() % 3
        some = f"ctid IN (SELECT ctid FROM ra_bag WHERE v IS NOT DISTINCT FROM {a} LIMIT {b + 1})"
        number = self.chance.choice(["'NaN'", "NULL", "0", "'-0'", "1.5"])
        return self.chance.choice(
            [
                f"INSERT INTO ra_bag VALUES ({a}, {self.value()}, {number}, {self.value()})",
                f"INSERT INTO ra_bag SELECT {a}, '{b}', {number}, {self.value()}"
                " FROM generate_series(1, 3)",
                f"INSERT INTO ra_bag VALUES (NULL, NULL, {number}, NULL), (NULL, NULL, NULL, NULL)",
                f"UPDATE ra_bag SET w = {self.value()} WHERE {some}",
                f"UPDATE ra_bag SET v = {b} WHERE {some}",
                f"UPDATE ra_bag SET f = {number} WHERE v IS NULL",
                f"DELETE FROM ra_bag WHERE {some}",
                "DELETE FROM ra_bag WHERE ctid = (SELECT min(ctid) FROM ra_bag WHERE v IS NULL)",
            ]
        )

    def of_child(self) -> str:
        a, b = self.key(), self.key()
        return self.chance.choice(
            [
                f"INSERT INTO ra_child (id, parent, big) SELECT {a}, id, {self.value()} FROM ra_key"
                f" WHERE id = {b} ON CONFLICT DO NOTHING",
                f"INSERT INTO ra_child (id, parent, big) SELECT id + 100, id, {self.value()}"
                f" FROM ra_key WHERE id % 4 = {b % 4} ON CONFLICT DO NOTHING",
                f"UPDATE ra_child SET parent = NULL WHERE id = {a}",
                f"DELETE FROM ra_child WHERE id = {a}",
                f"INSERT INTO ra_log VALUES ({a}, {self.value()}), ({a}, NULL)",
            ]
        )

    def truncate(self) -> str:
        return self.chance.choice(
            [
                "TRUNCATE ra_key CASCADE",
                "TRUNCATE ra_key, ra_child, ra_bag RESTART IDENTITY",
                "TRUNCATE ra_index, ra_bag; INSERT INTO ra_bag VALUES (1, 'after', 1, 'truncate')",
                "TRUNCATE ra_child",
            ]
        )


IDENTITIES = (
    "ALTER TABLE ra_key REPLICA IDENTITY FULL; ALTER TABLE ra_index REPLICA IDENTITY FULL",
    "ALTER TABLE ra_key ALTER COLUMN id SET NOT NULL; ALTER TABLE ra_child REPLICA IDENTITY FULL;"
    "ALTER TABLE ra_key REPLICA IDENTITY USING INDEX ra_key_pkey;"
    "ALTER TABLE ra_index REPLICA IDENTITY USING INDEX ra_index_ab",
    "ALTER TABLE ra_key REPLICA IDENTITY DEFAULT; ALTER TABLE ra_child REPLICA IDENTITY DEFAULT",
)
"""Each in the middle of a round."""


@pytest.mark.parametrize("seed", [4])
def test_random_transactions(
    control_pair: tuple[Database, Database], node: Node, seed: int
) -> None:
    """After each round of random transactions all three have the same rows."""
    publisher = control_pair[0]
    publisher.psql(HERE + PUBLISHER)
    statements = Statements(seed)
    with publisher.connect() as conn:
        for _ in range(20):
            _run(conn, statements.transaction())
    queries = [f"SELECT * FROM {table}" for table in TABLES]
    queries[3] = "SELECT id, parent, big FROM ra_child"
    with (
        tripled(control_pair, node, "ra", HERE + CHILD, publications="ra, ra_inserts") as both,
        publisher.connect() as conn,
    ):
        for identities in IDENTITIES:
            for number in range(60):
                if number == 30:
                    conn.execute(identities.encode())
                _run(conn, statements.transaction())
            both.caught_up()
            for query in queries:
                for subscriber in (both.native, node):
                    found = difference(publisher.psql, query, subscriber.psql, query)
                    side = "node" if subscriber is node else "native"
                    assert not found, f"{side}, seed {seed}, {identities}: {query}\n{found}"


def _run(conn: psycopg.Connection[object], statements: str) -> None:
    with conn.transaction():
        conn.execute(statements.encode())
