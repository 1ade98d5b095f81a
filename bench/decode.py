# SPDX-License-Identifier: Apache-2.0
"""How fast pgoutput messages become Arrow, with nothing around it: one thread, memory to memory."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.sides import DATABASE
from penstock.client.chunks import Chunk, ChunkBuilder
from penstock.pgoutput.decode import Decoder
from tests.support.pgoutput_bytes import received
from tests.support.servers import PostgresServer

_MESSAGES = (
    "SELECT data FROM pg_logical_slot_peek_binary_changes("
    "%s, NULL, NULL, 'proto_version', '1', 'publication_names', 'p')"
)


@dataclass(frozen=True)
class DecodeRate:
    """One measurement; ``size`` in bytes."""

    rows: int
    size: int
    seconds: float


def measure(source: PostgresServer, slot: str) -> DecodeRate:
    """Decode what waits in a slot, which keeps it."""
    chunks = _chunks(source, slot)
    rows = 0
    decoder = Decoder()
    began = time.monotonic()
    for chunk in chunks:
        rows += sum(table.num_rows for _, table in decoder.feed(*chunk.framed()).tables)
    seconds = time.monotonic() - began
    return DecodeRate(rows, sum(len(chunk.messages) for chunk in chunks), seconds)


def _chunks(source: PostgresServer, slot: str) -> list[Chunk]:
    builder, chunks = ChunkBuilder(), []
    with source.connect(DATABASE) as connection, connection.cursor(binary=True) as cursor:
        for (message,) in cursor.execute(_MESSAGES, (slot,)):
            if builder.add(received(message)) and (chunk := builder.cut()):
                chunks.append(chunk)
    return [*chunks, chunk] if (chunk := builder.cut()) else chunks
