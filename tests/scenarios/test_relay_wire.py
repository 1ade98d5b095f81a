# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL is the oracle: the same messages get the same answers, byte for byte.

Sequences of messages, sensible and not, are sent without waiting to the server itself and through
the front door; the answers up to the end of the connection must be equal.  Known differences: a
message that breaks the protocol is answered in the front door's own words; a Query behind messages
without a Sync ends their transaction (in PostgreSQL only some do).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from penstock.wire import requests, responses
from penstock.wire.framing import SERVER_LIMITS, Framing, Message
from tests.support.fix_servers import Database, Servers, drop_database
from tests.support.relay import AskingRouter, RelayAll, RunningRelay

DIVIDE = b"SELECT 10 / (g - 3) FROM generate_series(1, 5) g"
"""Fails in its third row, and not when it is planned."""

NAMES = st.sampled_from([b"", b"a", b"b"])
SQL = st.sampled_from(
    [
        b"SELECT 1",
        b"SELECT g FROM generate_series(1, 5) g",
        b"SELECT $1::text, 'x'",
        DIVIDE,
        b"SELECT nosuch",
        b"SELEC 1",
        b"",
        b"-- nothing",
        b"BEGIN",
        b"COMMIT",
        b"ROLLBACK",
        b"SAVEPOINT s",
        b"ROLLBACK TO SAVEPOINT s",
        b"CREATE TEMP TABLE t (a int)",
        b"INSERT INTO t VALUES (1) RETURNING a + 0",
        b"SELECT count(*) FROM t",
        b"SET TimeZone TO 'Asia/Tokyo'",
        b"SHOW TimeZone",
        b"VACUUM pg_am",
        b"COPY (VALUES (1), (2)) TO STDOUT",
        b"DISCARD ALL",
        b"DEALLOCATE ALL",
        b"DECLARE b CURSOR FOR VALUES (1), (2), (3)",
        b"FETCH 2 FROM b",
        b"LOCK TABLE pg_am IN ACCESS SHARE MODE",
        b"SELECT 1; SELECT 2",
        b"BEGIN; SELECT 1",
        b"SELECT 3; COMMIT; SELECT 4",
        b"SELECT 5; " + DIVIDE + b"; SELECT 6",
        b"SELECT 7; ROLLBACK; BEGIN; SELECT nosuch; SELECT 8",
    ]
)
VALUES = st.lists(st.sampled_from([None, b"", b"v"]), max_size=1)
MESSAGES = st.one_of(
    st.builds(lambda sql: requests.sync() + requests.query(sql), SQL),
    st.builds(requests.parse, NAMES, SQL),
    st.builds(requests.bind, NAMES, NAMES, VALUES),
    st.builds(requests.describe, st.sampled_from([ord("S"), ord("P")]), NAMES),
    st.builds(
        lambda portal, rows: b"E" + struct.pack(">I", 9 + len(portal)) + portal + b"\0" + rows,
        NAMES,
        st.sampled_from([struct.pack(">I", n) for n in (0, 1, 2)]),
    ),
    st.builds(requests.close, st.sampled_from([ord("S"), ord("P")]), NAMES),
    st.just(requests.flush()),
    st.just(requests.sync()),
    st.builds(
        lambda sql, values: (
            requests.parse(b"", sql)
            + requests.bind(b"", b"", values)
            + requests.describe(ord("P"), b"")
            + requests.execute(b"")
        ),
        SQL,
        VALUES,
    ),
    st.sampled_from([b"d\0\0\0\4", b"c\0\0\0\4", b"f\0\0\0\5\0"]),
)


@pytest.fixture(scope="module")
def database(servers: Servers) -> Iterator[Database]:
    """A database of this module's own."""
    server = servers()
    database = Database(server, server.create_database())
    yield database
    drop_database(server, database.name)


@pytest.fixture(scope="module", params=[RelayAll, AskingRouter])
def relay(database: Database, request: pytest.FixtureRequest) -> Iterator[RunningRelay]:
    """A front door with one of the two routers."""
    running = RunningRelay(database.server, request.param())
    yield running
    running.close()


def startup(database: str) -> bytes:
    """A startup packet."""
    body = b"\x00\x03\x00\x00user\0postgres\0database\0" + database.encode() + b"\0\0"
    return struct.pack(">I", len(body) + 4) + body


def converse(port: int, database: str, messages: list[bytes]) -> list[bytes]:
    """What is answered to these messages after the login, up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as conn:
        conn.sendall(startup(database))
        framing = Framing(SERVER_LIMITS)
        answers: list[Message] = []
        logged_in = False
        while arrived := conn.recv(65536):
            framing.feed(arrived)
            while (message := framing.next()) is not None:
                if logged_in:
                    answers.append(message)
                elif message.kind == responses.READY_FOR_QUERY:
                    logged_in = True
                    conn.sendall(b"".join(messages) + requests.sync() + requests.terminate())
    return [_comparable(answer) for answer in answers]


def _comparable(message: Message) -> bytes:
    """A message, but an error without its place in PostgreSQL's source: the words count."""
    if message.kind not in (responses.ERROR, responses.NOTICE):
        return message.raw
    fields = responses.parse_error(message, "UTF8").fields
    return repr([(code, text) for code, text in fields.items() if code not in "FLR"]).encode()


P, B, E, S = requests.parse, requests.bind, requests.execute, requests.sync
RUN = B(b"", b"") + E(b"")


@settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(MESSAGES, max_size=12))
@example([P(b"", DIVIDE), RUN, P(b"", b"SELECT 2"), RUN, S(), P(b"", b"SELECT 3"), RUN])
@example([P(b"", b"BEGIN"), RUN, P(b"", DIVIDE), RUN, S(), P(b"", b"SELECT 3"), RUN])
@example([P(b"a", b"SELECT 1"), P(b"a", b"SELECT 2"), S(), B(b"", b"a"), E(b"")])
@example([requests.query(b"SELECT 1"), requests.query(DIVIDE), requests.query(b"SELECT 2")])
@example([P(b"", DIVIDE), RUN, requests.query(b"SELECT 2")])
@example([P(b"", b"VACUUM pg_am"), RUN, S(), P(b"", b"SELECT 1"), RUN, P(b"", b"VACUUM"), RUN])
@example([P(b"", b"SET TimeZone TO 'Asia/Tokyo'"), RUN, requests.query(b"SHOW TimeZone; SELECT 1")])
def test_answers_are_postgresqls(
    relay: RunningRelay, database: Database, messages: list[bytes]
) -> None:
    """Whatever a client sends without waiting, it gets what PostgreSQL would have answered."""
    direct = converse(database.server.port, database.name, messages)
    assert converse(relay.port, database.name, messages) == direct


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"Z\0\0\0\4", b"invalid message type 90"),
        (b"p\0\0\0\4", b"invalid message type 112"),
        (b"\0\0\0\0\0", b"invalid message type 0"),
        (b"S\0\0\0\3", b"invalid message length"),
        (b"Q\xff\xff\xff\xff", b"invalid message length"),
        (b"E\x7f\xff\xff\xff", b"invalid message length"),
        (b"Q\x40\0\0\0", b"invalid message length"),
    ],
)
def test_broken_framing_ends_the_session(
    relay: RunningRelay, database: Database, message: bytes, reason: bytes
) -> None:
    """After bytes that are no message there is no way on: FATAL, and the connection is closed."""
    (answer,) = converse(relay.port, database.name, [message])
    assert b"FATAL" in answer
    assert reason in answer


@pytest.mark.parametrize(
    "body",
    [b"X\0", b"S", b"Sname", b"", b"S\0more"],
)
def test_broken_message_is_an_error(relay: RunningRelay, database: Database, body: bytes) -> None:
    """A message whose inside is wrong is that message's error, and the session goes on."""
    broken = b"D" + struct.pack(">I", len(body) + 4) + body
    answers = converse(
        relay.port, database.name, [broken, requests.sync(), requests.query(b"SELECT 1")]
    )
    assert b"08P01" in answers[0]
    assert answers[-2:] == [responses.ready_for_query("I")] * 2
    assert responses.command_complete("SELECT 1") in answers


def test_function_call_is_refused(relay: RunningRelay, database: Database) -> None:
    """The old function call could read tables behind our back."""
    call = b"F" + struct.pack(">IIHHH", 14, 1598, 0, 0, 0)
    answers = converse(relay.port, database.name, [requests.query(b"BEGIN"), call])
    assert b"0A000" in answers[2]
    assert answers[3] == responses.ready_for_query("E")


def test_message_among_the_rows_of_copy(relay: RunningRelay, database: Database) -> None:
    """Only rows may follow COPY FROM STDIN; anything else ends the session."""
    create = requests.query(b"CREATE TEMP TABLE c (a int)")
    parts = [create, P(b"", b"COPY c FROM STDIN"), RUN, b"d\0\0\0\6" + b"1\n"]
    answers = converse(relay.port, database.name, [*parts, requests.query(b"SELECT 1")])
    assert b"08P01" in answers[-1]


def test_half_a_message(relay: RunningRelay, database: Database) -> None:
    """A client that announces much, sends little and leaves, costs nothing and holds up nobody."""
    with socket.create_connection(("127.0.0.1", relay.port), timeout=20) as conn:
        conn.sendall(startup(database.name))
        arrived = b""
        while not arrived.endswith(b"Z\0\0\0\5I"):
            arrived += conn.recv(65536)
        conn.sendall(b"Q\x3f\xff\xff\xfeSELECT")
        assert converse(relay.port, database.name, [requests.query(b"SELECT 1")])
