# SPDX-License-Identifier: Apache-2.0
"""Subscription commands around a real control database and real publishers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import TupleRow

from penstock.control.address import ControlAddress
from penstock.control.connect import ControlConnection
from penstock.control.migrate import migrate
from penstock.errors import PenstockError
from penstock.frontdoor.definitions.subscription import SubscriptionRouter
from penstock.frontdoor.routing.known_names import KnownNames
from tests.support.fix_servers import Database
from tests.support.routing import Client
from tests.support.servers import SUPERUSER, PostgresServer

PUBLISHED = """
CREATE SCHEMA shop;
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN very_positive AS positive;
CREATE TABLE shop.orders (
    id bigint, line int, "Note; DROP TABLE" varchar(20) NOT NULL, price numeric(12,2),
    at timestamptz, tags text[], how mood, hows mood[], n very_positive, doc jsonb, code char(3),
    secret text,
    twice bigint GENERATED ALWAYS AS (id * 2) STORED, PRIMARY KEY (line, id));
CREATE TABLE plain (a int, b text);
CREATE TABLE by_index (a int, b int NOT NULL);
CREATE UNIQUE INDEX by_index_b ON by_index (b) INCLUDE (a);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_b;
CREATE TABLE listed (id int PRIMARY KEY, b text, c text);
CREATE TABLE root (id int, d date, PRIMARY KEY (id, d)) PARTITION BY RANGE (d);
CREATE TABLE root_2020 PARTITION OF root FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
CREATE TABLE there (id int PRIMARY KEY);
CREATE PUBLICATION p FOR TABLE shop.orders, plain, by_index, listed (b, c), there;
CREATE PUBLICATION via_root FOR TABLE root WITH (publish_via_partition_root = true);
CREATE PUBLICATION via_leaf FOR TABLE root;
CREATE TABLE late (id int PRIMARY KEY);
CREATE PUBLICATION later FOR TABLE late;
CREATE PUBLICATION empty;
"""

DEFINITION = """
SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod)
                  || CASE WHEN attnotnull THEN '!' ELSE '' END, ', ' ORDER BY attnum)
       || coalesce(' ' || (SELECT pg_get_constraintdef(oid) FROM pg_constraint
                           WHERE conrelid = attrelid AND contype = 'p'), '')
FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 GROUP BY attrelid"""


class Workers:
    """The Subscriptions port: remembers what was asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def stop(self, name: str) -> None:
        self.calls.append(f"stop {name}")

    def wake(self, name: str) -> None:
        self.calls.append("wake")


@pytest.fixture(scope="module")
def control(server_folder: Path) -> Iterator[PostgresServer]:
    """A server whose own workers never run, as a control database must be."""
    server = PostgresServer(
        server_folder / "subscription-control", settings={"max_logical_replication_workers": "0"}
    ).start()
    yield server
    server.remove()


@pytest.fixture
def database(control: PostgresServer) -> Iterator[str]:
    name = control.create_database()
    with ControlConnection.connect(control.conninfo(name), autocommit=True) as conn:
        migrate(conn)
    yield name
    with control.connect(name) as conn:
        for (subscription,) in conn.execute("SELECT subname FROM pg_subscription").fetchall():
            conn.execute(f'ALTER SUBSCRIPTION "{subscription}" DISABLE')
            conn.execute(f'ALTER SUBSCRIPTION "{subscription}" SET (slot_name = NONE)')
            conn.execute(f'DROP SUBSCRIPTION "{subscription}"')


@pytest.fixture
def conn(control: PostgresServer, database: str) -> Iterator[psycopg.Connection[TupleRow]]:
    with control.connect(database) as conn:
        yield conn


@pytest.fixture
def workers() -> Workers:
    return Workers()


@pytest.fixture
def client(
    control: PostgresServer, database: str, conn: psycopg.Connection[TupleRow], workers: Workers
) -> Client:
    address = ControlAddress("127.0.0.1", control.port, database, SUPERUSER, "")
    return Client(conn, SubscriptionRouter(address, KnownNames(), workers, SUPERUSER, 60.0))


def one(conn: psycopg.Connection[TupleRow], query: str, *parameters: object) -> object:
    row = conn.execute(query, parameters).fetchone()
    return None if row is None else row[0]


def tables(conn: psycopg.Connection[TupleRow]) -> set[str]:
    rows = conn.execute(
        "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND oid >= 16384"
        " AND relnamespace <> 'penstock'::regnamespace"
    ).fetchall()
    return {name for (name,) in rows}


def create(publisher: Database, publications: str, options: str = "") -> str:
    return (
        f"CREATE SUBSCRIPTION s CONNECTION '{publisher.conninfo}'"
        f" PUBLICATION {publications} {options}"
    )


@pytest.mark.parametrize("publisher", ["15", "16", "18"], indirect=True)
def test_missing_tables_are_created_as_the_publisher_has_them(
    client: Client,
    conn: psycopg.Connection[TupleRow],
    publisher_db: Database,
    workers: Workers,
) -> None:
    """Columns, types, NOT NULL and key follow the publisher; existing tables are left alone."""
    publisher_db.psql(PUBLISHED)
    client.run("CREATE TABLE there (id int PRIMARY KEY, more text)")
    client.run(create(publisher_db, "p, via_root", "WITH (schema_changes = error)"))
    assert tables(conn) == {
        "shop.orders", "plain", "by_index", "listed", "root", "there",
    }  # fmt: skip
    assert one(conn, DEFINITION, "shop.orders") == (
        "id bigint!, line integer!, Note; DROP TABLE character varying(20)!, price numeric(12,2),"
        " at timestamp with time zone, tags text[], how text, hows text, n integer, doc jsonb,"
        " code character(3), secret text PRIMARY KEY (line, id)"
    )
    assert one(conn, DEFINITION, "plain") == "a integer, b text"
    assert one(conn, DEFINITION, "by_index") == "a integer, b integer! PRIMARY KEY (b)"
    assert one(conn, DEFINITION, "listed") == "b text, c text"
    assert one(conn, DEFINITION, "root") == "id integer!, d date! PRIMARY KEY (id, d)"
    assert one(conn, DEFINITION, "there") == "id integer!, more text PRIMARY KEY (id)"
    assert one(conn, "SELECT count(*) FROM pg_subscription_rel") == 6
    assert one(conn, "SELECT count(*) FROM penstock.table_version") == 6
    assert conn.execute(
        "SELECT create_tables, schema_changes FROM penstock.subscription_option"
    ).fetchall() == [(True, "error")]
    assert workers.calls == ["stop s", "wake"]


def test_types_that_exist_here_are_used(
    client: Client, conn: psycopg.Connection[TupleRow], publisher_db: Database
) -> None:
    """An enum or domain of the same name is the column's type."""
    publisher_db.psql(PUBLISHED)
    conn.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
    conn.execute("CREATE DOMAIN very_positive AS int")
    client.run(create(publisher_db, "p"))
    definition = str(one(conn, DEFINITION, "shop.orders"))
    assert "how mood, hows mood[], n very_positive" in definition


def test_partitions_are_created_when_published_as_such(
    client: Client, conn: psycopg.Connection[TupleRow], publisher_db: Database
) -> None:
    """Without publish_via_partition_root the leaf is the published table."""
    publisher_db.psql(PUBLISHED)
    client.run(create(publisher_db, "via_leaf"))
    assert tables(conn) == {"root_2020"}


def test_a_failed_command_leaves_no_tables(
    client: Client,
    conn: psycopg.Connection[TupleRow],
    publisher_db: Database,
    workers: Workers,
) -> None:
    """What was created for it is dropped again, schema included; the workers go on."""
    publisher_db.psql(PUBLISHED)
    with pytest.raises(PenstockError, match="unrecognized subscription parameter"):
        client.run(create(publisher_db, "p", "WITH (nonsense = 1)"))
    assert tables(conn) == set()
    assert one(conn, "SELECT to_regnamespace('shop')") is None
    assert workers.calls == ["stop s", "wake"]


def test_without_create_tables_it_is_postgresqls_command(
    client: Client, conn: psycopg.Connection[TupleRow], publisher_db: Database
) -> None:
    """create_tables = false: a missing table is PostgreSQL's error."""
    publisher_db.psql(PUBLISHED)
    with pytest.raises(PenstockError, match="does not exist") as caught:
        client.run(create(publisher_db, "p", "WITH (create_tables = false)"))
    assert caught.value.sqlstate == "42P01"
    assert tables(conn) == set()


def test_connect_false_contacts_nothing(client: Client, conn: psycopg.Connection[TupleRow]) -> None:
    """The second scenario of slot management: no connection, no tables, in a block too."""
    sql = "CREATE SUBSCRIPTION s CONNECTION 'host=192.0.2.1' PUBLICATION p WITH (connect = false)"
    client.run("BEGIN")
    client.run(sql)
    client.run("COMMIT")
    assert one(conn, "SELECT subname FROM pg_subscription") == "s"
    client.run("ALTER SUBSCRIPTION s SET (slot_name = NONE)")
    client.run("DROP SUBSCRIPTION s")
    with pytest.raises(PenstockError, match="mutually exclusive"):
        client.run(sql.replace("false)", "false, create_tables)"))


def test_an_unreachable_publisher_is_postgresqls_error(client: Client) -> None:
    """Its words, and no password in them."""
    with pytest.raises(PenstockError, match="could not connect to the publisher") as caught:
        client.run(
            "CREATE SUBSCRIPTION s CONNECTION 'host=127.0.0.1 port=1 password=canary-7'"
            " PUBLICATION p"
        )
    assert "canary" not in str(caught.value)
    with pytest.raises(PenstockError, match="invalid connection string syntax"):
        client.run("CREATE SUBSCRIPTION s CONNECTION 'nonsense' PUBLICATION p")


def test_tables_are_created_on_refresh_and_on_new_publications(
    client: Client,
    conn: psycopg.Connection[TupleRow],
    publisher_db: Database,
    workers: Workers,
) -> None:
    """Where PostgreSQL looks up the tables of the publications, missing ones are made first."""
    publisher_db.psql(PUBLISHED)
    client.run(create(publisher_db, "empty"))
    assert tables(conn) == set()
    client.run("ALTER SUBSCRIPTION s ADD PUBLICATION later")
    assert tables(conn) == {"late"}
    client.run("ALTER SUBSCRIPTION s SET PUBLICATION via_root WITH (refresh = false)")
    assert tables(conn) == {"late"}
    client.run("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
    assert tables(conn) == {"late", "root"}
    publisher_db.psql("CREATE TABLE more (id int); ALTER PUBLICATION via_root ADD TABLE more")
    client.run("ALTER SUBSCRIPTION s SET (create_tables = false)")
    with pytest.raises(PenstockError, match="does not exist"):
        client.run("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
    client.run("ALTER SUBSCRIPTION s SET (create_tables, synchronous_commit = local)")
    client.run("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
    assert tables(conn) == {"late", "root", "more"}
    assert one(conn, "SELECT subsynccommit FROM pg_subscription") == "local"
    assert workers.calls.count("wake") == 8
    assert workers.calls.count("stop s") == 6


def test_only_the_owner_makes_the_node_connect(
    client: Client, conn: psycopg.Connection[TupleRow], publisher_db: Database
) -> None:
    """Others get PostgreSQL's refusal, and nothing is created for them."""
    publisher_db.psql(PUBLISHED)
    client.run(create(publisher_db, "empty"))
    publisher_db.psql("ALTER PUBLICATION empty ADD TABLE late")
    conn.execute("DROP ROLE IF EXISTS outsider")
    conn.execute("CREATE ROLE outsider")
    conn.execute("GRANT CREATE ON SCHEMA public TO outsider")
    conn.execute("SET ROLE outsider")
    for sql in (
        "ALTER SUBSCRIPTION s REFRESH PUBLICATION",
        "ALTER SUBSCRIPTION s SET (create_tables = false)",
        create(publisher_db, "p").replace("s ", "t ", 1),
    ):
        with pytest.raises(PenstockError) as caught:
            client.run(sql)
        assert caught.value.sqlstate == "42501"
    conn.execute("RESET ROLE")
    assert tables(conn) == set()
    conn.execute("DROP OWNED BY outsider")
    conn.execute("DROP ROLE outsider")


def test_workers_stop_where_postgresql_stops_its_own(
    client: Client, conn: psycopg.Connection[TupleRow], publisher_db: Database, workers: Workers
) -> None:
    """Slot and origin are free when a command needs them; other commands only wake."""
    publisher_db.psql(PUBLISHED)
    client.run(create(publisher_db, "empty"))
    for sql, calls in (
        (f"ALTER SUBSCRIPTION s CONNECTION '{publisher_db.conninfo}'", ["stop s", "wake"]),
        ("ALTER SUBSCRIPTION s SET (streaming = on)", ["wake"]),
        ("ALTER SUBSCRIPTION s DISABLE", ["stop s", "wake"]),
        ("ALTER SUBSCRIPTION s SET (slot_name = NONE)", ["stop s", "wake"]),
        ("ALTER SUBSCRIPTION s SET (slot_name = s)", ["stop s", "wake"]),
        ("ALTER SUBSCRIPTION s ENABLE", ["wake"]),
        ("ALTER SUBSCRIPTION s RENAME TO t", ["wake"]),
        ("DROP SUBSCRIPTION t", ["stop t", "wake"]),
        ("DROP SUBSCRIPTION IF EXISTS t", ["stop t", "wake"]),
    ):
        workers.calls.clear()
        client.run(sql)
        assert workers.calls == calls, sql
    assert (
        publisher_db.psql("SELECT count(*) FROM pg_replication_slots WHERE slot_name = 's'") == "0"
    )
    workers.calls.clear()
    with pytest.raises(PenstockError, match="does not exist"):
        client.run("DROP SUBSCRIPTION t")
    assert workers.calls == ["stop t", "wake"]
