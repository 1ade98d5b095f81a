# SPDX-License-Identifier: Apache-2.0
"""Make a publisher lose a slot: its log outgrows max_slot_wal_keep_size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers import PostgresServer
from tests.support.waits import wait_until


@contextmanager
def small_slots(server: PostgresServer) -> Iterator[None]:
    """For the block a slot may hold back one segment of the log; every slot of the server."""
    server.psql("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    server.psql("SELECT pg_reload_conf()")
    try:
        wait_until(
            lambda: server.psql("SHOW max_slot_wal_keep_size") == "1MB", 20, "the new setting"
        )
        yield
    finally:
        server.psql("ALTER SYSTEM RESET max_slot_wal_keep_size")
        server.psql("SELECT pg_reload_conf()")


def lose(slot: str, server: PostgresServer) -> None:
    """Write until a checkpoint has removed what an idle slot needs."""
    status = f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{slot}'"

    def lost() -> bool:
        server.psql("SELECT pg_logical_emit_message(false, 'fill', 'x'), pg_switch_wal()")
        server.psql("CHECKPOINT")
        return server.psql(status) == "lost"

    wait_until(lost, 30, f"slot {slot} to be lost")
