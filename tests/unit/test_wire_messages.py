# SPDX-License-Identifier: Apache-2.0
"""Messages: what is written is read back; what is broken is a ProtocolError and nothing else."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import FeatureNotSupportedError, PenstockError, ProtocolError
from penstock.wire import requests, responses, startup
from penstock.wire.encodings import decode, encode
from penstock.wire.framing import CLIENT_LIMITS, SERVER_LIMITS, STARTUP, Framing, Message
from penstock.wire.startup import CancelKey
from penstock.wire.state import Event

NAMES = st.binary(max_size=20).map(lambda raw: raw.replace(b"\0", b"n"))
VALUES = st.lists(st.none() | st.binary(max_size=30), max_size=5)

REQUEST_PARSERS: list[Callable[[Message], object]] = [
    requests.parse_query,
    requests.parse_parse,
    requests.parse_bind,
    requests.parse_bind_names,
    requests.parse_named,
    requests.parse_execute,
]
RESPONSE_PARSERS: list[Callable[[Message], object]] = [
    responses.parse_ready,
    responses.parse_parameter_status,
    responses.parse_backend_key,
    responses.parse_command_tag,
    responses.parse_parameter_oids,
    lambda message: responses.parse_error(message, "LATIN1"),
    lambda message: responses.parse_columns(message, "LATIN1"),
    lambda message: responses.parse_row(message, "LATIN1"),
]


def framed(raw: bytes) -> Message:
    """The one message in these bytes."""
    framing = Framing({**CLIENT_LIMITS, **SERVER_LIMITS})
    framing.feed(raw)
    message = framing.next()
    assert message is not None
    assert framing.next() is None
    assert framing.buffered == 0
    return message


@given(st.sampled_from(REQUEST_PARSERS + RESPONSE_PARSERS), st.binary(max_size=60))
def test_any_body_is_read_or_refused(parser: Callable[[Message], object], body: bytes) -> None:
    """A parser of messages has two outcomes only."""
    with suppress(ProtocolError):
        parser(Message(ord("D"), b"D" + struct.pack(">I", len(body) + 4) + body))


@given(st.binary(min_size=4, max_size=60))
def test_any_startup_packet_is_read_or_refused(body: bytes) -> None:
    """A startup packet has two outcomes only."""
    with suppress(ProtocolError):
        startup.parse_parameters(body)
    with suppress(ProtocolError):
        startup.parse_parameters(b"\x00\x03\x00\x00" + body)
    with suppress(ProtocolError):
        startup.parse_cancel(body)
    startup.request_of(body)


@given(NAMES, NAMES, st.lists(st.integers(0, 2**32 - 1), max_size=4))
def test_parse(name: bytes, sql: bytes, oids: list[int]) -> None:
    """A Parse comes back as it was made."""
    message = framed(requests.parse(name, sql, oids))
    assert requests.parse_parse(message) == requests.Parse(name, sql, tuple(oids))


@given(NAMES, NAMES, VALUES)
def test_bind(portal: bytes, statement: bytes, values: list[bytes | None]) -> None:
    """A Bind of ours has parameters and results in text format, NULL included."""
    message = framed(requests.bind(portal, statement, values))
    bind = requests.parse_bind(message)
    assert bind == requests.Bind(portal, statement, (0,) * len(values), tuple(values), ())
    assert requests.parse_bind_names(message) == (portal, statement)


@pytest.mark.parametrize(
    ("given_formats", "expected"), [((), (0, 0)), ((1,), (1, 1)), ((0, 1), (0, 1))]
)
def test_parameter_formats(given_formats: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """No format code means text for all, one is for all, else there is one for each."""
    codes = struct.pack(f">H{len(given_formats)}H", len(given_formats), *given_formats)
    body = b"\0\0" + codes + b"\0\2\0\0\0\1a\0\0\0\1b" + b"\0\1\0\1"
    bind = requests.parse_bind(framed(b"B" + struct.pack(">I", len(body) + 4) + body))
    assert bind.formats == expected
    assert bind.values == (b"a", b"b")
    assert bind.result_formats == (1,)


def test_formats_must_fit_the_parameters() -> None:
    """Two formats for three parameters are PostgreSQL's own error."""
    body = b"\0\0" + b"\0\2\0\0\0\1" + b"\0\3" + b"\xff\xff\xff\xff" * 3 + b"\0\0"
    with pytest.raises(ProtocolError, match="2 parameter formats but 3 parameters"):
        requests.parse_bind(framed(b"B" + struct.pack(">I", len(body) + 4) + body))


def test_describe_close_execute() -> None:
    """The small messages come back as they were made."""
    named = requests.Named(requests.PORTAL, b"p")
    assert requests.parse_named(framed(requests.describe(requests.PORTAL, b"p"))) == named
    assert requests.parse_named(framed(requests.close(requests.PORTAL, b"p"))) == named
    assert requests.parse_execute(framed(requests.execute(b"p"))) == requests.Execute(b"p", 0)
    with pytest.raises(ProtocolError, match="invalid CLOSE message subtype 88"):
        requests.parse_named(framed(requests.close(ord("X"), b"p")))


@given(
    st.dictionaries(
        st.sampled_from("SVCMDHPWt"), st.text(min_size=1).map(lambda t: t.replace("\0", "x"))
    )
)
def test_server_error_keeps_every_field(fields: dict[str, str]) -> None:
    """An error of PostgreSQL's is passed on with all that it had."""
    error = responses.ServerError(fields)
    message = framed(responses.error_response(error))
    assert responses.parse_error(message, "UTF8").fields == fields
    copied = pickle.loads(pickle.dumps(error))
    assert copied.fields == fields
    assert copied.sqlstate == error.sqlstate


def test_own_error() -> None:
    """An error of ours has severity, SQLSTATE, message, detail, hint and context."""
    error = FeatureNotSupportedError("no", detail="D.", hint="H.", where="W")
    fields = responses.parse_error(framed(responses.error_response(error, "FATAL")), "UTF8").fields
    texts = {"M": "no", "D": "D.", "H": "H.", "W": "W"}
    assert fields == {"S": "FATAL", "V": "FATAL", "C": "0A000"} | texts


def test_error_in_an_encoding_that_lacks_a_character() -> None:
    """An error can always be told: a character that the client cannot read becomes a mark."""
    raw = responses.error_response(PenstockError("名"), client_encoding="LATIN1")
    assert responses.parse_error(framed(raw), "LATIN1").message == "?"


def test_columns() -> None:
    """A RowDescription comes back as it was made."""
    columns = (responses.Column("é", 23, -1, 0), responses.Column("b", 1043, 14, 1))
    message = framed(responses.row_description(columns, "LATIN1"))
    assert responses.parse_columns(message, "LATIN1") == columns


@pytest.mark.parametrize("secret", [b"1234", bytes(32), bytes(256)])
def test_cancel_key(secret: bytes) -> None:
    """Keys have 4 bytes, or up to 256 in protocol 3.2."""
    key = CancelKey(4711, secret)
    assert responses.parse_backend_key(framed(responses.backend_key_data(key))) == key
    framing = Framing(None)
    framing.feed(startup.cancel_request(key))
    packet = framing.next()
    assert packet is not None
    assert packet.kind == STARTUP
    assert startup.request_of(packet.body) is Event.CANCEL_REQUEST
    assert startup.parse_cancel(packet.body) == key


@pytest.mark.parametrize("secret", [b"", bytes(257)])
def test_cancel_key_of_a_wrong_length(secret: bytes) -> None:
    """A key without a secret, or with too long a one, is none."""
    body = startup.cancel_request(CancelKey(1, secret))[4:]
    with pytest.raises(ProtocolError):
        startup.parse_cancel(body)


@pytest.mark.parametrize(
    ("body", "parameters"),
    [
        (b"\x00\x03\x00\x00user\0me\0\0", {"user": b"me"}),
        (b"\x00\x03\x00\x02user\0me\0_pq_.x\0\0database\0d\0\0", None),
        (b"\x00\x03\x00\x00\0", {}),
        (b"\x00\x02\x00\x00anything", {}),
    ],
)
def test_startup_parameters(body: bytes, parameters: dict[str, bytes] | None) -> None:
    """Pairs of strings up to an empty one; other protocols are the control database's business."""
    found = startup.parse_parameters(body)
    if parameters is None:
        parameters = {"user": b"me", "_pq_.x": b"", "database": b"d"}
    assert found == parameters


@pytest.mark.parametrize(
    "rest", [b"", b"user", b"user\0", b"user\0me", b"user\0me\0", b"user\0me\0\0more", b"user\0\0"]
)
def test_startup_parameters_without_their_end(rest: bytes) -> None:
    """A packet that is not pairs and an end is refused, as PostgreSQL does."""
    with pytest.raises(ProtocolError, match="expected terminator as last byte"):
        startup.parse_parameters(b"\x00\x03\x00\x00" + rest)


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1", "WIN1252", "SJIS", "EUC_JP", "GB18030"])
def test_client_encodings(encoding: str) -> None:
    """Text goes and comes in the client's encoding."""
    text = "名前" if encoding in ("SJIS", "EUC_JP", "GB18030") else "é"
    assert decode(encode(text, encoding), encoding) == text


def test_text_that_is_not_in_its_encoding() -> None:
    """Broken text is PostgreSQL's error, an unknown encoding is refused."""
    with pytest.raises(PenstockError) as broken:
        decode(b"a\xff\xfe", "UTF8")
    assert broken.value.sqlstate == "22021"
    with pytest.raises(PenstockError) as unknown:
        encode("名", "LATIN1")
    assert unknown.value.sqlstate == "22P05"
    with pytest.raises(FeatureNotSupportedError):
        decode(b"a", "MULE_INTERNAL")
