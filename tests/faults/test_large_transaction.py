# SPDX-License-Identifier: Apache-2.0
"""A transaction that is larger than what its receiver may take of memory."""

from __future__ import annotations

from pathlib import Path

from tests.faults.large_transaction import receive
from tests.support.fix_servers import Database

ROWS = 800_000
SHORT_LIMIT_MB = 640


def test_memory_of_the_receiver(publisher_db: Database, tmp_path: Path) -> None:
    """It is staged whole, without what was rolled back, in bounded memory (make soak: 5 M rows)."""
    found = receive(publisher_db, ROWS, tmp_path / "staging")
    assert found.rows == ROWS
    assert found.peak_mb < SHORT_LIMIT_MB
