# SPDX-License-Identifier: Apache-2.0
"""The commands of a replication connection are read as PostgreSQL's walsender reads them."""

from __future__ import annotations

import pytest

from penstock.errors import PenstockError
from penstock.sql.replication import replication_command

OPTIONS = (
    "proto_version '4', streaming 'parallel', origin 'any', publication_names '\"p1\",\"P, 2\"'"
)


def test_what_a_subscriber_sends_is_read_and_gets_commit_records() -> None:
    """Slot, position, options; ``messages`` is added, nothing streamed, publications are ours."""
    text = f"START_REPLICATION SLOT \"s1\" LOGICAL 0/1A2B ({OPTIONS}, binary 'true')"
    command = replication_command(text)
    assert command is not None
    start = command.start
    assert start is not None
    assert (command.slot, start.lsn, start.publications) == ("s1", "0/1A2B", ("p1", "P, 2"))
    assert start.is_on("binary")
    assert not start.is_on("messages")
    assert start.relayed("none") == (
        'START_REPLICATION SLOT "s1" LOGICAL 0/1A2B ("proto_version" \'4\', "origin" \'any\','
        " \"publication_names\" 'none', \"binary\" 'true', \"messages\" 'true')"
    )


def test_options_of_other_clients() -> None:
    """No parentheses, a flag without a value, a bare slot name in capitals, a semicolon."""
    command = replication_command("START_REPLICATION SLOT Abc LOGICAL 0/0;")
    assert command is not None
    assert command.slot == "abc"
    assert command.start is not None
    assert command.start.relayed("") == (
        'START_REPLICATION SLOT "abc" LOGICAL 0/0 ("messages" \'true\')'
    )
    flags = replication_command("START_REPLICATION SLOT s LOGICAL 0/0 (messages, it 'it''s')")
    assert flags is not None
    assert flags.start is not None
    assert flags.start.is_on("messages")
    assert flags.start.option("it") == "it's"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT pg_catalog.set_config('search_path', '', false);",
        "start_replication slot s logical 0/0",
        "SHOWING",
        "COPY public.t (id) TO STDOUT",
        "",
    ],
)
def test_everything_else_is_sql(text: str) -> None:
    """The walsender knows its commands in capitals only; SQL goes the way of SQL."""
    assert replication_command(text) is None


@pytest.mark.parametrize(
    ("text", "slot"),
    [
        ("IDENTIFY_SYSTEM", ""),
        ("SHOW wal_level", ""),
        ("CREATE_REPLICATION_SLOT \"a b\" LOGICAL pgoutput (SNAPSHOT 'use')", "a b"),
        ('CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL "pgoutput"', "s"),
        ("DROP_REPLICATION_SLOT penstock_ledger WAIT", "penstock_ledger"),
        ('ALTER_REPLICATION_SLOT "s2" ( FAILOVER false );', "s2"),
        ("READ_REPLICATION_SLOT s", "s"),
        ('DROP_REPLICATION_SLOT"penstock_ledger"', "penstock_ledger"),
        ("DROP_REPLICATION_SLOT\vPENSTOCK_LEDGER\n;", "penstock_ledger"),
        (f"DROP_REPLICATION_SLOT {'x' * 70}", "x" * 63),
    ],
)
def test_commands_that_are_passed_on_name_their_slot(text: str, slot: str) -> None:
    """So that the node's own slot can be kept out of reach."""
    command = replication_command(text)
    assert command is not None
    assert (command.slot, command.start) == (slot, None)


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        ("BASE_BACKUP (LABEL 'x')", "0A000"),
        ("TIMELINE_HISTORY 1", "0A000"),
        ("UPLOAD_MANIFEST", "0A000"),
        ("START_REPLICATION SLOT s PHYSICAL 0/0", "0A000"),
        ("START_REPLICATION 0/0 TIMELINE 1", "0A000"),
        ("CREATE_REPLICATION_SLOT s PHYSICAL RESERVE_WAL", "0A000"),
        ("CREATE_REPLICATION_SLOT s LOGICAL test_decoding", "0A000"),
        ("START_REPLICATION SLOT s LOGICAL 0/0 (a 'b' c)", "42601"),
        ("START_REPLICATION SLOT s LOGICAL 0/0 ()", "42601"),
        ("START_REPLICATION SLOT s LOGICAL 0/0 (binary 1)", "42601"),
        ("START_REPLICATION SLOT LOGICAL LOGICAL 0/0", "42601"),
        ('CREATE_REPLICATION_SLOT"s"LOGICAL"test_decoding"', "0A000"),
        ("CREATE_REPLICATION_SLOT s LOGICAL", "42601"),
        ("DROP_REPLICATION_SLOT", "42601"),
        ("START_REPLICATION SLOT s LOGICAL 0/0 (a 'b',)", "42601"),
        ("START_REPLICATION SLOT s LOGICAL nowhere", "42601"),
        ("START_REPLICATION SLOT s LOGICAL 0/0 (a '", "42601"),
    ],
)
def test_what_could_show_more_than_the_lake_is_refused(text: str, sqlstate: str) -> None:
    """Physical replication, other plugins, and whatever is not understood completely."""
    with pytest.raises(PenstockError) as caught:
        replication_command(text)
    assert caught.value.sqlstate == sqlstate


@pytest.mark.parametrize("names", ['"p', "p,", "p q", ",p", ","])
def test_publication_names_that_are_no_list(names: str) -> None:
    """PostgreSQL's error, for a list that it would not split."""
    command = replication_command(
        f"START_REPLICATION SLOT s LOGICAL 0/0 (publication_names '{names}')"
    )
    assert command is not None
    assert command.start is not None
    with pytest.raises(PenstockError, match="invalid publication_names syntax"):
        _ = command.start.publications


@pytest.mark.parametrize(
    ("names", "publications"),
    [
        ("my-pub , 1P", ("my-pub", "1p")),
        ('"My ""Pub""",p,p', ('My "Pub"', "p")),
        ('a"b', ('a"b',)),
        ("", ()),
        (f"{'P' * 70},q", ("p" * 63, "q")),
    ],
)
def test_publication_names(names: str, publications: tuple[str, ...]) -> None:
    """What SplitIdentifierString takes: a bare name ends at space or comma, and is folded, cut."""
    command = replication_command(
        f"START_REPLICATION SLOT s LOGICAL 0/0 (publication_names '{names}')"
    )
    assert command is not None
    assert command.start is not None
    assert command.start.publications == publications


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("proto_version", "proto_version requires a parameter"),
        ("proto_version '1', publication_names", "publication_names requires a parameter"),
        ("messages 'yes'", "messages requires a Boolean value"),
        ("messages, messages 'off'", "conflicting or redundant options"),
        ("streaming '1'", 'streaming requires a Boolean value or "parallel"'),
        ("proto_version '1', streaming", "requested proto_version=1 does not support streaming"),
        ("proto_version '2', streaming 'PARALLEL'", "does not support parallel streaming, need 4"),
    ],
)
def test_options_that_are_not_passed_on_are_checked(options: str, error: str) -> None:
    """In pgoutput's words; two that must have a value would bring a PostgreSQL 18 down."""
    command = replication_command(f"START_REPLICATION SLOT s LOGICAL 0/0 ({options})")
    assert command is not None
    assert command.start is not None
    with pytest.raises(PenstockError, match=error):
        command.start.relayed("")
