# SPDX-License-Identifier: Apache-2.0
"""DDL in a client's session: control database and Delta tables change together, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.change.relation import LakeTable
from penstock.control.catalog import lake_table
from penstock.control.commits import begin_commit
from penstock.control.connect import ControlConnection
from penstock.errors import PenstockError
from penstock.frontdoor.definitions.reconcile import Reconciler
from penstock.frontdoor.session_commit import full_xid
from penstock.lake import tables
from penstock.lake.dropped import remove_dropped, remove_folder
from penstock.lake.files import write_file
from penstock.lake.log import head_version, physical_names
from penstock.lake.session import Spark
from tests.support.control import Control, one, relid
from tests.support.routing import Client

Values = dict[str, Any]
_SCHEMAS = count(1)


class Lake:
    """A client whose DDL the lake follows, and a look at the lake beside it."""

    def __init__(self, spark: Spark, control: Control, conn: ControlConnection) -> None:
        self.conn = conn
        self.root = control.lake
        self._session = spark.own_session()
        self._reconciler = Reconciler(spark, control.guard, control.address, control.lake)
        self._client = Client(conn, reconciler=self._reconciler)

    def as_user(self, conn: psycopg.Connection[Any]) -> Client:
        """A client with a session of its own."""
        return Client(conn, reconciler=self._reconciler)

    def run(self, *statements: str) -> None:
        for statement in statements:
            self._client.run(statement)

    def table(self, name: str) -> LakeTable:
        return lake_table(self.conn, relid(self.conn, name), self.root)

    def rows(self, name: str) -> list[Values]:
        frame = tables.read(self._session(), self.table(name))
        return [row.asDict() for row in frame.orderBy("id").collect()]

    def write(self, name: str, rows: list[Values]) -> None:
        """Append rows in a commit of the lake, as a copy does."""
        oid = relid(self.conn, name)
        with begin_commit(self.conn, "copy", self.root) as commit:
            table = commit.lock([oid])[oid]
            if table.version is None:
                version = tables.create(self._session, table, commit.metadata)
                table = replace(table, version=version)
                commit.set_columns(table)
            names = physical_names(table.location)
            arrow = pa.Table.from_pylist(rows, tables.arrow_schema(table))
            arrow = arrow.rename_columns([names[column] for column in arrow.column_names])
            version = tables.append_files(
                table, [write_file(arrow, table.location)], commit.metadata
            )
            commit.moved(table, version, [(version, version)], "copy")

    def head(self, name: str) -> int | None:
        return head_version(self.table(name).location)


@pytest.fixture
def conn(control: Control) -> Iterator[ControlConnection]:
    """A session in a schema of the test's own, which is dropped at the end."""
    schema = f"reconciled{next(_SCHEMAS)}"
    with control.connect() as session:
        session.execute(f"CREATE SCHEMA {schema}".encode())
        session.execute(f"SET search_path = {schema}".encode())
        yield session
        session.execute("ROLLBACK")
        session.execute(f"DROP SCHEMA {schema} CASCADE".encode())


@pytest.fixture
def lake(own_spark: Spark, control: Control, conn: ControlConnection) -> Callable[..., Lake]:
    """Make a Lake with the statements run, and rows of id 1 and 2 in the named tables."""

    def make(*statements: str, tables: tuple[str, ...] = ("t",)) -> Lake:
        made = Lake(own_spark, control, conn)
        made.run(*statements)
        for name in tables:
            made.write(name, [{"id": 1}, {"id": 2}])
        return made

    return make


def test_columns_follow_and_the_record_says_so(lake: Callable[..., Lake]) -> None:
    """Added, dropped, renamed, widened; the constant does not depend on the session's settings."""
    it = lake("CREATE TABLE t (id int PRIMARY KEY, a text, b int)")
    it.run(
        "SET datestyle = 'German, DMY'",
        "SET timezone = 'Asia/Tokyo'",
        "ALTER TABLE t ADD COLUMN at timestamptz DEFAULT '2024-02-03 04:05:06+00',"
        ' ALTER COLUMN id TYPE bigint, RENAME COLUMN a TO "a b"'
        if False
        else "ALTER TABLE t ADD COLUMN at timestamptz DEFAULT '2024-02-03T04:05:06+00'",
        "ALTER TABLE t ALTER COLUMN id TYPE bigint, DROP COLUMN b",
        'ALTER TABLE t RENAME COLUMN a TO "a b"',
    )
    rows = it.rows("t")
    assert [(row["id"], row["a b"], str(row["at"])) for row in rows] == [
        (1, None, "2024-02-03 04:05:06"),
        (2, None, "2024-02-03 04:05:06"),
    ]
    it.write("t", [{"id": 2**40, "a b": "new", "at": None}])
    assert it.rows("t")[2] == {"id": 2**40, "a b": "new", "at": None}
    recorded = "SELECT array_agg(name ORDER BY attnum) FROM penstock.table_column WHERE relid = %s"
    assert one(it.conn, recorded, relid(it.conn, "t")) == ["id", "a b", "at"]
    assert it.table("t").version == it.head("t")


def test_what_needs_no_delta_commit(lake: Callable[..., Lake]) -> None:
    """New names and schemas, longer texts, defaults, keys: Delta's version stays."""
    it = lake("CREATE TABLE t (id int, a varchar(3))", "CREATE SCHEMA other")
    before = it.head("t")
    it.run(
        "ALTER TABLE t ALTER COLUMN a TYPE varchar(9)",
        "ALTER TABLE t ALTER COLUMN a SET DEFAULT 'x'",
        "ALTER TABLE t RENAME TO u",
        "ALTER TABLE u SET SCHEMA other",
    )
    assert it.head("other.u") == before == it.table("other.u").version
    assert [row["id"] for row in it.rows("other.u")] == [1, 2]


@pytest.mark.parametrize(
    ("statement", "sqlstate"),
    [
        ("ALTER TABLE t ALTER COLUMN b TYPE text", "0A000"),
        ("ALTER TABLE t ALTER COLUMN b TYPE bigint USING b * 2", "0A000"),
        ("ALTER TABLE t ADD COLUMN c double precision DEFAULT random()", "0A000"),
        ("ALTER TABLE t ADD COLUMN c serial", "0A000"),
        ("ALTER TABLE t ADD COLUMN c int GENERATED ALWAYS AS (b + 1) STORED", "0A000"),
        ("ALTER TABLE t ADD COLUMN c int NOT NULL", "23502"),
        ("ALTER TABLE t ADD COLUMN c date DEFAULT 'infinity'", "22003"),
    ],
)
def test_refused_before_anything_changes(
    lake: Callable[..., Lake], statement: str, sqlstate: str
) -> None:
    """The statement is undone in the control database, and Delta was not touched."""
    it = lake("CREATE TABLE t (id int, b int)")
    before = it.head("t")
    with pytest.raises(PenstockError) as refused:
        it.run(statement)
    it.conn.execute("ROLLBACK")
    assert refused.value.sqlstate == sqlstate
    assert [column.name for column in it.table("t").columns] == ["id", "b"]
    assert it.head("t") == before == it.table("t").version


@pytest.mark.parametrize(
    ("statement", "sqlstate"),
    [
        ("ALTER TABLE t ALTER COLUMN a SET NOT NULL", "23502"),
        ("ALTER TABLE t ADD PRIMARY KEY (a)", "23502"),
        ("ALTER TABLE t ADD UNIQUE (b)", "23505"),
        ("CREATE UNIQUE INDEX ON t (b)", "23505"),
        ("CREATE UNIQUE INDEX ON t (lower(c))", "0A000"),
        ("ALTER TABLE t ADD CHECK (b > 1)", "23514"),
        ("ALTER TABLE t ADD CHECK (b > random())", "0A000"),
        ("ALTER TABLE t ADD CHECK (a > 1 OR b = 1)", None),
        ("ALTER TABLE p ATTACH PARTITION t FOR VALUES FROM (0) TO (10)", "0A000"),
        ("ALTER TABLE t ALTER COLUMN id SET NOT NULL", None),
        ("ALTER TABLE t ADD PRIMARY KEY (id)", None),
        ("ALTER TABLE t ADD UNIQUE (a, id)", None),
        ("CREATE UNIQUE INDEX ON t (a)", None),
        ("ALTER TABLE t ADD CHECK (b > 1) NOT VALID", None),
        ("CREATE INDEX ON t (b)", None),
    ],
)
def test_rows_must_keep_new_promises(
    lake: Callable[..., Lake], statement: str, sqlstate: str | None
) -> None:
    """PostgreSQL sees an empty relation, so the lake's rows are looked at before it may promise."""
    it = lake(
        "CREATE TABLE t (id int, a int, b int, c text)",
        "CREATE TABLE p (id int, a int, b int, c text) PARTITION BY RANGE (id)",
        tables=(),
    )
    it.write("t", [{"id": 1, "a": None, "b": 1}, {"id": 2, "a": None, "b": 1}])
    if sqlstate is None:
        it.run(statement)
        return
    with pytest.raises(PenstockError) as refused:
        it.run(statement)
    assert refused.value.sqlstate == sqlstate


def test_a_check_is_renamed_and_validated(lake: Callable[..., Lake]) -> None:
    """RENAME CONSTRAINT and VALIDATE look at the rows as ADD does; a new column's value counts."""
    it = lake("CREATE TABLE t (id int CHECK (id > 0))")
    it.run("ALTER TABLE t RENAME CONSTRAINT t_id_check TO positive")
    it.run("ALTER TABLE t ADD CONSTRAINT two CHECK (id > 1) NOT VALID")
    for statement in ("VALIDATE CONSTRAINT two", "ADD b int DEFAULT 5 CHECK (b > 5)"):
        with pytest.raises(PenstockError, match='of relation "t" is violated by some row'):
            it.run("BEGIN", f"ALTER TABLE t {statement}")
        it.run("ROLLBACK")
    it.run("ALTER TABLE t ADD b int DEFAULT 5 CHECK (b > 4)", "ALTER TABLE t RENAME b TO c")
    assert it.rows("t") == [{"id": 1, "c": 5}, {"id": 2, "c": 5}]


def test_an_abort_is_restored_by_the_next_writer(lake: Callable[..., Lake]) -> None:
    """ROLLBACK, and ROLLBACK TO SAVEPOINT of a transaction that commits, leave the old table."""
    it = lake("CREATE TABLE t (id int, a text)")
    it.run("BEGIN", "ALTER TABLE t DROP COLUMN a", "ALTER TABLE t ADD COLUMN b int DEFAULT 1")
    assert it.rows("t") == [{"id": 1, "b": 1}, {"id": 2, "b": 1}]
    it.run("ROLLBACK")
    assert it.rows("t") == [{"id": 1, "a": None}, {"id": 2, "a": None}]
    it.run(
        "BEGIN",
        "ALTER TABLE t ADD COLUMN kept int DEFAULT 5",
        "SAVEPOINT s",
        "ALTER TABLE t DROP COLUMN a",
        "ROLLBACK TO SAVEPOINT s",
        "COMMIT",
    )
    assert it.table("t").version != it.head("t")
    assert it.rows("t")[0] == {"id": 1, "a": None, "kept": 5}
    it.run("ALTER TABLE t RENAME COLUMN a TO c")
    assert it.rows("t")[0] == {"id": 1, "c": None, "kept": 5}
    assert it.table("t").version == it.head("t")


def test_partitions_follow_their_parent(lake: Callable[..., Lake]) -> None:
    """ALTER TABLE of a partitioned table changes the Delta tables of all its leaves."""
    it = lake(
        "CREATE TABLE p (id int, a text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p DEFAULT",
        tables=("p1", "p2"),
    )
    it.run("ALTER TABLE p ADD COLUMN b int DEFAULT 7", "ALTER TABLE p DROP COLUMN a")
    for name in ("p1", "p2"):
        assert it.rows(name) == [{"id": 1, "b": 7}, {"id": 2, "b": 7}]


def test_folders_go_after_the_commit_of_a_drop(lake: Callable[..., Lake]) -> None:
    """Not before, not after ROLLBACK, not when only a savepoint was rolled back."""
    it = lake(
        "CREATE SCHEMA gone",
        "CREATE TABLE kept (id int)",
        "CREATE TABLE gone.t (id int)",
        "CREATE TABLE gone.u (id int)",
        tables=("kept", "gone.t", "gone.u"),
    )
    folders = {name: Path(it.table(name).location) for name in ("kept", "gone.t", "gone.u")}
    it.run("BEGIN", "DROP TABLE kept")
    assert folders["kept"].exists()
    it.run("ROLLBACK", "BEGIN", "SAVEPOINT s", "DROP TABLE kept", "ROLLBACK TO s", "COMMIT")
    assert folders["kept"].exists()
    it.run("DROP SCHEMA gone CASCADE")
    assert {name for name, folder in folders.items() if folder.exists()} == {"kept"}
    assert one(it.conn, "SELECT count(*) FROM penstock.dropped_table") == 0


def test_a_start_removes_what_a_crash_left(lake: Callable[..., Lake]) -> None:
    """A crash between COMMIT and the removal leaves a row, from which the next start goes on."""
    it = lake("CREATE TABLE t (id int)")
    folder = Path(it.table("t").location)
    it.conn.execute("DROP TABLE t")
    assert folder.exists()
    remove_dropped(it.conn, it.root)
    assert not folder.exists()
    assert one(it.conn, "SELECT count(*) FROM penstock.dropped_table") == 0
    for outside in ("..", "../other", ".", "a/b"):
        with pytest.raises(PenstockError, match="is not the folder of a table"):
            remove_folder(it.root, outside)


def test_an_ordinary_owner_changes_a_table(lake: Callable[..., Lake], control: Control) -> None:
    """The owner needs no rights on the schema penstock, and never sees the secret."""
    it = lake(
        "CREATE ROLE ann LOGIN",
        "CREATE TABLE t (id int, a text)",
        "ALTER TABLE t OWNER TO ann",
    )
    with control.connect() as session:
        path = one(it.conn, "SHOW search_path")
        it.conn.execute(f"GRANT USAGE ON SCHEMA {path} TO ann".encode())
        session.execute("SET ROLE ann")
        session.execute(f"SET search_path = {path}".encode())
        ann = it.as_user(session)
        ann.run("ALTER TABLE t ADD COLUMN b text DEFAULT 'x'")
        with pytest.raises(PenstockError):
            ann.run("DROP TABLE penstock.node")
    assert it.rows("t")[0] == {"id": 1, "a": None, "b": "x"}


def test_the_commit_record_has_no_rows_to_publish(lake: Callable[..., Lake]) -> None:
    """Its version moved, its ranges are empty: PostgreSQL publishes no rows for DDL either."""
    it = lake("CREATE TABLE t (id int)")
    it.conn.execute("SELECT pg_create_logical_replication_slot('look', 'pgoutput')")
    it.run("ALTER TABLE t ADD COLUMN b int DEFAULT 1")
    it.conn.execute("CREATE PUBLICATION p")
    changes = it.conn.execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes('look', NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'p', 'messages', 'true')"
    ).fetchall()
    it.conn.execute("SELECT pg_drop_replication_slot('look')")
    messages = [bytes(data) for (data,) in changes if bytes(data).startswith(b"M")]
    # Letter, flags, LSN; then the prefix up to a zero byte, and the content's length in 4 bytes.
    records = [json.loads(message[message.index(b"\0", 10) + 5 :]) for message in messages]
    (record,) = [record for record in records if record.get("purpose") == "ddl"]
    (moved,) = record["tables"]
    assert (moved["kind"], moved["ranges"]) == ("ddl", [])
    assert moved["version"] == it.head("t")


def test_xids_of_subtransactions() -> None:
    """A subtransaction's xid follows its transaction's, also where the 32 bits wrap around."""
    assert full_xid(705, 700) == "705"
    assert full_xid(2, 2**32 - 1) == str(2**32 + 2)
    assert full_xid(9, 5 * 2**32 + 3) == str(5 * 2**32 + 9)


def test_row_filters_that_are_not_exact_are_refused_with_their_publication(
    lake: Callable[..., Lake], conn: ControlConnection
) -> None:
    """0A000 or PostgreSQL's own error, and the statement is undone; exact filters are accepted."""
    it = lake("CREATE TABLE t (id int PRIMARY KEY, a text, n numeric)", tables=())

    def refused(statement: str) -> PenstockError:
        with pytest.raises(PenstockError) as caught:
            it.run(statement)
        conn.execute("ROLLBACK")
        return caught.value

    error = refused("CREATE PUBLICATION bad FOR TABLE t WHERE (id > 0 AND initcap(a) = 'A')")
    assert error.sqlstate == "0A000"
    assert error.detail == "initcap(a) has no exact form in Spark: function initcap(text)."
    assert refused("CREATE PUBLICATION bad FOR TABLE t WHERE (id > 1 / 0)").sqlstate == "22012"
    assert refused("CREATE PUBLICATION bad FOR TABLE t WHERE (now() > 'today')").detail == (
        "User-defined or built-in mutable functions are not allowed."
    )
    it.run("CREATE PUBLICATION good FOR TABLE t WHERE (id > 0 AND (a, id) > ('a', 1))")
    error = refused("ALTER PUBLICATION good SET TABLE t WHERE (n + 1 > 0)")
    assert error.detail is not None and error.detail.startswith("(n + 1) has no exact form")
    assert error.hint is not None and "::numeric" in error.hint
    query = (
        "SELECT pubname::text, rowfilter FROM pg_publication_tables"
        " WHERE tablename = 't' AND pubname IN ('good', 'bad')"
    )
    assert conn.execute(query).fetchall() == [
        ("good", "((id > 0) AND (ROW(a, id) > ROW('a'::text, 1)))")
    ]
    it.run("DROP PUBLICATION good")
