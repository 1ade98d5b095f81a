# SPDX-License-Identifier: Apache-2.0
"""A replication connection to the node answers as PostgreSQL's walsender does.

Beside it stands the control: the same commands on a PostgreSQL of the version that the node is of.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.published import conninfo, make_replica
from tests.support.walsender import Walsender


@pytest.fixture(scope="module")
def lake(node: Node) -> Iterator[Walsender]:
    """A replication connection of an ordinary role with REPLICATION."""
    make_replica(node)
    node.psql("CREATE TABLE rcmd (a int PRIMARY KEY); CREATE PUBLICATION rcmd FOR TABLE rcmd")
    connection = Walsender(conninfo(node))
    yield connection
    connection.close()
    node.psql("DROP PUBLICATION rcmd; DROP TABLE rcmd")


@pytest.fixture
def native(publisher_db: Database) -> Iterator[Walsender]:
    """The same on a PostgreSQL 18."""
    connection = Walsender(publisher_db.conninfo)
    yield connection
    connection.close()


def test_identify_system_and_slots(lake: Walsender, node: Node) -> None:
    """A slot of pgoutput is made, seen by everybody, and dropped, with PostgreSQL's columns."""
    ((system, timeline, position, database),) = lake.rows("IDENTIFY_SYSTEM")
    assert (timeline, database) == ("1", "lake")
    assert system and system.isdigit()
    assert position and "/" in position
    create = "CREATE_REPLICATION_SLOT \"rcmd_slot\" LOGICAL pgoutput (SNAPSHOT 'nothing')"
    ((name, point, snapshot, plugin),) = lake.rows(create)
    assert (name, snapshot, plugin) == ("rcmd_slot", None, "pgoutput")
    assert point
    assert lake.refusal(create) == ("42710", 'replication slot "rcmd_slot" already exists')
    seen = "SELECT plugin, active FROM pg_replication_slots WHERE slot_name = 'rcmd_slot'"
    assert node.psql(seen) == "pgoutput|f"
    assert lake.rows("DROP_REPLICATION_SLOT rcmd_slot WAIT") == []
    assert node.psql(seen) == ""
    assert lake.refusal("DROP_REPLICATION_SLOT rcmd_slot") == (
        "42704",
        'replication slot "rcmd_slot" does not exist',
    )
    assert lake.rows("SHOW wal_level") == [["logical"]]


SAME = [
    "CREATE_REPLICATION_SLOT x LOGICAL pgoutput (SNAPSHOT 'use')",
    'CREATE_REPLICATION_SLOT "A" LOGICAL pgoutput',
    "CREATE_REPLICATION_SLOT x LOGICAL pgoutput (SNAPSHOT 'other')",
    "DROP_REPLICATION_SLOT nothing_there",
    "START_REPLICATION SLOT nothing_there LOGICAL 0/0 (proto_version '4', publication_names 'p')",
    "SELECT nothing FROM pg_class",
    "SELECT * FROM nowhere",
    "start_replication slot x logical 0/0",
    "SELECT 1; SELECT 1/0",
    "",
]


@pytest.mark.parametrize("command", SAME)
def test_errors_are_postgresqls(lake: Walsender, native: Walsender, command: str) -> None:
    """SQLSTATE and words of what is wrong are those of a PostgreSQL; the session goes on."""
    if command:
        assert lake.refusal(command) == native.refusal(command)
    assert lake.rows("SELECT 1") == [["1"]]
    assert not lake.in_block


def test_sql_of_catalogs_is_passed_on(lake: Walsender) -> None:
    """What a subscriber asks about publications and tables, in a block and alone."""
    tables = "SELECT schemaname, tablename FROM pg_catalog.pg_publication_tables t"
    assert lake.rows(f"{tables} WHERE t.pubname IN ('rcmd')") == [["public", "rcmd"]]
    assert lake.rows("SELECT pg_catalog.set_config('search_path', '', false)") == [[""]]
    lake.rows("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
    columns = "SELECT attname FROM pg_attribute WHERE attrelid = 'public.rcmd'::regclass"
    assert lake.rows(f"{columns} AND attnum > 0") == [["a"]]
    lake.rows("COMMIT")
    assert not lake.in_block


@pytest.mark.parametrize(
    ("command", "sqlstate"),
    [
        ("SELECT * FROM public.rcmd", "0A000"),
        ("INSERT INTO public.rcmd VALUES (1)", "42501"),  # PostgreSQL says so first
        ("CREATE TABLE public.rcmd_too (a int)", "0A000"),
        ("SELECT 1; TABLE public.rcmd", "0A000"),
        ("BASE_BACKUP", "0A000"),
        ("CREATE_REPLICATION_SLOT s PHYSICAL", "0A000"),
        ("CREATE_REPLICATION_SLOT s LOGICAL test_decoding", "0A000"),
        ("START_REPLICATION 0/0", "0A000"),
        ("START_REPLICATION SLOT penstock_ledger LOGICAL 0/0 (proto_version '1')", "42501"),
        ("DROP_REPLICATION_SLOT penstock_ledger", "42501"),
        ("SELECT pg_logical_slot_get_changes('penstock_ledger', NULL, NULL)", "0A000"),
    ],
)
def test_what_would_not_show_the_lake_is_refused(
    lake: Walsender, command: str, sqlstate: str
) -> None:
    """Tables without their rows, commit records, the node's own slot; and a block then fails."""
    assert lake.refusal(command)[0] == sqlstate
    assert not lake.in_block
    lake.rows("BEGIN")
    assert lake.refusal(command)[0] == sqlstate
    assert lake.refusal("SELECT 1")[0] == "25P02"
    lake.rows("ROLLBACK")
    assert lake.rows("SELECT 1") == [["1"]]


def test_messages_of_the_extended_protocol_are_refused(lake: Walsender) -> None:
    """As PostgreSQL has it, and the connection goes on."""
    error = "extended query protocol not supported in a replication connection"
    assert error in lake.extended("SELECT 1")
    assert lake.rows("SELECT 1") == [["1"]]


def test_who_may_connect(node: Node) -> None:
    """Without REPLICATION it is PostgreSQL's refusal; physical replication is refused."""
    node.psql("CREATE ROLE rcmd_plain LOGIN PASSWORD 'x'")
    plain = conninfo(node).replace("user=replica password=secret", "user=rcmd_plain password=x")
    with pytest.raises(psycopg.OperationalError, match="permission denied to start WAL sender"):
        psycopg.connect(f"{plain} replication=database")
    with pytest.raises(psycopg.OperationalError, match="physical replication is not supported"):
        psycopg.connect(f"{conninfo(node)} replication=true")
    node.psql("DROP ROLE rcmd_plain")
