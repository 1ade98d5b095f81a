# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL that subscribes to a node, and can be made to wait, to fail, or to be far behind.

A row whose ``v`` is STOP holds up who applies or copies it while ``stopping`` is open: then a kill
comes in the middle for sure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.fix_servers import Database
from tests.support.node import Node
from tests.support.published import conninfo, make_replica, wait_in_sync
from tests.support.subscribing import SYNC_TIMEOUT
from tests.support.waits import wait_until

STOP = "stop"
_LOCK = 6

_STOP = f"""
CREATE OR REPLACE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock_shared({_LOCK}); RETURN NEW; END $$;
CREATE TRIGGER stop BEFORE INSERT ON {{0}} FOR EACH ROW WHEN (NEW.v = '{STOP}')
    EXECUTE FUNCTION stop();
ALTER TABLE {{0}} ENABLE ALWAYS TRIGGER stop"""

_FINISHED = re.compile(
    r'CONTEXT:  processing remote data for replication origin "pg_\d+" during message type'
    r' "(\w+)" for replication target relation "public\.(\w+)" in transaction \d+,'
    r" finished at (\S+)"
)


@dataclass(frozen=True)
class Replica:
    """One database that subscribes to a node."""

    node: Node
    database: Database

    def subscribe(self, name: str, publications: str, options: str = "", port: int = 0) -> None:
        """CREATE SUBSCRIPTION; ``port`` is a proxy's."""
        make_replica(self.node)
        target = conninfo(self.node)
        if port:
            target = target.replace(f"port={self.node.port}", f"port={port}")
        with_options = f" WITH ({options})" if options else ""
        self.database.psql(
            f"CREATE SUBSCRIPTION {name} CONNECTION '{target}' PUBLICATION {publications}"
            + with_options
        )

    def alter(self, name: str, *actions: str) -> None:
        """ALTER SUBSCRIPTION, once for each action."""
        for action in actions:
            self.database.psql(f"ALTER SUBSCRIPTION {name} {action}")

    def disable(self, name: str) -> None:
        """Disable a subscription, and wait until the node knows that its stream has ended."""
        self.alter(name, "DISABLE")
        idle = f"SELECT NOT active FROM pg_replication_slots WHERE slot_name = '{name}'"
        wait_until(lambda: self.node.psql(idle) in ("t", ""), SYNC_TIMEOUT, f"{name} to be idle")

    def wait_in_sync(self, name: str) -> None:
        """Wait until its tables are copied."""
        wait_in_sync(self.database, name)

    def may_stop(self, table: str) -> None:
        """Let rows with STOP hold up whoever inserts them here."""
        self.database.psql(_STOP.format(table))

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Rows with STOP wait, until the block has ended or the server has died."""
        with self.database.connect() as holder:
            holder.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
            yield

    def wait_stopped(self) -> None:
        """Wait until a worker waits at such a row."""
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        wait_until(lambda: self.database.psql(waiting) != "0", SYNC_TIMEOUT, "a worker to wait")

    @contextmanager
    def logging(self, message: str) -> Iterator[None]:
        """The server must log this text after the begin of the block, soon after its end."""
        before = len(self.database.server.log_text())
        yield
        wait_until(
            lambda: message in self.database.server.log_text()[before:], SYNC_TIMEOUT, message
        )

    def failed_at(self, table: str) -> tuple[str, str]:
        """Message type and finish LSN of the last change that could not be applied."""
        found = _FINISHED.findall(self.database.server.log_text())
        kind, relation, lsn = found[-1]
        assert relation == table
        return str(kind), str(lsn)
