# SPDX-License-Identifier: Apache-2.0
"""From the first byte of a connection to its startup packet: TLS, cancel requests, refusals.

In:   a link that was just accepted.
Out:  a Greeting (the client wants a session), a cancel key, or None (nothing more to do).

A loop, and the table of wire/state.py, allow one SSLRequest and one GSSENCRequest.  Bytes that
arrive in the clear behind an SSLRequest close the connection: whoever is in the middle could have
put them there (CVE-2021-23214).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.config import Settings
from penstock.errors import ConfigurationError, FeatureNotSupportedError, ProtocolError
from penstock.frontdoor.link import Link
from penstock.sql.commands_guards import check_startup
from penstock.wire.framing import Framing, Message
from penstock.wire.startup import CancelKey, parse_cancel, parse_parameters, request_of
from penstock.wire.state import ConnectionState, Event

_NO = b"N"
_YES = b"S"

_REPLICATION_OFF = frozenset({b"", b"false", b"off", b"no", b"0", b"f", b"n", b"of"})


@dataclass(frozen=True)
class Greeting:
    """A client's startup packet; ``framing`` holds what the client sent behind it.

    ``replicates``: it asks for a replication connection.
    """

    packet: Message
    parameters: Mapping[str, bytes]
    framing: Framing
    replicates: bool = False


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """The certificate of the settings, or None; ConfigurationError when it cannot be used."""
    if settings.ssl_cert_file is None and settings.ssl_key_file is None:
        return None
    if settings.ssl_cert_file is None or settings.ssl_key_file is None:
        raise ConfigurationError("ssl_cert_file and ssl_key_file must be set together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.ssl_cert_file, settings.ssl_key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f'could not load the certificate "{settings.ssl_cert_file}"', detail=f"{error}."
        ) from error
    return context


async def negotiate(
    link: Link, state: ConnectionState, tls: ssl.SSLContext | None, timeout: float
) -> Greeting | CancelKey | None:
    """Read up to the startup packet; ProtocolError and FeatureNotSupportedError are FATAL.

    ``timeout`` in seconds is that of the TLS handshake alone; the caller limits the whole.
    """
    framing = Framing(None)
    while True:
        packet = framing.next()
        if packet is None:
            arrived = await link.receive()
            if not arrived:
                return None
            framing.feed(arrived)
            continue
        request = request_of(packet.body)
        state.on(request)
        if request is Event.CANCEL_REQUEST:
            return parse_cancel(packet.body)
        if request is Event.STARTUP_PACKET:
            parameters = parse_parameters(packet.body)
            replicates = _replicates(parameters)
            check_startup(
                {name: value.decode("utf-8", "replace") for name, value in parameters.items()}
            )
            return Greeting(packet, parameters, framing, replicates)
        if request is Event.SSL_REQUEST and tls is not None:
            if framing.buffered or link.unread:
                raise _unencrypted()
            await link.start_tls(tls, _YES, timeout)
        else:
            link.write(_NO)


def _unencrypted() -> ProtocolError:
    return ProtocolError(
        "received unencrypted data after SSL request",
        detail="This could be either a client-software bug or evidence of an attempted "
        "man-in-the-middle attack.",
    )


def _replicates(parameters: Mapping[str, bytes]) -> bool:
    """Whether the client asks for a walsender of this database (postgres.c, ProcessStartupPacket).

    FeatureNotSupportedError for physical replication.
    """
    wanted = parameters.get("replication", b"").strip().lower()
    if wanted == b"database":
        return True
    if wanted not in _REPLICATION_OFF:
        raise FeatureNotSupportedError(
            "physical replication is not supported",
            detail="A copy of the control database would have no rows of the lake.",
            hint="Connect with replication=database.",
        )
    return False
