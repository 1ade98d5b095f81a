# SPDX-License-Identifier: Apache-2.0
"""One error root; an error carries what a PostgreSQL ErrorResponse carries.

``PenstockError`` has a SQLSTATE, a primary message, and optionally a detail, a hint and a context
("where": operation, relation, position).  Primary messages are lower-case without a full stop,
details and hints are sentences (PostgreSQL's error message style guide).

Errors are picklable: they cross the borders of Spark's Python processes.
"""

from __future__ import annotations

from typing import Any


class PenstockError(Exception):
    """The root of every error that Penstock raises; XX000 when nothing more precise fits."""

    sqlstate = "XX000"

    def __init__(
        self,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        where: str | None = None,
        sqlstate: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint
        self.where = where
        if sqlstate is not None:
            self.sqlstate = sqlstate

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.__dict__.copy())

    def __str__(self) -> str:
        """Render like PostgreSQL's log does: message, then DETAIL, HINT and CONTEXT lines."""
        lines = [self.message]
        for title, text in (("DETAIL", self.detail), ("HINT", self.hint), ("CONTEXT", self.where)):
            if text:
                lines.append(f"{title}:  {text}")
        return "\n".join(lines)


def _rebuild(kind: type[PenstockError], message: str, state: dict[str, Any]) -> PenstockError:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class ProtocolError(PenstockError):
    """Bytes on a connection do not follow the protocol, and the peer is to blame."""

    sqlstate = "08P01"


class ConnectionLostError(PenstockError):
    """A connection to a publisher or to the control database ended; trying again may help."""

    sqlstate = "08006"


class NoAnswerError(ConnectionLostError):
    """A peer did not answer in time, or did not even accept the connection."""


class InvisibleError(PenstockError):
    """PostgreSQL finds a name in the newest catalogs, a query sees the transaction's snapshot."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is not visible in this transaction",
            detail="It was created, changed or renamed after the transaction's snapshot was taken.",
            hint="Start a new transaction.",
            sqlstate="40001",
        )


class FeatureNotSupportedError(PenstockError):
    """The statement is understood and refused; nothing was changed."""

    sqlstate = "0A000"


class SqlSyntaxError(PenstockError):
    """A statement that cannot be parsed."""

    sqlstate = "42601"


class InvalidParameterError(PenstockError):
    """An option or parameter has a value that it cannot have."""

    sqlstate = "22023"


class ConfigurationError(PenstockError):
    """A setting of the node, of its machine or of its control database is wrong."""

    sqlstate = "F0000"


class ObjectInUseError(PenstockError):
    """Something that only one may have is held by another."""

    sqlstate = "55006"


class WrongStateError(PenstockError):
    """The object exists but is not in the state that the operation needs."""

    sqlstate = "55000"


class InvalidTextError(PenstockError):
    """A value has a form that its type does not accept."""

    sqlstate = "22P02"


class ValueNotHeldError(PenstockError):
    """A value that PostgreSQL can hold and the lake's type cannot; it is never changed silently."""

    sqlstate = "22003"


class ComputedValueError(PenstockError):
    """PostgreSQL could not compute a default or a generated column; SQLSTATE and text are its own.

    ``position`` is the change's in its batch, where that is known.
    """

    position: int | None = None


class SlotError(PenstockError):
    """The replication slot is missing, lost, or not where it must be (start-up contract)."""

    sqlstate = "55000"


class PublicationError(PenstockError):
    """A subscribed publication does not exist on the publisher."""

    sqlstate = "42704"


class RelationMismatchError(PenstockError):
    """The lake's table does not fit the published relation (PostgreSQL: relation.c)."""

    sqlstate = "55000"


class UniqueViolationError(PenstockError):
    """A key that must be unique exists already; ``position`` is the change's in its batch."""

    sqlstate = "23505"
    position: int | None = None


class NoPartitionError(PenstockError):
    """No partition takes a row; ``position`` is its change's in its batch."""

    sqlstate = "23514"
    position: int | None = None


class UnresolvedConflictError(FeatureNotSupportedError):
    """A conflict that the policy cannot decide; ``position`` is the change's in its batch."""

    position: int | None = None


class NotNullViolationError(PenstockError):
    """A value that must not be null is."""

    sqlstate = "23502"


class InsufficientPrivilegeError(PenstockError):
    """The role that acts may not do this."""

    sqlstate = "42501"


class TableStateError(PenstockError):
    """A Delta table is not as its commit record says, and cannot be brought back by itself."""

    sqlstate = "XX001"


class ConcurrentWriteError(PenstockError):
    """Another program wrote a Delta table meanwhile; its commits are to be registered first.

    Whoever gets this rolls back, lets them be registered (workers/external.py), and tries again.
    """

    sqlstate = "40001"


class StagingError(PenstockError):
    """The staged changes of a subscription are not as they were written."""

    sqlstate = "XX001"


class DiskFullError(PenstockError):
    """There is no room left on a disk; what was there before is still valid."""

    sqlstate = "53100"
