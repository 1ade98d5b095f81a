# SPDX-License-Identifier: Apache-2.0
"""Publications and tables as they were at each commit, whatever has become of them since."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psycopg
import pytest

from penstock.change.publication import PublicationFacts
from penstock.change.relation import LakeTable
from penstock.control.address import ControlAddress
from penstock.control.catalog import lake_tables
from penstock.control.connect import ControlConnection, connect
from penstock.control.definitions import Definitions, definitions_at, forget_definitions
from penstock.control.ledger import last_entry
from penstock.control.publications import publication_facts
from penstock.errors import ObjectInUseError, PublicationError, WrongStateError
from penstock.lsn import parse_lsn
from penstock.publish.plan import plan_relation
from tests.support.control import following, one
from tests.support.reference_decoder import Reference
from tests.support.waits import wait_until

LAKE = Path("/lake")


@pytest.fixture
def address(any_control: ControlAddress) -> ControlAddress:
    return any_control


@pytest.fixture
def conn(address: ControlAddress) -> Iterator[ControlConnection]:
    with connect(address) as made:
        made.execute("SET search_path = public, pg_catalog")
        yield made


@dataclass
class History:
    """What held at each of some commits, as the catalog itself said it just then."""

    conn: ControlConnection
    relids: set[int] = field(default_factory=set)
    held: dict[str, tuple[list[str], PublicationFacts, dict[int, LakeTable]]] = field(
        default_factory=dict
    )

    def commit(self, statements: Sequence[str] = ()) -> str:
        """Run statements, and a commit record at their end, as one transaction; its xid."""
        with self.conn.transaction():
            for statement in statements:
                self.conn.execute(statement.encode())
            rows = self.conn.execute("SELECT relid::int8 FROM penstock.table_version").fetchall()
            self.relids |= {relid for (relid,) in rows}
            names = [
                name
                for (name,) in self.conn.execute(
                    "SELECT pubname FROM pg_publication WHERE pubname <> 'penstock_ledger'"
                    " ORDER BY random()"
                ).fetchall()
            ]
            facts = publication_facts(self.conn, names, self.relids)
            tables = lake_tables(self.conn, self.relids, LAKE)
            xid: str = one(
                self.conn,
                "SELECT pg_current_xact_id()::text FROM pg_logical_emit_message(true, 'penstock',"
                " json_build_object('v', 1, 'xid', pg_current_xact_id()::text, 'purpose', 'test',"
                " 'origin', NULL, 'tables', '[]'::json)::text)",
            )
        self.held[xid] = names, facts, tables
        return xid

    def lsn(self, xid: str) -> int:
        """The LSN of a transaction's commit, once the ledger knows it."""
        query = "SELECT lsn::text FROM penstock.commit WHERE xid = %s::xid8"
        row = wait_until(lambda: self.conn.execute(query, [xid]).fetchone(), 20, "the ledger")
        return parse_lsn(row[0])

    def check(self, since: str = "") -> None:
        """Every commit has now what it had then."""
        checked = [xid for xid in self.held if not since or int(xid) >= int(since)]
        for xid in checked:
            names, facts, tables = self.held[xid]
            found = at(self.conn, names, self.relids, self.lsn(xid))
            assert found.facts == facts, xid
            assert found.tables == {
                relid: replace(table, version=None, sole_writer=None, key_index=None)
                for relid, table in tables.items()
            }


def at(conn: ControlConnection, names: Sequence[str], relids: set[int], lsn: int) -> Definitions:
    return definitions_at(conn, names, dict.fromkeys(relids), lsn, LAKE)


SETUP = """
    CREATE SCHEMA s;
    CREATE TABLE a (id int PRIMARY KEY, b text NOT NULL, c int GENERATED ALWAYS AS (id + 1) STORED);
    CREATE TABLE s.b (id int, t text);
    CREATE TABLE r (id int, a int) PARTITION BY RANGE (id);
    CREATE TABLE m PARTITION OF r FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (id);
    CREATE TABLE l PARTITION OF m FOR VALUES FROM (0) TO (5);
    CREATE TABLE o (id int, a int);
    CREATE TYPE mood AS ENUM ('glad');
    CREATE PUBLICATION p FOR TABLE a WHERE (id > 1);
    CREATE PUBLICATION v FOR TABLE r WITH (publish_via_partition_root);
    CREATE PUBLICATION q FOR TABLES IN SCHEMA s"""

STATEMENTS = """
    ALTER PUBLICATION p SET (publish = 'insert, truncate')
    ALTER PUBLICATION p ADD TABLE s.b
    ALTER PUBLICATION p SET TABLE a (id, b) WHERE (id > 2), s.b
    ALTER PUBLICATION p DROP TABLE a
    ALTER PUBLICATION p RENAME TO p2
    ALTER PUBLICATION p2 ADD TABLES IN SCHEMA public
    ALTER PUBLICATION p2 SET TABLES IN SCHEMA s
    ALTER PUBLICATION p2 DROP TABLES IN SCHEMA s
    ALTER PUBLICATION p2 OWNER TO CURRENT_USER
    CREATE PUBLICATION every FOR ALL TABLES WITH (publish = 'delete')
    DROP PUBLICATION every, p2
    CREATE PUBLICATION p FOR TABLE s.b (id)
    ALTER SCHEMA s RENAME TO s2
    ALTER TABLE s2.b RENAME TO bb
    ALTER TABLE s2.bb SET SCHEMA public
    ALTER TABLE bb RENAME COLUMN t TO tt
    ALTER TABLE bb ADD d mood, ADD u numeric(9,2) NOT NULL DEFAULT 0
    ALTER TABLE bb ALTER u DROP NOT NULL
    ALTER TABLE bb ALTER u TYPE numeric(12,2)
    DROP TYPE mood CASCADE
    ALTER TABLE bb DROP COLUMN id CASCADE
    ALTER TABLE a REPLICA IDENTITY FULL
    CREATE UNIQUE INDEX a_index ON a (b, id) INCLUDE (c)
    ALTER TABLE a REPLICA IDENTITY USING INDEX a_index
    ALTER INDEX a_index RENAME TO a_other
    DROP INDEX a_other
    ALTER TABLE a REPLICA IDENTITY DEFAULT
    ALTER TABLE a RENAME CONSTRAINT a_pkey TO a_key
    ALTER TABLE a DROP CONSTRAINT a_key
    ALTER TABLE a REPLICA IDENTITY NOTHING
    ALTER TABLE r ADD n text
    ALTER TABLE r ADD PRIMARY KEY (id)
    ALTER TABLE r RENAME COLUMN a TO aa
    ALTER TABLE r DETACH PARTITION m
    ALTER TABLE m DETACH PARTITION l
    ALTER TABLE o RENAME COLUMN a TO aa
    ALTER TABLE o ADD n text, ALTER id SET NOT NULL
    ALTER TABLE r ATTACH PARTITION o FOR VALUES FROM (10) TO (20)
    CREATE TABLE x PARTITION OF r DEFAULT
    ALTER PUBLICATION v ADD TABLE o, x WHERE (id > 0)
    DROP TABLE x
    ALTER TABLE r ATTACH PARTITION m FOR VALUES FROM (0) TO (9)
    CREATE TABLE new (LIKE a INCLUDING ALL)
    CREATE SCHEMA again CREATE TABLE inside (id int PRIMARY KEY)
    DROP TABLE r CASCADE
    DROP SCHEMA again CASCADE
    DROP TABLE a, l
    CREATE TABLE a (other text)
    ALTER PUBLICATION p ADD TABLE a"""


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def test_each_commit_has_what_the_catalog_said_then(
    conn: ControlConnection, address: ControlAddress
) -> None:
    """After each kind of DDL, before it, and with it in one transaction; also what was dropped."""
    conn.execute(SETUP)
    history = History(conn)
    with following(address):
        history.commit()
        for number, statement in enumerate(lines(STATEMENTS)):
            if number % 2:
                history.commit([statement])
            else:
                conn.execute(statement.encode())
                history.commit()
        history.check()
        first, renamed = next(iter(history.held)), list(history.held)[5]
        relids = history.relids
        with pytest.raises(PublicationError, match='publication "p2" does not exist') as missing:
            at(conn, ["p2"], relids, history.lsn(first))
        assert missing.value.sqlstate == "42704"
        with pytest.raises(PublicationError, match='publication "p" does not exist'):
            at(conn, ["p"], relids, history.lsn(renamed))


def test_what_was_rolled_back_never_held(conn: ControlConnection, address: ControlAddress) -> None:
    """The last of several changes in a transaction counts; those of a savepoint may not."""
    conn.execute(SETUP)
    history = History(conn)
    with following(address):
        history.commit(
            [
                "ALTER PUBLICATION p SET (publish = 'insert')",
                "SAVEPOINT one",
                "ALTER PUBLICATION p SET (publish = 'delete'); ALTER TABLE a ADD gone int",
                "ROLLBACK TO one",
                "ALTER TABLE a ADD kept int",
                "ALTER TABLE a ADD too int",
            ]
        )
        with pytest.raises(ZeroDivisionError), conn.transaction():
            conn.execute("DROP PUBLICATION p; DROP TABLE a")
            raise ZeroDivisionError
        history.commit()
        history.check()
        [facts] = {len(each[1].relations) for each in history.held.values()}
        assert facts == 6


SIDE_BY_SIDE = {
    "DROP INDEX a_index": "ALTER TABLE o RENAME COLUMN a TO b",
    "ALTER TABLE m DETACH PARTITION l": "ALTER TABLE o RENAME TO oo",
    "COMMENT ON PUBLICATION p IS 'x'": "ALTER PUBLICATION p SET (publish = 'truncate')",
    "ALTER PUBLICATION p ADD TABLE o": "ALTER PUBLICATION p SET (publish = 'insert')",
    "ALTER SCHEMA s RENAME TO s2": "ALTER TABLE s.b RENAME COLUMN t TO u",
}
"""What one transaction does, and what another one then does and commits before it."""


@pytest.mark.parametrize("first", SIDE_BY_SIDE)
def test_transactions_side_by_side(
    conn: ControlConnection, address: ControlAddress, first: str
) -> None:
    """What one has recorded does not come back when it commits after another one's change."""
    conn.execute(SETUP)
    for name in ("a", "o"):
        conn.execute(f"ALTER TABLE {name} ALTER id SET NOT NULL".encode())
        conn.execute(f"CREATE UNIQUE INDEX {name}_index ON {name} (id)".encode())
        conn.execute(f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {name}_index".encode())
    history = History(conn)
    with following(address), connect(address) as other:
        other.execute("SET search_path = public, pg_catalog; SET lock_timeout = '10s'")
        with conn.transaction():
            conn.execute("SELECT pg_current_xact_id()")
            conn.execute(first.encode())
            other.execute(SIDE_BY_SIDE[first].encode())
        history.commit()
        history.check()


@pytest.mark.parametrize("seed", [1, 2])
def test_any_order_of_statements(
    conn: ControlConnection, address: ControlAddress, seed: int
) -> None:
    """Statements at random, those that fail undone, some commits with several of them."""
    chance = random.Random(seed)
    conn.execute(SETUP)
    history = History(conn)
    statements = lines(STATEMENTS)
    with following(address):
        for _ in range(60):
            try:
                history.commit(chance.choices(statements, k=chance.randint(0, 2)))
            except psycopg.Error:
                continue
        assert len(history.held) > 10
        history.check()


def test_a_walsender_publishes_as_we_say(conn: ControlConnection, address: ControlAddress) -> None:
    """Rows written between changes of definitions, read by pgoutput at the end."""
    conn.execute(SETUP)
    conn.execute("SELECT pg_create_logical_replication_slot('native', 'pgoutput')")
    history = History(conn)
    named = {name: one(conn, "SELECT %s::regclass::oid::int8", name) for name in ("a", "s.b", "l")}
    steps = [
        "ALTER PUBLICATION q SET (publish = 'update')",
        "ALTER PUBLICATION q SET (publish = 'insert')",
        "ALTER PUBLICATION v SET (publish_via_partition_root = false)",
        "ALTER PUBLICATION p DROP TABLE a",
        "ALTER PUBLICATION p ADD TABLE a (id), s.b",
        "ALTER SCHEMA s RENAME TO s2",
        "ALTER TABLE a RENAME TO aa; ALTER TABLE aa REPLICA IDENTITY FULL",
        "ALTER TABLE aa RENAME COLUMN id TO i; ALTER TABLE r ADD late int",
        "ALTER PUBLICATION v SET (publish_via_partition_root)",
        "ALTER TABLE r DETACH PARTITION m",
        "ALTER PUBLICATION v ADD TABLE m",
        "ALTER TABLE m DETACH PARTITION l",
    ]
    written = []
    with following(address):
        for number, step in enumerate(["SELECT", *steps]):
            conn.execute(step.encode())
            tables = [
                name
                for (name,) in conn.execute(
                    "SELECT oid::regclass::text FROM pg_class WHERE oid = ANY (%s::oid[])",
                    [list(named.values())],
                ).fetchall()
            ]
            inserts = [
                f"INSERT INTO {name} SELECT {number % 5}" if name == "l" else
                f"INSERT INTO {name} VALUES ({number + 10}, 'x')"
                for name in tables
            ]  # fmt: skip
            written.append(history.commit(inserts))
        for names in (["p"], ["v"], ["q"], ["q", "p", "v"]):
            rows = conn.execute(
                "SELECT data FROM pg_logical_slot_peek_binary_changes('native', NULL, NULL,"
                " 'proto_version', '1', 'publication_names', %s)",
                [",".join(names)],
            ).fetchall()
            sent = {
                (commit_lsn, relation)
                for relation, of in Reference().feed([data for (data,) in rows]).rows.items()
                for _, commit_lsn, *_ in of
            }
            found = set()
            for xid in written:
                lsn = history.lsn(xid)
                facts = at(conn, names, set(named.values()), lsn).facts
                for relid in named.values():
                    plan = plan_relation(facts, relid)
                    if plan is not None and "insert" in plan.filters:
                        found.add((lsn, plan.relation))
            assert found == sent, names


def test_the_ledger_is_waited_for(conn: ControlConnection, address: ControlAddress) -> None:
    """A commit that it has not come to yet is answered when it has; without it never."""
    conn.execute(SETUP)
    history = History(conn)
    history.commit(["ALTER PUBLICATION p RENAME TO later"])
    end = parse_lsn(one(conn, "SELECT pg_current_wal_lsn()::text"))
    history.commit()
    with pytest.raises(ObjectInUseError, match="the ledger is behind"):
        definitions_at(conn, ["later"], {}, end, LAKE, patience=0.1)
    answers: list[Definitions] = []
    with connect(address) as other:
        asking = threading.Thread(target=lambda: answers.append(at(other, ["later"], set(), end)))
        asking.start()
        with following(address):
            asking.join(20)
    assert [each.facts.publications[0].name for each in answers] == ["later"]


def test_history_begins_at_the_upgrade_and_is_forgotten(
    conn: ControlConnection, address: ControlAddress
) -> None:
    """A home of an older version knows what is; what no commit needs goes, the rest stays right."""
    conn.execute("DELETE FROM penstock.definition")
    conn.execute("ALTER EVENT TRIGGER penstock_history DISABLE")
    conn.execute(SETUP)
    conn.execute("ALTER EVENT TRIGGER penstock_history ENABLE ALWAYS")
    conn.execute("SELECT penstock.begin_definitions('0/0')")
    history = History(conn)
    with following(address):
        old = history.commit()
        history.commit(["ALTER PUBLICATION p SET (publish = 'delete')", "DROP TABLE o"])
        kept = history.commit(["ALTER PUBLICATION p SET (publish = 'insert')"])
        history.commit(["ALTER TABLE a RENAME TO aa"])
        history.check()
        before = one(conn, "SELECT count(*) FROM penstock.definition")
        forget_definitions(conn, history.lsn(kept))
        assert one(conn, "SELECT count(*) FROM penstock.definition") == before - 4
        history.check(since=kept)
        with pytest.raises(WrongStateError, match="not known any more"):
            at(conn, ["p"], history.relids, history.lsn(old))
        assert last_entry(conn) > history.lsn(kept)
