# SPDX-License-Identifier: Apache-2.0
"""The schema in the control database: applied once, DDL recorded, misfits refused."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import psycopg
import pytest

from penstock.control.catalog import subscription_relations, subscriptions
from penstock.control.claim import claim
from penstock.control.connect import ControlConnection, connect
from penstock.control.migrate import Migration, migrate, migrations
from penstock.control.programs import packaged_programs
from penstock.errors import ConfigurationError, ObjectInUseError
from tests.support.control import Control, one, relid
from tests.support.waits import wait_until

_numbers = count(1)


@pytest.fixture
def conn(control: Control) -> Iterator[ControlConnection]:
    """A connection whose unqualified names are in a new schema of the test's own."""
    with control.connect() as made:
        schema = f"s{next(_numbers)}"
        made.execute(f"CREATE SCHEMA {schema}")
        made.execute(f"SET search_path = {schema}")
        yield made


def registered(conn: ControlConnection, name: str) -> tuple[str, int | None] | None:
    """Location and version of a relation of the test's schema, None when it has no row."""
    query = "SELECT location, version FROM penstock.table_version WHERE relid = %s::regclass"
    row = conn.execute(query, [name]).fetchone()
    return None if row is None else (row[0], row[1])


def events(conn: ControlConnection, after: int) -> list[tuple[str, str, str]]:
    """Tag, object type and identity of the events since an id."""
    query = "SELECT tag, object_type, identity FROM penstock.ddl_event WHERE id > %s ORDER BY id"
    return [(row[0], row[1], row[2]) for row in conn.execute(query, [after]).fetchall()]


def last_event(conn: ControlConnection) -> int:
    number: int = one(conn, "SELECT coalesce(max(id), 0) FROM penstock.ddl_event")
    return number


# --- steps ------------------------------------------------------------------------------------


def test_second_migration_does_nothing(conn: ControlConnection) -> None:
    """Each step is applied once and recorded with its checksum."""
    assert migrate(conn) == []
    recorded = conn.execute(
        "SELECT name, checksum FROM penstock.schema_version ORDER BY number"
    ).fetchall()
    assert recorded == [(step.name, step.checksum) for step in migrations()]


def test_new_step_is_applied_to_an_old_schema(conn: ControlConnection) -> None:
    """A database of an older version gets what it lacks, and nothing twice."""
    newer = [*migrations(), Migration(900, "900_new", "CREATE TABLE penstock.new_one (a int)")]
    assert migrate(conn, newer) == ["900_new"]
    assert migrate(conn, newer) == []
    conn.execute("DELETE FROM penstock.schema_version WHERE number = 900")
    conn.execute("DROP TABLE penstock.new_one")


def test_newer_schema_is_refused(conn: ControlConnection) -> None:
    """A step that this version does not know was applied by a newer one."""
    with pytest.raises(ConfigurationError, match="newer version"):
        migrate(conn, migrations()[:-1])


def test_changed_step_is_refused(conn: ControlConnection) -> None:
    """A file must not change after it has been applied."""
    steps = migrations()
    steps[0] = replace(steps[0], text=steps[0].text + " ")
    with pytest.raises(ConfigurationError, match="001_tables"):
        migrate(conn, steps)


def test_failing_step_leaves_everything_as_it_was(conn: ControlConnection) -> None:
    """All steps of one start are one transaction."""
    broken = [
        *migrations(),
        Migration(900, "900_good", "CREATE TABLE penstock.half (a int)"),
        Migration(901, "901_bad", "SELECT no_such_function()"),
    ]
    with pytest.raises(psycopg.errors.UndefinedFunction):
        migrate(conn, broken)
    assert one(conn, "SELECT to_regclass('penstock.half')") is None
    assert migrate(conn) == []


def test_old_ddl_is_forgotten(conn: ControlConnection) -> None:
    """Events are kept for some days, then the next start removes them."""
    conn.execute(
        "INSERT INTO penstock.ddl_event (tag, time) VALUES ('OLD', now() - interval '8 days'),"
        " ('RECENT', now() - interval '6 days')"
    )
    migrate(conn)
    kept = "SELECT array_agg(tag) FROM penstock.ddl_event WHERE tag IN ('OLD', 'RECENT')"
    assert one(conn, kept) == ["RECENT"]


def test_one_node_for_one_control_database(control: Control, conn: ControlConnection) -> None:
    """A second claim is refused and names the first, whose session's end frees it."""
    with control.connect() as first:
        claim(first)
        with pytest.raises(ObjectInUseError, match="another node") as caught:
            claim(conn)
        assert str(first.info.backend_pid) in (caught.value.detail or "")
    wait_until(lambda: _claims(conn), 10, "the claim to be free")


def _claims(conn: ControlConnection) -> bool:
    try:
        claim(conn)
    except ObjectInUseError:
        return False
    return True


# --- registration -----------------------------------------------------------------------------


def test_new_table_is_registered_as_empty(conn: ControlConnection) -> None:
    """A table gets a folder of its own, whose name says nothing about it, and no version."""
    conn.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    found = registered(conn, "orders")
    assert found is not None
    assert len(found[0]) == 36
    assert "orders" not in found[0]
    assert found[1] is None


def test_partitioned_table_has_no_folder_and_its_partitions_have(conn: ControlConnection) -> None:
    """Rows live in the leaves."""
    conn.execute("CREATE TABLE p (id int) PARTITION BY RANGE (id)")
    conn.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    assert registered(conn, "p") == ("", None)
    leaf = registered(conn, "p1")
    assert leaf is not None
    assert leaf[0]


@pytest.mark.parametrize(
    "statement",
    [
        'CREATE TEMPORARY TABLE x (a numeric(50), b int, "B" int)',
        "CREATE VIEW x AS SELECT 1 AS a",
        "CREATE SEQUENCE x",
    ],
)
def test_what_is_no_table_of_the_lake_is_not_registered(
    conn: ControlConnection, statement: str
) -> None:
    """Temporary tables, views and sequences are PostgreSQL's own."""
    conn.execute(statement)
    assert registered(conn, "x") is None


def test_dropped_tables_leave_their_folders_to_be_removed(conn: ControlConnection) -> None:
    """The partitions that go with a table are named too; a ROLLBACK takes it all back."""
    conn.execute("CREATE TABLE p (id int) PARTITION BY RANGE (id)")
    conn.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    leaf = registered(conn, "p1")
    assert leaf is not None
    with pytest.raises(ZeroDivisionError), conn.transaction():
        conn.execute("DROP TABLE p")
        raise ZeroDivisionError
    assert registered(conn, "p1") == leaf
    with conn.transaction():
        conn.execute("DROP TABLE p")
        xid = one(conn, "SELECT pg_current_xact_id()::text")
    dropped = "SELECT xid::text FROM penstock.dropped_table WHERE location = %s"
    assert one(conn, dropped, leaf[0]) == xid
    assert conn.execute("SELECT FROM penstock.dropped_table WHERE location = ''").fetchall() == []


def test_recreated_table_gets_another_folder(conn: ControlConnection) -> None:
    """DROP and CREATE of the same name never share data."""
    conn.execute("CREATE TABLE t (a int)")
    first = registered(conn, "t")
    conn.execute("DROP TABLE t")
    conn.execute("CREATE TABLE t (a int)")
    second = registered(conn, "t")
    assert first is not None and second is not None
    assert first[0] != second[0]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("CREATE TABLE n (a int)", [("CREATE TABLE", "table", "n")]),
        ("ALTER TABLE t ADD COLUMN c int", [("ALTER TABLE", "table", "t")]),
        ("ALTER TABLE t RENAME TO t2", [("ALTER TABLE", "table", "t2")]),
        ("ALTER TABLE t RENAME COLUMN b TO b2", [("ALTER TABLE", "table column", "t.b2")]),
        (
            "ALTER TABLE t DROP COLUMN b",
            [("ALTER TABLE", "table column", "t.b"), ("ALTER TABLE", "table", "t")],
        ),
        (
            "ALTER TABLE t ALTER COLUMN a TYPE bigint",
            [("ALTER TABLE", "rewrite", "t"), ("ALTER TABLE", "table", "t")],
        ),
        (
            "ALTER TABLE t ADD COLUMN r float8 DEFAULT random()",
            [("ALTER TABLE", "rewrite", "t"), ("ALTER TABLE", "table", "t")],
        ),
        (
            "ALTER TABLE p ADD COLUMN c int",
            [("ALTER TABLE", "table", "p"), ("ALTER TABLE", "table", "p1")],
        ),
        ("DROP TABLE t", [("DROP TABLE", "table", "t")]),
        ("ALTER TABLE t REPLICA IDENTITY FULL", [("ALTER TABLE", "table", "t")]),
        ("ALTER TABLE t ENABLE ROW LEVEL SECURITY", [("ALTER TABLE", "table", "t")]),
        ("CREATE POLICY q ON t USING (true)", [("CREATE POLICY", "policy", "q on t")]),
        ("CREATE INDEX i ON t (a)", [("CREATE INDEX", "index", "i")]),
        ("CREATE VIEW v AS SELECT * FROM t", [("CREATE VIEW", "view", "v")]),
        ("CREATE TYPE mood AS ENUM ('a')", [("CREATE TYPE", "type", "mood")]),
    ],
)
def test_ddl_is_recorded(
    conn: ControlConnection, statement: str, expected: list[tuple[str, str, str]]
) -> None:
    """Each definition that changes is an event, with the partitions that change with it."""
    conn.execute("CREATE TABLE t (a int, b text)")
    conn.execute("CREATE TABLE p (id int) PARTITION BY RANGE (id)")
    conn.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    before = last_event(conn)
    conn.execute(statement)
    schema, found = one(conn, "SELECT current_schema()"), events(conn, before)
    assert [(tag, kind, name.replace(f"{schema}.", "")) for tag, kind, name in found] == expected


def test_events_carry_the_transaction_and_the_table(conn: ControlConnection) -> None:
    """Reconcile asks for the events of its own transaction, by table."""
    with conn.transaction():
        conn.execute("CREATE TABLE t (a int PRIMARY KEY)")
        mine = conn.execute(
            "SELECT DISTINCT relid::bigint FROM penstock.ddl_event"
            " WHERE xid = pg_current_xact_id() AND NOT dropped"
        ).fetchall()
        assert mine == [(relid(conn, "t"),)]


def test_client_roles_ddl_is_recorded_too(conn: ControlConnection) -> None:
    """The triggers do their work whoever runs the statement, and however it is set up."""
    schema = one(conn, "SELECT current_schema()")
    conn.execute("CREATE ROLE plain")
    conn.execute(f"GRANT ALL ON SCHEMA {schema} TO plain")
    conn.execute("SET session_replication_role = replica")
    conn.execute("SET ROLE plain")
    conn.execute("CREATE TABLE theirs (a int)")
    assert registered(conn, "theirs") is not None
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute("UPDATE penstock.table_version SET version = 1")
    conn.execute("RESET ROLE")


def test_publication_ddl_is_recorded(conn: ControlConnection) -> None:
    """Publications are events, and so are tables that are added later."""
    conn.execute("CREATE TABLE t (a int PRIMARY KEY)")
    conn.execute("CREATE TABLE t2 (a int PRIMARY KEY)")
    before = last_event(conn)
    conn.execute("CREATE PUBLICATION pub FOR TABLE t WHERE (a > 3)")
    conn.execute("ALTER PUBLICATION pub ADD TABLE t2")
    conn.execute("DROP PUBLICATION pub")
    assert [(tag, kind) for tag, kind, _ in events(conn, before)] == [
        ("CREATE PUBLICATION", "publication"),
        ("ALTER PUBLICATION", "publication relation"),
        ("DROP PUBLICATION", "publication"),
    ]


# --- refusals ---------------------------------------------------------------------------------

REFUSED = {
    "unlogged": "CREATE UNLOGGED TABLE x (a int)",
    "set unlogged": "ALTER TABLE same SET UNLOGGED",
    "inherits": "CREATE TABLE x () INHERITS (t)",
    "inherit later": "ALTER TABLE same INHERIT t",
    "typed": "CREATE TABLE x OF pair",
    "trigger": "CREATE TRIGGER g BEFORE UPDATE ON t FOR EACH ROW"
    " EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "rule": "CREATE RULE r AS ON INSERT TO t DO INSTEAD NOTHING",
    "materialized view": "CREATE MATERIALIZED VIEW x AS SELECT * FROM t",
    "foreign table": "CREATE FOREIGN TABLE x (a int) SERVER nowhere",
    "create table as": "CREATE TABLE x AS SELECT * FROM t",
    "select into": "SELECT * INTO x FROM t",
    "function": "CREATE FUNCTION x() RETURNS int LANGUAGE sql RETURN 1",
    "procedure": "CREATE PROCEDURE x() LANGUAGE sql AS ''",
    "39 digits": "CREATE TABLE x (a numeric(39, 2))",
    "scale above 38": "CREATE TABLE x (a numeric(2, 39))",
    "negative scale": "CREATE TABLE x (a numeric(3, -36))",
    "array of 39 digits": "CREATE TABLE x (a numeric(39, 2)[])",
    "wide column later": "ALTER TABLE t ADD COLUMN c numeric(50)",
    "widened later": "ALTER TABLE t ALTER COLUMN a TYPE numeric(50)",
    "case only": 'CREATE TABLE x (a int, "A" int)',
    "case only by rename": 'ALTER TABLE t RENAME COLUMN b TO "A"',
    "virtual column": "CREATE TABLE x (a int, b int GENERATED ALWAYS AS (a + 1) VIRTUAL)",
    "virtual by default": "CREATE TABLE x (a int, b int GENERATED ALWAYS AS (a + 1))",
    "exclusion": "CREATE TABLE x (r int4range, EXCLUDE USING gist (r WITH &&))",
    "temporal key": "CREATE TABLE x (a int4range, r int4range, UNIQUE (a, r WITHOUT OVERLAPS))",
    "extension": "CREATE EXTENSION tablefunc",
    "publication of ours": "CREATE PUBLICATION x FOR TABLE penstock.node",
    "publication of our schema": "CREATE PUBLICATION x FOR TABLES IN SCHEMA penstock",
    "ours added later": "ALTER PUBLICATION offered ADD TABLE penstock.commit",
    "inside a schema": "CREATE SCHEMA inner_one CREATE TABLE x (a numeric(39))",
}


@pytest.fixture(scope="module")
def refusals(control: Control) -> Iterator[ControlConnection]:
    with control.connect() as made:
        made.execute("CREATE SCHEMA refusals")
        made.execute("SET search_path = refusals")
        made.execute("CREATE TABLE t (a int, b text)")
        made.execute("CREATE TABLE same (a int, b text)")
        made.execute("CREATE TYPE pair AS (a int, b int)")
        made.execute("CREATE PUBLICATION offered FOR TABLE t")
        made.execute("CREATE FOREIGN DATA WRAPPER nothing")
        made.execute("CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing")
        yield made


@pytest.mark.parametrize("statement", REFUSED.values(), ids=REFUSED.keys())
def test_what_the_lake_cannot_hold_is_refused(refusals: ControlConnection, statement: str) -> None:
    """0A000 with the reason in the detail; the statement leaves nothing behind."""
    tables = "SELECT array_agg(t ORDER BY t) FROM penstock.table_version t"
    before = one(refusals, tables), last_event(refusals)
    with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
        refusals.execute(statement)
    assert caught.value.diag.message_detail
    assert (one(refusals, tables), last_event(refusals)) == before
    assert one(refusals, "SELECT to_regclass('x')") is None


ALLOWED = {
    "38 digits": "CREATE TABLE ok1 (a numeric(38, 2), b numeric(3, -35), c numeric(2, 38))",
    "bare numeric": "CREATE TABLE ok0 (a numeric, b numeric[])",
    "foreign key": "CREATE TABLE ok2 (a int PRIMARY KEY, b int REFERENCES ok2)",
    "stored column": "CREATE TABLE ok3 (a int, b int GENERATED ALWAYS AS (a + 1) STORED)",
    "identity": "CREATE TABLE ok4 (a int GENERATED ALWAYS AS IDENTITY, b serial)",
    "check and unique": 'CREATE TABLE ok5 (a int CHECK (a > 0) UNIQUE, b text COLLATE "C")',
    "like": "CREATE TABLE ok6 (LIKE t INCLUDING ALL)",
    "any type": "CREATE TABLE ok7 (a uuid, b jsonb, c interval, d int[], e point, f pair)",
    "domain": "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
    "harmless extension": "CREATE EXTENSION citext",
    "temporary from a query": "CREATE TEMPORARY TABLE ok8 AS SELECT 1 AS a",
    "grant": "GRANT SELECT ON t TO PUBLIC",
    "comment": "COMMENT ON TABLE t IS 'x'",
}


@pytest.mark.parametrize("statement", ALLOWED.values(), ids=ALLOWED.keys())
def test_what_does_not_concern_the_rows_is_allowed(
    refusals: ControlConnection, statement: str
) -> None:
    """Definitions that the lake holds, or that PostgreSQL alone has to do with."""
    refusals.execute(statement)


# --- the rest of the schema -------------------------------------------------------------------


def test_pg_stat_subscription_shows_our_workers(conn: ControlConnection) -> None:
    """Same columns and types as PostgreSQL's view, filled from the workers' table."""
    conn.execute(
        "CREATE SUBSCRIPTION seen CONNECTION 'dbname=x' PUBLICATION p WITH (connect = false)"
    )
    subid = one(conn, "SELECT oid::bigint FROM pg_subscription WHERE subname = 'seen'")
    shown = "SELECT subname, worker_type, pid, received_lsn::text FROM pg_stat_subscription"
    assert one(conn, shown) == ("seen", None, None, None)
    conn.execute(
        "INSERT INTO penstock.subscription_worker (subid, worker_type, pid, received_lsn)"
        " VALUES (%s::oid, 'apply', 7, '0/42')",
        [subid],
    )
    assert one(conn, shown) == ("seen", "apply", 7, "0/42")
    native = conn.execute(
        "SELECT proargnames[2:], proallargtypes[2:] FROM pg_proc"
        " WHERE proname = 'pg_stat_get_subscription'"
    ).fetchall()[0]
    ours = conn.execute(
        "SELECT array_agg(attname::text ORDER BY attnum), array_agg(atttypid ORDER BY attnum)"
        " FROM pg_attribute WHERE attrelid = 'pg_stat_subscription'::regclass"
        " AND attnum > 0 AND attname <> 'subname'"
    ).fetchall()[0]
    assert sorted(zip(*ours, strict=True)) == sorted(zip(*native, strict=True))
    conn.execute("ALTER SUBSCRIPTION seen SET (slot_name = NONE)")
    conn.execute("DROP SUBSCRIPTION seen")


def test_dropped_subscription_takes_what_we_keep_about_it(conn: ControlConnection) -> None:
    """Options, errors, workers and the position go with it, in its transaction."""
    conn.execute(
        "CREATE SUBSCRIPTION gone CONNECTION 'dbname=x password=canary' PUBLICATION a, b"
        " WITH (connect = false, streaming = parallel)"
    )
    [found] = subscriptions(conn)
    assert (found.name, found.publications, found.slot_name) == ("gone", ("a", "b"), "gone")
    assert (found.enabled, found.create_tables, found.schema_changes) == (False, True, "add")
    assert (found.streaming, found.two_phase, found.origin) == ("p", "d", "any")
    assert "canary" not in repr(found)
    assert subscription_relations(conn, found.oid) == []
    for statement in (
        "INSERT INTO penstock.subscription_option VALUES (%(s)s::oid, false, 'error')",
        "INSERT INTO penstock.subscription_error (subid, sqlstate, message)"
        " VALUES (%(s)s::oid, 'XX000', 'm')",
        "INSERT INTO penstock.subscription_worker (subid, worker_type)"
        " VALUES (%(s)s::oid, 'apply')",
        "INSERT INTO penstock.subscription_table VALUES (%(s)s::oid, 1, 1, 1)",
        "INSERT INTO penstock.origin_position VALUES ('pg_' || %(s)s, '0/1', now())",
    ):
        conn.execute(statement, {"s": found.oid})
    [configured] = subscriptions(conn)
    assert (configured.create_tables, configured.schema_changes) == (False, "error")
    conn.execute("ALTER SUBSCRIPTION gone SET (slot_name = NONE)")
    conn.execute("DROP SUBSCRIPTION gone")
    for table in ("option", "error", "worker", "table"):
        left = f"SELECT count(*) FROM penstock.subscription_{table} WHERE subid = %s::oid"
        assert one(conn, left, found.oid) == 0
    position = "SELECT count(*) FROM penstock.origin_position WHERE origin = %s"
    assert one(conn, position, found.origin_name) == 0


def test_dumped_schema_can_be_restored(control: Control, conn: ControlConnection) -> None:
    """pg_dump of a schema, restored under the event triggers, registers its tables anew."""
    schema = one(conn, "SELECT current_schema()")
    conn.execute("CREATE TABLE a (id int PRIMARY KEY, b numeric(10, 2), c text DEFAULT 'x')")
    conn.execute("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    conn.execute("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    conn.execute("CREATE TABLE r (id int REFERENCES a)")
    conn.execute("CREATE VIEW v AS SELECT id FROM a")
    programs = packaged_programs()
    address = control.address.conninfo()
    dump = subprocess.run(
        [programs / "pg_dump", "-d", address, "-n", schema],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    conn.execute(f"DROP SCHEMA {schema} CASCADE")
    subprocess.run(
        [programs / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", address],
        input=dump,
        capture_output=True,
        text=True,
        check=True,
    )
    for name, has_folder in (("a", True), ("p", False), ("p1", True), ("r", True)):
        found = registered(conn, name)
        assert found is not None
        assert bool(found[0]) is has_folder


def test_nodes_own_schema_can_be_migrated_under_the_triggers(conn: ControlConnection) -> None:
    """A later step may create tables and functions in the schema: they are not the lake's."""
    step = Migration(
        900,
        "900_more",
        "CREATE UNLOGGED TABLE penstock.more (a numeric(50));"
        "CREATE FUNCTION penstock.more() RETURNS int LANGUAGE sql RETURN 1;",
    )
    migrate(conn, [*migrations(), step])
    assert registered(conn, "penstock.more") is None
    conn.execute("DROP FUNCTION penstock.more(); DROP TABLE penstock.more")
    conn.execute("DELETE FROM penstock.schema_version WHERE number = 900")


def test_clients_read_but_do_not_write(control: Control, conn: ControlConnection) -> None:
    """What a client may see of the schema, and what it may not."""
    conn.execute("CREATE ROLE looker LOGIN PASSWORD 'pw'")
    client = replace(control.address, user="looker", password="pw")
    with connect(client) as theirs:
        for table in ("table_version", "table_column", "ddl_event", "commit", "node"):
            theirs.execute(f"SELECT * FROM penstock.{table}".encode())
        for statement in (
            "SELECT * FROM penstock.guard",
            "SELECT * FROM penstock.subscription_error",
            "DELETE FROM penstock.table_version",
            "INSERT INTO penstock.ddl_event (tag) VALUES ('x')",
            "CREATE TABLE penstock.x (a int)",
            "SELECT pg_logical_emit_message(true, 'penstock', '{}')",
            "SELECT pg_logical_emit_message(false, 'penstock', '{}'::bytea)",
            "SELECT penstock.take_columns(1)",
            "SELECT penstock.check_secret('x')",
            "SELECT penstock.register_tables(1)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                theirs.execute(statement.encode())
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(client.conninfo(dbname="postgres"))


def test_nothing_stays_in_the_schema_of_queries(control: Control, conn: ControlConnection) -> None:
    """A query is analysed with the caller's rights and names, in a transaction that is prepared.

    Whatever else anybody makes in the schema where that happens is undone, and only that.
    """
    conn.execute("CREATE ROLE analyst LOGIN PASSWORD 'pw'; CREATE SCHEMA hidden")
    conn.execute("CREATE TABLE hidden.t (a int); CREATE TABLE open_to_all (a int)")
    schema = one(conn, "SELECT current_schema()")
    conn.execute(f"GRANT USAGE ON SCHEMA {schema} TO analyst")
    asked = "SELECT penstock.analysed('SELECT a FROM {}', '{{}}') LIKE '%{{QUERY %'"
    with connect(replace(control.address, user="analyst", password="pw")) as theirs:
        theirs.execute(f"SET search_path = {schema}".encode())
        theirs.execute("CREATE TEMP TABLE mine (a int)")
        assert one(theirs, asked.format("open_to_all"))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            theirs.execute(asked.format("hidden.t").encode())
        for made in ("TABLE penstock_query.t (a int)", "TYPE penstock_query.t AS ENUM ('a')"):
            with pytest.raises(psycopg.Error, match="nothing can be created in schema"):
                theirs.execute(f"CREATE {made}".encode())
        with pytest.raises(psycopg.Error, match="nothing can be created in schema"):
            theirs.execute("CREATE FUNCTION penstock_query.f() RETURNS int LANGUAGE sql RETURN 1")
        theirs.execute("BEGIN; " + asked.format("open_to_all") + "; PREPARE TRANSACTION 'analysed'")
        theirs.execute("ROLLBACK PREPARED 'analysed'")
    inside = "SELECT count(*) FROM pg_depend WHERE refobjid = 'penstock_query'::regnamespace"
    assert one(conn, inside) == 0
    conn.execute("DROP SCHEMA hidden CASCADE; DROP OWNED BY analyst; DROP ROLE analyst")
