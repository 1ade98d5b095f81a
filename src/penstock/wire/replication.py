# SPDX-License-Identifier: Apache-2.0
"""Frames of a replication stream, inside of CopyData messages, as a publisher sends them; no I/O.

    XLogData   'w'  int64 start LSN  int64 end LSN  int64 time    a message of the output plugin
    keepalive  'k'  int64 end LSN    int64 time     byte wants a reply
    status     'r'  int64 written    int64 flushed  int64 applied  int64 time  byte wants a reply

Times are microseconds since 2000.  What a subscriber confirms is passed on as it is.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

XLOG_DATA = ord("w")
KEEPALIVE = ord("k")

_COPY_DATA = struct.Struct(">cI")
_XLOG_DATA = struct.Struct(">cQQq")
_KEEPALIVE = struct.Struct(">cQq?")
_STATUS = struct.Struct(">cQQQq?")


class XLogHeader(NamedTuple):
    """What stands before a message of the output plugin."""

    start: int
    end: int
    time: int


def parse_xlog_header(frame: bytes) -> XLogHeader:
    """The header of an XLogData frame; the message begins at XLOG_HEADER_SIZE."""
    _, start, end, time = _XLOG_DATA.unpack_from(frame)
    return XLogHeader(start, end, time)


XLOG_HEADER_SIZE = _XLOG_DATA.size


def copy_data(frame: bytes) -> bytes:
    """A frame as a CopyData message."""
    return _COPY_DATA.pack(b"d", len(frame) + 4) + frame


def keepalive(end: int, time: int, *, wants_reply: bool = False) -> bytes:
    """A keepalive as a CopyData message."""
    return copy_data(_KEEPALIVE.pack(b"k", end, time, wants_reply))


def keepalive_end(frame: bytes) -> int:
    """The LSN in a keepalive."""
    end: int = _KEEPALIVE.unpack_from(frame)[1]
    return end


def wants_reply(body: bytes) -> bool:
    """Whether a standby status update asks for a keepalive at once."""
    return len(body) == _STATUS.size and _STATUS.unpack(body)[0] == b"r" and body[-1] != 0
