# SPDX-License-Identifier: Apache-2.0
"""Before a client has authenticated: negotiation, TLS, limits, passwords, cancel keys."""

from __future__ import annotations

import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from penstock.errors import ConfigurationError
from penstock.frontdoor.listener import MAX_NEWCOMERS
from penstock.wire.startup import SSL_CODE, CancelKey, cancel_request
from tests.support.binaries import installations
from tests.support.fix_servers import Servers
from tests.support.psql import PLAIN, run_psql
from tests.support.relay import RunningRelay
from tests.support.servers import PASSWORD, PASSWORD_ROLE, PostgresServer
from tests.support.waits import wait_until

SSL_REQUEST = struct.pack(">II", 8, SSL_CODE)
GSSENC_REQUEST = struct.pack(">II", 8, SSL_CODE + 1)
STARTUP = b"\x00\x03\x00\x00user\0postgres\0database\0postgres\0\0"
STARTUP = struct.pack(">I", len(STARTUP) + 4) + STARTUP


@pytest.fixture(scope="module")
def server(servers: Servers) -> PostgresServer:
    """The server behind the front doors of this module."""
    return servers()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate and its key."""
    folder = tmp_path_factory.mktemp("certificate")
    cert, key = folder / "server.crt", folder / "server.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


@pytest.fixture(scope="module")
def relay(server: PostgresServer) -> Iterator[RunningRelay]:
    """A front door without a certificate, to a server that asks PASSWORD_ROLE for its password."""
    running = RunningRelay(server, tcp=True, authentication_timeout=2.0, max_connections=6)
    yield running
    running.close()


@pytest.fixture(scope="module")
def tls_relay(server: PostgresServer, certificate: tuple[Path, Path]) -> Iterator[RunningRelay]:
    """A front door with a certificate."""
    cert, key = certificate
    running = RunningRelay(server, tcp=True, ssl_cert_file=cert, ssl_key_file=key)
    yield running
    running.close()


def dial(relay: RunningRelay) -> socket.socket:
    """A bare connection."""
    return socket.create_connection((relay.host, relay.port), timeout=10)


def everything(conn: socket.socket) -> bytes:
    """What arrives until the other side closes."""
    parts = []
    while part := conn.recv(65536):
        parts.append(part)
    return b"".join(parts)


def test_tls(tls_relay: RunningRelay) -> None:
    """With a certificate a client gets TLS, and a password and long results go over it."""
    conninfo = tls_relay.conninfo(user=PASSWORD_ROLE, sslmode="require")
    with psycopg.connect(conninfo, password=PASSWORD) as conn:
        assert conn.pgconn.ssl_in_use
        long = conn.execute("SELECT repeat('x', 3000000)").fetchone()
        assert long is not None
        assert len(long[0]) == 3_000_000


def test_tls_with_psql(tls_relay: RunningRelay) -> None:
    """psql with TLS; of the installations here only Debian's is built with it."""
    if "15" not in installations():
        pytest.skip("this machine has no psql with TLS")
    psql = installations()["15"] / "bin" / "psql"
    conninfo = tls_relay.conninfo(sslmode="require")
    said = run_psql(psql, conninfo, "\\conninfo\nSELECT 1", flags=PLAIN)
    assert "SSL connection" in said
    assert said.endswith("\n1")


def test_no_tls_without_certificate(relay: RunningRelay) -> None:
    """Without a certificate, TLS is declined, and a client that insists is not served."""
    with psycopg.connect(relay.conninfo(sslmode="prefer")) as conn:
        assert not conn.pgconn.ssl_in_use
    with pytest.raises(psycopg.OperationalError, match="server does not support SSL"):
        psycopg.connect(relay.conninfo(sslmode="require"))


def test_bytes_before_the_handshake(tls_relay: RunningRelay) -> None:
    """Clear bytes behind an SSLRequest close the connection (CVE-2021-23214)."""
    with dial(tls_relay) as conn:
        conn.sendall(SSL_REQUEST + STARTUP)
        answer = everything(conn)
    assert b"received unencrypted data after SSL request" in answer
    assert answer[:1] == b"E"


def test_bytes_between_answer_and_handshake(tls_relay: RunningRelay) -> None:
    """Clear bytes instead of a handshake are never taken for the client's."""
    with dial(tls_relay) as conn:
        conn.sendall(SSL_REQUEST)
        assert conn.recv(1) == b"S"
        conn.sendall(STARTUP)
        assert b"R" not in everything(conn)[:1]


@pytest.mark.parametrize(
    "requests",
    [
        [SSL_REQUEST, SSL_REQUEST],
        [GSSENC_REQUEST, GSSENC_REQUEST],
        [SSL_REQUEST, GSSENC_REQUEST, SSL_REQUEST],
    ],
)
def test_negotiation_ends(relay: RunningRelay, requests: list[bytes]) -> None:
    """Each encryption may be asked for once (CVE-2026-6479 had no end)."""
    with dial(relay) as conn:
        for request in requests[:-1]:
            conn.sendall(request)
            assert conn.recv(1) == b"N"
        conn.sendall(requests[-1])
        assert b"FATAL" in everything(conn)


def test_both_encryptions_declined(relay: RunningRelay) -> None:
    """After two refusals a client may go on in the clear, without waiting for them."""
    with dial(relay) as conn:
        conn.sendall(GSSENC_REQUEST + SSL_REQUEST + STARTUP)
        assert conn.recv(2) == b"NN"
        assert conn.recv(1) == b"R"


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">I", 10_001) + b"x" * 100,
        struct.pack(">I", 2**31),
        struct.pack(">I", 4),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_oversized_startup(relay: RunningRelay, sent: bytes) -> None:
    """What cannot be a startup packet is refused at once."""
    with dial(relay) as conn:
        conn.sendall(sent)
        assert b"invalid length of startup packet" in everything(conn)


def test_startup_without_an_end(relay: RunningRelay) -> None:
    """A startup packet must be pairs of strings and an end."""
    with dial(relay) as conn:
        conn.sendall(STARTUP[:-1].replace(STARTUP[:4], struct.pack(">I", len(STARTUP) - 1)))
        assert b"invalid startup packet layout" in everything(conn)


def test_silent_client_is_closed(relay: RunningRelay) -> None:
    """authentication_timeout covers a client that says nothing, and one that stops half-way."""
    with dial(relay) as silent, dial(relay) as half:
        half.sendall(STARTUP[:20])
        assert everything(silent) == b""
        assert everything(half) == b""


def test_client_that_never_gives_its_password(relay: RunningRelay) -> None:
    """authentication_timeout covers the exchange of passwords too."""
    packet = STARTUP[4:].replace(b"user\0postgres", b"user\0" + PASSWORD_ROLE.encode())
    with dial(relay) as conn:
        conn.sendall(struct.pack(">I", len(packet) + 4) + packet)
        answer = everything(conn)
    assert answer[:1] == b"R"
    assert b"canceling authentication due to timeout" in answer


def test_passwords(relay: RunningRelay) -> None:
    """The control database judges passwords: right, wrong and missing ones, unknown roles."""
    conninfo = relay.conninfo(user=PASSWORD_ROLE)
    with psycopg.connect(conninfo, password=PASSWORD) as conn:
        assert conn.info.user == PASSWORD_ROLE
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(conninfo, password="wrong")
    with pytest.raises(psycopg.OperationalError, match='role "nobody" does not exist'):
        psycopg.connect(relay.conninfo(user="nobody"))
    with pytest.raises(psycopg.OperationalError, match='database "none" does not exist'):
        psycopg.connect(relay.conninfo("none"))


def test_only_passwords_before_login(relay: RunningRelay) -> None:
    """Any other message before the login ends the connection."""
    packet = STARTUP[4:].replace(b"user\0postgres", b"user\0" + PASSWORD_ROLE.encode())
    with dial(relay) as conn:
        conn.sendall(struct.pack(">I", len(packet) + 4) + packet + b"Q\0\0\0\x0dSELECT 1\0")
        assert b"invalid message type 81" in everything(conn)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("database", "the lake is not published here"),
        *((value, "physical replication is not supported") for value in ("true", "on", "1", "yes")),
    ],
)
def test_replication_is_refused(relay: RunningRelay, value: str, error: str) -> None:
    """Physical replication, and any where no lake is published: no session of another kind."""
    with pytest.raises(psycopg.OperationalError, match=error):
        psycopg.connect(relay.conninfo(replication=value))


def test_too_many_clients(relay: RunningRelay) -> None:
    """max_connections is kept, with PostgreSQL's message, and a place becomes free again."""
    sessions = [relay.connect() for _ in range(6)]
    with pytest.raises(psycopg.OperationalError, match="sorry, too many clients already"):
        relay.connect()
    for session in sessions:
        session.close()
    wait_until(lambda: _connects(relay), 5, "a place to become free")


def _connects(relay: RunningRelay) -> bool:
    try:
        relay.connect().close()
    except psycopg.OperationalError:
        return False
    return True


def test_half_open_connections(server: PostgresServer) -> None:
    """500 connections that say nothing keep nobody out, and most are closed early."""
    relay = RunningRelay(server)
    silent = [dial(relay) for _ in range(500)]
    try:
        with relay.connect() as conn:
            assert conn.execute("SELECT 1").fetchone() == (1,)
        closed = 0
        for conn_ in silent[: 500 - MAX_NEWCOMERS]:
            closed += conn_.recv(1) == b""
        assert closed == 500 - MAX_NEWCOMERS
    finally:
        for each in silent:
            each.close()
        relay.close()


def test_cancel_keys_are_ours(relay: RunningRelay, server: PostgresServer) -> None:
    """A client's key works at the front door, not at the control database, nor does a guess."""
    with dial(relay) as conn:
        conn.sendall(STARTUP)
        arrived = b""
        while b"Z\0\0\0\5I" not in arrived:
            arrived += conn.recv(65536)
        at = arrived.index(b"K\0\0\0\x0c")
        pid, secret = struct.unpack(">i4s", arrived[at + 5 : at + 13])
        conn.sendall(
            b"Q\0\0\0\x17SELECT pg_sleep(60)\0"[:1]
            + struct.pack(">I", 24)
            + b"SELECT pg_sleep(60)\0"
        )
        wait_until(lambda: _sleeps(server, pid), 10, "the query to run")
        for host, port, key in (
            ("127.0.0.1", server.port, CancelKey(pid, secret)),
            (relay.host, relay.port, CancelKey(pid, b"\0\0\0\0")),
            (relay.host, relay.port, CancelKey(pid + 1, secret)),
            (relay.host, relay.port, CancelKey(pid, secret + b"\0")),
        ):
            with socket.create_connection((host, port), timeout=10) as canceller:
                canceller.sendall(cancel_request(key))
                assert everything(canceller) == b""
        assert _sleeps(server, pid)
        with dial(relay) as canceller:
            canceller.sendall(cancel_request(CancelKey(pid, secret)))
            assert everything(canceller) == b""
        assert b"canceling statement due to user request" in conn.recv(65536)


@pytest.mark.parametrize("version", ["3.0", "3.2", "latest"])
def test_protocol_versions(relay: RunningRelay, version: str) -> None:
    """Protocol 3.2, with its longer cancel keys, and the newest that a client knows."""
    if psycopg.pq.version() < 180000:
        pytest.skip("this libpq speaks protocol 3.0 only")
    with psycopg.connect(relay.conninfo(max_protocol_version=version), autocommit=True) as conn:
        assert conn.execute("SELECT 1").fetchone() == (1,)
        cancel = threading.Timer(0.2, conn.cancel_safe)
        cancel.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            conn.execute("SELECT pg_sleep(30)")
        cancel.join()


def _sleeps(server: PostgresServer, pid: int) -> bool:
    with server.connect() as conn:
        query = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'"
        return conn.execute(query, (pid,)).fetchone() is not None


def test_control_database_is_away(servers: Servers, tmp_path: Path) -> None:
    """Without a control database a client gets a clear error."""
    server = servers()
    gone = PostgresServer(tmp_path / "gone", port=1)
    relay = RunningRelay(gone)
    try:
        with pytest.raises(psycopg.OperationalError, match="control database does not answer"):
            relay.connect()
    finally:
        relay.close()
    assert server.port


def test_certificate_that_cannot_be_used(server: PostgresServer, tmp_path: Path) -> None:
    """A certificate that is not there, or has no key, stops the start with its name."""
    with pytest.raises(ConfigurationError, match="must be set together"):
        RunningRelay(server, ssl_cert_file=tmp_path / "c")
    with pytest.raises(ConfigurationError, match="could not load the certificate"):
        RunningRelay(server, ssl_cert_file=tmp_path / "c", ssl_key_file=tmp_path / "k")
