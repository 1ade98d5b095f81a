# SPDX-License-Identifier: Apache-2.0
"""A role with REPLICATION that means no good gets what PostgreSQL would say, and nothing else.

Strange commands are compared with a PostgreSQL of the same version; what would show commit records,
or tables without their rows, is refused however it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from tests.support.fix_servers import Servers
from tests.support.node import Node
from tests.support.published import conninfo, make_replica
from tests.support.waits import wait_until
from tests.support.walsender import Walsender

GIVEN = "proto_version '1', publication_names 'hr'"
START = "START_REPLICATION SLOT hr LOGICAL 0/0 ({})"

OPTIONS = [
    GIVEN,
    *(
        f"{GIVEN}, streaming '{value}'"
        for value in ("on", "bogus", "off", "0", "1", "t", "parallel")
    ),
    "proto_version '2', publication_names 'hr', streaming",
    "proto_version '2', publication_names 'hr', streaming 'parallel'",
    "proto_version '4', publication_names 'hr', streaming 'PARALLEL'",
    "proto_version '4', publication_names 'hr', streaming 'on', streaming 'on'",
    "proto_version '-18446744073709551614', publication_names 'hr', streaming 'on'",
    *(f"{GIVEN}, messages '{value}'" for value in ("bogus", "t", "1", "", "ON")),
    f"{GIVEN}, messages",
    f"{GIVEN}, messages 'on', messages 'off'",
    f"{GIVEN}, \"messages\" 'x'",
    *(f"{GIVEN}, binary{value}" for value in (" 'maybe'", " 'y'", " 'TRUE'", "", " 1", " true")),
    f"{GIVEN}, \"Binary\" 'true'",
    f"{GIVEN}, BINARY 'true', binary 'true'",
    f"{GIVEN}, two_phase 'on'",
    "proto_version '3', publication_names 'hr', two_phase 'on'",
    "proto_version '3', publication_names 'hr', two_phase 'x'",
    *(
        f"proto_version '{value}', publication_names 'hr'"
        for value in ("0", "5", "abc", "-1", "4294967297", " 1", "")
    ),
    "publication_names 'hr'",
    "proto_version '1'",
    *(
        f"proto_version '1', publication_names '{names}'"
        for names in (
            "",
            " ",
            ",",
            "hr,",
            ",hr",
            "hr hr",
            '"hr',
            '""',
            '"hr"',
            "h-r",
            "1x , HR",
            'h"r',
        )
    ),
    f"{GIVEN}, publication_names 'hr'",
    f"{GIVEN}, proto_version '1'",
    *(f"{GIVEN}, origin{value}" for value in (" 'none'", " 'ANY'", " 'bad'", "")),
    f"{GIVEN}, origin 'none', origin 'any'",
    f"{GIVEN}, nothing 'x'",
    f"{GIVEN}, nothing 'x', nothing 'y'",
    f"{GIVEN},",
    "",
    "proto_version '1' publication_names 'hr'",
]

COMMANDS = [
    "START_REPLICATION SLOT hr LOGICAL 0/0",
    "START_REPLICATION SLOT hr LOGICAL 0/0;",
    "START_REPLICATION SLOT hr LOGICAL 0/0 ;;",
    f"START_REPLICATION SLOT hr LOGICAL FFFFFFFF/FFFFFFFF ({GIVEN})",
    f"START_REPLICATION SLOT hr LOGICAL 1FFFFFFFF/0 ({GIVEN})",
    f"START_REPLICATION SLOT hr LOGICAL 0/G ({GIVEN})",
    f"START_REPLICATION SLOT hr LOGICAL ({GIVEN})",
    f"START_REPLICATION SLOT hr LOGICAL 0/0 ({GIVEN}",
    f"START_REPLICATION SLOT hr LOGICAL 0/0 {GIVEN}",
    f'START_REPLICATION SLOT"hr"LOGICAL 0/0({GIVEN})',
    f"START_REPLICATION SLOT HR LOGICAL 0/0 ({GIVEN})",
    f"START_REPLICATION SLOT 'hr' LOGICAL 0/0 ({GIVEN})",
    f'START_REPLICATION SLOT "Hr" LOGICAL 0/0 ({GIVEN})',
    f'START_REPLICATION SLOT "" LOGICAL 0/0 ({GIVEN})',
    f"START_REPLICATION SLOT hr/* */ LOGICAL 0/0 ({GIVEN})",
    f"START_REPLICATION SLOT LOGICAL LOGICAL 0/0 ({GIVEN})",
    f"START_REPLICATION SLOT hr logical 0/0 ({GIVEN})",
    f"START_REPLICATION SLOT {'x' * 70} LOGICAL 0/0 ({GIVEN})",
    f'START_REPLICATION SLOT "hr LOGICAL 0/0 ({GIVEN})',
    f"\vSTART_REPLICATION\vSLOT hr\nLOGICAL 0/0 ({GIVEN})",
    f"START_REPLICATION SLOT hr LOGICAL 0/0 ({GIVEN}); SELECT 1",
    f"/* */ START_REPLICATION SLOT hr LOGICAL 0/0 ({GIVEN})",
    "START_REPLICATION",
    "START_REPLICATIONS SLOT hr",
    "IDENTIFY_SYSTEM; SELECT 1",
    "IDENTIFY_SYSTEM x",
    "SHOW",
    "SHOW nothing_there",
    'CREATE_REPLICATION_SLOT "a b" LOGICAL pgoutput',
    "CREATE_REPLICATION_SLOT x LOGICAL pgoutput (BOGUS)",
    "CREATE_REPLICATION_SLOT x LOGICAL",
    "CREATE_REPLICATION_SLOT",
    "DROP_REPLICATION_SLOT",
    "DROP_REPLICATION_SLOT nope NOW",
    'DROP_REPLICATION_SLOT"nope"',
    "READ_REPLICATION_SLOT hr",
    "ALTER_REPLICATION_SLOT nope (FAILOVER false)",
    "ALTER_REPLICATION_SLOT hr (BOGUS)",
    "",
    " ",
    ";",
    "-- nothing",
    "SELECT 1; SELECT 2",
    "SELECT 1; SELECT nosuch; SELECT 2",
    "SELECT 1; VACUUM pg_am",
    "SET work_mem = '3MB'; SELECT 1/0",
    "SET work_mem = '3MB'; SHOW work_mem; RESET work_mem",
    "COPY (SELECT 1) TO STDOUT; SELECT 2",
    "BEGIN",
    "SELECT 1; SELECT nosuch",
    "SELECT 1; SELECT 2",
    START.format(GIVEN),
    "IDENTIFY_SYSTEM",
    "ROLLBACK",
    "BEGIN",
    "SAVEPOINT a",
    START.format(f"{GIVEN}, nothing"),
    "SELECT 1",
    "ROLLBACK TO a",
    "SELECT 1",
    START.format(GIVEN),
    "COMMIT",
    f"SELECT '{'x' * 2_000_000}' = 'y'",
    f"SELECT {'+'.join('1' * 3000)}",
    f"DROP_REPLICATION_SLOT {'x' * 1_000_000}",
    "VACUUM pg_am",
    "LISTEN hr",
    "SELECT 'ok'",
]


@pytest.fixture(scope="module")
def lake(node: Node) -> Iterator[Walsender]:
    """A replication connection to the node, with a slot ``hr``."""
    make_replica(node)
    node.psql("CREATE TABLE hr (a int PRIMARY KEY); INSERT INTO hr VALUES (1), (2)")
    node.psql("CREATE PUBLICATION hr FOR TABLE hr")
    connection = Walsender(conninfo(node))
    connection.rows("CREATE_REPLICATION_SLOT hr LOGICAL pgoutput (SNAPSHOT 'nothing')")
    yield connection
    connection.close()
    free = "SELECT FROM pg_replication_slots WHERE slot_name = 'hr' AND active"
    wait_until(lambda: node.psql(free) == "", 20, "the slot to be free")
    node.psql("SELECT pg_drop_replication_slot('hr'); DROP PUBLICATION hr; DROP TABLE hr")


@pytest.fixture(scope="module")
def native(servers: Servers) -> Iterator[Walsender]:
    """The same on a PostgreSQL 18."""
    server = servers()
    server.psql("CREATE TABLE hr (a int PRIMARY KEY); CREATE PUBLICATION hr FOR TABLE hr")
    connection = Walsender(server.conninfo())
    connection.rows("CREATE_REPLICATION_SLOT hr LOGICAL pgoutput (SNAPSHOT 'nothing')")
    yield connection
    connection.close()
    free = "SELECT FROM pg_replication_slots WHERE slot_name = 'hr' AND active"
    wait_until(lambda: server.psql(free) == "", 20, "the slot to be free")
    server.psql("SELECT pg_drop_replication_slot('hr'); DROP PUBLICATION hr; DROP TABLE hr")


def compare(lake: Walsender, native: Walsender, commands: Iterable[str]) -> None:
    """Both answer the same; after a stream both are connected anew."""
    for command in commands:
        outcomes = lake.outcomes(command)
        assert outcomes == native.outcomes(command), command[:200]
        if "COPY_BOTH" in outcomes:
            lake.reconnect()
            native.reconnect()


def test_strange_options_are_judged_as_postgresql_does(lake: Walsender, native: Walsender) -> None:
    """Each START_REPLICATION starts a stream, or is refused in the same words."""
    compare(lake, native, map(START.format, OPTIONS))


def test_strange_commands_are_answered_as_by_postgresql(lake: Walsender, native: Walsender) -> None:
    """Syntax, names, blocks, several statements, errors in blocks, texts of megabytes: in order."""
    compare(lake, native, COMMANDS)


def test_nothing_runs_after_an_error_behind_a_stream(lake: Walsender) -> None:
    """A PostgreSQL closes a file that it has no more, and might read another: the session ends."""
    assert "COPY_BOTH" in lake.outcomes(START.format(GIVEN))
    assert lake.rows("SELECT 1") == [["1"]]
    assert lake.refusal("SELECT nosuch")[0] == "42703"
    assert lake.outcomes("SELECT 1")[0][0] == "08006"
    lake.reconnect()
    assert lake.rows("SELECT 1") == [["1"]]


def test_options_without_a_value_do_not_bring_the_server_down(lake: Walsender, node: Node) -> None:
    """PostgreSQL 18.6 dereferences a null pointer for these; here it never sees them."""
    for options in (
        "proto_version, publication_names 'hr'",
        "proto_version '1', publication_names",
    ):
        sqlstate, message = lake.refusal(START.format(options))
        assert (sqlstate, message.partition(" ")[2]) == ("42601", "requires a parameter")
    assert "recovery" not in node.psql("SELECT pg_postmaster_start_time()")
    assert lake.rows("SELECT 1") == [["1"]]


FORBIDDEN = [
    ('DROP_REPLICATION_SLOT"penstock_ledger"', "42501"),
    ("DROP_REPLICATION_SLOT\vPENSTOCK_LEDGER\nWAIT;", "42501"),
    ('START_REPLICATION SLOT"penstock_ledger"LOGICAL 0/0', "42501"),
    ("START_REPLICATION SLOT Penstock_Ledger LOGICAL 0/0", "42501"),
    ('ALTER_REPLICATION_SLOT"penstock_ledger"(FAILOVER)', "42501"),
    ("SELECT pg_drop_replication_slot('penstock_' || 'ledger')", "55006"),
    ("SELECT pg_replication_slot_advance('penstock_ledger', pg_current_wal_lsn())", "55006"),
    ("SELECT pg_logical_slot_peek_changes('hr', NULL, NULL, 'proto_version', '1')", "0A000"),
    ("SELECT (SELECT ROW('hr')).pg_logical_slot_get_changes", "0A000"),
    ("INSERT INTO penstock.table_version VALUES (1)", "42501"),
    ("COPY penstock.table_version FROM STDIN", "42501"),
    ("SELECT penstock.emit_commit('x', '{}')", "42501"),
    ("SELECT pg_logical_emit_message(true, 'pens' || 'tock', 'x')", "42501"),
    ("SET session_replication_role = replica", "0A000"),
    ("SET synchronous_commit TO off", "0A000"),
    ("SELECT 1; SET event_triggers = off", "0A000"),
    ("SELECT set_config('synchronous_commit', 'off', false)", "0A000"),
    ("SELECT set_config('synchronous' || '_commit', 'off', false)", "0A000"),
    ("UPDATE pg_settings SET setting = 'off' WHERE name = 'synchronous_commit'", "0A000"),
    ("SET SESSION AUTHORIZATION penstock", "42501"),
    ("SELECT count(*) FROM hr", "0A000"),
    ("SET search_path = public; SELECT count(*) FROM hr", "0A000"),
    ("SELECT set_config('search_path', 'public', false); SELECT count(*) FROM hr", "0A000"),
    ("DECLARE c CURSOR FOR SELECT * FROM hr", "0A000"),
    ("PREPARE p AS SELECT * FROM hr", "0A000"),
    ("EXPLAIN ANALYZE SELECT * FROM hr", "0A000"),
    ("COPY hr TO STDOUT; SELECT 1", "0A000"),
    ("COPY hr TO '/tmp/hr'", "0A000"),
    ("SELECT query_to_xml('TABLE hr', true, true, '')", "0A000"),
    ('SELECT * FROM U&"\\0068r"', "0A000"),
    ("BEGIN; SELECT count(*) FROM hr", "0A000"),
    ("BEGIN; COMMIT; SELECT 1", "0A000"),
]


@pytest.mark.parametrize(("command", "sqlstate"), FORBIDDEN)
def test_what_is_not_the_clients_is_refused(lake: Walsender, command: str, sqlstate: str) -> None:
    """The node's slot, commit records, tables without rows, settings: in a block and alone."""
    refusal = lake.refusal(command)
    assert refusal[0] == sqlstate, refusal
    assert not lake.in_block
    lake.rows("BEGIN")
    assert lake.refusal(command)[0] == sqlstate
    assert lake.refusal("SELECT 1")[0] == "25P02"
    assert lake.refusal("ROLLBACK; SELECT count(*) FROM hr")[0] == "0A000"
    lake.rows("ROLLBACK")


def test_a_setting_does_not_change_what_the_next_statement_is(lake: Walsender) -> None:
    """What quotes mean changes between two statements of a text: the second is not two then."""
    text = "SET standard_conforming_strings = off; SELECT 'x\\'' ; SELECT count(*) FROM hr --'"
    assert lake.refusal(text)[0] == "0A000"
    assert lake.rows("SHOW standard_conforming_strings") == [["on"]]


def test_a_copy_of_the_nodes_slot_shows_no_commit_record(lake: Walsender, node: Node) -> None:
    """A slot may be copied, but only pgoutput's is read, and it tells of publications only.

    On a connection of its own: as on a PostgreSQL, a second stream of one ends at once.
    """
    own = Walsender(conninfo(node))
    copied = "SELECT pg_copy_logical_replication_slot('penstock_ledger', '{}', true{})"
    own.rows(copied.format("hr_other", ", 'test_decoding'"))
    refused = own.refusal("START_REPLICATION SLOT hr_other LOGICAL 0/0")
    assert refused[0] == "0A000"
    own.rows(copied.format("hr_copy", ""))
    node.psql("INSERT INTO hr VALUES (3)")
    options = "proto_version '1', publication_names 'hr', messages"
    frames = own.frames(f"START_REPLICATION SLOT hr_copy LOGICAL 0/0 ({options})", b"C")
    own.close()
    assert [frame[:1] for frame in frames] == [b"B", b"R", b"I", b"C"]
    assert not [frame for frame in frames if b"penstock" in frame]
