# SPDX-License-Identifier: Apache-2.0
"""A node that is killed at random moments under load; ``make soak`` does the same for minutes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.faults.soak import Soak
from tests.support.fix_servers import Database
from tests.support.node import Node

KILLS = 2
RATE = 30  # transactions a second; the machine has other tests to run


@pytest.fixture
def soak(fault_node: Node, publisher_db: Database) -> Iterator[Soak]:
    """A pgbench database that the node for faults follows."""
    seed = secrets.randbelow(2**31)
    print(f"seed {seed}")  # pytest shows it when the test fails
    made = Soak(fault_node, publisher_db, seed, RATE)
    made.prepare()
    yield made
    made.close()


@pytest.mark.timeout(300)
def test_random_kills(soak: Soak) -> None:
    """No reader ever sees a part of a transaction, and in the end both sides are equal."""
    with soak.under_load():
        for _ in range(KILLS):
            soak.kill_once()
    soak.check()
    assert soak.kills == KILLS
