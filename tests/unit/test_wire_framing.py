# SPDX-License-Identifier: Apache-2.0
"""Framing: any bytes, in any pieces, give messages, a need for more, or ProtocolError."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.wire import requests
from penstock.wire.framing import (
    AUTHENTICATING_LIMITS,
    CLIENT_LIMITS,
    LARGE_LIMIT,
    PASSWORD_LIMIT,
    SERVER_LIMITS,
    SMALL_LIMIT,
    STARTUP,
    STARTUP_LIMIT,
    Framing,
    Message,
)

LIMITS = st.sampled_from([None, AUTHENTICATING_LIMITS, CLIENT_LIMITS, SERVER_LIMITS])
A_QUERY = requests.query(b"SELECT 1")


def cut(limits: Mapping[int, int] | None, pieces: list[bytes]) -> tuple[list[Message], bool]:
    """The messages in these pieces, and whether they ended in ProtocolError."""
    framing = Framing(limits)
    found: list[Message] = []
    try:
        for piece in pieces:
            framing.feed(piece)
            while (message := framing.next()) is not None:
                found.append(message)
    except ProtocolError:
        return found, True
    assert framing.buffered == sum(map(len, pieces)) - sum(len(each.raw) for each in found)
    return found, False


@given(LIMITS, st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
@example(None, b"\x00\x00\x00\x08\x04\xd2\x16\x2f", [3])
@example(CLIENT_LIMITS, A_QUERY * 3, [1, 4, 5, 6, 20])
def test_any_bytes_in_any_pieces(
    limits: Mapping[int, int] | None, sent: bytes, places: list[int]
) -> None:
    """Cutting the bytes changes nothing, and nothing but ProtocolError is raised."""
    borders = sorted({0, len(sent), *(place for place in places if place < len(sent))})
    pieces = [sent[a:b] for a, b in pairwise(borders)]
    whole = cut(limits, [sent])
    assert cut(limits, pieces) == whole
    assert (
        b"".join(message.raw for message in whole[0]) == sent[: sum(len(m.raw) for m in whole[0])]
    )


@given(st.lists(st.binary(max_size=50), max_size=10), st.integers(1, 30))
def test_messages_come_out_as_they_went_in(texts: list[bytes], size: int) -> None:
    """Framing keeps every byte of every message."""
    sent = [requests.query(text.replace(b"\0", b"")) for text in texts]
    stream = b"".join(sent)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert cut(CLIENT_LIMITS, pieces) == ([Message(ord("Q"), raw) for raw in sent], False)


@pytest.mark.parametrize("length", [0, 7, STARTUP_LIMIT + 1, 2**31, 2**32 - 1, 0x16030100])
def test_length_of_a_startup_packet(length: int) -> None:
    """A startup packet has 8 to 10,000 bytes; TLS without SSLRequest is none."""
    framing = Framing(None)
    framing.feed(length.to_bytes(4, "big"))
    with pytest.raises(ProtocolError, match="invalid length of startup packet"):
        framing.next()


def test_startup_packet_at_the_limit() -> None:
    """10,000 bytes are allowed."""
    packet = STARTUP_LIMIT.to_bytes(4, "big") + bytes(STARTUP_LIMIT - 4)
    assert cut(None, [packet[:9], packet[9:]]) == ([Message(STARTUP, packet)], False)


@pytest.mark.parametrize(
    ("limits", "kind", "limit"),
    [
        (AUTHENTICATING_LIMITS, b"p", PASSWORD_LIMIT),
        *((CLIENT_LIMITS, bytes([kind]), LARGE_LIMIT) for kind in b"QPBdF"),
        *((CLIENT_LIMITS, bytes([kind]), SMALL_LIMIT) for kind in b"DECHScfX"),
    ],
)
def test_length_is_checked_before_the_body_arrives(
    limits: Mapping[int, int], kind: bytes, limit: int
) -> None:
    """A length over the limit is refused at once; one below it keeps only what has arrived."""
    framing = Framing(limits)
    framing.feed(kind + limit.to_bytes(4, "big"))
    assert framing.next() is None
    assert framing.buffered == 5
    for wrong in (limit + 1, 3, 0, 2**32 - 1):
        framing = Framing(limits)
        framing.feed(kind + wrong.to_bytes(4, "big"))
        with pytest.raises(ProtocolError, match="invalid message length"):
            framing.next()


@pytest.mark.parametrize(
    ("limits", "kinds"),
    [
        (AUTHENTICATING_LIMITS, b"QPBEXd\x00"),
        (CLIENT_LIMITS, b"pRZT\x00\xff"),
        (SERVER_LIMITS, b"Qp"),
    ],
)
def test_types_that_must_not_come(limits: Mapping[int, int], kinds: bytes) -> None:
    """Each side may send its own types only, and before authentication only passwords."""
    for kind in kinds:
        assert cut(limits, [bytes([kind]) + b"\0\0\0\4"]) == ([], True)


def test_limits_change_for_what_is_there_already() -> None:
    """What was sent behind the startup packet is judged as what it is."""
    framing = Framing(None)
    startup = b"\x00\x00\x00\x09\x00\x03\x00\x00\x00"
    framing.feed(startup + A_QUERY)
    assert framing.next() == Message(STARTUP, startup)
    framing.expect(CLIENT_LIMITS)
    assert framing.next() == Message(ord("Q"), A_QUERY)


@given(st.integers(0, 20), st.integers(0, 25))
def test_skim_takes_whole_messages_of_one_type(rows: int, missing: int) -> None:
    """Skimming takes complete rows only, and leaves the rest to ``next``."""
    row, end = b"D\x00\x00\x00\x0a\x00\x01\xff\xff\xff\xff", b"C\x00\x00\x00\x05\x00"
    stream = row * rows + end
    framing = Framing(SERVER_LIMITS)
    framing.feed(stream[: len(stream) - missing])
    skimmed = framing.skim(ord("D"))
    assert skimmed == row * (len(stream[: len(stream) - missing].removesuffix(end)) // len(row))
    framing_rest = [skimmed]
    while (message := framing.next()) is not None:
        framing_rest.append(message.raw)
    framing.feed(stream[len(stream) - missing :])
    while (message := framing.next()) is not None:
        framing_rest.append(message.raw)
    assert b"".join(framing_rest) == stream
