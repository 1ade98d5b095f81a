# SPDX-License-Identifier: Apache-2.0
"""Every command of PostgreSQL's SQL reference: relayed, run on the lake, or refused.

The oracle for "none reads a lake table as empty": the control database's lake tables hold rows
here, which a real one's never do, and these rows say so when they are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from penstock.control.connect import ControlConnection
from penstock.control.migrate import migrate
from penstock.errors import PenstockError
from penstock.frontdoor.actions import RunOnLake
from penstock.sql.commands_table import TREATMENTS
from penstock.sql.tokens import significant
from tests.support.fix_servers import Servers, drop_database
from tests.support.routing import Client
from tests.support.servers import PostgresServer

SCHEMA = """
CREATE TABLE lake (id int PRIMARY KEY, v text);
INSERT INTO lake VALUES (1, 'behind the back');
CREATE TABLE other (id int PRIMARY KEY, v text);
CREATE VIEW lake_view AS SELECT * FROM lake;
CREATE SEQUENCE numbers;
CREATE TYPE mood AS ENUM ('sad');
CREATE DOMAIN positive AS int;
CREATE SCHEMA s;
CREATE COLLATION plain FROM "C";
CREATE STATISTICS stats ON id, v FROM lake;
CREATE POLICY rule_of_rows ON other USING (true);
CREATE PUBLICATION pub FOR TABLE lake;
CREATE TEXT SEARCH CONFIGURATION words (COPY = simple);
CREATE TEXT SEARCH DICTIONARY dict (TEMPLATE = simple);
CREATE INDEX lake_v ON lake (v);
"""

RELAYED = """
ABORT; END; BEGIN; COMMIT; ROLLBACK; START TRANSACTION; SAVEPOINT a; RELEASE SAVEPOINT a;
ROLLBACK TO SAVEPOINT a; PREPARE TRANSACTION 'x'; COMMIT PREPARED 'x'; ROLLBACK PREPARED 'x';
SET TRANSACTION READ ONLY; SET CONSTRAINTS ALL DEFERRED; SET search_path = public; SET ROLE NONE;
SHOW search_path;
SET SESSION AUTHORIZATION DEFAULT; RESET search_path; DISCARD ALL; DEALLOCATE ALL;
DECLARE c CURSOR FOR SELECT * FROM mine; FETCH c; MOVE c; CLOSE c; LISTEN a; NOTIFY a; UNLISTEN a;
CHECKPOINT; LOCK TABLE lake; ANALYZE lake; VACUUM lake; REINDEX TABLE lake;
CLUSTER lake USING lake_pkey; COMMENT ON TABLE lake IS 'x'; SECURITY LABEL ON TABLE lake IS NULL;
GRANT SELECT ON lake TO PUBLIC; REVOKE SELECT ON lake FROM PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC; CREATE ROLE r; ALTER ROLE r NOLOGIN;
ALTER ROLE r SET work_mem = '1MB'; DROP ROLE r; CREATE USER u; ALTER USER u NOLOGIN; DROP USER u;
CREATE GROUP g; ALTER GROUP g ADD USER u; DROP GROUP g; ALTER DATABASE x SET work_mem = '1MB';
ALTER SYSTEM SET work_mem = '1MB'; ALTER LARGE OBJECT 1 OWNER TO postgres;
CREATE TABLE t (a int, b text DEFAULT 'x'); ALTER TABLE lake ADD COLUMN n int; DROP TABLE lake;
CREATE TABLE t (LIKE lake INCLUDING ALL); CREATE TEMP TABLE t (LIKE lake); CREATE INDEX ON lake (v);
CREATE INDEX CONCURRENTLY i ON lake (v); ALTER INDEX lake_v RENAME TO x; DROP INDEX lake_v;
DROP INDEX CONCURRENTLY lake_v; CREATE VIEW w AS SELECT * FROM lake;
CREATE TEMP VIEW w AS SELECT * FROM lake; ALTER VIEW lake_view RENAME TO x; DROP VIEW lake_view;
CREATE SEQUENCE q OWNED BY lake.id; ALTER SEQUENCE numbers RESTART; DROP SEQUENCE numbers;
CREATE SCHEMA n CREATE TABLE t (a int); ALTER SCHEMA s RENAME TO x; DROP SCHEMA s CASCADE;
CREATE TYPE e AS ENUM ('a'); CREATE TYPE c AS (a int); ALTER TYPE mood ADD VALUE 'x';
DROP TYPE mood; CREATE DOMAIN d AS int; ALTER DOMAIN positive SET NOT NULL; DROP DOMAIN positive;
CREATE COLLATION co FROM "C"; ALTER COLLATION plain RENAME TO x; DROP COLLATION plain;
CREATE STATISTICS st ON id, v FROM lake; ALTER STATISTICS stats RENAME TO x; DROP STATISTICS stats;
CREATE POLICY po ON lake USING (true); ALTER POLICY rule_of_rows ON other RENAME TO x;
DROP POLICY rule_of_rows ON other; CREATE PUBLICATION p2 FOR TABLE lake WHERE (id > 1);
ALTER PUBLICATION pub ADD TABLE other; DROP PUBLICATION pub;
CREATE TEXT SEARCH CONFIGURATION w2 (COPY = simple);
ALTER TEXT SEARCH CONFIGURATION words RENAME TO x; DROP TEXT SEARCH CONFIGURATION words;
CREATE TEXT SEARCH DICTIONARY d2 (TEMPLATE = simple); ALTER TEXT SEARCH DICTIONARY dict RENAME TO x;
DROP TEXT SEARCH DICTIONARY dict; DROP TEXT SEARCH PARSER IF EXISTS x;
DROP TEXT SEARCH TEMPLATE IF EXISTS x; DROP FUNCTION IF EXISTS x(); DROP PROCEDURE IF EXISTS x();
DROP ROUTINE IF EXISTS x(); DROP AGGREGATE IF EXISTS x(int); DROP OPERATOR IF EXISTS + (mood, mood);
DROP CAST IF EXISTS (mood AS int); DROP OPERATOR CLASS IF EXISTS x USING btree;
DROP OPERATOR FAMILY IF EXISTS x USING btree; DROP CONVERSION IF EXISTS x;
DROP LANGUAGE IF EXISTS x; DROP TRANSFORM IF EXISTS FOR int LANGUAGE sql;
DROP TRIGGER IF EXISTS x ON lake; DROP RULE IF EXISTS x ON lake; DROP EXTENSION IF EXISTS x;
DROP MATERIALIZED VIEW IF EXISTS x; ALTER MATERIALIZED VIEW IF EXISTS x RENAME TO y;
DROP FOREIGN TABLE IF EXISTS x; DROP SERVER IF EXISTS x; DROP FOREIGN DATA WRAPPER IF EXISTS x;
DROP USER MAPPING IF EXISTS FOR PUBLIC SERVER x; DROP ACCESS METHOD IF EXISTS x;
CREATE EXTENSION IF NOT EXISTS plpgsql; ALTER EXTENSION plpgsql UPDATE; DROP OWNED BY CURRENT_USER;
REASSIGN OWNED BY CURRENT_USER TO postgres;
CREATE SUBSCRIPTION s CONNECTION '' PUBLICATION p WITH (connect = false);
ALTER SUBSCRIPTION s DISABLE; DROP SUBSCRIPTION s;
INSERT INTO mine VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET v = 'y' RETURNING *;
UPDATE mine SET v = 'z'; DELETE FROM mine; TRUNCATE mine; TRUNCATE pg_temp.mine CASCADE;
MERGE INTO mine USING (VALUES (1)) x(a) ON id = a WHEN MATCHED THEN DELETE; COPY mine TO STDOUT;
COPY mine FROM STDIN; COPY (SELECT 1) TO STDOUT; COPY pg_class TO STDOUT;
EXPLAIN SELECT * FROM mine; EXPLAIN ANALYZE SELECT * FROM mine; EXPLAIN UPDATE mine SET v = 'x';
PREPARE a1 AS SELECT * FROM mine; EXECUTE unknown; CREATE TEMP TABLE t AS SELECT * FROM mine;
CREATE TABLE pg_temp.t AS SELECT 1; SELECT * INTO TEMP t FROM mine;
CREATE TEMP TABLE t AS TABLE mine; INSERT INTO mine SELECT 1, relname FROM pg_class;
UPDATE mine SET v = relname FROM pg_class;
"""

ON_LAKE = """
SELECT * FROM lake; TABLE lake; VALUES ((SELECT v FROM lake)); WITH x AS (TABLE lake) TABLE x;
SELECT * FROM lake_view;
"""

COPIED = """
COPY lake TO STDOUT; COPY lake (id) TO STDOUT; COPY (TABLE lake) TO STDOUT (FORMAT csv);
COPY (SELECT count(*) FROM lake_view) TO STDOUT; COPY BINARY lake TO STDOUT;
COPY public . lake TO STDOUT; COPY lake TO STDIN WITH CSV HEADER;
"""

WRITING = """
INSERT INTO lake VALUES (1); UPDATE lake SET v = 'x'; DELETE FROM lake; TRUNCATE lake;
TRUNCATE ONLY (lake); UPDATE lake_view SET v = 'x'; DELETE FROM lake WHERE false;
MERGE INTO lake USING mine ON lake.id = mine.id WHEN MATCHED THEN DELETE;
INSERT INTO lake SELECT * FROM lake_view ON CONFLICT DO NOTHING; COPY lake FROM STDIN;
WITH x AS (DELETE FROM lake RETURNING *) SELECT * FROM x; COPY lake (id) FROM STDIN (FORMAT csv);
"""

REFUSED = """
ALTER AGGREGATE x(int) RENAME TO y; ALTER CONVERSION x RENAME TO y;
ALTER EVENT TRIGGER penstock_ddl DISABLE; ALTER FOREIGN DATA WRAPPER x OPTIONS (a 'b');
ALTER FOREIGN TABLE x RENAME TO y; ALTER FUNCTION query_to_xml(text, bool, bool, text) RENAME TO y;
ALTER LANGUAGE plpgsql RENAME TO y; ALTER OPERATOR + (int, int) OWNER TO x;
ALTER OPERATOR CLASS x USING btree RENAME TO y; ALTER OPERATOR FAMILY x USING btree RENAME TO y;
ALTER PROCEDURE x() RENAME TO y; ALTER ROUTINE x() RENAME TO y; ALTER RULE x ON lake RENAME TO y;
ALTER SERVER x RENAME TO y; ALTER TABLESPACE x RENAME TO y; ALTER TEXT SEARCH PARSER x RENAME TO y;
ALTER TEXT SEARCH TEMPLATE x RENAME TO y; ALTER TRIGGER x ON lake RENAME TO y;
ALTER USER MAPPING FOR PUBLIC SERVER x OPTIONS (a 'b'); CALL x();
CREATE ACCESS METHOD x TYPE TABLE HANDLER y; CREATE AGGREGATE x(int) (SFUNC = int4pl, STYPE = int);
CREATE CAST (int AS mood) WITHOUT FUNCTION; CREATE CONVERSION x FOR 'a' TO 'b' FROM c;
CREATE DATABASE x; CREATE EVENT TRIGGER x ON sql_drop EXECUTE FUNCTION f();
CREATE FOREIGN DATA WRAPPER x; CREATE FOREIGN TABLE x (a int) SERVER y;
CREATE FUNCTION x() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM lake'; CREATE LANGUAGE x;
CREATE FUNCTION x() RETURNS bigint BEGIN ATOMIC SELECT count(*) FROM lake! END;
CREATE MATERIALIZED VIEW x AS SELECT * FROM lake; CREATE OPERATOR + (FUNCTION = int4pl);
CREATE OPERATOR CLASS x FOR TYPE int USING btree AS STORAGE int;
CREATE OPERATOR FAMILY x USING btree; CREATE PROCEDURE x() LANGUAGE sql AS 'DELETE FROM lake';
CREATE RULE x AS ON SELECT TO lake DO INSTEAD SELECT 1; CREATE SERVER x FOREIGN DATA WRAPPER y;
CREATE TABLE x AS SELECT * FROM mine, lake; CREATE TABLE x AS EXECUTE y;
CREATE TABLESPACE x LOCATION '/'; CREATE TEXT SEARCH PARSER x (START = y);
CREATE TEXT SEARCH TEMPLATE x (LEXIZE = y);
CREATE TRANSFORM FOR int LANGUAGE sql (FROM SQL WITH FUNCTION x(internal));
CREATE TRIGGER x AFTER INSERT ON lake EXECUTE FUNCTION f(); CREATE USER MAPPING FOR PUBLIC SERVER x;
DO 'BEGIN DELETE FROM lake! END'; DROP DATABASE x; DROP EVENT TRIGGER penstock_ddl;
DROP TABLESPACE x; IMPORT FOREIGN SCHEMA x FROM SERVER y INTO z; LOAD 'x';
REFRESH MATERIALIZED VIEW x; SELECT * INTO x FROM lake, mine; CREATE EXTENSION dblink;
CREATE TYPE x; CREATE TYPE x (INPUT = a, OUTPUT = b);
ALTER TABLE lake DETACH PARTITION x CONCURRENTLY;
ALTER SYSTEM SET max_logical_replication_workers = 4; SET session_replication_role = replica;
TRUNCATE mine, lake; WITH x AS (DELETE FROM mine RETURNING id) DELETE FROM lake;
MERGE INTO mine USING lake ON lake.id = mine.id WHEN MATCHED THEN DELETE;
INSERT INTO mine SELECT * FROM lake; INSERT INTO mine VALUES ((SELECT max(id) FROM lake));
INSERT INTO mine VALUES (1) RETURNING (SELECT count(*) FROM lake);
INSERT INTO mine VALUES (1) ON CONFLICT (id) DO UPDATE SET v = (SELECT max(v) FROM lake);
UPDATE mine SET v = lake.v FROM lake; DELETE FROM mine USING lake WHERE lake.id = mine.id;
DELETE FROM mine WHERE EXISTS (SELECT FROM lake_view);
WITH x AS (DELETE FROM mine RETURNING *) SELECT * FROM x, lake;
WITH x AS (SELECT * FROM lake) INSERT INTO mine SELECT * FROM x; COPY lake FROM '/x';
COPY lake TO '/x'; COPY lake TO PROGRAM 'x'; COPY (TABLE lake) TO '/x' CSV;
COPY (DELETE FROM lake RETURNING *) TO STDOUT;
EXPLAIN UPDATE lake SET v = 'x'; EXPLAIN ANALYZE SELECT * FROM lake;
EXPLAIN (ANALYZE) DELETE FROM lake; EXPLAIN (FORMAT JSON) SELECT * FROM lake;
EXPLAIN ANALYZE CREATE TEMP TABLE x AS SELECT * FROM lake;
EXPLAIN ANALYZE DECLARE c CURSOR FOR SELECT * FROM lake; EXPLAIN REFRESH MATERIALIZED VIEW x;
PREPARE a2 AS SELECT * FROM lake; PREPARE a3 AS DELETE FROM lake;
PREPARE a4(int) AS TABLE lake_view; DECLARE c CURSOR FOR SELECT * FROM lake, mine;
CREATE TEMP TABLE t AS SELECT * FROM lake, mine; SELECT * INTO TEMP t FROM lake, mine;
LOCKED NONSENSE;
"""

NOT_PERMITTED = """
INSERT INTO penstock.node DEFAULT VALUES; DELETE FROM penstock.table_version;
TRUNCATE penstock.commit; UPDATE pg_class SET relname = 'x'; DELETE FROM pg_event_trigger;
COPY pg_class FROM STDIN; COPY penstock.node FROM STDIN; DROP TABLE penstock.node;
ALTER TABLE penstock.node ADD x int; DROP SCHEMA penstock CASCADE;
ALTER SCHEMA "penstock" RENAME TO x; LOCK TABLE penstock.table_version;
CREATE PUBLICATION x FOR TABLES IN SCHEMA penstock;
GRANT ALL ON ALL TABLES IN SCHEMA penstock TO PUBLIC; CREATE VIEW penstock.x AS SELECT 1;
DROP SCHEMA s, penstock; DROP SCHEMA penstock_query; ALTER SCHEMA penstock_query RENAME TO x;
"""


def each(text: str) -> list[str]:
    """The statements of a list; ! stands for a semicolon inside of one."""
    return [part.strip().replace("!", ";") for part in text.split(";") if part.strip()]


@pytest.fixture(scope="module")
def control(servers: Servers) -> Iterator[tuple[PostgresServer, str]]:
    server = servers("18", "control")
    name = server.create_database()
    with ControlConnection.connect(server.conninfo(name), autocommit=True) as conn:
        migrate(conn)
        conn.execute(SCHEMA)
    yield server, name
    drop_database(server, name)


@pytest.fixture
def conn(control: tuple[PostgresServer, str]) -> Iterator[psycopg.Connection[Any]]:
    server, name = control
    with server.connect(name) as conn:
        conn.execute("CREATE TEMP TABLE mine (id int PRIMARY KEY, v text)")
        yield conn


@pytest.fixture
def client(conn: psycopg.Connection[Any]) -> Client:
    return Client(conn)


def test_the_table_has_every_command_of_psqls_help(control: tuple[PostgresServer, str]) -> None:
    r"""What psql's \h lists, and nothing else, has a treatment."""
    server, name = control
    lines = server.psql("\\h", name).splitlines()[1:]
    second = lines[0].index("CREATE")  # two columns; the longest name fills the first one
    listed = {part.strip() for line in lines for part in (line[:second], line[second:])}
    assert listed - {""} == set(TREATMENTS)


def test_every_command_is_tried_below() -> None:
    """A command that nobody tried could be anything."""
    tried = "\n".join(each(RELAYED) + each(ON_LAKE) + each(REFUSED))
    for name in TREATMENTS:
        words = {"CREATE TABLE AS": "CREATE TABLE .* AS", "SELECT INTO": "SELECT .* INTO"}
        pattern = words.get(name, re.escape(name).replace("\\ ", r"\s+(TABLE\s+)?"))
        assert re.search(rf"^{pattern}\b", tried, re.MULTILINE), name


@pytest.mark.parametrize("sql", each(RELAYED))
def test_commands_that_are_relayed(client: Client, sql: str) -> None:
    """They touch no rows of lake tables."""
    assert client.outcome(sql) == "relay"


@pytest.mark.parametrize("sql", each(WRITING))
def test_commands_that_write_the_lake(client: Client, sql: str) -> None:
    """They are run inside of a savepoint, on relations that have the lake's rows."""
    assert client.outcome(sql) == "write"


@pytest.mark.parametrize("sql", each(ON_LAKE))
def test_commands_that_run_on_the_lake(client: Client, sql: str) -> None:
    """Queries do, and only they."""
    assert client.outcome(sql) == "lake"


@pytest.mark.parametrize("sql", each(COPIED))
def test_copies_to_the_client(client: Client, sql: str) -> None:
    """The lake sends the rows."""
    assert client.outcome(sql) == "copy"


@pytest.mark.parametrize("sql", each(REFUSED))
def test_commands_that_are_refused(client: Client, sql: str) -> None:
    """0A000 with a reason; a text that is no command is PostgreSQL's syntax error."""
    with pytest.raises(PenstockError) as caught:
        client.route(sql)
    expected = "42601" if "NONSENSE" in sql else "0A000"
    assert caught.value.sqlstate == expected
    assert expected == "42601" or caught.value.detail or caught.value.hint


@pytest.mark.parametrize("sql", each(NOT_PERMITTED))
def test_commands_on_what_is_the_nodes_own(client: Client, sql: str) -> None:
    """Superusers too leave the catalogs and the schema penstock alone."""
    assert client.outcome(sql) == "42501"


READING = [
    sql
    for sql in each(RELAYED) + each(ON_LAKE) + each(REFUSED)
    if re.match("select|table|values|with|copy|execute|fetch|explain|show", sql, re.IGNORECASE)
]


@pytest.mark.parametrize("sql", READING)
def test_nothing_relayed_shows_a_row_of_a_lake_table(
    client: Client, conn: psycopg.Connection[Any], sql: str
) -> None:
    """Whatever is relayed, its answer does not come from the lake table's relation."""
    try:
        action = client.route(sql)
    except PenstockError:
        return
    if isinstance(action, RunOnLake) or "STDIN" in sql:
        return
    shown = ""
    try:
        if sql.startswith("COPY"):
            with conn.cursor().copy(sql.encode()) as copy:
                shown = "".join(bytes(block).decode() for block in copy)
        else:
            cursor = conn.execute(sql.encode())
            shown = str(cursor.fetchall()) if cursor.description else ""
    except psycopg.Error:
        return
    assert "behind the back" not in shown


def test_a_prepared_statement_is_checked_again(client: Client) -> None:
    """What a name means may change between PREPARE and EXECUTE."""
    client.run("CREATE TEMP VIEW changing AS SELECT 'harmless' AS v")
    client.run("PREPARE asks(int) AS SELECT v FROM changing WHERE $1 > 0")
    assert client.run("EXECUTE asks(1)") == [("harmless",)]
    client.run("CREATE OR REPLACE TEMP VIEW changing AS SELECT v FROM lake")
    assert client.outcome("EXECUTE asks(1)") == "0A000"
    assert client.outcome("EXPLAIN ANALYZE EXECUTE asks(1)") == "0A000"
    assert client.outcome("CREATE TEMP TABLE t AS EXECUTE asks(1)") == "0A000"
    client.run("CREATE TEMP TABLE shadow (v text)")
    client.run("CREATE TEMP TABLE other (v text)")
    client.run("PREPARE by_path AS SELECT v FROM other")
    assert client.outcome("EXECUTE by_path") == "relay"
    client.run("DROP TABLE pg_temp.other")
    assert client.outcome("EXECUTE by_path") == "0A000"


def test_a_statement_prepared_by_the_protocol_is_checked_too(client: Client) -> None:
    """EXECUTE also finds statements that Parse has named."""
    client.backend.conn.pgconn.prepare(b"named", b"SELECT v FROM lake WHERE id = $1")
    assert client.outcome("EXECUTE named(1)") == "0A000"
    client.backend.conn.pgconn.prepare(b"harmless", b"SELECT $1::text")
    assert client.outcome("EXECUTE harmless('x')") == "relay"


def test_settings_cannot_change_through_a_view(client: Client) -> None:
    """pg_settings has a rule that calls set_config."""
    sql = "UPDATE pg_settings SET setting = 'replica' WHERE name = 'session_replication_role'"
    assert client.outcome(sql) == "0A000"


def test_failed_transactions_say_so(client: Client) -> None:
    """In a failed block a query on the lake gets PostgreSQL's 25P02, ROLLBACK is relayed."""
    client.run("BEGIN")
    with pytest.raises(PenstockError):
        client.run("SELECT nope FROM pg_class")
    assert client.outcome("SELECT * FROM lake") == "25P02"
    assert client.outcome("ROLLBACK") == "relay"


def test_a_statement_that_breaks_off_is_an_error_of_the_statement(client: Client) -> None:
    """Whatever is missing at the end, the answer is an action or an error with a SQLSTATE."""
    texts = (RELAYED, ON_LAKE, COPIED, WRITING, REFUSED, NOT_PERMITTED)
    for sql in [sql for text in texts for sql in each(text)]:
        for token in significant(sql)[:-1]:
            outcome = client.outcome(sql[: token.end])
            assert re.fullmatch("relay|lake|write|copy|(?!XX)[0-9A-Z]{5}", outcome), sql[
                : token.end
            ]
