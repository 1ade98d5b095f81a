# SPDX-License-Identifier: Apache-2.0
"""Frames of the replication stream taken apart, compared with reading them one by one."""

from __future__ import annotations

import struct
from array import array
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.feedback import parse_keepalive
from penstock.client.frames import Read, unframe
from penstock.errors import ProtocolError
from tests.support import pgoutput_bytes as wire

ROW = wire.insert(5, ["1"])
ENDS = {"C": "committed", "K": "committed", "c": "committed", "P": "prepared", "p": "prepared"}
ENDS |= {"r": "prepared", "E": "block", "A": "block"}

letters = st.sampled_from("BCORYMIUDTbPKrpSEcA")
messages = st.builds(
    lambda letter, lsn, rest: (
        letter.encode()
        + (b"\0\0\0\7" if letter == "c" else b"")
        + struct.pack(">BQQ", 0, 1, lsn)
        + rest
    ),
    letters,
    st.integers(1, 2**62),
    st.binary(max_size=40),
)
frames = st.lists(
    st.one_of(
        messages.map(lambda message: wire.xlog_data(message, 7, 9, 5)),
        st.builds(
            lambda end, reply: struct.pack(">cQqB", b"k", end, 3, reply),
            st.integers(0, 2**62),
            st.integers(0, 1),
        ),
    ),
    max_size=30,
)


def read(parts: list[bytes]) -> Read:
    """What ``unframe`` makes of frames."""
    return unframe(bytearray().join(parts), array("q", accumulate(map(len, parts))))


@given(frames)
def test_frames_are_taken_apart(parts: list[bytes]) -> None:
    """Messages, keepalives, the last end and what has begun behind it, as read one by one."""
    found = read(parts)
    sent = [part[25:] for part in parts if part[:1] == b"w"]
    buffer, ends = found.messages.buffer, [0, *found.messages.ends.tolist()]
    assert [bytes(buffer[a:b]) for a, b in pairwise(ends)] == sent
    assert found.keepalives == [part for part in parts if part[:1] == b"k"]
    assert found.position == ((9, 5) if sent else None)
    whole, inside, lsns = 0, None, {"committed": 0, "prepared": 0, "block": 0}
    for count, message in enumerate(sent, 1):
        letter = chr(message[0])
        if letter in "BbS":
            inside = True
        if letter in ENDS:
            whole, inside = count, False
            at = 14 if letter == "c" else 10
            (lsns[ENDS[letter]],) = struct.unpack_from(">Q", message, at)
    assert (found.messages.whole, found.messages.inside) == (whole, inside)
    assert found.messages.committed_lsn == lsns["committed"]
    assert found.messages.prepared_lsn == lsns["prepared"]


@given(st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=8))
def test_any_bytes(parts: list[bytes]) -> None:
    """Whatever comes is read or is a protocol error."""
    try:
        found = read(parts)
    except ProtocolError:
        return
    assert len(found.messages.ends) + len(found.keepalives) == len(parts)


@pytest.mark.parametrize(
    "frame", [b"x", b"w" + bytes(24), bytes(40), wire.xlog_data(b"C\0\0", 1, 2, 3)]
)
def test_wrong_frames(frame: bytes) -> None:
    """Another kind, data without a message, a Commit without its end."""
    with pytest.raises(ProtocolError):
        read([wire.xlog_data(ROW, 1, 2, 3), frame])


def test_a_wrong_keepalive_is_found_by_who_reads_it() -> None:
    """It is handed on as it came."""
    (keepalive,) = read([b"k" + bytes(3)]).keepalives
    with pytest.raises(ProtocolError):
        parse_keepalive(keepalive)
