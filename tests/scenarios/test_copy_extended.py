# SPDX-License-Identifier: Apache-2.0
"""COPY FROM STDIN into lake tables by the extended protocol: answered as PostgreSQL answers it."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest

from penstock.wire import requests
from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.raw_stream import RawStream, message

COPY = requests.parse(b"", b"COPY ce.t FROM STDIN") + requests.bind(b"", b"")
EXECUTE = requests.execute(b"")
ROWS = message(b"d", b"1\tone\n2\ttwo\n")
DONE = message(b"c")
SYNC = requests.sync()
LEFT = requests.query(b"SELECT id, a FROM ce.t ORDER BY id")
INSERT = (
    requests.parse(b"", b"INSERT INTO ce.t VALUES (3, 'three') RETURNING a")
    + requests.bind(b"", b"")
    + EXECUTE
)

CASES: dict[str, list[bytes]] = {
    "libpq": [COPY + requests.describe(requests.PORTAL, b"") + EXECUTE + SYNC, ROWS + DONE + SYNC],
    "no sync before the rows": [COPY + EXECUTE + ROWS + DONE + SYNC],
    "flush": [COPY + EXECUTE + requests.flush(), ROWS + requests.flush() + DONE + SYNC],
    "between statements": [INSERT + COPY + EXECUTE + ROWS + DONE, SYNC],
    "before a statement": [COPY + EXECUTE + ROWS + DONE + INSERT + SYNC],
    "the client gives up": [COPY + EXECUTE + ROWS + message(b"f", b"no more\0") + INSERT + SYNC],
    "a bad row": [COPY + EXECUTE + message(b"d", b"x\ty\n") + ROWS + DONE + INSERT + SYNC],
    "a key twice": [INSERT + SYNC + COPY + EXECUTE + message(b"d", b"3\tx\n") + DONE + SYNC],
    "a key twice in one": [INSERT + COPY + EXECUTE + message(b"d", b"3\tx\n") + DONE + SYNC],
    "twice": [COPY + EXECUTE + ROWS + DONE + EXECUTE + SYNC],
    "an insert twice": [INSERT + EXECUTE + SYNC],
    "an insert without rows twice": [
        INSERT.replace(b" RETURNING a", b"            ") + EXECUTE + SYNC
    ],
    "rows of an insert in parts": [
        requests.parse(b"", b"INSERT INTO ce.t SELECT g FROM generate_series(4, 9) g RETURNING id")
        + requests.bind(b"", b"")
        + message(b"E", b"\0" + b"\0\0\0\4")
        + EXECUTE
        + EXECUTE
        + SYNC
    ],
    "in a block": [
        requests.query(b"BEGIN") + COPY + EXECUTE + ROWS + DONE + SYNC,
        requests.query(b"SELECT count(*) FROM ce.t") + requests.query(b"ROLLBACK"),
    ],
    "an error behind": [
        COPY + EXECUTE + ROWS + DONE + requests.parse(b"", b"nonsense") + SYNC,
    ],
}


def answers(info: str, pieces: Sequence[bytes]) -> list[tuple[str, str]]:
    """What comes back for messages, by its kind; of errors SQLSTATE and message.

    The description of columns has the table's OID, which is another one on each side.
    """
    found = []
    with RawStream(info, "") as raw:
        raw.socket.sendall(b"".join(pieces) + LEFT + requests.terminate())
        while (answer := raw.receive()) is not None:
            body = answer.raw[5:].decode(errors="replace")
            if answer.kind == ord("E"):
                fields = {each[:1]: each[1:] for each in body.split("\0")}
                body = f"{fields['C']} {fields['M']}"
            found.append((chr(answer.kind), "" if answer.kind == ord("T") else body))
    return found


@pytest.mark.parametrize("case", CASES)
def test_answers_are_those_of_postgresql(node: Node, publisher_db: Database, case: str) -> None:
    """Message by message, and the same rows are there afterwards."""
    seen = []
    for end, info in ((publisher_db, publisher_db.conninfo), (node, node.conninfo())):
        end.psql("CREATE SCHEMA ce; CREATE TABLE ce.t (id int PRIMARY KEY, a text)")
        seen.append(answers(info, CASES[case]))
        end.psql("DROP SCHEMA ce CASCADE")
    expected, found = seen
    assert found == expected


def test_a_driver_that_prepares_it(node: Node) -> None:
    """As libpq does with parameters, also again after an error."""
    with node.connect() as conn:
        conn.execute("CREATE SCHEMA ce_driver; CREATE TABLE ce_driver.t (id int PRIMARY KEY)")
        pgconn = conn.pgconn
        for rows, error in ((b"1\n2\n", b""), (b"x\n", b"invalid input"), (b"2\n", b"duplicate")):
            begun = pgconn.exec_params(b"COPY ce_driver.t FROM STDIN", [])
            assert begun.status == psycopg.pq.ExecStatus.COPY_IN
            pgconn.put_copy_data(rows)
            pgconn.put_copy_end()
            result = pgconn.get_result()
            assert result is not None
            assert error in result.error_message
            assert pgconn.get_result() is None
        assert conn.execute("SELECT id FROM ce_driver.t ORDER BY id").fetchall() == [(1,), (2,)]
        conn.execute("DROP SCHEMA ce_driver CASCADE")
