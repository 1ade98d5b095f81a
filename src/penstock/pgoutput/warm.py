# SPDX-License-Identifier: Apache-2.0
"""Compile the decoder and the encoder before the first change arrives.

A node calls ``warm`` at its start, in the background: 6 s on a machine's first start, 0.4 s later,
when the compiled code comes from numba's cache.
"""

from __future__ import annotations

import struct

import numpy as np

from penstock.change import types
from penstock.compiled import Bytes, Ints
from penstock.pgoutput.decode import Decoder
from penstock.pgoutput.describe import frame_messages
from penstock.pgoutput.encode import encode_changes
from penstock.pgoutput.streamed import strip_xids

_OID = _XID = 1
_TEXTS = {
    types.INT8: b"1",
    types.BOOL: b"t",
    types.NUMERIC: b"1.5",
    types.DATE: b"2000-01-01",
    types.TEXT: b"a",
    types.BYTEA: b"\\x00",
    1009: b"{a,NULL}",  # text[]
}
"""One type for each compiled function, and a value of it."""


def warm() -> None:
    """Decode one transaction that needs every compiled function, as it comes in a stream.

    And encode what comes out.
    """
    columns = b"".join(
        b"\1c%d\0" % number + struct.pack(">Ii", type_oid, -1)
        for number, type_oid in enumerate(_TEXTS)
    )
    values = b"".join(b"t" + struct.pack(">I", len(text)) + text for text in _TEXTS.values())
    count = struct.pack(">H", len(_TEXTS))
    messages = (
        b"R" + struct.pack(">II", _XID, _OID) + b"s\0t\0d" + count + columns,
        b"I" + struct.pack(">II", _XID, _OID) + b"N" + count + values,
    )
    _, buffer, offsets = strip_xids(*_framed(messages), np.zeros(0, np.int64))
    decoder = Decoder()
    decoder.feed(*_framed((b"B" + struct.pack(">QqI", 8, 0, _XID),)))
    for relation, changes in decoder.feed(buffer, offsets).tables:
        for encoded in encode_changes(changes, relation):
            frame_messages(encoded, 0, 0, 0)
    decoder.feed(*_framed((b"C" + struct.pack(">BQQq", 0, 8, 16, 0),)))


def _framed(messages: tuple[bytes, ...]) -> tuple[Bytes, Ints]:
    offsets = np.zeros(len(messages) + 1, np.int64)
    np.cumsum([len(message) for message in messages], out=offsets[1:])
    return np.frombuffer(bytearray().join(messages), np.uint8), offsets
