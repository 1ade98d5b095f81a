# SPDX-License-Identifier: Apache-2.0
"""Which change of a batch an error is about, and how it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.apply.batch import TableBatch
from penstock.apply.failing import (
    FailedChangeError,
    FailingChange,
    failing_change,
    first_change,
    first_commit,
)
from penstock.change import types
from penstock.errors import PenstockError, UniqueViolationError, ValueNotHeldError
from penstock.pgoutput.decode import Transaction
from penstock.workers.failures import add_context, conflict
from tests.support.changes import Change, Shape, delete, insert, staged, update

SENT = Shape({"id": types.INT8, "v": types.INT8})
HELD = Shape({"id": types.INT8, "v": types.INT2})
RELATION = SENT.relation()


def batch(folder: Path, *files: list[Change], from_lsn: int = 0) -> TableBatch:
    """Files of changes; file n has the commits 1000 n, 1000 n + 1 and so on."""
    written = [
        staged(folder, RELATION, changes, 1000 * number) for number, changes in enumerate(files, 1)
    ]
    return TableBatch(written, from_lsn, 2**62)


@pytest.mark.parametrize("place", [0, 1, 6, 7, 31, 99])
def test_the_first_value_that_does_not_fit(tmp_path: Path, place: int) -> None:
    """Wherever it is in its file, and though others come after it."""
    changes = [insert(id=n, v=n) for n in range(100)]
    changes[place] = update({"id": place, "v": 70_000})
    changes += [insert(id=1000, v=80_000)]
    found = failing_change(
        ValueNotHeldError("out of range"),
        batch(tmp_path, [insert(id=5000, v=1)], changes),
        HELD.target(tmp_path),
        {},
    )
    assert found == FailingChange("U", RELATION, 2000 + place)


def test_a_key_that_exists_is_told_by_its_position(tmp_path: Path) -> None:
    """Positions count over all files of a batch, and only the changes in its range."""
    error = UniqueViolationError("duplicate")
    error.position = 3
    files = [insert(id=1), insert(id=2), insert(id=3)], [delete(id=1), update({"id": 2, "v": 1})]
    here = batch(tmp_path, *files, from_lsn=1001)
    assert failing_change(error, here, SENT.target(tmp_path), {}) == FailingChange(
        "U", RELATION, 2001
    )


def test_anything_else_is_told_by_the_first_change(tmp_path: Path) -> None:
    """The whole relation does not fit: PostgreSQL stops at its first change."""
    here = batch(tmp_path, [insert(id=1), insert(id=2)], [delete(id=1)], from_lsn=1001)
    first = FailingChange("I", RELATION, 1001)
    assert first_change(here) == first
    assert failing_change(PenstockError("no"), here, SENT.target(tmp_path), {}) == first
    assert first_commit(here) == 1001
    nothing = batch(tmp_path, [insert(id=1)], from_lsn=5000)
    assert first_change(nothing) is None
    assert first_commit(nothing) is None


def test_the_context_is_postgresql_s() -> None:
    """apply_error_callback in worker.c, with and without a column; the rest is the reason's."""
    reason = ValueNotHeldError("out of range", detail="D.", where='column "v"')
    error = FailedChangeError(reason, FailingChange("I", RELATION, 0x14C0378))
    add_context(error, "pg_16395", Transaction(0x14C0378, 0x14C03A8, 0, 725))
    assert (error.message, error.sqlstate, error.detail) == ("out of range", "22003", "D.")
    assert error.where == (
        'processing remote data for replication origin "pg_16395" during message type "INSERT"'
        ' for replication target relation "public.t" column "v" in transaction 725, finished at'
        " 0/14C0378"
    )
    assert conflict(error) is None


@pytest.mark.parametrize(("op", "name"), [("I", "insert_exists"), ("U", "update_exists")])
def test_conflicts_have_postgresql_s_names(op: str, name: str) -> None:
    """What raised the error is a kind of conflict only when a key exists."""
    error = FailedChangeError(UniqueViolationError("dup"), FailingChange(op, RELATION, 8))
    assert conflict(error) == name
    add_context(error, "pg_1", Transaction(8, 16, 0, 7))
    assert error.where is not None and 'relation "public.t" in transaction 7,' in error.where
