# SPDX-License-Identifier: Apache-2.0
"""A replication connection without a client library's help: one command at a time."""

from __future__ import annotations

from typing import Any

from psycopg import pq

Outcome = str | tuple[str, str]
"""A command tag or a kind of COPY; SQLSTATE and message of an error."""


class Walsender:
    """A connection with ``replication=database`` that sends Query messages only."""

    def __init__(self, info: str) -> None:
        self._info = f"{info} replication=database".encode()
        self._conn = self._connect()

    def _connect(self) -> pq.abc.PGconn:
        conn = pq.PGconn.connect(self._info)
        assert conn.status == pq.ConnStatus.OK, conn.error_message
        return conn

    def reconnect(self) -> None:
        """End it, and begin another session."""
        self._conn.finish()
        self._conn = self._connect()

    def rows(self, command: str) -> list[list[str | None]]:
        """The rows of a command's answer."""
        result = self._conn.exec_(command.encode())
        self._check(result)
        return [
            [_text(result.get_value(row, column)) for column in range(result.nfields)]
            for row in range(result.ntuples)
        ]

    def refusal(self, command: str) -> tuple[str, str]:
        """SQLSTATE and message of the error that a command is answered with."""
        result = self._conn.exec_(command.encode())
        assert result.status == pq.ExecStatus.FATAL_ERROR, command
        return self._error(result)

    def outcomes(self, command: str) -> list[Outcome]:
        """All that a command is answered with; a stream that begins is ended at once."""
        self._conn.send_query(command.encode())
        outcomes: list[Outcome] = []
        while (result := self._conn.get_result()) is not None:
            outcomes.append(self._outcome(result))
        return [*outcomes, pq.TransactionStatus(self._conn.transaction_status).name]

    def frames(self, command: str, last: bytes) -> list[bytes]:
        """Messages of a stream up to the first of a kind; it is ended then."""
        result = self._conn.exec_(command.encode())
        assert result.status == pq.ExecStatus.COPY_BOTH, result.error_message
        messages: list[bytes] = []
        while not messages or messages[-1][:1] != last:
            size, frame = self._conn.get_copy_data(0)
            assert size > 0, self._error(self._conn.get_result())
            if bytes(frame[:1]) == b"w":
                messages.append(bytes(frame[25:]))
        self._conn.put_copy_end()
        while self._conn.get_copy_data(0)[0] >= 0:
            pass
        while self._conn.get_result() is not None:
            pass
        return messages

    def extended(self, command: str) -> str:
        """The message of the error for a command of the extended protocol."""
        return _text(self._conn.exec_params(command.encode(), []).error_message) or ""

    @property
    def in_block(self) -> bool:
        """Whether a transaction block is open, or failed."""
        return self._conn.transaction_status != pq.TransactionStatus.IDLE

    def close(self) -> None:
        """End it."""
        self._conn.finish()

    def _error(self, result: Any) -> tuple[str, str]:
        return (
            _text(result.error_field(pq.DiagnosticField.SQLSTATE)) or "",
            _text(result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)) or "",
        )

    def _outcome(self, result: Any) -> Outcome:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            return self._error(result)
        if result.status in (pq.ExecStatus.COPY_BOTH, pq.ExecStatus.COPY_OUT):
            if result.status == pq.ExecStatus.COPY_BOTH:
                self._conn.put_copy_end()
            while self._conn.get_copy_data(0)[0] >= 0:
                pass
            return pq.ExecStatus(result.status).name
        return _text(result.command_status) or ""

    def _check(self, result: Any) -> None:
        fine = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
        assert result.status in fine, result.error_message


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
