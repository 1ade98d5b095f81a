# SPDX-License-Identifier: Apache-2.0
"""Where transactions begin and end in texts of several statements and in pipelines.

A write of the lake needs a block of the node's own there, of which the client must not know.  What
PostgreSQL answers to the same messages, and what is committed by them, is what must come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from penstock.wire.framing import Message
from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.raw_stream import RawStream, message

ONE, TWO, THREE = (f"INSERT INTO block_rows VALUES ({{run}}, {number})" for number in (1, 2, 3))
SHOW = "SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only')"

CHAINED = {
    "commit and chain": ("BEGIN", ONE, "COMMIT AND CHAIN", "SELECT 1", TWO),
    "rollback and chain": ("BEGIN", ONE, "ROLLBACK AND CHAIN", TWO, "COMMIT", THREE),
    "chains": ("BEGIN", "COMMIT AND CHAIN", ONE, "END AND CHAIN", "ABORT AND CHAIN", TWO),
    "isolation": ("BEGIN ISOLATION LEVEL SERIALIZABLE", ONE, "COMMIT WORK AND CHAIN", SHOW, TWO),
    "read only": ("BEGIN READ ONLY", "SELECT 1", "ROLLBACK AND CHAIN", SHOW, ONE),
}
CASES = CHAINED | {
    "no chain": ("BEGIN", ONE, "COMMIT AND NO CHAIN", "SELECT 1", TWO),
    "implicit, chain": (ONE, "COMMIT AND CHAIN", TWO),
    "implicit, rolled back": (ONE, "ROLLBACK TRANSACTION AND CHAIN", TWO),
    "implicit, ended": (ONE, "COMMIT", TWO, "ROLLBACK", THREE),
    "implicit, untold": ("SET client_min_messages = error", ONE, "COMMIT", TWO),
    "implicit, failing last": (ONE, "SELECT 1/0"),
    "implicit, failing": (ONE, "VACUUM block_rows", TWO),
    "implicit, prepared": (ONE, "PREPARE TRANSACTION 'blocks'"),
    "implicit, then a block": (ONE, "BEGIN", "SAVEPOINT s", TWO, "ROLLBACK TO s", THREE, "COMMIT"),
    "implicit, savepoint": (ONE, "SAVEPOINT s", TWO),
    "implicit, release": (ONE, "RELEASE s", TWO),
    "implicit, back": (ONE, "ROLLBACK TO s", TWO),
}


def _text(statements: Sequence[str]) -> bytes:
    return message(b"Q", ";".join(statements).encode() + b"\0")


def _pipeline(statements: Sequence[str]) -> bytes:
    return _executed(statements) + message(b"S")


def _pipeline_without_sync(statements: Sequence[str]) -> bytes:
    """The last statement is a Query; after an error it is skipped, up to the Sync behind it.

    Outside of a block PostgreSQL would end the implicit transaction at the Sync, we at the Query.
    """
    return _executed(statements[:-1]) + _text(statements[-1:]) + message(b"S")


def _executed(statements: Sequence[str]) -> bytes:
    """All are parsed before the first one is executed."""
    parsed = [
        message(b"P", b"s%d\0%s\0\0\0" % (number, each.encode()))
        for number, each in enumerate(statements)
    ]
    executed = [
        message(b"B", b"\0s%d\0\0\0\0\0\0\0" % number) + message(b"E", b"\0\0\0\0\0")
        for number in range(len(statements))
    ]
    return b"".join([*parsed, *executed])


def _told(each: Message) -> str | None:
    """What a message means to a client; None for what the three ways must differ in."""
    kind = chr(each.kind)
    if kind in "CZ":
        return each.body.rstrip(b"\0").decode()
    if kind == "D":
        return repr(each.body)
    if kind in "EN":
        fields = {part[:1]: part[1:].decode() for part in each.body.split(b"\0") if part}
        return f"{fields[b'V']} {fields[b'C']} {fields[b'M']}"
    return None


def _answers(conninfo: str, messages: bytes) -> list[str]:
    """All that the server says until it has ended the connection."""
    with RawStream(conninfo, "") as raw:
        raw.socket.sendall(messages + message(b"X"))
        told = [_told(each) for each in iter(raw.receive, None)]
    return [each for each in told if each is not None]


@pytest.fixture
def conninfos(node: Node, publisher_db: Database) -> Iterator[tuple[str, str]]:
    """PostgreSQL's and the node's, with the same table."""
    for each in (publisher_db, node):
        each.psql("CREATE TABLE block_rows (run int, a int)")
    yield publisher_db.conninfo, node.conninfo()
    node.psql("DROP TABLE block_rows")


def test_blocks_end_where_they_do_in_postgresql(
    node: Node, publisher_db: Database, conninfos: tuple[str, str]
) -> None:
    """Chained blocks stay open; what is for blocks only is refused outside; warnings are told."""
    postgres, lake = conninfos
    runs = [(name, sent) for sent in (_text, _pipeline) for name in CASES]
    runs += [(name, _pipeline_without_sync) for name in CHAINED]
    for run, (name, sent) in enumerate(runs):
        messages = sent([each.format(run=run) for each in CASES[name]])
        assert _answers(lake, messages) == _answers(postgres, messages), (name, sent)
        if "prepared" in name:
            for each in (node, publisher_db):
                each.psql("ROLLBACK PREPARED 'blocks'")
    kept = "COPY (SELECT * FROM block_rows ORDER BY 1, 2) TO STDOUT"
    assert node.psql(kept) == publisher_db.psql(kept)


def test_a_cursor_after_a_chained_commit(conninfos: tuple[str, str]) -> None:
    """A cursor WITH HOLD is a portal that no Bind has made; the chained block stays known."""
    declare = "DECLARE held CURSOR WITH HOLD FOR SELECT 1"
    before = _executed(["BEGIN", declare, "COMMIT AND CHAIN"])
    fetch = message(b"E", b"held\0\0\0\0\0")
    insert = message(b"P", b"\0%s\0\0\0" % ONE.format(run=-1).encode())
    bound = message(b"B", b"\0\0\0\0\0\0\0\0") + message(b"E", b"\0\0\0\0\0")
    for messages in (before + fetch + insert + bound, before + insert + fetch + bound):
        answers = [_answers(each, messages + message(b"S")) for each in conninfos]
        assert answers[0] == answers[1]
        assert answers[0][-1] == "T"
