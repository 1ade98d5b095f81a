# SPDX-License-Identifier: Apache-2.0
"""A subscription's stream without a node: slot and publication by hand, a receiver, a replay.

``Replay`` applies staged changes to plain dictionaries, the slow and obvious way, so that they can
be compared with what the publisher selects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow.parquet as pq

from penstock.client.receiver import Receiver, ReceiverState, StreamOptions
from penstock.errors import ConnectionLostError, ObjectInUseError, PenstockError
from penstock.lsn import parse_lsn
from penstock.staging.log import StagingLog
from penstock.staging.segment import Segment
from tests.support.fix_servers import Database
from tests.support.waits import wait_until

Row = dict[str, Any]


class Stream:
    """One slot of one publisher, staged below a folder."""

    def __init__(self, database: Database, folder: Path, publication: str = "p") -> None:
        self.database = database
        self.folder = folder
        self.options = StreamOptions(
            subscription="sub",
            conninfo=database.conninfo,
            slot=f"slot_{database.name}",
            publications=(publication,),
        )
        database.psql(
            f"SELECT pg_create_logical_replication_slot('{self.options.slot}', 'pgoutput')"
        )

    @contextmanager
    def receiver(
        self,
        log: StagingLog,
        applied: Callable[[], int] | None = None,
        *,
        enable_two_phase: bool = False,
        **options: Any,
    ) -> Iterator[Receiver]:
        """A receiver that runs inside the block; by default everything staged counts as applied."""
        reader = applied if applied is not None else lambda: log.end_lsn
        receiver = Receiver(replace(self.options, **options), log, reader)
        # The walsender of the connection before may need a moment to leave the slot.
        wait_until(lambda: not self.slot("active"), 20, "the slot to be free")
        receiver.start(enable_two_phase=enable_two_phase)
        try:
            yield receiver
        finally:
            receiver.stop()

    def eager(self, *settings: str) -> str:
        """A connection string for which the publisher streams transactions of more than 64 kB.

        ``settings`` are more settings of the publisher's session, as NAME=VALUE.
        """
        options = " ".join(f"-c {each}" for each in ("logical_decoding_work_mem=64kB", *settings))
        return f"{self.database.conninfo} options='{options}'"

    def await_streamed(self, transactions: int = 1) -> None:
        """Wait until the publisher's statistics say that so many transactions were streamed."""
        query = (
            "SELECT stream_txns FROM pg_stat_replication_slots"
            f" WHERE slot_name = '{self.options.slot}'"
        )
        wait_until(
            lambda: int(self.database.psql(query) or 0) >= transactions,
            30,
            "the publisher to have streamed transactions in progress",
        )

    @contextmanager
    def kept(self, log: StagingLog, **options: Any) -> Iterator[list[PenstockError]]:
        """Receivers one after the other, as a worker makes them; the errors that ended them.

        Only a lost connection and a slot that is still in use are tried again.
        """
        errors: list[PenstockError] = []
        stopping = Event()

        def receive() -> None:
            receiver = Receiver(replace(self.options, **options), log, lambda: log.end_lsn)
            try:
                receiver.start()
                while receiver.state is ReceiverState.STREAMING and not stopping.wait(0.02):
                    receiver.check()
                receiver.check()
            finally:
                receiver.stop()

        def keep() -> None:
            while not stopping.is_set():
                try:
                    receive()
                except PenstockError as error:
                    errors.append(error)
                    if not isinstance(error, ConnectionLostError | ObjectInUseError):
                        return
                    stopping.wait(0.05)

        keeper = Thread(target=keep, name="keeper", daemon=True)
        keeper.start()
        try:
            yield errors
        finally:
            stopping.set()
            keeper.join(60)
            assert not keeper.is_alive()

    def slot(self, column: str) -> Any:
        """A column of the slot's row in pg_replication_slots."""
        with self.database.connect() as connection:
            row = connection.execute(
                f"SELECT {column} FROM pg_replication_slots WHERE slot_name = %s",
                [self.options.slot],
            ).fetchone()
        assert row is not None
        return row[0]

    def wal_position(self) -> int:
        """The publisher's current write-ahead log position."""
        return parse_lsn(self.database.psql("SELECT pg_current_wal_lsn()"))

    def await_staged(self, log: StagingLog, receiver: Receiver, timeout: float = 30) -> int:
        """Wait until everything written so far is durable in staging; that position."""
        position = self.wal_position()

        def staged() -> bool:
            receiver.check()
            return log.end_lsn >= position

        wait_until(staged, timeout, "the changes to be staged")
        return position

    def await_sent(self, position: int) -> None:
        """Wait until the walsender has read everything before that, and has nothing left to say.

        An error of the walsender, which ends it, is such an end, too.
        """
        query = f"""SELECT NOT active OR EXISTS (SELECT FROM pg_stat_replication r
            JOIN pg_stat_activity a USING (pid) WHERE pid = active_pid
            AND sent_lsn - '0/0' >= {position} AND lower(wait_event) = 'walsenderwaitforwal')"""
        wait_until(lambda: self.slot(f"({query})"), 30, "the publisher to have sent everything")

    def await_kept(self, log: StagingLog, errors: list[PenstockError], timeout: float = 30) -> None:
        """The same for ``kept``: wait until everything written so far is durable in staging."""
        position = self.wal_position()
        try:
            wait_until(lambda: log.end_lsn >= position, timeout, "the changes to be staged")
        except AssertionError as error:
            raise AssertionError(f"{error}\nerrors: {errors}") from error


class Replay:
    """Tables as staged changes make them, by key."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[tuple[Any, ...], Row]] = {}
        self.keys: list[tuple[int, int]] = []

    def apply(self, segments: Iterable[Segment]) -> Replay:
        """Apply whole segments in order; every change once, in the publisher's order."""
        for segment in segments:
            changes = [
                (row["commit_lsn"], row["seq"], file, row)
                for file in segment.files
                for row in pq.read_table(file.path).to_pylist()
            ]
            for lsn, seq, file, row in sorted(changes, key=lambda change: change[:2]):
                self.keys.append((lsn, seq))
                key_columns = tuple(column.name for column in file.relation.columns if column.key)
                self._change(file.relation.name, key_columns, row)
        return self

    def rows(self, table: str) -> list[Row]:
        """A table's rows, ordered by key."""
        content = self.tables.get(table, {})
        return [content[key] for key in sorted(content)]

    def _change(self, name: str, key_columns: tuple[str, ...], change: Row) -> None:
        table = self.tables.setdefault(name, {})
        if change["op"] == "T":
            table.clear()
            return
        new, old = change["new"], change["old"] or change["new"]
        key = tuple(old[column] for column in key_columns)
        before = table.pop(key, {})
        if new is not None:
            kept = {column: before[column] for column in change["unchanged"] or ()}
            table[tuple(new[column] for column in key_columns)] = {**new, **kept}
