# SPDX-License-Identifier: Apache-2.0
"""Questions on a connection that takes Query messages only, and the frames of its stream."""

from __future__ import annotations

import pytest

from penstock.frontdoor.replication.walsender import with_literals
from penstock.wire import replication
from penstock.wire.replication import XLogHeader


@pytest.mark.parametrize(
    ("sql", "values", "expected"),
    [
        ("SELECT 1", [], "SELECT 1"),
        ("SELECT $1::int, '$1', $2", ["5", None], "SELECT '5'::int, '$1', NULL"),
        ("f($2, $1)", ["it's", "b"], "f('b', 'it''s')"),
        ("f($1)", ["a\\'b"], "f( E'a\\\\''b')"),
    ],
)
def test_parameters_become_literals(sql: str, values: list[str | None], expected: str) -> None:
    """Each where its number stands, and never inside of a literal; quotes and backslashes too."""
    assert with_literals(sql, values) == expected


def test_frames() -> None:
    """A keepalive has PostgreSQL's form, and is read again, as is the head of an XLogData."""
    frame = replication.keepalive(0x1_0000_0002, 7, wants_reply=True)
    assert frame == b"d\0\0\0\x16k" + (0x1_0000_0002).to_bytes(8, "big") + bytes(7) + b"\x07\x01"
    assert replication.keepalive_end(frame[5:]) == 0x1_0000_0002
    data = b"w" + bytes(7) + b"\1" + bytes(7) + b"\2" + bytes(7) + b"\3" + b"C"
    assert replication.parse_xlog_header(data) == XLogHeader(1, 2, 3)
    assert data[replication.XLOG_HEADER_SIZE :] == b"C"


def test_who_asks_for_a_keepalive() -> None:
    """A status update whose last byte says so; nothing else that a subscriber may send."""
    asking = b"r" + bytes(32) + b"\1"
    assert replication.wants_reply(asking)
    assert not replication.wants_reply(asking[:-1] + b"\0")
    for other in (b"", asking[:-1], b"h" + asking[1:], b"h" + bytes(24)):
        assert not replication.wants_reply(other)
