# SPDX-License-Identifier: Apache-2.0
"""Queries: each is relayed, run on the lake or refused; none reads a lake table as empty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from penstock.control.connect import ControlConnection
from penstock.control.migrate import migrate
from penstock.errors import PenstockError
from penstock.frontdoor.actions import RunOnLake, WriteLake
from penstock.wire.responses import ServerError
from tests.support.fix_servers import Servers, drop_database
from tests.support.routing import Client
from tests.support.servers import PostgresServer

SCHEMA = """
CREATE TABLE lake (id int PRIMARY KEY, v text, "Mixed Case" int);
CREATE TABLE other (id int PRIMARY KEY, ref int);
CREATE TABLE "Lake T" (a int);
CREATE TABLE guarded (id int);
ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
CREATE TABLE parts (d date, v int) PARTITION BY RANGE (d);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM ('2021-01-01') TO ('2022-01-01');
CREATE SCHEMA s;
CREATE TABLE s.hidden (id int);
CREATE VIEW view_of_lake AS SELECT id, v FROM lake WHERE id > 0;
CREATE VIEW view_of_view AS SELECT count(*) FROM view_of_lake;
CREATE VIEW view_of_catalog AS SELECT relname FROM pg_class;
CREATE VIEW view_of_guarded AS SELECT * FROM guarded;
CREATE SEQUENCE numbers;
CREATE ROLE reader;
CREATE POLICY part_of_it ON guarded USING (id > 10);
CREATE TABLE split (id int) PARTITION BY RANGE (id);
CREATE TABLE split_1 PARTITION OF split FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id);
CREATE TABLE split_11 PARTITION OF split_1 FOR VALUES FROM (0) TO (10);
ALTER TABLE split ENABLE ROW LEVEL SECURITY;
CREATE POLICY part_of_it ON split USING (id > 5);
GRANT SELECT ON guarded, view_of_guarded, split, split_1, split_11 TO reader;
"""


@pytest.fixture(scope="module")
def control(servers: Servers) -> Iterator[tuple[PostgresServer, str]]:
    server = servers("18", "control")
    name = server.create_database()
    with ControlConnection.connect(server.conninfo(name), autocommit=True) as conn:
        migrate(conn)
        conn.execute(SCHEMA)
    yield server, name
    drop_database(server, name)
    with server.connect() as conn:
        conn.execute("DROP ROLE reader")


@pytest.fixture
def conn(control: tuple[PostgresServer, str]) -> Iterator[psycopg.Connection[Any]]:
    server, name = control
    with server.connect(name) as conn:
        conn.execute("CREATE TEMP TABLE mine (id int PRIMARY KEY, v text)")
        yield conn


@pytest.fixture
def client(conn: psycopg.Connection[Any]) -> Client:
    return Client(conn)


LAKE = [
    "SELECT * FROM lake",
    "select 1 from public.lake -- comment",
    "TABLE lake",
    "(((SELECT 1 FROM lake)))",
    "SELECT (SELECT count(*) FROM lake)",
    "SELECT EXISTS (SELECT FROM lake)",
    "SELECT ARRAY(SELECT id FROM lake)",
    "SELECT CASE WHEN EXISTS (TABLE lake) THEN 1 END",
    "WITH x AS (SELECT * FROM lake) SELECT count(*) FROM x",
    "WITH x AS MATERIALIZED (SELECT * FROM lake) SELECT 1 FROM x",
    "WITH RECURSIVE r(n) AS (SELECT min(id) FROM lake UNION ALL SELECT n + 1 FROM r WHERE n < 9)"
    " SELECT * FROM r",
    "SELECT lake FROM lake",
    "SELECT l.* FROM lake l, LATERAL (SELECT * FROM other o WHERE o.ref = l.id) x",
    "SELECT * FROM generate_series(1, 2) g LEFT JOIN lake ON id = g",
    "VALUES ((SELECT max(id) FROM lake))",
    "SELECT 1 UNION ALL SELECT id FROM lake",
    "SELECT * FROM ONLY lake",
    'SELECT * FROM "lake"',
    'SELECT a FROM "Lake T"',
    "SELECT * FROM LAKE",
    'SELECT "lake"."id"FROM"lake"',
    "SELECT/**/id/**/FROM/**/lake",
    "SELECT $a$x$a$AS c,id FROM lake",
    "SELECT '\\' FROM lake --'",
    "SELECT * FROM view_of_lake",
    "SELECT * FROM view_of_view",
    "SELECT * FROM s.hidden",
    "SELECT count(*) FROM parts",
    "SELECT * FROM parts WHERE d = '2020-05-05'",
    "SELECT * FROM parts WHERE d = now()::date",
    "SELECT max(id) FROM lake",
    "SELECT * FROM lake WHERE id IN (SELECT ref FROM other)",
    "SELECT * FROM lake LIMIT 0",
    "SELECT generate_series(1, (SELECT count(*) FROM lake)::int)",
    "SELECT * FROM lake ORDER BY (SELECT count(*) FROM other)",
    "SELECT * FROM (VALUES (1)) x(a) WHERE a NOT IN (SELECT id FROM lake)",
    "SELECT row_number() OVER (PARTITION BY v) FROM lake",
]


@pytest.mark.parametrize("sql", LAKE)
def test_a_query_that_reads_lake_tables_runs_on_the_lake(client: Client, sql: str) -> None:
    """However the lake table is reached, PostgreSQL does not answer from its empty relation."""
    assert client.outcome(sql) == "lake"


RELAYED = [
    "SELECT 1",
    "VALUES (1, 'lake')",
    "SELECT relname FROM pg_class WHERE relname = 'lake'",
    "SELECT 'lake'::regclass",
    "SELECT * FROM information_schema.tables WHERE table_name = 'lake'",
    "SELECT * FROM view_of_catalog",
    "SELECT * FROM mine",
    "SELECT * FROM mine FOR UPDATE",
    "SELECT * FROM pg_stat_subscription",
    "SELECT relid, version FROM penstock.table_version",
    "SELECT nextval('numbers')",
    "SELECT last_value FROM numbers",
    "SELECT set_config('search_path', 's', false)",
    "SELECT 1 AS into",
    "SELECT 1 AS lake",
    "SELECT * FROM lake WHERE false",
    "SELECT * FROM parts WHERE d = '2030-01-01'",
    "WITH x AS (INSERT INTO mine VALUES (1) RETURNING id) SELECT * FROM x",
    "-- only a comment",
    "",
]


@pytest.mark.parametrize("sql", RELAYED)
def test_a_query_that_reads_no_rows_of_lake_tables_is_relayed(client: Client, sql: str) -> None:
    """Catalogs, temporary tables and what is proved empty are the control database's own."""
    assert client.outcome(sql) == "relay"


REFUSED = [
    "SELECT * FROM lake, pg_class",
    "SELECT * FROM lake JOIN mine USING (id)",
    "SELECT (SELECT count(*) FROM lake), relname FROM pg_class",
    "SELECT * FROM mine WHERE id IN (SELECT id FROM lake)",
    "SELECT last_value FROM numbers, lake",
    "SELECT * FROM lake FOR UPDATE",
    "SELECT * FROM lake FOR KEY SHARE",
    "SELECT * FROM view_of_lake FOR SHARE",
    "SELECT * INTO copied FROM mine, lake",
    "SELECT * INTO TEMP copied FROM lake, mine",
    "SELECT query_to_xml('SELECT * FROM lake', true, false, '')",
    "SELECT pg_catalog.query_to_xml ('SELECT 1', true, false, '')",
    "SELECT \"query_to_xml\"('SELECT 1', true, false, '')",
    "SELECT table_to_xml('lake', true, false, '')",
    "SELECT ('SELECT v FROM lake'::text).ts_stat",
    "SELECT * FROM ts_stat('SELECT to_tsvector(v) FROM lake')",
    'SELECT * FROM U&"l\\0061ke"',
    "SELECT U&\"query!005fto!005fxml\" UESCAPE '!' ('SELECT 1', true, false, '')",
    "SELECT * FROM pg_logical_slot_get_changes('s', NULL, NULL)",
    "SELECT set_config('session_replication_role', 'replica', false)",
    "SELECT set_config('event_' || 'triggers', 'off', false)",
    "SELECT set_config(v, 'off', false) FROM (VALUES ('event_triggers')) x(v)",
]


@pytest.mark.parametrize("sql", REFUSED)
def test_a_query_that_the_node_cannot_answer_is_refused(client: Client, sql: str) -> None:
    """Mixtures, row locks, and functions that read behind the plan get 0A000."""
    assert client.outcome(sql) == "0A000"


def test_commit_records_cannot_be_forged(client: Client) -> None:
    """The prefix penstock belongs to the node; another constant one is PostgreSQL's affair."""
    assert client.outcome("SELECT pg_logical_emit_message(true, 'penstock', 'x')") == "42501"
    assert client.outcome("SELECT pg_logical_emit_message(true, 'pen'||'stock', 'x')") == "42501"
    assert client.outcome("SELECT pg_logical_emit_message(true, 'mine', 'x')") == "relay"


def test_the_relations_are_those_of_the_plan(client: Client) -> None:
    """RunOnLake carries the statement's text and the lake relations, partitions as leaves."""
    action = client.route("SELECT * FROM parts p JOIN lake l ON p.v = l.id")
    assert isinstance(action, RunOnLake)
    rows = client.backend.conn.execute(
        "SELECT relname FROM pg_class WHERE oid = ANY(%s) ORDER BY 1", [list(action.relids)]
    ).fetchall()
    assert [name for (name,) in rows] == ["lake", "parts_1", "parts_2"]
    assert action.sql == "SELECT * FROM parts p JOIN lake l ON p.v = l.id"


def test_names_follow_the_search_path(client: Client) -> None:
    """A name means what PostgreSQL makes of it in this session."""
    assert client.outcome("SELECT * FROM hidden") == "42P01"
    client.backend.conn.execute("SET search_path = s")
    assert client.outcome("SELECT * FROM hidden") == "lake"
    client.backend.conn.execute("SET search_path = public")
    client.backend.conn.execute("CREATE TEMP TABLE lake (id int)")
    assert client.outcome("SELECT * FROM lake") == "relay"
    assert client.outcome("SELECT * FROM public.lake") == "lake"


def test_long_names_are_cut_as_postgresql_cuts_them(client: Client) -> None:
    """A name of more than 63 bytes finds the table whose name was cut."""
    name = "ä" * 40
    client.run(f"CREATE TABLE {name} (id int)")
    assert client.outcome(f"SELECT * FROM {name}") == "lake"
    assert client.outcome(f'SELECT * FROM "{name}xyz"') == "lake"


def test_a_relation_is_known_before_its_transaction_ends(client: Client) -> None:
    """Tables, views, temporary views and renamed ones are found at once by the next statement."""
    client.run("BEGIN")
    client.run("CREATE TABLE fresh (id int)")
    assert client.outcome("SELECT * FROM fresh") == "lake"
    client.run("CREATE VIEW fresh_view AS SELECT 1 FROM fresh")
    assert client.outcome("SELECT * FROM fresh_view") == "lake"
    client.run("CREATE TEMP VIEW private_view AS SELECT 1 FROM fresh")
    assert client.outcome("SELECT * FROM private_view") == "lake"
    client.run("ALTER TABLE fresh RENAME TO renamed")
    assert client.outcome("SELECT * FROM renamed") == "lake"
    client.run("ALTER VIEW private_view RENAME TO still_private")
    assert client.outcome("SELECT * FROM still_private") == "lake"
    client.run("ROLLBACK")


def test_parameters_keep_their_declared_types(client: Client) -> None:
    """EXPLAIN gets the types that the client declared, also where none could be inferred."""
    assert client.outcome("SELECT * FROM lake WHERE id = $1", [23]) == "lake"
    assert client.outcome("SELECT * FROM lake WHERE id = ($1)[1]", [1007]) == "lake"
    assert client.outcome("SELECT $1, $2 FROM lake", [1042, 0]) == "lake"
    assert client.outcome("SELECT * FROM lake WHERE id = $1", [25]) == "42883"
    assert client.outcome("SELECT * FROM lake LIMIT $1") == "lake"


def test_a_plan_with_parameters_hides_no_table(client: Client) -> None:
    """A parameter without a value must not fold a condition to false, nor prune a partition."""
    assert client.outcome("SELECT * FROM lake WHERE id = $1 AND $1 IS NOT NULL") == "lake"
    assert client.outcome("SELECT * FROM parts WHERE d = $1") == "lake"
    assert client.outcome("SELECT * FROM lake WHERE $1", [16]) == "lake"


def test_what_a_writing_statement_must_see(client: Client) -> None:
    """Targets are written; what is read, and what is changed, must be there."""
    ids = dict(client.backend.conn.execute("SELECT relname, oid FROM pg_class").fetchall())
    lake, parts = int(ids["lake"]), int(ids["parts"])
    for sql, needed in (
        ("INSERT INTO lake (id) VALUES (1)", set()),
        ("INSERT INTO lake (id) SELECT 1 WHERE EXISTS (SELECT FROM mine)", set()),
        ("INSERT INTO lake (id) SELECT max(id) FROM lake", {lake}),
        ("INSERT INTO lake (id) VALUES (1) ON CONFLICT DO NOTHING", {lake}),
        ("DELETE FROM lake WHERE false", {lake}),
        ("WITH x AS (UPDATE lake SET id = 1 RETURNING id) SELECT * FROM x", {lake}),
    ):
        action = client.route(sql)
        assert isinstance(action, WriteLake), sql
        assert (set(action.relids), set(action.needed)) == ({lake}, needed), sql
    action = client.route("INSERT INTO lake (id) SELECT count(*) FROM parts")
    assert isinstance(action, WriteLake)
    assert parts not in action.needed
    assert len(action.needed) > 1  # its leaves
    assert client.outcome("TRUNCATE lake, parts") == "write"
    assert client.outcome("TRUNCATE lake, mine") == "0A000"
    assert client.outcome("WITH x AS (DELETE FROM mine RETURNING id) DELETE FROM lake") == "0A000"
    assert client.outcome("SELECT * FROM (SELECT 1) x, lake FOR UPDATE OF lake") == "0A000"


def test_several_statements_are_not_planned(client: Client) -> None:
    """A router gets one statement; of two, PostgreSQL must not run the second meanwhile."""
    assert client.outcome("SELECT 1 FROM lake; DELETE FROM mine") == "42601"
    assert client.outcome("SELEC 1; CREATE TABLE sneaked (id int)") == "42601"
    assert client.outcome("SELECT 'x\\'; TABLE lake; --'") == "42601"
    assert client.outcome("SELECT 1 FROM lake ;; ") == "lake"


def test_errors_are_postgresqls_own_with_their_position(client: Client) -> None:
    """psql's caret points at the place in the statement, not at that in our EXPLAIN."""
    for sql, oids, at in (
        ("SELECT nope FROM lake", (), "nope"),
        ("SELECT 'ü', $1, nope FROM lake", (20,), "nope"),
        ("SELEC 1", (), "SELEC"),
        ("PREPARE p AS SELECT nope FROM lake", (), "nope"),
        ("COPY (SELECT nope FROM lake) TO STDOUT", (), "nope"),
        ("DECLARE c CURSOR FOR SELECT nope FROM lake", (), "nope"),
        ("SELECT $1 + nope FROM lake WHERE $1 > 'x'", (23,), "nope"),
        ("INSERT INTO lake (nope) VALUES (1)", (), "nope"),
        ("SELECT 'unterminated FROM lake", (), "'unterminated"),
    ):
        with pytest.raises(PenstockError) as caught:
            client.route(sql, oids)
        assert isinstance(caught.value, ServerError)
        fields = caught.value.fields
        assert fields["P"] == str(sql.index(at) + 1), sql
        assert fields.keys() <= set("CMDHP")


def test_row_level_security_is_refused_where_it_applies(client: Client) -> None:
    """Spark knows no policies: a role that they apply to is refused, an exempt one is not."""
    assert client.outcome("SELECT * FROM guarded") == "lake"
    assert client.outcome("SELECT * FROM view_of_guarded") == "0A000"
    client.backend.conn.execute("SET ROLE reader")
    assert client.outcome("SELECT * FROM guarded") == "0A000"
    assert client.outcome("SELECT * FROM lake") == "42501"


def test_policies_above_a_partition_count_where_it_is_read(client: Client) -> None:
    """A plan names leaves only, so the policies of all above them are looked at."""
    assert client.outcome("SELECT * FROM split") == "lake"
    client.backend.conn.execute("SET ROLE reader")
    for table in ("split", "split_1"):
        for sql in ("SELECT * FROM {}", "COPY (SELECT id FROM {} WHERE id > 1) TO STDOUT"):
            assert client.outcome(sql.format(table)) == "0A000"
    assert client.outcome("COPY split_11 TO STDOUT") == "copy"  # PostgreSQL asks the table's own
    client.backend.conn.execute("SET row_security = off")
    assert client.outcome("COPY split_11 TO STDOUT") == "copy"
    assert client.outcome("COPY guarded TO STDOUT") == "42501"


def test_strings_follow_standard_conforming_strings(client: Client) -> None:
    """With backslash escapes on, other parts of a text are names; a guard must see them."""
    hidden = "SELECT '\\'' || '''', query_to_xml('SELECT 1', true, false, '')"
    shown = "SELECT '\\', query_to_xml(1) --'"
    assert client.outcome(shown) == "0A000"
    client.backend.conn.execute("SET standard_conforming_strings = off")
    assert client.outcome(hidden) == "0A000"
    assert client.outcome(shown) == "relay"


def test_a_catalog_query_asks_nothing_of_the_server(client: Client) -> None:
    """A query without a name of a user relation is relayed unseen: no round trip more."""
    client.outcome("SELECT c.relname FROM pg_catalog.pg_class c WHERE c.relkind = 'r'")
    client.outcome('SELECT c.relname AS "Name" FROM pg_catalog.pg_class c')
    assert client.backend.queries == []
