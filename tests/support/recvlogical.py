# SPDX-License-Identifier: Apache-2.0
"""pg_recvlogical with pgoutput: run it, and read the messages that it has written.

Messages are binary and each is followed by a newline, so they are cut by their own lengths.
"""

from __future__ import annotations

import struct
import subprocess

from tests.support.binaries import installations
from tests.support.psql import client_environment

_FIXED = {"B": 21, "C": 26}


def recvlogical(version: str, conninfo: str, slot: str, *arguments: str) -> bytes:
    """Run that version's pg_recvlogical for a slot; what it wrote to its standard output."""
    program = installations()[version] / "bin" / "pg_recvlogical"
    done = subprocess.run(
        [program, "-d", conninfo, "-S", slot, *arguments],
        env=client_environment(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def create_slot(version: str, conninfo: str, slot: str) -> None:
    """Make a slot of pgoutput."""
    recvlogical(version, conninfo, slot, "--create-slot", "-P", "pgoutput")


def receive(version: str, conninfo: str, slot: str, end: str, *options: str) -> list[bytes]:
    """The messages up to an LSN, with options of pgoutput as NAME=VALUE."""
    wanted = [part for option in options for part in ("-o", option)]
    output = recvlogical(
        version, conninfo, slot, "--start", "--endpos", end, "-f", "-", "--no-loop", *wanted
    )
    return cut(output)


def cut(output: bytes) -> list[bytes]:
    """The messages that pg_recvlogical wrote, without what it puts between them."""
    messages = []
    at = 0
    while at < len(output):
        end = _end(output, at)
        assert output[end : end + 1] == b"\n", output[at : end + 1]
        messages.append(output[at:end])
        at = end + 1
    return messages


def drop_slot(version: str, conninfo: str, slot: str) -> None:
    """Drop it."""
    recvlogical(version, conninfo, slot, "--drop-slot")


def _end(output: bytes, at: int) -> int:
    kind = chr(output[at])
    if kind in _FIXED:
        return at + _FIXED[kind]
    if kind == "R":
        at = _strings(output, at + 5, 2) + 1
        for _ in range(struct.unpack_from(">H", output, at)[0]):
            at = _strings(output, at + 3, 1) + 6
        return at + 2
    if kind == "Y":
        return _strings(output, at + 5, 2)
    if kind == "O":
        return _strings(output, at + 9, 1)
    if kind == "T":
        return at + 6 + 4 * int.from_bytes(output[at + 1 : at + 5], "big")
    if kind == "M":
        at = _strings(output, at + 10, 1)
        return at + 4 + int.from_bytes(output[at : at + 4], "big")
    assert kind in "IUD", kind
    at = _row(output, at + 5)
    return _row(output, at) if output[at : at + 1] == b"N" else at


def _strings(output: bytes, at: int, count: int) -> int:
    for _ in range(count):
        at = output.index(b"\0", at) + 1
    return at


def _row(output: bytes, at: int) -> int:
    """The end of a row that begins, with its letter, at a place."""
    (count,) = struct.unpack_from(">H", output, at + 1)
    at += 3
    for _ in range(count):
        if output[at : at + 1] in (b"t", b"b"):
            at += 4 + int.from_bytes(output[at + 1 : at + 5], "big")
        at += 1
    return at
